"""RESUME_CHECK_HALF_MESSAGE: a transaction that was given up is asked about again.

A tool (``MQAdminExt.resumeCheckHalfMessage``) names a message of ``TRANS_CHECK_MAX_TIME_TOPIC``.
The broker puts it back among the half messages, as one that was never asked about.  Its producers
decide the outcome when they are asked.

Each message is resumed once.  A resumed half message has a newer record in the half queue with the
same UNIQ_KEY, which the index finds, also after a restart.  Without an index
(``messageIndexEnable=false``) the broker knows only what it resumed since its start.

Source: ``AdminBrokerProcessor.resumeCheckHalfMessage`` of RocketMQ 5.4, which takes any message, as
often as it is asked to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cometmq.broker.base.barrier import late_remark
from cometmq.broker.base.put_again import put_again
from cometmq.broker.base.state import BrokerState, answer, in_worker
from cometmq.broker.base.store_failure import store_failure
from cometmq.codec.ids import decode_offset_message_id
from cometmq.codec.properties import ensure_trailing_separator, remove_property
from cometmq.codec.stored_message import StoredMessage, decode_message
from cometmq.errors import ResponseCode, StoreError
from cometmq.model import properties as prop
from cometmq.model.names import HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from cometmq.net.server import ServerConnection
from cometmq.store.base.results import PutResult
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.admin import ResumeCheckHeader

__all__ = ["ResumeProcessor"]

_REMEMBERED: Final = 10_000
"""Resumed messages that are remembered without the index, until the broker stops."""
_NEWEST_COUNT: Final = 64
"""Records of the half queue with a message's key that are read, from the newest on."""
_HOUR_MS: Final = 3_600_000
Added = Callable[[PutResult, int, bytes], None]


class ResumeProcessor:
    """The processor of code 323; `added` is called with each half message that is open again."""

    def __init__(self, state: BrokerState, added: Added) -> None:
        self._state = state
        self._added = added
        self._resumed: dict[int, None] = {}

    def resume(self, request: RemotingCommand, connection: ServerConnection, now_ms: int) -> None:
        """Serve RESUME_CHECK_HALF_MESSAGE (323)."""
        header = ResumeCheckHeader.from_command(request)
        _, physical_offset = decode_offset_message_id(header.msg_id)
        store = self._state.store

        def read() -> StoredMessage | None:
            record = store.message_at(physical_offset)
            return None if record is None else decode_message(record)

        def finish(message: StoredMessage | None) -> bytes | None:
            refusal = self._refusal(message, now_ms)
            if refusal is not None or message is None:
                return refused(refusal)
            in_worker(
                self._state,
                request,
                connection,
                self._search_newer(message),
                lambda is_resumed: put_back(message, is_resumed=is_resumed),
            )
            return None

        def put_back(message: StoredMessage, *, is_resumed: bool) -> bytes | None:
            # Another request may have resumed it while the worker searched.
            if is_resumed or message.physical_offset in self._resumed:
                return refused("that was done already")
            try:
                result = self._put_back(message, now_ms)
            except StoreError as error:
                return answer(request, *store_failure(self._state, error))
            self._answer_durable(request, result, connection)
            return None

        def refused(reason: str | None) -> bytes:
            return answer(
                request,
                ResponseCode.SYSTEM_ERROR,
                f"{header.msg_id} cannot be asked about again: {reason}",
            )

        in_worker(self._state, request, connection, read, finish)

    def _search_newer(self, message: StoredMessage) -> Callable[[], bool]:
        """On the loop; a worker calls the result, which says whether there is a newer record."""
        store = self._state.store
        uniq_key = message.properties.get(prop.UNIQ_KEY)
        if uniq_key is None or not store.config.is_index_enabled:
            return lambda: False
        # An index entry has whole seconds only.
        begin_ms = message.store_timestamp_ms - 1000
        look_up = store.prepare_query_index(HALF_TOPIC, uniq_key, _NEWEST_COUNT, begin_ms)

        def search() -> bool:
            for offset in look_up().physical_offsets:
                record = store.message_at(offset) if offset > message.physical_offset else None
                half = None if record is None else decode_message(record)
                # Another key may have the same hash.
                if half is not None and half.properties.get(prop.UNIQ_KEY) == uniq_key:
                    return True
            return False

        return search

    def _refusal(self, message: StoredMessage | None, now_ms: int) -> str | None:
        """Return why a message is not put back; None when it is."""
        if message is None:
            return "no message is there; look it up with cometmq store or mqadmin queryMsgById"
        if message.topic != TRANS_CHECK_MAX_TIME_TOPIC:
            return (
                f"it is a message of topic {message.topic}; only those that were given up, in"
                f" {TRANS_CHECK_MAX_TIME_TOPIC}, can be resumed"
            )
        reserved_ms = self._state.config.file_reserved_time * _HOUR_MS
        age_ms = now_ms - message.born_timestamp_ms
        if age_ms > reserved_ms:
            return (
                f"it is {age_ms // _HOUR_MS} hours old, and what is older than"
                f" {reserved_ms // _HOUR_MS} (fileReservedTime) is given up at once"
            )
        return None

    def _put_back(self, message: StoredMessage, now_ms: int) -> PutResult:
        raw = message.raw_properties
        for name in (b"TRANSACTION_CHECK_TIMES", b"TRAN_PREPARED_QUEUE_OFFSET"):
            raw = remove_property(raw, name)
        raw = ensure_trailing_separator(raw) + b"TRANSACTION_CHECK_TIMES\x010\x02"
        result = put_again(self._state, HALF_TOPIC, 0, message, raw, now_ms)
        self._resumed[message.physical_offset] = None
        if len(self._resumed) > _REMEMBERED:
            del self._resumed[next(iter(self._resumed))]
        self._added(result, message.born_timestamp_ms, raw)
        return result

    def _answer_durable(
        self, request: RemotingCommand, result: PutResult, connection: ServerConnection
    ) -> None:
        barrier = self._state.barrier
        if not barrier.is_waiting:
            connection.send(answer(request))
            return
        barrier.when_passed(
            result.end_offset,
            lambda code: connection.send(answer(request, code, late_remark(code))),
        )
