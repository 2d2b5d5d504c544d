"""Sends flights through producer, broker and consumers, and compares every count.

One producer sends, two instances of one group share the topic, a second group takes some carriers
only. All of them run in this process; the broker runs in another, on its own core.

The demo compares the messages each group received (count per carrier, checksum of bodies) with the
flights in the file. RocketMQ delivers at least once, so a redelivered message (same queue and queue
offset) is counted separately; a run without failures has none.
"""

import asyncio
import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from cometmq.cli.demo.flights import Flight, Tally
from cometmq.cli.terminal.output import ProgressBar
from cometmq.client import Admin, Message, Producer, PushConsumer, ReceivedMessage, SendResult
from cometmq.errors import ClientError

__all__ = ["DemoPlan", "DemoReport", "GroupReport", "SendReport", "percentile", "run_demo"]

SENDS_IN_FLIGHT: Final = 512
CHECK_EVERY: Final = 64
UNREAD_MAX: Final = 4096
"""The sender waits while the group of two lags by more messages. Without this limit the latencies
would measure how long the queue grows while producer and consumers share one core."""
QUEUE_COUNT: Final = 8
BALANCE_TIMEOUT_S: Final = 30.0
IDLE_TIMEOUT_S: Final = 20.0
"""The demo stops waiting for a group that has received nothing new for so long."""


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """What to run, and on which cluster; ``run_id`` keeps two demos on one cluster apart."""

    name_server: str
    run_id: str
    carriers: tuple[str, ...]
    keep: bool = False

    @property
    def topic(self) -> str:
        return f"FlightsDemo_{self.run_id}"

    def group(self, role: str) -> str:
        """The consumer group of one role."""
        return f"flights_demo_{role}_{self.run_id}"


@dataclass(slots=True)
class SendReport:
    """What the producer sent; ``latencies_ms`` last from the call of send to its result."""

    tally: Tally = field(default_factory=Tally)
    body_bytes: int = 0
    seconds: float = 0.0
    failed: int = 0
    first_failure: str = ""
    latencies_ms: "array[float]" = field(default_factory=lambda: array("d"))


@dataclass(slots=True)
class GroupReport:
    """What one consumer instance received; ``latencies_ms`` last from birth to handler."""

    name: str
    tally: Tally = field(default_factory=Tally)
    redelivered: int = 0
    seconds: float = 0.0
    latencies_ms: "array[float]" = field(default_factory=lambda: array("d"))
    per_second: Counter[int] = field(default_factory=Counter)
    """Second since 1970 to messages handled in it."""


