"""Check-back: asks producers what became of their transactions, and gives up after many tries.

Every ``transactionCheckInterval`` a round finds the half messages that are due.  It puts each back
with one check more, and sends CHECK_TRANSACTION_STATE one-way to a live producer of its group.  A
transaction that was asked about too often, or is too old, is given up: its message moves to
``TRANS_CHECK_MAX_TIME_TOPIC``.

A round goes through `TURN_COUNT` half messages in a turn of the loop, has a worker read those that
are due, at most `BATCH_COUNT` at a time, and puts them back in one turn.

Two rules differ from Java's.  Where a group has no live producer, nothing is asked and no check is
counted, so a group that is away for some minutes loses nothing.  A half message that is not due
stays where it is, until the half queue has grown `SPAN` beyond it.

Source: ``TransactionalMessageServiceImpl.check`` and ``DefaultTransactionalMessageCheckListener``
of RocketMQ 5.4 (docs/internals/delivery.md#check-back).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from cometmq.broker.base.put_again import put_again
from cometmq.broker.base.state import BrokerState
from cometmq.broker.transaction.ops import OpWriter
from cometmq.codec.ids import offset_message_id
from cometmq.codec.properties import ensure_trailing_separator, find_property, remove_property
from cometmq.codec.stored_message import StoredMessage, decode_message
from cometmq.core.transaction.open_transactions import CheckRules, HalfMessage, OpenHalves, half_of
from cometmq.errors import CometError, StoreError
from cometmq.model.names import HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from cometmq.net.server import ServerConnection
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand

__all__ = ["CheckBack"]

log = logging.getLogger("cometmq.broker")

TURN_COUNT: Final = 2_000
BATCH_COUNT: Final = 64
SPAN: Final = 200_000
"""A half message so far behind the end of its queue is put back.  That costs a record, and saves a
restart from reading everything in between."""

Read = tuple[HalfMessage, StoredMessage | None]
Push = tuple[HalfMessage, bytes, StoredMessage]


class CheckBack:
    """The rounds; `now` begins one at once.

    `given_up` is called with each half message that is given up.
    """

    def __init__(
        self,
        state: BrokerState,
        halves: OpenHalves,
        ops: OpWriter,
        given_up: Callable[[HalfMessage], None],
    ) -> None:
        self._state = state
        self._halves = halves
        self._ops = ops
        self._given_up = given_up
        self._timer: asyncio.TimerHandle | None = None
        self._remaining: list[int] = []
        """Queue offsets of half messages that are still to check in this round, next one last."""
        self._turns: dict[str, int] = {}
        self._is_stopped = False
        self.next_round_ms = 0
        self.at: Callable[[str], None] = lambda name: None
        """Set by `TransactionService.at`."""

    def start(self) -> None:
        """Begin the first round one interval from now."""
        self._arm()

    def stop(self) -> None:
        """Ask nobody any more."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def now(self) -> None:
        """Begin a round, unless one is under way."""
        self._ops.move_on()
        self._ops.mark()
        if not self._remaining and self._halves:
            self._remaining = self._halves.offsets()
            self._remaining.reverse()
            self._go_on()

    def _arm(self) -> None:
        interval_ms = self._state.config.transaction_check_interval
        self.next_round_ms = self._state.env.clock.now_ms() + interval_ms
        self._timer = asyncio.get_running_loop().call_later(interval_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._arm()
        try:
            self.now()
        except Exception:
            log.exception("a round of transaction checks failed; the next one begins as usual")
            self._remaining = []

    def _rules(self) -> CheckRules:
        config = self._state.config
        return CheckRules(
            config.transaction_time_out,
            config.transaction_check_max,
            config.file_reserved_time * 3_600_000,
        )

    # -- a round ------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Find the next half messages that are due, and have a worker read them."""
        if self._is_stopped:
            return
        rules, now_ms = self._rules(), self._state.env.clock.now_ms()
        store = self._state.store
        behind = store.end_of_queue(HALF_TOPIC, 0) - SPAN
        # A message that is not confirmed yet cannot be read: a later round asks.
        readable = store.confirmed_offset
        batch: list[HalfMessage] = []
        for _ in range(min(TURN_COUNT, len(self._remaining))):
            half = self._halves.at(self._remaining.pop())
            if half is None or half.physical_offset >= readable:
                continue
            if half.queue_offset < behind or self._is_due(rules, half, now_ms):
                batch.append(half)
                if len(batch) == BATCH_COUNT:
                    break
        if batch:

            def read() -> list[Read]:
                return [(half, _read(store.message_at, half)) for half in batch]

            self._state.env.workers.submit(read, self._take_read)
        elif self._remaining:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _is_due(self, rules: CheckRules, half: HalfMessage, now_ms: int) -> bool:
        return rules.is_abandoned(half, now_ms) or (
            rules.is_due(half, now_ms) and self._producer(half.group, is_next=False) is not None
        )

    def _take_read(self, batch: list[Read] | BaseException) -> None:
        """Put back or give up the half messages that a worker read, then ask the producers."""
        if self._is_stopped:
            return
        if isinstance(batch, BaseException):
            log.error("half messages cannot be read: %s; the next round tries again", batch)
            self._remaining = []
            return
        try:
            self._handle(batch)
        except StoreError as error:
            log.error("half messages cannot be put back: %s; the next round tries again", error)
            self._remaining = []
            return
        if self._remaining:
            asyncio.get_running_loop().call_soon(self._go_on)
        else:
            self._ops.move_on()

    def _handle(self, batch: list[Read]) -> None:
        rules, now_ms = self._rules(), self._state.env.clock.now_ms()
        pushes: list[Push] = []
        for half, message in batch:
            if self._halves.at(half.queue_offset) is not half:
                continue
            if message is None:
                log.error(
                    "the half message at %d of %s cannot be read and is given up; run cometmq"
                    " store verify on the store",
                    half.queue_offset,
                    HALF_TOPIC,
                )
                self._given_up(half)
            elif rules.is_abandoned(half, now_ms):
                self._give_up(half, message, now_ms)
            else:
                is_asked = rules.is_due(half, now_ms) and self._producer(half.group, is_next=False)
                push = self.put_back(half, message, now_ms, 1 if is_asked else 0)
                if is_asked:
                    pushes.append(push)
        if not pushes:
            return
        store = self._state.store
        if not store.config.is_confirmed_later:
            self._push(pushes)
            return
        # A producer may end the transaction by its new queue offset at once, and an end finds a
        # record only once it is confirmed.
        store.when_confirmed(store.max_physical_offset, lambda _: self._push(pushes))

    def put_back(
        self, half: HalfMessage, message: StoredMessage, now_ms: int, more_checks: int = 0
    ) -> Push:
        """Put a half message at the end of its queue; its old record counts as ended."""
        first = half.first_offset if half.first_offset >= 0 else half.queue_offset
        raw = message.raw_properties
        for name in (b"TRANSACTION_CHECK_TIMES", b"TRAN_PREPARED_QUEUE_OFFSET"):
            raw = remove_property(raw, name)
        checks = half.check_count + more_checks
        raw = ensure_trailing_separator(raw) + (b"TRAN_PREPARED_QUEUE_OFFSET\x01%d\x02" % first)
        if checks:
            raw += b"TRANSACTION_CHECK_TIMES\x01%d\x02" % checks
        result = put_again(self._state, HALF_TOPIC, 0, message, raw, now_ms)
        self.at("check.put_back")
        newer = half_of(result.queue_offset, result.physical_offset, half.born_ms, raw)
        self._halves.replace(half, newer)
        self._ops.ended(half.queue_offset)
        return newer, raw, message

    def _give_up(self, half: HalfMessage, message: StoredMessage, now_ms: int) -> None:
        """Move a half message to the topic where operators find it, and forget it."""
        log.error(
            "transaction %s of group %s for topic %s is given up after %d checks and moved to %s",
            _text(message.raw_properties, b"UNIQ_KEY"),
            half.group,
            _text(message.raw_properties, b"REAL_TOPIC"),
            half.check_count,
            TRANS_CHECK_MAX_TIME_TOPIC,
        )
        self._state.ensure_topic(TRANS_CHECK_MAX_TIME_TOPIC, 1, now_ms)
        put_again(
            self._state,
            TRANS_CHECK_MAX_TIME_TOPIC,
            0,
            message,
            message.raw_properties,
            now_ms,
            prepared_offset=half.physical_offset,
        )
        self.at("discard.put")
        self._given_up(half)

    # -- producers ----------------------------------------------------------------------------

    def _push(self, pushes: list[Push]) -> None:
        """Ask the producers; a group that has none left is asked in the next round."""
        for half, raw, message in pushes:
            connection = self._producer(half.group)
            if connection is None or self._halves.at(half.queue_offset) is not half:
                continue
            uniq_key = _text(raw, b"UNIQ_KEY")
            ext = {
                "tranStateTableOffset": str(half.queue_offset),
                "commitLogOffset": str(half.physical_offset),
                "offsetMsgId": offset_message_id(self._state.host, half.physical_offset),
                "topic": HALF_TOPIC,
                "bname": self._state.config.broker_name,
            }
            if uniq_key:
                ext["msgId"] = ext["transactionId"] = uniq_key
            body = _for_producer(half, raw, message)
            connection.oneway(
                RemotingCommand.request(RequestCode.CHECK_TRANSACTION_STATE, ext, body)
            )
        self.at("check.pushed")

    def _producer(self, group: str, *, is_next: bool = True) -> ServerConnection | None:
        """Return a live producer of a group, each in its turn; None when there is none."""
        members = self._state.producers.get(group)
        if not members:
            return None
        live = [connection for connection in members if not connection.is_closed]
        if not live:
            return None
        turn = self._turns.get(group, -1) + (1 if is_next else 0)
        if is_next:
            if len(self._turns) > 10_000:
                self._turns.clear()
            self._turns[group] = turn
        return live[turn % len(live)]


def _read(
    message_at: Callable[[int], memoryview | None], half: HalfMessage
) -> StoredMessage | None:
    try:
        record = message_at(half.physical_offset)
        return None if record is None else decode_message(record)
    except CometError:
        return None


def _for_producer(half: HalfMessage, raw: bytes, message: StoredMessage) -> bytes:
    """Return the record of a half message with its real topic and queue, and its newest offsets."""
    queue_id = find_property(raw, b"REAL_QID") or b"0"
    shown = msgspec.structs.replace(
        message,
        topic=_text(raw, b"REAL_TOPIC") or message.topic,
        queue_id=int(queue_id) if queue_id.isdigit() else 0,
        queue_offset=half.queue_offset,
        physical_offset=half.physical_offset,
        raw_properties=raw,
        _properties=None,
    )
    return shown.encode()


def _text(raw: bytes, name: bytes) -> str | None:
    value = find_property(raw, name)
    return None if value is None else value.decode("utf-8", "replace")
