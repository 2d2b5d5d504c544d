"""RECALL_MESSAGE (370): takes a timed message back before it is delivered.

A recall is itself a timed message of the same slot, which names the recalled message by
TIMER_DEL_UNIQKEY (``RecallMessageProcessor`` of RocketMQ 5.4.0).  The broker does not search for
the recalled message: success means that it is not delivered any more.

The answer leaves when the recall is as durable as an ordinary send.
"""

from __future__ import annotations

from typing import Final

from cometmq.broker.base.state import BrokerState, Refusal, answer, refusing
from cometmq.broker.base.store_failure import store_failure
from cometmq.broker.delay.wheel.timed_send import TimedKind
from cometmq.broker.send.kinds import Destination
from cometmq.broker.send.send import SendProcessor
from cometmq.codec.recall import RecallHandle, decode_recall_handle
from cometmq.errors import CodecError, ResponseCode, StoreError
from cometmq.model import flags
from cometmq.model import properties as prop
from cometmq.model.flags import PERM_WRITE
from cometmq.net.server import Handler, ServerConnection
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import FLAG_ONEWAY, RemotingCommand
from cometmq.wire.header.headers import RecallMessageHeader

__all__ = ["RecallProcessor"]

RECALL_TAG: Final = "_RECALL_TAG_"


class RecallProcessor:
    """Serves one broker."""

    def __init__(self, state: BrokerState, send: SendProcessor, timed: TimedKind) -> None:
        self._state = state
        self._send = send
        self._timed = timed

    def handlers(self) -> dict[int, Handler]:
        """The codes served here."""
        return {RequestCode.RECALL_MESSAGE: refusing(self.recall)}

    def recall(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes | None:
        """Serve RECALL_MESSAGE."""
        state = self._state
        header = RecallMessageHeader.from_command(request)
        self._check_state(now_ms)
        config = state.topics.get(header.topic)
        if config is None:
            raise Refusal(
                ResponseCode.TOPIC_NOT_EXIST,
                f"recall failed, the topic[{header.topic}] not exist",
            )
        handle = self._handle(header, now_ms)
        properties = {
            prop.TAGS: RECALL_TAG,
            prop.TIMER_DEL_UNIQKEY: handle.uniq_key,
            prop.UNIQ_KEY: handle.uniq_key,
            prop.TIMER_DELIVER_MS: str(handle.time_ms),
            prop.BORN_TIMESTAMP: str(now_ms),
        }
        if header.producer_group:
            properties[prop.PRODUCER_GROUP] = header.producer_group
        target = Destination(handle.topic, 0, properties)
        self._timed.delay(target, self._timed.out_ms(handle.time_ms))
        try:
            result = self._send.put(
                target,
                b"0",
                flag=0,
                sys_flag=flags.MULTI_TAGS if config.topic_filter_type == "MULTI_TAG" else 0,
                born_ms=now_ms,
                born_host=connection.peer_host,
                reconsume_times=0,
                now_ms=now_ms,
            )
        except StoreError as error:
            raise Refusal(*store_failure(state, error)) from None
        ext = {"msgId": handle.uniq_key, "MSG_REGION": state.config.region_id}
        if not state.barrier.is_waiting or request.flag & FLAG_ONEWAY:
            return answer(request, ext=ext)

        state.barrier.when_passed(
            result.end_offset, lambda code: connection.send(answer(request, code, ext=ext))
        )
        return None

    def _check_state(self, now_ms: int) -> None:
        config = self._state.config
        if not config.recall_message_enable:
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                "recall failed, operation is forbidden: recallMessageEnable is false",
            )
        if not self._timed.is_enabled:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                "recall failed: accurate timer message is not enabled, timerWheelEnable is false",
            )
        if (
            now_ms < config.start_accept_send_request_time_stamp
            or not config.broker_permission & PERM_WRITE
        ):
            raise Refusal(
                ResponseCode.SERVICE_NOT_AVAILABLE, "recall failed, broker service not available"
            )

    def _handle(self, header: RecallMessageHeader, now_ms: int) -> RecallHandle:
        try:
            handle = decode_recall_handle(header.recall_handle)
        except CodecError as error:
            raise Refusal(ResponseCode.ILLEGAL_OPERATION, str(error)) from None
        config = self._state.config
        if header.topic != handle.topic:
            raise Refusal(
                ResponseCode.ILLEGAL_OPERATION,
                f"recall failed, topic not match: the handle is of {handle.topic}, the request "
                f"says {header.topic}",
            )
        if handle.broker_name != config.broker_name:
            raise Refusal(
                ResponseCode.ILLEGAL_OPERATION,
                "recall failed, broker service not available: the handle is of "
                f"{handle.broker_name}, this is {config.broker_name}",
            )
        left_ms = handle.time_ms - now_ms
        if left_ms <= 0 or left_ms >= config.timer_max_delay_sec * 1000:
            raise Refusal(
                ResponseCode.ILLEGAL_OPERATION,
                f"recall failed, timestamp invalid: the time of the message is {left_ms} ms ahead, "
                "it is recalled until its second begins",
            )
        return handle
