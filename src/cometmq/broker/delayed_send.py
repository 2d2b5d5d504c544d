"""Runs of sends with a delay level: what one read of a socket holds is stored together.

Job: put plain messages with a delay level into SCHEDULE_TOPIC_XXXX without the checks every topic
passed before, and tell the schedule.  It must not refuse: whatever is special or wrong takes the
checked way (`send.py`), which does it or explains.

As on the fast way of ordinary messages (`send_run`), properties stay the string the client sent;
REAL_TOPIC and REAL_QID are appended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final

from cometmq.broker.half_send import Keys, make_shape_look
from cometmq.broker.schedule import ScheduleService
from cometmq.broker.send_run import CLIENT_SYS_FLAGS, RUN_SENDS_MAX, Frame, Look, is_plain_id
from cometmq.broker.state import BrokerState
from cometmq.codec.ids import offset_message_ids
from cometmq.model.names import SCHEDULE_TOPIC
from cometmq.net.server import ServerConnection
from cometmq.store.results import PutItem
from cometmq.wire.fast_decode import SendCommand

__all__ = ["DelayedRuns", "make_delayed_look"]

_MARK: Final = "DELAY\x01"
_CHARS_MAX: Final = 8000
_RESPONSE: Final = 1
_ONEWAY: Final = 2
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


class DelayedRuns:
    """Serves sends with a delay level from the front of a run on; not with SYNC_FLUSH."""

    __slots__ = ("_frame", "_is_sync_flush", "_limits", "_look", "_schedule", "_state", "_suffix")

    def __init__(
        self,
        state: BrokerState,
        schedule: ScheduleService,
        limits: dict[str, int],
        look: Look,
        frame: Frame,
        suffix: bytes,
    ) -> None:
        self._state = state
        self._schedule = schedule
        self._is_sync_flush = state.config.flush_disk_type == "SYNC_FLUSH"
        self._limits = limits
        self._look = make_delayed_look(look, state.delay.max_level)
        self._frame = frame
        self._suffix = suffix

    def serve(
        self, commands: Sequence[Any], start: int, connection: ServerConnection, now_ms: int
    ) -> tuple[int, bytes]:
        """Store delayed sends from `start` on; the place of the first other, the answers."""
        if self._is_sync_flush:
            return start, b""
        items: list[PutItem] = []
        for request in islice(commands, start, start + RUN_SENDS_MAX):
            if type(request) is not SendCommand or request.flag & _RESPONSE:
                break
            item = self._item(request, now_ms)
            if item is None:
                break
            items.append(item)
        if not items:
            return start, b""
        state = self._state
        placed = state.store.put_many(items, born_host=connection.peer_host, store_ms=now_ms)
        # The last one of each level says all the schedule wants to know.
        last = {item[1]: place[1] for item, place in zip(items, placed, strict=False)}
        for queue_id, queue_offset in last.items():
            self._schedule.added(queue_id + 1, queue_offset, now_ms)
        frame = self._frame
        ids = offset_message_ids(state.host, [place[0] for place in placed])
        frames = [
            # Clients are told the queue the message is for.
            frame(message_id, request.ext.queue_id, place[1], item[8][0] or "", request.opaque)
            for message_id, request, item, place in zip(
                ids.split(","), islice(commands, start, None), items, placed, strict=False
            )
            if not request.flag & _ONEWAY
        ]
        return start + len(placed), "".join(frames).encode("latin-1")

    def _item(self, request: SendCommand, now_ms: int) -> PutItem | None:
        header = request.ext
        body = request.body
        text = header.properties
        if text[-1:] != "\x02":
            text += "\x02"
        if (
            _MARK not in text
            or not 0 <= header.queue_id < self._limits.get(header.topic, 0)
            or not 0 < len(body) <= self._state.config.max_message_size
            or header.batch
            or header.reconsume_times
            # The group may be at home elsewhere; see `growing`.
            or header.place
        ):
            return None
        looked = self._look(text)
        if looked is None or not is_plain_id(looked[0][0]):
            return None
        keys, (level, _) = looked
        where = f"REAL_TOPIC\x01{header.topic}\x02REAL_QID\x01{header.queue_id}\x02"
        try:
            properties = text.encode() + self._suffix + where.encode()
        except UnicodeEncodeError:
            return None
        return (
            SCHEDULE_TOPIC,
            level - 1,
            body,
            properties,
            header.flag,
            header.sys_flag & CLIENT_SYS_FLAGS,
            header.born_timestamp_ms,
            self._state.delay.deliver_time_ms(level, now_ms),
            keys,
        )
