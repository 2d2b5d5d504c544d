"""END_TRANSACTION: commits half messages or rolls them back, with RocketMQ's checks and answers.

For the newest half messages, the broker has in memory what their commit stores (`_CACHED_COUNT`,
`_CACHED_BYTES`), so that an end which comes soon reads nothing.  Any other half message is read: on
the loop while its record is in memory, otherwise in a worker.  Commits that arrive together are
stored together (`run`).

A transaction is settled once.  A further end gets the same answer if it says the same, and an error
otherwise.  A message that was put back for a check can be ended by its earlier queue offsets too.

Durable when an end is answered (process death / power cut):
    commit    the real message is put / has passed the barrier of sends
    rollback  its op message is put / has passed the barrier of sends
A one-way end gets no answer; if it rolls back, the next op message names it.

Source: ``EndTransactionProcessor`` of RocketMQ 5.4
(docs/internals/delivery.md#end-of-a-transaction).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from cometmq.broker.base.barrier import late_remark
from cometmq.broker.base.state import BrokerState, Refusal, answer, in_worker
from cometmq.broker.base.store_failure import store_failure
from cometmq.broker.transaction.check_back import CheckBack
from cometmq.broker.transaction.content import cached_content, content_of
from cometmq.broker.transaction.load import load_transactions
from cometmq.broker.transaction.moving import PendingHalves
from cometmq.broker.transaction.ops import OpWriter
from cometmq.broker.transaction.run import EndRuns, commit_item, names_cached, read_halves
from cometmq.codec.properties import find_property
from cometmq.codec.stored_message import StoredMessage, decode_message
from cometmq.core.transaction.open_transactions import (
    CommitContent,
    HalfMessage,
    OpenHalves,
    end_deadline_ms,
    half_of,
)
from cometmq.errors import CometError, ResponseCode, StoreError
from cometmq.model.flags import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from cometmq.model.names import HALF_TOPIC
from cometmq.net.server import Run, ServerConnection
from cometmq.store.base.results import PutResult
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.fast_decode import EndCommand
from cometmq.wire.header.headers import EndTransactionHeader

__all__ = ["TransactionService"]

log = logging.getLogger("cometmq.broker")

_REMEMBERED: Final = 10_000
"""Ended transactions whose outcome is remembered, for ends that are repeated."""
_CACHED_COUNT: Final = 16_384
_CACHED_BYTES: Final = 16 << 20
_OBJECT_BYTES: Final = 512
"""Memory of the objects of one cached commit beside body and properties, or the record."""
_CACHED_MESSAGE_BYTES_MAX: Final = 64 << 10
_OUTCOMES: Final = {TRANSACTION_COMMIT: "committed", TRANSACTION_ROLLBACK: "rolled back"}
_NOT_FOUND: Final = "Find prepared transaction message failed"

EndRequest = RemotingCommand | EndCommand


class TransactionService:
    """The processor of code 37, and everything a broker knows about transactions."""

    def __init__(self, state: BrokerState) -> None:
        loaded = load_transactions(state.store, state.offsets)
        self._state = state
        self.halves: OpenHalves = loaded.halves
        self.ops = OpWriter(state, loaded)
        self.check = CheckBack(state, self.halves, self.ops, self._given_up)
        self.end_run: Run = EndRuns(
            state, self.halves, self._checked_commit, self.ops.is_refusing, self._committed
        ).serve
        """Serves ends that arrive together."""
        self._outcomes: dict[int, str] = {}
        """Queue offset of an ended half message -> its outcome."""
        self._order: deque[int] = deque()
        """The keys of `_outcomes`, in the order in which they came."""
        self._cached: deque[HalfMessage] = deque()
        """The newest half messages, the oldest first; some are ended already."""
        self._cached_bytes = 0
        self._at: Callable[[str], None] = lambda name: None
        state.store.mover.kinds.append(PendingHalves(state, self.halves, self.ops, self.check))
        if self.halves:
            log.info("%d transactions are open; their producers are asked", len(self.halves))

    @property
    def at(self) -> Callable[[str], None]:
        """Called with the name of each step; tests end the process there.

        It is no argument of the constructor: tests set it on a running broker, so that the steps of
        its start do not count.
        """
        return self._at

    @at.setter
    def at(self, hook: Callable[[str], None]) -> None:
        self._at = self.ops.at = self.check.at = hook

    def start(self) -> None:
        """Begin to check back."""
        self.ops.start()
        self.check.start()

    def stop(self) -> None:
        """Check no more, and write the last op message."""
        self.check.stop()
        self.ops.stop()

    # -- half messages ------------------------------------------------------------------------

    def added_again(self, result: PutResult, born_ms: int, properties: bytes) -> None:
        """Note a half message that was given up and is open again."""
        self.halves.add(half_of(result.queue_offset, result.physical_offset, born_ms, properties))
        self._at("half.put")

    def added(self, halves: Sequence[HalfMessage]) -> None:
        """Note half messages that were put; cache what their commits store if it is short."""
        self.halves.add(*halves)
        cached, byte_count = self._cached, 0
        for half in halves:
            content = half.cached
            # Written out: most of them have the record.
            size = len(content) + _OBJECT_BYTES if type(content) is bytes else _memory_of(content)
            if size > _CACHED_MESSAGE_BYTES_MAX:
                half.cached = None
            elif content is not None:
                cached.append(half)
                byte_count += size
        self._cached_bytes += byte_count
        while self._cached_bytes > _CACHED_BYTES or len(cached) > _CACHED_COUNT:
            self._drop_cached(cached.popleft())
        for _ in halves:
            self._at("half.put")

    def _drop_cached(self, half: HalfMessage) -> None:
        self._cached_bytes -= _memory_of(half.cached)
        half.cached = None

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
            if names_cached(header, half):
                is_commit = header.commit_or_rollback == TRANSACTION_COMMIT
                commit = cached_content(half) if is_commit else None
                return self._finish(request, half, commit, connection)
            message = read_halves(self._state, half.queue_offset, 1).get(half.queue_offset)
            if message is not None:
                return self._settle(request, header, message, connection)
        physical_offset, store = header.commit_log_offset, self._state.store
        moved = self._moved(header) if physical_offset < store.min_physical_offset else None
        if moved is not None:
            physical_offset = moved.physical_offset

        def read() -> StoredMessage | None:
            try:
                record = store.message_at(physical_offset)
                return None if record is None else decode_message(record)
            except CometError:
                return None

        in_worker(
            self._state,
            request,
            connection,
            read,
            lambda message: self._settle(
                request, header, message, connection, is_moved=moved is not None
            ),
        )
        return None

    def _moved(self, header: EndTransactionHeader) -> HalfMessage | None:
        """Return the open half message that had the queue offset of an end before."""
        half = self.halves.find(header.tran_state_table_offset)
        if half is None or half.queue_offset == header.tran_state_table_offset:
            return None
        return half

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
                self._check_repeated(header)
                return answer(request)
            is_commit = header.commit_or_rollback == TRANSACTION_COMMIT
            commit = content_of(checked) if is_commit else None
        except Refusal as refusal:
            return answer(request, refusal.code, refusal.remark)
        return self._finish(request, half, commit, connection)

    def _finish(
        self,
        request: EndRequest,
        half: HalfMessage,
        commit: CommitContent | None,
        connection: ServerConnection,
    ) -> bytes | None:
        """End an open transaction by a request that was checked; without a commit, roll it back."""
        if self.ops.is_refusing():
            return answer(
                request,
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "service not available now: ended transactions cannot be noted, see the broker's"
                " log",
            )
        if commit is None:
            return self._roll_back(request, half, connection)
        try:
            return self._commit(request, half, commit, connection)
        except StoreError as error:
            return answer(request, *store_failure(self._state, error))

    def _checked(
        self, header: EndTransactionHeader, message: StoredMessage | None, *, is_moved: bool
    ) -> StoredMessage:
        """Check a request against the record that it names, in Java's order.

        `is_moved`: the log file of that record is deleted, and `message` is the newest record of
        the same transaction.  The request has to name it by its id.
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

    def _check_repeated(self, header: EndTransactionHeader) -> None:
        """Check a further end: it has to say what the first one said.

        Raises:
            Refusal: it says something else.
        """
        outcome = self._outcomes.get(header.tran_state_table_offset)
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
        commit: CommitContent,
        connection: ServerConnection,
    ) -> bytes | None:
        """Put the message into the queue that its producer chose."""
        now_ms = self._state.env.clock.now_ms()
        (result,) = self._state.store.append(
            [commit_item(half, commit)], born_host=commit.born_host, store_ms=now_ms
        )
        self._at("commit.put")
        self._close(half, "committed")
        if request.is_oneway:
            return None
        if not self._state.barrier.is_waiting:
            return answer(request)
        self._answer_durable(request, result.end_offset, connection)
        return None

    def _checked_commit(
        self, header: EndTransactionHeader, message: StoredMessage
    ) -> CommitContent | None:
        """Return what an end of a run stores of a half message; None when it is refused."""
        try:
            return content_of(self._checked(header, message, is_moved=False))
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
        """Forget an open transaction; remember its outcome for a while, by all its queue offsets.

        `is_noted`: the next op message names it; otherwise the caller sees to that.
        """
        outcomes, order = self._outcomes, self._order
        for queue_offset in self.halves.remove(half):
            outcomes[queue_offset] = outcome
            order.append(queue_offset)
        self._drop_cached(half)
        while len(order) > _REMEMBERED:
            del outcomes[order.popleft()]
        if is_noted:
            self.ops.ended(half.queue_offset)

    def _answer_durable(
        self, request: EndRequest, end_offset: int, connection: ServerConnection
    ) -> None:
        barrier = self._state.barrier
        if not barrier.is_waiting:
            connection.send(answer(request))
            return
        barrier.when_passed(
            end_offset,
            lambda code: connection.send(answer(request, code, late_remark(code))),
        )


def _memory_of(cached: CommitContent | bytes | None) -> int:
    if cached is None:
        return 0
    if isinstance(cached, bytes):
        return len(cached) + _OBJECT_BYTES
    return len(cached.body) + len(cached.raw) + _OBJECT_BYTES


def _is_meant(header: EndTransactionHeader, message: StoredMessage) -> bool:
    """Whether the ids of a request, if it has any, are those of the message.

    After a power cut another message may have the offsets that an end names.  Java compares no ids.
    """
    ids = [text for text in (header.msg_id, header.transaction_id) if text]
    uniq_key = _text(find_property(message.raw_properties, b"UNIQ_KEY"))
    # Old clients send the offset message id.
    return not ids or uniq_key in ids or message.offset_message_id in ids


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
