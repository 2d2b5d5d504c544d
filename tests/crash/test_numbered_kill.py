"""A real broker that ends between a numbered send and its repetition.

It has stored the message and ends itself, by SIGKILL or in order, where it would answer.  The
producer repeats the send to the next life, on other ports, and gets the answer of the first try.
"""

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.crash.stepping import read_queue
from tests.raw_client import RawClient

import cometmq
from cometmq import Message, SendResult

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

TOPIC = "Orders"
QUEUE_COUNT = 4
BROKER = """
import asyncio, json, os, signal, sys
from cometmq.broker.base.config import load_config
from cometmq.net.server import ServerConnection
from cometmq.standalone import Standalone
from cometmq.wire.frame.framing import FrameReader

store, flush, end, hit = sys.argv[1:]
stopping = asyncio.Event()
answers = []
flush_connection = ServerConnection._flush

def flush_until_the_end(connection):
    data = b"".join(map(bytes, connection._connection.outgoing))
    if b'"queueOffset"' in data:
        (answer, *_) = FrameReader().receive(data)
        answers.append([int(answer.ext_fields[name]) for name in ("queueId", "queueOffset")])
    if int(hit) and len(answers) == int(hit):
        connection._connection.outgoing.clear()
        if not stopping.is_set():
            print(json.dumps(answers[-1]), flush=True)
        if end == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        stopping.set()
        connection.abort("a test loses the answer")
        return
    flush_connection(connection)

ServerConnection._flush = flush_until_the_end

async def main():
    config = load_config(environment={}, overrides={
        "brokerName": "broker-a", "brokerIP1": "127.0.0.1", "bindAddress": "127.0.0.1",
        "listenPort": 0, "storePathRootDir": store, "mappedFileSizeCommitLog": 1 << 20,
        "mappedFileSizeConsumeQueue": 20 * 500, "maxHashSlotNum": 1000, "maxIndexNum": 4000,
        "flushDiskType": flush,
    }).config
    standalone = Standalone(config, name_server_port=0)
    await standalone.start()
    print(standalone.name_server_address, standalone.broker_address, flush=True)
    await stopping.wait()
    await standalone.stop()

asyncio.run(main())
"""


class Life:
    """One life of the broker, which ends before the answer of its `hit`-th send; 0: before none."""

    def __init__(self, store: Path, flush: str, end: str = "kill", hit: int = 0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", BROKER, str(store), flush, end, str(hit)],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._code = -signal.SIGKILL if end == "kill" else 0
        self.name_server, self.address = self._line().split()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the broker is not there; its stderr says why"
        return line

    def ended(self) -> tuple[int, int]:
        """Wait until it has ended itself at its step: the answer that it did not give."""
        queue_id, queue_offset = json.loads(self._line())
        assert self._process.wait(60) == self._code
        return queue_id, queue_offset

    def close(self) -> None:
        """End it, if it has not ended."""
        self._process.kill()
        self._process.communicate()


@pytest.mark.parametrize(
    ("how", "end", "flush"),
    [
        ("send", "kill", "ASYNC_FLUSH"),
        ("send", "kill", "SYNC_FLUSH"),
        ("send", "stop", "SYNC_FLUSH"),
        ("batch", "kill", "SYNC_FLUSH"),
    ],
)
def test_a_repetition_to_the_next_life_is_stored_once(
    tmp_path: Path, how: str, end: str, flush: str
) -> None:
    """The answer has the queue and the offset of the first try, and each message is there once."""
    lives = [Life(tmp_path, flush, end, hit=3)]

    async def send() -> tuple[SendResult, tuple[int, int]]:
        async with cometmq.Producer(
            "shop", name_server=lives[0].name_server, producer_id="shop", timeout_ms=60_000
        ) as producer:
            await producer.create_topic(TOPIC, queue_count=QUEUE_COUNT)
            for number in range(2):
                await producer.send(Message(TOPIC, b"before %d" % number))
            messages = [Message(TOPIC, b"lost %d" % number) for number in range(3)]
            sending = asyncio.ensure_future(
                producer.send_batch(messages) if how == "batch" else producer.send(messages[0])
            )
            place = await asyncio.to_thread(lives[0].ended)
            assert not sending.done()
            lives.append(await asyncio.to_thread(Life, tmp_path, flush))
            producer.update_name_servers(lives[1].name_server)
            answer: Any = await sending
            await producer.send(Message(TOPIC, b"after"))
            return (answer[0] if how == "batch" else answer), place

    try:
        sent, place = asyncio.run(send())
        assert (sent.message_queue.queue_id, sent.queue_offset) == place
        with RawClient(lives[1].address) as client:
            bodies = [
                bytes(message.body)
                for queue_id in range(QUEUE_COUNT)
                for message in read_queue(client, TOPIC, queue_id)
            ]
    finally:
        for life in lives:
            life.close()
    lost = [b"lost %d" % number for number in range(3 if how == "batch" else 1)]
    assert sorted(bodies) == sorted([b"before 0", b"before 1", *lost, b"after"])
