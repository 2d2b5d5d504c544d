"""Runs of sends with an exact time: what one read of a socket holds is stored together.

Job: put plain messages with TIMER_DELIVER_MS into the timer topic without the checks every topic
passed before, and tell the timers.  It must not refuse, and takes no recalls: whatever is special
or wrong, or due already, takes the checked way (`send.py`), which does it or explains.

As on the fast way of ordinary messages (`send_run`), properties stay the string the client sent;
TIMER_OUT_MS, REAL_TOPIC and REAL_QID are appended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final

from cometmq.broker.half_send import Keys, make_shape_look
from cometmq.broker.send_run import (
    CLIENT_SYS_FLAGS,
    RUN_SENDS_MAX,
    Frame,
    Look,
    Shape,
    is_plain_id,
)
from cometmq.broker.state import BrokerState
from cometmq.broker.timer import TimerService
from cometmq.broker.timer_intake import Fresh
from cometmq.codec.ids import offset_message_ids
from cometmq.codec.recall import RecallHandle, encode_recall_handle
from cometmq.model.names import TIMER_TOPIC
from cometmq.net.server import ServerConnection
from cometmq.store.results import PutItem
from cometmq.wire.fast_decode import SendCommand

__all__ = ["TimedRuns", "take_time"]

_MARK: Final = "TIMER_DELIVER_MS\x01"
_CHARS_MAX: Final = 8000
_TIME_DIGITS_MAX: Final = 18
_NO_LIMIT: Final = 2**31 - 1
"""timerCongestNumEachSlot as it is when nothing is limited."""
_RESPONSE: Final = 1
_ONEWAY: Final = 2


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


class TimedRuns:
    """Serves sends with an exact time from the front of a run on; not with SYNC_FLUSH."""

    __slots__ = ("_frame", "_is_sync_flush", "_limits", "_look", "_state", "_suffix", "_timers")

    def __init__(
        self,
        state: BrokerState,
        timers: TimerService | None,
        limits: dict[str, int],
        look: Look,
        frame: Frame,
        suffix: bytes,
    ) -> None:
        self._state = state
        self._timers = timers
        self._is_sync_flush = state.config.flush_disk_type == "SYNC_FLUSH"
        self._limits = limits
        # What is left when the time is taken out is as good as a plain string.
        self._look: Callable[[str], tuple[Keys, Shape] | None] = make_shape_look(
            look, lambda shape: shape[0]
        )
        self._frame = frame
        self._suffix = suffix

    def serve(
        self, commands: Sequence[Any], start: int, connection: ServerConnection, now_ms: int
    ) -> tuple[int, bytes]:
        """Store timed sends from `start` on; the place of the first other, the answers."""
        timers = self._timers
        is_limited = self._state.config.timer_congest_num_each_slot != _NO_LIMIT
        if timers is None or self._is_sync_flush or is_limited:
            return start, b""
        items: list[PutItem] = []
        outs: list[int] = []
        for request in islice(commands, start, start + RUN_SENDS_MAX):
            if type(request) is not SendCommand or request.flag & _RESPONSE:
                break
            made = self._item(request, timers, now_ms)
            if made is None:
                break
            items.append(made[0])
            outs.append(made[1])
        if not items:
            return start, b""
        store = self._state.store
        placed = store.put_many(items, born_host=connection.peer_host, store_ms=now_ms)
        # What was put together lies together.
        ends = [place[0] for place in placed[1:]] + [store.max_physical_offset]
        for request, out_ms, (place, queue_offset), end in zip(
            islice(commands, start, None), outs, placed, ends, strict=False
        ):
            timers.added(Fresh(queue_offset, place, end - place, out_ms, request.ext.topic, None))
        ids = offset_message_ids(self._state.host, [place[0] for place in placed])
        frames = [
            self._answer(request, message_id, place[1], out_ms, item[8][0] or "")
            for message_id, request, item, out_ms, place in zip(
                ids.split(","), islice(commands, start, None), items, outs, placed, strict=False
            )
            if not request.flag & _ONEWAY
        ]
        return start + len(placed), "".join(frames).encode("latin-1")

    def _answer(
        self, request: SendCommand, message_id: str, queue_offset: int, out_ms: int, uniq_key: str
    ) -> str:
        """With what recalls it (SendMessageProcessor.attachRecallHandle)."""
        header, name = request.ext, self._state.config.broker_name
        handle = encode_recall_handle(RecallHandle(header.topic, name, out_ms + 1, uniq_key))
        # The id is the last of the template's fields, so one more can stand behind it.
        last = f'{uniq_key}","recallHandle":"{handle}'
        return self._frame(message_id, header.queue_id, queue_offset, last, request.opaque)

    def _item(
        self, request: SendCommand, timers: TimerService, now_ms: int
    ) -> tuple[PutItem, int] | None:
        header = request.ext
        body = request.body
        config = self._state.config
        text = header.properties
        if text[-1:] != "\x02":
            text += "\x02"
        if (
            _MARK not in text
            or len(text) > _CHARS_MAX
            or not 0 <= header.queue_id < self._limits.get(header.topic, 0)
            or not 0 < len(body) <= config.max_message_size
            or header.batch
            or header.reconsume_times
            # The group may be at home elsewhere; see `growing`.
            or header.place
        ):
            return None
        taken = take_time(text)
        looked = None if taken is None else self._look(taken[1])
        if taken is None or looked is None or not is_plain_id(looked[0][0]):
            return None
        due_ms = taken[0]
        if not 0 < due_ms - now_ms <= config.timer_max_delay_sec * 1000:
            return None
        keys, shape = looked
        out_ms = timers.rules.out_ms(due_ms)
        where = (
            f"TIMER_OUT_MS\x01{out_ms}\x02"
            f"REAL_TOPIC\x01{header.topic}\x02REAL_QID\x01{header.queue_id}\x02"
        )
        try:
            properties = text.encode() + self._suffix + where.encode()
        except UnicodeEncodeError:
            return None
        item = (
            TIMER_TOPIC,
            0,
            body,
            properties,
            header.flag,
            header.sys_flag & CLIENT_SYS_FLAGS,
            header.born_timestamp_ms,
            shape[1],
            keys,
        )
        return item, out_ms
