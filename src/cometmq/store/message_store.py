"""The message store: appends messages to a log and to queues, and reads them.

`MessageStore` makes, opens and closes the parts of a store: appender (`put`), reader (`get`), log,
queues, flusher, index, side file and retention.  The caller passes the clock, timers, workers and
disk, so the store depends neither on the wire nor on asyncio.  Its methods are called on the loop's
thread unless they say otherwise.

A message becomes visible when it is *confirmed*: at once, or after its flush with SYNC_FLUSH, and
in a replica set when the in-sync replicas have it (`copied`).  `get`, `max_queue_offset` and the
arrival listener cover visible messages only.

Durable when (process death / power cut):
    record       put has returned / `when_durable` has called back with True
    unit, index  about a second later / once a minute; recovery derives younger ones from the log
"""

from __future__ import annotations

import contextlib
import logging
import os
from functools import cached_property
from typing import TYPE_CHECKING, Final

from cometmq.codec.consume_queue import (
    CQ_UNIT,
    CQ_UNIT_BYTES,
    CqExtUnit,
    CqUnit,
    is_cq_ext_address,
)
from cometmq.errors import StoreClosed, StoreError
from cometmq.model.offsets import PhysicalOffset, QueueOffset
from cometmq.store.append.appender import Appender
from cometmq.store.append.confirmation import Confirmation
from cometmq.store.base.checkpoint import JavaCheckpoint
from cometmq.store.base.disk import make_durable_directory
from cometmq.store.base.results import TimeBoundary
from cometmq.store.index.service import IndexService
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.flush import Flusher
from cometmq.store.log.reader import LogReader
from cometmq.store.queue.consume_queue import (
    ConsumeQueue,
    ConsumeQueues,
    end_without_hold,
    hold,
    release,
)
from cometmq.store.queue.extension import QueueExt
from cometmq.store.queue.mender import QueueMender
from cometmq.store.queue.search import QueueSearch
from cometmq.store.queue.writer import QueueWriter
from cometmq.store.read.reader import MessageReader
from cometmq.store.recovery.recovery import Recovery
from cometmq.store.replica import ReplicaAppender
from cometmq.store.retention.moving import Mover
from cometmq.store.retention.retention import Retention
from cometmq.store.scrub.scrub import Scrubber
from cometmq.store.upkeep import Upkeep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cometmq.codec.cq_ext import BitmapHint
    from cometmq.codec.properties import Needle
    from cometmq.store.base.config import StoreConfig
    from cometmq.store.base.disk import Disk, StoreLock, Workers
    from cometmq.store.base.results import (
        ColdRead,
        GetResult,
        GetStatus,
        QueryResult,
        RecoveryReport,
    )
    from cometmq.store.log.flush import CallLater
    from cometmq.store.log.reader import ScannedRecord
    from cometmq.store.read.span_reader import SpanReader

__all__ = ["MessageStore"]

