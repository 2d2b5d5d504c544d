"""A whole replica set on virtual time, with controller and etcd, and the ledger of its messages.

Every message that was acknowledged is in the queues of the last master, and all logs are equal.
What a reader has seen at any broker at any time stays at its offset.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.replica_broker import ReplicaBroker
from cometmq.codec.stored_message import decode_messages
from cometmq.controller.config import ControllerConfig
from cometmq.controller.server import Controller
from cometmq.controller.stores.etcd import EtcdStore
from cometmq.errors import CometError
from cometmq.namesrv import NameServer, NameServerConfig
from cometmq.net.channel import Channel
from cometmq.server.access.settings import AccessSettings
from cometmq.store.base.results import GetResult
from cometmq.testing.sim_etcd import SimEtcd
from cometmq.testing.simulation import Node, World, simulate
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.frame.acl import Credentials

SET: Final = "broker-a"
TOPIC: Final = "T"
CONTROLLER_PORT: Final = 9877
NAMES_PORT: Final = 9876
BROKER_PORT: Final = 10911
FILE_BYTES: Final = 65_536


@dataclass
class SetStage:
    """A controller with its etcd, a name server, the brokers of one set, and a ledger."""

    world: World
    size: int
    settings: dict[str, object]
    etcd: SimEtcd
    members: dict[int, ReplicaBroker] = field(default_factory=dict)
    acknowledged: set[bytes] = field(default_factory=set)
    channels: dict[str, Channel] = field(default_factory=dict)
    sent_count: int = 0
    credentials: Credentials | None = None
    """Whose requests the client sends."""
    seen: list[bytes] = field(default_factory=list)
    """What readers have seen in the queue, at whichever broker."""

    def node(self, number: int) -> Node:
        """The machine of a broker."""
        return self.world.node(f"broker-{number}")

    async def start(self) -> None:
        """Start everything."""
        node = self.world.node("names")
        names = NameServer(
            NameServerConfig(kv_config_path="/ns/kv.json", config_store_path="/ns/p"),
            node.environment(),
            node.disk,
        )
        await node.run(names.start)
        node = self.world.node("controller")
        config = ControllerConfig(
            controller_port=CONTROLLER_PORT,
            cometmq_controller_address=f"{node.address}:{CONTROLLER_PORT}",
            **{
                key: value  # type: ignore[arg-type]
                for key, value in self.settings.items()
                if key in AccessSettings.__struct_fields__
            },
        )
        self.controller = Controller(config, node.environment(), EtcdStore(self.etcd.call, "x"))
        await node.run(self.controller.start)
        await asyncio.sleep(1)
        for number in range(1, self.size + 1):
            await self.boot(number)
        self.observing = asyncio.create_task(self.observe())

    async def observe(self) -> None:
        """Read at every broker all the time."""
        positions: dict[ReplicaBroker, int] = {}
        while True:
            for number, member in self.members.items():
                if member._broker is not None and self.node(number).is_alive:
                    at = positions.get(member, 0)
                    positions[member] = at + self.compare(self.bodies(number, at), at)
            await asyncio.sleep(0.005)

    def compare(self, bodies: list[bytes], at: int) -> int:
        """Compare what a reader gets from a queue offset on with what others have got."""
        known = self.seen[at : at + len(bodies)]
        assert bodies[: len(known)] == known, f"readers saw other messages from {at} on"
        self.seen += bodies[len(known) :]
        return len(bodies)

    async def boot(self, number: int) -> None:
        """Start a broker, on what its machine has."""
        node = self.node(number)
        if not node.is_alive:
            node.restart()
        config = BrokerConfig(
            broker_name=SET,
            broker_ip1=node.address,
            listen_port=BROKER_PORT,
            store_path_root_dir="/store",
            namesrv_addr=f"{self.world.node('names').address}:{NAMES_PORT}",
            enable_controller_mode=True,
            controller_addr=f"{self.world.node('controller').address}:{CONTROLLER_PORT}",
            mapped_file_size_commit_log=FILE_BYTES,
            timer_wheel_enable=False,
            **self.settings,  # type: ignore[arg-type]
        )
        member = self.members[number] = ReplicaBroker(config, node.environment(), node.disk)
        await node.run(member.start)

    def masters(self) -> list[int]:
        """The living brokers that take themselves for the master."""
        return [
            number
            for number, member in self.members.items()
            if self.node(number).is_alive and member.is_master
        ]

    def in_sync(self) -> tuple[int, ...]:
        """The in-sync replicas that are recorded."""
        recorded = self.controller._sets.get(SET)
        return () if recorded is None else recorded.in_sync

    async def until(self, holds: Callable[[], bool], limit_s: float = 120) -> float:
        """Wait on virtual time until something holds; return how long that took."""
        began = self.world.loop.time()
        while not holds():
            assert self.world.loop.time() - began < limit_s, self.in_sync()
            await asyncio.sleep(0.01)
        return self.world.loop.time() - began

    async def whole(self) -> None:
        """Wait until one master has every replica in sync."""
        await self.until(lambda: len(self.in_sync()) == self.size and len(self.masters()) == 1)

    async def send(
        self, number: int, body: bytes, timeout_ms: int = 4000, properties: str = ""
    ) -> bool:
        """Send one message to a broker; return whether it was acknowledged."""
        ext = {
            "producerGroup": "p",
            "topic": TOPIC,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "1",
            "queueId": "0",
            "sysFlag": "0",
            "bornTimestamp": "0",
            "flag": "0",
            "properties": properties,
            "reconsumeTimes": "0",
        }
        answer = await self.ask(number, 10, ext, body, timeout_ms)
        if answer is None or answer.code != 0:
            return False
        self.acknowledged.add(body)
        return True

    async def ask(
        self,
        number: int,
        code: int,
        ext: dict[str, str],
        body: bytes = b"",
        timeout_ms: int = 4000,
    ) -> RemotingCommand | None:
        """Ask a broker something; None without an answer."""
        node = self.world.node("client")
        address = f"{self.node(number).address}:{BROKER_PORT}"

        async def ask() -> RemotingCommand:
            channel = self.channels.get(address)
            if channel is None or channel.is_closed:
                env = node.environment()
                host, port = address.split(":")
                channel = await env.network.connect(
                    host, int(port), lambda: Channel(env, address), 1000
                )
                self.channels[address] = channel
            request = RemotingCommand.request(code, ext, body)
            if self.credentials is not None:
                self.credentials.sign_command(request)
            return await channel.request(request, timeout_ms)

        try:
            return await node.run(ask)
        except CometError:
            return None

    async def produce(self, seconds: float, clients: int = 4) -> None:
        """Send to whoever says it is the master, from several clients."""
        end = self.world.loop.time() + seconds

        async def client() -> None:
            while self.world.loop.time() < end:
                masters = self.masters()
                self.sent_count += 1
                body = b"%06d" % self.sent_count + bytes(500)
                is_sent = bool(masters) and await self.send(masters[-1], body)
                await asyncio.sleep(0.02 if is_sent else 0.05)

        await asyncio.gather(*(client() for _ in range(clients)))

    def bodies(self, number: int, start: int = 0) -> list[bytes]:
        """The bodies that a reader gets from the queue of a broker, in order."""
        store = self.members[number].broker.state.store
        bodies: list[bytes] = []
        while True:
            at = start + len(bodies)
            result = store.get(TOPIC, 0, at, 32, allow_cold=True)  # type: ignore[arg-type]
            if not isinstance(result, GetResult) or not result.chunks:
                return bodies
            bodies += [message.body for message in decode_messages(b"".join(result.chunks))]

    def log(self, number: int) -> bytes:
        """A broker's log."""
        store = self.members[number].broker.state.store
        at, parts = store.min_physical_offset, []
        while at < store.max_physical_offset:
            part = store.log_bytes(at, store.max_physical_offset - at)  # type: ignore[arg-type]
            parts.append(part)
            at += len(part)
        return b"".join(parts)

    async def check(self) -> None:
        """Nothing acknowledged is lost, nothing is there twice, and all logs are equal."""
        await self.whole()
        (master,) = self.masters()
        await self.until(
            lambda: (
                len(
                    {
                        member.broker.state.store.max_physical_offset
                        for member in self.members.values()
                    }
                )
                == 1
            )
        )
        if self.observing.done():
            self.observing.result()
        await self.until(
            lambda: all(
                len(self.bodies(number)) == len(self.bodies(master)) for number in self.members
            )
        )
        bodies = self.bodies(master)
        assert self.seen == bodies[: len(self.seen)]
        assert self.acknowledged - set(bodies) == set()
        assert len(bodies) == len(set(bodies))
        logs = [self.log(number) for number in self.members]
        assert all(log == logs[0] for log in logs)
        epochs = [member._seat.epochs.entries for member in self.members.values()]
        assert all(each == epochs[0] for each in epochs), epochs


