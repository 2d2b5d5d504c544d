"""The log line of a message whose handler failed: which message, which try, and what comes next."""

import logging
from typing import Final

from cometmq.client.handling.handlers import (
    OUTCOME_STOP,
    Outcome,
    deliver_time_of,
    error_of,
    reason_of,
    unshown_error,
)
from cometmq.client.message.message import ReceivedMessage
from cometmq.core.consume.order import GiveBack, Park, Suspend
from cometmq.core.delay.levels import DelayLevels
from cometmq.core.retry.consume_retry import DELAY_LEVEL_DEAD_LETTER
from cometmq.core.retry.retry import decide_send_back
from cometmq.model.group import SubscriptionGroupConfig

__all__ = ["STOPPED", "follows", "log_failure", "next_try"]

log = logging.getLogger("cometmq.client")

_GIVEN_UP: Final = "the group gives it up, and it becomes a dead letter"
_NEXT_TRY: Final = "next try in"
STOPPED: Final = "the consumer stops, and handles it again after resume()"
_LEVELS: Final = DelayLevels()
_TRIES_DEFAULT: Final = SubscriptionGroupConfig("").retry_max_times


def next_try(
    outcome: int, reconsume_times: int, reconsume_times_max: int | None, now_ms: int
) -> str:
    """What follows when a message goes back to its broker, as brokers do it by default.

    Args:
        outcome: the delay level that the handler asked for.
        reconsume_times: failures before this one.
        reconsume_times_max: the consumer's own limit; None leaves it to the group.
        now_ms: the time of the failure.
    """
    if outcome == OUTCOME_STOP:
        return STOPPED
    limit = _TRIES_DEFAULT if reconsume_times_max is None else reconsume_times_max
    decision = decide_send_back(reconsume_times, limit, outcome)
    if outcome == DELAY_LEVEL_DEAD_LETTER or (decision.is_dead and reconsume_times_max is not None):
        return _GIVEN_UP
    if decision.is_dead:
        return f"it becomes a dead letter, unless the group allows more than {limit} tries again"
    deliver_time_ms = deliver_time_of(outcome, now_ms)
    if deliver_time_ms is not None:
        return f"{_NEXT_TRY} {max(0, deliver_time_ms - now_ms):,} ms, if its broker has timers"
    delay = _LEVELS.text.split()[_LEVELS.clamp(decision.delay_level) - 1]
    return f"{_NEXT_TRY} {delay}, unless the group or its broker has other delays"


def follows(decision: Suspend | GiveBack | Park) -> str:
    """What an ordered consumer's decision means for the message."""
    if isinstance(decision, GiveBack):
        return _GIVEN_UP
    if isinstance(decision, Park):
        return "it is parked, with the later ones of its message group"
    return f"{_NEXT_TRY} {decision.pause_ms:,} ms, before any later message of its order"


def log_failure(group: str, message: ReceivedMessage, outcome: Outcome, outlook: str) -> None:
    """Log a failed message: as a warning, with the traceback of an exception.

    Another try that the handler asked for, by `RetryLater` or False, is only information.
    """
    is_asked_for = error_of(outcome) is None and outlook.startswith(_NEXT_TRY)
    log.log(
        logging.INFO if is_asked_for else logging.WARNING,
        "group %s: the handler failed on message %s of topic %s (%s at %d) in try %d: %s; %s",
        group,
        message.message_id,
        message.topic,
        message.message_queue,
        message.queue_offset,
        message.reconsume_times + 1,
        reason_of(outcome) or "it returned False",
        outlook,
        exc_info=unshown_error(outcome),
    )
