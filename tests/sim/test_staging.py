"""Staged batches on virtual time: crashes at every step of a publication, and by a seed.

After every crash each batch is wholly there once, or wholly absent until it is published again;
never twice, and readers never see a part of it.  `SEED=` chooses one seed.
"""

import asyncio
import os

import pytest
from tests.sim.crashing import QUEUE_COUNT, check_crash_at_step, crash_anywhere, read_visible
from tests.sim.staging import ROWS, TOPIC, StagedCluster

from cometmq.client.extensions.staging.calls import PublishState
from cometmq.codec.consume_queue import CqUnit
from cometmq.model.names import STAGED_DECISION_TOPIC, STAGED_TOPIC, TIMER_TOPIC
from cometmq.store.message_store import MessageStore
from cometmq.store.offline.verify import verify_store
from cometmq.testing.simulation import World, simulate

SEEDS = [int(os.environ["SEED"])] if "SEED" in os.environ else [1, 2, 3, 4, 5, 6]
BATCHES = 2
FULL_BATCHES = 5
STEPS = {
    "staged": 7,
    "before decision": 2,
    "after decision": 2,
    "slice announced": 9,
    "slice appended": 9,
    "before done": 3,
    "after done": 3,
    "before ledger file": 3,
    "before answer": 3,
}
"""Steps of a publication, and at which of its times the broker ends there."""
FLUSH = ["SYNC_FLUSH", "ASYNC_FLUSH"]
LIMIT_S = 60.0


async def scenario(cluster: StagedCluster, cutter: asyncio.Future[None] | None = None) -> None:
    """Run two sinks and ordinary messages at once until everything is published."""
    await cluster.start()
    operator = asyncio.ensure_future(cluster.operate())
    client = cluster.client
    work = [
        client.spawn(lambda: cluster.drive("sink-a", BATCHES)),
        client.spawn(lambda: cluster.drive("sink-b", BATCHES)),
        client.spawn(lambda: cluster.send(60)),
    ]
    await cluster.until_done(operator, asyncio.gather(*work))
    if cutter is not None:
        cutter.cancel()
    cluster.node.disk.forget_triggers()
    await asyncio.sleep(0 if cluster.broker else 3)
    # The operator has been back for a while; now the pace at which files are written.
    operator.cancel()
    await asyncio.sleep(6)
    cluster.look()
    check_end(cluster)


def check_end(cluster: StagedCluster) -> None:
    """Check that each batch is published once and that nothing staged remains."""
    assert cluster.broker is not None
    staging = cluster.broker.staging
    assert len(cluster.seen.published) == 2 * BATCHES
    entries = staging.ledger.sinks
    assert {sink: entry.batch_id for sink, entry in entries.items()} == {
        "sink-a": BATCHES - 1,
        "sink-b": BATCHES - 1,
    }
    assert all(entry.is_complete for entry in entries.values())
    assert not staging.publisher.is_busy
    store = cluster.broker.state.store
    bodies = [body for q in range(QUEUE_COUNT) for body in read_visible(store, TOPIC, q)]
    assert sum(body.startswith(b"batch/") for body in bodies) == 2 * BATCHES * ROWS
    for queue_id in range(QUEUE_COUNT):
        assert store.max_queue_offset(TOPIC, queue_id) == store.end_of_queue(TOPIC, queue_id)


async def check_rebuilt(cluster: StagedCluster) -> None:
    """Check that queues rebuilt from the log alone equal those of the broker."""
    broker, node = cluster.broker, cluster.node
    assert broker is not None
    config = broker.state.store.config

    async def units() -> dict[tuple[str, int], list[CqUnit]]:
        env = node.environment()
        store = MessageStore(config, node.disk, env.workers, env.clock.now_ms)
        store.load()
        found = {
            (topic, queue_id): store.units(topic, queue_id, 0, 1 << 20)
            for topic in store.topics()
            for queue_id in store.queues(topic)
        }
        store.close()
        return found

    await node.run(broker.stop)
    before = await node.run(units)
    report = verify_store(node.disk, "/store")
    assert report.is_sound, [str(finding) for finding in report.findings]
    node.disk.remove_tree("/store/consumequeue")
    after = await node.run(units)
    assert {key: found for key, found in after.items() if found} == before
    assert {TOPIC, STAGED_TOPIC, STAGED_DECISION_TOPIC} <= {topic for topic, _ in before}


