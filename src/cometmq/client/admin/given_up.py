"""Transactions that brokers gave up asking about: which there are, and to ask about one again.

Job: read ``TRANS_CHECK_MAX_TIME_TOPIC`` of each broker as an operator, and send
RESUME_CHECK_HALF_MESSAGE (323).  Works against RocketMQ's brokers as well.
Must not: decide an outcome; the transaction's producers do, when they are asked.

What was resumed stays in that topic until retention takes it, so it is still listed.
"""

from typing import NamedTuple

from cometmq.client.base.reading import QueueReader
from cometmq.model import MessageQueue
from cometmq.model.names import TRANS_CHECK_MAX_TIME_TOPIC
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.admin import ResumeCheckHeader

__all__ = ["GivenUpTransaction", "given_up_transactions", "resume_transaction"]


class GivenUpTransaction(NamedTuple):
    """One half message nobody decided in time; times in ms."""

    queue: MessageQueue
    transaction_id: str
    offset_message_id: str
    """Where the broker keeps it; what tools call it by."""
    group: str
    topic: str
    keys: str
    born_ms: int
    given_up_ms: int


async def given_up_transactions(reader: QueueReader) -> list[GivenUpTransaction]:
    """Those of all brokers that retention has not removed, the oldest first.

    Raises:
        CometError: a broker does not answer, or refuses.
    """
    transactions: list[GivenUpTransaction] = []
    for queue in await reader.queues(TRANS_CHECK_MAX_TIME_TOPIC):
        async for message in reader.read(queue, *await reader.bounds(queue)):
            properties = message.properties
            transactions.append(
                GivenUpTransaction(
                    queue,
                    message.message_id,
                    message.stored.offset_message_id,
                    properties.get("PGROUP", ""),
                    properties.get("REAL_TOPIC", ""),
                    properties.get("KEYS", ""),
                    message.born_timestamp_ms,
                    message.store_timestamp_ms,
                )
            )
    return sorted(transactions, key=lambda transaction: transaction.given_up_ms)


async def resume_transaction(reader: QueueReader, transaction: GivenUpTransaction) -> None:
    """Put it back among the open ones, with no checks counted.

    It is on the broker's disk as a message is that the broker acknowledges.

    Raises:
        RemoteError: the broker does not take it; its remark says why.
    """
    header = ResumeCheckHeader(transaction.offset_message_id, TRANS_CHECK_MAX_TIME_TOPIC)
    command = RemotingCommand.request(RequestCode.RESUME_CHECK_HALF_MESSAGE, header.to_ext())
    await reader.calls.ask(reader.address(transaction.queue), command)
