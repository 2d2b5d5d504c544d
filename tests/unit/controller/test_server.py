"""Controllers and the brokers of one set on virtual time: every request, every way to die."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from cometmq.controller.config import ControllerConfig
from cometmq.controller.server import Controller
from cometmq.controller.stores.base import DocumentStore
from cometmq.controller.stores.etcd import EtcdStore
from cometmq.controller.stores.file import FileStore
from cometmq.net.channel import Channel
from cometmq.net.server import RemotingServer, ServerConnection
from cometmq.testing.sim_etcd import SimEtcd
from cometmq.testing.simulation import Node, World, simulate
from cometmq.wire.body.controller import decode_replicas_info, decode_sync_state_set
from cometmq.wire.command.command import RemotingCommand

PORT = 9877
BROKER_PORT = 10911
SET = {"clusterName": "c", "brokerName": "b"}


@dataclass
class FakeBroker:
    """One broker of the set `b`: it heartbeats, asks, and keeps what it is told."""

    stage: Stage
    node: Node
    broker_id: int = 0
    epoch: int = 1
    log_end: int = 100
    timeout_ms: int = 10_000
    channels: dict[str, Channel] = field(default_factory=dict)
    roles: list[dict[str, str]] = field(default_factory=list)
    beating: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"{self.node.address}:{BROKER_PORT}"

    async def start(self) -> None:
        """Listen, and connect to every controller."""

        def told(
            request: RemotingCommand, connection: ServerConnection, now_ms: int
        ) -> RemotingCommand | None:
            members = decode_sync_state_set(request.body).members
            self.roles.append({**request.ext_fields, "members": str(list(members))})
            return request.answer(0)

        async def start() -> None:
            server = RemotingServer(self.node.environment(), {1008: told})
            await server.listen("", BROKER_PORT)
            for name, controller in self.stage.controllers.items():
                await self.connect(name, controller)

        await self.node.run(start)

    async def connect(self, name: str, controller: Controller) -> None:
        """Connect to one controller."""
        env = self.node.environment()
        host, port = controller.address.split(":")
        self.channels[name] = await env.network.connect(
            host, int(port), lambda: Channel(env, controller.address)
        )

    async def ask(
        self, code: int, ext: Mapping[str, str], body: bytes = b"", at: str = "c1"
    ) -> RemotingCommand:
        """One request to a controller."""
        request = RemotingCommand.request(code, dict(ext), body)
        return await self.node.run(lambda: _awaited(self.channels[at].request(request)))

    async def join(self, at: str = "c1") -> RemotingCommand:
        """Get an id if there is none, register, heartbeat, ask for a master where none is."""
        if not self.broker_id:
            answer = await self.ask(1012, SET, at=at)
            self.broker_id = int(answer.ext_fields["nextBrokerId"])
            wanted = {
                "appliedBrokerId": str(self.broker_id),
                "registerCheckCode": f"{self.address};7",
            }
            assert (await self.ask(1013, {**SET, **wanted}, at=at)).code == 0
        mine = {"brokerId": str(self.broker_id)}
        registered = await self.ask(1003, {**SET, **mine, "brokerAddress": self.address}, at=at)
        self.beat()
        if registered.code == 0 and "masterBrokerId" not in registered.ext_fields:
            return await self.ask(1002, {**SET, **mine, "designateElect": "false"}, at=at)
        return registered

    def beat(self) -> None:
        """Send heartbeats every second from now on."""
        if self.beating is not None and not self.beating.done():
            self.beating.cancel()
        self.beating = self.node.spawn(self._beat)

    async def _beat(self) -> None:
        while True:
            ext = {
                **SET,
                "brokerId": str(self.broker_id),
                "brokerAddr": self.address,
                "epoch": str(self.epoch),
                "maxOffset": str(self.log_end),
                "heartbeatTimeoutMills": str(self.timeout_ms),
            }
            for channel in self.channels.values():
                if not channel.is_closed:
                    channel.oneway(RemotingCommand.request(904, ext))
            await asyncio.sleep(1)

    def alter(
        self, members: list[int], set_epoch: int, epoch: int = 1
    ) -> Awaitable[RemotingCommand]:
        """Ask for other in-sync replicas, as the master."""
        ext = {"brokerName": "b", "masterBrokerId": str(self.broker_id), "masterEpoch": str(epoch)}
        body = json.dumps({"syncStateSet": members, "syncStateSetEpoch": set_epoch}).encode()
        return self.ask(1001, ext, body)

    async def info(self, at: str = "c1") -> dict[str, Any]:
        """The set as a controller answers brokers."""
        answer = await self.ask(1004, {"brokerName": "b"}, at=at)
        if answer.code:
            return {"code": answer.code}
        members = decode_sync_state_set(answer.body).members
        return {**answer.ext_fields, "members": list(members)}


@dataclass
class Stage:
    """Controllers and brokers of one world."""

    world: World
    etcd: SimEtcd
    controllers: dict[str, Controller] = field(default_factory=dict)

    async def controller(self, name: str, *, is_shared: bool = False, **changes: Any) -> Controller:
        """Start a controller on its node, which may have been killed before."""
        node = self.world.node(name)
        if not node.is_alive:
            node.restart()
        env = node.environment()
        config = ControllerConfig(
            controller_port=PORT, cometmq_controller_address=f"{node.address}:{PORT}", **changes
        )
        store: DocumentStore = (
            EtcdStore(self.etcd.call, "x") if is_shared else FileStore("/c", node.disk, env.workers)
        )
        controller = Controller(config, env, store)
        await node.run(controller.start)
        self.controllers[name] = controller
        return controller

    async def broker(self, name: str, **changes: Any) -> FakeBroker:
        """Start a broker that is connected to every controller."""
        broker = FakeBroker(self, self.world.node(name), **changes)
        await broker.start()
        return broker

    async def pair(self, **changes: Any) -> tuple[FakeBroker, FakeBroker]:
        """A master 1 and a slave 2, both in sync."""
        a, b = await self.broker("a", **changes), await self.broker("b", **changes)
        assert (await a.join()).ext_fields["masterBrokerId"] == "1"
        assert (await b.join()).ext_fields["masterBrokerId"] == "1"
        await asyncio.sleep(0.1)
        assert (await a.alter([1, 2], 1)).ext_fields["newSyncStateSetEpoch"] == "2"
        return a, b


async def _awaited(work: Awaitable[Any]) -> Any:
    return await work


def run(scenario: Callable[[Stage], Awaitable[None]]) -> None:
    """Run a scenario on virtual time."""

    async def main(world: World) -> None:
        await scenario(Stage(world, SimEtcd(world.loop.time, lateness_s=0.7)))

    simulate(1, main)


async def until(holds: Callable[[], Awaitable[bool]], limit_s: float) -> float:
    """Wait on virtual time until something holds; return how long that took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not await holds():
        assert loop.time() - began < limit_s
        await asyncio.sleep(0.01)
    return loop.time() - began


