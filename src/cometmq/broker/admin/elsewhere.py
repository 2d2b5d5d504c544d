"""Answers requests of RocketMQ's tools about parts that this broker does not have.

A tool asks one broker after the other and stops at the first error, so what asks for nothing here
is answered with success and a remark that says so: 354 and 355 (RocksDB), 908, 2001 to 2003 (cold
data), 200056 (POP).  What asks for a part that is missing is refused with the reason: 401 for POP,
513 (static topics), 2004 for random reading, 5001 for the RocksDB timers.

Source: AdminBrokerProcessor of RocketMQ 5.4.
"""

from __future__ import annotations

from typing import Final

from cometmq.broker.base.state import BrokerState, Refusal, answer, refusing
from cometmq.codec.java_properties import parse_properties
from cometmq.errors import CodecError, ResponseCode
from cometmq.net.server import Handler, ServerConnection
from cometmq.wire.command.codes import RequestCode as Code
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.command.fastjson import dumps, loads_object

__all__ = ["ElsewhereProcessor"]

GROUPS_MAX: Final = 10_000
"""Thresholds of so many groups are kept; they have no effect."""
_COLD_READ_THRESHOLD: Final = 3_145_728
_GLOBAL_COLD_READ_THRESHOLD: Final = 104_857_600
_NORMAL: Final = "0"
_FILE_TIMERS, _ROCKSDB_TIMERS = "F", "R"


class ElsewhereProcessor:
    """The processors of codes about parts that only RocketMQ's broker has."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._thresholds: dict[str, int] = {}

    def handlers(self) -> dict[int, Handler]:
        """Map each code to its processor, with refusals turned into answers."""
        table: dict[int, Handler] = {
            Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: self.rocksdb_progress,
            Code.EXPORT_ROCKSDB_CONFIG_TO_JSON: _done("export done. The settings are files here."),
            Code.SET_MESSAGE_REQUEST_MODE: self.request_mode,
            Code.UPDATE_AND_CREATE_STATIC_TOPIC: self.static_topic,
            Code.RESET_MASTER_FLUSH_OFFSET: _done("Slaves ask the master themselves here."),
            Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: self.set_cold_data,
            Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: self.remove_cold_data,
            Code.GET_COLD_DATA_FLOW_CTR_INFO: self.cold_data,
            Code.SET_COMMITLOG_READ_MODE: self.read_mode,
            Code.SWITCH_TIMER_ENGINE: self.timer_engine,
            Code.POP_ROLLBACK: _done("There are no POP records here."),
        }
        return {code: refusing(handler) for code, handler in table.items()}

    def rocksdb_progress(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve CHECK_ROCKSDB_CQ_WRITE_PROGRESS (354): nothing to check, status 0."""
        result = "the queues are files and not in RocksDB, no need check"
        return answer(request, body=dumps({"checkResult": result, "checkStatus": 0}))

    def request_mode(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve SET_MESSAGE_REQUEST_MODE (401): PULL is how members consume anyway.

        Raises:
            Refusal: the body asks for POP, or is none.
        """
        try:
            mode = str(loads_object(request.body, "MessageRequestModeSerializeWrapper").get("mode"))
        except CodecError as error:
            raise Refusal(ResponseCode.INVALID_PARAMETER, str(error)) from error
        if mode != "PULL":
            raise Refusal(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f"the mode {mode:.20} is not there; members of this broker's groups pull",
            )
        return answer(request)

    def static_topic(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Refuse UPDATE_AND_CREATE_STATIC_TOPIC (513).

        Raises:
            Refusal: always.
        """
        raise Refusal(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            "static topics are not there; cometmq topic grow changes the queues of a topic",
        )

    def set_cold_data(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve UPDATE_COLD_DATA_FLOW_CTR_CONFIG (2001): note thresholds, a `group=bytes` a line.

        Lines that are none are passed over, as in Java.
        """
        for group, text in parse_properties(request.body.decode("utf-8", "replace")).items():
            is_new = group not in self._thresholds
            if text.isdecimal() and len(text) < 19 and group:
                if is_new and len(self._thresholds) >= GROUPS_MAX:
                    break
                self._thresholds[group] = int(text)
        return answer(
            request,
            remark="Noted; reads of old data hold up nobody here, so that it has no effect.",
        )

    def remove_cold_data(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve REMOVE_COLD_DATA_FLOW_CTR_CONFIG (2002): the body is the group's name."""
        self._thresholds.pop(request.body.decode("utf-8", "replace"), None)
        return answer(request)

    def cold_data(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve GET_COLD_DATA_FLOW_CTR_INFO (2003): what was noted, and nothing that was slowed."""
        body = {
            "runtimeTable": {},
            "configTable": dict(self._thresholds),
            "cgColdReadThreshold": _COLD_READ_THRESHOLD,
            "globalColdReadThreshold": _GLOBAL_COLD_READ_THRESHOLD,
            "globalAcc": 0,
        }
        return answer(request, body=dumps(body))

    def read_mode(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve SET_COMMITLOG_READ_MODE (2004): the normal mode is the only one.

        Raises:
            Refusal: the mode is another one, or missing.
        """
        mode = request.ext_fields.get("READ_AHEAD_MODE")
        if mode is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "the request has no READ_AHEAD_MODE")
        if mode != _NORMAL:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"READ_AHEAD_MODE is {mode!r:.20}; this broker has the normal one, 0",
            )
        return answer(request, remark=f"set commitlog readahead mode success, mode: {mode}")

    def timer_engine(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve SWITCH_TIMER_ENGINE (5001): timers are in files, which is `F`.

        Raises:
            Refusal: the request wants RocksDB, another letter, or there are no exact timers.
        """
        engine = request.ext_fields.get("E_T", "")
        if engine == _FILE_TIMERS and self._state.config.timer_wheel_enable:
            return answer(request, remark="switch timer engine success")
        cause = f"E_T is {engine!r:.20}, and this broker's timers are in files, which is F"
        if engine == _FILE_TIMERS:
            cause = "exact timers are switched off: set timerWheelEnable=true and restart"
        elif engine == _ROCKSDB_TIMERS:
            cause = "there is no RocksDB store; the timers of this broker are in files, which is F"
        raise Refusal(ResponseCode.INVALID_PARAMETER, cause)


def _done(remark: str) -> Handler:
    def serve(request: RemotingCommand, connection: ServerConnection, now_ms: int) -> bytes:
        return answer(request, remark=remark)

    return serve
