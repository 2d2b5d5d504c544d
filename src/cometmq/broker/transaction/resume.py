"""RESUME_CHECK_HALF_MESSAGE: a transaction that was given up is asked about again.

Job: put a message of ``TRANS_CHECK_MAX_TIME_TOPIC`` back among the half messages, without the
checks it has had, for tools (``MQAdminExt.resumeCheckHalfMessage``).  It must not decide its
outcome: its producers do, when they are asked.

A half message that was resumed has a record in the half queue behind the one it was resumed from,
with the same UNIQ_KEY: the index finds it, also after a restart.  So each is resumed once.  Without
an index (``messageIndexEnable=false``) only those of this life are known.

Source: ``AdminBrokerProcessor.resumeCheckHalfMessage`` of RocketMQ 5.4, which takes any message and
takes it as often as it is told to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

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
"""So many resumed messages are remembered without the index, until the broker stops."""
_LOOKED_AT: Final = 64
"""Newest records of the half queue with this key that are looked at."""
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
                return refused(refusal)
            in_worker(
                self._state,
                request,
                connection,
                self._newer(message),
                lambda is_resumed: put_back(message, is_resumed=is_resumed),
            )
            return None

        def put_back(message: StoredMessage, *, is_resumed: bool) -> bytes | None:
            # Another request may have been faster while the worker looked.
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

    def _newer(self, message: StoredMessage) -> Callable[[], bool]:
        """On the loop; the result, for a worker, says whether it has a newer half message."""
        store = self._state.store
        uniq_key = message.properties.get(prop.UNIQ_KEY)
        if uniq_key is None or not store.config.is_index_enabled:
            return lambda: False
        # An entry knows whole seconds only.
        begin_ms = message.store_timestamp_ms - 1000
        look_up = store.prepare_query_index(HALF_TOPIC, uniq_key, _LOOKED_AT, begin_ms)

        def look() -> bool:
            for place in look_up().physical_offsets:
                found = store.message_at(place) if place > message.physical_offset else None
                half = None if found is None else decode_message(found)
                # Another key may have the same hash.
                if half is not None and half.properties.get(prop.UNIQ_KEY) == uniq_key:
                    return True
            return False

        return look

    def _refusal(self, message: StoredMessage | None, now_ms: int) -> str | None:
        """Why a message is not put back."""
        if message is None:
            return "no message is there; look it up with cometmq store or mqadmin queryMsgById"
        if message.topic != TRANS_CHECK_MAX_TIME_TOPIC:
            return (
                f"it is a message of topic {message.topic}; only those that were given up, in"
                f" {TRANS_CHECK_MAX_TIME_TOPIC}, can be resumed"
            )
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
        result = put_again(self._state, HALF_TOPIC, 0, message, raw, now_ms)
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
