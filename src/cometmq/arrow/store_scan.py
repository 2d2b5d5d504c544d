"""A store directory as a stream of record batches.

With a topic the scan follows its consume queues (queue by queue, by queue offset).  Without one it
walks the commit log (file by file, every topic, also system topics and half messages).  It ends
where the store ended when it began.

The walk finds the start of each record by a loop over the sizes, in the native core where it is
there.  Following sizes is sequential by nature, and the loop in Python (4 million records a second)
was faster than a search for magic codes in numpy (3.2-3.6 million).  Everything after it is
vectorised.
"""

from __future__ import annotations

import logging
import re
import struct
from itertools import pairwise, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cometmq import native
from cometmq.arrow.batches import BatchMaker, Damage
from cometmq.arrow.columns import schema_of
from cometmq.arrow.decode import Decoded, Fault, QueueRows, decode_records
from cometmq.arrow.options import EARLIEST, LATEST, ScanOptions, ScanReport
from cometmq.arrow.store_files import LogFileView, LogView, QueueFiles, queues_of
from cometmq.codec.consume_queue import PRE_BLANK_SIZE
from cometmq.codec.java_hash import tags_code
from cometmq.codec.stored_message import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    decode_message,
)
from cometmq.errors import CodecError, StoreError
from cometmq.model.names import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["StoreScan", "chosen_queues", "next_record", "scan_store", "walk_records"]

_LOGGER: Final = logging.getLogger(__name__)
_LENGTH_AND_MAGIC: Final = struct.Struct(">ii")
_MAGIC: Final = re.compile(rb"\xda\xa3\x20[\xa7\xab]")
# A batch ends when its records reach this size, so that big bodies do not fill the memory.
_BATCH_BYTES_MAX: Final = 64 << 20
#: Units read at once: a read call costs as much as a hundred units.
_UNITS_READ: Final = 1 << 16
_INT_MIN: Final = -(2**31)
_INT_MAX: Final = 2**31 - 1


def scan_store(path: str | Path, options: ScanOptions, report: ScanReport) -> Any:
    """A RecordBatchReader over a store directory; see `cometmq.arrow.scan`.

    Raises:
        StoreError: the directory, the topic, a queue or an offset does not exist.
    """
    log = LogView(Path(path))
    schema = schema_of(options.columns)
    scan = StoreScan(log, options, report, schema)
    if options.topic is None:
        batches = scan.log_batches()
    else:
        batches = scan.queue_batches(chosen_queues(log.root, options.topic, options))
    return pa.RecordBatchReader.from_batches(schema, scan.counted(batches))


def chosen_queues(
    root: Path, topic: str, options: ScanOptions
) -> list[tuple[QueueFiles, int, int]]:
    """(queue, first offset, offset after the last) of each chosen queue.

    Raises:
        StoreError: the topic, a queue or an offset does not exist.
    """
    _check_brokers(options)
    queues = queues_of(root, topic)
    queue_ids = {queue.queue_id for queue in queues}
    named = {*(options.queues or ()), *options.starting_offsets, *options.ending_offsets}
    unknown = sorted(named - queue_ids)
    if unknown:
        raise StoreError(f"topic {topic!r} has no queue {unknown[0]}, only {sorted(queue_ids)}")
    chosen = []
    for queue in queues:
        if options.queues is not None and queue.queue_id not in options.queues:
            continue
        start = options.starting_offsets.get(queue.queue_id, options.starting_offset)
        end = options.ending_offsets.get(queue.queue_id, options.ending_offset)
        named_offsets = {EARLIEST: queue.start, LATEST: queue.end}
        start, end = named_offsets.get(start, start), named_offsets.get(end, end)
        if start > queue.end or end > queue.end:
            raise StoreError(
                f"queue {queue.queue_id} of topic {topic!r} ends at offset {queue.end}:"
                f" starting offset {start}, ending offset {end}"
            )
        chosen.append((queue, max(start, queue.start), end))
    return chosen


def _check_brokers(options: ScanOptions) -> None:
    """Refuse offsets that name two brokers: a store belongs to one."""
    named = {broker for broker, _ in (*options.starting_by_broker, *options.ending_by_broker)}
    named |= {options.broker} if options.broker is not None else set()
    if len(named) > 1:
        raise StoreError(
            f"a store is one broker's, and {' and '.join(map(repr, sorted(named)))} are named:"
            " keep the offsets of the one whose store it is"
        )


