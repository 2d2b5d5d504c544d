"""Test environments that share topics, against a real broker that knows nothing of them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.client.waiting import until

from cometmq.client.admin.admin import Admin
from cometmq.client.base.instance import Connection
from cometmq.client.consumer.pull_consumer import PullConsumer
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.client.transaction.producer import TransactionProducer
from cometmq.errors import ConfigError
from cometmq.model import Message
from cometmq.testing.cluster import embedded_cluster

Story = Callable[[str, Admin], Awaitable[None]]


def scenario(story: Story, **settings: str) -> None:
    """Run a story against a cluster with the topic t of one queue."""

    async def run() -> None:
        async with (
            embedded_cluster(settings) as cluster,
            Admin(name_server=cluster.name_server_address) as admin,
        ):
            await admin.create_topic("t", queue_count=1)
            await story(cluster.name_server_address, admin)

    asyncio.run(asyncio.wait_for(run(), 50))


class Reader:
    """A consumer of the group g that keeps the bodies it handled."""

    def __init__(self, name_server: str, sandbox: str | None, **options: Any) -> None:
        self.bodies: list[bytes] = []
        self.failures = 0
        self.consumer = PushConsumer(
            "g", {"t": "*"}, self.handle, name_server=name_server, sandbox=sandbox, **options
        )

    async def handle(self, message: ReceivedMessage) -> None:
        self.bodies.append(message.body)
        if self.failures:
            self.failures -= 1
            raise ValueError("told to")


def test_a_sandbox_and_the_main_environment_do_not_see_each_other() -> None:
    """A lane setting isolates test environments on one cluster: each message has one reader."""

    async def story(name_server: str, admin: Admin) -> None:
        main, first, second = (Reader(name_server, name) for name in ("main", "pr-1", "pr-2"))
        async with main.consumer, first.consumer, second.consumer:
            for sandbox in (None, "main", "pr-1", "pr-2"):
                async with Producer(name_server=name_server, sandbox=sandbox) as producer:
                    for number in range(3):
                        await producer.send(Message("t", f"{sandbox} {number}".encode()))
            await until(lambda: len(main.bodies + first.bodies + second.bodies) >= 12)
            assert await admin.consumer_list("g%pr-1") == [first.consumer.client_id]
        assert sorted(main.bodies) == sorted(
            f"{name} {n}".encode() for name in (None, "main") for n in range(3)
        )
        assert first.bodies == [b"pr-1 0", b"pr-1 1", b"pr-1 2"]
        assert second.bodies == [b"pr-2 0", b"pr-2 1", b"pr-2 2"]

    scenario(story)


def test_the_main_environment_takes_the_messages_of_a_sandbox_without_consumer() -> None:
    """A sandbox that changes one service only is served by the others' main consumers."""

    async def story(name_server: str, admin: Admin) -> None:
        async with (
            PullConsumer("g", {"t": "*"}, name_server=name_server, sandbox="main") as main,
            PullConsumer("other", {"t": "*"}, name_server=name_server, sandbox="pr-1") as other,
            Producer(name_server=name_server, sandbox="pr-1") as producer,
            Producer(name_server=name_server) as plain,
        ):
            await producer.send(Message("t", b"1"))
            (message,) = await main.poll(10_000)
            assert (message.body, message.sandbox) == (b"1", "pr-1")
            assert [m.body for m in await other.poll(10_000)] == [b"1"]
            await plain.send(Message("t", b"2", properties={"COMETMQ_SANDBOX": "pr-1"}))
            assert [m.body for m in await other.poll(10_000)] == [b"2"]

    scenario(story)


def test_a_failed_message_comes_back_in_its_sandbox() -> None:
    """Its retry topic is that of the group of the sandbox; a fallback uses the main one."""

    async def story(name_server: str, admin: Admin) -> None:
        for sandbox, group in (("pr-1", "g%pr-1"), ("main", "g")):
            reader = Reader(name_server, sandbox)
            reader.failures = 1
            async with reader.consumer, Producer(name_server=name_server, sandbox="pr-1") as own:
                await own.send(Message("t", b"1"))
                await until(lambda reader=reader: len(reader.bodies) == 2, 30.0)  # type: ignore[misc]
            assert f"%RETRY%{group}" in await admin.topic_list(include_system=True)

    scenario(story, messageDelayLevel="1s 1s 1s 1s")


def test_requests_and_transactions_stay_in_a_sandbox() -> None:
    """Request and reply work within an environment, and check-backs reach its producers."""

    async def story(name_server: str, admin: Admin) -> None:
        answered: list[str] = []
        checked: list[str] = []

        def handler(name: str, connection: Connection) -> PushConsumer:
            async def handle(message: ReceivedMessage) -> None:
                answered.append(name)
                if message.body == b"ask":
                    await producers[name].reply(message, name.encode())

            return PushConsumer("g", {"t": "*"}, handle, connection=connection)

        def check(message: ReceivedMessage) -> bool:
            checked.append(str(message.sandbox))
            return True

        async with (
            Connection(name_server=name_server, sandbox="main") as main,
            Connection(name_server=name_server, sandbox="pr-1") as sandbox,
            Producer(connection=main) as first,
            Producer(connection=sandbox) as second,
            TransactionProducer("tx", check=lambda _: False, connection=main),
            TransactionProducer("tx", check=check, connection=sandbox) as sender,
        ):
            producers = {"main": first, "pr-1": second}
            async with handler("main", main), handler("pr-1", sandbox):
                for name, producer in producers.items():
                    reply = await producer.request(Message("t", b"ask"), timeout_ms=10_000)
                    assert reply.body == name.encode()
                await sender.send_in_transaction(Message("t", b"half"), lambda _: None)
                await until(lambda: answered == ["main", "pr-1", "pr-1"], 30.0)
        assert set(checked) == {"pr-1"}

    scenario(story, transactionTimeOut="1", transactionCheckInterval="50")


def test_what_is_no_sandbox() -> None:
    """Its name becomes part of a group's name; operators' clients have none."""
    for wrong in ("", "a%b", "a b", 5):
        with pytest.raises(ConfigError):
            Producer("pg", sandbox=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="longer than"):
        PullConsumer("g" * 110, {}, sandbox="s" * 20)
    with pytest.raises(ConfigError, match="has no effect on Admin"):
        Admin(sandbox="pr-1")
