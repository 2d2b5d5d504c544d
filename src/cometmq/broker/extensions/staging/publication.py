"""The publisher of staged batches: it publishes each batch completely or not at all.

A slice has at most a thousand messages, and the loop serves other requests between two slices.

1. The publisher checks the tokens.  With SYNC_FLUSH it waits until their blocks are on stable
   storage.
2. The store holds the queues of the batch: readers see no new offset in them, neither of the batch
   nor of ordinary sends.  The broker still stores and answers ordinary sends to these queues.
3. The publisher writes the decision.  From here on the batch is published, whatever happens.
4. For each slice the publisher writes a slice record, then the messages as ordinary messages.
   Messages with a time form slices of their own and wait in the timer topic or in a level's queue.
   A message that is due before the batch is done goes to a queue that is held.
5. The publisher writes the done record and flushes it in either flush mode.  The store releases
   the queues: with ASYNC_FLUSH when the record is written, with SYNC_FLUSH when it is flushed.
6. The broker writes the ledger's file and answers PUBLISHED.  If the disk damaged messages after
   they were staged, the publisher skips and logs them, and the answer is an error with their
   number.  A repeated publish gets ALREADY.

The publisher works on one batch at a time: two batches could share queues, and the end of the first
would show a part of the second.  After a crash, `resume` finds the last appended message with the
help of the ledger, holds the same queues before anybody reads, and continues with step 4.

`at` gets the name of each step just before or after it: tests of crashes end the process there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final, TypeAlias

from cometmq.broker.base.state import BrokerState, Refusal
from cometmq.broker.base.store_failure import store_failure
from cometmq.broker.delay.waiting_items import AT_ONCE, WaitingItems
from cometmq.broker.extensions.staging.items import StagedSlices, read_items, read_slices
from cometmq.broker.extensions.staging.ledger import (
    Decision,
    Done,
    Ledger,
    Record,
    Slice,
    Unfinished,
    encode_record,
)
from cometmq.broker.extensions.staging.tokens import (
    StagedBlock,
    StagedToken,
    StagedTokens,
    blocks_of,
)
from cometmq.broker.send.batch_keys import BatchKeysReader
from cometmq.codec.batch import decode_batch
from cometmq.codec.properties import find_property
from cometmq.codec.stored_message import decode_message
from cometmq.errors import CometError, MessageIllegal, ResponseCode, StoreError
from cometmq.model import flags
from cometmq.model.names import STAGED_DECISION_TOPIC
from cometmq.store.base.results import PutResult
from cometmq.wire.extensions.staging import PublishBody, PublishStatus

__all__ = ["MOVES", "Outcome", "Publisher", "PublisherEvent", "PublisherState", "move"]

log = logging.getLogger("cometmq.broker")

RETRY_S: Final = 0.1
"""Pause after the disk refused a slice; delayed delivery has the same pause."""
FLUSH_RETRY_S: Final = 0.5

Outcome: TypeAlias = tuple[str, int] | Refusal
"""Status and row count, or the reason of the refusal."""
Answer: TypeAlias = Callable[[Outcome], None]


class PublisherState(Enum):
    """The states of a publisher."""

    IDLE = "idle"
    FLUSHING_STAGED = "flushing the staged blocks"
    """Step 1; the batch is not decided yet."""
    APPENDING = "appending"
    """Step 4; the next slice comes in a later turn of the loop."""
    READING = "reading"
    """A worker reads the next block."""
    STUCK = "stuck"
    """The disk refused a slice, and a timer will try again."""
    FLUSHING_DONE = "flushing done"
    """Step 5; every message is appended."""
    STOPPED = "stopped"


class PublisherEvent(Enum):
    """The events of a publisher."""

    BEGIN = "begin"
    GIVE_UP = "give up"
    DECIDE = "decide"
    RESUME = "resume"
    """The publisher continues a batch that was decided before the broker started."""
    READ = "read"
    BLOCK_READ = "block read"
    REFUSED = "refused"
    RETRY = "retry"
    DONE = "done"
    DURABLE = "durable"
    STOP = "stop"


def _moves() -> dict[tuple[PublisherState, PublisherEvent], PublisherState]:
    state, event = PublisherState, PublisherEvent
    return {(any_state, event.STOP): state.STOPPED for any_state in state} | {
        (state.IDLE, event.BEGIN): state.FLUSHING_STAGED,
        (state.IDLE, event.RESUME): state.APPENDING,
        (state.FLUSHING_STAGED, event.GIVE_UP): state.IDLE,
        (state.FLUSHING_STAGED, event.DECIDE): state.APPENDING,
        (state.APPENDING, event.READ): state.READING,
        (state.APPENDING, event.REFUSED): state.STUCK,
        (state.APPENDING, event.DONE): state.FLUSHING_DONE,
        (state.READING, event.BLOCK_READ): state.APPENDING,
        (state.STUCK, event.RETRY): state.APPENDING,
        (state.FLUSHING_DONE, event.DURABLE): state.IDLE,
    }


MOVES: Final = _moves()
"""The next state for each state and event; no other pair can occur."""


def move(state: PublisherState, event: PublisherEvent) -> PublisherState:
    """Return the state after an event.

    Raises:
        RuntimeError: the event cannot occur in this state.
    """
    following = MOVES.get((state, event))
    if following is None:
        raise RuntimeError(f"a publisher that is {state.value} got the event {event.value}")
    return following


class _Publication:
    """A batch that is being published."""

    def __init__(self, sink_batch: Decision, tokens: Sequence[StagedToken]) -> None:
        self.decision = sink_batch
        self.tokens = tokens
        self.blocks: list[StagedBlock] = blocks_of(tokens)
        self.block = 0
        """The block that is appended now."""
        self.item = 0
        """The next message of that block."""
        self.slices: StagedSlices | None = None
        """The remaining slices of that block, last first; None until a worker has read them."""
        self.limits: list[tuple[str, int]] = []
        """The queues that the store holds for this batch."""
        self.lost = 0
        """Messages that could not be read or stored again."""
        self.queue_offset: int | None = None
        """The queue offset of the decision record; None before the decision."""
        self.answers: list[Answer] = []


class _Request:
    """A publish request that waits for its turn."""

    __slots__ = ("answer", "batch_id", "body", "sink")

    def __init__(self, sink: str, batch_id: int, body: PublishBody, answer: Answer) -> None:
        self.sink = sink
        self.batch_id = batch_id
        self.body = body
        self.answer = answer


class Publisher:
    """Publishes the staged batches of a broker; only the loop calls its methods.

    Args:
        grown: called with topic and queue id when messages of a held queue become visible.
        settled: called when the ledger has a new line for its file.
    """

    def __init__(
        self,
        state: BrokerState,
        tokens: StagedTokens,
        ledger: Ledger,
        grown: Callable[[str, int], None],
        settled: Callable[[], None],
        waiting: WaitingItems,
    ) -> None:
        self._state = state
        self._tokens = tokens
        self._ledger = ledger
        self._grown = grown
        self._settled = settled
        self._waiting_items = waiting
        self._is_late = state.store.config.is_confirmed_later
        self._waiting: deque[_Request] = deque()
        self._current: _Publication | None = None
        self._phase = PublisherState.IDLE
        self._batch_keys = BatchKeysReader()
        self.at: Callable[[str], None] = lambda _: None
        """Gets the name of each step; a crash test ends the process there.

        It is no argument of the constructor: tests set it on a running broker, so that the steps of
        its start do not count.
        """

    @property
    def is_busy(self) -> bool:
        """Whether a batch is being published."""
        return self._current is not None

    def is_publishing(self, sink: str) -> bool:
        """Whether a batch of this sink is being published."""
        return self._current is not None and self._current.decision.sink == sink

    @property
    def decision_next(self) -> int:
        """The offset in the decision queue from which the next start reads."""
        current = self._current
        if current is not None and current.queue_offset is not None:
            return current.queue_offset
        return self._state.store.end_of_queue(STAGED_DECISION_TOPIC, 0)

    def stop(self) -> None:
        """Stop publishing; the next start of the broker continues the batch."""
        self._move(PublisherEvent.STOP)

    @property
    def _is_stopped(self) -> bool:
        return self._phase is PublisherState.STOPPED

    def _move(self, event: PublisherEvent) -> None:
        self._phase = move(self._phase, event)

    # -- requests --------------------------------------------------------------------------

    def publish(self, sink: str, batch_id: int, body: PublishBody, answer: Answer) -> None:
        """Publish a batch in its turn, and answer when it is durable."""
        current = self._current
        if current is not None and current.queue_offset is not None:
            decision = current.decision
            if (decision.sink, decision.batch_id) == (sink, batch_id):
                current.answers.append(lambda outcome: answer(_seen_again(outcome)))
                return
        self._waiting.append(_Request(sink, batch_id, body, answer))
        self._next()

    def prepare(self, sink: str, batch_id: int, body: PublishBody, answer: Answer) -> None:
        """Answer READY when the tokens are complete and on stable storage."""
        if batch_id <= self._ledger.last_batch(sink):
            answer((PublishStatus.ALREADY, self._rows_of(sink, batch_id)))
            return
        tokens = self._tokens.check(sink, batch_id, body.tokens)
        rows = sum(token.rows for token in tokens)
        self._when_staged_durable(tokens, (PublishStatus.READY, rows), answer)

    def _rows_of(self, sink: str, batch_id: int) -> int:
        entry = self._ledger.sinks.get(sink)
        return entry.rows if entry is not None and entry.batch_id == batch_id else 0

    def _when_staged_durable(
        self, tokens: Sequence[StagedToken], outcome: Outcome, answer: Answer
    ) -> None:
        end = max((block.end_offset for block in blocks_of(tokens)), default=0)

        def settle(is_durable: bool) -> None:
            answer(outcome if is_durable else _NOT_FLUSHED)

        self._state.store.when_confirmed(end, settle)

    def _next(self) -> None:
        """Begin the next request whose batch is not published yet; answer the others ALREADY."""
        while self._current is None and self._waiting and not self._is_stopped:
            request = self._waiting.popleft()
            if request.batch_id <= self._ledger.last_batch(request.sink):
                rows = self._rows_of(request.sink, request.batch_id)
                self._tokens.drop(self._tokens.up_to(request.sink, request.batch_id))
                request.answer((PublishStatus.ALREADY, rows))
                continue
            try:
                self._begin(request)
            except Refusal as refusal:
                request.answer(refusal)

    def _begin(self, request: _Request) -> None:
        tokens = self._tokens.check(request.sink, request.batch_id, request.body.tokens)
        decision = Decision(
            request.sink,
            request.batch_id,
            sum(token.rows for token in tokens),
            self._state.env.clock.now_ms(),
            request.body.home or self._state.config.broker_name,
            request.body.plan,
            request.body.tokens,
            {},
        )
        current = _Publication(decision, tokens)
        current.answers.append(request.answer)
        self._current = current
        self._move(PublisherEvent.BEGIN)

        def staged(outcome: Outcome) -> None:
            if self._is_stopped:
                return
            if isinstance(outcome, Refusal):
                self._give_up(current, outcome)
            else:
                self._decide(current)

        if self._is_late:
            # Readers do not see unconfirmed records, and the publisher reads the blocks as they do.
            self._when_staged_durable(tokens, (PublishStatus.READY, 0), staged)
        else:
            staged((PublishStatus.READY, 0))

    def _give_up(self, current: _Publication, refusal: Refusal) -> None:
        """End a publication before its decision; no message of it is visible."""
        self._move(PublisherEvent.GIVE_UP)
        self._release(current)
        self._current = None
        self._answer(current, refusal)
        self._next()

    def _answer(self, current: _Publication, outcome: Outcome) -> None:
        answers, current.answers = current.answers, []
        for answer in answers:
            answer(outcome)

    # -- deciding and appending ------------------------------------------------------------

    def _decide(self, current: _Publication) -> None:
        store = self._state.store
        limits: dict[str, dict[str, int]] = {}
        try:
            for topic, queue_id in dict.fromkeys(
                (block.topic, block.queue_id) for block in current.blocks
            ):
                limit = store.hold_queue(topic, queue_id)
                current.limits.append((topic, queue_id))
                limits.setdefault(topic, {})[str(queue_id)] = limit
            draft = current.decision
            current.decision = Decision(
                draft.sink,
                draft.batch_id,
                draft.rows,
                draft.decided_ms,
                draft.home,
                draft.plan,
                draft.tokens,
                limits,
            )
            self.at("before decision")
            result = self._put(current.decision)
        except StoreError as error:
            self._give_up(current, Refusal(*store_failure(self._state, error)))
            return
        self._move(PublisherEvent.DECIDE)
        current.queue_offset = result.queue_offset
        self._ledger.sinks[current.decision.sink] = current.decision.entry(is_complete=False)
        self.at("after decision")
        self._continue()

    def _put(self, record: Record) -> PutResult:
        return self._state.store.put(
            STAGED_DECISION_TOPIC,
            0,
            encode_record(record),
            b"",
            born_ms=self._state.env.clock.now_ms(),
            born_host=self._state.host,
            store_ms=self._state.env.clock.now_ms(),
        )

    def _continue(self) -> None:
        """Append the next slice in a later turn of the loop."""
        if not self._is_stopped:
            asyncio.get_running_loop().call_soon(self._append)

    def _append(self) -> None:
        current = self._current
        if current is None or self._is_stopped:
            return
        if self._phase is PublisherState.STUCK:
            self._move(PublisherEvent.RETRY)
        try:
            if current.block == len(current.blocks):
                self._finish(current)
                return
            if current.slices is None:
                self._read(current)
                return
            self._append_slice(current, current.blocks[current.block], current.slices)
        except StoreError as error:
            self._stuck(current, error)
            return
        self._continue()

    def _read(self, current: _Publication) -> None:
        """Have a worker read the next block and cut it into slices."""
        block = current.blocks[current.block]
        store = self._state.store
        self._move(PublisherEvent.READ)

        def done(result: StagedSlices | BaseException) -> None:
            if self._is_stopped:
                return
            self._move(PublisherEvent.BLOCK_READ)
            if isinstance(result, CometError):
                # The block was sound when it was staged: the disk damaged it later.
                log.error(
                    "batch %d of %s: block at physical offset %d cannot be read, its %d messages"
                    " are lost: %s",
                    current.decision.batch_id,
                    current.decision.sink,
                    block.physical_offset,
                    block.rows - current.item,
                    result,
                )
                current.lost += block.rows - current.item
                current.block += 1
                current.item = 0
            elif isinstance(result, OSError):
                # The disk did not give the block now, and may give it later.
                self._stuck(current, StoreError(f"reading a staged block failed: {result}"))
                return
            elif isinstance(result, BaseException):
                raise result
            else:
                result.slices.reverse()
                current.slices = result
            self._continue()

        first, now_ms = current.item, self._state.env.clock.now_ms()
        self._state.env.workers.submit(lambda: read_slices(store, block, first, now_ms), done)

    def _append_slice(
        self, current: _Publication, block: StagedBlock, pending: StagedSlices
    ) -> None:
        """Announce and append the next slice of a block."""
        store, topic, queue_id = self._state.store, block.topic, block.queue_id
        if pending.slices:
            first, count, packed, wait = pending.slices[-1]
            target = (topic, queue_id) if wait == AT_ONCE else self._waiting_items.queue_of(wait)
            queue_offset = store.end_of_queue(*target)
            self._put(Slice(current.block, first, count, *target, queue_offset))
            self.at("slice announced")
            how: dict[str, Any] = {
                "sys_flag": self._sys_flag(topic),
                "born_ms": pending.born_ms,
                "born_host": pending.born_host,
            }
            now_ms = self._state.env.clock.now_ms()
            try:
                if wait != AT_ONCE:
                    items = decode_batch(packed)
                    self._waiting_items.put(topic, queue_id, wait, items, now_ms, **how)
                else:
                    store.put_packed(
                        topic, queue_id, packed, self._batch_keys.read, store_ms=now_ms, **how
                    )
            except MessageIllegal as error:
                current.lost += count
                log.error(
                    "batch %d of %s: %d messages for %s cannot be stored and are skipped: %s",
                    current.decision.batch_id,
                    current.decision.sink,
                    count,
                    topic,
                    error,
                )
            self.at("slice appended")
            pending.slices.pop()
            current.item = first + count
        if not pending.slices:
            current.block += 1
            current.item = 0
            current.slices = None

    def _sys_flag(self, topic: str) -> int:
        config = self._state.topics.get(topic)
        is_multi = config is not None and config.topic_filter_type == "MULTI_TAG"
        return flags.MULTI_TAGS if is_multi else 0

    def _stuck(self, current: _Publication, error: StoreError) -> None:
        """Answer the waiting requests with the disk's error, and try again later."""
        self._move(PublisherEvent.REFUSED)
        code, remark = store_failure(self._state, error)
        decision = current.decision
        if current.answers:
            log.error(
                "batch %d of %s is decided and waits: %s", decision.batch_id, decision.sink, error
            )
        self._answer(
            current,
            Refusal(
                code,
                f"{remark}; batch {decision.batch_id} of {decision.sink} is decided, no consumer "
                "sees it yet, and it is finished when the disk takes it: publish again to wait "
                "for that",
            ),
        )
        asyncio.get_running_loop().call_later(RETRY_S, self._append)

    # -- the end ---------------------------------------------------------------------------

    def _finish(self, current: _Publication) -> None:
        self.at("before done")
        result = self._put(Done(current.decision.sink, current.decision.batch_id))
        self._move(PublisherEvent.DONE)
        self.at("after done")
        if not self._is_late:
            self._release(current)
        self.when_durable(result.end_offset, lambda: self._complete(current))

    def when_durable(self, end_offset: int, done: Callable[[], None]) -> None:
        """Call `done` when the log is durable and confirmed up to `end_offset`, however long that
        takes."""

        def settle(is_durable: bool) -> None:
            if self._is_stopped:
                return
            if is_durable:
                done()
                return
            loop = asyncio.get_running_loop()
            loop.call_later(FLUSH_RETRY_S, self.when_durable, end_offset, done)

        if not self._is_stopped:
            self._state.store.when_confirmed(end_offset, settle)

    def _complete(self, current: _Publication) -> None:
        self._move(PublisherEvent.DURABLE)
        decision = current.decision
        self._release(current)
        self._current = None
        entry = self._ledger.complete(decision)
        self._tokens.drop(self._tokens.up_to(decision.sink, decision.batch_id))
        self._ledger.settle(decision.sink, entry, self.decision_next)
        self.at("before ledger file")
        self._settled()
        self.at("before answer")
        outcome: Outcome = PublishStatus.PUBLISHED, decision.rows
        if current.lost:
            outcome = Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"batch {decision.batch_id} of {decision.sink} is published without "
                f"{current.lost} of its {decision.rows} messages: they were damaged after they "
                "were staged, or cannot be stored; the broker's log names them, send them again",
            )
        self._answer(current, outcome)
        self._next()

    def _release(self, current: _Publication) -> None:
        limits, current.limits = current.limits, []
        for topic, queue_id in limits:
            self._state.store.release_queue(topic, queue_id)
        for topic, queue_id in limits:
            self._grown(topic, queue_id)

    # -- after a crash ---------------------------------------------------------------------

    def resume(self, unfinished: Unfinished) -> None:
        """Prepare to finish a decided batch; the broker calls it before anybody reads.  Blocks."""
        decision = unfinished.decision
        tokens: list[StagedToken] = []
        for claim in decision.tokens:
            token = self._tokens.get(claim.token)
            if token is None or (token.rows, token.crc) != (claim.rows, claim.crc):
                log.error(
                    "batch %d of %s is decided, and token %s of it is damaged or missing: the "
                    "messages that were not appended before the crash are lost",
                    decision.batch_id,
                    decision.sink,
                    claim.token,
                )
                tokens = []
                break
            tokens.append(token)
        current = _Publication(decision, tokens)
        current.queue_offset = unfinished.queue_offset
        self._move(PublisherEvent.RESUME)
        if tokens:
            self._skip_appended(current, unfinished)
        for topic, limits in decision.limits.items():
            for queue_id, limit in limits.items():
                self._state.store.hold_queue(topic, int(queue_id), limit)
                current.limits.append((topic, int(queue_id)))
        self._current = current
        log.warning(
            "batch %d of %s was being published when the broker ended: it continues with "
            "message %d of block %d of %d",
            decision.batch_id,
            decision.sink,
            current.item,
            current.block,
            len(current.blocks),
        )

    def start(self) -> None:
        """Continue the batch that `resume` prepared, if any."""
        if self._current is not None:
            self._continue()

    def _skip_appended(self, current: _Publication, unfinished: Unfinished) -> None:
        """Continue after the messages of the last slice that are in the queue already."""
        last = unfinished.last
        if last is None:
            return
        store = self._state.store
        block = current.blocks[last.block]
        items = read_items(store, block)[last.first : last.first + last.count]
        units = store.units(last.topic, last.queue_id, last.queue_offset, last.count)
        count = 0
        for item, unit in zip(items, units, strict=False):
            record = store.message_at(unit.physical_offset)
            if unit.physical_offset < unfinished.last_end or record is None:
                break
            if not _is_same(item, record):
                break
            count += 1
        current.block = last.block
        current.item = last.first + count
        if current.item >= block.rows:
            current.block += 1
            current.item = 0


def _is_same(item: tuple[int, bytes, bytes], record: memoryview) -> bool:
    """Whether a record has this body and UNIQ_KEY; the broker may have added other properties."""
    message = decode_message(record)
    name = b"UNIQ_KEY"
    return message.body == item[1] and find_property(message.raw_properties, name) == find_property(
        item[2], name
    )


def _seen_again(outcome: Outcome) -> Outcome:
    """The outcome for a repeated publish of a batch."""
    return outcome if isinstance(outcome, Refusal) else (PublishStatus.ALREADY, outcome[1])


_NOT_FLUSHED: Final = Refusal(
    ResponseCode.FLUSH_DISK_TIMEOUT,
    "the staged blocks are not on stable storage after syncFlushTimeout; nothing was published: "
    "try again, and check the disk when it happens again",
)
