"""Commits of an ordered group that come when another member has got the queue since."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.unit.broker.harness import PULL_DEFAULTS, Client, scenario

from cometmq.broker import Broker
from cometmq.model import MessageQueue
from cometmq.model.group import SubscriptionData
from cometmq.wire.body.client import ConsumerData, LockBatchRequest, LockBatchResponse
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.extensions.bulk_pull import BulkPullCode

CONSUMER = ConsumerData("g", subscriptions=(SubscriptionData("t"),))
QUEUE = MessageQueue("t", "broker-a", 0)
GROUP = {"consumerGroup": "g", "topic": "t", "queueId": "0"}
COMMITTING = {**PULL_DEFAULTS, "sysFlag": "5"}
CODES = {
    "commit": (RequestCode.UPDATE_CONSUMER_OFFSET, GROUP),
    "pull": (RequestCode.PULL_MESSAGE, COMMITTING),
    "pull of nothing": (RequestCode.PULL_MESSAGE, {**COMMITTING, "queueOffset": "6"}),
    "bulk pull": (BulkPullCode.BULK_PULL, {**COMMITTING, "maxMsgNums": "1000"}),
}


async def lock(client: Client, client_id: str) -> None:
    body = LockBatchRequest("g", client_id, (QUEUE,)).encode()
    answer = await client.call(RequestCode.LOCK_BATCH_MQ, {}, body)
    assert LockBatchResponse.decode(answer.body).queues == (QUEUE,)


async def unlock(client: Client, client_id: str) -> None:
    body = LockBatchRequest("g", client_id, (QUEUE,)).encode()
    assert (await client.call(RequestCode.UNLOCK_BATCH_MQ, {}, body)).code == 0


def ordered(
    tmp_path: Path,
    how: str,
    story: Callable[[Callable[[Client, int], Awaitable[int]], list[Client]], Awaitable[None]],
) -> None:
    """Run a story with a way to commit, two members of an ordered group and a tool."""
    code, fields = CODES[how]

    async def main(broker: Broker, client: Client) -> None:
        clients = [client, *[await Client(broker.env, broker.address).open() for _ in range(2)]]

        async def commit(member: Client, consumer_offset: int) -> int:
            """Return the group's offset afterwards."""
            answer: RemotingCommand = await member.call(
                code, {**fields, "commitOffset": str(consumer_offset)}
            )
            assert answer.code in (0, 19), answer.remark
            committed = broker.state.offsets.query("g", "t", 0)
            assert committed is not None
            return committed

        for _ in range(6):
            await client.send()
        for number, member in enumerate(clients[:2]):
            await member.heartbeat(CONSUMER, client_id=f"c{number}")
        try:
            await story(commit, clients)
        finally:
            for other in clients[1:]:
                await other.close()

    scenario(tmp_path, main, maxTransferCountOnMessageInMemory=1)


@pytest.mark.parametrize("how", CODES)
def test_a_late_commit_is_not_taken(tmp_path: Path, how: str) -> None:
    """Neither back nor forth while another member has the queue; afterwards not back."""

    async def story(commit: Callable[[Client, int], Awaitable[int]], clients: list[Client]) -> None:
        first, second, tool = clients
        await lock(first, "c0")
        assert await commit(first, 3) == 3
        await unlock(first, "c0")
        # Java gives its queues back before it commits, at a shutdown.
        assert await commit(first, 4) == 4
        await lock(second, "c1")
        assert await commit(first, 3) == 4
        assert await commit(first, 5) == 4
        assert await commit(second, 5) == 5
        # The owner may go back, as in RocketMQ, and so may tools.
        assert await commit(second, 2) == 2
        assert await commit(tool, 1) == 1
        assert await commit(second, 5) == 5
        await unlock(second, "c1")
        assert await commit(first, 4) == 5
        assert await commit(first, 6) == 6
        await lock(first, "c0")
        assert await commit(first, 1) == 1

    ordered(tmp_path, how, story)


def test_the_lock_of_a_member_that_has_gone_keeps_nobody_from_going_on(tmp_path: Path) -> None:
    """A group may begin to consume without order while a dead member's lock lives on."""

    async def story(commit: Callable[[Client, int], Awaitable[int]], clients: list[Client]) -> None:
        first, second, _ = clients
        await lock(first, "c0")
        assert await commit(first, 3) == 3
        fields = {"clientID": "c0", "consumerGroup": "g"}
        assert (await first.call(RequestCode.UNREGISTER_CLIENT, fields)).code == 0
        assert await commit(second, 2) == 3
        assert await commit(second, 5) == 5

    ordered(tmp_path, "commit", story)
