"""Loads through our own client, as a user's program: one process on the generator's core.

Sending programs make their messages one by one, as an application does, and keep every result.  The
results are then compared with the broker's messages, read back over raw frames.  Consuming programs
read messages that were sent over raw frames, keep every message, and the round counts only if each
came exactly once with the right checksum. Rates of consumers run from
the first message in the handler to the last.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np

from bench.base.frames import FrameRing
from bench.base.loads import Round, Rounds, WorkOrder
from bench.base.measure import Latency, pin
from bench.worker.generator import Sent
from bench.worker.verify import (
    Verdict,
    VerifyFailed,
    acknowledged_rows,
    compare_with_acks,
    read_back,
)
from bench.worker.worker import Moment, Work, make_round
from cometmq.errors import CometError
from cometmq.model import Message, SendResult
from cometmq.net.env import Environment, system_environment
from cometmq.net.loop import run

__all__ = ["PROGRAMS", "main", "run_client_order"]

TAGS: Final = ("TagA", "TagB", "TagC", "TagD")
WARM_UP_SENDS: Final = 200
LINGER_MS: Final = 5.0
LINGER_CHUNK: Final = 2000
CONSUME_S_MAX: Final = 120.0
FILL_BATCH: Final = 100
ORDERED: Final = ("push-queue", "push-group")
"""Programs whose messages have a message group: as many groups as a batch has messages."""


@dataclass(slots=True)
class _Sends:
    """Results of a sending program: one entry per send, in the order of the frame numbers."""

    ring: FrameRing
    topic: str
    frame_numbers: list[int] = field(default_factory=list)
    results: list[SendResult] = field(default_factory=list)
    durations_ns: list[int] = field(default_factory=list)

    def next_message(self) -> tuple[int, Message]:
        """The next message, different from all earlier ones, and its frame number."""
        number = self.ring.sent
        self.ring.sent = number + 1
        return number, Message(
            self.topic, self.ring.body(number), tags=TAGS[number & 3], keys=(f"k{number}",)
        )

    def note(self, number: int, result: SendResult, begin_ns: int) -> None:
        """Note the result of a send."""
        self.frame_numbers.append(number)
        self.results.append(result)
        self.durations_ns.append(time.perf_counter_ns() - begin_ns)

    def settle(self) -> Sent:
        """The results in the form that verification reads."""
        count = len(self.results)
        refused: Counter[tuple[int, str]] = Counter(
            (int(result.status), result.status.name) for result in self.results if result.status
        )
        return Sent(
            np.array(self.frame_numbers, np.int64),
            np.array([r.message_queue.queue_id for r in self.results], np.int64),
            np.array([r.queue_offset for r in self.results], np.int64),
            np.zeros(count, np.int64),
            np.array(self.durations_ns, np.int64),
            refused,
        )


class _Client:
    """The work on one order of kind "client"."""

    def __init__(self, order: WorkOrder, env: Environment) -> None:
        # Consumers get enough messages for the whole time at their target rate.
        wanted = int((order.load.target or 0) * order.seconds)
        order = msgspec.structs.replace(order, fill_messages=max(order.fill_messages, wanted))
        self.order = order
        self.work = Work(order, env)
        self.program = order.load.program

    def round(self, number: int) -> Round:
        """Run one round; the program decides who runs the event loop."""
        if self.program == "sync":
            return self._sync_round(number)
        if self.program in SENDERS:
            return run(self._send_round(number))
        return run(self._consume_round(number))

    # -- sending ------------------------------------------------------------------------------

    async def _verified(self, sends: _Sends, begin: Moment, end: Moment, done: int) -> Round:
        sent = sends.settle()
        ring = sends.ring
        reader = await read_back(ring, self.order.address, acknowledged_rows(ring, sent))
        verdict = compare_with_acks(ring, sent, reader)
        latency = Latency.of(sent.answered_ns[-done:]) if done else None
        return make_round(begin, end, done=done, messages_each=1, latency=latency, verdict=verdict)

    def _sync_round(self, number: int) -> Round:
        from cometmq.sync import Producer

        ring = run(self.work.prepare(number, 0))
        sends = _Sends(ring, ring.targets.topic(0))
        with Producer("bench_producer", name_server=self.order.name_server) as producer:
            for _ in range(WARM_UP_SENDS):
                index, message = sends.next_message()
                sends.note(index, producer.send(message), time.perf_counter_ns())
            begin = Moment.take(self.order.server_pid)
            stop_ns = begin.now_ns + int(self.order.seconds * 1e9)
            begin_ns = begin.now_ns
            while begin_ns < stop_ns:
                index, message = sends.next_message()
                sends.note(index, producer.send(message), begin_ns)
                begin_ns = time.perf_counter_ns()
            end = Moment.take(self.order.server_pid)
        done = len(sends.results) - WARM_UP_SENDS
        return run(self._verified(sends, begin, end, done))

    async def _send_round(self, number: int) -> Round:
        from cometmq import Producer

        ring = await self.work.prepare(number, 0)
        sends = _Sends(ring, ring.targets.topic(0))
        linger_ms = LINGER_MS if self.program == "linger" else None
        async with Producer(
            "bench_producer", name_server=self.order.name_server, linger_ms=linger_ms
        ) as producer:
            index, message = sends.next_message()
            sends.note(index, await producer.send(message), time.perf_counter_ns())
            gc.collect()
            gc.freeze()
            begin = Moment.take(self.order.server_pid)
            stop_ns = begin.now_ns + int(self.order.seconds * 1e9)
            await SENDERS[self.program](producer, sends, stop_ns)
            end = Moment.take(self.order.server_pid)
            gc.unfreeze()
        return await self._verified(sends, begin, end, len(sends.results) - 1)

    # -- consuming ----------------------------------------------------------------------------

    async def _consume_round(self, number: int) -> Round:
        ring = await self.work.prepare(number, FILL_BATCH, is_grouped=self.program in ORDERED)
        sent = await self.work.fill(ring)
        if sent.refused:
            raise VerifyFailed(f"the fill was refused: {dict(sent.refused)}")
        wanted = ring.sent * ring.messages_per_frame
        received = _Received(wanted, self.order.server_pid)
        group = f"bench_{self.order.seed % 1_000_000}_{number}"
        gc.collect()
        gc.freeze()
        consume = CONSUMERS[self.program]
        await asyncio.wait_for(
            consume(self.order.name_server, group, ring.targets.topic(0), received),
            CONSUME_S_MAX,
        )
        gc.unfreeze()
        verdict = received.check(ring, wanted)
        begin, end = received.begin, received.end
        assert begin is not None and end is not None  # noqa: PT018
        # The first message starts the clock and does not count.
        return make_round(
            begin, end, done=wanted - received.first_count, messages_each=1, latency=None,
            verdict=verdict,
        )  # fmt: skip


class _Received:
    """The messages that handlers received; `finished` is set with the last expected one.

    Handlers may run in threads: a list append is atomic, and the count is the list's length.
    """

    def __init__(self, wanted: int, server_pid: int) -> None:
        self.messages: list[Any] = []
        self.finished = asyncio.Event()
        self.begin: Moment | None = None
        self.end: Moment | None = None
        self.first_count = 0
        self._wanted = wanted
        self._server_pid = server_pid
        self._loop = asyncio.get_running_loop()

    def one(self, message: Any) -> None:
        """Note a message that a handler received."""
        messages = self.messages
        messages.append(message)
        if self.begin is None:
            self._first(1)
        if len(messages) >= self._wanted:
            self._last()

    def many(self, batch: Any) -> None:
        """Note a list of messages that a handler received."""
        messages = self.messages
        messages.extend(batch)
        if self.begin is None:
            self._first(len(batch))
        if len(messages) >= self._wanted:
            self._last()

    def _first(self, count: int) -> None:
        self.first_count = count
        self.begin = Moment.take(self._server_pid)

    def _last(self) -> None:
        if self.end is None:
            self.end = Moment.take(self._server_pid)
        self._loop.call_soon_threadsafe(self.finished.set)

    def check(self, ring: FrameRing, wanted: int) -> Verdict:
        """Check that each message came once with the rendered body."""
        ids: list[int] = []
        for message in self.messages:
            body = message.body
            head = body[:12]
            if not head.isdigit() or zlib.crc32(body) & 0x7FFFFFFF != ring.body_crc(int(head)):
                raise VerifyFailed(
                    f"{message.message_queue} offset {message.queue_offset}: the handler got a "
                    f"body that was not sent, beginning {head!r}"
                )
            ids.append(int(head))
        distinct = len(set(ids))
        if distinct != wanted or len(ids) != wanted:
            raise VerifyFailed(
                f"{wanted} messages were sent; the handler got {len(ids)}, {distinct} of them "
                "different"
            )
        return Verdict(wanted, len(ids))


# -- sending programs -------------------------------------------------------------------------


async def _send_one(producer: Any, sends: _Sends, stop_ns: int) -> None:
    begin_ns = time.perf_counter_ns()
    while begin_ns < stop_ns:
        number, message = sends.next_message()
        sends.note(number, await producer.send(message), begin_ns)
        begin_ns = time.perf_counter_ns()


async def _send_64(producer: Any, sends: _Sends, stop_ns: int) -> None:
    await asyncio.gather(*(_send_one(producer, sends, stop_ns) for _ in range(64)))


async def _send_linger(producer: Any, sends: _Sends, stop_ns: int) -> None:
    """Keep two chunks of sends in flight; each send has its own result."""
    waiting: list[tuple[int, int, Any]] = []
    while True:
        begin_ns = time.perf_counter_ns()
        is_over = begin_ns >= stop_ns
        chunk = []
        if not is_over:
            for _ in range(LINGER_CHUNK):
                number, message = sends.next_message()
                chunk.append((number, begin_ns, producer.send_nowait(message)))
        for number, started_ns, future in waiting:
            sends.note(number, await future, started_ns)
        if is_over:
            return
        waiting = chunk


SENDERS: Final[dict[str, Callable[[Any, _Sends, int], Awaitable[None]]]] = {
    "async-1": _send_one,
    "async-64": _send_64,
    "linger": _send_linger,
}


# -- consuming programs -----------------------------------------------------------------------


async def _push(
    name_server: str, group: str, topic: str, received: _Received, handler: Any, **options: Any
) -> None:
    from cometmq import PushConsumer

    async with PushConsumer(
        group, {topic: "*"}, handler, name_server=name_server, consume_from="first", **options
    ):
        await received.finished.wait()


async def _push_async(name_server: str, group: str, topic: str, received: _Received) -> None:
    async def handle(message: Any) -> None:
        received.one(message)

    await _push(name_server, group, topic, received, handle)


async def _push_threads(name_server: str, group: str, topic: str, received: _Received) -> None:
    await _push(name_server, group, topic, received, received.one)


async def _push_list(name_server: str, group: str, topic: str, received: _Received) -> None:
    async def handle(messages: Any) -> None:
        received.many(messages)

    await _push(name_server, group, topic, received, handle, batch_count_max=32)


async def _push_queue(name_server: str, group: str, topic: str, received: _Received) -> None:
    async def handle(message: Any) -> None:
        received.one(message)

    await _push(name_server, group, topic, received, handle, order="queue")


async def _push_group(name_server: str, group: str, topic: str, received: _Received) -> None:
    async def handle(message: Any) -> None:
        received.one(message)

    await _push(name_server, group, topic, received, handle, order="group")


async def _async_for(name_server: str, group: str, topic: str, received: _Received) -> None:
    from cometmq import PullConsumer

    async with PullConsumer(
        group, {topic: "*"}, name_server=name_server, consume_from="first"
    ) as consumer:
        async for message in consumer:
            received.one(message)
            if received.end is not None:
                return


CONSUMERS: Final[dict[str, Callable[[str, str, str, _Received], Awaitable[None]]]] = {
    "push-async": _push_async,
    "push-threads": _push_threads,
    "push-list": _push_list,
    "push-queue": _push_queue,
    "push-group": _push_group,
    "async-for": _async_for,
}

PROGRAMS: Final = ("sync", *SENDERS, *CONSUMERS)


def run_client_order(order: WorkOrder, env: Environment | None = None) -> Rounds:
    """Run all rounds of a client order; must not be called inside an event loop."""
    client = _Client(order, env or system_environment())
    return Rounds(rounds=[client.round(number) for number in range(order.rounds)])


def main() -> int:
    """Run the worker process."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=WorkOrder)
    pin(order.core)
    try:
        rounds = run_client_order(order)
    except CometError as error:
        print(error, file=sys.stderr)
        return 1
    sys.stdout.buffer.write(msgspec.json.encode(rounds))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
