"""Parking in an ordered consumer: puts failed message groups aside and retries them in order.

It reads the parking logs of the brokers whose queues this consumer has, appends the messages to
park, and runs the messages that an operator wants to retry.  `core.extensions.parking` defines the
records and explains why the order holds.

The state of the lanes comes only from reading the log, so a copy counts when it was read back.  A
lane is *closed* from the moment one of its messages is passed to `park` until none is in the log or
on its way there.  No message of a closed lane may run.
"""

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from itertools import islice
from typing import Any, Final, Protocol

from cometmq.client.base.reading import QueueReader
from cometmq.client.extensions.parking.log import ParkingQueue, read_record
from cometmq.client.extensions.parking.moving import LaneMover, read_parked
from cometmq.client.handling.failures import STOPPED, follows, log_failure
from cometmq.client.handling.handlers import (
    OUTCOME_STOP,
    Outcome,
    outcome_of,
    pause_of,
    reason_of,
    result_of_error,
)
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.queue.assignment import Assignment
from cometmq.codec.properties import find_property
from cometmq.core.consume.order import OrderPolicy, Suspend
from cometmq.core.extensions.parking import (
    HaltedLane,
    LaneState,
    ParkedMessage,
    ParkingLog,
    ParkKind,
    copy_properties,
    lane_name,
)
from cometmq.core.retry.consume_retry import DELAY_LEVEL_DEAD_LETTER
from cometmq.core.retry.dead_letters import position_text
from cometmq.errors import CometError, RequestTimeout
from cometmq.model import MessageQueue
from cometmq.net.env import Clock

__all__ = ["OnParked", "Parking", "ParkingHost"]

log = logging.getLogger("cometmq.client")

OnParked = Callable[[ReceivedMessage, str], Awaitable[None] | None]
"""Called with a message that failed too often and its handler's reason; may be ``async``."""

SUSPEND_MS: Final = 15_000
PAUSE_S: Final = 1.0
READY_S: Final = 10.0
"""How long the start of a queue waits until the parking log is read."""
RETRY_COUNT: Final = 32
"""Retried messages between two `done` records."""
_GROUP_PROPERTY: Final = b"__SHARDINGKEY"


class ParkingHost(Protocol):
    """The consumer as parking uses it."""

    group: str

    def dispatcher_of(self, topic: str) -> Any:
        """The dispatcher of a topic's handler."""
        ...

    def may_consume(self, queue: MessageQueue) -> bool:
        """Whether this client certainly owns the queue's lock."""
        ...

    def may_start(self, queue: MessageQueue) -> bool:
        """Whether a handler may start: the queue's lock is ours, and it is not paused."""
        ...

    def stop_consuming(self, message: ReceivedMessage, outcome: Outcome) -> None:
        """Start no handler any more: one of them asks for it."""
        ...

    def now_ms(self) -> int:
        """The time in milliseconds since 1970."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> Any:
        """Run background work of this consumer."""
        ...


class _Item:
    """A message on its way to the log."""

    __slots__ = ("assignment", "is_lost", "kind", "lane", "message", "reason", "settled")

    def __init__(
        self,
        assignment: Assignment,
        message: ReceivedMessage,
        lane: str,
        kind: ParkKind,
        reason: str,
    ) -> None:
        self.assignment = assignment
        self.message = message
        self.lane = lane
        self.kind = kind
        self.reason = reason
        self.settled = asyncio.Event()
        """Set when the copy was read back, or never will be."""
        self.is_lost = False


class _BrokerLog:
    """One broker's log as far as this consumer has read it."""

    def __init__(self, queue: ParkingQueue, start: int) -> None:
        self.queue = queue
        self.log = ParkingLog(start)
        self.committed = start
        self.changed = asyncio.Event()
        self.sent: deque[tuple[int, _Item]] = deque()
        """Acknowledged copies that are not read back yet."""

    async def read_up_to(self, end: int) -> None:
        """Wait until the records below ``end`` are applied."""
        while self.log.next_offset < end:
            await self.changed.wait()


