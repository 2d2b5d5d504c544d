"""Appends another log's bytes, as a slave does: record for record, at the same physical offsets.

The bytes arrive in pieces that end anywhere.  `receive` writes whole records only, each checked as
recovery checks it (magic, physical offset, lengths, CRC of the body), so this log always ends
behind a record.  The begin of a record waits in memory for its rest.  The blank end of a file is
written as it comes, with the bytes behind its BLANK, since the copy is to have the same bytes; the
log ends before it until the file is full.

Units and index keys are derived from the records.  The native core reads stretches of plain records
whose queue offsets follow each other, as it does for recovery; this text reads all others.  A
record whose queue offset is not the queue's next one goes the way of recovery
(recovery/queue_rebuild.py).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, cast

from cometmq import native
from cometmq.codec.consume_queue import CQ_UNIT, CQ_UNIT_BYTES, units_struct
from cometmq.codec.stored_message import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
from cometmq.errors import StoreCorrupt, StoreError
from cometmq.model.names import SCHEDULE_TOPIC
from cometmq.model.offsets import PhysicalOffset
from cometmq.store.base.dispatch import index_keys_of, queue_tags_code
from cometmq.store.log.reader import LogReader
from cometmq.store.recovery.queue_rebuild import QueueRebuild

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.store.append.appender import Appender
    from cometmq.store.base.config import StoreConfig
    from cometmq.store.base.disk import Disk, RandomFile
    from cometmq.store.index.service import IndexService
    from cometmq.store.log.commit_log import CommitLog
    from cometmq.store.log.reader import ScannedRecord
    from cometmq.store.queue.consume_queue import ConsumeQueue, ConsumeQueues
    from cometmq.store.queue.writer import QueueWriter

__all__ = ["ReplicaAppender"]

_LENGTH_AND_MAGIC: Final = struct.Struct(">ii")
_MAGICS: Final = frozenset({MAGIC_V1, MAGIC_V2})
RECORD_BYTES_MAX: Final = 64 << 20
"""A larger size is damage: the rest of the record would have to wait in memory."""
_ROLLBACK: Final = 0xC
_KEYS_WAITING_MAX: Final = 4096
_RECORDS_BETWEEN_STRETCHES: Final = 8
"""So many records are read one by one before the native core is asked again."""
_NO_LIMIT: Final = 1 << 62


class _Span:
    """Received records, as a log file that `LogReader` reads."""

    path = "the received bytes"

    def __init__(self, start: int, data: bytes) -> None:
        self.start = start
        self.end = start + len(data)
        self._data = data

    @property
    def file(self) -> RandomFile:
        return cast("RandomFile", self)

    def file_at(self, physical_offset: PhysicalOffset) -> _Span | None:
        return self if self.start <= physical_offset < self.end else None

    def read(self, position: int, length: int) -> bytes:
        return self._data[position : position + length]


class ReplicaAppender:
    """Appends the bytes of a master's log to the log of one store."""

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        log: CommitLog,
        queues: ConsumeQueues,
        writer: QueueWriter,
        index: IndexService,
        appender: Appender,
        clock: Callable[[], int],
    ) -> None:
        self._config = config
        self._log = log
        self._queues = queues
        self._index = index
        self._appender = appender
        self._clock = clock
        self._partial = b""
        self._is_blank = False
        """Whether the blank end of the present file comes next."""
        self._blank_bytes = 0
        """How much of it is written."""
        self._queue_by_key: dict[tuple[bytes, int], ConsumeQueue] = {}
        self._plain_queues: dict[tuple[bytes, int], ConsumeQueue] = {}
        """Those of them whose units have the hash of the tags; the native core reads these."""
        self._scan = None if config.is_record_crc_forced else native.scan_records
        self._damages: list[str] = []
        self._rebuild = QueueRebuild(disk, log, queues, writer, config.delays_ms, {}, self._damages)
        self._rebuild.is_gap_final = True

    @property
    def received(self) -> int:
        """Physical offset behind the last received byte; the log may end before it."""
        return self._log.wrote + self._blank_bytes + len(self._partial)

    def forget_partial(self) -> None:
        """Forget the begin of a record or blank end: the next bytes begin where the log ends."""
        self._partial = b""
        self._is_blank, self._blank_bytes = False, 0

    def start_at(self, physical_offset: int) -> None:
        """Begin an empty log at the begin of a file.

        Raises:
            StoreError: the log has bytes, or no file begins there.
        """
        log = self._log
        if log.files or physical_offset % log.file_bytes:
            raise StoreError(
                f"{log.path} cannot begin at physical offset {physical_offset}: its files have"
                f" {log.file_bytes} bytes, and it ends at {log.wrote}"
            )
        log.seek(physical_offset)

    def receive(self, data: bytes) -> list[str]:
        """Append the bytes that follow `received`; return a text for each queue that was mended.

        Raises:
            StoreCorrupt: no sound record begins where one must; what is before it is appended.
            DiskFull, OSError: there is no space for a new file, or the disk fails.
        """
        buffer = self._partial + data if self._partial else data
        self._partial = b""
        at = 0
        try:
            while at < len(buffer):
                if self._is_blank:
                    at = self._fill_blank_end(buffer, at)
                    continue
                at, is_plain = self._append_stretch(buffer, at)
                end = self._behind_records(buffer, at, is_plain=is_plain)
                if end > at:
                    self._append(buffer[at:end])
                elif not self._is_blank:
                    self._partial = buffer[at:]
                    break
                at = end
        finally:
            if self._config.is_sync_flush:
                self._appender.request_flush()
        if len(self._index.pending) > _KEYS_WAITING_MAX:
            self._index.drain(self._clock())
        mended = self._damages.copy()
        self._damages.clear()
        return mended

    def _append_stretch(self, buffer: bytes, at: int) -> tuple[int, bool]:
        """Append what the native core reads from `at` on.

        Returns where that ends, and whether the core may be asked again behind a few more records.
        """
        scan, log = self._scan, self._log
        if scan is None:
            return at, False
        position = log.wrote
        file_left = log.file_bytes - position % log.file_bytes
        in_file = buffer if len(buffer) - at <= file_left else buffer[: at + file_left]
        keys_use = native.LIST_KEYS if self._index.is_enabled else native.NO_KEYS
        limit = position + len(in_file) - at
        run = scan(in_file, at, position, limit, True, keys_use, self._plain_queues)
        if run is None:
            return at, True
        following, _, units_of, _, keys = run
        if any(queue.is_gone or first != queue.max for queue, first, _ in units_of):
            # Each record of the stretch has to be looked at; its queues are looked up again.
            self._plain_queues.clear()
            self._queue_by_key.clear()
            return at, False
        end = at + following - position
        log.append_span(buffer[at:end])
        now_ms = self._clock()
        for queue, _, units in units_of:
            count = len(units) // CQ_UNIT_BYTES
            fields = units_struct(count).unpack(units)
            self._appender.add_units(
                queue, units, count, fields[0], following, now_ms, set(fields[2::3])
            )
        self._index.pending += keys
        return end, True

    def _behind_records(self, buffer: bytes, at: int, *, is_plain: bool) -> int:
        """Return where the whole records from `at` on end, in one file; notes a blank end.

        With `is_plain` they are few, and the native core may read on behind them.
        """
        log = self._log
        position = log.wrote
        file_end = position - position % log.file_bytes + log.file_bytes
        end = at
        records_left = _RECORDS_BETWEEN_STRETCHES if is_plain else _NO_LIMIT
        while len(buffer) - end >= _LENGTH_AND_MAGIC.size and position < file_end and records_left:
            size, magic = _LENGTH_AND_MAGIC.unpack_from(buffer, end)
            if magic == MAGIC_BLANK:
                self._is_blank = end == at
                break
            if magic not in _MAGICS or not RECORD_BYTES_MIN <= size <= min(
                file_end - position, RECORD_BYTES_MAX
            ):
                if end > at:
                    break
                raise StoreCorrupt(
                    f"received log, physical offset {position}: size {size}, magic"
                    f" {magic & 0xFFFFFFFF:#010x} where a record should begin"
                )
            if len(buffer) - end < size:
                break
            end += size
            position += size
            records_left -= 1
        return end

    def _fill_blank_end(self, buffer: bytes, at: int) -> int:
        """Write what the buffer has of the file's blank end; return where that ends."""
        log = self._log
        file_bytes = log.file_bytes
        blank_bytes = file_bytes - log.wrote % file_bytes
        end = min(len(buffer), at + blank_bytes - self._blank_bytes)
        log.fill_blank_end(buffer[at:end], self._blank_bytes)
        self._blank_bytes += end - at
        if self._blank_bytes == blank_bytes:
            self._is_blank, self._blank_bytes = False, 0
        return end

    def _append(self, data: bytes) -> None:
        """Append whole records that lie in one file."""
        log = self._log
        start = log.wrote
        reader = LogReader(_Span(start, data), start, start + len(data))
        records: list[ScannedRecord] = []
        while (record := reader.next_record()) is not None:
            records.append(record)
        sound_bytes = reader.position - start
        if sound_bytes:
            log.append_span(data[:sound_bytes])
            for record in records:
                self._dispatch(record)
        if reader.fault is not None:
            raise StoreCorrupt(f"received log, physical offset {reader.position}: {reader.fault}")

    def _dispatch(self, record: ScannedRecord) -> None:
        """Derive unit and index keys of a record that was just written."""
        appender = self._appender
        appender.last_store_ms = record.store_ms
        if record.is_queued:
            queue = self._queue_by_key.get((record.topic, record.queue_id))
            if queue is None or queue.is_gone:
                queue = self._find_queue(record)
            if queue is not None and record.queue_offset == queue.max:
                code = queue_tags_code(
                    record.topic, record.properties, record.store_ms, self._config.delays_ms
                )
                position, size = record.physical_offset, record.size
                unit = CQ_UNIT.pack(position, size, code)
                appender.add_units(
                    queue, unit, 1, position, position + size, self._clock(), (code,)
                )
            else:
                self._mend(record)
        if self._index.is_enabled and record.sys_flag & _ROLLBACK != _ROLLBACK:
            keys = index_keys_of(record.properties)
            if keys is not None:
                topic = record.topic.decode("utf-8", "replace")
                self._index.pending.append((topic, record.physical_offset, record.store_ms, keys))

    def _find_queue(self, record: ScannedRecord) -> ConsumeQueue | None:
        """Return the queue of a record, if there is one."""
        try:
            topic = record.topic.decode()
        except UnicodeDecodeError:
            return None
        queue = self._queues.find(topic, record.queue_id)
        if queue is None and record.queue_offset == 0:
            try:
                queue = self._appender.new_queue(topic, record.queue_id)
            except StoreError:
                return None
        if queue is not None:
            self._queue_by_key[record.topic, record.queue_id] = queue
            if topic != SCHEDULE_TOPIC and topic.isascii():
                self._plain_queues[record.topic, record.queue_id] = queue
        return queue

    def _mend(self, record: ScannedRecord) -> None:
        """Give a record its unit as recovery does: its queue offset is not the queue's next."""
        self._rebuild.forget_queues()
        self._rebuild.dispatch(record)
        queue = self._find_queue(record)
        if queue is not None:
            self._appender.show(queue, record.physical_offset + record.size)
