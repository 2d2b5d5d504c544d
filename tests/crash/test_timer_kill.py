"""A real broker process that ends itself by SIGKILL at a named step of its timers.

The same steps as on virtual time (`tests/sim/test_timers.py`), with a real disk, real sockets and
the ordinary client: each acknowledged message arrives once, and not before its time.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cometmq.codec.stored_message import StoredMessage, decode_messages
from cometmq.errors import CometError
from cometmq.model import Message
from cometmq.sync import Producer
from cometmq.testing.raw_client import RawClient

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

TOPIC = "Later"
COUNT = 60
WAIT_S = 60
BROKER = """
import asyncio, os, signal, sys
from pathlib import Path
from cometmq.broker.config import load_config
from cometmq.standalone import Standalone

store, step, hit = sys.argv[1:]
hits = []

def at(name):
    if name == step:
        hits.append(name)
        if len(hits) == int(hit):
            Path(store, "hit").write_text(name)
            os.kill(os.getpid(), signal.SIGKILL)

async def main():
    config = load_config(environment={}, overrides={
        "brokerName": "broker-a", "brokerIP1": "127.0.0.1", "bindAddress": "127.0.0.1",
        "listenPort": 0, "storePathRootDir": store, "mappedFileSizeCommitLog": 1 << 20,
        "mappedFileSizeConsumeQueue": 20 * 500, "maxHashSlotNum": 1000, "maxIndexNum": 4000,
        "defaultTopicQueueNums": 1, "timerFlushIntervalMs": 200, "timerRollWindowSlot": 3,
        "mappedFileSizeTimerLog": 4096,
    }).config
    standalone = Standalone(config, name_server_port=0)
    await standalone.start()
    standalone.broker.timers.at = at
    print(standalone.name_server_address, standalone.broker_address, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
PULL = {
    "consumerGroup": "readers",
    "topic": TOPIC,
    "queueId": "0",
    "maxMsgNums": "32",
    "sysFlag": "4",
    "commitOffset": "0",
    "suspendTimeoutMillis": "0",
    "subscription": "*",
    "subVersion": "0",
    "expressionType": "TAG",
}


class Life:
    """One life of the broker."""

    def __init__(self, store: Path, step: str, hit: int) -> None:
        command = [sys.executable, "-c", BROKER, str(store), step, str(hit)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline().split()
        self.name_server, self.broker = line

    def end(self) -> None:
        """Kill it, if it lives."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


def send(life: Life) -> dict[bytes, int]:
    """Send until all are acknowledged or the broker is gone; bodies and times of those."""
    acked: dict[bytes, int] = {}
    with Producer("g", name_server=life.name_server, retries=0, timeout_ms=5000) as producer:
        for number in range(COUNT):
            body = f"{life.process.pid}-{number}".encode()
            due_ms = time.time_ns() // 1_000_000 + 200 + number * 97  # noqa: TID251 - its clock
            try:
                producer.send(Message(TOPIC, body, deliver_time_ms=due_ms))
            except CometError:
                break
            acked[body] = due_ms
    return acked


def read(address: str) -> list[StoredMessage]:
    """Everything that has arrived."""
    found: list[StoredMessage] = []
    with RawClient(address) as client:
        while True:
            answer = client.call(11, {**PULL, "queueOffset": str(len(found))})
            if answer.code != 0:
                return found
            found += decode_messages(answer.body)


@pytest.mark.parametrize(
    ("step", "hit"),
    [("timer.put", 8), ("timer.log_synced", 6), ("timer.wheel_synced", 9), ("timer.placed", 50)],
)
def test_a_kill_at_a_step_loses_and_repeats_nothing(step: str, hit: int, tmp_path: Path) -> None:
    """The next life delivers what the first had not."""
    first = Life(tmp_path, step, hit)
    try:
        acked = send(first)
        first.process.wait(WAIT_S)
        assert (tmp_path / "hit").read_text() == step
    finally:
        first.end()
    second = Life(tmp_path, "", 0)
    try:
        acked |= send(second)
        deadline = time.monotonic() + WAIT_S
        while True:
            found = read(second.broker)
            bodies = [bytes(message.body) for message in found]
            if acked.keys() <= set(bodies):
                break
            assert time.monotonic() < deadline, f"never arrived: {acked.keys() - set(bodies)}"
            time.sleep(0.1)
        assert len(set(bodies)) == len(bodies), "twice"
        for message in found:
            due_ms = acked.get(bytes(message.body))
            assert due_ms is None or message.store_timestamp_ms >= due_ms, "too early"
    finally:
        second.end()
