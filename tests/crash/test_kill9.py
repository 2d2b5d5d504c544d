"""kill -9 under load, again and again, with a real broker process and a real disk.

What was acknowledged must be in its queue, at its offset, exactly once, and no queue may have a
hole.  With synchronous flush that is the promise; with asynchronous flush it holds as well when
only the process dies, since the page cache outlives it.

`SEED=` chooses the moments; the seed of a run is in the name of its failure.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.raw_client import PeerClosed, RawClient
from tests.request_fields import pull_fields, send_fields

from cometmq.codec.stored_message import decode_messages

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

SEED = int(os.environ.get("SEED", "20240613"))
TOPIC = "KillNine"
QUEUE_COUNT = 4
PRODUCER_COUNT = 3
WINDOW = 64
PULL_COUNT = 1000
# Small log files, so that kills fall around the making of new ones too.
SETTINGS = (
    "brokerIP1=127.0.0.1",
    "mappedFileSizeCommitLog=2097152",
    "mappedFileSizeConsumeQueue=60000",
    "maxHashSlotNum=5000",
    "maxIndexNum=20000",
    "maxTransferCountOnMessageInMemory=1000",
    "maxTransferBytesOnMessageInMemory=1048576",
    "maxTransferCountOnMessageInDisk=1000",
    "maxTransferBytesOnMessageInDisk=1048576",
)


class BrokerProcess:
    """A broker of its own process on a store directory."""

    def __init__(self, store: Path, flush: str, more: Sequence[str] = ()) -> None:
        every = (*SETTINGS, f"flushDiskType={flush}", *more)
        settings = [f"--set={setting}" for setting in every]
        # A file, since a pipe that nobody reads stops who writes much.
        number, name = tempfile.mkstemp(prefix="broker-", suffix=".log")
        self._log_path = Path(name)
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "from cometmq.cli.main import main; main()",
                "broker",
                f"--store={store}",
                "--listen=127.0.0.1",
                "--port=0",
                *settings,
            ],
            stdout=subprocess.PIPE,
            stderr=number,
            text=True,
            env={k: v for k, v in os.environ.items() if k != "NAMESRV_ADDR"},
        )
        os.close(number)
        self.address = ""

    def wait_until_ready(self) -> None:
        """Read the line that says where it listens."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if "broker: ready" not in line:
            self._process.communicate()
            pytest.fail(f"the broker did not start: {line}{self.log()}")
        self.address = line.split("broker ")[-1].split(",")[0].strip()

    def log(self) -> str:
        """What it has written to stderr so far."""
        return self._log_path.read_text()

    def kill(self) -> None:
        """SIGKILL, and wait until nothing of the process is left."""
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self._process.terminate()
        return self.ended()

    def ended(self) -> int:
        """Wait until it has ended by itself; the exit code."""
        self._process.communicate(timeout=30)
        return self._process.returncode


@dataclass
class Ledger:
    """What the producers were told, and what they were waiting for when the broker died."""

    acknowledged: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    unknown: set[bytes] = field(default_factory=set)
    in_flight_at_kill: list[int] = field(default_factory=list)

    def acknowledge(self, body: bytes, at: tuple[int, int]) -> None:
        """The broker has answered: from now on it must be there."""
        self.acknowledged[body] = at
        self.unknown.discard(body)


class Producer(threading.Thread):
    """Sends with a window of requests in flight until the connection dies."""

    def __init__(self, address: str, name: str, ledger: Ledger) -> None:
        super().__init__(name=name)
        self._client = RawClient(address, timeout_s=60)
        self._ledger = ledger
        self.sent = threading.Event()

    def run(self) -> None:
        waiting: dict[int, bytes] = {}
        number = 0
        is_sending = True
        try:
            while True:
                fresh: dict[int, bytes] = {}
                frames = []
                while is_sending and len(waiting) + len(fresh) < WINDOW:
                    number += 1
                    body = f"{self.name}-{number}".encode().ljust(100 + number % 300, b".")
                    frames.append(self._frame(number, body))
                    fresh[number] = body
                # Part of it may arrive even when sending fails.
                self._ledger.unknown.update(fresh.values())
                try:
                    self._client.send(b"".join(frames))
                    waiting.update(fresh)
                except OSError:
                    # The broker is gone; answers it sent before may still be here.
                    is_sending = False
                answer = self._client.receive()
                assert answer.code == 0, f"{answer.code} {answer.remark}"
                fields = answer.ext_fields
                at = (int(fields["queueId"]), int(fields["queueOffset"]))
                self._ledger.acknowledge(waiting.pop(answer.opaque), at)
                self.sent.set()
        except (PeerClosed, OSError):
            # Sent in full, and neither answered nor refused: the kill fell between the two.
            self._ledger.in_flight_at_kill.append(len(waiting))
        finally:
            self._client.close()

    def _frame(self, number: int, body: bytes) -> bytes:
        return self._client.frame(
            310,
            send_fields(
                TOPIC,
                f"KEYS\x01{self.name}-{number}\x02TAGS\x01tag{number % 3}\x02",
                d=str(QUEUE_COUNT),
                e=str(number % QUEUE_COUNT),
            ),
            body,
        )


