"""What a user's handler is, and what its answer means.

Job: handlers' types, and an outcome from whatever one returned or raised.
Must not: run handlers (the dispatchers do), retry, commit or talk to brokers.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from cometmq.client.message import ReceivedMessage
from cometmq.core.consume_retry import DELAY_LEVEL_BY_BROKER, DELAY_LEVEL_DEAD_LETTER
from cometmq.errors import CometError

__all__ = [
    "DeadLetter",
    "Handler",
    "Outcome",
    "RetryLater",
    "Verdict",
    "outcome_of",
    "outcomes_of",
    "reason_of",
    "verdict_of_error",
]

log = logging.getLogger("cometmq.client")

Outcome = int | None
"""None for done, else the delay level of the next try (0: the broker's choice, -1: dead letter)."""


class RetryLater(CometError):
    """The handler wants the message again: ``delay_level`` 1..18, or 0 for the usual back-off."""

    def __init__(self, delay_level: int = DELAY_LEVEL_BY_BROKER, reason: str = "") -> None:
        self.delay_level = delay_level
        super().__init__(reason or f"retry later at delay level {delay_level}")


class DeadLetter(RetryLater):
    """The handler never wants the message again: it goes to the group's dead-letter topic."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(DELAY_LEVEL_DEAD_LETTER, reason or "sent to the dead-letter topic")


Verdict: TypeAlias = bool | RetryLater | None
"""What a handler returns for a message."""
Handler: TypeAlias = (
    Callable[[ReceivedMessage], Verdict | Awaitable[Verdict]]
    | Callable[
        [list[ReceivedMessage]],
        Verdict | Sequence[Verdict] | Awaitable[Verdict | Sequence[Verdict]],
    ]
)
"""Takes a `ReceivedMessage` (or a list of them); plain or ``async``.

None or True: done.  False or an exception: try again later.  `RetryLater` (returned or raised):
try again after a level of the handler's choice; `DeadLetter`: never again.  A list handler may
also return one such value per message.
"""


class _Failed(int):
    """A delay level, and why the handler asked for it."""

    reason: str = ""


def reason_of(outcome: Outcome) -> str:
    """Why a message failed, as far as its handler said."""
    return outcome.reason if isinstance(outcome, _Failed) else ""


def outcome_of(value: Any) -> Outcome:
    """What a handler's return value means."""
    if value is None or value is True:
        return None
    if isinstance(value, RetryLater):
        failed = _Failed(value.delay_level)
        failed.reason = str(value)
        return failed
    if value is False:
        return DELAY_LEVEL_BY_BROKER
    return None


def outcomes_of(value: Any, count: int) -> list[Outcome]:
    """What a list handler's return value means for each of ``count`` messages."""
    if isinstance(value, (list, tuple)):
        if len(value) == count:
            return [outcome_of(one) for one in value]
        log.warning(
            "a list handler returned %d results for %d messages; all are tried again",
            len(value),
            count,
        )
        return [DELAY_LEVEL_BY_BROKER] * count
    return [outcome_of(value)] * count


def verdict_of_error(error: Exception, message: ReceivedMessage) -> RetryLater:
    """What an exception of a handler means."""
    if isinstance(error, RetryLater):
        return error
    log.warning(
        "the handler failed on %s at %d; it will be tried again",
        message.message_queue,
        message.queue_offset,
        exc_info=error,
    )
    return RetryLater(reason=f"{type(error).__name__}: {error}")
