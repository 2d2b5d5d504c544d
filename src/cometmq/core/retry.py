"""What becomes of a message a consumer gives back: another try later, or a dead letter.

Job: decide topic and delay level.  It must not touch stores or topics.

Two entrances differ by one comparison (SendMessageProcessor of RocketMQ 5.4): the request
CONSUMER_SEND_MSG_BACK buries at `reconsume_times` >= max, a direct send to the retry topic at
> max, since there the client has counted already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cometmq.model.group import SubscriptionGroupConfig

__all__ = [
    "DLQ_QUEUE_COUNT",
    "VERSION_WITH_MAX_RECONSUME",
    "SendBack",
    "decide_send_back",
    "goes_to_dlq_on_send",
    "max_reconsume_times",
]

VERSION_WITH_MAX_RECONSUME: Final = 121
"""Clients from 3.4.9 on send their own maxReconsumeTimes; older values are not trusted."""
DLQ_QUEUE_COUNT: Final = 1
_FIRST_RETRY_LEVEL: Final = 3


@dataclass(frozen=True, slots=True)
class SendBack:
    """The decision: `is_dead` for the dead-letter topic, else the delay level to wait."""

    is_dead: bool
    delay_level: int


def max_reconsume_times(
    group: SubscriptionGroupConfig, requested: int | None, client_version: int
) -> int:
    """Give the number of tries: the client's wish where its version sends one, else the group's."""
    if requested is not None and client_version >= VERSION_WITH_MAX_RECONSUME:
        return requested
    return group.retry_max_times


def decide_send_back(reconsume_times: int, max_times: int, delay_level: int) -> SendBack:
    """Decide for a message that was consumed `reconsume_times` + 1 times without success.

    `delay_level` < 0 asks for the dead-letter topic, 0 for the usual back-off, else for a level.
    """
    if delay_level < 0 or reconsume_times >= max_times:
        return SendBack(True, 0)
    return SendBack(False, delay_level or _FIRST_RETRY_LEVEL + reconsume_times)


def goes_to_dlq_on_send(reconsume_times: int, max_times: int) -> bool:
    """Decide for a message the client itself sends to its retry topic."""
    return reconsume_times > max_times