def read_queue(client: RawClient, queue_id: int) -> list[bytes]:
    """All bodies of a queue; their offsets are checked to be 0, 1, 2 and so on."""
    bodies: list[bytes] = []
    position = {"topic": TOPIC, "queueId": str(queue_id)}
    assert client.call(31, position).ext_fields["offset"] == "0"
    end = int(client.call(30, position).ext_fields["offset"])
    while len(bodies) < end:
        answer = client.call(
            11,
            pull_fields(TOPIC, len(bodies), queue_id, maxMsgNums=str(PULL_COUNT)),
        )
        assert answer.code == 0, f"queue {queue_id} at {len(bodies)} of {end}: {answer.remark}"
        for message in decode_messages(answer.body):
            assert message.queue_offset == len(bodies), f"queue {queue_id} has a hole"
            bodies.append(bytes(message.body))
    return bodies


def check_store(address: str, ledger: Ledger) -> int:
    """Every acknowledged body once and at its place, nothing that was never sent."""
    places: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
    with RawClient(address, timeout_s=60) as client:
        for queue_id in range(QUEUE_COUNT):
            for queue_offset, body in enumerate(read_queue(client, queue_id)):
                places[body].append((queue_id, queue_offset))
    lost = [body for body, at in ledger.acknowledged.items() if at not in places.get(body, [])]
    assert not lost, f"{len(lost)} acknowledged messages are not at their offset: {lost[:3]}"
    doubled = [body for body, found in places.items() if len(found) != 1]
    assert not doubled, f"{len(doubled)} messages are there more than once: {doubled[:3]}"
    strange = places.keys() - ledger.acknowledged.keys() - ledger.unknown
    assert not strange, f"{len(strange)} messages were never sent: {list(strange)[:3]}"
    return len(places.keys() & ledger.unknown)


@pytest.mark.parametrize(("flush", "rounds"), [("SYNC_FLUSH", 4), ("ASYNC_FLUSH", 4)])
def test_nothing_acknowledged_is_lost(tmp_path: Path, flush: str, rounds: int) -> None:
    """Rounds of load, kill and restart on one store; each restart is checked in full."""
    chance = random.Random(SEED)
    ledger = Ledger()
    store = tmp_path / "store"
    kept_though_unknown = 0
    for number in range(rounds):
        broker = BrokerProcess(store, flush)
        if number == 2:
            # Once during start-up and recovery: the next start has to cope with that as well.
            time.sleep(chance.uniform(0.05, 0.5))
            broker.kill()
            broker = BrokerProcess(store, flush)
        broker.wait_until_ready()
        if number:
            kept_though_unknown = check_store(broker.address, ledger)
        producers = [
            Producer(broker.address, f"{number}-{producer}", ledger)
            for producer in range(PRODUCER_COUNT)
        ]
        for producer in producers:
            producer.start()
        for producer in producers:
            assert producer.sent.wait(30)
        time.sleep(chance.uniform(0.02, 0.5))
        broker.kill()
        for producer in producers:
            producer.join()
    broker = BrokerProcess(store, flush)
    broker.wait_until_ready()
    kept_though_unknown = check_store(broker.address, ledger)
    assert broker.stop() == 0

    assert len(ledger.in_flight_at_kill) == rounds * PRODUCER_COUNT
    by_kill = [
        sum(ledger.in_flight_at_kill[first : first + PRODUCER_COUNT])
        for first in range(0, len(ledger.in_flight_at_kill), PRODUCER_COUNT)
    ]
    if flush == "SYNC_FLUSH":
        assert kept_though_unknown > 0, "no kill fell between storing a message and answering"
    assert min(by_kill) > 0, f"a kill fell between two writes: {by_kill} sends were in flight"
    print(
        f"{flush} seed {SEED}: {len(ledger.acknowledged)} acknowledged, "
        f"{by_kill} in flight at the kills, {kept_though_unknown} stored without an answer"
    )
    assert len(ledger.acknowledged) > rounds * PRODUCER_COUNT * WINDOW