def test_brokers_get_ids_and_the_first_is_the_master() -> None:
    """As a Java broker asks, with the answers that it insists on."""

    async def scenario(stage: Stage) -> None:
        await stage.controller("c1")
        a, b = await stage.broker("a"), await stage.broker("b")
        answer = await a.ask(1012, SET)
        assert answer.ext_fields == {**SET, "nextBrokerId": "1"}
        assert (
            await a.ask(1003, {**SET, "brokerId": "1", "brokerAddress": a.address})
        ).code == 2010
        assert await a.info() == {"code": 2008}
        elected = await a.join()
        assert elected.code == 0
        assert elected.ext_fields == {
            "masterBrokerId": "1",
            "masterAddress": a.address,
            "masterEpoch": "1",
            "syncStateSetEpoch": "1",
        }
        assert json.loads(elected.body.replace(b"{1:", b'{"1":')) == {
            "brokerMemberGroup": {
                "brokerAddrs": {"1": a.address},
                "brokerName": "b",
                "cluster": "c",
            },
            "syncStateSet": [1],
        }
        registered = await b.join()
        assert registered.ext_fields == {
            **SET,
            "masterBrokerId": "1",
            "masterAddress": a.address,
            "masterEpoch": "1",
            "syncStateSetEpoch": "1",
        }
        assert registered.body == b'{"syncStateSet":[1],"syncStateSetEpoch":1}'
        still = await b.ask(1002, {**SET, "brokerId": "2", "designateElect": "false"})
        assert still.code == 2011
        assert still.ext_fields == elected.ext_fields
        assert (
            await b.ask(1013, {**SET, "appliedBrokerId": "1", "registerCheckCode": "x;1"})
        ).code == 2014
        metadata = await a.ask(1005, {})
        controller = stage.controllers["c1"].address
        assert metadata.ext_fields == {
            "group": "cometmq",
            "controllerLeaderId": controller,
            "controllerLeaderAddress": controller,
            "isLeader": "true",
            "peers": f"{controller}:{controller};",
        }

    run(scenario)


