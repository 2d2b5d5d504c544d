"""The synchronous producer of transactional messages.

Half messages and ends travel over the background loop, so that checks know which transactions still
run in this process.  The local transaction, function or block, runs in the caller's thread.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cometmq.client.base.synchronous import on_background, same_arguments
from cometmq.client.producer.sync_producer import Producer
from cometmq.client.transaction.producer import TransactionProducer as AsyncTransactionProducer
from cometmq.client.transaction.producer import TransactionSettings
from cometmq.client.transaction.values import (
    Said,
    Transaction,
    TransactionOutcome,
    TransactionResult,
    outcome_of,
)
from cometmq.model import Message, MessageQueue

__all__ = ["TransactionProducer"]


class TransactionProducer(Producer):
    """Sends messages that are delivered if, and only if, a local transaction commits.

    Arguments as `cometmq.TransactionProducer`; ``check`` and the local transaction are plain
    functions.  Checks run in worker threads, beside the program's own threads.
    """

    @same_arguments(TransactionSettings)
    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._set_up(AsyncTransactionProducer(*arguments, **options))

    def send_in_transaction(
        self,
        message: Message,
        local: Callable[[Transaction], Said],
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
        first_check_s: int | None = None,
    ) -> TransactionResult:
        """Store a half message, run ``local`` here and end the transaction with its outcome.

        An exception of ``local`` leaves the outcome to a check, and is raised.  Raises what
        `cometmq.TransactionProducer.send_in_transaction` raises.
        """
        transaction = self.begin(
            message, queue=queue, timeout_ms=timeout_ms, first_check_s=first_check_s
        )
        outcome = TransactionOutcome.UNKNOWN
        try:
            outcome = outcome_of(local(transaction), "the local transaction")
        finally:
            self.end(transaction, outcome)
        return transaction.result()

    @contextmanager
    def transaction(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
        first_check_s: int | None = None,
    ) -> Iterator[Transaction]:
        """Tie a message to a block: delivered at its end, dropped after an exception.

        If the process dies inside the block, or is interrupted, a check decides.
        """
        transaction = self.begin(
            message, queue=queue, timeout_ms=timeout_ms, first_check_s=first_check_s
        )
        try:
            yield transaction
        except BaseException as error:
            self.end(transaction, transaction.block_ended(error))
            raise
        self.end(transaction, transaction.block_ended(None))

    begin = on_background(AsyncTransactionProducer.begin)
    end = on_background(AsyncTransactionProducer.end)
