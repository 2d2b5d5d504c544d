"""Sends with an exact time that arrive together: what goes into the timer topic.

Job: say what is put for a plain message with TIMER_DELIVER_MS, and tell the timers of it.  Runs are
served by `special_send`; recalls, what is due already, single messages and all mistakes by the
checked way (`send.py`).

Properties stay the string the client sent; TIMER_OUT_MS, REAL_TOPIC and REAL_QID are appended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from cometmq.broker.send_run import CLIENT_SYS_FLAGS, Look, Shape
from cometmq.broker.shape_look import Keys, make_shape_look
from cometmq.broker.state import BrokerState
from cometmq.broker.timer import TimerService
from cometmq.broker.timer_intake import Fresh, Kept
from cometmq.codec.recall import finish_recall_handle, recall_handle_head
from cometmq.model.names import TIMER_TOPIC
from cometmq.store.results import PutItem
from cometmq.wire.fast_decode import PlainSend, SendCommand

__all__ = ["TimedKind", "take_time"]

_MARK: Final = "TIMER_DELIVER_MS\x01"
_WHERES_MAX: Final = 1024
_TIME_DIGITS_MAX: Final = 18
_NO_LIMIT: Final = 2**31 - 1
"""timerCongestNumEachSlot as it is when nothing is limited."""
_Timed = tuple[int, int, bytes]
"""Slot, due time in ms, and how the recall handle begins."""


def take_time(text: str) -> tuple[int, str] | None:
    """The time a property string asks for, in ms, and the string without; None when unusual."""
    before, mark, after = text.partition(_MARK)
    number, _, rest = after.partition("\x02")
    if (
        not mark
        or before[-1:] not in ("", "\x02")
        or not number.isascii()
        or not number.isdigit()
        or len(number) > _TIME_DIGITS_MAX
        or "TIMER_" in rest
        or "REAL_" in text
    ):
        return None
    return int(number), before + rest


class TimedKind:
    """Sends with an exact time that arrive together (`special_send`)."""

    __slots__ = ("_look", "_state", "_suffix", "_timers", "_wheres", "mark")

    def __init__(
        self, state: BrokerState, timers: TimerService | None, look: Look, suffix: bytes
    ) -> None:
        self.mark = _MARK
        self._state = state
        self._timers = timers
        # What is left when the time is taken out is as good as a plain string.
        self._look: Callable[[str], tuple[Keys, Shape] | None] = make_shape_look(
            look, lambda shape: shape[0]
        )
        self._suffix = suffix
        self._wheres: dict[tuple[str, int, int], tuple[bytes, bytes]] = {}

    def is_open(self) -> bool:
        """While there are timers, and nothing is limited."""
        limit = self._state.config.timer_congest_num_each_slot
        return self._timers is not None and limit == _NO_LIMIT

    def item(
        self, header: PlainSend, text: str, body: bytes, now_ms: int
    ) -> tuple[PutItem, _Timed] | None:
        """What to put into the timer topic, and when it is due."""
        taken = take_time(text)
        looked = None if taken is None else self._look(taken[1])
        if taken is None or looked is None or self._timers is None:
            return None
        due_ms = taken[0]
        if not 0 < due_ms - now_ms <= self._state.config.timer_max_delay_sec * 1000:
            return None
        keys, shape = looked
        out_ms = self._timers.rules.out_ms(due_ms)
        topic, queue_id = header.topic, header.queue_id
        where = self._wheres.get((topic, queue_id, out_ms))
        if where is None:
            where = self._where(topic, queue_id, out_ms)
        tail, head = where
        item = (
            TIMER_TOPIC,
            0,
            body,
            text.encode() + tail,
            header.flag,
            header.sys_flag & CLIENT_SYS_FLAGS,
            header.born_timestamp_ms,
            shape[1],
            keys,
        )
        return item, (out_ms, due_ms, head)

    def _where(self, topic: str, queue_id: int, out_ms: int) -> tuple[bytes, bytes]:
        """What is appended to the properties, and how the recall handle begins."""
        if len(self._wheres) >= _WHERES_MAX:
            self._wheres.clear()
        text = f"TIMER_OUT_MS\x01{out_ms}\x02REAL_TOPIC\x01{topic}\x02REAL_QID\x01{queue_id}\x02"
        # A time in the slot (SendMessageProcessor.attachRecallHandle).
        head = recall_handle_head(topic, self._state.config.broker_name, out_ms + 1)
        where = self._wheres[topic, queue_id, out_ms] = self._suffix + text.encode(), head
        return where

    def stored(
        self,
        requests: Sequence[SendCommand],
        items: Sequence[PutItem],
        more: Sequence[_Timed],
        placed: Sequence[tuple[int, int]],
        born_host: bytes,
        now_ms: int,
    ) -> list[str]:
        """Tell the timers; what recalls each."""
        timers = self._timers
        assert timers is not None
        # What was put together lies together.
        ends = [place[0] for place in placed[1:]] + [self._state.store.max_physical_offset]
        open_to_ms = timers.open_to_ms
        timers.added_many(
            [
                Fresh(
                    queue_offset,
                    place,
                    end - place,
                    out_ms,
                    request.ext.topic,
                    None,
                    # What is due so soon need not be read again.
                    Kept(due_ms, request.ext.queue_id, item, born_host)
                    if out_ms < open_to_ms
                    else None,
                )
                for request, item, (out_ms, due_ms, _), (place, queue_offset), end in zip(
                    requests, items, more, placed, ends, strict=False
                )
            ]
        )
        return [
            finish_recall_handle(head, item[8][0] or "")
            for item, (_, _, head), _ in zip(items, more, placed, strict=False)
        ]
