"""Message store: puts messages into the log and their queues, and gets them out again.

Job: the hot paths `put`, `put_batch`, `get`, what a reader may see, and the wiring of log,
queues, flusher, index, side file and retention.  It must not know the wire or asyncio: time,
timers, workers and disk are given.  All methods belong to the loop's thread unless said.

A message is visible to readers when it is *confirmed*: at once with asynchronous flush, after
its flush with SYNC_FLUSH.  `get`, `max_queue_offset` and arrival listeners end there.

Durable when (process death / power cut):
    record       put has returned / `when_durable` has called back with True
    unit, index  about a second later; derived again from the log until then / once a minute
"""

from __future__ import annotations

import logging
import os
from collections import deque
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from cometmq.codec.consume_queue import CQ_UNIT
from cometmq.codec.properties import PROPERTIES_BYTES_MAX
from cometmq.codec.stored_message import HEAD_V4
from cometmq.errors import DiskFull, MessageIllegal, StoreClosed, StoreError
from cometmq.store.checkpoint import JavaCheckpoint
from cometmq.store.commit_log import CommitLog
from cometmq.store.consume_queue import ConsumeQueue, ConsumeQueues
from cometmq.store.disk import make_durable_directory
from cometmq.store.flush import Flusher
from cometmq.store.index_service import IndexService
from cometmq.store.queue_writer import QueueWriter
from cometmq.store.reader import QueueReader
from cometmq.store.record_encoder import LENGTHS, LENGTHS_COUNT, RecordEncoder, check_sizes
from cometmq.store.recovery import Recovery
from cometmq.store.results import PutResult, TimeBoundary
from cometmq.store.retention import Retention
from cometmq.store.upkeep import Upkeep

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.store.config import StoreConfig
    from cometmq.store.disk import Disk, StoreLock, Workers
    from cometmq.store.flush import CallLater
    from cometmq.store.results import (
        BatchItem,
        ColdRead,
        GetResult,
        IndexKeys,
        PutItem,
        QueryResult,
        RecoveryReport,
    )

__all__ = ["MessageStore"]

_LOG: Final = logging.getLogger("cometmq.store")
_TICK_SECONDS: Final = 0.1
_CRC_MASK: Final = 0x7FFFFFFF
_NO_HOST: Final = bytes(8)
# CommitLog adds this to maxMessageSize for everything but the body.
_HEAD_BYTES_MAX: Final = 64 << 10
# sysFlag 4 (prepared) and 12 (rolled back) share this bit: such messages have no queue offset.
_UNQUEUED: Final = 0x4
_ROLLBACK: Final = 0xC
_NO_KEYS: Final = (None, None, None)
# More messages than this do not wait for the timer to be indexed.
_KEYS_WAITING_MAX: Final = 4096

_pack_head: Final = HEAD_V4.pack
_pack_unit: Final = CQ_UNIT.pack


