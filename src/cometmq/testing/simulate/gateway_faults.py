"""Faults of the delay gateway's machine; without a gateway they do nothing.

The gateway's private store flushes before it answers, so its power may be cut whatever flush mode
the brokers have.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cometmq.testing.simulate.cluster import Cluster

__all__ = ["GATEWAY", "GATEWAY_FAULTS"]

Fault = Callable[["Cluster", random.Random], Awaitable[None]]

GATEWAY: Final = "gateway"
"""The name of the gateway's machine."""
_STEPS: Final = ("taken", "held", "due", "brought")


def _crash(kind: str, *, power_cut: bool) -> Fault:
    async def crash(cluster: Cluster, chance: random.Random) -> None:
        node = cluster.world.nodes.get(GATEWAY)
        if node is not None and node.is_alive:
            cluster.injected[kind] += 1
            node.crash(power_cut=power_cut)

    return crash


def _step(kind: str, *, power_cut: bool) -> Fault:
    """The gateway crashes at a step of a message, or at an operation of its disk."""

    async def step(cluster: Cluster, chance: random.Random) -> None:
        node = cluster.world.nodes.get(GATEWAY)
        if node is None:
            return
        disk = sorted(name for name in cluster.hooks.hits if name.startswith("disk."))
        name = f"{GATEWAY}.{chance.choice(_STEPS)}"
        if disk and chance.random() < 0.4:
            name = chance.choice(disk)

        def on_crash(name: str) -> None:
            cluster.injected[kind] += 1

        cluster.hooks.arm(
            node, name, chance.choice([1, 1, 2, 5]), power_cut=power_cut, on_crash=on_crash
        )

    return step


async def _full(cluster: Cluster, chance: random.Random) -> None:
    """The gateway's disk is full for a while."""
    node = cluster.world.nodes.get(GATEWAY)
    if node is None:
        return
    cluster.injected["gateway-full-disk"] += 1
    node.disk.capacity_bytes = node.disk.allocated_bytes()
    await asyncio.sleep(chance.uniform(0.5, 4))
    node.disk.capacity_bytes = 1 << 40


async def _part(cluster: Cluster, chance: random.Random) -> None:
    """A partition separates the gateway from a broker for a while."""
    node = cluster.world.nodes.get(GATEWAY)
    if node is None:
        return
    other = chance.choice(cluster.brokers).node
    cluster.injected["gateway-part"] += 1
    cluster.world.network.part(node.address, other.address)
    await asyncio.sleep(chance.uniform(0.5, 5))
    cluster.world.network.heal(node.address, other.address)


GATEWAY_FAULTS: Final[dict[str, Fault]] = {
    "gateway-full-disk": _full,
    "gateway-kill": _crash("gateway-kill", power_cut=False),
    "gateway-part": _part,
    "gateway-power": _crash("gateway-power", power_cut=True),
    "gateway-step-kill": _step("gateway-step-kill", power_cut=False),
    "gateway-step-power": _step("gateway-step-power", power_cut=True),
}
