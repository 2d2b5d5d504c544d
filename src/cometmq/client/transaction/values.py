"""The values of transactions: outcome, transaction, result, and the requests that end one."""

from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from cometmq.client.message.message import ReceivedMessage
from cometmq.codec.ids import decode_offset_message_id
from cometmq.errors import ConfigError
from cometmq.model import Message, SendResult
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.headers import CheckTransactionHeader, EndTransactionHeader

__all__ = [
    "Check",
    "LocalTransaction",
    "Said",
    "Transaction",
    "TransactionOutcome",
    "TransactionResult",
    "end_of_check",
    "end_of_half",
    "outcome_of",
]


class TransactionOutcome(IntEnum):
    """The outcome of a half message; the numbers are RocketMQ's."""

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


Said: TypeAlias = TransactionOutcome | bool | None
"""The result of a program's function: an outcome, or True (commit), False (rollback), None."""


class TransactionResult(NamedTuple):
    """The result of `send_in_transaction`.

    ``sent`` has no ``queue_offset``: the message gets its place in the queue with the commit.
    ``is_settled`` means that the broker has confirmed the outcome; otherwise it will ask.
    """

    sent: SendResult
    outcome: TransactionOutcome
    is_settled: bool


class Transaction:
    """One transaction whose half message is stored; its id is the message's id."""

    __slots__ = ("__weakref__", "is_settled", "message", "outcome", "sent")

    def __init__(self, message: Message, sent: SendResult) -> None:
        self.message = message
        self.sent = sent
        self.outcome: TransactionOutcome | None = None
        """The outcome; None until the block or function has set it."""
        self.is_settled = False
        """Whether the broker has confirmed the outcome."""

    @property
    def id(self) -> str:
        """The message's id.  Store it with the local transaction, because the check gets it."""
        return self.sent.message_id

    def commit(self) -> None:
        """Have the message delivered, whatever the block does afterwards."""
        self.outcome = TransactionOutcome.COMMIT

    def rollback(self) -> None:
        """Have the message dropped, also without an exception."""
        self.outcome = TransactionOutcome.ROLLBACK

    def unknown(self) -> None:
        """Leave the outcome to a later check."""
        self.outcome = TransactionOutcome.UNKNOWN

    def block_ended(self, error: BaseException | None) -> TransactionOutcome:
        """The outcome at the end of the block, unless the block has set it.

        A block that was cancelled or interrupted may have been in the middle of its commit.
        """
        if self.outcome is None:
            if error is None:
                self.outcome = TransactionOutcome.COMMIT
            elif isinstance(error, Exception):
                self.outcome = TransactionOutcome.ROLLBACK
            else:
                self.outcome = TransactionOutcome.UNKNOWN
        return self.outcome

    def result(self) -> TransactionResult:
        """The result of this transaction."""
        outcome = TransactionOutcome.UNKNOWN if self.outcome is None else self.outcome
        # The offset of the half message is one of the broker's own topic.
        sent = self.sent._replace(queue_offset=None)
        return TransactionResult(sent, outcome, self.is_settled)


LocalTransaction: TypeAlias = Callable[[Transaction], Said | Awaitable[Said]]
"""Does the local work of a transaction and returns its outcome."""
Check: TypeAlias = Callable[[ReceivedMessage], Said | Awaitable[Said]]
"""Looks up the outcome of the transaction with the message's ``message_id``."""


def outcome_of(said: object, function: str) -> TransactionOutcome:
    """Turn the result of a program's function into an outcome.

    Raises:
        ConfigError: the result means no outcome.
    """
    if isinstance(said, TransactionOutcome):
        return said
    if said is None:
        return TransactionOutcome.UNKNOWN
    if said is True:
        return TransactionOutcome.COMMIT
    if said is False:
        return TransactionOutcome.ROLLBACK
    raise ConfigError(
        f"{function} returned {said!r:.80}; it may return a TransactionOutcome, True for commit, "
        "False for rollback or None for unknown"
    )


def end_of_half(group: str, sent: SendResult, outcome: TransactionOutcome) -> RemotingCommand:
    """The request with which the producer ends its transaction."""
    assert sent.queue_offset is not None, "a half message is never delayed"
    header = EndTransactionHeader(
        producer_group=group,
        tran_state_table_offset=sent.queue_offset,
        commit_log_offset=decode_offset_message_id(sent.offset_message_id)[1],
        commit_or_rollback=outcome,
        from_transaction_check=False,
        msg_id=sent.message_id,
        transaction_id=sent.transaction_id or sent.message_id,
        topic=sent.message_queue.topic,
    )
    return RemotingCommand.request(RequestCode.END_TRANSACTION, header.to_ext())


def end_of_check(
    group: str, check: CheckTransactionHeader, topic: str, outcome: TransactionOutcome
) -> RemotingCommand:
    """The answer to a check."""
    header = EndTransactionHeader(
        producer_group=group,
        tran_state_table_offset=check.tran_state_table_offset,
        commit_log_offset=check.commit_log_offset,
        commit_or_rollback=outcome,
        from_transaction_check=True,
        msg_id=check.msg_id,
        transaction_id=check.transaction_id,
        topic=topic,
    )
    return RemotingCommand.request(RequestCode.END_TRANSACTION, header.to_ext())