def test_in_sync_replicas_are_recorded_as_the_master_asks() -> None:
    """A refusal changes nothing; tools see who lives."""

    async def scenario(stage: Stage) -> None:
        await stage.controller("c1")
        a, b = await stage.pair()
        assert (await a.alter([1], 1)).code == 2001
        assert (await b.alter([2], 2)).code == 2002
        assert (await a.info())["members"] == [1, 2]
        await asyncio.sleep(0.1)
        b.node.crash(power_cut=False)
        await asyncio.sleep(0.5)
        answer = await a.alter([1], 2)
        assert answer.body == b'{"syncStateSet":[1],"syncStateSetEpoch":3}'
        assert (await a.alter([1, 2], 3)).code == 2006
        for names in (b'["b","unknown"]', b"[]"):
            replicas = decode_replicas_info((await a.ask(1006, {}, names)).body)["b"]
            assert (replicas.master_id, replicas.master_epoch, replicas.in_sync_epoch) == (1, 1, 3)
            assert [(each.broker_id, each.is_alive) for each in replicas.in_sync] == [(1, True)]
            assert [(each.broker_id, each.is_alive) for each in replicas.not_in_sync] == [
                (2, False)
            ]
        assert (await a.ask(1006, {}, b"{")).code == 1

    run(scenario)


def test_a_killed_master_is_replaced_at_once() -> None:
    """Its connection and its port are closed, and the new master is told."""

    async def scenario(stage: Stage) -> None:
        await stage.controller("c1")
        a, b = await stage.pair()
        b.roles.clear()
        a.node.crash(power_cut=False)

        async def is_told() -> bool:
            return bool(b.roles)

        assert await until(is_told, 1) < 0.5
        assert b.roles == [
            {
                "masterBrokerId": "2",
                "masterAddress": b.address,
                "masterEpoch": "2",
                "syncStateSetEpoch": "3",
                "members": "[2]",
            }
        ]
        a.node.restart()
        back = FakeBroker(stage, a.node, broker_id=1)
        await back.start()
        assert (await back.join()).ext_fields["masterBrokerId"] == "2"

    run(scenario)


def test_a_broken_connection_is_no_death() -> None:
    """The broker still listens, and its next heartbeat comes on another connection."""

    async def scenario(stage: Stage) -> None:
        await stage.controller("c1")
        a, b = await stage.pair()
        a.channels["c1"].abort()
        await asyncio.sleep(5)
        assert (await b.info())["masterEpoch"] == "1"
        await a.node.run(lambda: a.connect("c1", stage.controllers["c1"]))
        await asyncio.sleep(60)
        assert (await b.info())["masterEpoch"] == "1"

    run(scenario)


@pytest.mark.parametrize("timeout_ms", [1500, 10_000])
def test_a_silent_master_is_replaced_after_its_own_timeout(timeout_ms: int) -> None:
    """The machine stands still: connections stay open, nothing is refused."""

    async def scenario(stage: Stage) -> None:
        await stage.controller("c1")
        a, b = await stage.pair(timeout_ms=timeout_ms)
        pausing = asyncio.create_task(a.node.pause(120))

        async def is_replaced() -> bool:
            return bool((await b.info())["masterEpoch"] == "2")

        took_s = await until(is_replaced, 30)
        assert timeout_ms / 1000 - 1 <= took_s <= timeout_ms / 1000 + 1
        pausing.cancel()

    run(scenario)


def test_without_a_living_in_sync_replica_the_set_waits() -> None:
    """Nobody is elected who may lack messages, until one comes back, or a person allows it."""

    async def scenario(stage: Stage) -> None:
        controller = await stage.controller("c1")
        a, b = await stage.pair()
        assert (await a.alter([1], 2)).code == 0
        a.node.crash(power_cut=False)
        await asyncio.sleep(1)
        waiting = await b.info()
        assert (waiting.get("masterBrokerId"), waiting["masterEpoch"]) == (None, "2")
        refused = await b.ask(1002, {**SET, "brokerId": "2", "designateElect": "false"})
        assert refused.code == 2012
        changed = await b.ask(1009, {}, b"enableElectUncleanMaster=true\n")
        assert changed.code == 0
        assert controller.config.enable_elect_unclean_master
        elected = await b.ask(1002, {**SET, "brokerId": "2", "designateElect": "false"})
        assert elected.ext_fields["masterEpoch"] == "3"

    run(scenario)


