"""Decides whether a message that a consumer sends back is delivered again or is a dead letter.

RocketMQ 5.4 (SendMessageProcessor) compares in two ways: CONSUMER_SEND_MSG_BACK makes a dead letter
at `reconsume_times` >= max, a direct send to the retry topic at > max, since the client has already
incremented the count there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cometmq.core.retry.retry_policy import RetryPolicy
from cometmq.model.group import SubscriptionGroupConfig

__all__ = [
    "DLQ_QUEUE_COUNT",
    "VERSION_WITH_MAX_RECONSUME",
    "SendBackDecision",
    "decide_send_back",
    "goes_to_dlq_on_send",
    "level_not_before",
    "max_reconsume_times",
]

VERSION_WITH_MAX_RECONSUME: Final = 121
"""Clients from 3.4.9 on send their own maxReconsumeTimes; older values are not trusted."""
DLQ_QUEUE_COUNT: Final = 1
_FIRST_RETRY_LEVEL: Final = 3


@dataclass(frozen=True, slots=True)
class SendBackDecision:
    """`is_dead` for the dead-letter topic, else the delay level before the next delivery.

    ``delay_ms`` is set where the group's own policy decides; the level is then 0, and the caller
    chooses a level or a timer for that time.
    """

    is_dead: bool
    delay_level: int
    delay_ms: int | None = None


def max_reconsume_times(
    group: SubscriptionGroupConfig, requested: int | None, client_version: int
) -> int:
    """Return the maximum the client sends, if its version sends one, else the group's."""
    if requested is not None and client_version >= VERSION_WITH_MAX_RECONSUME:
        return requested
    return group.retry_max_times


def decide_send_back(
    reconsume_times: int, max_times: int, delay_level: int, policy: RetryPolicy | None = None
) -> SendBackDecision:
    """Decide for a message whose handler failed `reconsume_times` + 1 times.

    `delay_level` < 0 asks for the dead-letter topic, 0 for the usual back-off (the group's policy
    where it has one, else level 3 + `reconsume_times`), else for a level.
    """
    if delay_level < 0 or reconsume_times >= max_times:
        return SendBackDecision(True, 0)
    if delay_level == 0 and policy is not None:
        return SendBackDecision(False, 0, policy.delay_ms(reconsume_times))
    return SendBackDecision(False, delay_level or _FIRST_RETRY_LEVEL + reconsume_times)


def level_not_before(delay_ms: int, delays_ms: Sequence[int]) -> int:
    """Return the shortest delay level that is not shorter than `delay_ms`.

    0 (no wait) for a delay of 0; the longest level for a delay longer than any.  ``delays_ms``
    holds the delay of level 1 first.
    """
    if delay_ms <= 0:
        return 0
    longer = [delay for delay in delays_ms if delay >= delay_ms]
    return delays_ms.index(min(longer) if longer else max(delays_ms)) + 1


def goes_to_dlq_on_send(reconsume_times: int, max_times: int) -> bool:
    """Whether a message that a client sends to its own retry topic becomes a dead letter."""
    return reconsume_times > max_times
