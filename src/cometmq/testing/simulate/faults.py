"""The kinds of faults of a simulated cluster.

Each kind is a coroutine of the world: ``async def kind(cluster, chance)``.  It injects one fault,
ends it if the fault has an end, and counts it when it has taken effect.  The cluster restarts
crashed machines.  A fault that waits for a step that is never reached does not count.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from cometmq.errors import CometError
from cometmq.testing.loop import current_lifetime
from cometmq.testing.network import NetworkFaults
from cometmq.testing.simulate.expiry import drop_consumed_files
from cometmq.testing.simulate.gateway_faults import GATEWAY_FAULTS
from cometmq.testing.simulate.hooks import SERVICE_STEPS
from cometmq.testing.simulate.plan import POWER_KINDS
from cometmq.testing.simulation import NodeGone
from cometmq.testing.workers import SimWorkers

if TYPE_CHECKING:
    from cometmq.testing.simulate.cluster import Cluster
    from cometmq.testing.simulate.plan import FaultAt

__all__ = ["FAULTS", "inject", "make_peace"]

Fault = Callable[["Cluster", random.Random], Awaitable[None]]

CALM: Final = NetworkFaults()


async def _name_server_kill(cluster: Cluster, chance: random.Random) -> None:
    """A name server crashes and forgets every route."""
    node = cluster.name_servers[0]
    if len(cluster.name_servers) > 1:
        node = chance.choice(cluster.name_servers)
    if node.is_alive:
        cluster.injected["name-server-kill"] += 1
        node.crash(power_cut=chance.random() < 0.5)


async def _name_server_away(cluster: Cluster, chance: random.Random) -> None:
    """A name server crashes and restarts much later; without others nobody learns routes."""
    node = chance.choice(cluster.name_servers)
    if node.is_alive:
        cluster.injected["name-server-away"] += 1
        node.crash(power_cut=False)
        cluster.keep_down(node, chance.uniform(4, 40))


async def _client_kill(cluster: Cluster, chance: random.Random) -> None:
    """A machine with producers and consumers crashes, with or without a power cut."""
    node = chance.choice(cluster.clients)
    if node.is_alive:
        cluster.injected["client-kill"] += 1
        node.crash(power_cut=chance.random() < 0.5)


async def _silent_power(cluster: Cluster, chance: random.Random) -> None:
    """A machine loses power, and nobody hears of it: no connection to it is reset."""
    nodes = list(cluster.clients)
    if cluster.plan.flush == "SYNC_FLUSH":
        nodes += [part.node for part in cluster.brokers]
    node = chance.choice(nodes)
    if node.is_alive:
        cluster.injected["silent-power"] += 1
        node.crash(power_cut=True, is_silent=True)


def _crash(kind: str, *, power_cut: bool) -> Fault:
    async def crash(cluster: Cluster, chance: random.Random) -> None:
        part = chance.choice(cluster.brokers)
        if part.node.is_alive:
            cluster.injected[kind] += 1
            part.node.crash(power_cut=power_cut)

    return crash


async def _bit_rot(cluster: Cluster, chance: random.Random) -> None:
    """The disk of a broker changes the body of a message."""
    part = chance.choice(cluster.brokers)
    # After a failed sync the page cache proves nothing either.
    may_lose_power = any(
        fault.kind in {*POWER_KINDS, "silent-power"} or "sync-failure" in fault.kind
        for fault in cluster.plan.faults
    )
    for _ in range(60):
        if part.spoil(chance, may_lose_power=may_lose_power):
            cluster.injected["bit-rot"] += 1
            return
        await asyncio.sleep(0.1)


async def _queue_rot(cluster: Cluster, chance: random.Random) -> None:
    """The disk of a broker changes where a unit of a queue leads."""
    part = chance.choice(cluster.brokers)
    for _ in range(60):
        if part.spoil_unit(chance):
            cluster.injected["queue-rot"] += 1
            return
        await asyncio.sleep(0.1)


async def _index_rot(cluster: Cluster, chance: random.Random) -> None:
    """The disk of a broker changes an entry of the index."""
    part = chance.choice(cluster.brokers)
    for _ in range(60):
        if part.spoil_entry(chance):
            cluster.injected["index-rot"] += 1
            return
        await asyncio.sleep(0.1)


async def _blackout(cluster: Cluster, chance: random.Random) -> None:
    """All machines lose power at once, so no client remembers what is lost."""
    cluster.injected["blackout"] += 1
    for node in cluster.world.nodes.values():
        node.crash(power_cut=True)


async def _broker_restart(cluster: Cluster, chance: random.Random) -> None:
    """An operator stops a broker in order and starts it again."""
    part = chance.choice(cluster.brokers)
    broker = part.broker
    if broker is None or not part.node.is_alive:
        return
    cluster.injected["broker-restart"] += 1
    part.broker = None
    services = broker.services
    try:
        await part.node.run(broker.stop)
    except NodeGone:
        return
    except (CometError, OSError) as error:
        cluster.world.record("stop failed", repr(error), node=part.name)
    else:
        part.check_saved(services)
    part.node.crash(power_cut=False)


def _step(kind: str, *, power_cut: bool) -> Fault:
    """A broker crashes at one of its named steps; all steps are equally likely."""

    async def step(cluster: Cluster, chance: random.Random) -> None:
        part = chance.choice(cluster.brokers)
        names = sorted(cluster.hooks.hits)
        if not names:
            return
        services = [name for name in names if not name.startswith("disk.")]
        name = chance.choice(services if services and chance.random() < 0.4 else names)

        def on_crash(name: str) -> None:
            cluster.injected[kind] += 1

        hits = chance.choice([1, 1, 2, 3, 5, 9])
        cluster.hooks.arm(part.node, name, hits, power_cut=power_cut, on_crash=on_crash)

    return step


async def _rare_step(cluster: Cluster, chance: random.Random) -> None:
    """A broker crashes at one of the steps that were reached least often so far."""
    part = chance.choice(cluster.brokers)
    names = sorted(cluster.hooks.hits, key=lambda name: (cluster.hooks.hits[name], name))
    if not names:
        return

    def on_crash(name: str) -> None:
        cluster.injected["step-rare"] += 1

    name = chance.choice(names[: max(1, len(names) // 2)])
    cluster.hooks.arm(part.node, name, 1, power_cut=False, on_crash=on_crash)


async def _copy_kill(cluster: Cluster, chance: random.Random) -> None:
    """A broker is killed while it copies records into its log, so that one is there in part."""
    part = chance.choice(cluster.brokers)

    def on_crash(name: str) -> None:
        cluster.injected["copy-kill"] += 1

    hits = chance.choice([1, 2, 4])
    cluster.hooks.arm(part.node, "disk.write.commitlog", hits, power_cut=False, on_crash=on_crash)


async def _long_part(cluster: Cluster, chance: random.Random) -> None:
    """A client is separated from a broker for longer than a short life of its locks."""
    client, broker = chance.choice(cluster.clients), chance.choice(cluster.brokers).node
    cluster.injected["long-part"] += 1
    cluster.world.network.part(client.address, broker.address)
    await asyncio.sleep(chance.uniform(4, 12))
    cluster.world.network.heal(client.address, broker.address)


async def _part(cluster: Cluster, chance: random.Random) -> None:
    """A partition separates two machines, at times in one direction; connections stay open."""
    first, second = chance.sample(list(cluster.world.nodes.values()), 2)
    cluster.injected["part"] += 1
    one_way = chance.random() < 0.3
    cluster.world.network.part(first.address, second.address, one_way=one_way)
    await asyncio.sleep(chance.uniform(0.1, 4))
    cluster.world.network.heal(first.address, second.address)


async def _island(cluster: Cluster, chance: random.Random) -> None:
    """A machine is separated from all others, at times in one direction, and healed one by one."""
    node = chance.choice(list(cluster.world.nodes.values()))
    network = cluster.world.network
    others = [other for other in cluster.world.nodes.values() if other is not node]
    chance.shuffle(others)
    cluster.injected["island"] += 1
    one_way = chance.random() < 0.4
    for other in others:
        first, second = (node, other) if chance.random() < 0.5 else (other, node)
        network.part(first.address, second.address, one_way=one_way)
    await asyncio.sleep(chance.uniform(0.5, 6))
    for other in others:
        network.heal(node.address, other.address)
        await asyncio.sleep(chance.uniform(0, 3))


async def _pause(cluster: Cluster, chance: random.Random) -> None:
    """A whole machine stands still, as a virtual one may; its connections stay open."""
    node = chance.choice(list(cluster.world.nodes.values()))
    if node.is_alive:
        cluster.injected["pause"] += 1
        await node.pause(chance.choice([0.2, 1.0, 4.0, 8.0]))


async def _clock_jump(cluster: Cluster, chance: random.Random) -> None:
    """The wall clock of a machine jumps, by less than half of what locks leave to spare."""
    node = chance.choice([*cluster.clients, *(part.node for part in cluster.brokers)])
    cluster.injected["clock-jump"] += 1
    node.clock.skew_ms = chance.randint(-1_400, 1_400)


async def _clock_drift(cluster: Cluster, chance: random.Random) -> None:
    """The wall clock of a machine runs faster or slower for a while, by up to a tenth."""
    node = chance.choice([*cluster.clients, *(part.node for part in cluster.brokers)])
    cluster.injected["clock-drift"] += 1
    node.clock.drift = chance.uniform(-0.1, 0.1)
    await asyncio.sleep(chance.uniform(1, 5))
    node.clock.drift = 0.0


async def _other_sync_failure(cluster: Cluster, chance: random.Random) -> None:
    """A sync of a file fails that is not the log's: of a queue, the index, timers or a table."""
    disk = chance.choice(cluster.brokers).node.disk
    part = chance.choice(["consumequeue", "index", "timerlog", "config", "checkpoint"])
    operation = "write_atomic.sync" if part in ("config", "checkpoint") else "sync"

    def noted() -> None:
        cluster.injected["other-sync-failure"] += 1

    disk.fail_sync(path_contains=part, operation=operation, on_failure=noted)
    await asyncio.sleep(chance.uniform(1, 3))