def test_a_set_whose_replicas_come_back_gets_a_master() -> None:
    """After an outage of all, whoever was in sync leads; the others follow."""

    async def scenario(stage: Stage) -> None:
        await stage.controller("c1")
        a, b = await stage.pair()
        assert (await a.alter([1], 2)).code == 0
        for broker in (a, b):
            broker.node.crash()
        await asyncio.sleep(30)
        for broker in (b, a):
            broker.node.restart()
        second, first = (
            FakeBroker(stage, b.node, broker_id=2),
            FakeBroker(stage, a.node, broker_id=1),
        )
        await second.start()
        assert (await second.join()).code == 2012
        await first.start()
        await first.join()
        await asyncio.sleep(1)
        assert (await second.info())["masterBrokerId"] == "1"

    run(scenario)


def test_a_master_that_starts_anew_begins_a_new_epoch() -> None:
    """It was away for less than anybody noticed; it is elected again, or another one is."""

    async def scenario(stage: Stage) -> None:
        await stage.controller("c1")
        a, b = await stage.pair()
        registered = await a.ask(1003, {**SET, "brokerId": "1", "brokerAddress": a.address})
        assert "masterBrokerId" not in registered.ext_fields
        other = await b.ask(1003, {**SET, "brokerId": "2", "brokerAddress": b.address})
        assert "masterBrokerId" not in other.ext_fields
        b.log_end = 200
        await asyncio.sleep(2)
        elected = await a.ask(1002, {**SET, "brokerId": "1", "designateElect": "false"})
        assert (elected.ext_fields["masterBrokerId"], elected.ext_fields["masterEpoch"]) == (
            "2",
            "2",
        )
        again = await a.ask(1003, {**SET, "brokerId": "1", "brokerAddress": a.address})
        assert again.ext_fields["masterBrokerId"] == "2"

    run(scenario)


def test_a_person_names_the_next_master() -> None:
    """electMaster of mqadmin; every broker is told."""

    async def scenario(stage: Stage) -> None:
        await stage.controller("c1")
        a, b = await stage.pair()
        elected = await b.ask(1002, {**SET, "brokerId": "2", "designateElect": "true"})
        assert elected.ext_fields["masterBrokerId"] == "2"
        await asyncio.sleep(0.5)
        assert [roles.roles[-1]["masterBrokerId"] for roles in (a, b)] == ["2", "2"]
        outside = await b.ask(1002, {**SET, "brokerId": "1", "designateElect": "true"})
        assert outside.code == 2012
        unknown = await b.ask(1002, {**SET, "brokerName": "x", "designateElect": "true"})
        assert unknown.code == 2010

    run(scenario)


def test_brokers_that_are_gone_are_forgotten() -> None:
    """cleanBrokerMetadata of mqadmin."""

    async def scenario(stage: Stage) -> None:
        await stage.controller("c1")
        a, b = await stage.pair()
        gone = {**SET, "brokerControllerIdsToClean": "2", "isCleanLivingBroker": "false"}
        assert (await a.ask(1011, gone)).code == 2009
        assert (await a.ask(1011, {**gone, "brokerControllerIdsToClean": "x"})).code == 2009
        b.node.crash()
        await asyncio.sleep(1)
        assert (await a.ask(1011, gone)).code == 0
        assert (await a.info())["members"] == [1]
        assert (await a.ask(1012, SET)).ext_fields["nextBrokerId"] == "3"
        everything = {**SET, "isCleanLivingBroker": "true"}
        assert (await a.ask(1011, everything)).code == 0
        assert await a.info() == {"code": 2008}

    run(scenario)


def test_settings_are_shown_and_changed() -> None:
    """Only those that may change while it runs."""

    async def scenario(stage: Stage) -> None:
        await stage.controller("c1", cometmq_etcd_password="secret")
        a = await stage.broker("a")
        text = (await a.ask(1010, {})).body.decode()
        assert "enableElectUncleanMaster=false" in text
        assert "secret" not in text
        assert (await a.ask(1009, {}, b"controllerPort=1\n")).code == 29
        assert (await a.ask(1009, {}, b"configBlackList=x\n")).code == 16
        assert (await a.ask(904, {**SET, "brokerAddr": a.address})).code == 2005

    run(scenario)


