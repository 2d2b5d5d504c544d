"""Ordered topics that grow and shrink under traffic, with real brokers over real sockets."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest
from tests.unit.client.growing_stage import (
    TOPIC,
    Readers,
    Stage,
    Traffic,
    on_loop,
    stage,
    until,
    until_grown,
)

import cometmq.sync
from cometmq import Message, Producer
from cometmq.core.extensions.growing import Growth, group_hash
from cometmq.errors import ConfigError, GroupMoved
from cometmq.model.offsets import ConsumerOffset
from cometmq.testing import threaded_cluster

GROUPS = [f"customer-{number}" for number in range(24)]


@pytest.fixture(autouse=True)
def consumers_come_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """These readers commit at every broker; nobody has to look for routes first."""
    monkeypatch.setattr("cometmq.broker.extensions.growing.CLIENTS_COME_S", 0.5)


def producers(running: Stage, count: int = 3) -> list[Producer]:
    return [Producer(f"p{n}", name_server=running.name_server) for n in range(count)]


def in_order(readers: Readers, traffic: Traffic) -> None:
    """Each group was consumed once, completely and in order."""
    for group, count in traffic.sent.items():
        # The one in flight when the traffic was stopped may be there as well.
        assert readers.seen[group][:count] == list(range(count)), group
        assert len(readers.seen[group]) <= count + 1


@on_loop
async def test_a_topic_grows_under_traffic_and_keeps_the_order_of_its_groups(
    tmp_path: Path,
) -> None:
    """Three producers share the groups, learn at their own time, and a consumer lags behind."""
    chance = Random(1)
    async with stage(tmp_path, "broker-a") as (running, admin):
        await admin.create_topic(TOPIC, queue_count=4, order=True)
        readers = Readers(running, "billing", chance)
        async with Traffic(producers(running), GROUPS, chance) as traffic:
            await traffic.sends(2)
            readers.step()
            growth = await admin.grow_topic(TOPIC, 8)
            assert (growth.phase, growth.moved) == ("moving", 0)
            assert {one.group for one in growth.waiting_for} == {"billing"}
            await traffic.sends(2)
            assert all(running.bodies("broker-a", queue_id) == [] for queue_id in range(4, 8))
            async with readers.running():
                await until_grown(admin)
                await traffic.sends(3)
        readers.consume_all()
        assert not traffic.refused
        in_order(readers, traffic)
        for group in GROUPS:
            home = group_hash(group) % 8
            assert readers.where[group][-1] == ("broker-a", home), "the new layout holds"
        config = running.brokers["broker-a"].state.topics.get(TOPIC)
        assert config is not None
        assert config.order, "a change of queues changes nothing else"
        assert config.attributes["group.moved"] == "0:*;1:*;2:*;3:*"


@on_loop
async def test_a_second_broker_joins_and_the_first_one_leaves(tmp_path: Path) -> None:
    """Queues go where the layout says, and those of the broker that leaves vanish when drained."""
    chance = Random(2)
    async with stage(tmp_path, "broker-a", "broker-b") as (running, admin):
        await admin.create_topic(TOPIC, queue_count=3, order=True, broker_name="broker-a")
        readers = Readers(running, "billing", chance)
        async with Traffic(producers(running), GROUPS, chance) as traffic, readers.running():
            await traffic.sends(2)
            growth = await admin.grow_topic(TOPIC, 3)
            assert (growth.old, growth.new) == ("broker-a:3", "broker-a:3;broker-b:3")
            with pytest.raises(ConfigError, match="on its way from broker-a:3"):
                await admin.grow_topic(TOPIC, 5)
            await until_grown(admin)
            await traffic.sends(2)
            assert any(running.bodies("broker-b", queue_id) for queue_id in range(3))
            growth = await admin.shrink_topic(TOPIC, 2, without=["broker-a"])
            assert (growth.epoch, growth.new) == (2, "broker-b:2")
            await until_grown(admin)
            await traffic.sends(3)
            assert running.queues() == [("broker-b", 0), ("broker-b", 1)]
        # What the vanished queues held was consumed before they went.
        readers.consume_all()
        assert not traffic.refused
        in_order(readers, traffic)
        assert {readers.where[group][-1][0] for group in GROUPS} == {"broker-b"}


@on_loop
async def test_the_brokers_to_grow_on_may_come_from_a_generator(tmp_path: Path) -> None:
    """``broker_names`` is any iterable, also one that can be read only once."""
    async with stage(tmp_path, "broker-a", "broker-b") as (_, admin):
        await admin.create_topic(TOPIC, queue_count=2, order=True)
        growth = await admin.grow_topic(TOPIC, 4, broker_names=(n for n in ["broker-a"]))
        assert growth.new == "broker-a:4;broker-b:2"


@on_loop
async def test_a_complete_growth_needs_no_broker_the_topic_has_left(tmp_path: Path) -> None:
    """It is called complete when every broker has it in writing; then the old one may be gone."""
    async with stage(tmp_path, "broker-a", "broker-b") as (running, admin):
        await admin.create_topic(TOPIC, queue_count=3, order=True, broker_name="broker-a")
        readers = Readers(running, "billing", Random(6))
        async with Traffic(producers(running), GROUPS, Random(6)) as traffic, readers.running():
            await traffic.sends(1)
            await admin.grow_topic(TOPIC, 3)
            await until_grown(admin)
            await admin.shrink_topic(TOPIC, 3, without=["broker-a"])
            await until(lambda: running.queues() == [("broker-b", queue) for queue in range(3)])
            for name in running.brokers:
                assert _attributes(running, name)["group.phase"] == "moving"
            await until_grown(admin)
            complete = await admin.topic_growth(TOPIC)
            assert (complete.moved, complete.buckets) == (6 * 256, 6 * 256)
            for name in running.brokers:
                assert _attributes(running, name)["group.phase"] == "complete"
            await running.stop_broker("broker-a")
            await traffic.sends(2)
        async with Producer("newcomer", name_server=running.name_server) as newcomer:
            for group in GROUPS:
                result = await newcomer.send(Message(TOPIC, b"x"), message_group=group)
                queue = result.message_queue
                assert (queue.broker_name, queue.queue_id) == ("broker-b", group_hash(group) % 3)
        await running.start_broker("broker-a")
        grown = await admin.grow_topic(TOPIC, 3)
        assert (grown.epoch, grown.old, grown.new) == (3, "broker-b:3", "broker-a:3;broker-b:3")
        await running.stop_broker("broker-b")
        waiting = await admin.topic_growth(TOPIC)
        assert (waiting.phase, waiting.absent) == ("moving", ("broker-b",))


@on_loop
async def test_brokers_and_producers_start_again_in_the_middle(tmp_path: Path) -> None:
    """A broker forgets what it noted and counts its queues' ends; a producer learns anew."""
    chance = Random(3)
    async with stage(tmp_path, "broker-a", "broker-b") as (running, admin):
        await admin.create_topic(TOPIC, queue_count=2, order=True)
        readers = Readers(running, "billing", chance)
        async with Traffic(producers(running), GROUPS, chance) as traffic:
            await traffic.sends(2)
            readers.step()
            await admin.grow_topic(TOPIC, 5)
            async with readers.running():
                await until(lambda: "group.moved" in _attributes(running, "broker-a"))
                await traffic.stop()
                readers.is_paused = True
                marks = _marks(running)
                await running.stop_broker("broker-a")
                await running.start_broker("broker-a")
                # The broker may have looked once more before it stopped.
                assert all(_marks(running)[queue] & bits == bits for queue, bits in marks.items())
                readers.is_paused = False
                again = Traffic(producers(running, 2), GROUPS, chance)
                again.sent = {group: count + 1 for group, count in traffic.sent.items()}
                async with again:
                    await again.sends(2)
                    await until_grown(admin)
                    await again.sends(2)
        readers.consume_all()
        for group in GROUPS:
            seen = [number for number in readers.seen[group] if number != traffic.sent[group]]
            assert seen == sorted(set(seen)), group
            assert len(seen) >= again.sent[group] - 1
            place = group_hash(group) % 10
            home = ("broker-a", place) if place < 5 else ("broker-b", place - 5)
            assert readers.where[group][-1] == home


