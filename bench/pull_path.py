"""What a pull costs a broker between socket and log, without socket, process switch and client.

    .venv/bin/python -m bench.pull_path [--pulls 4000] [--folder /dev/shm]

A broker runs in this process, and pulls go to its connection one at a time, as a read of a socket
gives them.  Each takes 32 messages with bodies of 128 bytes from one of four queues that were
written in turn.  Measured is the processor time of the thread from the request to its answer, in
microseconds a pull.  The tenth percentile is hardly touched by what else the machine does, so two
commits can be compared by turns, as with `send_path.py`.

`written`: the broker still has the records mapped.  `old`: the same after a restart, in files.
`tagged`: every second message is wanted, by its tag.
`tail`: the consumer waits at the end of a queue, and a producer sends one message; measured are the
pull that waits, the send, and the turns of the loop that answer the pull, for a message.  `send`:
such a send without a pull that waits for it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.send_path import CLOCK, KeptAnswers, OpenNetwork
from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.broker import Broker
from cometmq.cli.serve.serve import GC_THRESHOLDS
from cometmq.model.flags import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND
from cometmq.model.topic import TopicConfig
from cometmq.net.env import system_environment
from cometmq.net.loop import run
from cometmq.store.base.disk import RealDisk
from cometmq.wire.frame.framing import decode_frame
from cometmq.wire.header.fast_encode import PullRequestTemplate, SendRequestTemplate

TOPIC: Final = "PullPath"
TAIL_TOPIC: Final = "PullPathTail"
QUEUES: Final = 4
COUNT: Final = 32
MESSAGES: Final = 40_000
BURST: Final = 64
TAGS: Final = ("TagA", "TagB")
WARM_UP_PULLS: Final = 200
PAUSE_SENDS: Final = 50
"""After so many sends the broker's timers get a turn."""


class PullPath:
    """One connection to a broker of this process."""

    def __init__(self, connection: asyncio.Protocol) -> None:
        self._transport = KeptAnswers()
        self._connection = connection
        self._tail_end = 0
        connection.connection_made(self._transport)

    def taken(self) -> list[bytes]:
        """What the broker wrote since the last exchange began."""
        return self._transport.frames

    def exchange(self, frames: bytes) -> tuple[int, bytes]:
        """Give frames to the broker: processor time in nanoseconds, and its answers."""
        self._transport.frames.clear()
        begin = time.thread_time_ns()
        self._connection.data_received(frames)
        elapsed = time.thread_time_ns() - begin
        return elapsed, b"".join(self._transport.frames)

    def close(self) -> None:
        """Tell the broker that the connection is lost."""
        self._connection.connection_lost(None)

    async def fill(self) -> None:
        """Send messages to the queues in turn."""
        template = SendRequestTemplate("bench", TOPIC, "broker-a")
        for first in range(0, MESSAGES, BURST):
            frames = [
                template.encode(
                    number,
                    number % QUEUES,
                    0,
                    CLOCK.now_ms(),
                    0,
                    f"KEYS\x01k{number}\x02UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02"
                    f"TAGS\x01{TAGS[number // QUEUES % 2]}\x02",
                    b"%0128d" % number,
                )
                for number in range(first, first + BURST)
            ]
            self.exchange(b"".join(frames))
            if first % (16 * BURST) == 0:
                await asyncio.sleep(0.002)

    async def measure(self, subscription: str, pulls: int) -> list[int]:
        """Nanoseconds of each pull."""
        messages_a_pull = COUNT if subscription == "*" else 2 * COUNT
        turns = MESSAGES // QUEUES // messages_a_pull
        templates = [
            PullRequestTemplate("bench", TOPIC, queue_id, subscription=subscription)
            for queue_id in range(QUEUES)
        ]
        times: list[int] = []
        for number in range(WARM_UP_PULLS + pulls):
            offset = number // QUEUES % turns * messages_a_pull
            frame = templates[number % QUEUES].encode(
                number, offset, COUNT, PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET, offset, 0, 0
            )
            elapsed, answer = self.exchange(frame)
            times.append(elapsed)
            if number % 500 == 0:
                command = decode_frame(answer)
                following = int(command.ext_fields.get("nextBeginOffset", -1))
                # A filter may examine what follows the last wanted message, too.
                if command.code or not offset < following <= offset + messages_a_pull:
                    raise SystemExit(f"code {command.code}: {command.remark}, then {following}")
                await asyncio.sleep(0.002)
        return times[WARM_UP_PULLS:]

    async def measure_tail(self, pulls: int, consumer: PullPath | None) -> list[int]:
        """Nanoseconds of each message that is sent, and pulled by a waiting consumer if any."""
        sends = SendRequestTemplate("bench", TAIL_TOPIC, "broker-a")
        waits = PullRequestTemplate("bench", TAIL_TOPIC, 0, subscription="*")
        flags = PULL_SUBSCRIPTION | PULL_COMMIT_OFFSET | PULL_SUSPEND
        times: list[int] = []
        for number in range(WARM_UP_PULLS + pulls):
            offset = self._tail_end
            pull = waits.encode(number, offset, COUNT, flags, offset, 15_000, 0)
            text = f"KEYS\x01k{number}\x02UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02"
            send = sends.encode(number, 0, 0, CLOCK.now_ms(), 0, text, b"%0128d" % number)
            begin = time.thread_time_ns()
            if consumer is not None:
                consumer.exchange(pull)
            self.exchange(send)
            if consumer is not None:
                # The first turn reads the messages, the second one writes the answer.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            times.append(time.thread_time_ns() - begin)
            self._tail_end += 1
            if consumer is not None and number % 500 == 0:
                command = decode_frame(b"".join(consumer.taken()))
                if int(command.ext_fields.get("nextBeginOffset", -1)) != offset + 1:
                    raise SystemExit(f"code {command.code}: {command.remark}")
            if number % PAUSE_SENDS == 0:
                await asyncio.sleep(0.002)
        return times[WARM_UP_PULLS:]


