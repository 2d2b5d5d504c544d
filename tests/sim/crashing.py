"""A cluster on virtual time whose broker crashes at named steps or disk operations.

The tests of each kind of message add the kind's steps and its invariant.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.broker import Broker
from cometmq.codec.stored_message import decode_messages
from cometmq.namesrv import NameServer, NameServerConfig
from cometmq.store.base.results import GetResult, GetStatus
from cometmq.store.message_store import MessageStore
from cometmq.testing.loop import NodeCrashed
from cometmq.testing.network import NetworkFaults
from cometmq.testing.simulation import Node, NodeGone, World, simulate

QUEUE_COUNT = 3
NAME_SERVER_PORT, BROKER_PORT = 9876, 10911


ClusterT = TypeVar("ClusterT", bound="CrashingCluster")


@dataclass
class Happened:
    """What happened to the broker: its crashes and restarts."""

    crashes: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    looks: int = 0


class CrashingCluster:
    """One name server, one broker and one client; the broker restarts after each crash."""

    settings: ClassVar[dict[str, Any]] = {}
    """Of the broker, beside those every test has."""
    seen: Happened

    def __init__(self, world: World, flush: str, *, capacity_bytes: int = 1 << 40) -> None:
        self.world = world
        self.flush = flush
        self.name_server = world.node("name-server")
        self.node: Node = world.node("broker", capacity_bytes=capacity_bytes)
        self.client = world.node("client")
        self.broker: Broker | None = None
        self.crash_point = ""
        self.crash_hit = 1
        self.is_power_cut = False

    def tell_steps(self, broker: Broker) -> None:
        """Make the broker call `at` at its named steps."""
        raise NotImplementedError

    def look(self) -> None:
        """Check the invariant."""
        raise NotImplementedError

    def reached(self) -> None:
        """Note that the broker reached a step and lives on."""

    @property
    def name_server_address(self) -> str:
        """Return the address at which clients ask for routes."""
        return f"{self.name_server.address}:{NAME_SERVER_PORT}"

    def config(self) -> BrokerConfig:
        """Return settings with small files, so that the data spreads over several."""
        return BrokerConfig(
            scrub_bytes_per_second=0,
            broker_name="broker-a",
            broker_ip1=self.node.address,
            listen_port=BROKER_PORT,
            namesrv_addr=self.name_server_address,
            store_path_root_dir="/store",
            flush_disk_type=self.flush,  # type: ignore[arg-type]
            default_topic_queue_nums=QUEUE_COUNT,
            mapped_file_size_commit_log=32 * 1024,
            mapped_file_size_consume_queue=20 * 50,
            max_hash_slot_num=100,
            max_index_num=400,
            **self.settings,
        )

    async def start(self) -> None:
        """Start both servers."""
        config = NameServerConfig(listen_port=NAME_SERVER_PORT, kv_config_path="/ns/kv.json")
        node = self.name_server
        await node.run(lambda: NameServer(config, node.environment(), node.disk).start())
        await self.start_broker()

    async def start_broker(self) -> None:
        """Start the broker on its disk's contents, and check the invariant before any client."""
        broker = Broker(self.config(), self.node.environment(), self.node.disk)

        async def begin() -> None:
            await broker.start()
            self.tell_steps(broker)

        try:
            await self.node.run(begin)
        except NodeGone:
            # It has crashed while it started; the operator sees that.
            return
        self.broker = broker
        self.look()

    def at(self, name: str) -> None:
        """Crash at a named step if the plan says so."""
        self.seen.hits[name] += 1
        self.reached()
        if name == self.crash_point and self.seen.hits[name] == self.crash_hit:
            self.crash()

    def crash(self) -> None:
        """Crash the broker in the middle of its code."""
        self.broker = None
        self.node.crash(power_cut=self.is_power_cut)
        raise NodeCrashed

    async def operate(self) -> None:
        """Restart the broker some time after each crash, and check the invariant often."""
        while True:
            await asyncio.sleep(0.05)
            if self.node.is_alive:
                self.look()
                continue
            self.seen.crashes += 1
            self.broker = None
            await asyncio.sleep(self.world.chance.uniform(0.1, 2))
            self.node.restart()
            await self.start_broker()


def check_crash_at_step(
    make: Callable[[World, str], ClusterT],
    story: Callable[[ClusterT], Awaitable[None]],
    step: str,
    hit: int,
    *,
    seed: int,
    flush: str,
    power_cut: bool,
) -> ClusterT:
    """Crash the broker once, at a step's `hit`-th time; return the cluster afterwards."""

    async def main(world: World) -> ClusterT:
        cluster = make(world, flush)
        cluster.crash_point, cluster.crash_hit = step, hit
        cluster.is_power_cut = power_cut
        await story(cluster)
        return cluster

    cluster = simulate(seed, main).value
    assert cluster.seen.hits[step] >= hit, "the step was not reached"
    assert cluster.seen.crashes == 1
    assert cluster.seen.looks > 10
    return cluster


def crash_anywhere(
    make: Callable[[World, str], ClusterT],
    story: Callable[[ClusterT, asyncio.Future[None]], Awaitable[None]],
    *,
    seed: int,
    flush: str,
) -> ClusterT:
    """Crash the broker at disk operations on a network that splits; return the cluster.

    `story` gets the condition that ends it.
    """

    async def main(world: World) -> ClusterT:
        cluster = make(world, flush)
        chance = random.Random(f"{seed}/crashes")
        cluster.is_power_cut = chance.random() < 0.5
        await story(cluster, asyncio.ensure_future(cut_at_random(cluster, chance)))
        return cluster

    faults = NetworkFaults(split_chance=0.3, delay_ms_max=5)
    return simulate(seed, main, faults=faults).value


async def cut_at_random(cluster: CrashingCluster, chance: random.Random) -> None:
    """Crash the broker six times, each time at one of its next disk operations."""
    for _ in range(6):
        operation = chance.choice(["sync", "write", "write_atomic", "create", "allocate"])
        if cluster.node.is_alive:
            hit = chance.randrange(1, 12)
            cluster.node.crash_at(operation, hit, power_cut=cluster.is_power_cut)
        await asyncio.sleep(chance.uniform(0.2, 2.5))


def read_visible(store: MessageStore, topic: str, queue_id: int) -> list[bytes]:
    """Return every visible body of a queue, whose offsets must have no gap."""
    bodies: list[bytes] = []
    while True:
        found = store.get(topic, queue_id, len(bodies), 1000, allow_cold=True)
        assert isinstance(found, GetResult)
        if found.status is not GetStatus.FOUND:
            assert len(bodies) == store.max_queue_offset(topic, queue_id)
            return bodies
        for message in decode_messages(b"".join(found.chunks)):
            assert message.queue_offset == len(bodies), f"{topic}/{queue_id} has a hole"
            assert "STAGED_TOKEN" not in message.properties
            bodies.append(bytes(message.body))
