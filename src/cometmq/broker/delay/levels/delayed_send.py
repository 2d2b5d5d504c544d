"""Sends with a delay level that arrive together: what goes into SCHEDULE_TOPIC_XXXX.

Job: say what is put for a plain message with a delay level, and tell the schedule of it.  Runs are
served by `special_send`, single ones and all mistakes by the checked way (`send.py`).

Properties stay the string the client sent; REAL_TOPIC and REAL_QID are appended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from cometmq.broker.base.state import BrokerState
from cometmq.broker.delay.levels.schedule import ScheduleService
from cometmq.broker.delay.levels.unread import KeptRun
from cometmq.broker.send.send_run import CLIENT_SYS_FLAGS, Look
from cometmq.broker.send.shape_look import Keys, make_shape_look
from cometmq.broker.send.special_send import Send
from cometmq.model.names import SCHEDULE_TOPIC
from cometmq.store.base.results import PutItem
from cometmq.wire.header.fast_decode import SendCommand

__all__ = ["DelayedKind", "make_delayed_look"]

_MARK: Final = "DELAY\x01"
_CHARS_MAX: Final = 8000
_WHERES_MAX: Final = 1024
DelayedShape = tuple[int, str | None, int]
"""Delay level, tags and their code."""
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
        return keys, (int(level), shape[0], shape[1])

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

    def items(self, sends: Sequence[Send], now_ms: int) -> tuple[list[PutItem], list[PutItem]]:
        """What to put into the queues of the levels, and what is put when it is due."""
        look, where_of = self._look, self._wheres.get
        deliver_ms: dict[int, int] = {}
        items: list[PutItem] = []
        more: list[PutItem] = []
        for header, text, body in sends:
            looked = look(text)
            if looked is None:
                break
            keys, (level, _, code) = looked
            topic, queue_id = header.topic, header.queue_id
            where = where_of((topic, queue_id)) or self._where(topic, queue_id)
            time_ms = deliver_ms.get(level)
            if time_ms is None:
                time_ms = deliver_ms[level] = self._state.delay.deliver_time_ms(level, now_ms)
            try:
                raw = text.encode() + where
            except UnicodeEncodeError:
                break
            flag, born_ms = header.flag, header.born_timestamp_ms
            sys_flag = header.sys_flag & CLIENT_SYS_FLAGS
            items.append(
                (SCHEDULE_TOPIC, level - 1, body, raw, flag, sys_flag, born_ms, time_ms, keys)
            )
            more.append((topic, queue_id, body, raw, flag, sys_flag, born_ms, code, keys))
        return items, more

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
        more: Sequence[PutItem],
        placed: Sequence[tuple[int, int]],
        born_host: bytes,
        now_ms: int,
    ) -> None:
        """Tell the schedule."""
        runs: dict[int, KeptRun] = {}
        for item, real, (_, queue_offset) in zip(items, more, placed, strict=False):
            run = runs.get(item[1])
            if run is None:
                run = runs[item[1]] = KeptRun(queue_offset, now_ms, born_host, [])
            run.items.append(real)
        for queue_id, run in runs.items():
            self._schedule.added_run(queue_id + 1, run, now_ms)
