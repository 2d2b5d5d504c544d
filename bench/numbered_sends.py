"""What numbering messages (``producer_id``) costs a send, from the call to the answer.

    .venv/bin/python -m bench.numbered_sends [--seconds 1] [--rounds 20]

A producer with an id and one without it send in turns to one broker process, messages of 1 KiB:
one after the other in a thread, and with 64 in flight on a loop.  Printed are the medians of the
rounds: sends a second, and the processor time of both processes for a message, which other programs
on the machine disturb less; and the median of the ratio in each pair with its 95 % interval.  Asked
is at most 1.1 times a plain send.
"""

import argparse
import asyncio
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import cometmq
import cometmq.sync
from bench.base.measure import interval_of_median, read_process
from bench.base.processes import Server, start_broker
from cometmq import Message

BODY = b"x" * 1024
IN_FLIGHT = 64


Figures = tuple[float, float]
"""Sends a second, and microseconds of processor time for each."""


class Meter:
    """Measures a round."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._begin = time.perf_counter()
        self._begin_s = self._processor_s()

    def _processor_s(self) -> float:
        reading = read_process(self._server.pid)
        assert reading is not None
        return reading.cpu_s + time.process_time()

    def figures(self, count: int) -> Figures:
        """The figures of a round that has sent so many messages."""
        elapsed_s = time.perf_counter() - self._begin
        return count / elapsed_s, (self._processor_s() - self._begin_s) * 1e6 / count


def one_by_one(producer: cometmq.sync.Producer, seconds: float, server: Server) -> Figures:
    """Each send after the answer of the last."""
    meter = Meter(server)
    begin = time.perf_counter()
    count = 0
    while time.perf_counter() - begin < seconds:
        for _ in range(20):
            producer.send(Message("Bench", BODY))
        count += 20
    return meter.figures(count)


async def together(producer: cometmq.Producer, seconds: float, server: Server) -> Figures:
    """64 sends in flight."""
    meter = Meter(server)
    begin = time.perf_counter()
    count = 0

    async def worker() -> None:
        nonlocal count
        while time.perf_counter() - begin < seconds:
            await producer.send(Message("Bench", BODY))
            count += 1

    await asyncio.gather(*[worker() for _ in range(IN_FLIGHT)])
    return meter.figures(count)


def report(title: str, rounds: dict[str | None, list[Figures]]) -> None:
    """Print the medians, and the ratios of the pairs."""
    plain, numbered = [
        [median(column) for column in zip(*rounds[name], strict=True)] for name in (None, "bench")
    ]
    pairs = list(zip(rounds[None], rounds["bench"], strict=True))
    print(
        f"{title}: {plain[0]:,.0f} plain sends/s and {numbered[0]:,.0f} numbered ones/s, "
        f"{ratio([one[0] / other[0] for one, other in pairs])} times the time; "
        f"{plain[1]:.1f} us and {numbered[1]:.1f} us of processor time, "
        f"{ratio([other[1] / one[1] for one, other in pairs])} times; {len(pairs)} pairs"
    )


def ratio(ratios: list[float]) -> str:
    """Their median, and its interval."""
    interval = interval_of_median(ratios)
    bounds = "" if interval is None else f" ({interval[0]:.3f} to {interval[1]:.3f})"
    return f"{median(ratios):.3f}{bounds}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    ids: tuple[str | None, ...] = (None, "bench")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-numbered-"))
        server = stack.enter_context(start_broker(Path(folder) / "store"))
        options: dict[str, Any] = {"name_server": server.name_server}
        rates: dict[str | None, list[Figures]] = {None: [], "bench": []}
        producers = {
            name: stack.enter_context(cometmq.sync.Producer("b", producer_id=name, **options))
            for name in ids
        }
        for producer in producers.values():
            one_by_one(producer, 0.3, server)
        for number in range(given.rounds):
            for name in ids[:: 1 if number % 2 else -1]:
                rates[name].append(one_by_one(producers[name], given.seconds, server))
        report("one after the other", rates)

        async def run() -> None:
            rates: dict[str | None, list[Figures]] = {None: [], "bench": []}
            async with (
                cometmq.Producer("b", **options) as plain,
                cometmq.Producer("b", producer_id="bench", **options) as numbered,
            ):
                both = {None: plain, "bench": numbered}
                for producer in both.values():
                    await together(producer, 0.3, server)
                for number in range(given.rounds):
                    for name in ids[:: 1 if number % 2 else -1]:
                        rates[name].append(await together(both[name], given.seconds, server))
            report(f"{IN_FLIGHT} in flight", rates)

        asyncio.run(run())


if __name__ == "__main__":
    main()