class MessageStore:
    """A store directory, open."""

    def __init__(
        self, config: StoreConfig, disk: Disk, workers: Workers, clock: Callable[[], int]
    ) -> None:
        self.config = config
        self._disk = disk
        self._workers = workers
        self._clock = clock
        self._log = CommitLog(config, disk, workers, clock)
        self._queues = ConsumeQueues(config, disk)
        self._writer = QueueWriter(config, disk, workers, self._log)
        self._flusher = Flusher(config, disk, workers, self._log, clock, self._on_flushed)
        self._index = IndexService(config, disk, workers, clock, lambda: self._log.wrote)
        self._java = JavaCheckpoint(disk, config.root)
        self._reader = QueueReader(config, disk, self._log, self._queues)
        self._reader.confirmed_offset = lambda: self.confirmed_offset
        self._retention = Retention(
            config,
            disk,
            workers,
            self._log,
            self._queues,
            self._writer,
            self._index,
            self._reader.min_of,
        )
        self._process_id = os.getpid()
        self._upkeep = Upkeep(
            config,
            disk,
            self._log,
            self._queues,
            self._writer,
            self._flusher,
            self._index,
            self._retention,
            self._java,
            self._process_id,
            lambda: self._checked_ms,
        )
        self._topics = self._queues.topics
        self._keys = self._index.pending
        self._is_indexed = config.is_index_enabled
        self._is_sync = config.is_sync_flush
        self._store_host = config.store_host
        self._encoder = RecordEncoder(config)
        self._is_wide = self._encoder.is_wide
        self._size_max = config.message_bytes_max + _HEAD_BYTES_MAX
        self._body_max = config.message_bytes_max
        self._refusal: StoreError | None = StoreClosed(
            f"store {config.root} is not loaded; call load() first"
        )
        self._checked_ms = -1
        self._checked_get_ms = -1
        self._unconfirmed: deque[tuple[int, ConsumeQueue, int, int]] = deque()
        self._call_later: CallLater | None = None
        self._lock: StoreLock | None = None
        self._is_open = False
        self.arrival_listener: Callable[[str, int, int, int], None] | None = None
        """Called with topic, queue id, next queue offset and tags code when a message becomes
        visible on a watched queue."""

    # -- life ----------------------------------------------------------------------------

    def load(self, progress: Callable[[str, int, int], None] | None = None) -> RecoveryReport:
        """Take the lock, recover, and be ready for reads and writes.  Blocks."""
        root = self.config.root
        make_durable_directory(self._disk, root)
        make_durable_directory(self._disk, self._log.path)
        self._lock = self._disk.lock(f"{root}/lock")
        try:
            recovery = Recovery(
                self.config,
                self._disk,
                self._log,
                self._queues,
                self._writer,
                self._index,
                self._java,
                self._clock,
                self._process_id,
            )
            report = recovery.run(progress)
            self._flusher.flushed = min(recovery.flushed, self._log.wrote)
            # A process that died may have left files whose names were not synced yet.
            self._disk.sync_dir(self._log.path)
            if self._is_sync:
                # What readers may see must be on stable storage.
                self._flusher.flush_all()
            self._reader.damaged = recovery.damaged
            self._upkeep.begin(recovery.floors)
            self._disk.write_atomic(f"{root}/abort", str(self._process_id).encode())
        except BaseException:
            self._lock.release()
            raise
        self._refusal = None
        self._is_open = True
        return report

    def start(self, call_later: CallLater) -> None:
        """Begin the timers; `call_later(seconds, callback)` is the loop's."""
        self._call_later = call_later
        self._flusher.start(call_later)
        call_later(_TICK_SECONDS, self._tick)

    def close(self) -> None:
        """Flush and write everything and give the directory back.  Blocks; safe to repeat."""
        if not self._is_open:
            return
        self._is_open = False
        self._refusal = StoreClosed(f"store {self.config.root} is closed")
        try:
            self._writer.stop()
            self._index.stop()
            self._flusher.flush_all()
            self._writer.write_all()
            self._index.write_all()
            self._writer.sync_all()
            self._index.sync_all()
            self._upkeep.finish()
            self._disk.remove(f"{self.config.root}/abort")
        finally:
            self._flusher.close()
            self._writer.close()
            self._index.close()
            self._queues.close()
            self._log.close()
            if self._lock is not None:
                self._lock.release()

    def _tick(self) -> None:
        call_later = self._call_later
        if not self._is_open or call_later is None:
            return
        try:
            self._upkeep.tick(self._clock())
            self._update_refusal()
        except Exception:
            _LOG.exception("the store's timer failed; it goes on")
        call_later(_TICK_SECONDS, self._tick)

    def _update_refusal(self) -> None:
        """Writes are refused while the disk is full, and accepted again by themselves."""
        if self._log.is_full:
            self._log.reserve_next()
        if self._log.is_full:
            self._refusal = DiskFull(
                f"no space for the next commit-log file in {self._log.path};"
                " free space on this file system, writing starts again by itself"
            )
        elif self._retention.is_full:
            self._refusal = DiskFull(
                f"disk of {self.config.root} is used to {self._retention.used_percent} %, above"
                f" {self.config.disk_warning_percent} %: writes are refused until it is below"
                f" {self.config.disk_clean_forcibly_percent} %"
            )
        elif isinstance(self._refusal, DiskFull):
            self._refusal = None

    # -- put -----------------------------------------------------------------------------

    def put(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: bytes,
        *,
        flag: int = 0,
        sys_flag: int = 0,
        born_ms: int = 0,
        born_host: bytes = _NO_HOST,
        reconsume_times: int = 0,
        prepared_offset: int = 0,
        tags_code: int = 0,
        store_ms: int = 0,
        index_keys: IndexKeys | None = None,
    ) -> PutResult:
        """Append one message and its unit.

        `properties` is the encoded string, `tags_code` what filters compare (the delivery time
        for SCHEDULE_TOPIC_XXXX), `store_ms` the broker's clock.  Raises DiskFull, MessageIllegal
        or StoreClosed; nothing was stored then.
        """
        try:
            queue = self._topics[topic][queue_id]
        except KeyError:
            queue = self._new_queue(topic, queue_id)
        body_bytes = len(body)
        properties_bytes = len(properties)
        if (
            self._refusal is not None
            or body_bytes > self._body_max
            or properties_bytes > PROPERTIES_BYTES_MAX
        ):
            self._refuse(body_bytes, properties_bytes)
        if store_ms != self._checked_ms:
            self._check(store_ms)
        queue_offset = 0 if sys_flag & _UNQUEUED else queue.max
        log = self._log
        if self._is_wide or len(born_host) != 8:
            position, size = self._append_wide(
                queue,
                queue_offset,
                body,
                properties,
                flag,
                sys_flag,
                born_ms,
                born_host,
                reconsume_times,
                prepared_offset,
                store_ms,
            )
            end = position + size
        else:
            size = queue.fixed_bytes + body_bytes + properties_bytes
            position = log.wrote
            end = position + size
            if end > log.limit:
                position = self._make_room(size)
                end = position + size
            start = position - log.buffer_start
            log.buffer[start : start + size] = b"".join(
                (
                    _pack_head(
                        size,
                        queue.magic,
                        crc32(body) & _CRC_MASK,
                        queue_id,
                        flag,
                        queue_offset,
                        position,
                        sys_flag,
                        born_ms,
                        born_host,
                        store_ms,
                        self._store_host,
                        reconsume_times,
                        prepared_offset,
                        body_bytes,
                    ),
                    body,
                    queue.topic_part,
                    LENGTHS[properties_bytes]
                    if properties_bytes < LENGTHS_COUNT
                    else properties_bytes.to_bytes(2, "big"),
                    properties,
                )
            )
            log.wrote = end
        if index_keys is not None and self._is_indexed and sys_flag & _ROLLBACK != _ROLLBACK:
            self._keys.append((topic, position, store_ms, index_keys))
        if sys_flag & _UNQUEUED:
            return PutResult(position, 0, end)
        queue.tail += _pack_unit(position, size, tags_code)
        following = queue_offset + 1
        queue.max = following
        if not queue.is_dirty:
            self._writer.mark(queue, position, store_ms)
        if self._is_sync:
            self._unconfirmed.append((end, queue, following, tags_code))
            self._flusher.request()
        else:
            queue.visible = following
            if queue.is_watched and self.arrival_listener is not None:
                self.arrival_listener(topic, queue_id, following, tags_code)
        return PutResult(position, queue_offset, end)

    def put_many(
        self, items: Sequence[PutItem], *, born_host: bytes, store_ms: int
    ) -> list[tuple[int, int]]:
        """Append messages of any queues, the first ones of `items` that are simple to append.

        Returns physical and queue offset of each.  The first one left out needs `put`: it makes
        room where the window is full, writes the general form, or says why it refuses.  One long
        loop, as here a call costs as much as three of its steps.
        """
        placed: list[tuple[int, int]] = []
        if self._refusal is not None or self._is_wide or len(born_host) != 8:
            return placed
        if store_ms != self._checked_ms:
            self._check(store_ms)
        log, topics, store_host = self._log, self._topics, self._store_host
        first = position = log.wrote
        limit, body_max = log.limit, self._body_max
        is_sync, is_indexed = self._is_sync, self._is_indexed
        add_key = self._keys.append
        parts: list[bytes] = []
        arrivals: list[tuple[str, int, int, int]] = []
        try:
            for topic, queue_id, body, properties, flag, sys_flag, born_ms, code, keys in items:
                try:
                    queue = topics[topic][queue_id]
                except KeyError:
                    break
                body_bytes = len(body)
                properties_bytes = len(properties)
                size = queue.fixed_bytes + body_bytes + properties_bytes
                end = position + size
                if (
                    end > limit
                    or body_bytes > body_max
                    or properties_bytes >= LENGTHS_COUNT
                    or sys_flag & _UNQUEUED
                ):
                    break
                queue_offset = queue.max
                head = _pack_head(
                    size,
                    queue.magic,
                    crc32(body) & _CRC_MASK,
                    queue_id,
                    flag,
                    queue_offset,
                    position,
                    sys_flag,
                    born_ms,
                    born_host,
                    store_ms,
                    store_host,
                    0,
                    0,
                    body_bytes,
                )
                queue.tail += _pack_unit(position, size, code)
                # From here on nothing fails any more: record, unit and offsets belong together.
                parts += (head, body, queue.topic_part, LENGTHS[properties_bytes], properties)
                following = queue.max = queue_offset + 1
                placed.append((position, queue_offset))
                if is_indexed:
                    add_key((topic, position, store_ms, keys))
                if not queue.is_dirty:
                    self._writer.mark(queue, position, store_ms)
                if is_sync:
                    self._unconfirmed.append((end, queue, following, code))
                else:
                    queue.visible = following
                    if queue.is_watched:
                        arrivals.append((topic, queue_id, following, code))
                position = end
        finally:
            start = first - log.buffer_start
            log.buffer[start : start + position - first] = b"".join(parts)
            log.wrote = position
        if placed:
            self._told(arrivals)
        return placed

    def _told(self, arrivals: list[tuple[str, int, int, int]]) -> None:
        """After messages of many queues: ask for their flush, or tell who watches."""
        if self._is_sync:
            self._flusher.request()
        if self.arrival_listener is not None:
            for arrival in arrivals:
                self.arrival_listener(*arrival)

    def put_batch(
        self,
        topic: str,
        queue_id: int,
        items: Sequence[BatchItem],
        *,
        sys_flag: int = 0,
        born_ms: int = 0,
        born_host: bytes = _NO_HOST,
        reconsume_times: int = 0,
        store_ms: int = 0,
    ) -> PutResult:
        """Append messages with consecutive queue offsets, all in one file.

        Raises as `put`; nothing was stored then.
        """
        try:
            queue = self._topics[topic][queue_id]
        except KeyError:
            queue = self._new_queue(topic, queue_id)
        if self._refusal is not None:
            self._refuse(0, 0)
        if store_ms != self._checked_ms:
            self._check(store_ms)
        log = self._log
        encode = self._encoder.encode_batch
        record, units, offsets = encode(
            queue, items, log.wrote, sys_flag, born_ms, born_host, reconsume_times, store_ms
        )
        position = log.wrote
        size = len(record)
        if position + size > log.limit:
            position = self._make_room(size)
            record, units, offsets = encode(
                queue, items, position, sys_flag, born_ms, born_host, reconsume_times, store_ms
            )
        start = position - log.buffer_start
        end = position + size
        log.buffer[start : start + size] = record
        log.wrote = end
        if self._is_indexed:
            keys = [item[4] or _NO_KEYS for item in items]
            self._keys += zip(repeat(topic), offsets, repeat(store_ms), keys)
        queue_offset = queue.max
        following = queue_offset + len(items)
        queue.tail += units
        queue.max = following
        if not queue.is_dirty:
            self._writer.mark(queue, position, store_ms)
        if self._is_sync:
            self._unconfirmed.append((end, queue, following, items[-1][3]))
            self._flusher.request()
        else:
            queue.visible = following
            if queue.is_watched and self.arrival_listener is not None:
                for code in {item[3] for item in items}:
                    self.arrival_listener(topic, queue_id, following, code)
        return PutResult(position, queue_offset, end, tuple(offsets))

    def _append_wide(self, queue: ConsumeQueue, *values: Any) -> tuple[int, int]:
        """Append one record in the general form; its physical offset and size."""
        log = self._log
        position = log.wrote
        record = self._encoder.encode(queue, position, *values)
        size = len(record)
        if position + size > log.limit:
            position = self._make_room(size)
            record = self._encoder.encode(queue, position, *values)
        start = position - log.buffer_start
        log.buffer[start : start + size] = record
        log.wrote = position + size
        return position, size

    def _new_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        if self._refusal is not None:
            self._refuse(0, 0)
        if not topic or "/" in topic or topic in {".", ".."} or queue_id < 0:
            raise MessageIllegal(f"topic {topic!r}, queue id {queue_id} cannot be a directory")
        raw_bytes = len(topic.encode())
        if raw_bytes > 255:
            raise MessageIllegal(f"topic of {raw_bytes} bytes; a record holds at most 255")
        queue = self._queues.add(topic, queue_id)
        queue.min_checked_at = self._log.min_offset
        return queue

    def _refuse(self, body_bytes: int, properties_bytes: int) -> None:
        """Raise what stands against the put."""
        refusal = self._refusal
        if refusal is not None:
            raise type(refusal)(*refusal.args)
        check_sizes(body_bytes, properties_bytes, self._body_max)

    def _make_room(self, size: int) -> int:
        if size > self._size_max:
            raise MessageIllegal(f"{size} bytes are over maxMessageSize {self._body_max}")
        try:
            return self._log.make_room(size)
        except DiskFull:
            # Do not try again with every message; the timer does.
            self._update_refusal()
            raise

    def _check(self, store_ms: int) -> None:
        """Once a millisecond: is the file still there, do too many keys wait?"""
        self._checked_ms = store_ms
        if len(self._keys) > _KEYS_WAITING_MAX:
            self._index.drain(store_ms)
        if self._log.is_active_file_cut():
            self._upkeep.leave_cut_file()

    # -- confirmation --------------------------------------------------------------------

    @property
    def confirmed_offset(self) -> int:
        """Readers see the log up to here."""
        return self._flusher.flushed if self._is_sync else self._log.wrote

    @property
    def flushed_offset(self) -> int:
        """The log is on stable storage up to here."""
        return self._flusher.flushed

    @property
    def max_physical_offset(self) -> int:
        """Where the next record will be written (a BLANK may come first)."""
        return self._log.wrote

    @property
    def min_physical_offset(self) -> int:
        """Where the log begins."""
        return self._log.min_offset

    def when_durable(self, end_offset: int, callback: Callable[[bool], None]) -> None:
        """Call back on the loop: True once flushed up to `end_offset`, False after the time-out.

        Waiting calls share flushes (group commit).
        """
        self._flusher.when_durable(end_offset, callback)

    def _on_flushed(self, flushed: int) -> None:
        unconfirmed = self._unconfirmed
        while unconfirmed and unconfirmed[0][0] <= flushed:
            _, queue, following, tags_code = unconfirmed.popleft()
            queue.visible = following
            if queue.is_watched and self.arrival_listener is not None:
                self.arrival_listener(queue.topic, queue.queue_id, following, tags_code)

    def watch(self, topic: str, queue_id: int) -> None:
        """Call the arrival listener for this queue from now on."""
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            queue = self._new_queue(topic, queue_id)
        queue.is_watched = True

    def unwatch(self, topic: str, queue_id: int) -> None:
        """No longer call the arrival listener for this queue."""
        queue = self._queues.find(topic, queue_id)
        if queue is not None:
            queue.is_watched = False

    # -- get -----------------------------------------------------------------------------

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        max_bytes: int = 1 << 27,
        codes: frozenset[int] | None = None,
        match: Callable[[memoryview], bool] | None = None,
        *,
        allow_cold: bool = False,
    ) -> GetResult | ColdRead:
        """Read from a queue offset on, with the statuses of RocketMQ (store.md 3.9).

        `codes` filters by tags code, `match` by the record.  Returns ColdRead instead of
        blocking when bytes are not in memory, unless `allow_cold`.
        """
        if not self._is_open:
            raise StoreClosed(f"store {self.config.root} is not open")
        now_ms = self._clock()
        if now_ms != self._checked_get_ms:
            self._checked_get_ms = now_ms
            self._log.check_windows()
            if self._log.is_active_file_cut():
                self._upkeep.leave_cut_file()
        return self._reader.get(
            topic, queue_id, queue_offset, max_count, max_bytes, codes, match, allow_cold
        )

    def message_at(self, physical_offset: int) -> memoryview | None:
        """The record at a physical offset; None outside the log.

        Raises StoreCorrupt, naming file and position, when no sound record begins there.
        """
        return self._reader.message_at(physical_offset)

    def max_queue_offset(self, topic: str, queue_id: int) -> int:
        """Offset after the last visible message; 0 for an unknown queue."""
        queue = self._queues.find(topic, queue_id)
        return 0 if queue is None else queue.visible

    def min_queue_offset(self, topic: str, queue_id: int) -> int:
        """Offset of the first message that is still there; 0 for an unknown queue."""
        queue = self._queues.find(topic, queue_id)
        return 0 if queue is None else self._reader.min_of(queue)

    def queues(self, topic: str) -> list[int]:
        """Ids of the topic's queues that exist here."""
        return sorted(self._topics.get(topic, ()))

    def topics(self) -> list[str]:
        """Topics with at least one queue here."""
        return sorted(self._topics)

    def queue_offset_by_time(
        self,
        topic: str,
        queue_id: int,
        time_ms: int,
        boundary: TimeBoundary = TimeBoundary.LOWER,
    ) -> int:
        """First offset stored at or after a time (LOWER), or last one at or before it (UPPER)."""
        queue = self._queues.find(topic, queue_id)
        return 0 if queue is None else self._reader.offset_by_time(queue, time_ms, boundary)

    def store_time_at(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Store time of the message at a queue offset; -1 when it is not there."""
        queue = self._queues.find(topic, queue_id)
        if queue is None or not self._reader.min_of(queue) <= queue_offset < queue.visible:
            return -1
        return self._reader.time_at(queue, queue_offset)

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """Store time of the queue's first message; -1 when it has none."""
        return self.store_time_at(topic, queue_id, self.min_queue_offset(topic, queue_id))

    def prepare_query_index(
        self,
        topic: str,
        key: str,
        max_count: int,
        begin_ms: int = 0,
        end_ms: int = (1 << 63) - 1,
        index_type: str = "K",
    ) -> Callable[[], QueryResult]:
        """As `query_index` in two steps: catch up now, call the result in a worker."""
        return self._index.prepare_query(topic, key, max_count, begin_ms, end_ms, index_type)

    def query_index(
        self,
        topic: str,
        key: str,
        max_count: int,
        begin_ms: int = 0,
        end_ms: int = (1 << 63) - 1,
        index_type: str = "K",
    ) -> QueryResult:
        """Physical offsets of messages whose key (or tags, index type "T") has this hash.

        Other keys may have the same hash: compare the messages' own.
        """
        return self._index.prepare_query(topic, key, max_count, begin_ms, end_ms, index_type)()

    def delete_expired_now(self) -> None:
        """Let expired log files go soon, whatever the hour."""
        self._retention.delete_expired_now()

    def delete_topic(self, topic: str) -> None:
        """Remove the topic's queues; its records stay in the log until their file expires."""
        self._upkeep.forget_topic(topic)
        for queue in self._queues.remove_topic(topic):
            self._writer.remove(queue.path)
        self._writer.remove(f"{self._queues.path}/{topic}")
        self._writer.tick(self._clock())
