"""Queue locks over sockets: granting, giving back, expiry, and the notices to those who wait."""

import asyncio
from pathlib import Path

from tests.unit.broker.harness import Client, eventually, running, scenario

from cometmq.broker import Broker
from cometmq.model import MessageQueue
from cometmq.model.group import SubscriptionData
from cometmq.wire.body.client import ConsumerData, LockBatchRequest, LockBatchResponse
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand

CONSUMER = ConsumerData("g", subscriptions=(SubscriptionData("t"),))
Q0, Q1 = MessageQueue("t", "broker-a", 0), MessageQueue("t", "broker-a", 1)


async def lock(client: Client, client_id: str, *queues: MessageQueue) -> list[MessageQueue]:
    body = LockBatchRequest("g", client_id, queues).encode()
    answer = await client.call(RequestCode.LOCK_BATCH_MQ, {}, body)
    assert answer.code == 0
    return list(LockBatchResponse.decode(answer.body).queues)


async def unlock(client: Client, client_id: str, *queues: MessageQueue) -> None:
    body = LockBatchRequest("g", client_id, queues, only_this_broker=True).encode()
    assert (await client.call(RequestCode.UNLOCK_BATCH_MQ, {}, body)).code == 0


def notice_count(client: Client) -> int:
    code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    return sum(command.code == code for command in client.pushed)


def test_one_client_holds_a_queue(tmp_path: Path) -> None:
    """Others are refused until it is given back; the body of Go and C++ has one field less."""

    async def story(broker: Broker, client: Client) -> None:
        assert await lock(client, "c1", Q0, Q1) == [Q0, Q1]
        assert await lock(client, "c2", Q0, Q1) == []
        short = (
            b'{"consumerGroup":"g","clientId":"c1",'
            b'"mqSet":[{"topic":"t","brokerName":"broker-a","queueId":0}]}'
        )
        answer = await client.call(RequestCode.LOCK_BATCH_MQ, {}, short)
        assert LockBatchResponse.decode(answer.body).queues == (Q0,)
        await unlock(client, "c2", Q0)
        assert await lock(client, "c2", Q0) == []
        await unlock(client, "c1", Q0)
        assert await lock(client, "c2", Q0, Q1) == [Q0]
        broken = await client.call(RequestCode.LOCK_BATCH_MQ, {}, b"{")
        assert broken.code == 1
        # One-way, as Java gives queues back on its way out: the next request is the first answer.
        body = LockBatchRequest("g", "c2", (Q0,)).encode()
        oneway = RemotingCommand.request(RequestCode.UNLOCK_BATCH_MQ, {}, body, oneway=True)
        client.channel.oneway(oneway)
        assert await lock(client, "c3", Q0) == [Q0]

    scenario(tmp_path, story)


def test_whoever_waits_is_told_of_a_release(tmp_path: Path) -> None:
    """Once for several queues, and nobody else."""

    async def main() -> None:
        async with running(tmp_path) as broker:
            clients = [await Client(broker.env, broker.address).open() for _ in range(3)]
            holder, waiter, other = clients
            for number, client in enumerate(clients):
                await client.heartbeat(CONSUMER, client_id=f"c{number}")
            await lock(holder, "c0", Q0, Q1)
            await lock(waiter, "c1", Q0, Q1)
            await lock(waiter, "gone", Q0)
            before = [notice_count(client) for client in clients]
            await unlock(holder, "c0", Q0)
            await unlock(holder, "c0", Q1)
            await eventually(lambda: notice_count(waiter) > before[1])
            assert await lock(waiter, "c1", Q0, Q1) == [Q0, Q1]
            after = [notice_count(client) for client in clients]
            assert after == [before[0], before[1] + 1, before[2]]
            # A release nobody waited for tells nobody, and neither does a group that is gone.
            await unlock(waiter, "c1", Q1)
            await lock(other, "c2", Q0)
            for client in clients:
                await client.close()
            await eventually(lambda: broker.state.consumers.get("g") is None)
            broker.state.queue_locks.lock("g", "c2", [Q0], broker.env.clock.now_ms())
            last = await Client(broker.env, broker.address).open()
            await unlock(last, "c1", Q0)
            assert await lock(last, "c2", Q0) == [Q0]
            await last.close()

    asyncio.run(main())