def tell(name: str, times: list[int]) -> None:
    """Print a line for a kind."""
    tenth, *_, median = statistics.quantiles(times, n=10)[:5]
    print(
        f"{name:12} {tenth / 1000:6.1f} us in the fastest tenth, {median / 1000:6.1f} in the median"
    )


async def measure(folder: Path, pulls: int) -> None:
    """Measure every kind, and print a line for each."""
    config = BrokerConfig(
        listen_port=0,
        bind_address="127.0.0.1",
        broker_ip1="127.0.0.1",
        store_path_root_dir=str(folder),
    )
    for kinds in ({"written": "*", "tagged": TAGS[0]}, {"old": "*", "old, tagged": TAGS[0]}):
        network = OpenNetwork()
        broker = Broker(config, replace(system_environment(), network=network), RealDisk())
        await broker.start()
        try:
            path = PullPath(network.accept())
            if "written" in kinds:
                for name in (TOPIC, TAIL_TOPIC):
                    topic = TopicConfig(name, QUEUES, QUEUES)
                    broker.state.topics.put(topic, CLOCK.now_ms())
                    broker.state.topic_changed(topic)
                await path.fill()
            await asyncio.sleep(2)
            gc.collect()
            gc.freeze()
            gc.set_threshold(*GC_THRESHOLDS)
            for name, subscription in kinds.items():
                tell(name, await path.measure(subscription, pulls))
            if "written" in kinds:
                consumer = PullPath(network.accept())
                tell("tail", await path.measure_tail(pulls, consumer))
                tell("send", await path.measure_tail(pulls, None))
                consumer.close()
            path.close()
        finally:
            await broker.stop()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pulls", type=int, default=4000)
    parser.add_argument("--folder", help="where the store is made; a temporary folder else")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-pull-path-", dir=options.folder) as folder:
        run(measure(Path(folder), options.pulls))


if __name__ == "__main__":
    main()