@dataclass(slots=True)
class DemoReport:
    """The facts that the tables show."""

    plan: DemoPlan
    sent: SendReport
    instances: list[GroupReport]
    filtered: GroupReport
    expected_filtered: Tally

    @property
    def group_tally(self) -> Tally:
        """What the two instances received together."""
        first, second = self.instances
        return first.tally.merged(second.tally)

    @property
    def redelivered(self) -> int:
        """Messages that came more than once."""
        return sum(group.redelivered for group in (*self.instances, self.filtered))

    def faults(self) -> list[str]:
        """Each failed check in one sentence; empty when all hold."""
        faults = []
        if self.sent.failed:
            faults.append(f"{self.sent.failed:,} sends failed, first: {self.sent.first_failure}")
        for name, tally, expected in (
            (self.plan.group("all"), self.group_tally, self.sent.tally),
            (self.plan.group("some"), self.filtered.tally, self.expected_filtered),
        ):
            if tally.count != expected.count:
                faults.append(f"{name} saw {tally.count:,} messages, expected {expected.count:,}")
            elif tally.carriers != expected.carriers:
                faults.append(f"{name}: counts per carrier differ from the source")
            if tally.checksum != expected.checksum:
                faults.append(
                    f"{name}: checksum {tally.checksum:012x}, expected {expected.checksum:012x}"
                )
        return faults


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0..1) of the sorted ``values`` lie; 0 for none."""
    if not values:
        return 0.0
    return values[min(len(values) - 1, int(len(values) * share))]


class _Reader:
    """A consumer instance's handler and report."""

    def __init__(self, name: str, seen: dict[tuple[str, int], set[int]]) -> None:
        self.report = GroupReport(name)
        self.last_new = time.monotonic()
        self._seen = seen
        self._begin = 0.0

    async def handle(self, messages: list[ReceivedMessage]) -> None:
        """Count messages; returning acknowledges them."""
        now = time.monotonic()
        if not self._begin:
            self._begin = now
        now_ms = time.time() * 1000  # noqa: TID251 - compared with the messages' born time
        report = self.report
        for message in messages:
            seen = self._seen.setdefault((message.broker_name, message.queue_id), set())
            if message.queue_offset in seen:
                report.redelivered += 1
                continue
            seen.add(message.queue_offset)
            report.per_second[int(now_ms) // 1000] += 1
            report.tally.add(message.tags or "", message.body)
            report.latencies_ms.append(now_ms - message.born_timestamp_ms)
        self.last_new = now
        report.seconds = time.monotonic() - self._begin


async def run_demo(
    plan: DemoPlan, flights: Iterable[Flight], bars: Sequence[ProgressBar]
) -> DemoReport:
    """Run the whole job; ``bars`` are sent, group and filtered group."""
    async with Admin(name_server=plan.name_server) as admin:
        await admin.create_topic(plan.topic, queue_count=QUEUE_COUNT)
        try:
            return await _run(plan, flights, bars)
        finally:
            if not plan.keep:
                await admin.delete_topic(plan.topic)


async def _run(
    plan: DemoPlan, flights: Iterable[Flight], bars: Sequence[ProgressBar]
) -> DemoReport:
    everything: dict[tuple[str, int], set[int]] = {}
    first, second = _Reader("instance A", everything), _Reader("instance B", everything)
    some = _Reader("filtered", {})
    wanted = " || ".join(plan.carriers)
    consumers = [
        _consumer(plan, plan.group("all"), first, "*"),
        _consumer(plan, plan.group("all"), second, "*"),
        _consumer(plan, plan.group("some"), some, wanted),
    ]
    sent = SendReport()
    expected = Tally()
    async with consumers[0], consumers[1], consumers[2]:
        await _wait_until_balanced(consumers)
        source = _counted(flights, sent, expected, frozenset(plan.carriers))
        ticker = asyncio.create_task(_tick(bars, sent, expected, first, second, some))
        try:
            await _send_all(plan, source, sent, [first, second])
            await _wait_until_read(sent, expected, [first, second], some)
        finally:
            ticker.cancel()
    return DemoReport(plan, sent, [first.report, second.report], some.report, expected)


def _consumer(plan: DemoPlan, group: str, reader: _Reader, expression: str) -> PushConsumer:
    return PushConsumer(
        group,
        {plan.topic: expression},
        reader.handle,
        name_server=plan.name_server,
        consume_from="first",
    )


def _counted(
    flights: Iterable[Flight], sent: SendReport, expected: Tally, carriers: frozenset[str]
) -> Iterator[Flight]:
    """Yield the flights, and count them before they are sent."""
    for flight in flights:
        sent.tally.add(flight.carrier, flight.body)
        sent.body_bytes += len(flight.body)
        if flight.carrier in carriers:
            expected.add(flight.carrier, flight.body)
        yield flight


class _Sender:
    """Sends without waiting for each result; bounds messages in flight and messages unread."""

    def __init__(self, producer: Producer, sent: SendReport, group: Sequence[_Reader]) -> None:
        self._producer = producer
        self._sent = sent
        self._group = group
        self._in_flight = 0
        self._is_last_sent = False
        self._all_answered = asyncio.Event()

    async def send_all(self, topic: str, source: Iterator[Flight]) -> None:
        """Send every flight and wait for every result."""
        for number, flight in enumerate(source):
            if number % CHECK_EVERY == 0:
                await self._wait_for_room()
            message = Message(topic, flight.body, tags=flight.carrier, keys=flight.key)
            started = time.monotonic()
            future = self._producer.send_nowait(message)
            self._in_flight += 1
            future.add_done_callback(partial(self._answered, started))
        self._is_last_sent = True
        if self._in_flight:
            await self._all_answered.wait()

    def _answered(self, started: float, future: "asyncio.Future[SendResult]") -> None:
        self._in_flight -= 1
        sent = self._sent
        error = future.exception()
        if error is None:
            sent.latencies_ms.append((time.monotonic() - started) * 1000)
        else:
            sent.failed += 1
            sent.first_failure = sent.first_failure or str(error)
        if self._is_last_sent and not self._in_flight:
            self._all_answered.set()

    async def _wait_for_room(self) -> None:
        """Let answers and readers run; wait while they lag."""
        await asyncio.sleep(0)
        since = time.monotonic()
        while self._in_flight > SENDS_IN_FLIGHT or self._unread_count() > UNREAD_MAX:
            if time.monotonic() - since > IDLE_TIMEOUT_S:
                return  # the readers are stuck: continue, the report will show it
            await asyncio.sleep(0.001)

    def _unread_count(self) -> int:
        read_count = sum(reader.report.tally.count for reader in self._group)
        return len(self._sent.latencies_ms) - read_count


async def _send_all(
    plan: DemoPlan, source: Iterator[Flight], sent: SendReport, group: Sequence[_Reader]
) -> None:
    begin = time.monotonic()
    async with Producer(
        f"flights_demo_{plan.run_id}", name_server=plan.name_server, linger_ms=2
    ) as producer:
        await _Sender(producer, sent, group).send_all(plan.topic, source)
    sent.seconds = time.monotonic() - begin


async def _wait_until_balanced(consumers: Sequence[PushConsumer]) -> None:
    """Wait until both instances of the group own queues, so that none moves during the run."""
    deadline = time.monotonic() + BALANCE_TIMEOUT_S
    while True:
        shares = [len(consumer.assignment()) for consumer in consumers]
        if shares[0] + shares[1] == QUEUE_COUNT == shares[2] and shares[0] and shares[1]:
            return
        if time.monotonic() > deadline:
            raise ClientError(
                f"the consumers hold {shares} of {QUEUE_COUNT} queues after "
                f"{BALANCE_TIMEOUT_S:.0f} s; look at the log with -v"
            )
        await asyncio.sleep(0.05)


async def _wait_until_read(
    sent: SendReport, expected: Tally, group: Sequence[_Reader], some: _Reader
) -> None:
    begin = time.monotonic()
    while True:
        group_count = sum(reader.report.tally.count for reader in group)
        if group_count >= sent.tally.count and some.report.tally.count >= expected.count:
            return
        last_new = max(begin, *(reader.last_new for reader in (*group, some)))
        if time.monotonic() - last_new > IDLE_TIMEOUT_S:
            return
        await asyncio.sleep(0.02)


async def _tick(
    bars: Sequence[ProgressBar],
    sent: SendReport,
    expected: Tally,
    first: _Reader,
    second: _Reader,
    some: _Reader,
) -> None:
    """Move the bars ten times a second; the filtered total grows as the source is read."""
    while True:
        bars[0].update(len(sent.latencies_ms))
        bars[1].update(first.report.tally.count + second.report.tally.count)
        bars[2].update(some.report.tally.count, total=max(expected.count, 1))
        await asyncio.sleep(0.1)
