"""Extensions of consume queues: for each message its tags code, store time and filters' bitmap.

When units go into a queue's files, those of filtered topics get an extension unit and its address.
A function of the broker gives the bitmap of a message's properties, or says that nobody filters the
topic; filters are unknown here.

Layout: `cometmq.codec.cq_ext`; directories beside those of the queues::

    consumequeue_ext/<topic>/<queue id>/00000000000000000000

An address never leads to another message's unit.  Units of the queue go to their file after their
extension units; after a power cut those behind the last sync are derived again, without addresses.
After a start, extension units are appended behind the last one in the files *and* behind every
address in the queue's units; if files were lost, that is in a new file.

An extension unit that cannot be read says nothing about its message: the reader evaluates the
record.  So a damaged extension costs time and loses nothing.

Files keep the size that a queue's first one has, whatever the configuration says now.
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
"""The highest byte of an address; that of a tags code is 0x00 or 0xFF."""
CODE_POSITION: Final = 12
_CODE: Final = struct.Struct(">q")
_SHORT: Final = struct.Struct(">h")
_STORE_TIME: Final = struct.Struct(">q")
_V6_EXTRA: Final = 12
_NAME_DIGITS: Final = 20
_FILES_MAX: Final = 64
_WALK_BYTES: Final = 1 << 20
_LOOK_UNITS: Final = 1 << 16
_UNIT_BYTES_MAX: Final = 32_767


class QueueExt:
    """The extension files of one store; writing belongs to the queue writer's worker."""

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
        self._sizes: dict[str, int] = {}
        self._files: dict[str, RandomFile] = {}
        # Held for moments: readers are on the loop and in workers.
        self._files_lock = threading.Lock()

    # -- writing, in the queue writer's worker -----------------------------------------------

    def extend(self, queue: ConsumeQueue, data: bytes) -> tuple[bytes, list[str]]:
        """Write extension units for units on their way to a file.

        Returns the units with addresses, and the written paths.  A failing write raises; no unit
        has an address then.
        """
        make = self.bitmaps(queue.topic) if self.bitmaps is not None else None
        if make is None:
            return data, []
        directory = self._directory(queue)
        end = self._ends.get(directory)
        if end is None:
            end = self._find_end(queue, directory)
        changed = bytearray(data)
        appended = _Appended(end, self._file_bytes(directory))
        for place, record, code in self._records(data):
            found = _bitmap_and_time(make, record)
            if found is None:
                continue
            position = appended.add(encode_cq_ext_unit(code, found[1], found[0]))
            at = place * CQ_UNIT_BYTES + CODE_POSITION
            _CODE.pack_into(changed, at, encode_cq_ext_address(position))
        paths = self._write(directory, appended)
        self._ends[directory] = appended.end
        return bytes(changed), paths

    def _records(self, data: bytes) -> Iterator[tuple[int, memoryview, int]]:
        """Yield number, record and tags code of units whose record is sound."""
        units = list(CQ_UNIT.iter_unpack(data[: len(data) // CQ_UNIT_BYTES * CQ_UNIT_BYTES]))
        around, base = memoryview(b""), 0
        for place, (position, size, code) in enumerate(units):
            if is_cq_ext_address(code) or position < 0 or not 0 < size < PRE_BLANK_SIZE:
                continue
            start = position - base
            if start < 0 or start + size > len(around):
                last = next(
                    (
                        one
                        for one in reversed(units[place : place + 256])
                        if position < one[0] < position + SPAN_BYTES_MAX - one[1]
                    ),
                    (position, size, code),
                )
                around, base = self._log.read(position, last[0] + last[1] - position), position
                start = 0
            record = around[start : start + size]
            if record_fault(record, position, size) is None:
                yield place, record, code

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
        """Return the position at which this process appends first."""
        file_bytes = self._file_bytes(directory)
        starts = self._starts(directory)
        end = 0
        if starts:
            path = f"{directory}/{log_file_name(starts[-1])}"
            end = starts[-1] + self._walk(self._disk.open_random(path, file_bytes, create=False))
        address = self._last_address(queue)
        if address is not None and address >= end:
            # Its extension unit is lost; no other may ever be written there.
            end = (address // file_bytes + 1) * file_bytes
            _LOG.warning(
                "%s: the extension units up to position %d are lost; it goes on at %d",
                directory,
                address,
                end,
            )
        return end

    @staticmethod
    def _walk(file: RandomFile) -> int:
        """Return the position at which the units of a file end."""
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
                        # Neither a unit nor zeros: leave damage alone.
                        return size
                    break
                at += count * unit_bytes
            if not at:
                break
            position += at
        return position

    def _last_address(self, queue: ConsumeQueue) -> int | None:
        """Return the highest extension position that a unit in the queue's files has as address."""
        end = queue.written
        while end > queue.min:
            first = max(queue.min, end - _LOOK_UNITS)
            raw = self._queues.units(queue, first, end - first, may_block=True) or b""
            place = raw[CODE_POSITION::CQ_UNIT_BYTES].rfind(bytes([ADDRESS_MARK]))
            if place >= 0:
                code = _CODE.unpack_from(raw, place * CQ_UNIT_BYTES + CODE_POSITION)[0]
                return decode_cq_ext_address(code)
            end = first
        return None

    # -- reading -----------------------------------------------------------------------------

    def read(
        self, queue: ConsumeQueue, position: int, length: int, *, may_block: bool
    ) -> bytes | bytearray | None:
        """Return bytes of the extension; None when reading may block.

        Fewer where its file ends or is missing.
        """
        directory = self._directory(queue)
        file_bytes = self._file_bytes(directory)
        place = position % file_bytes
        file = self._open(f"{directory}/{log_file_name(position - place)}", file_bytes)
        if file is None:
            return b""
        length = max(0, min(length, file_bytes - place))
        return file.read(place, length) if may_block else file.read_resident(place, length)

    def unit(self, queue: ConsumeQueue, address: int) -> CqExtUnit | None:
        """Return the unit of an address; None when it cannot be read.  May block for a moment."""
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
        known = self._sizes.get(directory)
        if known is None:
            starts = self._starts(directory)
            known = self._file_bytes_new
            if starts:
                known = self._disk.size(f"{directory}/{log_file_name(starts[0])}") or known
                self._sizes[directory] = known
        return known

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
        """In a worker: delete the files in front of the one with the first message's unit."""
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
        raw = self._queues.units(queue, queue.min, _LOOK_UNITS, may_block=True) or b""
        place = raw[CODE_POSITION::CQ_UNIT_BYTES].find(bytes([ADDRESS_MARK]))
        if place < 0:
            return
        code = _CODE.unpack_from(raw, place * CQ_UNIT_BYTES + CODE_POSITION)[0]
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
    """Units behind the end of the extension, and the pieces of files they become."""

    def __init__(self, end: int, file_bytes: int) -> None:
        self.end = end
        self.file_bytes = file_bytes
        self.chunks: list[tuple[int, int, bytearray]] = []
        """Start of the file, position in it, what goes there."""
        self._begin()

    def _begin(self) -> None:
        place = self.end % self.file_bytes
        self.chunks.append((self.end - place, place, bytearray()))

    def add(self, unit: bytes) -> int:
        """Add a unit; return its position."""
        start, at, raw = self.chunks[-1]
        if not has_cq_ext_room(at + len(raw), len(unit), self.file_bytes):
            if len(raw) or at:
                blank = encode_cq_ext_end_blank()
                raw += blank[: self.file_bytes - at - len(raw)]
            self.end = start + self.file_bytes
            self._begin()
            raw = self.chunks[-1][2]
        position = self.end
        raw += unit
        self.end += len(unit)
        return position


def _bitmap_and_time(
    make: Callable[[bytes], bytes | None], record: memoryview
) -> tuple[bytes, int] | None:
    """Return bitmap and store time of a record; None where nobody filters any more."""
    try:
        bitmap = make(properties_of(record))
    except CodecError:
        return None
    if bitmap is None:
        return None
    place = STORE_TIMESTAMP_POSITION_V4
    if record[SYS_FLAG_POSITION + 3] & BORN_HOST_V6_FLAG:
        place += _V6_EXTRA
    return bitmap, _STORE_TIME.unpack_from(record, place)[0]
