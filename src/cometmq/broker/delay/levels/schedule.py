"""Delayed delivery: moves messages from SCHEDULE_TOPIC_XXXX to their topics when they are due.

Each delay level has one position in its queue, which advances when the head of the queue is due.

All messages of a level wait equally long, so its queue is in order of delivery.  Only the head
matters, and one timer for the earliest head serves all levels.  A turn delivers at most
`BATCH_COUNT` messages of a level, so that sends have their turn in between.

The delivered copy (docs/internals/delivery.md#delay-levels) keeps body, flags, born host and time,
try count and the property bytes as they are, DELAY, REAL_TOPIC and REAL_QID included; topic, queue
and tag code are the real ones.  Progress is stored after delivery and, with SYNC_FLUSH, after the
flush of what was delivered, so a crash can deliver twice, never not at all.

When a log file is to go, the messages that wait in it become exact timers (`delay.moving`), and
each level goes on behind them, as if it had delivered them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Final

from cometmq.broker.base.state import BrokerState
from cometmq.codec.java_hash import tags_code
from cometmq.codec.properties import find_property
from cometmq.codec.stored_message import StoredMessage, decode_messages
from cometmq.errors import CodecError, MessageIllegal, StoreError
from cometmq.model.names import HALF_TOPIC, SCHEDULE_TOPIC
from cometmq.model.topic import DataVersion
from cometmq.store.base.dispatch import index_keys_of
from cometmq.store.base.results import ColdRead, GetResult, GetStatus, PutItem

__all__ = ["ScheduleService"]

log = logging.getLogger("cometmq.broker")

BATCH_COUNT: Final = 128
"""Messages of one level delivered in one turn of the loop: below a millisecond of work."""
BATCH_BYTES: Final = 1024 * 1024
RETRY_MS: Final = 100
"""Pause after a failed read or put, as in ScheduleMessageService."""
FAULT_RETRY_MS: Final = 10_000
LATE_MS: Final = 5
"""Pause before the next look at a message that is put and not durable yet."""
TICK_MAX_MS: Final = 1000
"""Look at the clock at least this often while something waits: it may have been set forward."""


class _Level:
    """The position of one level in its queue.

    `due_ms` is when the head is read next, None when nothing waits.  `unflushed` has, for each
    delivery that may not be durable yet, the next queue offset and the end of the log; everything
    before `safe_offset` is durable.
    """

    def __init__(self, level: int, next_offset: int) -> None:
        self.level = level
        self.queue_id = level - 1
        self.next_offset = next_offset
        self.safe_offset = next_offset
        self.unflushed: deque[tuple[int, int]] = deque()
        self.expected_end = 0
        self.due_ms: int | None = None
        self.is_reading = False


class ScheduleService:
    """The delivery loop of all levels, and from which queue offset a restart goes on in each."""

    def __init__(
        self,
        state: BrokerState,
        offsets: Mapping[int, int] | None = None,
        version: DataVersion | None = None,
    ) -> None:
        self._state = state
        self._levels = {
            level: _Level(level, (offsets or {}).get(level, 0))
            for level in range(1, state.delay.max_level + 1)
        }
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._is_stopped = False
        self._updates = 0
        self.version = version or DataVersion()
        self._revision = 0

    @property
    def revision(self) -> int:
        """A number that grows when a restart would go on from elsewhere.

        Deliveries that are not durable yet do not count: the file of the positions would be written
        again and again with the same content until they are.
        """
        self._settle_all()
        return self._revision

    def offsets(self) -> dict[int, int]:
        """Map each level that ever delivered to the queue offset a restart goes on from."""
        return {level: offset for level, offset in self.positions().items() if offset > 0}

    def positions(self) -> dict[int, int]:
        """Map every level to the queue offset a restart goes on from."""
        self._settle_all()
        return {level: cursor.safe_offset for level, cursor in self._levels.items()}

    def take_offsets(self, offsets: Mapping[int, int]) -> None:
        """Take a master's positions, on a slave, where nothing is delivered."""
        for level, offset in offsets.items():
            cursor = self._levels.get(level)
            if cursor is not None and cursor.safe_offset != offset:
                cursor.next_offset = cursor.safe_offset = offset
                self._revision += 1

    def start(self) -> None:
        """Bring the positions into the range of their queues, and read every head."""
        now_ms = self._state.env.clock.now_ms()
        store = self._state.store
        for cursor in self._levels.values():
            low = store.min_queue_offset(SCHEDULE_TOPIC, cursor.queue_id)
            high = store.max_queue_offset(SCHEDULE_TOPIC, cursor.queue_id)
            if not low <= cursor.next_offset <= high:
                bounded = min(max(cursor.next_offset, low), high)
                log.warning(
                    "delay level %d continues at %d: its stored offset %d is outside %d..%d",
                    cursor.level,
                    bounded,
                    cursor.next_offset,
                    low,
                    high,
                )
                cursor.next_offset = cursor.safe_offset = bounded
            cursor.expected_end = high
            if cursor.next_offset < high:
                cursor.due_ms = now_ms
        self._arm(now_ms)

    def stop(self) -> None:
        """Deliver no more."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def added(self, level: int, queue_offset: int, now_ms: int) -> None:
        """Note that messages were put into a level's queue, the last one at a queue offset."""
        cursor = self._levels[level]
        cursor.expected_end = queue_offset + 1
        if cursor.due_ms is None and not cursor.is_reading:
            cursor.due_ms = now_ms + self._state.delay.delay_ms(level)
            self._arm(now_ms)

    def next_due_ms(self) -> int | None:
        """Return when the first message is due; None when nothing waits."""
        due = [cursor.due_ms for cursor in self._levels.values() if cursor.due_ms is not None]
        return min(due, default=None)

    def look_again(self) -> None:
        """Deliver what is due now, after the clock was set forward."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._is_stopped:
            self._tick()

    def next_offsets(self) -> dict[int, int]:
        """Map every level to the queue offset of the next message it delivers."""
        return {level: cursor.next_offset for level, cursor in self._levels.items()}

    def moved(self, level: int, next_offset: int, now_ms: int) -> None:
        """Go on at a queue offset: the messages before it were appended to the log as timers."""
        cursor = self._levels.get(level)
        if cursor is None or next_offset <= cursor.next_offset:
            return
        self._advance(cursor, next_offset, now_ms)
        if cursor.next_offset < cursor.expected_end and not cursor.is_reading:
            cursor.due_ms = now_ms
            self._arm(now_ms)

    def _arm(self, now_ms: int) -> None:
        waiting = [cursor.due_ms for cursor in self._levels.values() if cursor.due_ms is not None]
        if not waiting or self._is_stopped:
            return
        due_ms = min(*waiting, now_ms + TICK_MAX_MS)
        if self._timer is not None:
            if self._timer_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_ms = due_ms
        # One more millisecond: the clock has whole ones, and a timer that fires early is set twice.
        wait_s = (max(0, due_ms - now_ms) + 1) / 1000
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_ms = self._state.env.clock.now_ms()
        for cursor in self._levels.values():
            if cursor.due_ms is not None and cursor.due_ms <= now_ms:
                cursor.due_ms = None
                try:
                    self._read(cursor, now_ms)
                except Exception:
                    # One level's fault must not stop the others, nor its own next try.
                    log.exception("delay level %d failed", cursor.level)
                    cursor.due_ms = now_ms + FAULT_RETRY_MS
        self._arm(now_ms)

    def _read(self, cursor: _Level, now_ms: int, *, allow_cold: bool = False) -> None:
        """Read the head of a level and deliver what is due."""
        try:
            result = self._state.store.get(
                SCHEDULE_TOPIC,
                cursor.queue_id,
                cursor.next_offset,
                BATCH_COUNT,
                BATCH_BYTES,
                None,
                allow_cold=allow_cold,
            )
        except StoreError as error:
            log.error("delay level %d cannot be read, next try in 0.1 s: %s", cursor.level, error)
            cursor.due_ms = now_ms + RETRY_MS
            return
        if isinstance(result, ColdRead):
            cursor.is_reading = True
            self._state.env.workers.submit(result.warm, lambda _: self._warmed(cursor))
            return
        if result.status is not GetStatus.FOUND:
            self._nothing_read(cursor, result, now_ms)
            return
        self._deliver_due(cursor, b"".join(result.chunks), result.next_queue_offset, now_ms)

    def _warmed(self, cursor: _Level) -> None:
        cursor.is_reading = False
        if not self._is_stopped:
            now_ms = self._state.env.clock.now_ms()
            self._read(cursor, now_ms, allow_cold=True)
            self._arm(now_ms)

    def _nothing_read(self, cursor: _Level, result: GetResult, now_ms: int) -> None:
        """Go on where the queue begins now (its files expired), or wait for the next flush."""
        if result.max_queue_offset > cursor.next_offset:
            self._advance(cursor, max(cursor.next_offset + 1, result.next_queue_offset), now_ms)
            cursor.due_ms = now_ms
        elif cursor.next_offset < cursor.expected_end:
            cursor.due_ms = now_ms + LATE_MS

    def _deliver_due(self, cursor: _Level, data: bytes, read_to: int, now_ms: int) -> None:
        delay, level = self._state.delay, cursor.level
        copied = self._state.store.append_copies(data, now_ms - delay.delay_ms(level), now_ms)
        if copied.copy_count:
            self._advance(cursor, copied.last_queue_offset + 1, now_ms, copied.copy_count)
            data = data[copied.end :]
        if copied.waiting_ms >= 0:
            due_ms = delay.deliver_time_ms(level, copied.waiting_ms)
            cursor.due_ms = now_ms + delay.due_in_ms(level, due_ms, now_ms)
            return
        due: list[StoredMessage] = []
        wait_ms = 0
        for message in self._decode(cursor, data, read_to):
            due_ms = delay.deliver_time_ms(cursor.level, message.store_timestamp_ms)
            wait_ms = delay.due_in_ms(cursor.level, due_ms, now_ms)
            if wait_ms > 0:
                break
            due.append(message)
        delivered = 0
        while delivered < len(due):
            count = self._deliver(cursor, due, delivered, now_ms)
            if not count:
                cursor.due_ms = now_ms + RETRY_MS
                return
            delivered += count
            self._advance(cursor, due[delivered - 1].queue_offset + 1, now_ms, count)
        if wait_ms > 0:
            cursor.due_ms = now_ms + wait_ms
            return
        if cursor.next_offset < read_to:
            self._advance(cursor, read_to, now_ms)
        if cursor.next_offset < cursor.expected_end:
            cursor.due_ms = now_ms

    def _decode(self, cursor: _Level, data: bytes, read_to: int) -> list[StoredMessage]:
        try:
            return decode_messages(data)
        except CodecError as error:
            log.error(
                "delay level %d: messages %d to %d cannot be decoded and are skipped: %s; "
                "run cometmq store verify on the store",
                cursor.level,
                cursor.next_offset,
                read_to - 1,
                error,
            )
            return []

    def _advance(self, cursor: _Level, next_offset: int, now_ms: int, count: int = 1) -> None:
        cursor.next_offset = next_offset
        cursor.unflushed.append((next_offset, self._state.store.max_physical_offset))
        self._settle(cursor)
        step = self._state.config.delay_offset_update_version_step
        before = self._updates // step
        self._updates += count
        if self._updates // step > before:
            self.version = self.version.next(now_ms)
            self._revision += 1

    def _settle_all(self) -> None:
        for cursor in self._levels.values():
            self._settle(cursor)

    def _settle(self, cursor: _Level) -> None:
        """Move `safe_offset` behind the deliveries that are durable now."""
        # With ASYNC_FLUSH too: the message may be on stable storage long before its delivery is.
        store, unflushed = self._state.store, cursor.unflushed
        # A stop writes the positions, and then flushes the log.
        flushed = store.confirmed_offset if self._is_stopped else store.flushed_offset
        while unflushed and unflushed[0][1] <= flushed:
            cursor.safe_offset = unflushed.popleft()[0]
            self._revision += 1

    def _deliver(self, cursor: _Level, due: list[StoredMessage], start: int, now_ms: int) -> int:
        """Deliver messages from `start` on; return how many are done with, 0 to try again later."""
        born_host = due[start].born_host
        items: list[PutItem] = []
        for message in islice(due, start, None):
            item = self._real_item(message) if message.born_host == born_host else None
            if item is None:
                break
            items.append(item)
        if not items:
            log.error(
                "delay level %d: message %d of %s names no deliverable topic and queue: skipped",
                cursor.level,
                due[start].queue_offset,
                SCHEDULE_TOPIC,
            )
            return 1
        try:
            return len(self._state.store.append(items, born_host=born_host, store_ms=now_ms))
        except MessageIllegal as error:
            log.error(
                "delay level %d: message %d cannot be stored and is skipped: %s",
                cursor.level,
                due[start].queue_offset,
                error,
            )
            return 1
        except StoreError as error:
            log.error("delay level %d waits, next try in 0.1 s: %s", cursor.level, error)
            return 0

    def _real_item(self, message: StoredMessage) -> PutItem | None:
        """The message as it is delivered; None when it names no topic and queue."""
        raw = message.raw_properties
        target = _target(raw)
        if target is None:
            return None
        topic, queue_id, tags = target
        return PutItem(
            topic,
            queue_id,
            message.body,
            raw,
            message.flag,
            message.sys_flag,
            message.born_timestamp_ms,
            tags,
            index_keys_of(raw),
            message.reconsume_times,
            message.prepared_transaction_offset,
        )


_HALF_TOPIC: Final = HALF_TOPIC.encode()
_Target = tuple[str, int, int]
"""Topic, queue and tags code of a delivered message."""


def _target(raw: bytes) -> _Target | None:
    """Return where a message is delivered; None when its properties do not say it."""
    topic = find_property(raw, b"REAL_TOPIC")
    queue_id = find_property(raw, b"REAL_QID")
    if topic is None or queue_id is None or not queue_id.isdigit() or topic == _HALF_TOPIC:
        return None
    tags = find_property(raw, b"TAGS")
    code = tags_code(None if tags is None else tags.decode("utf-8", "replace"))
    return topic.decode(), int(queue_id), code