def _marks(running: Stage) -> Mapping[tuple[str, int], int]:
    growth = Growth.from_attributes(_attributes(running, "broker-a"), "broker-a")
    assert growth is not None
    return growth.moved


def _attributes(running: Stage, broker_name: str) -> dict[str, str]:
    config = running.brokers[broker_name].state.topics.get(TOPIC)
    assert config is not None
    return config.attributes


@on_loop
async def test_a_group_that_never_pauses_moves_when_the_growth_is_closed(tmp_path: Path) -> None:
    """Its sends wait for the consumers, then all go on at its new home, in the order of calls."""
    async with stage(tmp_path, "broker-a") as (running, admin):
        await admin.create_topic(TOPIC, queue_count=1, order=True)
        readers = Readers(running, "billing", Random(4))
        group = next(name for name in GROUPS if group_hash(name) % 2 == 1)
        async with Producer("p", name_server=running.name_server) as producer:
            await producer.send(Message(TOPIC, f"{group}:0".encode()), message_group=group)
            running.brokers["broker-a"].state.offsets.commit(
                "billing", TOPIC, 0, ConsumerOffset(0), 0
            )
            await admin.grow_topic(TOPIC, 2)
            await producer.send(Message(TOPIC, f"{group}:1".encode()), message_group=group)
            assert (await admin.close_topic_growth(TOPIC)).phase == "closing"
            sends = [
                producer.send_nowait(
                    Message(TOPIC, f"{group}:{number}".encode()),
                    message_group=group,
                    timeout_ms=40_000,
                )
                for number in range(2, 200)
            ]
            with pytest.raises(GroupMoved, match="cometmq topic growth Grown shows"):
                await producer.send(Message(TOPIC, b"late"), message_group=group, timeout_ms=300)
            assert not any(one.done() for one in sends)
            readers.consume_all()
            results = await asyncio.gather(*sends)
            assert {one.message_queue.queue_id for one in results} == {1}
            await until_grown(admin)
        readers.consume_all()
        assert readers.seen[group] == list(range(200))


