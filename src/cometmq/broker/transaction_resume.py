"""RESUME_CHECK_HALF_MESSAGE: a transaction that was given up is asked about again.

Job: put a message of ``TRANS_CHECK_MAX_TIME_TOPIC`` back among the half messages, without the
checks it has had, for tools (``MQAdminExt.resumeCheckHalfMessage``).  It must not decide its
outcome: its producers do, when they are asked.

Source: ``AdminBrokerProcessor.resumeCheckHalfMessage`` of RocketMQ 5.4, which takes any message and
takes it as often as it is told to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cometmq.broker.lookup import in_worker
from cometmq.broker.send import store_failure
from cometmq.broker.state import BrokerState, answer
from cometmq.codec.ids import decode_offset_message_id
from cometmq.codec.java_hash import tags_code
from cometmq.codec.properties import ensure_trailing_separator, find_property, remove_property
from cometmq.codec.stored_message import StoredMessage, decode_message
from cometmq.errors import ResponseCode, StoreError
from cometmq.model.names import HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from cometmq.net.server import ServerConnection
from cometmq.store.results import PutResult
from cometmq.wire.admin_headers import ResumeCheckHeader
from cometmq.wire.command import RemotingCommand

__all__ = ["ResumeProcessor"]

_REMEMBERED: Final = 10_000
"""So many resumed messages of this life are known, and not resumed once more."""
_HOUR_MS: Final = 3_600_000
Added = Callable[[PutResult, int, bytes], None]


class ResumeProcessor:
    """The processor of code 323; `added` is told of what is open again."""

    __slots__ = ("_added", "_resumed", "_state")

    def __init__(self, state: BrokerState, added: Added) -> None:
        self._state = state
        self._added = added
        self._resumed: dict[int, None] = {}

    def resume(self, request: RemotingCommand, connection: ServerConnection, now_ms: int) -> None:
        """Serve RESUME_CHECK_HALF_MESSAGE (323)."""
        header = ResumeCheckHeader.from_command(request)
        _, place = decode_offset_message_id(header.msg_id)
        store = self._state.store

        def read() -> StoredMessage | None:
            found = store.message_at(place)
            return None if found is None else decode_message(found)

        def finish(message: StoredMessage | None) -> bytes | None:
            refusal = self._refusal(message, now_ms)
            if refusal is not None or message is None:
                return answer(
                    request,
                    ResponseCode.SYSTEM_ERROR,
                    f"{header.msg_id} cannot be asked about again: {refusal}",
                )
            try:
                result = self._put_back(message, now_ms)
            except StoreError as error:
                return answer(request, *store_failure(self._state, error))
            self._answer_durable(request, result, connection)
            return None

        in_worker(self._state, request, connection, read, finish)

    def _refusal(self, message: StoredMessage | None, now_ms: int) -> str | None:
        """Why a message is not put back."""
        if message is None:
            return "no message is there; look it up with cometmq store or mqadmin queryMsgById"
        if message.topic != TRANS_CHECK_MAX_TIME_TOPIC:
            return (
                f"it is a message of topic {message.topic}; only those that were given up, in"
                f" {TRANS_CHECK_MAX_TIME_TOPIC}, can be resumed"
            )
        if message.physical_offset in self._resumed:
            return "that was done already"
        kept_ms = self._state.config.file_reserved_time * _HOUR_MS
        age_ms = now_ms - message.born_timestamp_ms
        if age_ms > kept_ms:
            return (
                f"it is {age_ms // _HOUR_MS} hours old, and what is older than"
                f" {kept_ms // _HOUR_MS} (fileReservedTime) is given up at once"
            )
        return None

    def _put_back(self, message: StoredMessage, now_ms: int) -> PutResult:
        raw = message.raw_properties
        for name in (b"TRANSACTION_CHECK_TIMES", b"TRAN_PREPARED_QUEUE_OFFSET"):
            raw = remove_property(raw, name)
        raw = ensure_trailing_separator(raw) + b"TRANSACTION_CHECK_TIMES\x010\x02"
        tags = _text(raw, b"TAGS")
        result = self._state.store.put(
            HALF_TOPIC,
            0,
            message.body,
            raw,
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_ms=message.born_timestamp_ms,
            born_host=message.born_host,
            reconsume_times=message.reconsume_times,
            tags_code=tags_code(tags),
            store_ms=now_ms,
            index_keys=(_text(raw, b"UNIQ_KEY"), _text(raw, b"KEYS"), tags),
        )
        self._resumed[message.physical_offset] = None
        if len(self._resumed) > _REMEMBERED:
            del self._resumed[next(iter(self._resumed))]
        self._added(result, message.born_timestamp_ms, raw)
        return result

    def _answer_durable(
        self, request: RemotingCommand, result: PutResult, connection: ServerConnection
    ) -> None:
        if self._state.config.flush_disk_type != "SYNC_FLUSH":
            connection.send(answer(request))
            return

        def settle(is_durable: bool) -> None:
            timed_out = ResponseCode.FLUSH_DISK_TIMEOUT, "FLUSH_DISK_TIMEOUT"
            connection.send(answer(request) if is_durable else answer(request, *timed_out))

        self._state.store.when_durable(result.end_offset, settle)


def _text(raw: bytes, name: bytes) -> str | None:
    value = find_property(raw, name)
    return None if value is None else value.decode("utf-8", "replace")
