"""The copy of a failed message that a client sends to the retry topic itself.

A client does so when the broker refuses the send-back.  For delay level 0 a broker chooses level
``3 + reconsumeTimes``; the copy asks for the same level.

Source: ``ConsumeMessageConcurrentlyService`` and ``DefaultMQPushConsumerImpl.sendMessageBack``
of RocketMQ 5.4.0.
"""

from typing import Final

from cometmq.model.properties import (
    DELAY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
    WAIT,
)

__all__ = [
    "DELAY_LEVEL_BY_BROKER",
    "DELAY_LEVEL_DEAD_LETTER",
    "TIMER_LEFTOVERS",
    "fallback_properties",
]

DELAY_LEVEL_BY_BROKER: Final = 0
DELAY_LEVEL_DEAD_LETTER: Final = -1
TIMER_LEFTOVERS: Final = (
    TIMER_DELAY_SEC,
    TIMER_DELAY_MS,
    TIMER_OUT_MS,
    TIMER_ENQUEUE_MS,
    TIMER_DEQUEUE_MS,
    TIMER_ROLL_TIMES,
)
"""What an earlier timer leaves in the properties of a delivered message."""
_FIRST_RETRY_LEVEL: Final = 3
_DELAY_LEVEL_MAX: Final = 18


def fallback_properties(
    properties: dict[str, str],
    *,
    topic: str,
    message_id: str,
    reconsume_times: int,
    max_reconsume_times: int | None,
    delay_level: int,
    deliver_time_ms: int | None = None,
    delay_ms: int | None = None,
) -> dict[str, str]:
    """Return the properties of the copy for the retry topic, after the broker refused code 36.

    ``topic`` and ``message_id`` are the message's own; the origin of an earlier try stays.  An
    ordinary send has no level -1, so a count above the maximum asks for a dead letter.  With a
    maximum of None the group's settings at the broker decide.  ``deliver_time_ms`` asks for an
    exact time instead of a level, ``delay_ms`` for one by the broker's clock.
    """
    copy = dict(properties)
    copy.setdefault("RETRY_TOPIC", topic)
    copy.setdefault("ORIGIN_MESSAGE_ID", message_id)
    times = reconsume_times + 1
    if delay_level < 0:
        if max_reconsume_times is None:
            max_reconsume_times = reconsume_times
        times = max_reconsume_times + 1
    copy["RECONSUME_TIME"] = str(times)
    copy.pop("MAX_RECONSUME_TIMES", None)
    if max_reconsume_times is not None:
        copy["MAX_RECONSUME_TIMES"] = str(max_reconsume_times)
    if deliver_time_ms is not None or delay_ms is not None:
        # A level would win over the time, and a delay over another one.
        for name in (DELAY, TIMER_DELIVER_MS, *TIMER_LEFTOVERS):
            copy.pop(name, None)
        if delay_ms is not None:
            copy[TIMER_DELAY_MS] = str(delay_ms)
        else:
            copy[TIMER_DELIVER_MS] = str(deliver_time_ms)
    else:
        level = delay_level if delay_level > 0 else _FIRST_RETRY_LEVEL + reconsume_times
        copy[DELAY] = str(min(level, _DELAY_LEVEL_MAX))
    copy.pop("TRAN_MSG", None)
    # A broker stores a retry with WAIT=false, and the message is dropped once its copy is answered.
    copy.pop(WAIT, None)
    return copy
