"""Replica sets on virtual time: masters are killed, cut off and come back; the ledger holds."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any, Final

import pytest
from tests.sim.replica_sets import (
    CONTROLLER_PORT,
    FILE_BYTES,
    NAMES_PORT,
    SET,
    TOPIC,
    SetStage,
    run,
    run_rough,
)

from cometmq.broker.broker import Broker, ReportProgress
from cometmq.broker.replication.set_slave import SetReplicaClient
from cometmq.client.extensions.staging.batches import Staging
from cometmq.client.extensions.staging.calls import PublishState
from cometmq.codec.epoch_file import Epoch, encode_epochs
from cometmq.errors import CometError
from cometmq.model.group import SubscriptionData
from cometmq.model.names import STATE_TOPIC
from cometmq.net.channel import Channel
from cometmq.testing.loop import NodeCrashed
from cometmq.wire.body.client import ConsumerData, HeartbeatData
from cometmq.wire.body.controller import decode_replicas_info
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.frame.acl import Credentials


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


@pytest.mark.parametrize("seed", range(4))
def test_rough_times_lose_nothing(seed: int) -> None:
    """Links too, and two brokers at once; `tests.planted.replica_sets` runs more seeds."""
    assert run_rough(seed) > 100


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


ROOT: Final = Credentials("root", "secret-of-root")
BOB: Final = Credentials("bob", "secret-of-bob")
EVE: Final = Credentials("eve", "secret-of-eve")
SIGNED: Final[dict[str, Any]] = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_authentication_user": json.dumps({"username": "root", "password": ROOT.secret_key}),
    "inner_client_authentication_credentials": json.dumps(
        {"accessKey": "inner", "secretKey": "secret-of-inner"}
    ),
    "slave_read_enable": True,
}


async def ask_as(
    stage: SetStage,
    who: Credentials,
    number: int,
    code: int,
    ext: dict[str, str],
    body: object = None,
) -> tuple[int, str]:
    """Ask a broker as somebody; return code and remark of the answer."""
    before, stage.credentials = stage.credentials, who
    answer = await stage.ask(number, code, ext, b"" if body is None else json.dumps(body).encode())
    stage.credentials = before
    assert answer is not None
    return answer.code, str(answer.remark)


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_accounts_survive_their_master(how: str) -> None:
    """A user who was made, and one who was deleted, are that at every replica and at the next
    master; the account of the brokers signs what they ask each other and the controller."""

    async def scenario(stage: SetStage) -> None:
        await stage.produce(1)
        (master,) = stage.masters()
        slave = next(number for number in stage.members if number != master)
        everything = {"resource": "*", "actions": ["All"], "decision": "Allow"}
        policies = {"policies": [{"policyType": "Custom", "entries": [everything]}]}
        for who in (BOB, EVE):
            name, user = who.access_key, {"password": who.secret_key}
            assert (await ask_as(stage, ROOT, master, 3001, {"username": name}, user))[0] == 0
            subject = {"subject": f"User:{name}"}
            assert (await ask_as(stage, ROOT, master, 3006, subject, policies))[0] == 0
        await asyncio.sleep(3)
        end = {"topic": TOPIC, "queueId": "0"}
        for who in (BOB, EVE):
            assert (await ask_as(stage, who, slave, 30, end))[0] == 0
        assert (await ask_as(stage, ROOT, master, 3003, {"username": "eve"}))[0] == 0
        await asyncio.sleep(3)
        assert await ask_as(stage, EVE, slave, 30, end) == (16, "User:eve is not found.")
        # The topic of the tables has the passwords, so All on * is not enough for it.
        code, remark = await ask_as(stage, BOB, master, 30, {"topic": STATE_TOPIC, "queueId": "0"})
        assert (code, "for super users only" in remark) == (16, True)
        store = stage.members[master].broker.state.store
        record = {"offset": str(store.units(STATE_TOPIC, 0, 0, 1)[0].physical_offset)}
        assert (await ask_as(stage, BOB, master, 33, {**record, "topic": TOPIC}))[0] == 1
        assert (await ask_as(stage, ROOT, master, 33, {**record, "topic": STATE_TOPIC}))[0] == 0
        if how == "stop":
            await stage.node(master).run(stage.members[master].stop)
        stage.node(master).crash(power_cut=False)
        await stage.until(lambda: stage.masters() not in ([], [master]))
        (leader,) = stage.masters()
        assert (await ask_as(stage, BOB, leader, 30, end))[0] == 0
        assert await ask_as(stage, EVE, leader, 30, end) == (16, "User:eve is not found.")
        for number in (leader, slave):
            files = {
                name: stage.node(number).disk.read_bytes(f"/store/config/{name}")
                for name in ("cometmqAccounts.json", "cometmqState.json")
            }
            assert b"secret-of-bob" in files["cometmqAccounts.json"]
            assert not any(b"secret-of-eve" in raw for raw in files.values())
        await stage.boot(master)
        await stage.check()
        assert await ask_as(stage, EVE, master, 30, end) == (16, "User:eve is not found.")

    run(scenario, credentials=ROOT, **SIGNED)


def test_wishes_of_members_survive_their_master() -> None:
    """What the members of a group want is known at the next master, with how far each has read."""

    async def scenario(stage: SetStage) -> None:
        await stage.produce(1)
        (master,) = stage.masters()
        for tag in ("A", "B"):
            subscription = SubscriptionData(TOPIC, tag, frozenset({tag}), frozenset({ord(tag)}))
            consumer = ConsumerData("g", subscriptions=(subscription,))
            # Each member has a connection of its own.
            stage.channels.clear()
            answer = await stage.ask(master, 34, {}, HeartbeatData(tag, (), (consumer,)).encode())
            assert answer is not None
            assert answer.code == 0
        shares = stage.members[master].broker.state.shares
        wishes = [share.key for share in shares.all()["g"].topics[TOPIC]]
        assert len(set(wishes)) == 2
        stage.node(master).crash(power_cut=False)
        await stage.until(lambda: stage.masters() not in ([], [master]))
        (leader,) = stage.masters()
        after = stage.members[leader].broker.state.shares.all()["g"]
        assert [share.key for share in after.topics[TOPIC]] == wishes
        assert all(share.is_there for share in after.topics[TOPIC])
        await stage.boot(master)
        await stage.check()

    run(scenario)


async def adopt(stage: SetStage, count: int | None = None) -> RemotingCommand:
    """Have the controller record the set anew."""
    node = stage.world.node("client")
    host = stage.world.node("controller").address

    async def ask() -> RemotingCommand:
        env = node.environment()
        channel = await env.network.connect(host, CONTROLLER_PORT, lambda: Channel(env, host), 1000)
        ext = {"brokerName": SET} | ({} if count is None else {"replicaCount": str(count)})
        return await channel.request(RemotingCommand.request(31024, ext), 5000)

    return await node.run(ask)


async def lose_etcd(stage: SetStage) -> None:
    """Make etcd anew on empty disks, and wait until a controller leads it."""
    stage.etcd.lose_all()
    await stage.until(lambda: not stage.controller._sets)


def test_a_set_whose_record_is_lost_goes_on_and_is_adopted() -> None:
    """etcd is empty: nobody is elected and sends go on; adopted, it has a larger epoch, and a
    master that dies is replaced again."""

    async def scenario(stage: SetStage) -> None:
        (master,) = stage.masters()
        await stage.produce(1)
        await lose_etcd(stage)
        count = len(stage.acknowledged)
        await stage.produce(12)
        assert len(stage.acknowledged) > count + 100
        assert stage.masters() == [master]
        assert stage.controller._sets == {}
        epoch = stage.members[master]._seat.master_epoch
        answer = await adopt(stage)
        assert answer.code == 0, answer.remark
        adopted = decode_replicas_info(answer.body)[SET]
        assert (adopted.master_epoch, len(adopted.not_in_sync)) == (epoch + 1, 2)
        await stage.check()
        assert stage.masters() == [master]
        stage.node(master).crash(power_cut=False)
        await stage.until(lambda: stage.masters() not in ([], [master]))
        await stage.produce(1)
        await stage.boot(master)
        await stage.check()

    run(scenario)


def test_a_set_without_master_is_adopted_where_nothing_can_be_missing() -> None:
    """Record and master are lost: the longest log leads, and not before enough replicas answer."""

    async def scenario(stage: SetStage) -> None:
        (master,) = stage.masters()
        slaves = [number for number in stage.members if number != master]
        await stage.produce(2)
        await lose_etcd(stage)
        for number in stage.members:
            stage.node(number).crash(power_cut=False)
        await stage.boot(slaves[0])
        await asyncio.sleep(6)
        refused = await adopt(stage)
        assert (refused.code, "--elect-among" in str(refused.remark)) == (1, True)
        refused = await adopt(stage, 3)
        assert (refused.code, "2 brokers of broker-a are missing" in str(refused.remark)) == (
            1,
            True,
        )
        await stage.boot(slaves[1])
        await asyncio.sleep(6)
        answer = await adopt(stage, 3)
        assert answer.code == 0, answer.remark
        await stage.until(lambda: len(stage.masters()) == 1)
        # The third one comes too late for the record, and is added.
        await stage.boot(master)
        await asyncio.sleep(6)
        assert (await adopt(stage)).code == 0
        await stage.check()

    run(scenario)


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_wall_clock_that_is_set_changes_no_master(hours: int) -> None:
    """Step 30 of the table of failures: at each machine in turn, the controller's included."""

    async def scenario(stage: SetStage) -> None:
        (master,) = stage.masters()
        producing = asyncio.create_task(stage.produce(18))
        nodes = [stage.node(number) for number in (master, *stage.members)]
        for node in [*nodes, stage.world.node("controller")]:
            node.clock.skew_ms += hours * 3_600_000
            await asyncio.sleep(3)
        recorded = stage.controller._sets[SET]
        assert (recorded.master_epoch, stage.masters()) == (1, [master])
        assert len(recorded.in_sync) == stage.size
        count = len(stage.acknowledged)
        await producing
        assert len(stage.acknowledged) > count
        await stage.check()

    run(scenario)


