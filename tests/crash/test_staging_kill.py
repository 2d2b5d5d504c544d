"""A real broker process that ends itself by SIGKILL at a named step of a publication.

The same steps as on virtual time (`tests/sim/test_staging.py`), with a real disk, real sockets and
the ordinary client: after each kill readers see every batch wholly or not at all, and the batch
that was being published is there once after it was published again.
"""

from collections import Counter
from pathlib import Path

import pytest
from tests.crash.stepping import Life, read_queue
from tests.crash.test_full_disk import small_disk  # noqa: F401 - a fixture
from tests.raw_client import RawClient

import cometmq.sync
from cometmq.client.extensions.staging.sync import PublishState, StagedPart, Staging
from cometmq.errors import CometError, ServiceNotAvailable

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


def life_of(store: Path, flush: str) -> Life:
    """One life of the broker."""
    return Life(
        store,
        "staging.publisher",
        {"flushDiskType": flush, "defaultTopicQueueNums": 3, "cleanFileForciblyEnable": "false"},
    )


def batches_of(address: str) -> Counter[int]:
    """How many messages of each batch readers see; none twice, and no queue with a hole.

    Queues are read one after the other, so a batch may appear in between; but each queue has all
    of its share of it, or nothing.
    """
    bodies: list[bytes] = []
    counts: Counter[int] = Counter()
    with RawClient(address, timeout_s=60) as client:
        for queue_id in range(QUEUE_COUNT):
            bodies += [bytes(one.body) for one in read_queue(client, TOPIC, queue_id)]
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
        life = life_of(store, flush)
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
                    life.check_killed()
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
    life = life_of(store, flush)
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
        life = life_of(store, flush)
        assert set(batches_of(life.address).values()) == {ROWS}
    finally:
        life.close()