class StoreScan:
    """One running scan, or one part of a scan that is divided into spans (`store_spans`)."""

    def __init__(self, log: LogView, options: ScanOptions, report: ScanReport, schema: Any) -> None:
        self.log = log
        self.options = options
        self.report = report
        self.maker = BatchMaker(options, report, schema)

    def counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield batches that have rows and count them; warn about corrupt records at the end."""
        report = self.report
        for batch in batches:
            if batch.num_rows:
                report.rows += batch.num_rows
                yield batch
        if report.corrupt:
            _LOGGER.warning(
                "%s: %d records do not decode, %d of them left out",
                self.log.root,
                report.corrupt,
                report.dropped,
            )

    # -- by consume queue -------------------------------------------------------------------

    def queue_batches(self, queues: list[tuple[QueueFiles, int, int]]) -> Iterator[Any]:
        """The batches of these queues, queue by queue."""
        for queue, start, end in queues:
            for first in range(start, end, _UNITS_READ):
                last = min(end, first + _UNITS_READ)
                yield from self._unit_batches(queue, first, queue.units(first, last))

    def _unit_batches(self, queue: QueueFiles, first: int, units: NDArray[Any]) -> Iterator[Any]:
        """The records of these units; a batch ends with its log file or when it is full."""
        offsets = np.arange(first, first + len(units), dtype=np.int64)
        position = units["position"].astype(np.int64)
        size = units["size"].astype(np.int64)
        keep = size != PRE_BLANK_SIZE
        # Retention has deleted the log file; the queue's files follow later.
        if len(units) and position.min() < self.log.start:
            expired = keep & (size > 0) & (position >= 0) & (position + size <= self.log.start)
            self.report.expired += int(expired.sum())
            keep &= ~expired
        if self.options.tags is not None and queue.topic != SCHEDULE_TOPIC:
            code = units["code"].astype(np.int64)
            wanted = np.array([tags_code(tag) for tag in self.options.tags], np.int64)
            # A code beyond 32 bits is the address of an extension unit, not a tag hash.
            keep &= np.isin(code, wanted) | (code < _INT_MIN) | (code > _INT_MAX) | (size <= 0)
        if not keep.all():
            offsets, position, size = offsets[keep], position[keep], size[keep]
        for begin, end, number in self._parts(position, size):
            part = slice(begin, end)
            queue_rows = QueueRows(queue.topic, queue.queue_id, offsets[part])
            file = self.log.files[number] if number >= 0 else None
            yield self._decode(file, position[part], size[part], queue_rows)

    def _parts(
        self, position: NDArray[np.int64], size: NDArray[np.int64]
    ) -> Iterator[tuple[int, int, int]]:
        """(first row, row after the last, index of the log file) of each batch."""
        if not len(position):
            return
        rows = self.options.batch_rows
        lowest, highest = self.log.find(np.array([position.min(), position.max()])).tolist()
        if lowest == highest >= 0 and int(size.max()) * rows < _BATCH_BYTES_MAX:
            for begin in range(0, len(position), rows):
                yield begin, min(begin + rows, len(position)), lowest
            return
        files = self.log.find(position)
        filled = np.cumsum(np.clip(size, 0, _BATCH_BYTES_MAX)) // _BATCH_BYTES_MAX
        is_split = (np.diff(files) != 0) | (np.diff(filled) != 0)
        is_split[rows - 1 :: rows] = True
        split = np.flatnonzero(is_split) + 1
        for begin, end in pairwise([0, *split.tolist(), len(files)]):
            yield begin, end, int(files[begin])

    # -- by commit log ------------------------------------------------------------------

    def log_batches(self) -> Iterator[Any]:
        """The batches of all log files, in order."""
        for number, file in enumerate(self.log.files):
            following = self.log.files[number + 1 :]
            if self._is_too_old(following[:1]):
                continue
            yield from self.file_batches(file, 0, file.size, is_last=self.is_last(number))

    def is_last(self, number: int) -> bool:
        """Whether no later file of the log holds data."""
        return not any(any(later.map[:8]) for later in self.log.files[number + 1 :])

    def _is_too_old(self, following: list[LogFileView]) -> bool:
        """Whether the next file begins before `starting_ms`, so that this one has no match."""
        starting_ms = self.options.starting_ms
        if starting_ms is None or not following:
            return False
        try:
            first = decode_message(following[0].map[: 5 << 20])
        except CodecError:
            return False
        return first.store_timestamp_ms < starting_ms

    def file_batches(
        self, file: LogFileView, position: int, until: int, *, is_last: bool
    ) -> Iterator[Any]:
        """The records that begin between two file positions; a record begins at `position`."""
        while position < until:
            starts, position, is_astray = self._walk(file, position, until)
            is_done, damage, following = self._examine_stop(
                file, position, is_astray=is_astray, is_last=is_last
            )
            if len(starts):
                size = np.diff(np.append(starts, position))
                yield self._decode(file, starts + file.start, size, None)
            if damage is not None:
                yield self.maker.damaged([damage], None)
            if is_done:
                return
            position = following

    def _walk(
        self, file: LogFileView, position: int, until: int
    ) -> tuple[NDArray[np.int64], int, bool]:
        """(starts of records, position after them, whether the record there has a bad size)."""
        rows, stop = self.options.batch_rows, min(until, position + _BATCH_BYTES_MAX)
        last = min(file.size - 8, stop - 1)
        walk = walk_records if native.walk_records is None else native.walk_records
        starts, position = walk(file.map, position, last, rows)
        begin = np.frombuffer(starts, np.int64)
        if position <= last and 0 < len(begin) < rows:
            _, magic = _LENGTH_AND_MAGIC.unpack_from(file.map, position)
            if magic != MAGIC_BLANK and not _is_record(file, int(begin[-1])):
                # The size of the previous record is wrong.
                return begin[:-1], int(begin[-1]), True
        return begin, position, False

    def _examine_stop(
        self, file: LogFileView, position: int, *, is_astray: bool, is_last: bool
    ) -> tuple[bool, Damage | None, int]:
        """Why the walk stopped: (whether the file is done, the damage, the next position)."""
        if position + 8 > file.size:
            return True, None, file.size
        size, magic = _LENGTH_AND_MAGIC.unpack_from(file.map, position)
        if not is_astray:
            if magic == MAGIC_BLANK:
                return True, None, file.size
            if magic in {MAGIC_V1, MAGIC_V2} and RECORD_BYTES_MIN <= size <= file.size - position:
                return False, None, position
            if is_last and not file.has_data(position):
                return True, None, file.size
        following = next_record(file, position + 1)
        if following is None and is_last:
            self.report.torn += 1
            return True, None, file.size
        reason = f"no record begins here (size {size}, magic {magic & 0xFFFFFFFF:#010x})"
        end = file.size if following is None else following
        damage = Damage(
            0,
            f"{file.path}, position {position}",
            file.start + position,
            f"{reason}; the next is at {end}",
        )
        return following is None, damage, end

    # -- decoding ----------------------------------------------------------------------------

    def _decode(
        self,
        file: LogFileView | None,
        position: NDArray[np.int64],
        size: NDArray[np.int64],
        queue_rows: QueueRows | None,
    ) -> Any:
        """One batch: the decoded rows, and what the mode makes of damaged records."""
        if file is None:
            reason = "no log file holds this position"
            decoded = Decoded(
                np.zeros(0, np.int64), {}, [Fault(row, reason) for row in range(len(size))]
            )
        else:
            decoded = decode_records(file, position - file.start, size, self.options, queue_rows)
        damages = []
        for fault in decoded.faults:
            offset = int(position[fault.row])
            # The remains of the last records after a crash: recovery truncates them too.
            end = offset + max(0, int(size[fault.row]))
            if offset >= self.log.start and self.log.is_behind_data(end):
                self.report.torn += 1
                continue
            path = self.log.root / "commitlog" if file is None else file.path
            position_in_file = offset if file is None else offset - file.start
            where = f"{path}, position {position_in_file}"
            damages.append(Damage(fault.row, where, offset, fault.reason))
        return self.maker.batch(decoded, damages, queue_rows)


def walk_records(data: Any, position: int, last: int, count: int) -> tuple[bytes, int]:
    """Follow the sizes of records that begin up to ``last``, `count` of them at most.

    Returns their positions as 64-bit numbers, and the position after the last one.  The walk ends
    before a size or magic number that is not a record's.
    """
    end = len(data)
    unpack = _LENGTH_AND_MAGIC.unpack_from
    starts: list[int] = []
    append = starts.append
    for _ in repeat(None, count):
        if position > last:
            break
        size, magic = unpack(data, position)
        if (
            (magic != MAGIC_V1 and magic != MAGIC_V2)  # noqa: PLR1714 - half the time of a set
            or size < RECORD_BYTES_MIN
            or size > end - position
        ):
            break
        append(position)
        position += size
    return np.array(starts, np.int64).tobytes(), position


def _is_record(file: LogFileView, position: int) -> bool:
    """Whether a sound record begins here."""
    if position + RECORD_BYTES_MIN > file.size:
        return False
    size, _ = _LENGTH_AND_MAGIC.unpack_from(file.map, position)
    if not RECORD_BYTES_MIN <= size <= file.size - position:
        return False
    try:
        message = decode_message(file.map[position : position + size])
    except CodecError:
        return False
    return message.physical_offset == file.start + position


def next_record(file: LogFileView, position: int) -> int | None:
    """The position of the next sound record; None if there is none."""
    for match in _MAGIC.finditer(file.map, position + 4):
        if _is_record(file, match.start() - 4):
            return match.start() - 4
    return None