@pytest.mark.parametrize(("flush", "power_cut"), [("ASYNC_FLUSH", False), ("SYNC_FLUSH", True)])
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_leaves_whole_batches(step: str, power_cut: bool, flush: str) -> None:
    """Readers see all or nothing of each batch, before and after the restart."""

    async def story(cluster: StagedCluster) -> None:
        await scenario(cluster)
        await check_rebuilt(cluster)

    check_crash_at_step(
        StagedCluster, story, step, STEPS[step], seed=7, flush=flush, power_cut=power_cut
    )


@pytest.mark.parametrize("flush", FLUSH)
@pytest.mark.parametrize("step", ["slice announced", "slice appended", "after done"])
def test_a_crash_leaves_messages_with_a_time_once(step: str, flush: str) -> None:
    """Half of the rows have a delay of up to a second, and each comes once and on time."""

    async def story(cluster: StagedCluster) -> None:
        cluster.timed_rows = range(1, ROWS, 2)
        await scenario(cluster)
        assert cluster.broker is not None
        waited = cluster.broker.state.store.end_of_queue(TIMER_TOPIC, 0)
        assert waited >= len(cluster.due_ms) // 2, "most rows waited for nothing"
        await check_rebuilt(cluster)

    check_crash_at_step(
        StagedCluster,
        story,
        step,
        STEPS[step],
        seed=13,
        flush=flush,
        power_cut=flush == "SYNC_FLUSH",
    )


@pytest.mark.parametrize("flush", FLUSH)
@pytest.mark.parametrize("seed", SEEDS)
def test_crashes_at_any_disk_operation(seed: int, flush: str) -> None:
    """Several crashes in one run, wherever the seed puts them, on a network that splits."""

    cluster = crash_anywhere(StagedCluster, scenario, seed=seed, flush=flush)
    assert cluster.seen.looks > 10


def test_the_seed_repeats_itself() -> None:
    """Two runs of one seed do the same, byte for byte."""

    async def main(world: World) -> int:
        cluster = StagedCluster(world, "ASYNC_FLUSH")
        await scenario(cluster)
        return cluster.seen.looks

    first, second = simulate(3, main), simulate(3, main)
    assert first.digest == second.digest


def test_a_crash_before_the_ledger_file_is_replaced() -> None:
    """The old ledger file and the log give the state of the file that was not written."""

    async def main(world: World) -> StagedCluster:
        cluster = StagedCluster(world, "SYNC_FLUSH")
        await cluster.start()
        cluster.node.crash_at("write_atomic", 2, path_contains="cometmqStaging", power_cut=True)
        operator = asyncio.ensure_future(cluster.operate())
        for sink in ("sink-a", "sink-b"):
            work = cluster.client.spawn(lambda sink=sink: cluster.drive(sink, BATCHES))
            await cluster.until_done(operator, work)
        await asyncio.sleep(3)
        operator.cancel()
        cluster.look()
        check_end(cluster)
        return cluster

    cluster = simulate(5, main).value
    assert cluster.seen.crashes == 1


@pytest.mark.parametrize("flush", FLUSH)
def test_a_full_disk_refuses_and_nothing_is_seen_in_part(flush: str) -> None:
    """On a full disk staging and publishing stop with the measured cause, and go on later."""

    async def main(world: World) -> StagedCluster:
        cluster = StagedCluster(world, flush, capacity_bytes=300_000)
        cluster.body_bytes = 2_000
        await cluster.start()
        operator = asyncio.ensure_future(cluster.operate())
        work = cluster.client.spawn(lambda: cluster.drive("sink-a", FULL_BATCHES))
        async with asyncio.timeout(LIMIT_S):
            while not any("free" in failure for failure in cluster.seen.failures):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        refused = list(cluster.seen.failures)
        assert any("service not available now" in failure for failure in refused), refused
        cluster.look()
        cluster.node.disk.capacity_bytes = 1 << 40
        await cluster.until_done(operator, work)
        await asyncio.sleep(3)
        operator.cancel()
        cluster.look()
        return cluster

    cluster = simulate(1, main).value
    assert cluster.seen.crashes == 0
    published = cluster.seen.published
    assert len(published) == FULL_BATCHES
    assert set(published.values()) <= {PublishState.PUBLISHED, PublishState.ALREADY}
