"""A queue that goes to another member while a handler of the old owner runs."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pytest
from tests.unit.client.push_stage import committed, scenario
from tests.unit.client.waiting import until

from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.client.queue.pull_loop import PullState
from cometmq.model import Message, MessageQueue
from cometmq.model.offsets import ConsumerOffset

QUEUES = 4
EACH = 10


class Owner:
    """The member that loses queues: what its handler has begun, by queue."""

    def __init__(self) -> None:
        self.begun: dict[MessageQueue, list[int]] = defaultdict(list)
        self._thread_may_end = threading.Event()
        self._may_end = asyncio.Event()

    def free(self) -> None:
        self._thread_may_end.set()
        self._may_end.set()

    def _begin(self, message: ReceivedMessage) -> None:
        self.begun[message.message_queue].append(message.queue_offset)

    async def coroutine(self, message: ReceivedMessage) -> None:
        self._begin(message)
        await self._may_end.wait()

    def thread(self, message: ReceivedMessage) -> None:
        self._begin(message)
        self._thread_may_end.wait(60)

    async def coroutine_of_lists(self, messages: list[ReceivedMessage]) -> None:
        for message in messages:
            self._begin(message)
        await self._may_end.wait()


@pytest.mark.parametrize("kind", ["coroutine", "thread", "coroutine_of_lists"])
def test_the_old_owner_begins_no_other_message_of_it(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It neither handles what it has of the queue, nor pulls more; the new owner gets all."""

    async def story(name_server: str, producer: Producer) -> None:
        queues = sorted(await producer.fetch_publish_queues("t"))

        async def send_each(count: int) -> None:
            for queue in queues:
                for number in range(count):
                    await producer.send(Message("t", b"%d" % number), queue=queue)

        owner = Owner()
        taken: dict[MessageQueue, set[int]] = defaultdict(set)

        async def take(message: ReceivedMessage) -> None:
            taken[message.message_queue].add(message.queue_offset)

        settings: dict[str, Any] = {"name_server": name_server, "consume_from": "first"}
        async with PushConsumer(
            "g", {"t": "*"}, getattr(owner, kind), concurrency=QUEUES, **settings
        ) as first:
            await send_each(1)
            await until(lambda: len(owner.begun) == QUEUES)
            await send_each(EACH - 1)
            had = dict(first.assignments)
            store = first._ready().offsets
            commit = store.write
            is_dropped: list[bool] = []

            async def write(offsets: Mapping[MessageQueue, ConsumerOffset], *, wait: bool) -> None:
                # A commit may have to connect: handlers must not begin meanwhile.
                gone = offsets.keys() - first.assignments.keys()
                is_dropped.extend(had[queue].process_queue.dropped for queue in gone)
                await commit(offsets, wait=wait)

            monkeypatch.setattr(store, "write", write)
            await until(lambda: all(had[queue].process_queue.count == EACH for queue in queues))
            async with PushConsumer("g", {"t": "*"}, take, **settings):
                await until(lambda: len(first.assignment()) == QUEUES // 2)
                lost = set(queues) - set(first.assignment())
                assert {had[queue].loop.state for queue in lost} == {PullState.STOPPED}
                owner.free()
                everything = set(range(EACH))
                await until(lambda: all(taken[queue] == everything for queue in lost))
                await until(
                    lambda: all(
                        set(owner.begun[queue]) == everything for queue in set(queues) - lost
                    )
                )
                assert {queue: owner.begun[queue] for queue in lost} == {key: [0] for key in lost}
                assert is_dropped == [True] * len(lost)
        assert await committed(name_server, "g") == QUEUES * EACH

    scenario(story)
