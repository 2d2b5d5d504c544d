"""A program as users write it, never run: mypy checks it under --strict (test_user_program.py).

In our own check its faults are passed over by the line below, which the test takes out.
Lines that end in ``# refused: CODE`` must be refused with that code; every other line must pass.
"""
# mypy: ignore-errors

from asyncio import Future
from collections.abc import Sequence
from typing import assert_type

import cometmq.sync
from cometmq import (
    Admin,
    AllocateAveragely,
    AllocateByConfig,
    AllocateMachineRoomNearby,
    DeadLetter,
    FlowLimits,
    Message,
    MessageModel,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    SendResult,
    SendStatus,
)


async def one(message: ReceivedMessage) -> None:
    assert_type(message.body, bytes)
    assert_type(message.tags, str | None)
    assert_type(message.message_queue, MessageQueue)
    print(message.bodi)  # refused: attr-defined


async def judged(message: ReceivedMessage) -> RetryLater | bool | None:
    if message.reconsume_times > 3:
        return DeadLetter("three times is enough")
    return RetryLater(5) if message.body == b"later" else True


async def many(messages: list[ReceivedMessage]) -> None:
    print(len(messages))


async def many_judged(messages: list[ReceivedMessage]) -> list[bool]:
    return [bool(message.body) for message in messages]


def plain(message: ReceivedMessage) -> bool:
    return bool(message.body)


def plain_many(messages: Sequence[ReceivedMessage]) -> None:
    print(len(messages))


async def wrong_parameter(message: bytes) -> None:
    print(message)


async def wrong_answer(message: ReceivedMessage) -> str:
    return "RECONSUME_LATER"


def listener(added: Sequence[MessageQueue], removed: Sequence[MessageQueue]) -> None:
    print(added, removed)


async def async_listener(added: Sequence[MessageQueue], removed: Sequence[MessageQueue]) -> None:
    print(added, removed)


class Mine:
    """A strategy of the user's own needs no base class."""

    name = "MINE"

    def allocate(
        self,
        consumer_group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        client_ids: Sequence[str],
    ) -> list[MessageQueue]:
        return list(queues)


async def send() -> None:
    message = Message("Orders", b"x", tags="new", keys=("k",), message_group="g", delay_level=3)
    async with Producer("shop", name_server="127.0.0.1:9876", linger_ms=2) as producer:
        result = await producer.send(message)
        assert_type(result, SendResult)
        assert_type(result.status, SendStatus)
        assert_type(await producer.send_batch([message]), list[SendResult])
        assert_type(producer.send_nowait(message), Future[SendResult])
        await producer.send_oneway(message)
        await producer.flush()
        await producer.send(b"x")  # refused: arg-type
    Message("Orders", "text")  # refused: arg-type


async def consume() -> None:
    orders = {"Orders": "new || changed"}
    PushConsumer("g", orders, one, strategy=Mine(), rebalance_listener=listener)
    PushConsumer("g", orders, judged, rebalance_listener=async_listener)
    PushConsumer("g", orders, many, strategy=AllocateByConfig([MessageQueue("Orders", "b", 0)]))
    PushConsumer("g", orders, many_judged, flow_limits=FlowLimits(count_max=100))
    PushConsumer("g", orders, plain, message_model=MessageModel.BROADCASTING)
    PushConsumer("g", orders, plain_many, consume_from="first")
    nearby = AllocateMachineRoomNearby(
        AllocateAveragely(), lambda queue: queue.broker_name[:2], lambda client_id: client_id[:2]
    )
    PushConsumer("g", orders, lambda message: len(message.body) > 3, strategy=nearby)
    PushConsumer("g", orders, wrong_parameter)  # refused: arg-type
    PushConsumer("g", orders, wrong_answer)  # refused: arg-type
    async with PullConsumer("g", orders) as consumer:
        assert_type(await consumer.poll(100), list[ReceivedMessage])
        async for message in consumer:
            assert_type(message, ReceivedMessage)
            await consumer.seek(message.message_queue, message.queue_offset)
        assert_type(await consumer.committed(MessageQueue("Orders", "b", 0)), int | None)
    async with Admin() as admin:
        assert_type(await admin.topic_list(), list[str])


def without_asyncio() -> None:
    message = Message("Orders", b"x")
    with cometmq.sync.Producer("shop") as producer:
        assert_type(producer.send(message), SendResult)
        assert_type(producer.recall("Orders", "handle"), str)
        producer.create_topic("Orders", queue_count="8")  # refused: arg-type
        producer.flush()
    cometmq.sync.Producer("shop", retries="two")  # refused: arg-type
    cometmq.sync.Producer("shop", retry=2)  # refused: call-arg
    cometmq.sync.TransactionProducer("shop")  # refused: call-arg
    cometmq.sync.TransactionProducer("shop", check=lambda message: True, retries=1)
    with cometmq.sync.PullConsumer("g", {"Orders": "*"}) as consumer:
        for received in consumer:
            assert_type(received, ReceivedMessage)
            consumer.seek(received.message_queue, received.queue_offset)
            consumer.seek(received.message_queue, "0")  # refused: arg-type
        assert_type(consumer.poll(100), list[ReceivedMessage])
        assert_type(consumer.committed(MessageQueue("Orders", "b", 0)), int | None)
    with cometmq.sync.PushConsumer("g", {"Orders": "*"}, plain):
        pass
    with cometmq.sync.Admin() as admin:
        assert_type(admin.topic_list(), list[str])
