"""What a send costs a broker between socket and log, without socket, process switch and client.

    .venv/bin/python -m bench.send_path [--bursts 1000] [--in-flight 64] [--only timed]

A broker runs in this process, and frames go to its connection as a read of a socket gives them.
Measured is the processor time of the thread from the frames to their answers, as nanoseconds a
message.  The tenth percentile of many bursts is hardly touched by what else the machine does, so
two commits can be compared by turns:

    for round in 1 2 3 4 5; do
        for tree in before after; do (cd $tree && python -m bench.send_path); done
    done

Deliveries of delayed and timed messages happen between bursts and are not in these figures;
`cometmq bench --suite kinds` has them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.broker import Broker
from cometmq.cli.serve.serve import GC_THRESHOLDS
from cometmq.codec.batch import encode_batch
from cometmq.model.topic import TopicConfig
from cometmq.net.env import SystemClock, system_environment
from cometmq.net.loop import run
from cometmq.net.network import Listener, TcpNetwork
from cometmq.store.base.disk import RealDisk
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand, encode_command
from cometmq.wire.frame.framing import FrameReader

CLOCK: Final = SystemClock()
TOPIC: Final = "SendPath"
QUEUES: Final = 8
KINDS: Final = (
    "plain", "batched", "filtered", "delayed", "timed", "transactional", "scattered",
    "numbered",
)  # fmt: skip
"""A batched burst is one batch; scattered sends go to 10,000 queues in an order without pattern."""
WARM_UP_BURSTS: Final = 50
SCATTERED_TOPICS: Final = 1250
SCATTERED_STEP: Final = 7919
"""A prime, so that every queue has its turn."""
PAUSE_BURSTS: Final = 20
"""After so many bursts the broker's timers get a turn, as the pauses of a network would give."""
AHEAD_MS: Final = 3_600_000


class KeptAnswers(asyncio.Transport):
    """A transport that keeps what the broker writes."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 40000)})
        self.frames: list[bytes] = []

    def write(self, data: Any) -> None:
        """Keep it."""
        self.frames.append(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing waits here."""

    def abort(self) -> None:
        """Nothing is open."""


def _properties(kind: str, number: int, now_ms: int) -> str:
    own = {
        "plain": "",
        "batched": "",
        "scattered": "",
        "filtered": f"region\x01eu-west\x02amount\x01{number}\x02",
        "delayed": f"DELAY\x01{number % 3 + 16}\x02",
        "timed": f"TIMER_DELIVER_MS\x01{now_ms + AHEAD_MS + number}\x02",
        "transactional": "TRAN_MSG\x01true\x02PGROUP\x01bench\x02",
        "numbered": f"PRODUCER_SEQ\x01bench.1:{number}\x02",
    }[kind]
    return (
        f"KEYS\x01k{number}\x02UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02TAGS\x01TagA\x02{own}"
    )


def _frame(code: int, ext: dict[str, str], opaque: int, body: bytes = b"") -> bytes:
    command = RemotingCommand.request(code, ext, body)
    command.opaque = opaque
    return encode_command(command)


def _send(kind: str, number: int, now_ms: int) -> bytes:
    topic, queue_id = TOPIC, number % QUEUES
    if kind == "scattered":
        place, queue_id = divmod(number * SCATTERED_STEP % (SCATTERED_TOPICS * QUEUES), QUEUES)
        topic = f"{TOPIC}{place}"
    ext = {
        "a": "bench", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0",
        "g": str(now_ms), "h": "0", "i": _properties(kind, number, now_ms), "j": "0", "k": "false",
        "m": "false", "n": "broker-a",
    }  # fmt: skip
    return _frame(RequestCode.SEND_MESSAGE_V2, ext, number, b"%0128d" % number)


def _batch(numbers: range, now_ms: int) -> bytes:
    items = encode_batch(
        (0, b"%0128d" % number, _properties("batched", number, now_ms).encode())
        for number in numbers
    )
    ext = {
        "a": "bench", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(numbers[0] % QUEUES), "f": "0",
        "g": str(now_ms), "h": "0", "i": f"UNIQ_KEY\x01{numbers[0]:032X}\x02WAIT\x01true\x02",
        "j": "0", "k": "false", "m": "true", "n": "broker-a",
    }  # fmt: skip
    return _frame(RequestCode.SEND_BATCH_MESSAGE, ext, numbers[0], items)


