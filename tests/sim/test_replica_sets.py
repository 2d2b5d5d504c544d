"""Whole replica sets on virtual time: masters are killed, cut off and come back; the ledger holds.

Every message that was acknowledged is in the queues of the last master, and all logs are equal.
What a reader has seen at any broker at any time stays at its offset.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import pytest

from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.broker import Broker, ReportProgress
from cometmq.broker.replica_broker import ReplicaBroker
from cometmq.broker.replication.set_slave import SetReplicaClient
from cometmq.codec.epoch_file import Epoch, encode_epochs
from cometmq.codec.stored_message import decode_messages
from cometmq.controller.config import ControllerConfig
from cometmq.controller.server import Controller
from cometmq.controller.stores.etcd import EtcdStore
from cometmq.errors import CometError
from cometmq.namesrv import NameServer, NameServerConfig
from cometmq.net.channel import Channel
from cometmq.store.base.results import GetResult
from cometmq.testing.sim_etcd import SimEtcd
from cometmq.testing.simulation import Node, World, simulate
from cometmq.wire.command.command import RemotingCommand

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
            return await channel.request(RemotingCommand.request(code, ext, body), timeout_ms)

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
    **settings: object,
) -> None:
    """Run a scenario with a set that is whole."""

    async def main(world: World) -> None:
        etcd = SimEtcd(world.loop.time, lateness_s=0.7)
        stage = SetStage(world, size, {"min_in_sync_replicas": 2, **settings}, etcd)
        await stage.start()
        await stage.whole()
        await scenario(stage)

    simulate(seed, main)


def test_a_killed_master_is_replaced() -> None:
    """Within a second, and what it had acknowledged is there; it comes back as a slave."""

    async def scenario(stage: SetStage) -> None:
        await stage.produce(1)
        for _ in range(2):
            (master,) = stage.masters()
            producing = asyncio.create_task(stage.produce(4))
            await asyncio.sleep(1)
            stage.node(master).crash(power_cut=False)
            took_s = await stage.until(lambda: bool(stage.masters()))
            assert took_s < 1
            await asyncio.sleep(1)
            await stage.boot(master)
            await producing
            await stage.check()
        assert len(stage.acknowledged) > 100

    run(scenario)


def test_a_stopped_master_hands_over() -> None:
    """Another one leads before it is gone."""

    async def scenario(stage: SetStage) -> None:
        await stage.produce(1)
        (master,) = stage.masters()
        await stage.node(master).run(stage.members[master].stop)
        assert await stage.until(lambda: stage.masters() not in ([], [master])) < 0.5
        stage.node(master).crash(power_cut=False)
        await stage.produce(1)
        await stage.boot(master)
        await stage.check()

    run(scenario)


def test_a_master_steps_down() -> None:
    """The replica that is named leads within 0.3 s; nothing is undecided; one that is not in sync
    is refused."""

    async def scenario(stage: SetStage) -> None:
        await stage.produce(1)
        (master,) = stage.masters()
        ids = {number: member._seat.broker_id for number, member in stage.members.items()}
        wanted = max(number for number in stage.members if number != master)
        producing = asyncio.create_task(stage.produce(3))
        await asyncio.sleep(0.5)
        refused = await stage.ask(master, 31023, {"brokerId": "9"})
        assert refused is not None
        assert (refused.code, "in sync are" in str(refused.remark)) == (1, True)
        assert await stage.send(master, b"still")
        end = stage.members[master].broker.state.store.max_physical_offset
        answer = await stage.ask(master, 31023, {"brokerId": str(ids[wanted])})
        assert answer is not None
        assert (answer.code, answer.ext_fields["masterBrokerId"]) == (0, str(ids[wanted]))
        assert await stage.until(lambda: stage.masters() == [wanted]) < 0.3
        await producing
        # The old master's log was not cut: everything in it was acknowledged.
        assert not [
            name
            for name in stage.node(master).disk.listdir("/store")
            if name.startswith("cometmq.cut")
        ]
        assert stage.members[wanted].broker.state.store.max_physical_offset > end
        await stage.check()

    run(scenario)


def test_a_master_that_stood_still_acknowledges_nothing_and_is_cut() -> None:
    """Another one leads meanwhile; what the first appends when it wakes is not in anybody's log."""

    async def scenario(stage: SetStage) -> None:
        await stage.produce(1)
        (master,) = stage.masters()
        pausing = asyncio.create_task(stage.node(master).pause(8))
        sends = [
            asyncio.create_task(stage.send(master, b"late-%d" % number + bytes(500), 20_000))
            for number in range(10)
        ]

        def others() -> list[int]:
            return [number for number in stage.masters() if number != master]

        assert await stage.until(lambda: bool(others())) < 4
        before = len(stage.acknowledged)
        await stage.produce(2)
        assert len(stage.acknowledged) > before
        await pausing
        await asyncio.gather(*sends)
        await stage.until(lambda: master not in stage.masters())
        await stage.check()

    run(scenario)


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_power_failure_of_the_master_loses_nothing(flush: str) -> None:
    """With asynchronous flush it leaves the set first, and gets again what it lost."""

    async def scenario(stage: SetStage) -> None:
        for _ in range(2):
            (master,) = stage.masters()
            producing = asyncio.create_task(stage.produce(3))
            await asyncio.sleep(1)
            stage.node(master).crash()
            await asyncio.sleep(0.02)
            await stage.boot(master)
            await producing
            await stage.check()

    run(scenario, flush_disk_type=flush)


