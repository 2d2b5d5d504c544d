"""Extensions of consume queues: the tags code, store time and filter bitmap of each message.

When the units of a filtered topic go to a queue's files, each gets an *extension unit*, and the
unit has the address of the extension unit in place of its tags code.  A function of the broker
computes the bitmap from a message's properties, or says that no group filters the topic; filters
are unknown here.

Layout: `cometmq.codec.cq_ext`; directories beside those of the queues::

    consumequeue_ext/<topic>/<queue id>/00000000000000000000

An address never leads to the extension unit of another message.  Extension units are written before
the units that lead to them.  After a power cut, units behind the last sync are derived again,
without addresses.  After a start, extension units are appended behind the last one in the files
*and* behind every address in the queue's units; where files were lost, that is in a new file.

When an extension unit cannot be read, the reader evaluates the record.  So a damaged extension
costs time and loses nothing.

All files of a queue's extension have the size of the first one, whatever the configuration is now.
"""

from __future__ import annotations

import logging
import struct
import threading
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from cometmq.codec.consume_queue import (
    CQ_EXT_END_BLANK,
    CQ_EXT_HEAD_BYTES,
    CQ_UNIT,
    CQ_UNIT_BYTES,
    PRE_BLANK_SIZE,
    CqExtUnit,
    decode_cq_ext_address,
    decode_cq_ext_unit,
    encode_cq_ext_address,
    encode_cq_ext_unit,
    is_cq_ext_address,
)
from cometmq.codec.cq_ext import encode_cq_ext_end_blank, has_cq_ext_room, uniform_count
from cometmq.codec.stored_message import (
    BORN_HOST_V6_FLAG,
    STORE_TIMESTAMP_POSITION_V4,
    SYS_FLAG_POSITION,
    properties_of,
)
from cometmq.errors import CodecError
from cometmq.store.log.commit_log import log_file_name
from cometmq.store.log.record_runs import SPAN_BYTES_MAX, record_fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from cometmq.store.base.config import StoreConfig
    from cometmq.store.base.disk import Disk, RandomFile
    from cometmq.store.log.commit_log import CommitLog
    from cometmq.store.queue.consume_queue import ConsumeQueue, ConsumeQueues

    Bitmaps = Callable[[str], Callable[[bytes], bytes | None] | None]

__all__ = ["ADDRESS_MARK", "QueueExt"]

_LOG: Final = logging.getLogger("cometmq.store")
ADDRESS_MARK: Final = 0x80
"""The highest byte of an address; in a tags code it is 0x00 or 0xFF."""
CODE_POSITION: Final = 12
"""Position of tags code or address in a unit."""
_CODE: Final = struct.Struct(">q")
_SHORT: Final = struct.Struct(">h")
_STORE_TIME: Final = struct.Struct(">q")
_V6_EXTRA: Final = 12
_NAME_DIGITS: Final = 20
_FILES_MAX: Final = 64
_WALK_BYTES: Final = 1 << 20
_SEARCH_UNITS: Final = 1 << 16
_UNIT_BYTES_MAX: Final = 32_767