def _end(half: RemotingCommand) -> bytes:
    """The commit of a half message, by the answer to its send."""
    stored = half.ext_fields
    ext = {
        "producerGroup": "bench", "tranStateTableOffset": stored["queueOffset"],
        "commitLogOffset": str(int(stored["msgId"][16:], 16)), "commitOrRollback": "8",
        "fromTransactionCheck": "false", "msgId": stored["transactionId"],
        "transactionId": stored["transactionId"],
    }  # fmt: skip
    return _frame(RequestCode.END_TRANSACTION, ext, half.opaque)


class SendPath:
    """One connection to a broker of this process."""

    def __init__(self, connection: asyncio.Protocol) -> None:
        self._transport = KeptAnswers()
        self._connection = connection
        self._connection.connection_made(self._transport)
        self._number = 0

    def close(self) -> None:
        """Tell the broker that the connection is lost."""
        self._connection.connection_lost(None)

    def exchange(self, frames: bytes, count: int) -> tuple[int, list[RemotingCommand]]:
        """Give frames to the broker: processor time in nanoseconds, and the answers."""
        self._transport.frames.clear()
        begin = time.thread_time_ns()
        self._connection.data_received(frames)
        elapsed = time.thread_time_ns() - begin
        answers = FrameReader().receive(b"".join(self._transport.frames))
        refused = [answer.remark for answer in answers if answer.code]
        if refused or len(answers) != count:
            raise SystemExit(f"{len(answers)} of {count} requests were answered: {refused[:1]}")
        return elapsed, answers

    async def measure(self, kind: str, bursts: int, in_flight: int) -> dict[str, list[int]]:
        """Nanoseconds of each burst, of its sends and of its commits."""
        sends: list[int] = []
        commits: list[int] = []
        if kind == "numbered":
            # The first one waits until the broker has a file of sequences.
            self._connection.data_received(_send(kind, self._number, CLOCK.now_ms()))
            self._number += 1
            await asyncio.sleep(0.5)
        warm_up_bursts = WARM_UP_BURSTS
        if kind == "scattered":
            warm_up_bursts += SCATTERED_TOPICS * QUEUES // in_flight
        for burst in range(bursts + warm_up_bursts):
            now_ms = CLOCK.now_ms()
            numbers = range(self._number, self._number + in_flight)
            self._number += in_flight
            if kind == "batched":
                elapsed, answers = self.exchange(_batch(numbers, now_ms), 1)
            else:
                frames = b"".join([_send(kind, number, now_ms) for number in numbers])
                elapsed, answers = self.exchange(frames, in_flight)
            sends.append(elapsed)
            if kind == "transactional":
                ends = b"".join([_end(answer) for answer in answers])
                commits.append(self.exchange(ends, in_flight)[0])
            if burst % PAUSE_BURSTS == 0:
                await asyncio.sleep(0.002)
        rows = {kind: sends[warm_up_bursts:], f"{kind}, commit": commits[warm_up_bursts:]}
        return {name: times for name, times in rows.items() if times}


class OpenNetwork(TcpNetwork):
    """Remembers how the broker makes the protocol of a connection."""

    accept: Callable[[], asyncio.Protocol]

    async def listen(
        self, host: str, port: int, accept: Callable[[], asyncio.Protocol]
    ) -> Listener:
        """Listen as always."""
        self.accept = accept
        return await super().listen(host, port, accept)


async def measure(folder: Path, kinds: Sequence[str], bursts: int, in_flight: int) -> None:
    """Measure kinds against a fresh broker, and print a line for each."""
    network = OpenNetwork()
    config = BrokerConfig(
        listen_port=0,
        bind_address="127.0.0.1",
        broker_ip1="127.0.0.1",
        store_path_root_dir=str(folder),
    )
    broker = Broker(config, replace(system_environment(), network=network), RealDisk())
    await broker.start()
    try:
        names = [TOPIC]
        if "scattered" in kinds:
            names += [f"{TOPIC}{number}" for number in range(SCATTERED_TOPICS)]
        for name in names:
            topic = TopicConfig(name, QUEUES, QUEUES)
            broker.state.topics.put(topic, CLOCK.now_ms())
            broker.state.topic_changed(topic)
        await asyncio.sleep(0.5)
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        path = SendPath(network.accept())
        for kind in kinds:
            for name, times in (await path.measure(kind, bursts, in_flight)).items():
                tenth, *_, median = statistics.quantiles(times, n=10)[:5]
                print(
                    f"{name:22} {tenth / in_flight:8,.0f} ns a message in the fastest tenth of"
                    f" bursts, {median / in_flight:8,.0f} in the median"
                )
        path.close()
    finally:
        await broker.stop()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bursts", type=int, default=1000)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--only", choices=KINDS, action="append")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-send-path-") as folder:
        run(measure(Path(folder), options.only or KINDS, options.bursts, options.in_flight))


if __name__ == "__main__":
    main()
