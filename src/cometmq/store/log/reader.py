"""Reads the commit log record by record, and checks each record.

Recovery, repair, verify and inspect use this reader.  It decides whether a record is sound; its
callers decide what follows from a bad one.

A record is sound when it lies inside the file, its magic is a record's, it states the physical
offset at which it lies, all inner lengths add up to its size, and its body has the stated CRC
(``CommitLog.checkMessageAndReturnSize``; Java does not compare the physical offset, so it accepts
stale records behind a truncation).  After a BLANK, the reader goes on in the next file.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from cometmq import native
from cometmq.codec.crc import is_record_crc_right
from cometmq.codec.stored_message import (
    BODY_POSITION_V4,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
)
from cometmq.model.flags import TRANSACTION_PREPARED
from cometmq.model.offsets import PhysicalOffset, QueueOffset

if TYPE_CHECKING:
    from cometmq.store.base.disk import RandomFile

__all__ = ["BLOCK_BYTES", "LogFiles", "LogReader", "ScannedRecord", "data_blocks"]

_READ_BYTES: Final = 4 << 20
# `scan` reads on when fewer bytes are left in the buffer.
_SCAN_BYTES_MIN: Final = 4096
BLOCK_BYTES: Final = 1 << 20
"""Size of the blocks in which a file is searched for data."""
# total, magic, crc, queue id, (flag), queue offset, physical offset, sys flag, (born),
# store time, (store host, reconsume times, prepared offset), body length: two IPv4 hosts.
_HEAD: Final = struct.Struct(">iiii4xqqi8x8xq8x4x8xi")
# The same with one 20-byte host more or two; store time moves with the born host only.
_HEAD_BORN_V6: Final = struct.Struct(">iiii4xqqi8x20xq8x4x8xi")
_HEAD_STORE_V6: Final = struct.Struct(">iiii4xqqi8x8xq20x4x8xi")
_HEAD_BOTH_V6: Final = struct.Struct(">iiii4xqqi8x20xq20x4x8xi")
_HEADS_V6: Final = {0x10: _HEAD_BORN_V6, 0x20: _HEAD_STORE_V6, 0x30: _HEAD_BOTH_V6}
assert _HEAD.size == BODY_POSITION_V4
_LENGTH_AND_MAGIC: Final = struct.Struct(">ii")
_MAGICS: Final = (
    MAGIC_V1.to_bytes(4, "big", signed=True),
    MAGIC_V2.to_bytes(4, "big", signed=True),
)


class _File(Protocol):
    start: int
    end: int
    path: str

    @property
    def file(self) -> RandomFile: ...


class LogFiles(Protocol):
    """The part of a log that the reader uses."""

    def file_at(self, physical_offset: PhysicalOffset) -> _File | None:
        """Return the file with a physical offset; None without one."""


class ScannedRecord(msgspec.Struct, gc=False):
    """One record, with the fields that queues and index need."""

    physical_offset: PhysicalOffset
    size: int
    queue_id: int
    queue_offset: QueueOffset
    sys_flag: int
    store_ms: int
    topic: bytes
    properties: bytes

    @property
    def is_queued(self) -> bool:
        """Whether the record has a unit: prepared and rolled-back messages have none."""
        return not self.sys_flag & TRANSACTION_PREPARED


class LogReader:
    """Reads the records from `start` to `end` (physical offsets) of a log."""

    def __init__(
        self,
        log: LogFiles,
        start: int,
        end: int,
        *,
        is_crc_checked: bool = True,
        is_record_crc_forced: bool = False,
    ) -> None:
        self.position = start
        """Physical offset at which the next record is expected."""
        self.end = end
        self.fault: str | None = None
        """Why reading stopped before `end`; None when it did not."""
        self.is_unwritten = False
        """Whether reading stopped at zeros, as at the end of a sound log."""
        self._log = log
        self._is_crc_checked = is_crc_checked
        self._is_record_crc_forced = is_record_crc_forced
        self._buffer = b""
        self._buffer_start = start
        self._file: _File | None = None
        self._blocks_of: _File | None = None
        self._blocks_start = 0
        self._blocks: list[int] = []
        self._scan_records = None if is_record_crc_forced else native.scan_records

    def scan(
        self, end: int, keys_use: int, queues: dict[tuple[bytes, int], Any]
    ) -> native.ScannedRun | None:
        """Read many plain records of known queues at once, if the native core is there.

        The last record of a stretch is left to `next_record`.

        Args:
            end: records that begin at this physical offset or behind it are not read.
            keys_use: one of `NO_KEYS`, `COUNT_KEYS` and `LIST_KEYS`.
            queues: the known queues, by topic and queue id.

        Returns None where `next_record` has to read; then `position` is as before.
        """
        if self._scan_records is None:
            return None
        position, end = self.position, min(end, self.end)
        index = position - self._buffer_start
        if not 0 <= index <= len(self._buffer) - _SCAN_BYTES_MIN:
            if position >= end:
                return None
            index = self._fill(position, _READ_BYTES)
        run = self._scan_records(
            self._buffer, index, position, end, self._is_crc_checked, keys_use, queues
        )
        if run is not None:
            self.position = run[0]
        return run

    def next_record(self) -> ScannedRecord | None:
        """Return the next record; None at the end, and at a fault, which `fault` then describes."""
        position = self.position
        buffer = self._buffer
        index = position - self._buffer_start
        if 0 <= index <= len(buffer) - _HEAD.size and position < self.end:
            # The usual record in one step; `_next_slowly` reads all others and describes faults.
            size, magic, crc, queue_id, queue_offset, own_offset, sys_flag, store_ms, body_bytes = (
                _HEAD.unpack_from(buffer, index)
            )
            end = index + size
            topic = index + BODY_POSITION_V4 + body_bytes
            if (
                magic == MAGIC_V1
                and own_offset == position
                and not sys_flag & 0x30
                and body_bytes >= 0
                and topic <= end - 3
                and end <= len(buffer)
                and not self._is_record_crc_forced
            ):
                topic_end = topic + 1 + buffer[topic]
                properties = topic_end + 2
                if (
                    properties <= end
                    and properties + (buffer[topic_end] << 8 | buffer[topic_end + 1]) == end
                    and (
                        not self._is_crc_checked
                        or not body_bytes
                        or zlib.crc32(buffer[topic - body_bytes : topic]) & 0x7FFFFFFF == crc
                    )
                ):
                    self.fault = None
                    self.position = position + size
                    return ScannedRecord(
                        own_offset,
                        size,
                        queue_id,
                        queue_offset,
                        sys_flag,
                        store_ms,
                        buffer[topic + 1 : topic_end],
                        buffer[properties:end],
                    )
        return self._next_slowly()

    def check_crc(self, record: ScannedRecord) -> bool:
        """Return whether the body of a record that was read without this check has its CRC."""
        reader = LogReader(self._log, record.physical_offset, record.physical_offset + record.size)
        return reader.next_record() is not None

    def _next_slowly(self) -> ScannedRecord | None:
        """Read a record of any form; set `fault` when it is bad."""
        self.fault = None
        while True:
            position = self.position
            if position >= self.end:
                return None
            index = position - self._buffer_start
            bytes_left = len(self._buffer) - index
            if index < 0 or bytes_left < _HEAD.size:
                index = self._fill(position, _HEAD.size)
                bytes_left = len(self._buffer) - index
                if self._file is None:
                    return self._stop("no file holds this position")
            if bytes_left < 8:
                return self._stop(f"only {bytes_left} bytes are left in the file")
            size, magic = _LENGTH_AND_MAGIC.unpack_from(self._buffer, index)
            if magic == MAGIC_BLANK:
                file = self._file
                assert file is not None
                self.position = file.end
                self._file = None
                self._buffer = b""
                continue
            return self._record(position, size, magic)

    def _stop(self, fault: str) -> ScannedRecord | None:
        self.fault = fault
        return None

    def _fill(self, position: int, length: int) -> int:
        """Read at least `length` bytes from `position` into the buffer; return their index in it.

        There are fewer bytes where the file ends.
        """
        file = self._file
        if file is None or not file.start <= position < file.end:
            file = self._file = self._log.file_at(PhysicalOffset(position))
        self._buffer_start = position
        if file is None:
            self._buffer = b""
            return 0
        wanted = min(max(length, _READ_BYTES), file.end - position)
        # Not beyond `end`: reading a single record must not read megabytes.
        wanted = min(wanted, max(length, self.end - position))
        self._buffer = file.file.read(position - file.start, wanted)
        return 0

    def _record(self, position: int, size: int, magic: int) -> ScannedRecord | None:
        """Read the record whose size and magic were read already."""
        self.is_unwritten = False
        if magic not in (MAGIC_V1, MAGIC_V2):
            self.is_unwritten = size == 0 and magic == 0
            content = "zeros" if self.is_unwritten else f"magic {magic & 0xFFFFFFFF:#010x}"
            return self._stop(f"{content} where a record should begin")
        file = self._file
        assert file is not None
        if size < RECORD_BYTES_MIN or position + size > file.end:
            return self._stop(f"total size {size} is impossible here")
        index = position - self._buffer_start
        if len(self._buffer) - index < size:
            index = self._fill(position, size)
            if len(self._buffer) < size:
                return self._stop(f"only {len(self._buffer)} of its {size} bytes are in the file")
        layout = _HEAD
        head = layout.unpack_from(self._buffer, index)
        if head[6] & 0x30:
            layout = _HEADS_V6[head[6] & 0x30]
            if size < layout.size + 3:
                return self._stop(f"total size {size} is too small for its hosts")
            head = layout.unpack_from(self._buffer, index)
        if head[5] != position:
            return self._stop(f"it says physical offset {head[5]} and stands at {position}")
        return self._body(head, index, index + layout.size)

    def _body(self, head: tuple[Any, ...], index: int, body: int) -> ScannedRecord | None:
        """Check body, topic and properties of a record whose head is right."""
        size, magic, crc, queue_id, queue_offset, position, sys_flag, store_ms, body_bytes = head
        buffer = self._buffer
        end = index + size
        topic = body + body_bytes
        if body_bytes < 0 or topic + 3 > end:
            return self._stop(f"body length {body_bytes} does not fit total size {size}")
        if magic == MAGIC_V1:
            topic_end = topic + 1 + buffer[topic]
            topic += 1
        else:
            topic_end = topic + 2 + ((buffer[topic] << 8) | buffer[topic + 1])
            topic += 2
        properties = topic_end + 2
        if (
            properties > end
            or properties + ((buffer[topic_end] << 8) | buffer[topic_end + 1]) != end
        ):
            return self._stop("its inner lengths do not add up to its total size")
        if self._is_record_crc_forced:
            if not is_record_crc_right(buffer[index:end]):
                return self._stop("the CRC of the whole record is wrong or missing")
        elif self._is_crc_checked and body_bytes:
            actual = zlib.crc32(memoryview(buffer)[body : body + body_bytes]) & 0x7FFFFFFF
            if actual != crc:
                return self._stop(f"body CRC {actual:#010x}, the record says {crc:#010x}")
        self.position = position + size
        return ScannedRecord(
            position,
            size,
            queue_id,
            queue_offset,
            sys_flag,
            store_ms,
            buffer[topic:topic_end],
            buffer[properties:end],
        )

    def resync(self, limit: int) -> ScannedRecord | None:
        """After a fault, return the next sound record that begins below `limit`; None without one.

        Reading continues behind that record; the bytes before it are damaged.
        """
        position = self.position + 1
        while position < min(limit, self.end):
            file = self._log.file_at(PhysicalOffset(position))
            if file is None:
                return None
            candidate = self._find_magic(file, position, min(limit, file.end))
            if candidate is None:
                position = file.end
                continue
            self.position = candidate
            record = self.next_record()
            if record is not None:
                return record
            position = candidate + 1
        return None

    def _find_magic(self, file: _File, start: int, limit: int) -> int | None:
        """Return the first position in [start, limit) of a possible record, by its magic; or None.

        Only blocks with data are searched: of a file of a gibibyte, a few pages may be written.
        """
        # The blocks are computed once, since reading a page makes its neighbours count as data.
        if self._blocks_of is not file or start < self._blocks_start:
            self._blocks_of, self._blocks_start = file, start
            self._blocks = data_blocks(file.file, start - file.start, file.end - file.start)
        for block in self._blocks:
            position = max(start, file.start + block)
            end = min(limit, file.start + block + BLOCK_BYTES)
            if position >= end:
                continue
            # Seven bytes more than a block, so that no magic is cut in two.
            raw = file.file.read(position - file.start, end - position + 7)
            hits = [at for magic in _MAGICS if (at := raw.find(magic, 4)) >= 0]
            if hits and position + min(hits) - 4 < limit:
                return position + min(hits) - 4
        return None


def data_blocks(file: RandomFile, position: int, end: int) -> list[int]:
    """Return the positions in [position, end) of blocks of `BLOCK_BYTES` that may have data.

    Pages that were read count as data, also those that the kernel has read ahead.  So they are
    forgotten first: else each opening of a store would find more of its last file to look at, up to
    a gibibyte of zeros.  Call this before reading.
    """
    file.forget_cached(position, end - position)
    blocks: list[int] = []
    data = file.next_data(position)
    while data is not None and data < end:
        block = max(data, position)
        blocks.append(block)
        data = file.next_data(block + BLOCK_BYTES)
    return blocks