async def _unreadable(cluster: Cluster, chance: random.Random) -> None:
    """Blocks of a broker's files cannot be read for a moment."""
    part = chance.choice(cluster.brokers)
    life = part.node.lifetime
    until_s = cluster.world.loop.time() + chance.uniform(0.1, 1)

    def fail() -> None:
        # The checkers read from the same disk, and shall see what is on it.
        if current_lifetime() is life and cluster.world.loop.time() < until_s:
            cluster.injected["unreadable"] += 1
            raise OSError(errno.EIO, "Input/output error")

    for _ in range(chance.choice([1, 3, 9])):
        part.node.disk.at("read", action=fail, path_contains=chance.choice(["commitlog", "queue"]))
        await asyncio.sleep(0.05)


async def _cuts(cluster: Cluster, chance: random.Random) -> None:
    """Two deliveries in a hundred reset their connection, and some connections are refused."""
    faults = cluster.world.network.faults
    cluster.injected["cuts"] += 1
    faults.cut_chance, faults.connect_refused_chance = 0.02, 0.2
    await asyncio.sleep(chance.uniform(0.3, 2))
    faults.cut_chance, faults.connect_refused_chance = 0.0, 0.0


async def _lost_answers(cluster: Cluster, chance: random.Random) -> None:
    """Servers do what is asked, and a third of what they answer resets the connection instead."""
    faults = cluster.world.network.faults
    cluster.injected["lost-answers"] += 1
    faults.answer_cut_chance = 0.3
    await asyncio.sleep(chance.uniform(0.3, 2))
    faults.answer_cut_chance = 0.0


