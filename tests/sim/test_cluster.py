"""Name server, broker, producers and a push consumer on virtual time, with a power cut.

The broker flushes synchronously.  In mid-traffic its machine loses power at a disk operation
that the seed chooses, and comes back seconds later on what the disk kept.  Afterwards every
acknowledged message is in its queue at its offset exactly once, no queue has a hole, and the
consumer has seen all of them.  The same seed gives the same trace, byte for byte.
"""

import asyncio
import os
import random
import subprocess
import sys
from dataclasses import dataclass, field

import pytest
from tests.request_fields import pull_fields

from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.broker import Broker
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.codec.stored_message import decode_messages
from cometmq.errors import CometError
from cometmq.model import Message, SendStatus
from cometmq.namesrv import NameServer, NameServerConfig
from cometmq.net.channel import Channel
from cometmq.testing.network import NetworkFaults
from cometmq.testing.simulation import Node, NodeGone, World, simulate
from cometmq.wire.command.command import RemotingCommand

SEEDS = [int(os.environ["SEED"])] if "SEED" in os.environ else [1, 2, 3, 4]
TOPIC = "SimTopic"
MESSAGE_COUNT = 120
QUEUE_COUNT = 4
PRODUCER_COUNT = 3
NAME_SERVER_PORT, BROKER_PORT = 9876, 10911


@dataclass
class Result:
    """What happened, for the checks and for comparing two runs."""

    acknowledged: dict[str, tuple[int, int]] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    consumed: list[str] = field(default_factory=list)
    queues: dict[int, list[str]] = field(default_factory=dict)
    crashes: int = 0