@pytest.mark.parametrize("seed", [*range(6), 129])
def test_any_order_of_faults_loses_nothing(seed: int) -> None:
    """Kills, power failures, machines that stand still, an etcd that is away, a controller too.

    Seed 129: a master came back while no controller led, and began its epoch anew.
    """

    async def scenario(stage: SetStage) -> None:
        chance = random.Random(seed)
        producing = asyncio.create_task(stage.produce(24))
        for _ in range(4):
            await asyncio.sleep(chance.uniform(0.5, 4))
            number = chance.randrange(1, stage.size + 1)
            node = stage.node(number)
            fault = chance.choice(["kill", "power", "pause", "etcd"])
            if fault == "pause":
                await node.pause(chance.uniform(0.5, 6))
            elif fault == "etcd":
                stage.etcd.is_away = True
                await asyncio.sleep(chance.uniform(1, 5))
                stage.etcd.is_away = False
            elif len(stage.in_sync()) > 1 and node.is_alive:
                node.crash(power_cut=fault == "power")
                await asyncio.sleep(chance.uniform(0, 3))
                await stage.boot(number)
        await producing
        await stage.check()
        assert stage.acknowledged

    run(scenario, seed=seed + 10, flush_disk_type="SYNC_FLUSH" if seed % 2 else "ASYNC_FLUSH")


def test_a_store_that_takes_long_to_open_is_no_death(monkeypatch: pytest.MonkeyPatch) -> None:
    """Incident of 2026-11-28: opening stopped the heartbeats for 3 s, so the controller elected the
    new master again and again."""

    async def scenario(stage: SetStage) -> None:
        (master,) = stage.masters()
        start = Broker.start

        async def start_late(broker: Broker, progress: ReportProgress | None = None) -> None:
            await asyncio.sleep(10)
            await start(broker, progress)

        monkeypatch.setattr(Broker, "start", start_late)
        for member in stage.members.values():
            member._tasks[0].cancel()  # the regular heartbeats, which a held loop does not send
        stage.node(master).crash(power_cut=False)
        await asyncio.sleep(1)
        elected = stage.controller._sets[SET]
        assert (elected.master_epoch, elected.master_id == master) == (2, False)
        await asyncio.sleep(8)
        assert stage.controller._sets[SET].master_epoch == 2

    run(scenario)


def test_a_replica_that_was_away_for_too_long_begins_anew() -> None:
    """The master's log begins where this one has ended long ago: it gets the whole log again."""

    async def scenario(stage: SetStage) -> None:
        (master,) = stage.masters()
        late = next(number for number in stage.members if number != master)
        await stage.produce(1)
        stage.node(late).crash(power_cut=False)
        await stage.produce(12)
        store = stage.members[master].broker.state.store
        assert store.max_physical_offset > 4 * FILE_BYTES
        store._retention.drop_files(3)
        await stage.until(lambda: store.min_physical_offset == 3 * FILE_BYTES)
        stage.observing.cancel()  # its offsets begin at 0
        await stage.boot(late)
        await stage.whole()
        await stage.produce(0.5)
        own = stage.members[late].broker.state.store
        await stage.until(lambda: own.confirmed_offset == store.confirmed_offset)
        assert own.min_physical_offset == store.min_physical_offset
        assert stage.log(late) == stage.log(master)

    run(scenario)


