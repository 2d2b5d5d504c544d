"""Message groups whose broker is away wait for it or go elsewhere, as their topic says."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest
from tests.unit.client.growing_stage import TOPIC, Readers, Stage, stage, until_grown

import cometmq.sync
from cometmq import Admin, Message, Producer
from cometmq.core.extensions.growing import Layout, group_hash
from cometmq.errors import ClientError, ConfigError, RemoteError
from cometmq.model import MessageQueue

BROKERS = ("broker-a", "broker-b")


@pytest.fixture(autouse=True)
def consumers_come_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """These readers commit at every broker; nobody has to look for routes first."""
    monkeypatch.setattr("cometmq.broker.extensions.growing.CLIENTS_COME_S", 0.5)


def group_of(layout: Layout, broker_name: str) -> str:
    """A message group at home at a broker."""
    return next(
        group for group in map(str, range(100)) if layout.home(group_hash(group))[0] == broker_name
    )


async def send(producer: Producer, group: str, *, timeout_ms: int = 60_000) -> MessageQueue:
    """Send a message of a group; return its queue."""
    message = Message(TOPIC, group.encode())
    result = await producer.send(message, message_group=group, timeout_ms=timeout_ms)
    return result.message_queue


async def prepare(running: Stage, admin: Admin, *, is_grown: bool) -> Layout:
    """Make the topic, and grow it; return its layout."""
    await admin.create_topic(TOPIC, queue_count=2)
    if not is_grown:
        return Layout.parse("broker-a:2;broker-b:2")
    readers = Readers(running, "g", Random(1))
    async with readers.running():
        await admin.grow_topic(TOPIC, 3)
        await until_grown(admin)
    return Layout.parse("broker-a:3;broker-b:3")


@pytest.mark.parametrize("is_grown", [False, True])
@pytest.mark.parametrize("choice", ["wait", "move"])
def test_groups_of_a_broker_that_is_away(tmp_path: Path, choice: str, is_grown: bool) -> None:
    """The same before and after growth; the groups of the other broker stay where they are."""

    async def main() -> None:
        async with stage(tmp_path, *BROKERS) as (running, admin):
            layout = await prepare(running, admin, is_grown=is_grown)
            status = await admin.set_when_away(TOPIC, choice)
            assert (status.away, status.new) == (choice, str(layout))
            near, far = (group_of(layout, name) for name in BROKERS)
            homes = {
                group: MessageQueue(TOPIC, *layout.home(group_hash(group))) for group in (near, far)
            }
            async with Producer("p", name_server=running.name_server) as producer:
                for group in (near, far):
                    assert await send(producer, group) == homes[group]
                await running.stop_broker("broker-b")
                assert await send(producer, near) == homes[near]
                if choice == "wait":
                    with pytest.raises(ClientError):
                        await send(producer, far, timeout_ms=500)
                    waiting = asyncio.create_task(send(producer, far))
                    await running.start_broker("broker-b")
                    assert await waiting == homes[far]
                else:
                    away = await send(producer, far)
                    assert away.broker_name == "broker-a"
                    assert await send(producer, far) == away
                    await running.start_broker("broker-b")
            # A producer that sees both brokers finds every group at home.
            async with Producer("late", name_server=running.name_server, linger_ms=5) as late:
                for group in (near, far):
                    assert await send(late, group) == homes[group]

    asyncio.run(main())


def test_the_synchronous_producer_and_batches_move_too(tmp_path: Path) -> None:
    """They ask the same view; a batch of many groups goes where its groups go."""

    async def main() -> None:
        async with stage(tmp_path, *BROKERS) as (running, admin):
            layout = await prepare(running, admin, is_grown=False)
            await admin.set_when_away(TOPIC, "move")
            near, far = (group_of(layout, name) for name in BROKERS)
            await running.stop_broker("broker-b")

            def send_here() -> list[str]:
                with cometmq.sync.Producer("s", name_server=running.name_server) as producer:
                    message = Message(TOPIC, b"x", message_group=far)
                    single = producer.send(message, timeout_ms=60_000)
                    batch = producer.send_batch([message, message], timeout_ms=60_000)
                    return [result.message_queue.broker_name for result in (single, *batch)]

            assert set(await asyncio.to_thread(send_here)) == {"broker-a"}
            async with Producer("l", name_server=running.name_server, linger_ms=5) as lingering:
                queues = await asyncio.gather(
                    *(send(lingering, group) for group in (near, far) for _ in range(3))
                )
            assert {queue.broker_name for queue in queues} == {"broker-a"}
            stored = [
                body
                for queue_id in range(2)
                for body in running.bodies("broker-a", queue_id)
                if body in (near, far)
            ]
            assert sorted(stored) == sorted([near, far] * 3)

    asyncio.run(main())


def test_the_choice_stays_when_the_topic_grows(tmp_path: Path) -> None:
    """Without one the first growth chooses to wait, and says so; a later one changes nothing."""

    async def main() -> None:
        async with stage(tmp_path, *BROKERS) as (running, admin):
            await admin.create_topic(TOPIC, queue_count=2)
            assert (await admin.topic_growth(TOPIC)).away == ""
            readers = Readers(running, "g", Random(1))
            async with readers.running():
                assert (await admin.grow_topic(TOPIC, 3)).away == "wait"
                await until_grown(admin)
                assert (await admin.set_when_away(TOPIC, "move")).phase == "complete"
                assert (await admin.grow_topic(TOPIC, 4)).away == "move"
                await until_grown(admin)
                assert (await admin.grow_topic(TOPIC, 5, when_away="wait")).away == "wait"
                await until_grown(admin)
            assert (await admin.topic_growth(TOPIC)).away == "wait"

    asyncio.run(main())


def test_a_choice_that_would_have_no_effect_is_refused(tmp_path: Path) -> None:
    """Another word, a broker that is missing, and the attribute without the layout (mqadmin)."""

    async def main() -> None:
        async with stage(tmp_path, *BROKERS) as (running, admin):
            await admin.create_topic(TOPIC, queue_count=2)
            with pytest.raises(ConfigError, match="expected wait or move"):
                await admin.set_when_away(TOPIC, "hope")
            with pytest.raises(RemoteError, match="cometmq topic when-away writes both"):
                await admin.create_topic(
                    TOPIC, queue_count=2, attributes="+group.away=wait", broker_name="broker-a"
                )
            await admin.set_when_away(TOPIC, "wait")
            await running.stop_broker("broker-b")
            with pytest.raises(ConfigError, match="the broker broker-b of the topic"):
                await admin.set_when_away(TOPIC, "move")

    asyncio.run(main())