async def _slow_net(cluster: Cluster, chance: random.Random) -> None:
    """Deliveries take up to 0.4 s, so those of different connections overtake each other."""
    faults = cluster.world.network.faults
    cluster.injected["slow-net"] += 1
    faults.delay_ms_max, faults.split_chance = 400.0, 0.6
    await asyncio.sleep(chance.uniform(0.3, 3))
    faults.delay_ms_max, faults.split_chance = CALM.delay_ms_max, CALM.split_chance


async def _half_close(cluster: Cluster, chance: random.Random) -> None:
    """One direction of some connections ends, the other continues."""
    host = cluster.world.network.host(chance.choice(list(cluster.world.nodes.values())).address)
    for transport in list(host.transports):
        if chance.random() < 0.5:
            cluster.injected["half-close"] += 1
            transport.half_close()


async def _slow_disk(cluster: Cluster, chance: random.Random) -> None:
    """Work of a broker's workers, mainly syncs, takes up to 1.5 s."""
    node = chance.choice(cluster.brokers).node
    workers = node.environment().workers
    assert isinstance(workers, SimWorkers)
    cluster.injected["slow-disk"] += 1
    usual_ms = workers.delay_ms_max
    workers.delay_ms_max = 1_500.0
    await asyncio.sleep(chance.uniform(0.5, 3))
    workers.delay_ms_max = usual_ms


async def _slow_power(cluster: Cluster, chance: random.Random) -> None:
    """Syncs lag, and the machine loses power with much data unsynced."""
    node = chance.choice(cluster.brokers).node
    life, workers = node.lifetime, node.environment().workers
    assert isinstance(workers, SimWorkers)
    workers.delay_ms_min, workers.delay_ms_max = 1_000.0, 2_500.0
    await asyncio.sleep(chance.uniform(0.3, 2.4))
    if node.is_alive and node.lifetime is life:
        cluster.injected["slow-power"] += 1
        node.crash(power_cut=True)


