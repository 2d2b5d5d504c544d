"""Sends with an exact time that arrive together: what goes into the timer topic.

Job: say what is put for a plain message with TIMER_DELIVER_MS, and tell the timers of it.  Runs are
served by `special_send`; recalls, what is due already, single messages and all mistakes by the
checked way (`send.py`).

Properties stay the string the client sent; TIMER_OUT_MS, REAL_TOPIC and REAL_QID are appended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cometmq.broker.base.state import BrokerState
from cometmq.broker.delay.wheel.intake import Fresh
from cometmq.broker.delay.wheel.service import TimerService
from cometmq.broker.send.send_run import CLIENT_SYS_FLAGS, Look
from cometmq.broker.send.special_send import Send
from cometmq.codec.recall import encode_recall_handles, recall_handle_head
from cometmq.model.names import TIMER_TOPIC
from cometmq.store.base.results import PutItem
from cometmq.wire.header.fast_decode import SendCommand

__all__ = ["TimedKind", "take_time"]

_MARK: Final = "TIMER_DELIVER_MS\x01"
_WHERES_MAX: Final = 1024
_TIME_DIGITS_MAX: Final = 18
_NO_LIMIT: Final = 2**31 - 1
"""timerCongestNumEachSlot as it is when nothing is limited."""
_Timed = tuple[int, int, str]
"""Slot, due time in ms, and what the recall handle says."""


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
        self._look = look
        self._suffix = suffix.decode()
        self._wheres: dict[tuple[str, int], tuple[str, str]] = {}

    def is_open(self) -> bool:
        """While there are timers, and nothing is limited."""
        limit = self._state.config.timer_congest_num_each_slot
        return self._timers is not None and limit == _NO_LIMIT

    def items(self, sends: Sequence[Send], now_ms: int) -> tuple[list[PutItem], list[_Timed]]:
        """What to put into the timer topic, and when it is due."""
        items: list[PutItem] = []
        more: list[_Timed] = []
        timers = self._timers
        if timers is None:
            return items, more
        look, suffix, where_of = self._look, self._suffix, self._wheres.get
        precision_ms = timers.rules.precision_ms
        last_ms = now_ms + self._state.config.timer_max_delay_sec * 1000
        for header, text, body in sends:
            taken = take_time(text)
            if taken is None:
                break
            due_ms, rest = taken
            # What is left when the time is taken out is as good as a plain string.
            looked = look(rest)
            if looked is None or not now_ms < due_ms <= last_ms:
                break
            keys, shape = looked
            # As `TimerRules.out_ms`.
            out_ms = (due_ms - 1) // precision_ms * precision_ms
            topic, queue_id = header.topic, header.queue_id
            target, handle_head = where_of((topic, queue_id)) or self._where(topic, queue_id)
            try:
                raw = f"{text}{suffix}TIMER_OUT_MS\x01{out_ms}\x02{target}".encode()
            except UnicodeEncodeError:
                break
            items.append(
                (
                    TIMER_TOPIC,
                    0,
                    body,
                    raw,
                    header.flag,
                    header.sys_flag & CLIENT_SYS_FLAGS,
                    header.born_timestamp_ms,
                    shape[1],
                    keys,
                )
            )
            # A time in the slot (SendMessageProcessor.attachRecallHandle).
            more.append((out_ms, due_ms, f"{handle_head}{out_ms + 1} {keys[0]}"))
        return items, more

    def _where(self, topic: str, queue_id: int) -> tuple[str, str]:
        """The last properties, and how the recall handle begins."""
        if len(self._wheres) >= _WHERES_MAX:
            self._wheres.clear()
        where = self._wheres[topic, queue_id] = (
            f"REAL_TOPIC\x01{topic}\x02REAL_QID\x01{queue_id}\x02",
            recall_handle_head(topic, self._state.config.broker_name),
        )
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
        timers.added(
            [
                Fresh(
                    queue_offset,
                    place,
                    end - place,
                    out_ms,
                    header.topic,
                    None,
                    due_ms,
                    # What is due so soon need not be read again.
                    (header.topic, header.queue_id, *item[2:]) if out_ms < open_to_ms else None,
                    born_host,
                )
                for header, item, (out_ms, due_ms, _), (place, queue_offset), end in zip(
                    [request.ext for request in requests], items, more, placed, ends, strict=False
                )
            ]
        )
        return encode_recall_handles([one[2] for one in more[: len(placed)]])