def run(
    scenario: Callable[[SetStage], Awaitable[None]],
    *,
    seed: int = 1,
    size: int = 3,
    credentials: Credentials | None = None,
    **settings: object,
) -> None:
    """Run a scenario with a set that is whole."""

    async def main(world: World) -> None:
        etcd = SimEtcd(world.loop.time, lateness_s=0.7)
        stage = SetStage(world, size, {"min_in_sync_replicas": 2, **settings}, etcd)
        stage.credentials = credentials
        await stage.start()
        await stage.whole()
        await scenario(stage)

    simulate(seed, main)


async def rough(stage: SetStage, seed: int) -> None:
    """Let machines and links fail while clients send: kills, power failures, machines that stand
    still, links that are cut one by one, an etcd that is away; with SYNC_FLUSH also the power of
    all machines."""
    chance = random.Random(f"{seed}/rough")
    network, controller = stage.world.network, stage.world.node("controller")
    producing = asyncio.create_task(stage.produce(24))
    for _ in range(5):
        await asyncio.sleep(chance.uniform(0.3, 3))
        number = chance.randrange(1, stage.size + 1)
        node = stage.node(number)
        faults = ["kill", "power", "pause", "etcd", "link", "island", "both"]
        if stage.settings["flush_disk_type"] == "SYNC_FLUSH":
            faults.append("blackout")
        fault = chance.choice(faults)
        if fault == "pause":
            await node.pause(chance.uniform(0.5, 6))
        elif fault == "etcd":
            stage.etcd.is_away = True
            await asyncio.sleep(chance.uniform(1, 5))
            stage.etcd.is_away = False
        elif fault in ("link", "island"):
            others = [stage.node(each) for each in stage.members if each != number]
            peers = [chance.choice(others)] if fault == "link" else [*others, controller]
            for peer in peers:
                network.part(node.address, peer.address)
            await asyncio.sleep(chance.uniform(0.5, 6))
            network.heal()
        else:
            victims = [number]
            if fault == "both":
                victims.append(1 + number % stage.size)
            elif fault == "blackout":
                victims = list(stage.members)
            victims = [each for each in victims if stage.node(each).is_alive]
            for each in victims:
                stage.node(each).crash(power_cut=fault in ("power", "blackout"))
                await asyncio.sleep(0 if fault == "blackout" else chance.choice([0, 0.3, 2]))
            for each in victims:
                await asyncio.sleep(chance.uniform(0, 3))
                await stage.boot(each)
    await producing
    await stage.check()


def run_rough(seed: int) -> int:
    """Run a seed; return how many messages were acknowledged.

    An assertion fails where a promise is broken.
    """
    stages: list[SetStage] = []

    async def scenario(stage: SetStage) -> None:
        stages.append(stage)
        await rough(stage, seed)

    run(
        scenario,
        seed=seed + 1000,
        flush_disk_type="SYNC_FLUSH" if seed % 2 else "ASYNC_FLUSH",
    )
    return len(stages[0].acknowledged)
