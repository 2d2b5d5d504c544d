"""Retention removes files of waiting messages, and each kind arrives once and in time."""

import asyncio

import pytest
from tests.sim.crashing import check_crash_at_step
from tests.sim.retaining import LATE_MS, TOPIC, RetentionCluster

from cometmq.testing.simulation import World, simulate

STEPS = {
    "retention.found": 1,
    "retention.prepared": 1,
    "retention.put": 75,
    "retention.portion": 2,
    "retention.appended": 1,
    "retention.flushed": 2,
    "retention.dropped": 1,
}
"""Steps of the mover, and at which of its times the broker ends there."""


async def story(cluster: RetentionCluster) -> None:
    """Store waiting messages, remove files twice, end transactions by their first positions."""
    await cluster.start()
    operator = asyncio.ensure_future(cluster.operate())
    try:
        await cluster.client.run(cluster.connect)
        await cluster.client.run(lambda: cluster.store_pending(75, 8, 5))
        await cluster.client.run(lambda: cluster.fill(3))
        # Flushed by now, so that a power cut takes nothing of it.
        await asyncio.sleep(12)
        await cluster.drop()
        await cluster.client.run(lambda: cluster.fill(2))
        await asyncio.sleep(12)
        await cluster.client.run(lambda: cluster.end(b"half 1", 8))
        await cluster.drop()
        for body, outcome in ((b"half 0", 8), (b"half 2", 12), (b"half 3", 8)):
            await cluster.client.run(lambda body=body, outcome=outcome: cluster.end(body, outcome))
        await cluster.settle()
        if operator.done():
            operator.result()
    finally:
        operator.cancel()


def test_what_waits_is_appended_again_and_arrives_in_time() -> None:
    """Waiting messages keep their properties over two removals of files and a restart."""

    async def main(world: World) -> RetentionCluster:
        cluster = RetentionCluster(world, "ASYNC_FLUSH")
        await story(cluster)
        assert cluster.broker is not None
        for message in cluster.delivered():
            due_ms = cluster.seen.due.get(bytes(message.body))
            if due_ms is not None:
                assert message.store_timestamp_ms <= due_ms + LATE_MS
                assert not message.properties.keys() & {"TIMER_MOVED_FROM", "TIMER_DUE_MS"}
                assert message.properties["REAL_TOPIC"] == TOPIC
            if bytes(message.body).startswith(b"delayed"):
                assert message.properties["DELAY"] == "2"
        halves = cluster.broker.transactions.halves
        assert len(halves) == 1
        open_one = halves.first()
        assert open_one is not None
        assert (open_one.check_count, open_one.first_offset) == (0, 4)
        assert cluster.broker.timers.pending_count() == 0
        return cluster

    cluster = simulate(3, main).value
    assert cluster.seen.hits["retention.put"] > 2 * 75
    assert cluster.seen.hits["retention.portion"] >= 8


@pytest.mark.parametrize(("flush", "power_cut"), [("ASYNC_FLUSH", True), ("SYNC_FLUSH", False)])
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_loses_and_repeats_nothing(
    step: str, flush: str, power_cut: bool
) -> None:
    """A crash at any step loses and repeats nothing, with or without the file afterwards."""

    check_crash_at_step(
        RetentionCluster, story, step, STEPS[step], seed=5, flush=flush, power_cut=power_cut
    )
