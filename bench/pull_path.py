"""What a pull costs a broker between socket and log, without socket, process switch and client.

    .venv/bin/python -m bench.pull_path [--pulls 4000] [--folder /dev/shm]

A broker runs in this process, and pulls go to its connection one at a time, as a read of a socket
gives them.  Each takes 32 messages with bodies of 128 bytes from one of four queues that were
written in turn.  Measured is the processor time of the thread from the request to its answer, in
microseconds a pull.  The tenth percentile is hardly touched by what else the machine does, so two
commits can be compared by turns, as with `send_path.py`.

`written`: the broker still has the records mapped.  `old`: the same after a restart, in files.
`tagged`: every second message is wanted, by its tag.
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
from cometmq.model.flags import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION
from cometmq.model.topic import TopicConfig
from cometmq.net.env import system_environment
from cometmq.net.loop import run
from cometmq.store.base.disk import RealDisk
from cometmq.wire.frame.framing import decode_frame
from cometmq.wire.header.fast_encode import PullRequestTemplate, SendRequestTemplate

TOPIC: Final = "PullPath"
QUEUES: Final = 4
COUNT: Final = 32
MESSAGES: Final = 40_000
BURST: Final = 64
TAGS: Final = ("TagA", "TagB")
WARM_UP_PULLS: Final = 200


class PullPath:
    """One connection to a broker of this process."""

    def __init__(self, connection: asyncio.Protocol) -> None:
        self._transport = KeptAnswers()
        self._connection = connection
        connection.connection_made(self._transport)

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
                topic = TopicConfig(TOPIC, QUEUES, QUEUES)
                broker.state.topics.put(topic, CLOCK.now_ms())
                broker.state.topic_changed(topic)
                await path.fill()
            await asyncio.sleep(2)
            gc.collect()
            gc.freeze()
            gc.set_threshold(*GC_THRESHOLDS)
            for name, subscription in kinds.items():
                tenth, *_, median = statistics.quantiles(
                    await path.measure(subscription, pulls), n=10
                )[:5]
                print(
                    f"{name:12} {tenth / 1000:6.1f} us a pull in the fastest tenth,"
                    f" {median / 1000:6.1f} in the median"
                )
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
