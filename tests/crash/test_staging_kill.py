"""A real broker process that ends itself by SIGKILL at a named step of a publication.

The same steps as on virtual time (`tests/sim/test_staging.py`), with a real disk, real sockets and
the ordinary client: after each kill readers see every batch wholly or not at all, and the batch
that was being published is there once after it was published again.
"""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.crash.test_full_disk import small_disk  # noqa: F401 - a fixture

import cometmq.sync
from cometmq.client.staging import PublishState, StagedPart, Staging
from cometmq.codec.stored_message import decode_messages
from cometmq.errors import CometError, ServiceNotAvailable
from cometmq.testing.raw_client import RawClient

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

TOPIC = "Killed"
QUEUE_COUNT = 3
ROWS = 600
STEPS = [
    "staged",
    "before decision",
    "after decision",
    "slice announced",
    "slice appended",
    "before done",
    "after done",
    "before ledger file",
    "before answer",
]
REPEATED = {"staged", "slice announced", "slice appended"}
BROKER = """
import asyncio, os, signal, sys
from pathlib import Path
from cometmq.broker.config import load_config
from cometmq.standalone import Standalone

store, flush = sys.argv[1:]
armed = Path(store, "armed")
hits = []

def at(name):
    step, _, hit = armed.read_text().partition(":") if armed.exists() else ("", "", "")
    if name == step:
        hits.append(name)
        if len(hits) == int(hit):
            armed.rename(Path(store, "hit"))
            os.kill(os.getpid(), signal.SIGKILL)

async def main():
    config = load_config(environment={}, overrides={
        "brokerName": "broker-a", "brokerIP1": "127.0.0.1", "bindAddress": "127.0.0.1",
        "listenPort": 0, "storePathRootDir": store, "flushDiskType": flush,
        "mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 20 * 500,
        "maxHashSlotNum": 1000, "maxIndexNum": 4000, "defaultTopicQueueNums": 3,
        "cleanFileForciblyEnable": "false",
    }).config
    standalone = Standalone(config, name_server_port=0)
    await standalone.start()
    standalone.broker.staging.publisher.at = at
    print(standalone.name_server_address, standalone.broker_address, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


class Life:
    """One life of the broker."""

    def __init__(self, store: Path, flush: str) -> None:
        self.store = store
        self._process = subprocess.Popen(
            [sys.executable, "-c", BROKER, str(store), flush],
            stdout=subprocess.PIPE,
            text=True,
            env={key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"},
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the broker did not start; its stderr says why"
        self.name_server, self.address = line.split()

    def arm(self, step: str, hit: int) -> None:
        """Let it end itself at this step, when it comes there so many times from now."""
        (self.store / "armed").write_text(f"{step}:{hit}")

    def wait_killed(self, step: str) -> None:
        """It has ended itself at this step, and at no other."""
        assert self._process.wait(timeout=60) == -signal.SIGKILL
        hit = self.store / "hit"
        assert hit.read_text().startswith(step)
        hit.unlink()

    def close(self) -> None:
        """End it, if it has not ended."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


def batches_of(address: str) -> Counter[int]:
    """How many messages of each batch readers see; none twice, and no queue with a hole.

    Queues are read one after the other, so a batch may appear in between; but each queue has all
    of its share of it, or nothing.
    """
    bodies: list[bytes] = []
    counts: Counter[int] = Counter()
    with RawClient(address, timeout_s=60) as client:
        for queue_id in range(QUEUE_COUNT):
            offset = 0
            while True:
                answer = client.call(
                    11,
                    {
                        "consumerGroup": "readers",
                        "topic": TOPIC,
                        "queueId": str(queue_id),
                        "queueOffset": str(offset),
                        "maxMsgNums": "32",
                        "sysFlag": "4",
                        "commitOffset": "0",
                        "suspendTimeoutMillis": "0",
                        "subscription": "*",
                        "subVersion": "0",
                        "expressionType": "TAG",
                    },
                )
                if answer.code != 0:
                    assert answer.code in (19, 17), answer.remark
                    break
                for message in decode_messages(answer.body):
                    assert message.queue_offset == offset
                    bodies.append(bytes(message.body))
                    offset += 1
            share = Counter(int(body.split(b"/")[0]) for body in bodies) - counts
            assert set(share.values()) <= {ROWS // QUEUE_COUNT}, f"a part of a batch: {share}"
            counts += share
    assert len(set(bodies)) == len(bodies), "a message is there twice"
    return counts


def stage(staging: Staging, batch_id: int, rows: int = ROWS) -> StagedPart:
    """One batch as one part of several blocks."""
    part = staging.part(batch_id, "0")
    for row in range(rows):
        part.add(TOPIC, b"%d/%d" % (batch_id, row))
    return part.finish()


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_broker_killed_at_each_step_publishes_each_batch_once(tmp_path: Path, flush: str) -> None:
    """One store, one kill after the other; every life is checked before it takes anything new."""
    store = tmp_path / "store"
    done: set[int] = set()
    for batch_id, step in enumerate([*STEPS, ""]):
        life = Life(store, flush)
        try:
            seen = batches_of(life.address)
            assert all(seen[number] == ROWS for number in done)
            with cometmq.sync.Staging(life.name_server, "kill", block_bytes=4_000) as staging:
                if batch_id:
                    # The one that the life before was killed over.
                    result = staging.publish(batch_id - 1, [stage(staging, batch_id - 1)])
                    assert result.rows == ROWS
                    if seen[batch_id - 1]:
                        assert result.status is PublishState.ALREADY
                    done.add(batch_id - 1)
                    assert batches_of(life.address) == dict.fromkeys(done, ROWS)
                if step:
                    life.arm(step, 3 if step in REPEATED else 1)
                    with pytest.raises(CometError):
                        staging.publish(batch_id, [stage(staging, batch_id)])
                    life.wait_killed(step)
        finally:
            life.close()
    assert done == set(range(len(STEPS)))


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_disk_that_is_full_refuses_and_keeps_what_is_published(
    small_disk: Path,  # noqa: F811 - the fixture
    flush: str,
) -> None:
    """Staging or publishing is refused with what is free; no batch is there in part, ever."""
    store = small_disk / "store"
    life = Life(store, flush)
    try:
        with cometmq.sync.Staging(life.name_server, "full") as staging:
            published = 0
            with pytest.raises(ServiceNotAvailable, match="MiB are free"):
                for batch_id in range(1000):
                    part = staging.part(batch_id, "0")
                    for row in range(ROWS):
                        part.add(TOPIC, b"%d/%d/" % (batch_id, row) + bytes(1_000))
                    staging.publish(batch_id, [part.finish()])
                    published += 1
            seen = batches_of(life.address)
            assert published > 3
            assert set(seen.values()) == {ROWS}
            assert set(range(published)) <= seen.keys()
        life.close()
        life = Life(store, flush)
        assert set(batches_of(life.address).values()) == {ROWS}
    finally:
        life.close()
