"""Messages with an empty body, such as tombstones, at every step of their way."""

import asyncio
from collections import Counter
from typing import Any

from tests.unit.client.waiting import until

from cometmq.arrow import scan
from cometmq.client import (
    Admin,
    DeadLetter,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
)
from cometmq.client.admin.redrive import DeadLetters, Redrive
from cometmq.client.transaction.producer import TransactionProducer
from cometmq.client.transaction.values import TransactionOutcome
from cometmq.core.retry.dead_letters import DeathSelection
from cometmq.net.env import SystemClock
from cometmq.testing.cluster import embedded_cluster


def test_an_empty_body_is_delivered_as_tombstones_need_it() -> None:
    """An empty body was refused: alone, in a batch, late, transactional, tried again, redriven."""

    async def story() -> None:
        tries: Counter[str] = Counter()

        async def handle(message: ReceivedMessage) -> Any:
            assert message.body == b""
            (key,) = message.keys
            tries[key] += 1
            if key == "buried" and tries[key] == 1:
                return DeadLetter("no such account")
            return RetryLater(1) if key == "retried" and tries[key] == 1 else None

        async def redrive(admin: Admin) -> None:
            run = Redrive(DeadLetters(admin.queue_reader(), "audit"), admin, clock=SystemClock())
            while not await run.send(await run.plan(DeathSelection())):  # noqa: ASYNC110 - brokers do not call back
                await asyncio.sleep(0.05)

        def tombstone(key: str, **fields: Any) -> Message:
            return Message("Accounts", b"", keys=key, **fields)

        async with embedded_cluster() as cluster:
            address = cluster.name_server_address
            async with (
                Admin(name_server=address) as admin,
                Producer("shop", name_server=address) as producer,
                Producer("slow-shop", name_server=address, linger_ms=5) as lingering,
                TransactionProducer("bank", check=print, name_server=address) as bank,
            ):
                await admin.create_topic("Accounts", queue_count=2)
                await producer.send(tombstone("alone"))
                await producer.send(tombstone("retried"))
                await producer.send(tombstone("buried"))
                await producer.send_batch([tombstone("batch-1"), tombstone("batch-2")])
                await lingering.send(tombstone("lingering"))
                await producer.send(tombstone("late", delay_ms=10))
                transaction = await bank.begin(tombstone("transactional"))
                await bank.end(transaction, TransactionOutcome.COMMIT)
                keys = {"alone", "batch-1", "batch-2", "lingering", "late", "transactional"}
                async with PushConsumer(
                    "audit",
                    {"Accounts": "*"},
                    handle,
                    name_server=address,
                    consume_from="first",
                ):
                    await until(lambda: tries["buried"] == 1, 30)
                    await redrive(admin)
                    twice = ("retried", "buried")
                    await until(
                        lambda: keys <= tries.keys() and all(tries[key] == 2 for key in twice), 30
                    )
                    scanned = await asyncio.to_thread(
                        lambda: scan(name_server=address, topic="Accounts").read_all()
                    )
        assert scanned.column("body").to_pylist() == [b""] * 8
        assert set(tries.values()) == {1, 2}

    asyncio.run(story())
