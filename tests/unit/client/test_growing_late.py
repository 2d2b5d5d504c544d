"""Growing topics and messages that come late: open transactions, and queues that have vanished."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.unit.client.extensions.parking.test_parking import eventually
from tests.unit.client.growing_stage import (
    TOPIC,
    Readers,
    Stage,
    on_loop,
    stage,
    until,
    until_grown,
)

from cometmq import (
    Admin,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    TransactionOutcome,
)
from cometmq.client.extensions import growing_admin
from cometmq.client.extensions.parking.admin import ParkedLanes
from cometmq.client.transaction.producer import TransactionProducer
from cometmq.core.extensions.growing import BUCKET_COUNT, Growth, Phase, bucket_of, group_hash
from cometmq.errors import ConfigError, RequestTimeout
from cometmq.model import MessageQueue, TopicConfig
from cometmq.model.offsets import ConsumerOffset
from cometmq.net.env import SystemClock

GROUPS = [f"customer-{number}" for number in range(40)]
MOVING = [name for name in GROUPS if group_hash(name) % 2 == 1]
"""In queue 0 of one, and in queue 1 of two."""
GROUP = MOVING[0]
OTHER = next(name for name in MOVING if bucket_of(group_hash(name)) != bucket_of(group_hash(GROUP)))


def letter(group: str, number: int) -> Message:
    return Message(TOPIC, f"{group}:{number}".encode(), message_group=group)


def transactions(running: Stage) -> TransactionProducer:
    return TransactionProducer(
        "books", check=lambda message: TransactionOutcome.UNKNOWN, name_server=running.name_server
    )


async def moved(admin: Admin) -> int:
    return (await admin.topic_growth(TOPIC)).moved


@on_loop
async def test_a_group_with_an_open_transaction_moves_when_its_message_is_consumed(
    tmp_path: Path,
) -> None:
    """Its bucket alone waits: for the end of the transaction, then for the consumers."""
    async with (
        stage(tmp_path, "broker-a") as (running, admin),
        Producer("p", name_server=running.name_server) as producer,
        transactions(running) as books,
    ):
        await admin.create_topic(TOPIC, queue_count=1, order=True)
        readers = Readers(running, "billing", Random(5))
        await producer.send(letter(GROUP, 0))
        await admin.grow_topic(TOPIC, 2)
        open_one = await books.begin(letter(GROUP, 1))
        given_up = await books.begin(letter(OTHER, 0))
        readers.consume_all()
        await until(lambda: marks(running) == BUCKET_COUNT - 2)
        await books.end(given_up, TransactionOutcome.ROLLBACK)
        await until(lambda: marks(running) == BUCKET_COUNT - 1)
        assert (await producer.send(letter(OTHER, 0))).message_queue.queue_id == 1

        await books.end(open_one, TransactionOutcome.COMMIT)
        assert (await producer.send(letter(GROUP, 2))).message_queue.queue_id == 0
        async with books.transaction(letter(GROUP, 3)) as transaction:
            assert transaction.sent.message_queue.queue_id == 0
        assert await moved(admin) == BUCKET_COUNT - 1
        assert running.bodies("broker-a", 0, 1) == [f"{GROUP}:{n}" for n in (1, 2, 3)]
        readers.consume_all()
        await until_grown(admin)
        async with books.transaction(letter(GROUP, 4)) as transaction:
            assert transaction.sent.message_queue.queue_id == 1
        readers.consume_all()
        assert readers.seen[GROUP] == [0, 1, 2, 3, 4]


@on_loop
async def test_what_was_open_before_holds_everything(tmp_path: Path) -> None:
    """A broker that starts again knows of an open transaction its topic only."""
    async with stage(tmp_path, "broker-a") as (running, admin):
        await admin.create_topic(TOPIC, queue_count=1, order=True)
        readers = Readers(running, "billing", Random(6))
        async with transactions(running) as books:
            early = await books.begin(letter(GROUP, 0))
            await admin.grow_topic(TOPIC, 2)
            late = await books.begin(letter(GROUP, 1))
            readers.consume_all()
            await running.stop_broker("broker-a")
            await running.start_broker("broker-a")
            growing = running.brokers["broker-a"].services.growing
            for transaction in (early, late):
                # What has drained is marked at once where nothing is open.
                growing.move_on(TOPIC)
                assert marks(running) == 0
                await books.end(transaction, TransactionOutcome.COMMIT)
                assert transaction.is_settled
            growing.move_on(TOPIC)
            assert marks(running) == 0, "what was committed is not consumed"
            readers.consume_all()
            await until_grown(admin)
            async with books.transaction(letter(GROUP, 2)) as transaction:
                assert transaction.sent.message_queue.queue_id == 1
        readers.consume_all()
        assert readers.seen[GROUP] == [0, 1, 2]


@on_loop
async def test_a_late_message_brings_its_queue_back_until_it_is_consumed(tmp_path: Path) -> None:
    """A transaction without a group names a queue that has vanished when it is ended."""
    async with (
        stage(tmp_path, "broker-a") as (running, admin),
        transactions(running) as books,
    ):
        await admin.create_topic(TOPIC, queue_count=2, order=True)
        readers = Readers(running, "billing", Random(7))
        gone = MessageQueue(TOPIC, "broker-a", 1)
        async with books.transaction(Message(TOPIC, b"x:0"), queue=gone):
            pass
        running.brokers["broker-a"].state.offsets.commit("billing", TOPIC, 1, ConsumerOffset(0), 0)
        await admin.shrink_topic(TOPIC, 1)
        late = await books.begin(Message(TOPIC, b"x:1"), queue=gone)
        readers.consume_all()
        await until(lambda: len(running.queues()) == 1)
        await books.end(late, TransactionOutcome.COMMIT)
        await until(lambda: len(running.queues()) == 2)
        assert not (await admin.topic_growth(TOPIC)).is_complete
        readers.consume_all()
        assert readers.seen["x"] == [0, 1]
        await until_grown(admin)
        assert running.queues() == [("broker-a", 0)]


@on_loop
async def test_a_growth_that_was_only_begun_goes_on_without_brokers_that_came_since(
    tmp_path: Path,
) -> None:
    """The same call again finishes it, also where another broker has got the topic meanwhile."""
    write = growing_admin._write

    async def lose_moving(
        admin: Any, address: str, name: str, config: TopicConfig, growth: Growth
    ) -> None:
        if growth.phase is Phase.MOVING:
            raise RequestTimeout("no answer")
        await write(admin, address, name, config, growth)

    async with stage(tmp_path, "broker-a", "broker-b") as (_, admin):
        await admin.create_topic(TOPIC, queue_count=2, order=True, broker_name="broker-a")
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(growing_admin, "_write", lose_moving)
            with pytest.raises(RequestTimeout):
                await admin.grow_topic(TOPIC, 4, broker_names=["broker-a"])
        assert (await admin.topic_growth(TOPIC)).phase == "prepared"
        await admin.create_topic(TOPIC, queue_count=4, order=True, broker_name="broker-b")
        with pytest.raises(ConfigError, match="on its way from broker-a:2 to broker-a:4"):
            await admin.grow_topic(TOPIC, 5)
        growth = await admin.grow_topic(TOPIC, 4)
        assert (growth.epoch, growth.new) == (1, "broker-a:4")
        await until_grown(admin)


@on_loop
async def test_parked_groups_keep_a_topic_from_moving_between_brokers(tmp_path: Path) -> None:
    """On one broker a parked group grows with its topic: what comes to its new queue waits too."""
    taken: list[str] = []
    failing = True

    async def handle(message: ReceivedMessage) -> None:
        if failing:
            raise LookupError("no account")
        taken.append(message.body.decode())

    async with (
        stage(tmp_path, "broker-a", "broker-b") as (running, admin),
        Producer("p", name_server=running.name_server) as producer,
    ):
        await admin.create_topic(TOPIC, queue_count=1, order=True, broker_name="broker-a")
        for number in range(2):
            await producer.send(letter(GROUP, number))

        def consumer() -> PushConsumer:
            return PushConsumer(
                "billing",
                {TOPIC: "*"},
                handle,
                name_server=running.name_server,
                consume_from="first",
                order="group",
                suspend_ms=10,
                park_after=1,
            )

        lanes = ParkedLanes(admin.queue_reader(), "billing", SystemClock())

        async def are_parked(count: int) -> bool:
            return sum(len(lane.lane.messages) for lane in await lanes.all()) == count

        async with consumer():
            await eventually(lambda: are_parked(2))
        with pytest.raises(ConfigError, match="parked for the group billing, among them customer-"):
            await admin.grow_topic(TOPIC, 2)
        await admin.grow_topic(TOPIC, 2, broker_names=["broker-a"])
        await until_grown(admin)
        result = await producer.send(letter(GROUP, 2))
        assert result.message_queue.queue_id == 1
        async with consumer():
            await eventually(lambda: are_parked(3))
            failing = False
            (lane,) = await lanes.all()
            await lanes.retry(lane)
            await until(lambda: len(taken) == 3)
        assert taken == [f"{GROUP}:{n}" for n in range(3)]


def marks(running: Stage) -> int:
    """How many buckets of queue 0 have moved."""
    broker = running.brokers["broker-a"]
    return broker.services.growing.topics[TOPIC].moved.get(("broker-a", 0), 0).bit_count()
