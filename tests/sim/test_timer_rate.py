"""Many timers due at one instant are delivered at the broker's rate, on virtual time."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from cometmq.client.admin.admin import Admin
from cometmq.client.message.message import ReceivedMessage
from cometmq.model import Message
from cometmq.testing.sim_cluster import SimCluster, run_seed

RATE, COUNT = 100, 400


def delivered(rate: int) -> tuple[list[float], list[dict[str, str]]]:
    """When messages of one due time came, in seconds, and what the broker told meanwhile."""

    async def main(cluster: SimCluster) -> tuple[list[float], list[dict[str, str]]]:
        came: list[float] = []
        told: list[dict[str, str]] = []

        async def handle(message: ReceivedMessage) -> None:
            came.append(cluster.world.loop.time())

        async with (
            Admin(**cluster.options("admin")) as admin,
            cluster.producer("shop") as producer,
            cluster.consumer("readers", {"Campaign": "*"}, handle),
        ):
            due_ms = cluster.world.clock.now_ms() + 10_000
            for number in range(COUNT):
                body = b"%d" % number
                await producer.send(Message("Campaign", body, deliver_time_ms=due_ms))
            while len(came) < COUNT:
                await asyncio.sleep(0.5)
                told.append(await admin.broker_runtime_info(cluster.brokers[0]))
            await asyncio.sleep(3)
            told.append(await admin.broker_runtime_info(cluster.brokers[0]))
        return came, told

    return run_seed(main, 1, settings={"timer_deliver_rate": rate}).value


def test_the_rate_spreads_them_and_the_lag_is_shown() -> None:
    """In every second at most the rate, and hardly less; without a rate all come at once."""
    came, told = delivered(RATE)
    assert COUNT / RATE * 0.95 <= came[-1] - came[0] <= COUNT / RATE * 1.2
    for first, later in zip(came, came[RATE + 5 :], strict=False):
        assert later - first >= 1
    assert all(first <= later for first, later in pairwise(came))
    assert max(int(table["timerOverdueNum"]) for table in told) > RATE
    assert max(int(table["timerLagMs"]) for table in told) >= 2_000
    assert {table["timerDeliverRate"] for table in told} == {str(RATE)}
    assert (told[-1]["timerOverdueNum"], told[-1]["timerCongestNum"]) == ("0", "0")
    came, _ = delivered(0)
    assert came[-1] - came[0] < 1