@pytest.mark.parametrize("step", ["after decision", "slice announced", "slice appended"])
def test_a_batch_whose_publication_is_interrupted_is_published_by_the_next_master(
    step: str,
) -> None:
    """Step 42: the next master goes on; readers see all of the batch or nothing of it."""
    rows = 300

    async def scenario(stage: SetStage) -> None:
        (master,) = stage.masters()
        node, hits = stage.node(master), 0

        def at(name: str) -> None:
            nonlocal hits
            hits += name == step
            if name == step and hits == (1 if step == "after decision" else 3):
                node.crash(power_cut=False)
                raise NodeCrashed

        publisher = stage.members[master].broker.staging.publisher
        publisher.at = at
        client = stage.world.node("client")

        async def publish() -> PublishState:
            async with Staging(
                f"{stage.world.node('names').address}:{NAMES_PORT}",
                "sink",
                block_bytes=2_000,
                env=client.environment(),
            ) as staging:
                while True:
                    try:
                        part = staging.part(0, "0")
                        for row in range(rows):
                            await part.add(TOPIC, b"batch-%d" % row)
                        return (await staging.publish(0, [await part.finish()])).status
                    except CometError:
                        await asyncio.sleep(0.2)

        def seen() -> int:
            masters = [number for number in stage.masters() if stage.members[number]._broker]
            return (
                sum(body.startswith(b"batch") for body in stage.bodies(masters[0]))
                if masters
                else 0
            )

        publishing = asyncio.create_task(client.run(publish))
        while not publishing.done():
            assert seen() in (0, rows)
            await asyncio.sleep(0.01)
        assert hits, f"the step {step} was not reached"
        assert publishing.result() in (PublishState.PUBLISHED, PublishState.ALREADY)
        assert master not in stage.masters()
        assert seen() == rows
        await stage.boot(master)
        await stage.check()

    run(scenario, default_topic_queue_nums=1)
