"""What goes wrong with the machine of the delay gateway, kind by kind.

Job: faults of its process and its disk, beside those of `faults`, which hit brokers and the
network.  Must not: do anything in a simulation without a gateway.

Its private store flushes before it answers, so its power may be cut whatever the brokers do.
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
"""The machine's name."""
_STEPS: Final = ("taken", "held", "due", "brought")


def _crash(kind: str, *, power_cut: bool) -> Fault:
    async def crash(cluster: Cluster, chance: random.Random) -> None:
        node = cluster.world.nodes.get(GATEWAY)
        if node is not None and node.is_alive:
            cluster.injected[kind] += 1
            node.crash(power_cut=power_cut)

    return crash


def _step(kind: str, *, power_cut: bool) -> Fault:
    """It ends between two places of a message, or at an operation of its disk."""

    async def step(cluster: Cluster, chance: random.Random) -> None:
        node = cluster.world.nodes.get(GATEWAY)
        if node is None:
            return
        disk = sorted(name for name in cluster.hooks.hits if name.startswith("disk."))
        name = f"{GATEWAY}.{chance.choice(_STEPS)}"
        if disk and chance.random() < 0.4:
            name = chance.choice(disk)

        def told(name: str) -> None:
            cluster.injected[kind] += 1

        cluster.hooks.arm(node, name, chance.choice([1, 1, 2, 5]), power_cut=power_cut, told=told)

    return step


async def _full(cluster: Cluster, chance: random.Random) -> None:
    """Its disk takes no byte more for a while."""
    node = cluster.world.nodes.get(GATEWAY)
    if node is None:
        return
    cluster.injected["gateway-full-disk"] += 1
    node.disk.capacity_bytes = node.disk.allocated_bytes()
    await asyncio.sleep(chance.uniform(0.5, 4))
    node.disk.capacity_bytes = 1 << 40


async def _part(cluster: Cluster, chance: random.Random) -> None:
    """It and a broker do not hear each other for a while."""
    node = cluster.world.nodes.get(GATEWAY)
    if node is None:
        return
    other = chance.choice(cluster.brokers).node
    cluster.injected["gateway-part"] += 1
    cluster.world.network.part(node.address, other.address)
    await asyncio.sleep(chance.uniform(0.5, 5))
    cluster.world.network.heal()


GATEWAY_FAULTS: Final[dict[str, Fault]] = {
    "gateway-full-disk": _full,
    "gateway-kill": _crash("gateway-kill", power_cut=False),
    "gateway-part": _part,
    "gateway-power": _crash("gateway-power", power_cut=True),
    "gateway-step-kill": _step("gateway-step-kill", power_cut=False),
    "gateway-step-power": _step("gateway-step-power", power_cut=True),
}