_LOG: Final = logging.getLogger("cometmq.store")
_TICK_SECONDS: Final = 0.1


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
        self._ext = QueueExt(config, disk, self._log, self._queues)
        self._writer = QueueWriter(
            config,
            disk,
            workers,
            self._log,
            self._ext,
            lambda batch, filed: self._upkeep.frame_of(batch, filed),  # noqa: PLW0108 - made below
            lambda: self._upkeep.record_synced(),  # noqa: PLW0108 - made below
        )
        self._flusher = Flusher(
            config,
            disk,
            workers,
            self._log,
            clock,
            lambda _: self._confirmation.advance(),
        )
        self._index = IndexService(config, disk, workers, clock, lambda: self._log.wrote)
        self._java = JavaCheckpoint(disk, config.root)
        self._search = QueueSearch(self._log, self._queues)
        self._mender = QueueMender(config, disk, self._log, self._queues, self._writer)
        self._reader = MessageReader(
            config,
            self._log,
            self._queues,
            self._search,
            self._mender,
            self._ext,
            lambda: self._confirmation.offset,
        )
        self.mover = Mover(
            workers,
            self._reader.message_at,
            lambda then: self._flusher.when_durable(self._log.wrote, then),
            lambda: self._appender.lifted(),  # noqa: PLW0108 - made below
        )
        """Appends pending messages again before retention deletes their log file."""
        self._retention = Retention(
            config,
            disk,
            workers,
            self._log,
            self._queues,
            self._writer,
            self._index,
            self._search.min_of,
            self._ext.expire,
            self.mover,
        )
        self.scrubber = Scrubber(config, disk, workers, self._log, lambda: self._flusher.flushed)
        """Reads old log files again and compares them with their digests."""
        self._appender = Appender(
            config,
            self._log,
            self._queues,
            self._writer,
            self._flusher,
            self._index,
            self._retention,
            lambda: self._upkeep.leave_cut_file(),  # noqa: PLW0108 - made below
            lambda: self._confirmation.advance(),  # noqa: PLW0108 - made below
        )
        self._confirmation = Confirmation(config, self._log, self._flusher, self._appender.confirm)
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
            lambda: self._appender.last_store_ms,
        )
        self._topics = self._queues.topics
        self._is_sync = config.is_sync_flush
        self._checked_get_ms = -1
        self._call_later: CallLater | None = None
        self._lock: StoreLock | None = None
        self._is_open = False
        # Attributes, since a method that only calls another costs a twentieth of a put.
        self.append, self.append_encoded = self._appender.append, self._appender.append_encoded
        """Append messages, or records of the native core; see `Appender`."""
        self.room = self._appender.room
        """Return the room for simple records; see `Appender.room`."""
        self.append_copies = self._appender.append_copies
        """Append copies of messages that waited; see `Appender.append_copies`."""
        self.queues_by_topic = self._queues.topics
        """The queues in memory, by topic and queue id."""
        self.queue_type = ConsumeQueue
        """The class of a queue that is not held."""
        self.put = self._appender.put
        """Append one message; see `Appender.put`."""
        self.put_packed = self._appender.put_packed
        """Append a packed batch of simple messages; see `Appender.put_packed`."""
        self.put_batch = self._appender.put_batch
        """Append messages of one queue, all or none; see `Appender.put_batch`."""

    @cached_property
    def replica(self) -> ReplicaAppender:
        """Appends a master's log; only where `refuse_puts` keeps everything else out."""
        return ReplicaAppender(
            self.config,
            self._disk,
            self._log,
            self._queues,
            self._writer,
            self._index,
            self._appender,
            self._clock,
        )

    @property
    def arrival_listener(self) -> Callable[[str, int, int, int], None] | None:
        """Called with topic, queue id, next queue offset and tags code when a message becomes
        visible on a watched queue.

        It is set after the store is made, since the caller's pulls, which it wakes, read the store.
        """
        return self._appender.arrival_listener

    @arrival_listener.setter
    def arrival_listener(self, listener: Callable[[str, int, int, int], None] | None) -> None:
        self._appender.arrival_listener = listener

    # -- life ----------------------------------------------------------------------------

    def load(
        self,
        progress: Callable[[str, int, int], None] | None = None,
        recovered: Callable[[RecoveryReport], None] = lambda report: None,
    ) -> RecoveryReport:
        """Lock the directory, recover, and accept reads and writes.  Blocks.

        Args:
            progress: called with a text, the number done and the total (0 for unknown).
            recovered: called with what the start has found, before a file says that there was this
                start: the next one after a kill in between finds the same.

        Raises:
            StoreLocked: another process has the store open.
            StoreCorrupt: a file is missing, or the size of files is ambiguous.
            StoreError: the store cannot be served.
        """
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
                self._ext,
                self._index,
                self._java,
                self._clock,
                self._process_id,
            )
            report = recovery.run(progress)
            self.config = recovery.config
            self._flusher.flushed = min(recovery.flushed, self._log.wrote)
            # A process that died may have left files whose names it had not synced.
            self._disk.sync_dir(self._log.path)
            if self._is_sync or not report.is_whole:
                # Messages that readers see must be on stable storage.  Behind the end of a log that
                # a power cut has shortened, another one must not bring the lost messages back.
                self._flusher.flush_all()
            self._reader.distrust(recovery.damaged)
            self.copied(self._log.wrote)
            recovered(report)
            self._upkeep.begin(recovery.floors)
            self.scrubber.load()
            self._disk.write_atomic(f"{root}/abort", str(self._process_id).encode())
        except BaseException:
            self._lock.release()
            raise
        self._appender.refuse(None)
        self._is_open = True
        return report

    def start(self, call_later: CallLater) -> None:
        """Start the timers.

        Args:
            call_later: the loop's `call_later(seconds, callback)`.
        """
        self._call_later = call_later
        self._flusher.start(call_later)
        self._retention.find_minima()
        call_later(_TICK_SECONDS, self._tick)

    def close(self) -> None:
        """Flush and write everything, and unlock the directory.  Blocks; safe to call again."""
        if not self._is_open:
            return
        self._is_open = False
        self._appender.refuse(StoreClosed(f"store {self.config.root} is closed"))
        try:
            self._mender.stop()
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
            self._confirmation.close()
            self._writer.close()
            self._index.close()
            self._reader.spans.close()
            self._ext.close()
            self._queues.close()
            self._log.close()
            if self._lock is not None:
                self._lock.release()

    def _tick(self) -> None:
        call_later = self._call_later
        if not self._is_open or call_later is None:
            return
        try:
            now_ms = self._clock()
            self._upkeep.tick(now_ms)
            self.scrubber.tick(now_ms)
            self._appender.look_for_space()
        except Exception:
            _LOG.exception("the store's timer failed; it goes on")
        call_later(_TICK_SECONDS, self._tick)

    # -- confirmation --------------------------------------------------------------------

    @property
    def confirmed_offset(self) -> int:
        """Physical offset up to which readers see the log."""
        return self._confirmation.offset

    def copied(self, end: int) -> None:
        """Note that other replicas have the log up to a physical offset, which may be beyond its
        end: then they are not waited for.  What readers have seen stays visible.
        """
        self._confirmation.copied(end)

    def hide_from(self, physical_offset: int) -> None:
        """Hide what lies behind a physical offset from readers until `copied` says more.  Blocks.

        For a store that was just loaded, and with `is_copied_first`: other replicas may lack the
        end of its log.
        """
        if physical_offset >= self._confirmation.offset:
            return
        for queue in self._queues:
            end = self._search.end_below(queue, physical_offset)
            if end < queue.max:
                self._appender.hide(queue, end)
        self._confirmation.go_back(physical_offset)

    @property
    def flushed_offset(self) -> int:
        """Physical offset up to which the log is on stable storage."""
        return self._flusher.flushed

    @property
    def last_store_ms(self) -> int:
        """Store time of the newest message since the start, -1 for none."""
        return self._appender.last_store_ms

    @property
    def max_physical_offset(self) -> int:
        """Physical offset at which the log ends; a BLANK may come before the next record."""
        return self._log.wrote

    @property
    def min_physical_offset(self) -> int:
        """Physical offset at which the log begins."""
        return self._log.min_offset

    def resident_log(self, physical_offset: int, size: int) -> memoryview | None:
        """Return bytes of the log, which may begin and end inside records; None: not in memory.

        They end at the end of their file, and where the log ends.

        Raises:
            StoreClosed: the store is not open.
        """
        if not self._is_open:
            raise StoreClosed(f"store {self.config.root} is not open")
        log = self._log
        file_end = physical_offset - physical_offset % log.file_bytes + log.file_bytes
        log.check_windows()
        return log.read_resident(
            PhysicalOffset(physical_offset),
            min(size, file_end - physical_offset, log.wrote - physical_offset),
        )

    def prepare_last_record(self) -> Callable[[], int]:
        """Return a function that finds the log's last record: physical offset, -1 for none.

        A worker calls it, since it blocks.
        """
        log, queues = self._log, list(self._queues)
        wrote = log.wrote

        def find() -> int:
            start = log.min_offset
            for queue in queues:
                if queue.max > queue.min:
                    unit = self._queues.unit(queue, QueueOffset(queue.max - 1))
                    if unit is not None and unit.physical_offset < wrote:
                        start = max(start, unit.physical_offset)
            last = -1
            reader = LogReader(log, start, wrote, is_crc_checked=False)
            while (record := reader.next_record()) is not None:
                last = record.physical_offset
            return last

        return find

    def watch_flushes(self, took: Callable[[int], None]) -> None:
        """Call back with how many milliseconds each flush of the log takes from now on."""
        self._flusher.took = took

    def when_durable(self, end_offset: int, callback: Callable[[bool], None]) -> None:
        """Call back, on the loop, with True when the log is flushed up to `end_offset`.

        The argument is False after the time-out or a failed flush.  Waiting calls share flushes
        (group commit).
        """
        self._flusher.when_durable(end_offset, callback)

    def when_confirmed(self, end_offset: int, callback: Callable[[bool], None]) -> None:
        """Call back, on the loop, with True when readers see the log up to `end_offset`; without
        replicas, when it is flushed.

        The argument is False when the store is closed, or a flush failed or took too long.
        """
        self._confirmation.when(end_offset, callback)

    @property
    def refusal(self) -> StoreError | None:
        """Why no message is stored now; None while messages are."""
        return self._appender.refusal

    @property
    def standing_refusal(self) -> StoreError | None:
        """What `refuse_puts` was called with."""
        return self._appender.standing_refusal

    def refuse_puts(self, standing: StoreError | None) -> None:
        """Raise this error in every put until this is called with None; reads go on."""
        self._appender.refuse_puts(standing)

    def watch(self, topic: str, queue_id: int) -> None:
        """Call the arrival listener for this queue from now on.

        Raises:
            DiskFull, MessageIllegal, StoreClosed: the queue is new and cannot be made.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            queue = self._appender.new_queue(topic, queue_id)
        queue.is_watched = True

    def unwatch(self, topic: str, queue_id: int) -> None:
        """No longer call the arrival listener for this queue."""
        queue = self._queues.find(topic, queue_id)
        if queue is not None:
            queue.is_watched = False

    def hold_queue(self, topic: str, queue_id: int, limit: int | None = None) -> int:
        """Let readers see no offset from `limit` on (None: from the next one), until released.

        Returns the limit.  Messages are put as always.

        Raises:
            DiskFull, MessageIllegal, StoreClosed: the queue is new and cannot be made.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            queue = self._appender.new_queue(topic, queue_id)
        if limit is None:
            limit = queue.max
        hold(queue, limit)
        return limit

    def release_queue(self, topic: str, queue_id: int) -> None:
        """Let readers see all messages of a held queue; pulls that wait there are not woken."""
        queue = self._queues.find(topic, queue_id)
        if queue is not None:
            release(queue)

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
        hint: BitmapHint | None = None,
        needles: tuple[Needle, ...] = (),
        *,
        allow_cold: bool = False,
    ) -> GetResult | ColdRead:
        """Read from a queue offset on, with the statuses of RocketMQ
        (docs/internals/store.md#reading-a-queue).

        Args:
            codes: the tags codes that are wanted; None for all.
            match: returns whether a record is wanted; None for all.
            hint: the content of the bitmap in a matching message's extension unit.  It only saves
                calls of `match`.
            needles: texts of which a matching record has at least one.  They only save calls of
                `match`.
            allow_cold: read bytes that are not in memory, which may block, instead of returning a
                ColdRead.

        Raises:
            StoreClosed: the store is not open.
            StoreCorrupt: a unit cannot be read and cannot be derived from the log again.
            StoreError: the disk does not give the first message; what lies before a bad block is
                returned.
        """
        if not self._is_open:
            raise StoreClosed(f"store {self.config.root} is not open")
        self._check_files()
        rest = codes, match, hint, needles, allow_cold
        count = max_count
        while True:
            try:
                return self._reader.get(topic, queue_id, queue_offset, count, max_bytes, *rest)
            except OSError as error:
                if count <= 1:
                    raise self._unreadable(topic, queue_id, queue_offset, error) from error
                count //= 2

    def _unreadable(
        self, topic: str, queue_id: int, queue_offset: int, error: OSError
    ) -> StoreError:
        """Return the error of a read that the disk refuses; no message is passed over silently."""
        where = f"{topic}/{queue_id} at {queue_offset}"
        queue = self._queues.find(topic, queue_id)
        with contextlib.suppress(OSError):
            unit = None if queue is None else self._queues.unit(queue, QueueOffset(queue_offset))
            if unit is not None:
                where += f", {self._log.where(unit.physical_offset)}"
        return StoreError(
            f"the disk does not give the message of {where}: {error.strerror or error}; look at the"
            " disk, restore the file from a backup or a replica, or reset the group's offset behind"
            " the message"
        )

    def answer(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        max_bytes: int,
        codes: frozenset[int] | None,
        parts: tuple[bytes, ...],
        opaque: int,
    ) -> tuple[bytes, int, int, int] | GetStatus | None:
        """Read from a queue offset on by the native core, into the frame of an answer.

        Nothing is changed, and nothing blocks.

        Args:
            parts: the constant parts of the frame's header (`wire.header.fast_encode.pull_parts`).

        Returns the frame, the next queue offset, the number of records and their bytes;
        OFFSET_OVERFLOW_ONE at the end of the queue.  None where `get` has to say what the queue
        has: without the core or a wanted message, and where bytes are not in memory or not sound.
        """
        if not self._is_open:
            return None
        self._check_files()
        return self._reader.answer(
            topic, queue_id, queue_offset, max_count, max_bytes, codes, parts, opaque
        )

    def _check_files(self) -> None:
        """Once a millisecond: do not read through windows of files that something has cut."""
        now_ms = self._clock()
        if now_ms != self._checked_get_ms:
            self._checked_get_ms = now_ms
            self._log.check_windows()
            if self._log.is_active_file_cut():
                self._upkeep.leave_cut_file()

    def extend_queues(
        self, bitmaps: Callable[[str], Callable[[bytes], bytes | None] | None]
    ) -> None:
        """Write an extension unit with a bitmap for each message of filtered topics from now on.

        Args:
            bitmaps: called in workers with a topic; returns a function that computes the bitmap of
                a property string, or None when no group filters the topic.
        """
        self._ext.bitmaps = bitmaps

    @property
    def spans(self) -> SpanReader:
        """The reader of long spans of one queue, for workers."""
        return self._reader.spans

    def message_at(self, physical_offset: int) -> memoryview | None:
        """Return the record at a physical offset; None outside the confirmed log, and at a BLANK.

        Raises:
            StoreCorrupt: no sound record begins there; the text names file and position.
        """
        return self._reader.message_at(PhysicalOffset(physical_offset))

    def records_from(
        self, physical_offset: int, end_offset: int | None = None
    ) -> Iterator[ScannedRecord]:
        """Read the log from a record on, without a check of the bodies.  May block.

        Args:
            end_offset: records that begin there or behind it are not read; None: all are.
        """
        end = self._log.wrote if end_offset is None else end_offset
        reader = LogReader(self._log, physical_offset, end, is_crc_checked=False)
        while (record := reader.next_record()) is not None:
            yield record

    def log_bytes(self, physical_offset: int, length: int) -> bytes:
        """Return bytes of the log, fewer where its file ends.  May block: for a worker."""
        return bytes(self._log.read(PhysicalOffset(physical_offset), length))

    def max_queue_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset after the last visible message; 0 for an unknown queue."""
        queue = self._queues.find(topic, queue_id)
        return 0 if queue is None else queue.visible

    def min_queue_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the first message still in the log; 0 for an unknown queue.

        After log files have expired, the value may be too small for a moment, until a worker has
        found the new one.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return 0
        first = self._search.known_min(queue)
        if first is None:
            self._retention.find_minima()
            first = queue.min
        return first

    def queues(self, topic: str) -> list[int]:
        """Return the ids of the topic's queues in this store."""
        return sorted(self._topics.get(topic, ()))

    def topics(self) -> list[str]:
        """Return the topics that have a queue in this store."""
        return sorted(self._topics)

    def end_of_queue(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the next message to be put; 0 for an unknown queue."""
        queue = self._queues.find(topic, queue_id)
        return 0 if queue is None else queue.max

    def message_count(self, topic: str) -> int:
        """Return how many messages were put into the topic's queues, expired ones included."""
        queues = self._topics.get(topic)
        return sum([queue.max for queue in queues.values()]) if queues else 0

    def units(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        *,
        held_too: bool = False,
    ) -> list[CqUnit]:
        """Return the units of visible messages from a queue offset on.  May block: for a worker.

        Args:
            held_too: include the messages that `hold_queue` hides.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return []
        end = end_without_hold(queue) if held_too else queue.visible
        count = max(0, min(max_count, end - queue_offset))
        raw = self._queues.units(queue, queue_offset, count, may_block=True) or b""
        whole = len(raw) - len(raw) % CQ_UNIT_BYTES
        return [CqUnit._make(fields) for fields in CQ_UNIT.iter_unpack(raw[:whole])]

    def size_counts(
        self, topic: str, queue_id: int, first: int, end: int, bounds: Sequence[float]
    ) -> tuple[list[int], int]:
        """Count a span of messages by size, and add up their bytes.  May block: for a worker."""
        from cometmq.store.read.sizes import size_counts

        return size_counts(self._queues, self._queues.find(topic, queue_id), first, end, bounds)

    def ext_unit(self, topic: str, queue_id: int, unit: CqUnit) -> CqExtUnit | None:
        """Return the extension unit of a unit, None without one.  May block: for a worker."""
        queue = self._queues.find(topic, queue_id)
        if queue is None or not is_cq_ext_address(unit.tags_code):
            return None
        return self._ext.unit(queue, unit.tags_code)

    def queue_offset_by_time(
        self,
        topic: str,
        queue_id: int,
        time_ms: int,
        boundary: TimeBoundary = TimeBoundary.LOWER,
        *,
        held_too: bool = False,
    ) -> int:
        """Return the queue offset of the first message stored at or after a time (LOWER).

        With UPPER, return that of the last message not stored after the time.  May block.

        Args:
            held_too: include the messages that `hold_queue` hides.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return 0
        end = end_without_hold(queue) if held_too else queue.visible
        return self._search.offset_by_time(queue, time_ms, boundary, end)

    def store_time_at(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the store time of the message at a queue offset; -1 when there is none."""
        queue = self._queues.find(topic, queue_id)
        if queue is None or not self._search.min_of(queue) <= queue_offset < queue.visible:
            return -1
        return self._search.time_at(queue, QueueOffset(queue_offset))

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """Return the store time of the queue's first message; -1 for an empty queue."""
        queue = self._queues.find(topic, queue_id)
        return (
            -1 if queue is None else self.store_time_at(topic, queue_id, self._search.min_of(queue))
        )

    def prepare_query_index(
        self,
        topic: str,
        key: str,
        max_count: int,
        begin_ms: int = 0,
        end_ms: int = (1 << 63) - 1,
        index_type: str = "K",
    ) -> Callable[[], QueryResult]:
        """Begin a query by key; a worker calls the returned function for the result.

        The result has the physical offsets of messages with a key (tags with index type "T") of the
        same hash.  Other keys may have that hash, so callers compare the messages' own keys.
        """
        return self._index.prepare_query(topic, key, max_count, begin_ms, end_ms, index_type)

    def hold_log(self, holder: str, oldest: Callable[[], int | None]) -> None:
        """Keep the log files from the physical offset on that `oldest()` returns; None: keep none.

        Args:
            holder: names the messages that need them in log lines, in the plural: "timed messages".
        """
        self._retention.holds[holder] = oldest

    def change_retention(self, config: StoreConfig) -> None:
        """Use these settings of retention from now on; other settings have no effect."""
        self._retention.change(config)

    def delete_expired_now(self) -> None:
        """Delete expired log files soon, whatever the hour."""
        self._retention.delete_expired_now()

    def clean_expired_queues(self) -> None:
        """Remove the queues whose messages have all expired (request code 306), in a worker.

        Queues of system topics stay, and so do queues at which a pull waits.
        """
        self._retention.clean_queues(self._upkeep.forget_queue)
        self._writer.tick(self._clock())

    def delete_topic(self, topic: str) -> None:
        """Remove the topic's queues; its records stay in the log until their files expire."""
        self._upkeep.forget_topic(topic)
        for queue in self._queues.remove_topic(topic):
            self._writer.remove(queue.path)
        self._writer.remove(f"{self._queues.path}/{topic}")
        self._writer.tick(self._clock())
