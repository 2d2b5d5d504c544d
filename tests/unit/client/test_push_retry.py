"""The push consumer against the real broker: messages that come again, and dead letters."""

import asyncio
import re
from collections import Counter
from typing import Any

import pytest
from tests.unit.client.push_stage import committed, numbered, scenario, send
from tests.unit.client.waiting import until

from cometmq.client.admin.admin import Admin
from cometmq.client.consumer.pull_consumer import PullConsumer
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.handling.handlers import DeadLetter, RetryLater
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.core.retry.retry_policy import customized_policy
from cometmq.model import MessageQueue, SubscriptionGroupConfig


@pytest.mark.parametrize("how", ["raise", "return", "exception", "plain function"])
def test_a_failed_message_comes_again(how: str) -> None:
    """Through the retry topic, with its own topic and one more try counted."""

    async def story(name_server: str, producer: Producer) -> None:
        tries: list[tuple[str, int]] = []

        def judge(message: ReceivedMessage) -> Any:
            tries.append((message.topic, message.reconsume_times))
            if message.reconsume_times:
                return True
            if how == "exception":
                raise RuntimeError("on purpose")
            if how in ("raise", "plain function"):
                raise RetryLater(1)
            return RetryLater(1)

        async def handle(message: ReceivedMessage) -> Any:
            return judge(message)

        await send(producer, b"again")
        async with PushConsumer(
            "g",
            {"t": "*"},
            judge if how == "plain function" else handle,
            name_server=name_server,
            consume_from="first",
        ):
            if how == "exception":
                # Level 3 of the broker's choice takes ten seconds: only the way there is waited
                # for here, the message itself in the other cases.
                await until(lambda: len(tries) == 1)
                await asyncio.sleep(0.1)
            else:
                await until(lambda: len(tries) == 2)
        if how != "exception":
            assert tries == [("t", 0), ("t", 1)]
        assert await committed(name_server, "g") == 1

    scenario(story)


def test_dead_letters(caplog: pytest.LogCaptureFixture) -> None:
    """DeadLetter at once, or after the last try; either way the message is in %DLQ%."""

    async def story(name_server: str, producer: Producer) -> None:
        tries: Counter[bytes] = Counter()

        async def handle(message: ReceivedMessage) -> Any:
            tries[message.body] += 1
            if message.body == b"never":
                raise DeadLetter("no such customer")
            return RetryLater(1)

        await send(producer, b"never", b"often")
        async with (
            PushConsumer(
                "g",
                {"t": "*"},
                handle,
                name_server=name_server,
                consume_from="first",
                max_reconsume_times=1,
            ),
            PullConsumer("undertaker", name_server=name_server, consume_from="first") as reader,
        ):
            await until(lambda: tries[b"often"] == 2)
            dead: list[ReceivedMessage] = []
            await reader.assign([MessageQueue("%DLQ%g", "broker-a", 0)])
            while len(dead) < 2:
                dead += await reader.poll(5_000)
        assert sorted(message.body for message in dead) == [b"never", b"often"]
        assert {message.properties["RETRY_TOPIC"] for message in dead} == {"t"}
        assert tries == {b"never": 1, b"often": 2}

    scenario(story)
    given_up = [one.message for one in caplog.records if "gives it up" in one.message]
    assert sorted(re.findall(r"in try (\d): (.*); the group gives", "\n".join(given_up))) == [
        ("1", "no such customer"),
        ("2", "retry later at delay level 1"),
    ]


def test_list_handlers_judge_each_message() -> None:
    """One result per message: only the refused ones come again."""

    async def story(name_server: str, producer: Producer) -> None:
        tries: Counter[bytes] = Counter()

        async def handle(messages: list[ReceivedMessage]) -> Any:
            tries.update(message.body for message in messages)
            return [
                RetryLater(1) if message.body == b"3" and not message.reconsume_times else None
                for message in messages
            ]

        await send(producer, *numbered(8))
        async with PushConsumer(
            "g", {"t": "*"}, handle, name_server=name_server, consume_from="first"
        ):
            await until(lambda: tries[b"3"] == 2)
        assert tries == {body: 2 if body == b"3" else 1 for body in numbered(8)}

    scenario(story)


def test_the_group_says_how_often_and_when_a_message_is_tried_again() -> None:
    """Its retryMaxTimes and its policy hold where the consumer asks for nothing."""

    async def story(name_server: str, producer: Producer) -> None:
        policy = customized_policy([0])
        async with Admin(name_server=name_server) as admin:
            await admin.create_group(
                SubscriptionGroupConfig("g", retry_max_times=2, group_retry_policy=policy)
            )
        tries: list[int] = []

        async def refuse(message: ReceivedMessage) -> bool:
            tries.append(message.reconsume_times)
            return False

        await send(producer, b"again")
        async with PushConsumer(
            "g", {"t": "*"}, refuse, name_server=name_server, consume_from="first"
        ):
            await until(lambda: len(tries) == 3, 30)
            async with Admin(name_server=name_server) as admin:
                async with asyncio.timeout(30):
                    while "%DLQ%g" not in await admin.topic_list(include_system=True):  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
        assert tries == [0, 1, 2]

    scenario(story)