def test_a_controller_that_was_killed_knows_its_sets() -> None:
    """Running brokers go on, and a master that died meanwhile is replaced after the restart."""

    async def scenario(stage: Stage) -> None:
        await stage.controller("c1")
        a, b = await stage.pair()
        node = stage.world.node("c1")
        node.crash()
        a.node.crash(power_cut=False)
        await asyncio.sleep(5)
        await stage.controller("c1")
        await b.node.run(lambda: b.connect("c1", stage.controllers["c1"]))

        async def is_replaced() -> bool:
            return bool((await b.info())["masterBrokerId"] == "2")

        assert await until(is_replaced, 30) < 6

    run(scenario)


def test_a_controller_that_comes_back_elects_nobody_in_a_hurry() -> None:
    """The master lives, and its first heartbeat comes late."""

    async def scenario(stage: Stage) -> None:
        await stage.controller("c1")
        a, b = await stage.pair()
        stage.world.node("c1").crash()
        await asyncio.sleep(1)
        await stage.controller("c1")
        await b.node.run(lambda: b.connect("c1", stage.controllers["c1"]))
        await asyncio.sleep(8)
        await a.node.run(lambda: a.connect("c1", stage.controllers["c1"]))
        await asyncio.sleep(20)
        assert (await b.info())["masterEpoch"] == "1"

    run(scenario)


def test_a_second_controller_takes_over() -> None:
    """After the first one is killed with the master: the successor knows who lives."""

    async def scenario(stage: Stage) -> None:
        await stage.controller("c1", is_shared=True)
        await asyncio.sleep(1)
        await stage.controller("c2", is_shared=True)
        a, b = await stage.pair()
        leader = stage.controllers["c1"].address
        await asyncio.sleep(1)
        standby = (await b.ask(1005, {}, at="c2")).ext_fields
        assert (standby["isLeader"], standby["controllerLeaderAddress"]) == ("false", leader)
        for code, ext, body in (
            (
                1001,
                {"brokerName": "b", "masterBrokerId": "1", "masterEpoch": "1"},
                b'{"syncStateSet":[]}',
            ),
            (1004, {"brokerName": "b"}, b""),
            (1006, {}, b"[]"),
            (1012, SET, b""),
        ):
            assert (await b.ask(code, ext, body, at="c2")).code == 2007
        stage.world.node("c1").crash()
        a.node.crash(power_cut=False)

        async def is_replaced() -> bool:
            return (await b.info("c2")).get("masterBrokerId") == "2"

        assert await until(is_replaced, 60) < 13
        assert (await b.ask(1005, {}, at="c2")).ext_fields["isLeader"] == "true"

    run(scenario)


def test_an_orderly_stop_hands_over_at_once() -> None:
    """The lease is revoked, so nobody waits for it."""

    async def scenario(stage: Stage) -> None:
        first = await stage.controller("c1", is_shared=True)
        await asyncio.sleep(1)
        second = await stage.controller("c2", is_shared=True)
        await stage.world.node("c1").run(first.stop)

        async def leads() -> bool:
            return second.is_leading

        assert await until(leads, 10) < 1

    run(scenario)


def test_an_outage_of_etcd_stops_no_broker() -> None:
    """Nothing is decided without it; what waited is answered, and a dead master replaced later."""

    async def scenario(stage: Stage) -> None:
        await stage.controller("c1", is_shared=True)
        await asyncio.sleep(1)
        a, b = await stage.pair()
        stage.etcd.is_away = True
        refused = await a.alter([1], 2)
        assert refused.code == 2007
        a.node.crash(power_cut=False)
        await asyncio.sleep(60)
        assert await b.info() == {"code": 2007}
        stage.etcd.is_away = False

        async def is_replaced() -> bool:
            return (await b.info()).get("masterBrokerId") == "2"

        assert await until(is_replaced, 30) < 12

    run(scenario)


def test_a_lost_answer_of_etcd_elects_nobody_twice() -> None:
    """The change may be recorded: the controller reads, and then tells what is recorded."""

    async def scenario(stage: Stage) -> None:
        await stage.controller("c1", is_shared=True)
        await asyncio.sleep(1)
        a, b = await stage.pair()
        b.roles.clear()
        stage.etcd.answers_to_lose = 1
        a.node.crash(power_cut=False)

        async def is_replaced() -> bool:
            return (await b.info()).get("masterBrokerId") == "2"

        await until(is_replaced, 30)
        assert (await b.info())["masterEpoch"] == "2"
        await asyncio.sleep(0.5)
        assert {role["masterEpoch"] for role in b.roles} == {"2"}

    run(scenario)
