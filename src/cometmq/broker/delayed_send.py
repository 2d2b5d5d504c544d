"""Sends with a delay level that arrive together: what goes into SCHEDULE_TOPIC_XXXX.

Job: say what is put for a plain message with a delay level, and tell the schedule of it.  Runs are
served by `special_send`, single ones and all mistakes by the checked way (`send.py`).

Properties stay the string the client sent; REAL_TOPIC and REAL_QID are appended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from cometmq.broker.schedule import ScheduleService
from cometmq.broker.send_run import CLIENT_SYS_FLAGS, Look
from cometmq.broker.shape_look import Keys, make_shape_look
from cometmq.broker.state import BrokerState
from cometmq.model.names import SCHEDULE_TOPIC
from cometmq.store.results import PutItem
from cometmq.wire.fast_decode import PlainSend, SendCommand

__all__ = ["DelayedKind", "make_delayed_look"]

_MARK: Final = "DELAY\x01"
_CHARS_MAX: Final = 8000
_WHERES_MAX: Final = 1024
DelayedShape = tuple[int, str | None]
"""Delay level and tags."""
DelayedLook = Callable[[str], tuple[Keys, DelayedShape] | None]


def make_delayed_look(look: Look, max_level: int) -> DelayedLook:
    """Build the function that looks at the property string of a message with a delay level."""

    def closer(text: str) -> tuple[Keys, DelayedShape] | None:
        before, mark, after = text.partition(_MARK)
        level, _, rest = after.partition("\x02")
        looked = look(before + rest)
        if (
            looked is None
            or not mark
            or before[-1:] not in ("", "\x02")
            or len(text) > _CHARS_MAX
            or "REAL_" in text
            or not level.isascii()
            or not level.isdigit()
            or level != str(int(level))
            or not 1 <= int(level) <= max_level
        ):
            return None
        keys, shape = looked
        return keys, (int(level), shape[0])

    return make_shape_look(closer, lambda shape: shape[1])


class DelayedKind:
    """Sends with a delay level that arrive together (`special_send`)."""

    __slots__ = ("_look", "_schedule", "_state", "_suffix", "_wheres", "mark")

    def __init__(
        self, state: BrokerState, schedule: ScheduleService, look: Look, suffix: bytes
    ) -> None:
        self.mark = _MARK
        self._state = state
        self._schedule = schedule
        self._look = make_delayed_look(look, state.delay.max_level)
        self._suffix = suffix
        self._wheres: dict[tuple[str, int], bytes] = {}

    def is_open(self) -> bool:
        """Always."""
        return True

    def item(
        self, header: PlainSend, text: str, body: bytes, now_ms: int
    ) -> tuple[PutItem, None] | None:
        """What to put into the queue of the level."""
        looked = self._look(text)
        if looked is None:
            return None
        keys, (level, _) = looked
        topic, queue_id = header.topic, header.queue_id
        where = self._wheres.get((topic, queue_id))
        if where is None:
            where = self._where(topic, queue_id)
        item = (
            SCHEDULE_TOPIC,
            level - 1,
            body,
            text.encode() + where,
            header.flag,
            header.sys_flag & CLIENT_SYS_FLAGS,
            header.born_timestamp_ms,
            self._state.delay.deliver_time_ms(level, now_ms),
            keys,
        )
        return item, None

    def _where(self, topic: str, queue_id: int) -> bytes:
        """What is appended to the properties."""
        if len(self._wheres) >= _WHERES_MAX:
            self._wheres.clear()
        text = f"REAL_TOPIC\x01{topic}\x02REAL_QID\x01{queue_id}\x02"
        where = self._wheres[topic, queue_id] = self._suffix + text.encode()
        return where

    def stored(
        self,
        requests: Sequence[SendCommand],
        items: Sequence[PutItem],
        more: Sequence[None],
        placed: Sequence[tuple[int, int]],
        born_host: bytes,
        now_ms: int,
    ) -> None:
        """Tell the schedule."""
        # The last one of each level says all it wants to know.
        last = {item[1]: place[1] for item, place in zip(items, placed, strict=False)}
        for queue_id, queue_offset in last.items():
            self._schedule.added(queue_id + 1, queue_offset, now_ms)
