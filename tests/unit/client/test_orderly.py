"""Ordered consumption against the real broker: order, failures, hand-over, order by group."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.client.waiting import until

from cometmq.client.handlers import DeadLetter, RetryLater
from cometmq.client.message import ReceivedMessage
from cometmq.client.producer import Producer
from cometmq.client.pull_consumer import PullConsumer
from cometmq.client.push_consumer import PushConsumer
from cometmq.core.process_queue import FlowLimits
from cometmq.errors import ConfigError
from cometmq.model import Message, MessageModel, MessageQueue
from cometmq.testing.cluster import embedded_cluster

Story = Callable[[str, Producer], Awaitable[None]]
WAIT_S = 30.0


def scenario(story: Story, queue_count: int = 4) -> None:
    """Run a story against a cluster with a topic ``t``."""

    async def run() -> None:
        async with (
            embedded_cluster() as cluster,
            Producer("pg", name_server=cluster.name_server_address) as producer,
        ):
            await producer.create_topic("t", queue_count=queue_count)
            await story(cluster.name_server_address, producer)

    asyncio.run(run())


def consumer(name_server: str, handler: Any, **options: Any) -> PushConsumer:
    options = {"order": "queue", "consume_from": "first", "suspend_ms": 20, **options}
    return PushConsumer("g", {"t": "*"}, handler, name_server=name_server, **options)


async def send_groups(producer: Producer, groups: str, count: int, first: int = 0) -> None:
    """``count`` numbered messages of each group, all groups side by side."""
    for number in range(first, first + count):
        await asyncio.gather(
            *[
                producer.send(Message("t", f"{group}{number}".encode(), message_group=group))
                for group in groups
            ]
        )


async def committed(name_server: str) -> int:
    """Sum of the group's stored offsets in topic t."""
    async with PullConsumer("g", name_server=name_server) as reader:
        queues = await reader.fetch_queues("t")
        return sum([await reader.committed(queue) or 0 for queue in queues])


def by_group(seen: list[bytes]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for body in seen:
        found.setdefault(body[:1].decode(), []).append(int(body[1:]))
    return found


@pytest.mark.parametrize("order", ["queue", "group"])
@pytest.mark.parametrize("kind", ["coroutine", "list", "plain", "plain list"])
def test_order_holds_for_every_kind_of_handler(kind: str, order: str) -> None:
    """Each message once, in order, all of it committed; queues or groups run side by side."""

    async def story(name_server: str, producer: Producer) -> None:
        seen: list[bytes] = []
        inside: set[str] = set()
        most = 0

        def enter(message: ReceivedMessage) -> str:
            nonlocal most
            unit = message.message_group if order == "group" else str(message.queue_id)
            assert unit is not None
            assert unit not in inside, "two handlers have one unit of order"
            inside.add(unit)
            most = max(most, len(inside))
            return unit

        async def coroutine(message: ReceivedMessage) -> None:
            unit = enter(message)
            await asyncio.sleep(0.001)
            seen.append(message.body)
            inside.remove(unit)

        async def of_list(messages: list[ReceivedMessage]) -> None:
            unit = enter(messages[0])
            await asyncio.sleep(0.001)
            seen.extend(message.body for message in messages)
            inside.remove(unit)

        def plain(message: ReceivedMessage) -> None:
            unit = enter(message)
            time.sleep(0.001)
            seen.append(message.body)
            inside.remove(unit)

        def plain_list(messages: list[ReceivedMessage]) -> None:
            unit = enter(messages[0])
            time.sleep(0.001)
            seen.extend(message.body for message in messages)
            inside.remove(unit)

        handler = {
            "coroutine": coroutine,
            "list": of_list,
            "plain": plain,
            "plain list": plain_list,
        }[kind]
        await send_groups(producer, "abcdefgh", 25)
        async with consumer(name_server, handler, order=order):
            await until(lambda: len(seen) >= 200, WAIT_S)
        assert by_group(seen) == {group: list(range(25)) for group in "abcdefgh"}
        assert most > 1
        assert await committed(name_server) == 200

    scenario(story)


@pytest.mark.parametrize("threads", [False, True])
def test_a_failure_stops_its_queue_only(threads: bool) -> None:
    """The same message again until it is taken, with a count; other queues go on."""

    async def story(name_server: str, producer: Producer) -> None:
        seen: list[bytes] = []
        tries: list[int] = []
        may_pass = False

        def judge(message: ReceivedMessage) -> bool:
            if message.body == b"a3" and not may_pass:
                tries.append(message.reconsume_times)
                return False
            seen.append(message.body)
            return True

        async def coroutine(message: ReceivedMessage) -> bool:
            return judge(message)

        await send_groups(producer, "abcdefgh", 8)
        async with consumer(name_server, judge if threads else coroutine):
            await until(lambda: len(tries) >= 3 and seen.count(b"b7") == 1, WAIT_S)
            assert by_group(seen)["a"] == [0, 1, 2]
            may_pass = True
            await until(lambda: len(seen) == 64, WAIT_S)
        assert tries == list(range(len(tries)))
        assert by_group(seen) == {group: list(range(8)) for group in "abcdefgh"}
        assert await committed(name_server) == 64

    scenario(story)