class QueueExt:
    """The extension files of one store; only the queue writer's worker writes them."""

    def __init__(
        self, config: StoreConfig, disk: Disk, log: CommitLog, queues: ConsumeQueues
    ) -> None:
        self._disk = disk
        self._log = log
        self._queues = queues
        self._path = f"{config.root}/consumequeue_ext"
        self._queue_path = queues.path
        self._file_bytes_new = config.consume_queue_ext_file_bytes
        self.bitmaps: Bitmaps | None = None
        """Returns the bitmap function of a topic; while None, no extension is written."""
        self._ends: dict[str, int] = {}
        """By directory: where the next extension unit goes."""
        self._sizes: dict[str, int] = {}
        """By directory: the size of its files."""
        self._files: dict[str, RandomFile] = {}
        # Readers are on the loop and in workers.
        self._files_lock = threading.Lock()

    # -- writing, in the queue writer's worker -----------------------------------------------

    def extend(self, queue: ConsumeQueue, data: bytes) -> tuple[bytes, list[str]]:
        """Write extension units for units that are about to be written to a file.

        Returns the units with the addresses, and the paths that were written.
        """
        bitmap_of = self.bitmaps(queue.topic) if self.bitmaps is not None else None
        if bitmap_of is None:
            return data, []
        directory = self._directory(queue)
        end = self._ends.get(directory)
        if end is None:
            end = self._find_end(queue, directory)
        changed = bytearray(data)
        appended = _Appended(end, self._file_bytes(directory))
        for number, record, code in self._records(data):
            bitmap_and_time = _bitmap_and_time(bitmap_of, record)
            if bitmap_and_time is None:
                continue
            bitmap, store_ms = bitmap_and_time
            position = appended.add(encode_cq_ext_unit(code, store_ms, bitmap))
            at = number * CQ_UNIT_BYTES + CODE_POSITION
            _CODE.pack_into(changed, at, encode_cq_ext_address(position))
        paths = self._write(directory, appended)
        self._ends[directory] = appended.end
        return bytes(changed), paths

    def _records(self, data: bytes) -> Iterator[tuple[int, memoryview, int]]:
        """Yield number, record and tags code of the units whose record is sound."""
        units = list(CQ_UNIT.iter_unpack(data[: len(data) // CQ_UNIT_BYTES * CQ_UNIT_BYTES]))
        around, base = memoryview(b""), 0
        for number, (position, size, code) in enumerate(units):
            if is_cq_ext_address(code) or position < 0 or not 0 < size < PRE_BLANK_SIZE:
                continue
            start = position - base
            if start < 0 or start + size > len(around):
                # One read covers this record and those of the next units that lie close behind.
                last = next(
                    (
                        unit
                        for unit in reversed(units[number : number + 256])
                        if position < unit[0] < position + SPAN_BYTES_MAX - unit[1]
                    ),
                    (position, size, code),
                )
                around, base = self._log.read(position, last[0] + last[1] - position), position
                start = 0
            record = around[start : start + size]
            if record_fault(record, position, size) is None:
                yield number, record, code

    def _write(self, directory: str, appended: _Appended) -> list[str]:
        paths: list[str] = []
        for start, at, raw in appended.chunks:
            if not raw:
                continue
            path = f"{directory}/{log_file_name(start)}"
            try:
                file = self._disk.open_random(path, appended.file_bytes, create=False)
            except FileNotFoundError:
                self._disk.makedirs(directory)
                file = self._disk.open_random(path, appended.file_bytes, create=True)
            file.write(at, raw)
            paths.append(path)
        return paths

    def _find_end(self, queue: ConsumeQueue, directory: str) -> int:
        """Return the position of the first extension unit that this process appends."""
        file_bytes = self._file_bytes(directory)
        starts = self._starts(directory)
        end = 0
        if starts:
            path = f"{directory}/{log_file_name(starts[-1])}"
            file = self._disk.open_random(path, file_bytes, create=False)
            end = starts[-1] + self._end_in_file(file)
        address = self._last_address(queue)
        if address is not None and address >= end:
            # The extension unit at this address is lost; no other may be written there.
            end = (address // file_bytes + 1) * file_bytes
            _LOG.warning(
                "%s: the extension units up to position %d are lost; new ones begin at %d",
                directory,
                address,
                end,
            )
        return end

    @staticmethod
    def _end_in_file(file: RandomFile) -> int:
        """Return the position at which the extension units of a file end."""
        position = 0
        size = file.size()
        while position < size:
            raw = file.read(position, min(_WALK_BYTES, size - position))
            at = 0
            while at + CQ_EXT_HEAD_BYTES <= len(raw):
                unit_bytes = _SHORT.unpack_from(raw, at)[0]
                if unit_bytes == CQ_EXT_END_BLANK:
                    return size
                if unit_bytes < CQ_EXT_HEAD_BYTES:
                    return position + at
                count = uniform_count(raw[at:], unit_bytes)
                if not count:
                    if at + unit_bytes <= len(raw):
                        # Neither a unit nor zeros: nothing is appended to a damaged file.
                        return size
                    break
                at += count * unit_bytes
            if not at:
                break
            position += at
        return position

    def _last_address(self, queue: ConsumeQueue) -> int | None:
        """Return the extension position to which the last unit with an address leads, or None."""
        end = queue.written
        while end > queue.min:
            first = max(queue.min, end - _SEARCH_UNITS)
            raw = self._queues.units(queue, first, end - first, may_block=True) or b""
            number = raw[CODE_POSITION::CQ_UNIT_BYTES].rfind(bytes([ADDRESS_MARK]))
            if number >= 0:
                code = _CODE.unpack_from(raw, number * CQ_UNIT_BYTES + CODE_POSITION)[0]
                return decode_cq_ext_address(code)
            end = first
        return None

    # -- reading -----------------------------------------------------------------------------

    def read(
        self, queue: ConsumeQueue, position: int, length: int, *, may_block: bool
    ) -> bytes | bytearray | None:
        """Return bytes of the extension; None when the read would block.

        Returns fewer bytes where the file ends, none where it is missing.
        """
        directory = self._directory(queue)
        file_bytes = self._file_bytes(directory)
        at = position % file_bytes
        file = self._open(f"{directory}/{log_file_name(position - at)}", file_bytes)
        if file is None:
            return b""
        length = max(0, min(length, file_bytes - at))
        return file.read(at, length) if may_block else file.read_resident(at, length)

    def unit(self, queue: ConsumeQueue, address: int) -> CqExtUnit | None:
        """Return the extension unit at an address; None when it cannot be read.  May block."""
        raw = self.read(queue, decode_cq_ext_address(address), _UNIT_BYTES_MAX, may_block=True)
        try:
            return decode_cq_ext_unit(raw)[0] if raw else None
        except CodecError:
            return None

    def _open(self, path: str, file_bytes: int) -> RandomFile | None:
        files = self._files
        with self._files_lock:
            file = files.pop(path, None)
            if file is None:
                try:
                    file = self._disk.open_random(path, file_bytes, create=False)
                except FileNotFoundError:
                    return None
                if len(files) >= _FILES_MAX:
                    del files[next(iter(files))]
            files[path] = file
        return file

    # -- files -------------------------------------------------------------------------------

    def paths(self, queues: Iterable[ConsumeQueue]) -> Iterator[str]:
        """Yield the path of every extension file of these queues."""
        if not self._disk.is_dir(self._path):
            return
        topics = set(self._disk.listdir(self._path))
        for queue in queues:
            if queue.topic in topics:
                directory = self._directory(queue)
                for start in self._starts(directory):
                    yield f"{directory}/{log_file_name(start)}"

    def _directory(self, queue: ConsumeQueue) -> str:
        return f"{self._path}{queue.path.removeprefix(self._queue_path)}"

    def _starts(self, directory: str) -> list[int]:
        names = self._disk.listdir(directory) if self._disk.is_dir(directory) else []
        return sorted(int(name) for name in names if len(name) == _NAME_DIGITS and name.isdigit())

    def _file_bytes(self, directory: str) -> int:
        """Return the size of the files in a directory, or of its first one when it has none yet."""
        size = self._sizes.get(directory)
        if size is None:
            starts = self._starts(directory)
            size = self._file_bytes_new
            if starts:
                size = self._disk.size(f"{directory}/{log_file_name(starts[0])}") or size
                self._sizes[directory] = size
        return size

    def remove(self, queue_path: str) -> None:
        """Delete the extension of a queue or a topic (in the queue writer's worker)."""
        directory = f"{self._path}{queue_path.removeprefix(self._queue_path)}"
        for table in (self._ends, self._sizes):
            for key in [key for key in table if f"{key}/".startswith(f"{directory}/")]:
                table.pop(key, None)
        with self._files_lock:
            for path in [path for path in self._files if path.startswith(f"{directory}/")]:
                del self._files[path]
        if self._disk.is_dir(directory):
            self._disk.remove_tree(directory)

    def expire(self, queues: Iterable[ConsumeQueue]) -> None:
        """In a worker: delete the files before the one with the first message's extension unit."""
        if not self._disk.is_dir(self._path):
            return
        topics = set(self._disk.listdir(self._path))
        for queue in queues:
            if queue.topic in topics and not queue.is_gone:
                self._expire(queue)

    def _expire(self, queue: ConsumeQueue) -> None:
        directory = self._directory(queue)
        starts = self._starts(directory)
        if len(starts) < 2:
            return
        raw = self._queues.units(queue, queue.min, _SEARCH_UNITS, may_block=True) or b""
        number = raw[CODE_POSITION::CQ_UNIT_BYTES].find(bytes([ADDRESS_MARK]))
        if number < 0:
            return
        code = _CODE.unpack_from(raw, number * CQ_UNIT_BYTES + CODE_POSITION)[0]
        first = decode_cq_ext_address(code)
        for start, following in pairwise(starts):
            if following <= first:
                path = f"{directory}/{log_file_name(start)}"
                with self._files_lock:
                    self._files.pop(path, None)
                self._disk.remove(path)

    def close(self) -> None:
        """Close the files."""
        with self._files_lock:
            self._files.clear()


class _Appended:
    """Extension units to append, cut into one chunk of bytes for each file."""

    def __init__(self, end: int, file_bytes: int) -> None:
        self.end = end
        self.file_bytes = file_bytes
        self.chunks: list[tuple[int, int, bytearray]] = []
        """Start of the file, position in the file, the bytes to write there."""
        self._begin_chunk()

    def _begin_chunk(self) -> None:
        at = self.end % self.file_bytes
        self.chunks.append((self.end - at, at, bytearray()))

    def add(self, unit: bytes) -> int:
        """Add a unit; return its position."""
        start, at, raw = self.chunks[-1]
        if not has_cq_ext_room(at + len(raw), len(unit), self.file_bytes):
            if len(raw) or at:
                blank = encode_cq_ext_end_blank()
                raw += blank[: self.file_bytes - at - len(raw)]
            self.end = start + self.file_bytes
            self._begin_chunk()
            raw = self.chunks[-1][2]
        position = self.end
        raw += unit
        self.end += len(unit)
        return position


def _bitmap_and_time(
    bitmap_of: Callable[[bytes], bytes | None], record: memoryview
) -> tuple[bytes, int] | None:
    """Return bitmap and store time of a record; None without a bitmap."""
    try:
        bitmap = bitmap_of(properties_of(record))
    except CodecError:
        return None
    if bitmap is None:
        return None
    position = STORE_TIMESTAMP_POSITION_V4
    if record[SYS_FLAG_POSITION + 3] & BORN_HOST_V6_FLAG:
        position += _V6_EXTRA
    return bitmap, _STORE_TIME.unpack_from(record, position)[0]