class Cluster:
    """One simulated cluster of a name server, a broker and clients."""

    def __init__(self, world: World, flush: str) -> None:
        self.world = world
        self.flush = flush
        self.name_server = world.node("name-server")
        self.broker = world.node("broker")
        self.client = world.node("client")
        self.result = Result()
        self.topic_exists = asyncio.Event()

    async def start_name_server(self) -> None:
        """Start it on its node."""
        node = self.name_server
        config = NameServerConfig(listen_port=NAME_SERVER_PORT, kv_config_path="/ns/kv.json")
        await node.run(lambda: NameServer(config, node.environment(), node.disk).start())

    async def start_broker(self) -> Broker:
        """Start it on its node, on whatever its disk holds."""
        node = self.broker
        config = BrokerConfig(
            scrub_bytes_per_second=0,
            broker_name="broker-a",
            broker_ip1=node.address,
            listen_port=BROKER_PORT,
            namesrv_addr=f"{self.name_server.address}:{NAME_SERVER_PORT}",
            store_path_root_dir="/store",
            flush_disk_type=self.flush,  # type: ignore[arg-type]
            default_topic_queue_nums=QUEUE_COUNT,
            mapped_file_size_commit_log=64 * 1024,
            mapped_file_size_consume_queue=20 * 100,
            max_hash_slot_num=100,
            max_index_num=400,
        )
        broker = Broker(config, node.environment(), node.disk)
        await node.run(broker.start)
        return broker

    async def keep_broker_alive(self) -> None:
        """Restart the broker some seconds after each power cut."""
        while True:
            await asyncio.sleep(0.5)
            if not self.broker.is_alive:
                self.result.crashes += 1
                self.world.record("down", self.result.crashes)
                await asyncio.sleep(self.world.chance.uniform(0.1, 5))
                self.broker.restart()
                await self.start_broker()
                self.world.record("up", self.result.crashes)

    @property
    def name_server_address(self) -> str:
        """Where clients ask for routes."""
        return f"{self.name_server.address}:{NAME_SERVER_PORT}"

    async def produce(self, number: int, chance: random.Random) -> None:
        """Send until every message is acknowledged; a new try is a new message."""
        node = self.client
        async with Producer(
            "sim_producers",
            name_server=self.name_server_address,
            instance_name=f"producer{number}",
            client_ip=node.address,
            retries=0,
            env=node.environment(),
        ) as producer:
            for index in range(MESSAGE_COUNT // PRODUCER_COUNT):
                attempt = 0
                while not await self._send(producer, f"{number}/{index}/{attempt}"):
                    attempt += 1
                    await asyncio.sleep(1)
                await asyncio.sleep(chance.uniform(0, 0.05))

    async def _send(self, producer: Producer, body: str) -> bool:
        try:
            sent = await producer.send(Message(TOPIC, body.encode(), tags="A"))
        except CometError as error:
            self.result.refused.append(body)
            self.world.record("refused", f"{body} {type(error).__name__}")
            return False
        if sent.status is not SendStatus.SEND_OK:
            self.result.refused.append(body)
            return False
        assert sent.queue_offset is not None
        at = (sent.message_queue.queue_id, sent.queue_offset)
        self.result.acknowledged[body] = at
        self.topic_exists.set()
        self.world.record("acknowledged", f"{body} {at}")
        return True

    async def consume(self, done: asyncio.Event) -> None:
        """Run a push consumer until `done`."""
        node = self.client

        async def handle(message: ReceivedMessage) -> None:
            body = bytes(message.body).decode()
            self.result.consumed.append(body)
            self.world.record("consumed", body)

        consumer = PushConsumer(
            "sim_consumers",
            {TOPIC: "*"},
            handle,
            name_server=self.name_server_address,
            instance_name="consumer",
            client_ip=node.address,
            consume_from="first",
            env=node.environment(),
        )
        # A consumer refuses to start on a topic that does not exist yet.
        await self.topic_exists.wait()
        async with consumer:
            await done.wait()

    async def read_queues(self) -> None:
        """Return the contents of every queue by raw pulls; offsets must have no gap."""
        env = self.client.environment()
        address = f"{self.broker.address}:{BROKER_PORT}"
        channel = await env.network.connect(
            self.broker.address, BROKER_PORT, lambda: Channel(env, address)
        )
        for queue_id in range(QUEUE_COUNT):
            bodies: list[str] = []
            while True:
                answer = await channel.request(pull_request(queue_id, len(bodies)), 10_000)
                if answer.code != 0:
                    assert answer.code == 19, answer.remark
                    break
                for message in decode_messages(answer.body):
                    assert message.queue_offset == len(bodies)
                    bodies.append(bytes(message.body).decode())
            self.result.queues[queue_id] = bodies
        channel.close()


def pull_request(queue_id: int, queue_offset: int) -> RemotingCommand:
    """Return a pull request that the broker does not hold."""
    return RemotingCommand.request(11, pull_fields(TOPIC, queue_offset, queue_id))


async def main(world: World) -> Result:
    """Run traffic with synchronous flush and a power cut."""
    return await scenario(world, "SYNC_FLUSH", power_cut=True)


async def main_kill(world: World) -> Result:
    """Run traffic with asynchronous flush and kill -9, which the page cache outlives."""
    return await scenario(world, "ASYNC_FLUSH", power_cut=False)


async def scenario(world: World, flush: str, *, power_cut: bool) -> Result:
    """Run traffic with one crash in its middle, and return what happened."""
    cluster = Cluster(world, flush)
    chance = random.Random(f"{world.seed}/scenario")
    await cluster.start_name_server()
    await cluster.start_broker()
    operator = asyncio.ensure_future(cluster.keep_broker_alive())
    done = asyncio.Event()
    client: Node = cluster.client
    consumer = client.spawn(lambda: cluster.consume(done))
    await asyncio.sleep(1)
    if power_cut:
        hit = chance.randrange(10, 60)
        cluster.broker.crash_at("sync", hit, path_contains="commitlog", power_cut=True)
    else:
        world.loop.call_later(
            chance.uniform(0.3, 0.8), lambda: cluster.broker.crash(power_cut=False)
        )
    producers = [
        client.spawn(lambda n=number: cluster.produce(n, chance))
        for number in range(PRODUCER_COUNT)
    ]
    await asyncio.gather(*producers)
    result = cluster.result
    for _ in range(600):
        if set(result.acknowledged) <= set(result.consumed):
            break
        await asyncio.sleep(1)
    # The accounts are read in peace.
    world.network.faults = NetworkFaults()
    await client.run(cluster.read_queues)
    done.set()
    await consumer
    operator.cancel()
    return result


def check(result: Result) -> None:
    """Check that each acknowledged message is in its queue once and was consumed."""
    assert result.crashes == 1
    assert len(result.acknowledged) == MESSAGE_COUNT
    stored = [body for bodies in result.queues.values() for body in bodies]
    assert len(stored) == len(set(stored))
    assert set(stored) <= set(result.acknowledged) | set(result.refused)
    for body, (queue_id, queue_offset) in result.acknowledged.items():
        assert result.queues[queue_id][queue_offset] == body
    assert set(result.acknowledged) <= set(result.consumed)
    assert set(result.consumed) <= set(stored)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_acknowledged_is_lost_and_the_seed_repeats_itself(seed: int) -> None:
    """Two runs of one seed: both keep the promise, and their traces are identical."""
    faults = NetworkFaults(split_chance=0.3, delay_ms_max=5)
    first = simulate(seed, main, faults=faults)
    check(first.value)
    second = simulate(seed, main, faults=faults)
    assert second.trace == first.trace
    assert second.digest == first.digest
    assert second.value == first.value


@pytest.mark.parametrize("seed", SEEDS)
def test_asynchronous_flush_survives_the_death_of_the_process(seed: int) -> None:
    """With asynchronous flush, acknowledged messages survive kill -9 in the page cache."""
    check(simulate(seed, main_kill).value)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_on_a_network_that_cuts_connections(seed: int) -> None:
    """Nothing is lost when one delivery in five hundred is a reset, beside the power cut."""
    check(simulate(seed, main, faults=NetworkFaults(cut_chance=0.002)).value)


def test_the_trace_is_the_same_in_every_process() -> None:
    """A trace depends neither on the process id nor on the interpreter's hash salt."""
    code = (
        "import importlib.util as u\n"
        f"spec = u.spec_from_file_location('scenario', {__file__!r})\n"
        "module = u.module_from_spec(spec)\n"
        "import sys; sys.modules['scenario'] = module\n"
        "spec.loader.exec_module(module)\n"
        "print(module.simulate(1, module.main).digest)\n"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            env={**os.environ, "PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for salt in ("1", "2")
    }
    assert digests == {simulate(1, main).digest}


def test_seeds_differ() -> None:
    """Different seeds give different traces."""
    digests = {simulate(seed, main).digest for seed in (11, 12)}
    assert len(digests) == 2


def test_a_dead_node_cannot_be_used() -> None:
    """Code that runs on a node ends with the node."""

    async def scenario(world: World) -> str:
        node = world.node("n")
        node.crash()
        try:
            await node.run(lambda: asyncio.sleep(1))
        except NodeGone as error:
            return str(error)
        return ""

    assert simulate(1, scenario).value == "n is down: call restart() first"
