"""Messages with a delay level: they wait in SCHEDULE_TOPIC_XXXX, one queue a level."""

from __future__ import annotations

from collections.abc import Sequence

from cometmq.broker.base.state import BrokerState, Refusal
from cometmq.broker.delay.levels.schedule import ScheduleService
from cometmq.broker.send.kinds import Destination, Prepared, Send, SendKind, Shape, real_entries
from cometmq.errors import ResponseCode
from cometmq.model import properties as prop
from cometmq.model.names import SCHEDULE_TOPIC
from cometmq.store.base.results import PutResult
from cometmq.wire.header.headers import SendMessageHeader

__all__ = ["DelayedKind"]


class DelayedKind(SendKind):
    """Delayed messages of one broker; a shape's detail is the level."""

    mark = f"{prop.DELAY}\x01"
    dropped = (prop.TIMER_DELAY_SEC, prop.TIMER_DELAY_MS, prop.TIMER_DELIVER_MS)

    def __init__(self, state: BrokerState, schedule: ScheduleService) -> None:
        self._state = state
        self._schedule = schedule

    def parse(self, value: str, text: str) -> int | None:
        """Return the level, when the text is how this broker writes it."""
        if not (value.isascii() and value.isdigit()):
            return None
        level = int(value)
        return level if value == str(level) and 1 <= level <= self._state.delay.max_level else None

    def level_of(self, properties: dict[str, str]) -> int:
        """Return the level a message asks for, 0 for none.

        Raises:
            Refusal: the property is no number.
        """
        text = properties.get(prop.DELAY)
        if text is None:
            return 0
        try:
            level = int(text)
        except ValueError:
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message is illegal: property DELAY is {text!r:.50}, expected a delay level "
                f"from 0 to {self._state.delay.max_level}",
            ) from None
        return self._state.delay.clamp(level) if level > 0 else 0

    def check(self, header: SendMessageHeader, target: Destination, now_ms: int) -> None:
        """Let a message with a delay level wait.

        Raises:
            Refusal: the property is no number.
        """
        level = self.level_of(target.properties)
        if level:
            self.delay(target, level)

    def delay(self, target: Destination, level: int) -> None:
        """Let a message wait on a delay level."""
        target.kind = self
        target.detail = level
        target.properties[prop.DELAY] = str(level)
        target.reason = f"delay level {level}"

    def prepare(
        self, topic: str, queue_id: int, shape: Shape, uniq_key: str, now_ms: int
    ) -> Prepared:
        """Put it into its level's queue; its unit has the due time in place of the tags code."""
        level: int = shape.detail
        deliver_ms = self._state.delay.deliver_time_ms(level, now_ms)
        return SCHEDULE_TOPIC, level - 1, deliver_ms, real_entries(topic, queue_id)

    def stored(
        self, sends: Sequence[Send], results: Sequence[PutResult], born_host: bytes, now_ms: int
    ) -> None:
        """Tell the schedule of messages."""
        last = {
            send.shape.detail: result.queue_offset
            for send, result in zip(sends, results, strict=False)
        }
        for level, queue_offset in last.items():
            self._schedule.added(level, queue_offset, now_ms)

    def encoded(self, level: int, following: int, now_ms: int) -> None:
        """Tell the schedule of messages that the native core has put into the queue of a level."""
        self._schedule.added(level, following - 1, now_ms)