@on_loop
async def test_lingering_batches_are_taken_apart_when_groups_move(tmp_path: Path) -> None:
    """A producer that gathers sends and knows nothing of the growth keeps every group's order."""
    async with stage(tmp_path, "broker-a") as (running, admin):
        await admin.create_topic(TOPIC, queue_count=2, order=True)
        readers = Readers(running, "billing", Random(5))
        numbers = dict.fromkeys(GROUPS, 0)

        async with Producer("p", name_server=running.name_server, linger_ms=5) as producer:

            async def send(count: int) -> set[int]:
                sends = []
                for _ in range(count):
                    for group in GROUPS:
                        body = f"{group}:{numbers[group]}".encode()
                        numbers[group] += 1
                        sends.append(
                            producer.send_nowait(Message(TOPIC, body, message_group=group))
                        )
                return {one.message_queue.queue_id for one in await asyncio.gather(*sends)}

            assert await send(3) == {0, 1}
            assert await send(3) == {0, 1}
            readers.consume_all()
            await admin.grow_topic(TOPIC, 6)
            await until_grown(admin)
            for _ in range(4):
                assert await send(5) == set(range(6))
                readers.consume_all()
        for group in GROUPS:
            assert readers.seen[group] == list(range(26))


def test_the_synchronous_face_follows_a_group() -> None:
    """One message at a time and batches, before and after the growth, and an admin beside it."""
    with (
        threaded_cluster() as cluster,
        cometmq.sync.Admin(name_server=cluster.name_server_address) as admin,
        cometmq.sync.Producer("p", name_server=cluster.name_server_address) as producer,
    ):
        admin.create_topic(TOPIC, queue_count=1, order=True)
        group = next(name for name in GROUPS if group_hash(name) % 4 == 3)
        message = Message(TOPIC, b"x", message_group=group)
        assert producer.send(message).message_queue.queue_id == 0
        assert admin.grow_topic(TOPIC, 4).new == "broker-a:4"
        with pytest.raises(ConfigError, match="no message groups on the move"):
            for _ in range(10_000):  # until nothing is left to close
                admin.close_topic_growth(TOPIC)
        assert admin.topic_growth(TOPIC).is_complete
        assert producer.send(message).message_queue.queue_id == 3
        results = producer.send_batch([message, message])
        assert {one.message_queue.queue_id for one in results} == {3}
        producer.send_oneway(message)
        producer.flush()
        queues = admin.topic_offsets(TOPIC)
        assert {queue.queue_id: held.count for queue, held in queues.items()} == {
            0: 1,
            1: 0,
            2: 0,
            3: 4,
        }
        with pytest.raises(ConfigError, match="would have no queue left"):
            admin.shrink_topic(TOPIC, 0)
        with pytest.raises(ConfigError, match="more than 2"):
            admin.grow_topic(TOPIC, 2)
        with pytest.raises(ConfigError, match="has these queues already"):
            admin.grow_topic(TOPIC, 4)
        with pytest.raises(ConfigError, match="no broker is called broker-x"):
            admin.grow_topic(TOPIC, 6, broker_names=["broker-x"])