async def _full_disk(cluster: Cluster, chance: random.Random) -> None:
    """A broker's disk is full for a while."""
    node = chance.choice(cluster.brokers).node
    disk = node.disk
    cluster.injected["full-disk"] += 1
    disk.capacity_bytes = disk.allocated_bytes()
    await asyncio.sleep(chance.uniform(0.5, 4))
    disk.capacity_bytes = 1 << 40


async def _files_go(cluster: Cluster, chance: random.Random) -> None:
    """A broker deletes log files that every group has consumed, waiting messages included."""
    part = chance.choice(cluster.brokers)
    for _ in range(chance.randint(1, 12)):
        await asyncio.sleep(0.05)
        try:
            cluster.injected["files-go"] += await drop_consumed_files(part, 0.25)
        except NodeGone:
            return


async def _files_go_early(cluster: Cluster, chance: random.Random) -> None:
    """A broker deletes files in which messages wait for their time, and may end while it does."""
    part = chance.choice(cluster.brokers)
    steps = sorted(step for step in SERVICE_STEPS if step.startswith("retention."))

    def on_crash(name: str) -> None:
        cluster.injected["files-go-early"] += 1

    if chance.random() < 0.7:
        power_cut = cluster.plan.flush == "SYNC_FLUSH" and chance.random() < 0.5
        step = chance.choice(steps)
        cluster.hooks.arm(part.node, step, 1, power_cut=power_cut, on_crash=on_crash)
    before = cluster.hooks.hits["retention.found"]
    for _ in range(40):
        await asyncio.sleep(0.05)
        try:
            cluster.injected["files-go-early"] += await drop_consumed_files(part, 0.25)
        except NodeGone:
            continue
        if cluster.hooks.hits["retention.found"] > before:
            return


async def _sync_failure(cluster: Cluster, chance: random.Random) -> None:
    """A sync of the log fails and marks its pages clean; the cluster restarts the broker."""
    disk = chance.choice(cluster.brokers).node.disk
    disk.fail_sync(path_contains="commitlog")
    await asyncio.sleep(chance.uniform(1, 3))
    disk.forget_triggers()


FAULTS: Final[dict[str, Fault]] = {
    "bit-rot": _bit_rot,
    "blackout": _blackout,
    "broker-kill": _crash("broker-kill", power_cut=False),
    "broker-power": _crash("broker-power", power_cut=True),
    "broker-restart": _broker_restart,
    "clock-drift": _clock_drift,
    "clock-jump": _clock_jump,
    "client-kill": _client_kill,
    "copy-kill": _copy_kill,
    "cuts": _cuts,
    "files-go": _files_go,
    "files-go-early": _files_go_early,
    "full-disk": _full_disk,
    "index-rot": _index_rot,
    "island": _island,
    "half-close": _half_close,
    "long-part": _long_part,
    "lost-answers": _lost_answers,
    "name-server-away": _name_server_away,
    "name-server-kill": _name_server_kill,
    "other-sync-failure": _other_sync_failure,
    "part": _part,
    "pause": _pause,
    "queue-rot": _queue_rot,
    "silent-power": _silent_power,
    "slow-disk": _slow_disk,
    "slow-net": _slow_net,
    "slow-power": _slow_power,
    "step-kill": _step("step-kill", power_cut=False),
    "step-power": _step("step-power", power_cut=True),
    "step-rare": _rare_step,
    "sync-failure": _sync_failure,
    "unreadable": _unreadable,
    **GATEWAY_FAULTS,
}
"""Every kind of fault by its name."""


async def inject(cluster: Cluster, fault: FaultAt) -> None:
    """Wait for the time of a fault, then do it."""
    await asyncio.sleep(fault.at_ms / 1000)
    cluster.world.record("fault", fault.kind)
    await FAULTS[fault.kind](cluster, random.Random(f"{cluster.plan.seed}/{fault}"))


def make_peace(cluster: Cluster) -> None:
    """End every fault for the rest of the simulation."""
    cluster.is_peace = True
    cluster.world.record("faults end")
    cluster.hooks.disarm()
    world = cluster.world
    world.network.faults = NetworkFaults()
    world.network.heal()
    for node in world.nodes.values():
        node.disk.forget_triggers()
        node.disk.capacity_bytes = 1 << 40
        workers = node.environment().workers
        assert isinstance(workers, SimWorkers)
        workers.delay_ms_min, workers.delay_ms_max = 0.05, 3.0