def test_a_log_of_another_set_is_kept_and_named() -> None:
    """Nothing shows that it is a copy: it is not cut, not followed with, and the remedy is said."""

    async def scenario(stage: SetStage) -> None:
        await stage.produce(1)
        (master,) = stage.masters()
        other = next(number for number in stage.members if number != master)
        await stage.node(other).run(stage.members[other].stop)
        node = stage.node(other)
        node.disk.write_atomic("/store/epochFileCheckpoint", encode_epochs([Epoch(1, 17)]))
        before = node.disk.read_bytes("/store/commitlog/00000000000000000000")
        node.crash(power_cut=False)
        await stage.boot(other)

        def following() -> SetReplicaClient:
            client = stage.members[other].broker.services.following.log  # type: ignore[union-attr]
            assert isinstance(client, SetReplicaClient)
            return client

        await stage.until(lambda: following().stopped is not None)
        assert "move /store away" in str(following().stopped)
        assert node.disk.read_bytes("/store/commitlog/00000000000000000000") == before
        # The remedy.
        await node.run(stage.members[other].stop)
        for name in node.disk.listdir("/store"):
            if name != "brokerIdentity":
                remove = (
                    node.disk.remove_tree
                    if node.disk.is_dir(f"/store/{name}")
                    else node.disk.remove
                )
                remove(f"/store/{name}")
        node.crash(power_cut=False)
        await stage.boot(other)
        await stage.check()

    run(scenario)


def lock_body(client: str) -> bytes:
    """The body of a lock request for the only queue."""
    queue = {"topic": TOPIC, "brokerName": SET, "queueId": 0}
    return json.dumps({"consumerGroup": "g", "clientId": client, "mqSet": [queue]}).encode()


async def locked(stage: SetStage, number: int, client: str) -> bool:
    """Ask for the lock of the queue; return whether the client has it."""
    answer = await stage.ask(number, 41, {}, lock_body(client))
    if answer is None or answer.code != 0:
        return False
    return bool(json.loads(answer.body)["lockOKMQSet"])


@pytest.mark.parametrize("how", ["kill", "power", "pause", "stop"])
def test_tables_survive_their_master(how: str) -> None:
    """Topics, offsets, owners of queues and numbers of producers are those that were answered."""

    async def scenario(stage: SetStage) -> None:
        await stage.produce(1)
        (master,) = stage.masters()
        node = stage.node(master)
        topic = {
            "topic": "made",
            "defaultTopic": "TBW102",
            "readQueueNums": "3",
            "writeQueueNums": "3",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        assert (await stage.ask(master, 17, topic)).code == 0  # type: ignore[union-attr]
        group = await stage.ask(master, 200, {}, b'{"groupName":"g"}')
        assert group is not None
        assert group.code == 0
        commit = {"consumerGroup": "g", "topic": TOPIC, "queueId": "0", "commitOffset": "17"}
        assert (await stage.ask(master, 15, commit)).code == 0  # type: ignore[union-attr]
        assert await locked(stage, master, "first")
        numbered = "PRODUCER_SEQ\x01producer-x:5\x02"
        assert await stage.send(master, b"numbered", properties=numbered)
        # Offsets are written once in a second.
        await asyncio.sleep(1.2)
        assert await stage.send(master, b"numbered too", properties=numbered.replace("5", "6"))
        if how == "pause":
            pausing = asyncio.create_task(node.pause(8))
        elif how == "stop":
            await node.run(stage.members[master].stop)
            node.crash(power_cut=False)
        else:
            node.crash(power_cut=how == "power")
        await stage.until(lambda: stage.masters() not in ([], [master]))
        leader = next(number for number in stage.masters() if number != master)
        led_s = stage.world.loop.time()
        state = stage.members[leader].broker.state
        config = state.topics.get("made")
        assert config is not None
        assert config.write_queue_count == 3
        assert state.offsets.query("g", TOPIC, 0) == 17
        for _ in range(5):
            assert not await locked(stage, leader, "second")
            await asyncio.sleep(1)
        # Repetitions are answered, and not stored again.
        assert await stage.send(leader, b"numbered", properties=numbered)
        again = numbered.replace("5", "6")
        assert await stage.send(leader, b"numbered too", properties=again)
        assert await locked(stage, leader, "first")
        if how == "pause":
            await pausing
            assert not await locked(stage, master, "second")
        else:
            await stage.boot(master)
        await stage.check()
        assert stage.bodies(leader).count(b"numbered") == 1
        assert stage.bodies(leader).count(b"numbered too") == 1
        assert not await locked(stage, leader, "second")
        await stage.until(lambda: stage.world.loop.time() > led_s + 100)
        assert await locked(stage, leader, "second")

    run(scenario)


def test_a_master_that_is_cut_off_grants_no_queue() -> None:
    """Another broker may be the master, and may grant it to somebody else."""

    async def scenario(stage: SetStage) -> None:
        await stage.produce(1)
        (master,) = stage.masters()
        assert await locked(stage, master, "first")
        network, own = stage.world.network, stage.node(master).address
        others = [stage.node(number).address for number in stage.members if number != master]
        for address in (*others, stage.world.node("controller").address):
            network.part(own, address)
        await asyncio.sleep(1.5)
        assert not await locked(stage, master, "first")
        assert not await locked(stage, master, "second")
        network.heal()
        await stage.check()

    run(scenario)
