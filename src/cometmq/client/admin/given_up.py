"""Transactions that brokers have given up checking, and the request to check one again.

They lie in each broker's ``TRANS_CHECK_MAX_TIME_TOPIC``; RESUME_CHECK_HALF_MESSAGE (323) puts one
back.  This works against RocketMQ's brokers as well.  The transaction's producers decide its
outcome when they are asked.  A resumed transaction stays in that topic until retention removes it,
so it is still listed.
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
    """A half message without an outcome in time; times are in ms."""

    queue: MessageQueue
    transaction_id: str
    offset_message_id: str
    """The id by which the broker and its tools name the message."""
    group: str
    topic: str
    keys: str
    born_ms: int
    given_up_ms: int


async def given_up_transactions(reader: QueueReader) -> list[GivenUpTransaction]:
    """The given-up transactions of all brokers, oldest first.

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
    """Make a transaction open again, with its count of checks at 0.

    The broker stores it as durably as an acknowledged message.

    Raises:
        RemoteError: the broker refused; its remark says why.
    """
    header = ResumeCheckHeader(transaction.offset_message_id, TRANS_CHECK_MAX_TIME_TOPIC)
    command = RemotingCommand.request(RequestCode.RESUME_CHECK_HALF_MESSAGE, header.to_ext())
    await reader.calls.ask(reader.address(transaction.queue), command)