class Parking:
    """Parked lanes of one consumer."""

    def __init__(
        self,
        host: ParkingHost,
        reader: QueueReader,
        clock: Clock,
        policy: OrderPolicy,
        on_parked: OnParked | None,
        concurrency: int,
    ) -> None:
        self._host = host
        self._reader = reader
        self._clock = clock
        self._policy = policy
        self._on_parked = on_parked
        self._slots = asyncio.Semaphore(concurrency)
        self._brokers: dict[str, _BrokerLog] = {}
        self._queues: dict[MessageQueue, Assignment] = {}
        self._moving: dict[str, int] = {}
        """How many messages of each lane were passed to `park` and are not read back."""
        self._outbox: dict[str, deque[_Item]] = {}
        self._retrying: dict[str, tuple[MessageQueue, asyncio.Event]] = {}
        """Lanes that are retried: their source queue, and an event for the end of the retry."""
        self._is_closed = False

    # -- queues -----------------------------------------------------------------------------

    async def prepare(self, queue: MessageQueue) -> None:
        """Read what is parked at a queue's broker, before the queue's first message is handled.

        Raises:
            CometError: the log could not be read to its end.
        """
        broker_log = self._brokers.get(queue.broker_name)
        if broker_log is None:
            park = ParkingQueue(self._reader, self._host.group, queue.broker_name, self._clock)
            await park.make()
            broker_log = _BrokerLog(park, await park.start_offset())
            self._brokers[queue.broker_name] = broker_log
            self._host.spawn(self._follow(broker_log), "parking")
            self._host.spawn(self.mover(broker_log).run(), "move-parked")
        end = await broker_log.queue.end_offset()
        try:
            async with asyncio.timeout(READY_S):
                await broker_log.read_up_to(end)
        except TimeoutError:
            raise RequestTimeout(
                f"{broker_log.queue.queue} was read up to {broker_log.log.next_offset} of {end} in "
                f"{READY_S:.0f} s; the queue starts when the log is read, because messages of "
                "parked groups must not run"
            ) from None

    def mover(self, broker_log: _BrokerLog) -> LaneMover:
        """The mover of a broker's old lanes."""

        def may_move(lane: HaltedLane) -> bool:
            source = lane.messages[0].source
            is_ours = source in self._queues and self._host.may_consume(source)
            return is_ours and not self._is_closed

        return LaneMover(
            self._reader,
            broker_log.queue,
            self._clock,
            lambda: broker_log.log.lanes,
            may_move,
            broker_log.read_up_to,
        )

    def added(self, assignment: Assignment) -> None:
        """Add a queue of this consumer."""
        self._queues[assignment.queue] = assignment
        broker_log = self._brokers.get(assignment.queue.broker_name)
        if broker_log is not None:
            self._start_retries(broker_log)

    def removed(self, assignment: Assignment) -> None:
        """Remove a queue; its running retries may end."""
        if self._queues.get(assignment.queue) is assignment:
            del self._queues[assignment.queue]

    async def leave(self, assignment: Assignment) -> None:
        """Before a queue is handed over, wait for its retries and for its copies on their way."""
        self.removed(assignment)
        for queue, ended in list(self._retrying.values()):
            if queue == assignment.queue:
                await ended.wait()
        await self._arrival(assignment)

    async def _arrival(self, assignment: Assignment) -> None:
        """Wait until all copies of a queue have arrived in the log, or the queue is lost."""
        while not assignment.process_queue.dropped and any(  # noqa: ASYNC110 - a lost lock is no event
            item.assignment is assignment for item in self._on_their_way()
        ):
            await asyncio.sleep(0.05)

    def stop(self) -> None:
        """Start no more retries; running ones may end."""
        self._is_closed = True

    async def finish(self, timeout_s: float) -> None:
        """At shutdown, wait for running retries and for messages on their way to the log."""
        self.stop()
        try:
            async with asyncio.timeout(timeout_s):
                for _, ended in list(self._retrying.values()):
                    await ended.wait()
                for assignment in {item.assignment for item in self._on_their_way()}:
                    await self._arrival(assignment)
        except TimeoutError:
            log.warning(
                "group %s: %d messages were not parked in time; they are delivered again",
                self._host.group,
                sum(self._moving.values()),
            )

    def _on_their_way(self) -> Iterable[_Item]:
        for box in self._outbox.values():
            yield from box
        for broker_log in self._brokers.values():
            for _, item in broker_log.sent:
                yield item

    # -- from lanes to the log --------------------------------------------------------------

    def lane_of(self, message: ReceivedMessage) -> str:
        """The name of a message's lane."""
        raw = find_property(message.stored.raw_properties, _GROUP_PROPERTY)
        group = raw.decode(errors="replace") if raw else None
        return lane_name(message.topic, group, message.message_queue)

    @property
    def is_any_closed(self) -> bool:
        """Whether any lane is closed."""
        return bool(self._moving) or any(
            broker_log.log.lanes for broker_log in self._brokers.values()
        )

    def is_closed(self, message: ReceivedMessage) -> bool:
        """Whether the message's lane is closed, so that the message must be parked too."""
        lane = self.lane_of(message)
        broker_log = self._brokers.get(message.broker_name)
        return lane in self._moving or (broker_log is not None and lane in broker_log.log.lanes)

    def divert(
        self, assignment: Assignment, messages: list[ReceivedMessage]
    ) -> list[ReceivedMessage]:
        """Park the messages of closed lanes; returns the others, in their order."""
        if not self.is_any_closed:
            return messages
        flowing: list[ReceivedMessage] = []
        for message in messages:
            if self.is_closed(message):
                self.park(assignment, message, ParkKind.BEHIND)
            else:
                flowing.append(message)
        return flowing

    def park(
        self, assignment: Assignment, message: ReceivedMessage, kind: ParkKind, reason: str = ""
    ) -> None:
        """Append a message to the log; it counts as consumed when its copy was read back."""
        lane = self.lane_of(message)
        if kind is ParkKind.FAILED and lane in self._moving:
            kind = ParkKind.BEHIND
        self._moving[lane] = self._moving.get(lane, 0) + 1
        item = _Item(assignment, message, lane, kind, reason)
        box = self._outbox.get(lane)
        if box is not None:
            box.append(item)
            return
        self._outbox[lane] = deque([item])
        self._host.spawn(self._send_lane(lane), "park")

    async def _send_lane(self, lane: str) -> None:
        """Send a lane's messages, one after the other."""
        box = self._outbox[lane]
        while box:
            item = box[0]
            if item.assignment.process_queue.dropped:
                box.popleft()
                self._arrived(item)
                continue
            if not self._host.may_consume(item.assignment.queue):
                await asyncio.sleep(0.2)
                continue
            broker_log = self._brokers[item.message.broker_name]
            try:
                park_offset = await broker_log.queue.append_copy(
                    item.message, self._properties(item)
                )
            except CometError as error:
                log.warning(
                    "%s at %d is not parked yet; next try in %.0f s: %s",
                    item.message.message_queue,
                    item.message.queue_offset,
                    PAUSE_S,
                    error,
                )
                await asyncio.sleep(PAUSE_S)
                continue
            broker_log.sent.append((park_offset, item))
            self._read_back(broker_log)
            # The lane's next message must not be in the log without this one.
            await item.settled.wait()
            if item.is_lost:
                item.is_lost = False
                item.settled.clear()
            else:
                box.popleft()
        del self._outbox[lane]

    def _properties(self, item: _Item) -> dict[str, str]:
        message = item.message
        return copy_properties(
            message.properties,
            kind=item.kind,
            lane=item.lane,
            topic=message.topic,
            position=position_text(message.message_queue, message.queue_offset),
            reason=item.reason,
        )

    def _read_back(self, broker_log: _BrokerLog) -> None:
        """Finish the messages whose copies were read back."""
        waiting: deque[tuple[int, _Item]] = deque()
        for park_offset, item in broker_log.sent:
            if park_offset >= broker_log.log.next_offset:
                waiting.append((park_offset, item))
                continue
            self._arrived(item)
            item.settled.set()
            process_queue = item.assignment.process_queue
            if process_queue.dropped:
                continue
            process_queue.finish(item.message.queue_offset)
            item.assignment.loop.wake()
            if item.kind is ParkKind.FAILED:
                self._tell(item.message, item.reason)
        broker_log.sent = waiting

    def _arrived(self, item: _Item) -> None:
        left = self._moving[item.lane] - 1
        if left:
            self._moving[item.lane] = left
        else:
            del self._moving[item.lane]

    def _tell(self, message: ReceivedMessage, reason: str) -> None:
        log.warning(
            "group %s: the message at %s offset %d failed too often; its group %r is parked: %s",
            self._host.group,
            message.message_queue,
            message.queue_offset,
            self.lane_of(message),
            reason or "the handler gave no reason",
        )
        if self._on_parked is not None:
            self._host.spawn(self._alert(self._on_parked, message, reason), "on-parked")

    async def _alert(self, on_parked: OnParked, message: ReceivedMessage, reason: str) -> None:
        try:
            waiting = on_parked(message, reason)
            if inspect.isawaitable(waiting):
                await waiting
        except Exception:
            log.exception("on_parked of group %s failed", self._host.group)

    # -- reading the log --------------------------------------------------------------------

    async def _follow(self, broker_log: _BrokerLog) -> None:
        """Read a broker's log as it grows."""
        while True:
            try:
                await self._follow_once(broker_log)
            except CometError as error:
                log.warning("%s: %s", broker_log.queue.queue, error)
                await asyncio.sleep(PAUSE_S)

    async def _follow_once(self, broker_log: _BrokerLog) -> None:
        place = broker_log.log.next_offset
        messages, following, is_moved = await broker_log.queue.pull(place, SUSPEND_MS)
        if is_moved and following < place:
            # The broker lost its newest records (a power cut with asynchronous flush).
            log.warning(
                "the broker lost records of %s: it ends at %d, we have read up to %d",
                broker_log.queue.queue,
                following,
                place,
            )
            broker_log.log = ParkingLog(await broker_log.queue.start_offset())
            self._send_again(broker_log)
            return
        if is_moved:
            broker_log.log.forget_before(following)
        for message in messages:
            record = read_record(message)
            if record is not None:
                broker_log.log.apply(record)
        broker_log.log.skip_to(following)
        self._read_back(broker_log)
        changed, broker_log.changed = broker_log.changed, asyncio.Event()
        changed.set()
        self._start_retries(broker_log)
        if broker_log.log.commit_offset > broker_log.committed:
            broker_log.committed = broker_log.log.commit_offset
            await broker_log.queue.commit(broker_log.committed)

    def _send_again(self, broker_log: _BrokerLog) -> None:
        """Send again the copies that the broker acknowledged and lost."""
        lost, broker_log.sent = broker_log.sent, deque()
        for _, item in lost:
            item.is_lost = True
            item.settled.set()

    # -- retrying ---------------------------------------------------------------------------

    def _start_retries(self, broker_log: _BrokerLog) -> None:
        if self._is_closed:
            return
        for name, lane in broker_log.log.lanes.items():
            source = lane.messages[0].source
            if (
                lane.state is LaneState.RETRYING
                and name not in self._retrying
                and source in self._queues
            ):
                ended = asyncio.Event()
                self._retrying[name] = source, ended
                self._host.spawn(self._retry(broker_log, name, source), "retry-parked")

    async def _retry(self, broker_log: _BrokerLog, name: str, source: MessageQueue) -> None:
        """Run a lane's messages in order, until the lane is empty or fails again."""
        try:
            while await self._retry_some(broker_log, name, source):
                pass
        except CometError as error:
            log.warning("the retry of the parked group %r is interrupted: %s", name, error)
            await asyncio.sleep(PAUSE_S)
        finally:
            _, ended = self._retrying.pop(name)
            ended.set()
        self._start_retries(broker_log)

    def _may_retry(self, broker_log: _BrokerLog, name: str, source: MessageQueue) -> bool:
        lane = broker_log.log.lanes.get(name)
        return (
            lane is not None
            and lane.state is LaneState.RETRYING
            and lane.messages[0].source == source
            and source in self._queues
            and not self._is_closed
        )

    async def _retry_some(self, broker_log: _BrokerLog, name: str, source: MessageQueue) -> bool:
        """Run some messages from the front of the lane; False when the retry has ended."""
        if not self._may_retry(broker_log, name, source):
            return False
        some = list(islice(broker_log.log.lanes[name].messages, RETRY_COUNT))
        done_upto = -1
        fault: tuple[ReceivedMessage, str] | None = None
        async for entry, message in read_parked(self._reader, broker_log.queue, some):
            if not self._may_retry(broker_log, name, source):
                break
            if entry.is_repeat or self._is_skipped(broker_log, name, entry):
                done_upto = entry.park_offset
                continue
            reason = await self._run(broker_log, name, source, message)
            if reason is None:
                done_upto = entry.park_offset
                continue
            if reason:
                fault = message, reason
            break
        end = -1
        if done_upto >= 0:
            end = await broker_log.queue.append_order(ParkKind.DONE, name, done_upto)
        if fault is not None:
            end = await broker_log.queue.append_order(ParkKind.HALT, name)
            self._tell(*fault)
        elif done_upto < 0:
            await asyncio.sleep(PAUSE_S)  # deleted from the log, or no longer ours
        await broker_log.read_up_to(end + 1)
        return fault is None and done_upto >= 0

    def _is_skipped(self, broker_log: _BrokerLog, name: str, entry: ParkedMessage) -> bool:
        """Whether an operator has skipped the message in the meantime."""
        lane = broker_log.log.lanes.get(name)
        return lane is None or not lane.holds(entry.park_offset, RETRY_COUNT)

    async def _run(
        self, broker_log: _BrokerLog, name: str, source: MessageQueue, message: ReceivedMessage
    ) -> str | None:
        """Run one message: None on success, else the reason; "" if the lane is no longer ours."""
        dispatcher = self._host.dispatcher_of(message.topic)
        message.stored.reconsume_times = 0
        while self._may_retry(broker_log, name, source):
            if not self._host.may_start(source):
                await asyncio.sleep(0.2)
                continue
            outcome: Outcome
            async with self._slots:
                try:
                    outcome = await dispatcher.run_one(message)
                except Exception as error:
                    outcome = outcome_of(result_of_error(error))
            if outcome is None:
                return None
            if outcome == OUTCOME_STOP:
                log_failure(self._host.group, message, outcome, STOPPED)
                self._host.stop_consuming(message, outcome)
                continue
            decision = self._policy.after_failure(
                outcome, message.reconsume_times, pause_of(outcome, self._host.now_ms())
            )
            log_failure(self._host.group, message, outcome, follows(decision))
            if outcome == DELAY_LEVEL_DEAD_LETTER:
                await self._bury(message)
                return None
            if not isinstance(decision, Suspend):
                return reason_of(outcome) or "the handler gave no reason"
            message.stored.reconsume_times += 1
            await asyncio.sleep(decision.pause_ms / 1000)
        return ""

    async def _bury(self, message: ReceivedMessage) -> None:
        """Make a retried message a dead letter."""
        address = self._reader.address(message.message_queue)
        await self._reader.calls.send_back(
            address,
            message.broker_name,
            self._host.group,
            physical_offset=message.physical_offset,
            delay_level=DELAY_LEVEL_DEAD_LETTER,
            message_id=message.message_id,
            topic=message.topic,
            max_reconsume_times=0,
        )
