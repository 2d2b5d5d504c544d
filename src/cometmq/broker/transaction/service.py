"""END_TRANSACTION: half messages become real ones, or nothing.

Commits and rolls back on request, with RocketMQ's checks and answers.  A half message that is not
kept is read on the loop while its record is in memory, and otherwise in a worker.

What a commit stores is kept in memory for the newest half messages (`_KEPT_COUNT`, `_KEPT_BYTES`),
so that an end which comes soon reads nothing.  Commits that arrive together are stored together
(`run`).

A transaction is settled once.  A further end gets the answer of the first if it says the same, and
an error if it does not; a message that was put back for a check can be ended by its earlier places
as well.

Durable when an end is answered (process death / power cut):
    commit    the real message is put / flushed with SYNC_FLUSH
    rollback  its op message is put / flushed with SYNC_FLUSH
A one-way end is answered to nobody; a rollback among them is noted with the next op message.

Source: ``EndTransactionProcessor`` of RocketMQ 5.4
(docs/internals/delivery.md#end-of-a-transaction).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from cometmq.broker.base.state import BrokerState, Refusal, answer, in_worker
from cometmq.broker.base.store_failure import store_failure
from cometmq.broker.transaction.check_back import CheckBack
from cometmq.broker.transaction.load import load_transactions
from cometmq.broker.transaction.moving import PendingHalves
from cometmq.broker.transaction.ops import OpWriter
from cometmq.broker.transaction.run import EndRuns, commit_item, names_kept, read_halves
from cometmq.codec.java_hash import tags_code
from cometmq.codec.properties import find_property, remove_property
from cometmq.codec.stored_message import StoredMessage, decode_message
from cometmq.core.transaction.open_transactions import (
    HalfMessage,
    KeptHalf,
    OpenHalves,
    end_deadline_ms,
    half_of,
)
from cometmq.errors import CometError, ResponseCode, StoreError
from cometmq.model.flags import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from cometmq.model.names import HALF_TOPIC
from cometmq.net.server import Run, ServerConnection
from cometmq.store.base.dispatch import index_keys_of
from cometmq.store.base.results import PutResult
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.fast_decode import EndCommand
from cometmq.wire.header.headers import EndTransactionHeader

__all__ = ["TransactionService"]

log = logging.getLogger("cometmq.broker")

_REMEMBERED: Final = 10_000
"""The outcomes of so many ended transactions are remembered, for ends that are repeated."""
_KEPT_COUNT: Final = 16_384
_KEPT_BYTES: Final = 16 << 20
_OBJECT_BYTES: Final = 512
"""Memory of the objects of one kept half message beside its body and properties."""
_KEPT_BODY_BYTES_MAX: Final = 64 << 10
_OUTCOMES: Final = {TRANSACTION_COMMIT: "committed", TRANSACTION_ROLLBACK: "rolled back"}
_NOT_FOUND: Final = "Find prepared transaction message failed"

EndRequest = RemotingCommand | EndCommand


class TransactionService:
    """The processor of code 37, and everything a broker knows about transactions."""

    __slots__ = ("_at", "_ended", "_kept", "_kept_bytes", "_order", "_state", "check",
                 "end_run", "halves", "ops")  # fmt: skip

    def __init__(self, state: BrokerState) -> None:
        loaded = load_transactions(state.store, state.offsets)
        self._state = state
        self.halves: OpenHalves = loaded.halves
        self.ops = OpWriter(state, loaded)
        self.check = CheckBack(state, self.halves, self.ops, self._given_up)
        self.end_run: Run = EndRuns(
            state, self.halves, self._made_by, self.ops.is_refusing, self._committed
        ).serve
        """Serves ends that arrive together."""
        self._ended: dict[int, str] = {}
        self._order: deque[int] = deque()
        self._kept: deque[HalfMessage] = deque()
        """The newest half messages, the oldest first; among them ended ones."""
        self._kept_bytes = 0
        self._at: Callable[[str], None] = lambda name: None
        state.store.mover.kinds.append(PendingHalves(state, self.halves, self.ops, self.check))
        if self.halves:
            log.info("%d transactions are open; their producers are asked", len(self.halves))

    @property
    def at(self) -> Callable[[str], None]:
        """Told each named step; tests end the process there."""
        return self._at

    @at.setter
    def at(self, hook: Callable[[str], None]) -> None:
        self._at = self.ops.at = self.check.at = hook

    def start(self) -> None:
        """Begin to check back."""
        self.ops.start()
        self.check.start()

    def stop(self) -> None:
        """Check no more, and write down what is ended."""
        self.check.stop()
        self.ops.stop()

    # -- half messages ------------------------------------------------------------------------

    def added_again(self, result: PutResult, born_ms: int, properties: bytes) -> None:
        """Note a half message that was given up and is put back."""
        self.halves.add(half_of(result.queue_offset, result.physical_offset, born_ms, properties))
        self._at("half.put")

    def added(self, half: HalfMessage) -> None:
        """Note a half message that was put, with what its commit stores.

        That is kept of the newest ones only.
        """
        self.halves.add(half)
        made = half.cached
        if made is not None:
            if len(made.body) > _KEPT_BODY_BYTES_MAX:
                half.cached = None
            else:
                self._kept.append(half)
                self._kept_bytes += len(made.body) + len(made.raw) + _OBJECT_BYTES
                while self._kept_bytes > _KEPT_BYTES or len(self._kept) > _KEPT_COUNT:
                    self._let_go(self._kept.popleft())
        self._at("half.put")

    def _let_go(self, half: HalfMessage) -> None:
        made, half.cached = half.cached, None
        if made is not None:
            self._kept_bytes -= len(made.body) + len(made.raw) + _OBJECT_BYTES

    # -- END_TRANSACTION ----------------------------------------------------------------------

    def end(self, request: EndRequest, connection: ServerConnection, now_ms: int) -> bytes | None:
        """Serve END_TRANSACTION (37); an unknown outcome gets no answer at all."""
        if isinstance(request, EndCommand):
            header = request.ext
        else:
            header = EndTransactionHeader.from_command(request)
        if header.commit_or_rollback not in _OUTCOMES:
            return None
        half = self.halves.at(header.tran_state_table_offset)
        if half is not None and half.physical_offset == header.commit_log_offset:
            made = half.cached
            if made is not None and names_kept(header, half, made):
                return self._finish(request, header, half, made, connection)
            message = read_halves(self._state, half.queue_offset, 1).get(half.queue_offset)
            if message is not None:
                return self._settle(request, header, message, connection)
        place, store = header.commit_log_offset, self._state.store
        is_moved = place < store.min_physical_offset and self._is_moved(header)
        if is_moved:
            newest = self.halves.find(header.tran_state_table_offset)
            assert newest is not None
            place = newest.physical_offset

        def read() -> StoredMessage | None:
            try:
                found = store.message_at(place)
                return None if found is None else decode_message(found)
            except CometError:
                return None

        in_worker(
            self._state,
            request,
            connection,
            read,
            lambda found: self._settle(request, header, found, connection, is_moved=is_moved),
        )
        return None

    def _is_moved(self, header: EndTransactionHeader) -> bool:
        """Whether an end names an earlier place of an open transaction."""
        half = self.halves.find(header.tran_state_table_offset)
        return half is not None and half.queue_offset != header.tran_state_table_offset

    def _settle(
        self,
        request: EndRequest,
        header: EndTransactionHeader,
        message: StoredMessage | None,
        connection: ServerConnection,
        *,
        is_moved: bool = False,
    ) -> bytes | None:
        try:
            checked = self._checked(header, message, is_moved=is_moved)
            half = self.halves.find(header.tran_state_table_offset)
            if half is None:
                self._repeated(header)
                return answer(request)
            is_commit = header.commit_or_rollback == TRANSACTION_COMMIT
            made = _made_of(checked) if is_commit else None
        except Refusal as refusal:
            return answer(request, refusal.code, refusal.remark)
        return self._finish(request, header, half, made, connection)

    def _finish(
        self,
        request: EndRequest,
        header: EndTransactionHeader,
        half: HalfMessage,
        made: KeptHalf | None,
        connection: ServerConnection,
    ) -> bytes | None:
        """End an open transaction by a request that means it."""
        if self.ops.is_refusing():
            return answer(
                request,
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "service not available now: ended transactions cannot be noted, see the broker's"
                " log",
            )
        if header.commit_or_rollback == TRANSACTION_ROLLBACK:
            return self._roll_back(request, half, connection)
        assert made is not None
        try:
            return self._commit(request, half, made, connection)
        except StoreError as error:
            return answer(request, *store_failure(self._state, error))

    def _checked(
        self, header: EndTransactionHeader, message: StoredMessage | None, *, is_moved: bool
    ) -> StoredMessage:
        """Check the request against the record it names, in Java's order.

        `is_moved`: that record's file has expired, and this is the newest one of the same
        transaction, which the request has to name by its id.
        """
        if message is None or message.topic != HALF_TOPIC:
            raise Refusal(ResponseCode.SYSTEM_ERROR, _NOT_FOUND)
        raw = message.raw_properties
        if not header.from_transaction_check:
            deadline_ms = end_deadline_ms(
                raw, message.born_timestamp_ms, self._state.config.transaction_time_out
            )
            now_ms = self._state.env.clock.now_ms()
            if deadline_ms is not None and now_ms > deadline_ms:
                raise Refusal(
                    ResponseCode.ILLEGAL_OPERATION,
                    f"the end came {now_ms - deadline_ms} ms after the time that "
                    "CHECK_IMMUNITY_TIME_IN_SECONDS gave; the producer is asked, and its answer "
                    "to that counts",
                )
        group = find_property(raw, b"PGROUP")
        if group is None or group.decode("utf-8", "replace") != header.producer_group:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if is_moved:
            if not (header.msg_id or header.transaction_id) or not _is_meant(header, message):
                raise Refusal(ResponseCode.SYSTEM_ERROR, "The transaction id wrong")
            return message
        if message.queue_offset != header.tran_state_table_offset:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        if message.physical_offset != header.commit_log_offset:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "The commit log offset wrong")
        if not _is_meant(header, message):
            raise Refusal(ResponseCode.SYSTEM_ERROR, "The transaction id wrong")
        return message

    def _repeated(self, header: EndTransactionHeader) -> None:
        """Accept a further end that says what the first one said."""
        outcome = self._ended.get(header.tran_state_table_offset)
        if outcome != _OUTCOMES[header.commit_or_rollback]:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"the transaction is {outcome or 'ended'} already and cannot be "
                f"{_OUTCOMES[header.commit_or_rollback]}",
            )

    def _roll_back(
        self, request: EndRequest, half: HalfMessage, connection: ServerConnection
    ) -> bytes | None:
        self._close(half, "rolled back")
        if request.is_oneway:
            return None

        def written(end: int) -> None:
            if end < 0:
                connection.send(
                    answer(
                        request,
                        ResponseCode.SERVICE_NOT_AVAILABLE,
                        "service not available now: the rollback is noted in memory only; "
                        "see the broker's log",
                    )
                )
            else:
                self._answer_durable(request, end, connection)

        self.ops.when_written(written)
        return None

    def _commit(
        self,
        request: EndRequest,
        half: HalfMessage,
        made: KeptHalf,
        connection: ServerConnection,
    ) -> bytes | None:
        """Put the message where its producer wanted it; body and properties stay."""
        now_ms = self._state.env.clock.now_ms()
        (result,) = self._state.store.append(
            [commit_item(half, made)], born_host=made.born_host, store_ms=now_ms
        )
        self._at("commit.put")
        self._close(half, "committed")
        if request.is_oneway:
            return None
        if self._state.config.flush_disk_type != "SYNC_FLUSH":
            return answer(request)
        self._answer_durable(request, result.end_offset, connection)
        return None

    def _made_by(self, header: EndTransactionHeader, message: StoredMessage) -> KeptHalf | None:
        """What an end in a run stores of a half message that is not kept, if it may."""
        try:
            return _made_of(self._checked(header, message, is_moved=False))
        except Refusal:
            return None

    def _committed(self, halves: Sequence[HalfMessage]) -> None:
        """Close transactions whose commits were put together."""
        for _ in halves:
            self._at("commit.put")
        for half in halves:
            self._close(half, "committed", is_noted=False)
        self.ops.ended_together([half.queue_offset for half in halves])

    def _given_up(self, half: HalfMessage) -> None:
        self._close(half, "given up")

    def _close(self, half: HalfMessage, outcome: str, *, is_noted: bool = True) -> None:
        """Forget an open transaction; remember its outcome for a while, by all its places.

        `is_noted`: it goes into the next op message, unless the caller sees to that.
        """
        ended, order = self._ended, self._order
        for place in self.halves.remove(half):
            ended[place] = outcome
            order.append(place)
        self._let_go(half)
        while len(order) > _REMEMBERED:
            del ended[order.popleft()]
        if is_noted:
            self.ops.ended(half.queue_offset)

    def _answer_durable(
        self, request: EndRequest, end_offset: int, connection: ServerConnection
    ) -> None:
        if self._state.config.flush_disk_type != "SYNC_FLUSH":
            connection.send(answer(request))
            return

        def settle(is_durable: bool) -> None:
            timed_out = ResponseCode.FLUSH_DISK_TIMEOUT, "FLUSH_DISK_TIMEOUT"
            connection.send(answer(request) if is_durable else answer(request, *timed_out))

        self._state.store.when_durable(end_offset, settle)


def _is_meant(header: EndTransactionHeader, message: StoredMessage) -> bool:
    """Whether the ids that a request gives, if any, are those of the message.

    After a power cut another message may lie at the place that an end names.  Java compares no ids.
    """
    given = [text for text in (header.msg_id, header.transaction_id) if text]
    uniq_key = _text(find_property(message.raw_properties, b"UNIQ_KEY"))
    # Old clients say the offset message id.
    return not given or uniq_key in given or message.offset_message_id in given


def _made_of(message: StoredMessage) -> KeptHalf:
    """What the commit of a half message stores, by its record.

    Raises:
        Refusal: it names no topic and queue.
    """
    topic, queue_id, raw = _take_destination(message.raw_properties)
    if topic is None or queue_id is None or not queue_id.isdigit():
        raise Refusal(
            ResponseCode.MESSAGE_ILLEGAL,
            "the message is illegal: it names no topic and queue to be delivered to",
        )
    keys = index_keys_of(raw) or (None, None, None)
    return KeptHalf(
        int(queue_id),
        message.body,
        raw,
        message.flag,
        message.sys_flag,
        message.born_host,
        message.reconsume_times,
        tags_code(keys[2]),
        keys,
    )


def _take_destination(raw: bytes) -> tuple[bytes | None, bytes | None, bytes]:
    """REAL_TOPIC, REAL_QID, and the property string without them."""
    # They are the last two of a half message that this broker stored and never put back.
    head, _, tail = raw.rpartition(b"\x02REAL_TOPIC\x01")
    topic, _, rest = tail.partition(b"\x02REAL_QID\x01")
    queue_id, _, behind = rest.partition(b"\x02")
    if head and queue_id and not behind and b"REAL_" not in head and b"\x02" not in topic:
        return topic, queue_id, head + b"\x02"
    return (
        find_property(raw, b"REAL_TOPIC"),
        find_property(raw, b"REAL_QID"),
        remove_property(remove_property(raw, b"REAL_TOPIC"), b"REAL_QID"),
    )


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