def test_whoever_waits_is_told_of_an_expiry(tmp_path: Path) -> None:
    """A member that died without a word holds its queues for the time of a lock, not longer."""

    async def main() -> None:
        async with running(tmp_path, rebalanceLockMaxLiveTime=2_000) as broker:
            holder = await Client(broker.env, broker.address).open()
            waiter = await Client(broker.env, broker.address).open()
            await waiter.heartbeat(CONSUMER, client_id="c1")
            before = notice_count(waiter)
            await lock(holder, "c0", Q1)
            assert await lock(waiter, "c1", Q1) == []
            await holder.close()
            await eventually(lambda: notice_count(waiter) > before)
            assert await lock(waiter, "c1", Q1) == [Q1]
            await waiter.close()

    asyncio.run(main())


def test_what_an_ordered_group_sends_back_is_buried(tmp_path: Path) -> None:
    """Java's ordered consumers send to the retry topic what they will not try again."""

    async def story(broker: Broker, client: Client) -> None:
        await lock(client, "c1", Q0)
        assert (await client.send(b"dead", b="%RETRY%g", j="1", l="3")).code == 0
        (message,) = await client.messages(topic="%DLQ%g")
        assert message.body == b"dead"
        await unlock(client, "c1", Q0)
        assert (await client.send(b"again", b="%RETRY%g", j="1", l="3")).code == 0
        assert len(await client.messages(topic="%DLQ%g")) == 1
        assert [one.body for one in await client.messages(topic="%RETRY%g")] == [b"again"]

    scenario(tmp_path, story)


def test_who_wants_no_notices_gets_none(tmp_path: Path) -> None:
    """notifyConsumerIdsChangedEnable: RocketMQ's behaviour, for a broker or for a group."""

    async def story(broker: Broker, client: Client) -> None:
        await client.heartbeat(CONSUMER, client_id="c1")
        await lock(client, "c0", Q0)
        assert await lock(client, "c1", Q0) == []
        await unlock(client, "c0", Q0)
        assert await lock(client, "c1", Q0) == [Q0]
        assert broker.services.queue_locks._to_notify == {}
        assert notice_count(client) == 0

    scenario(tmp_path, story, notifyConsumerIdsChangedEnable=False)


def test_a_broker_that_starts_again_knows_the_owners(tmp_path: Path) -> None:
    """Killed or stopped: the owner has its queue at once, another client has to wait.

    For the kill the file is put back as it was when the lock was answered.
    """
    file = tmp_path / "config" / "cometmqQueueLocks.json"

    async def main() -> None:
        async with running(tmp_path) as broker:
            client = await Client(broker.env, broker.address).open()
            assert await lock(client, "c1", Q0, Q1) == [Q0, Q1]
            answered = file.read_bytes()
            await unlock(client, "c1", Q1)
            await client.close()
        assert b'"c1"' in answered
        for content in (None, answered):
            if content is not None:
                file.write_bytes(content)
            async with running(tmp_path) as broker:
                client = await Client(broker.env, broker.address).open()
                assert await lock(client, "c2", Q0) == []
                assert await lock(client, "c1", Q0) == [Q0]
                free = content is None
                assert (await lock(client, "c2", Q1) == [Q1]) is free
                await unlock(client, "c2", Q1)
                await client.close()

    asyncio.run(main())


def test_damaged_locks_keep_no_broker_from_starting(tmp_path: Path) -> None:
    """Then it is as with RocketMQ: all locks are free."""
    file = tmp_path / "config" / "cometmqQueueLocks.json"

    async def main() -> None:
        async with running(tmp_path) as broker:
            client = await Client(broker.env, broker.address).open()
            assert await lock(client, "c1", Q0) == [Q0]
            await client.close()
        for path in file.parent.glob(file.name + "*"):
            path.write_bytes(b'{"renewedUntil":1,"locks":[]}')
        async with running(tmp_path) as broker:
            client = await Client(broker.env, broker.address).open()
            assert await lock(client, "c2", Q0) == [Q0]
            await client.close()

    asyncio.run(main())
