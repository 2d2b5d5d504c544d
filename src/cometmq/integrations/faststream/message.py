"""A message as FastStream's handlers see it, and the outcome that they give it."""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from faststream.exceptions import IncorrectState
from faststream.message import AckStatus, StreamMessage

from cometmq import DeadLetter, ReceivedMessage, Reply, RetryLater

__all__ = ["CometStreamMessage", "RawMessage", "Settlement", "current_settlement"]

RawMessage = ReceivedMessage | list[ReceivedMessage] | Reply
"""What a parser gets: a message, the messages of a batch, or the reply to a request."""


@dataclass(slots=True)
class Settlement:
    """The outcome of one call of a handler, as the consumer wants it.

    ``status`` is None until somebody acknowledges; ``result`` is what the consumer gets then.
    """

    status: AckStatus | None = None
    result: RetryLater | None = None
    is_over: bool = False

    def settle(self, status: AckStatus, result: RetryLater | None) -> None:
        """Record the first outcome; later ones change nothing.

        Raises:
            IncorrectState: the handler has returned, so the consumer has its outcome.
        """
        if self.status is not None:
            return
        if self.is_over:
            raise IncorrectState(
                f"{status.value} comes after the handler has returned without one, so the message "
                "is tried again; acknowledge before the handler returns"
            )
        self.status = status
        self.result = result

    def outcome(self) -> RetryLater | None:
        """What the consumer gets when the handler has returned: None for consumed."""
        self.is_over = True
        if self.status is None:
            return RetryLater(reason="the handler returned without an acknowledgement")
        return self.result


current_settlement: Final[ContextVar[Settlement | None]] = ContextVar("settlement", default=None)
"""The settlement of the call that runs in this context; the parser binds it to the message."""


class CometStreamMessage(StreamMessage[RawMessage]):
    """A message, a batch of messages or a reply.

    ``headers`` are all properties, RocketMQ's own included.
    """

    def __init__(self, *args: Any, settlement: Settlement | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._settlement = settlement

    def _settle(self, status: AckStatus, result: RetryLater | None) -> None:
        if self._settlement is not None and self.committed is None:
            self._settlement.settle(status, result)

    async def ack(self) -> None:
        """The message is consumed."""
        self._settle(AckStatus.ACKED, None)
        await super().ack()

    async def nack(self, delay_level: int = 0, reason: str = "") -> None:
        """The message is tried again later.

        Args:
            delay_level: 1..18, or 0 for the usual back-off of the group.
            reason: for the consumer's log.
        """
        self._settle(AckStatus.NACKED, RetryLater(delay_level, reason or "nack"))
        await super().nack()

    async def reject(self, reason: str = "") -> None:
        """The message goes to the group's dead letters.

        Args:
            reason: for the consumer's log.
        """
        self._settle(AckStatus.REJECTED, DeadLetter(reason or "reject"))
        await super().reject()
