"""SIGTERM under load, again and again, with a real broker and real consumer processes.

A graceful stop promises more than survival: the consumer that is told to stop hands over at
exactly the message it had reached, and the broker that is told to stop answers or refuses every
send.  So across all lives each acknowledged message is handled exactly once: none lost, and none
repeated whose handling was finished and committed.

Only one consumer is alive at a time: two members that share queues may see a message twice while
they hand a queue over, in RocketMQ as here.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import cometmq.sync
from cometmq.errors import CometError

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

TOPIC = "Graceful"
GROUP = "graceful_consumers"
LIVES = 3
SETTINGS = (
    "mappedFileSizeCommitLog=2097152",
    "mappedFileSizeConsumeQueue=60000",
    "maxHashSlotNum=5000",
    "maxIndexNum=20000",
)
# Appends each body to a file as the last act of handling it, and stops as services are stopped.
CONSUMER = """
import asyncio, signal, sys
import cometmq

async def main(name_server, group, topic, path):
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with open(path, "ab", buffering=0) as file:
        async def handle(message: cometmq.ReceivedMessage) -> None:
            await asyncio.sleep(0.0005)
            file.write(message.body + b"\\n")

        async with cometmq.PushConsumer(
            group, {topic: "*"}, handle, name_server=name_server, consume_from="first"
        ):
            print("consuming", flush=True)
            await stop.wait()

asyncio.run(main(*sys.argv[1:]))
"""


def start(*arguments: str) -> tuple["subprocess.Popen[str]", str]:
    """A Python process and the first line it prints."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"},
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"ended with {process.wait()} before it was ready"
    return process, line


def stop(process: "subprocess.Popen[str]") -> None:
    """SIGTERM, and the end it has to come to."""
    process.send_signal(signal.SIGTERM)
    assert process.wait(40) == 0
    assert process.stdout is not None
    process.stdout.close()


def start_cluster(
    store: Path, name_server_port: str, broker_port: str
) -> tuple["subprocess.Popen[str]", str, str]:
    """`cometmq up` on these ports, 0 for free ones."""
    process, line = start(
        *("-m", "cometmq", "-q", "up", "--store", str(store)),
        *("--name-server-port", name_server_port, "--broker-port", broker_port),
        *(f"--set={setting}" for setting in SETTINGS),
    )
    found = re.search(r"name server \S+:(\d+), broker \S+:(\d+)", line)
    assert found is not None, line
    return process, found[1], found[2]


class Sender(threading.Thread):
    """Sends one message after the other until told to stop, through every restart."""

    def __init__(self, name: str, name_server: str) -> None:
        super().__init__(name=name)
        self._name_server = name_server
        self.acknowledged: list[bytes] = []
        self.unknown: set[bytes] = set()
        self.refused = 0
        self.is_over = threading.Event()

    def run(self) -> None:
        number = 0
        # No retries: a send that is repeated after a lost answer would be two messages.
        with cometmq.sync.Producer(
            f"graceful_{self.name}", name_server=self._name_server, retries=0
        ) as producer:
            while not self.is_over.is_set():
                number += 1
                body = f"{self.name}-{number}".encode()
                try:
                    producer.send(cometmq.Message(TOPIC, body))
                except CometError:
                    self.unknown.add(body)
                    self.refused += 1
                    time.sleep(0.02)
                else:
                    self.acknowledged.append(body)
                # More than the consumers handle, not so much more that the test is only draining.
                time.sleep(0.001)


def handled(path: Path) -> Counter[bytes]:
    """How often each body was handled in all lives."""
    return Counter(path.read_bytes().split()) if path.exists() else Counter()


def wait_for_growth(path: Path, count: int) -> None:
    """Until so many more messages were handled."""
    goal = handled(path).total() + count
    until = time.monotonic() + 40
    while handled(path).total() < goal:
        assert time.monotonic() < until, f"{handled(path).total()} of {goal} were handled"
        time.sleep(0.02)


def test_nothing_is_lost_and_nothing_repeated(tmp_path: Path) -> None:
    """Consumers stop, and the cluster under a live one, while two producers go on."""
    path = tmp_path / "handled"
    cluster, name_server_port, broker_port = start_cluster(tmp_path / "store", "0", "0")
    name_server = f"127.0.0.1:{name_server_port}"
    with cometmq.sync.Admin(name_server=name_server) as admin:
        admin.create_topic(TOPIC, queue_count=4)
    senders = [Sender(f"s{number}", name_server) for number in range(2)]
    for sender in senders:
        sender.start()
    consumers = 0
    handled_at_stops = []
    try:
        for life in range(LIVES):
            consumer, _ = start("-c", CONSUMER, name_server, GROUP, TOPIC, str(path))
            consumers += 1
            wait_for_growth(path, 200)
            if life % 2:
                stop(cluster)
                cluster, _, _ = start_cluster(tmp_path / "store", name_server_port, broker_port)
                wait_for_growth(path, 200)
            stop(consumer)
            handled_at_stops.append(handled(path).total())
        for sender in senders:
            sender.is_over.set()
            sender.join()
        acknowledged = [body for sender in senders for body in sender.acknowledged]
        consumer, _ = start("-c", CONSUMER, name_server, GROUP, TOPIC, str(path))
        consumers += 1
        until = time.monotonic() + 40
        while not handled(path).keys() >= set(acknowledged):
            assert time.monotonic() < until, "some acknowledged messages never came"
            time.sleep(0.05)
        stop(consumer)
    finally:
        for sender in senders:
            sender.is_over.set()
        cluster.terminate()
        cluster.wait(40)
        assert cluster.stdout is not None
        cluster.stdout.close()

    counts = handled(path)
    repeated = {body: count for body, count in counts.items() if count != 1}
    assert not repeated, f"{len(repeated)} messages were handled more than once: {repeated}"
    unknown = set().union(*(sender.unknown for sender in senders))
    strange = counts.keys() - set(acknowledged) - unknown
    assert not strange, f"{len(strange)} messages were never sent: {sorted(strange)[:3]}"
    # The stops fell into the middle of the work: each left something to the next consumer.
    reached = [*handled_at_stops, counts.total()]
    assert sorted(set(reached)) == reached
    assert all(sender.refused for sender in senders), "no restart of the cluster met a send"
    print(
        f"{len(acknowledged)} acknowledged, {len(unknown)} unanswered over {consumers} consumers; "
        f"stopped after {handled_at_stops} handled"
    )
