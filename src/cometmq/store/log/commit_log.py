"""The commit log: the files with all records, written with pwrite, read through mapped windows.

This module handles files, windows and positions, but not records: the appender encodes them,
recovery reads them.

The files::

    commitlog/00000000000000000000   [record][record]...[BLANK][zeros or garbage]
    commitlog/00000000001073741824   [record]...[zeros: not written yet]
    cometmq.next                     blocks reserved for the file after the last one

A file ends with a BLANK of 8 bytes or more.  A record that would leave less than 8 bytes of the
file goes into the next file (docs/internals/store.md#end-of-a-log-file).  A worker reserves the
next file in the store's root, under a name that Java ignores; it is renamed when it is needed.

Records are written with pwrite, into blocks that are reserved, and read through a window of some
megabytes, mapped where the last record ended.  Older windows stay mapped for readers for a while;
then a worker unmaps them.  Unmapping a whole file would stall the loop, unmapping a window does
not.

Records outside these windows are read through other ones, mapped for reading only, as far as their
bytes are in memory, and else with pread.  Such a window goes when it was not used for a while, when
its file expires, and when others are needed; the last reader unmaps it.

Durable when: a record survives the process when `CommitLog.write` has returned; it survives a
power cut when `MappedFile.file.sync` has (flush.py).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from cometmq.codec.stored_message import BLANK, BLANK_BYTES, MAGIC_BLANK
from cometmq.errors import DiskFull, MessageIllegal, StoreError
from cometmq.store.base.disk import MAP_GRANULARITY

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.model.offsets import PhysicalOffset
    from cometmq.store.base.config import StoreConfig
    from cometmq.store.base.disk import Disk, LogFile, Mapping, ResidentWindow, Workers

__all__ = ["CommitLog", "MappedFile", "log_file_name"]

_LOG: Final = logging.getLogger("cometmq.store")
NEXT_FILE_NAME: Final = "cometmq.next"
# Unmapping so much takes a fifth of a millisecond.
_READ_WINDOW_BYTES: Final = 8 << 20
# A window maps this much more, so that records that begin in it end in it.
_READ_OVERLAP_BYTES: Final = 1 << 20
_READ_WINDOWS_MAX: Final = 8
# A failed reservation is tried again after this time at the earliest.
_RESERVE_RETRY_MS: Final = 500


def log_file_name(start: int) -> str:
    """Return the name of the file that begins at this byte of the log or of a queue (`%020d`)."""
    return f"{start:020d}"


class MappedFile:
    """One open file of the log; `start` and `end` are physical offsets."""

    __slots__ = ("end", "file", "is_name_synced", "path", "size", "start")

    def __init__(self, path: str, start: int, size: int, file: LogFile) -> None:
        self.path = path
        self.start = start
        self.size = size
        self.end = start + size
        self.file = file
        self.is_name_synced = False


class _LogWindow:
    """A mapped part of the log; `start` and `end` are physical offsets."""

    __slots__ = ("end", "file", "mapping", "start", "view")

    def __init__(self, file: LogFile, mapping: Mapping, start: int) -> None:
        self.file = file
        self.mapping = mapping
        self.view = memoryview(mapping)
        self.start = start
        self.end = start + len(mapping)


class _ReadWindow:
    """A part of a file that is mapped for reading; None where the system maps none."""

    __slots__ = ("file", "is_used", "resident")

    def __init__(self, file: MappedFile, resident: ResidentWindow | None) -> None:
        self.file = file
        self.resident = resident
        self.is_used = True


class CommitLog:
    """The log's files, and the window through which records are written.

    The appender uses `wrote`, `limit`, `buffer` and `buffer_start` itself.  A record of `size`
    bytes fits at `wrote` if `wrote + size <= limit`; else the appender calls `make_room` first.
    """

    def __init__(
        self, config: StoreConfig, disk: Disk, workers: Workers, clock: Callable[[], int]
    ) -> None:
        self.path = config.log_path
        self.file_bytes = config.commit_log_file_bytes
        self.files: list[MappedFile] = []
        self.wrote = 0
        """Physical offset at which the log ends."""
        self.limit = -1
        """Physical offset up to which the window has room; -1 without a window."""
        self.buffer_start = 0
        """Physical offset at which the window begins."""
        self.buffer: Mapping = bytearray()
        """The window's memory."""
        self._window: _LogWindow | None = None
        self._windows: list[_LogWindow] = []
        """Older windows, for readers."""
        self._retired: list[_LogWindow] = []
        """Windows to unmap once no reader uses them."""
        self._read_windows: dict[int, _ReadWindow] = {}
        """By the physical offset at which they begin, the most recently used last."""
        self._window_bytes = max(MAP_GRANULARITY, config.window_bytes)
        self._windows_kept = config.windows_kept
        self._disk = disk
        self._workers = workers
        self._clock = clock
        self._next_path = f"{config.root}/{NEXT_FILE_NAME}"
        self._next: LogFile | None = None
        self._is_reserving = False
        self._reserve_after_ms = 0
        self._is_closed = False
        self.is_full = False
        """Whether the disk was full when the last file was to be made."""
        self.failure: StoreError | None = None
        """Why nothing may be appended; None while it may."""

    # -- files ---------------------------------------------------------------------------

    @property
    def min_offset(self) -> int:
        """Physical offset at which the log begins."""
        return self.files[0].start if self.files else self.wrote

    @property
    def end_of_files(self) -> int:
        """Physical offset behind the last file; 0 when there is none."""
        return self.files[-1].end if self.files else 0

    def file_at(self, physical_offset: PhysicalOffset) -> MappedFile | None:
        """Return the file that holds a physical offset."""
        files = self.files
        if not files or not files[0].start <= physical_offset < files[-1].end:
            return None
        # All files have one size.
        index = (physical_offset - files[0].start) // self.file_bytes
        return files[index]

    def where(self, physical_offset: PhysicalOffset) -> str:
        """Return a text with the path and the position of a physical offset."""
        file = self.file_at(physical_offset)
        if file is None:
            return f"{self.path} (no file holds physical offset {physical_offset})"
        return f"{file.path}, position {physical_offset - file.start}"

    def open_existing(self, start: int) -> MappedFile:
        """Open the file that begins at `start`, the next one behind the open files."""
        path = f"{self.path}/{log_file_name(start)}"
        file = self._disk.open_log(path, self.file_bytes, create=False)
        mapped = MappedFile(path, start, self.file_bytes, file)
        mapped.is_name_synced = True
        self.files.append(mapped)
        return mapped

    def seek(self, wrote: int) -> None:
        """Set the end of the log, where writing continues (after recovery)."""
        self.wrote = wrote
        self.limit = -1
        self._forget_window()

    # -- appending -----------------------------------------------------------------------

    def make_room(self, size: int) -> int:
        """Make room for a record of `size` bytes; return its physical offset.

        Raises:
            MessageIllegal: the record does not fit a file.
            DiskFull: there is no space for a new file; nothing has changed.
            StoreError: the error with which `refuse` was called.
        """
        if self.failure is not None:
            raise type(self.failure)(*self.failure.args)
        if size + BLANK_BYTES > self.file_bytes:
            raise MessageIllegal(
                f"a record of {size} bytes does not fit a commit-log file of {self.file_bytes};"
                " raise mappedFileSizeCommitLog or send less"
            )
        files = self.files
        if not files or self.wrote >= files[-1].end:
            self._add_file(files[-1].end if files else self.wrote)
        elif size + BLANK_BYTES > files[-1].end - self.wrote:
            last = files[-1]
            # The new file comes first, so that a full disk changes nothing.
            self._add_file(last.end)
            last.file.write(self.wrote - last.start, BLANK.pack(last.end - self.wrote, MAGIC_BLANK))
            self.wrote = last.end
        self._open_window(size)
        return self.wrote

    def append_span(self, data: bytes) -> None:
        """Append records of another log, at the same physical offsets; they lie in one file.

        Raises:
            DiskFull: there is no space for a new file; nothing has changed.
            StoreError: the error with which `refuse` was called.
        """
        if self.failure is not None:
            raise type(self.failure)(*self.failure.args)
        files = self.files
        if not files or self.wrote >= files[-1].end:
            self._add_file(self.wrote)
            self.limit = -1
        if self.wrote + len(data) > self.limit:
            self._open_window(len(data))
        self.write(self.wrote, data)
        self.wrote += len(data)

    def fill_blank_end(self, data: bytes, filled_bytes: int) -> None:
        """Write bytes of another log's blank end, `filled_bytes` behind the end of this log.

        The log ends before its BLANK until the file is full: recovery finds it by that.

        Raises:
            DiskFull, OSError: the disk does not take them.
        """
        if not self.files or self.wrote >= self.files[-1].end:
            self._add_file(self.wrote)
        last = self.files[-1]
        position = self.wrote - last.start + filled_bytes
        last.file.write(position, data)
        if position + len(data) == last.size:
            self.wrote = last.end
            self.limit = -1

    def write(self, physical_offset: int, records: bytes) -> None:
        """Write records into the last file, whose blocks are reserved, where `make_room` made room.

        This is a `pwrite`, not a store into the mapping: a sync write-protects mapped dirty pages
        again, and each of them then costs an interrupt and a fault on this core.
        """
        last = self.files[-1]
        try:
            last.file.write(physical_offset - last.start, records)
        except (OSError, DiskFull):
            # Units of these records are in their queues already.  The mapping takes them, and the
            # next sync tells whether the disk does.
            start = physical_offset - self.buffer_start
            self.buffer[start : start + len(records)] = records

    def refuse(self, failure: StoreError) -> None:
        """Stop appending: from now on `make_room` raises `failure`.  Reads go on."""
        self.failure = failure
        self.limit = -1

    def _add_file(self, start: int) -> None:
        path = f"{self.path}/{log_file_name(start)}"
        file, self._next = self._next, None
        if file is not None:
            self._disk.rename(self._next_path, path)
            file.path = path
        else:
            try:
                file = self._disk.open_log(path, self.file_bytes, create=True)
            except DiskFull:
                self.is_full = True
                raise
        self.files.append(MappedFile(path, start, self.file_bytes, file))

    def _open_window(self, size: int) -> None:
        mapped = self.files[-1]
        position = (self.wrote - mapped.start) // MAP_GRANULARITY * MAP_GRANULARITY
        length = max(self._window_bytes, size + MAP_GRANULARITY)
        mapping = mapped.file.map(position, length)
        self._forget_window()
        window = _LogWindow(mapped.file, mapping, mapped.start + position)
        self._window = window
        self.buffer = mapping
        self.buffer_start = window.start
        self.limit = min(window.end, mapped.end - BLANK_BYTES)
        # Reserve the next file early: half a file lasts for minutes, or is reserved fast.
        if window.end - mapped.start >= self.file_bytes // 2:
            self.reserve_next()

    def _forget_window(self) -> None:
        """Write no more through the window; readers may use it for a while."""
        window, self._window = self._window, None
        if window is not None:
            self._windows.append(window)
        while len(self._windows) > (self._windows_kept if self.limit >= 0 else 0):
            self._retired.append(self._windows.pop(0))

    def reserve_next(self) -> None:
        """Have a worker make the file after the last one, with its blocks reserved."""
        now_ms = self._clock()
        if self._next is not None or self._is_reserving or now_ms < self._reserve_after_ms:
            return
        self._is_reserving = True
        path, size, disk = self._next_path, self.file_bytes, self._disk

        def done(result: LogFile | BaseException) -> None:
            self._is_reserving = False
            if isinstance(result, DiskFull):
                self._reserve_after_ms = self._clock() + _RESERVE_RETRY_MS
            elif isinstance(result, BaseException):
                self._reserve_after_ms = self._clock() + _RESERVE_RETRY_MS
                _LOG.error("reserving %s failed: %s; it is tried again when needed", path, result)
            elif not self._is_closed:
                self._next = result
                self.is_full = False

        self._workers.submit(lambda: disk.open_log(path, size, create=True), done)

    # -- reading -------------------------------------------------------------------------

    def view(self, physical_offset: PhysicalOffset, size: int) -> memoryview | None:
        """Return mapped bytes of the log, without a copy; None when they are not mapped."""
        start = physical_offset - self.buffer_start
        window = self._window
        if start >= 0 and window is not None:
            return window.view[start : start + size]
        end = physical_offset + size
        for window in self._windows:
            if window.start <= physical_offset and end <= window.end:
                start = physical_offset - window.start
                return window.view[start : start + size]
        return None

    def read_resident(self, physical_offset: PhysicalOffset, size: int) -> memoryview | None:
        """Return bytes of the log if they are in memory, mapped or copied; else None."""
        mapped_bytes = self.view(physical_offset, size)
        if mapped_bytes is not None:
            return mapped_bytes
        mapped = self.file_at(physical_offset)
        if mapped is None:
            return None
        data = mapped.file.read_resident(physical_offset - mapped.start, size)
        return None if data is None else memoryview(data)

    def view_resident(self, physical_offset: PhysicalOffset, size: int) -> memoryview | None:
        """As `read_resident`, without a copy where the system can map and say what is in memory.

        The bytes are to be used at once: something outside may cut the file.
        """
        mapped_bytes = self.view(physical_offset, size)
        if mapped_bytes is not None:
            return mapped_bytes
        mapped = self.file_at(physical_offset)
        if mapped is None:
            return None
        position = physical_offset - mapped.start
        window = self._read_window(mapped, position // _READ_WINDOW_BYTES * _READ_WINDOW_BYTES)
        if window is not None:
            mapped_bytes = window.view(position, size)
            if mapped_bytes is not None:
                return mapped_bytes
        data = mapped.file.read_resident(position, size)
        return None if data is None else memoryview(data)

    def _read_window(self, mapped: MappedFile, position: int) -> ResidentWindow | None:
        """Return the window that begins at a position of a file; map it if need be."""
        start = mapped.start + position
        windows = self._read_windows
        window = windows.pop(start, None)
        if window is None or window.file is not mapped:
            if len(windows) >= _READ_WINDOWS_MAX:
                del windows[next(iter(windows))]
            length = min(_READ_WINDOW_BYTES + _READ_OVERLAP_BYTES, mapped.size - position)
            window = _ReadWindow(mapped, mapped.file.map_resident(position, length))
        windows[start] = window
        window.is_used = True
        return window.resident

    def read(self, physical_offset: PhysicalOffset, size: int) -> memoryview:
        """Return bytes of the log, read from the disk if needed.  May block; safe in a worker.

        Returns less than `size` bytes at the end of a file, and where a file was cut.
        """
        mapped = self.file_at(physical_offset)
        if mapped is None:
            return memoryview(b"")
        return memoryview(mapped.file.read(physical_offset - mapped.start, size))

    # -- cut and expired files -------------------------------------------------------------

    def is_active_file_cut(self) -> bool:
        """Return whether something outside has cut the file that is written.

        A write to a mapping beyond the end of its file kills the process, so the appender calls
        this before the first write of each millisecond.
        """
        if self._window is None:
            return False
        mapped = self.files[-1]
        return mapped.file.size() < mapped.size

    def check_windows(self) -> None:
        """Stop using windows of files that were cut: a read beyond the end kills the process."""
        whole = [window for window in self._windows if window.file.size() >= self.file_bytes]
        if len(whole) != len(self._windows):
            self._retired += [window for window in self._windows if window not in whole]
            self._windows = whole

    def abandon_active_file(self, blank_position: int) -> None:
        """End the damaged last file with a BLANK, restore its size, and go on in a new file.

        Args:
            blank_position: the physical offset at which the file's last sound record ends.
        """
        mapped = self.files[-1]
        self.limit = -1
        self._forget_window()
        self._disk.open_log(mapped.path, mapped.size, create=True).close()
        position = blank_position - mapped.start
        blank_bytes = mapped.size - position
        if blank_bytes >= BLANK_BYTES:
            mapped.file.write(position, BLANK.pack(blank_bytes, MAGIC_BLANK))
        self.wrote = mapped.end

    def drop_first_file(self) -> MappedFile:
        """Drop the oldest file; the caller deletes it.  Readers that use it may finish."""
        mapped = self.files.pop(0)
        windows: list[_LogWindow] = []
        for window in self._windows:
            (self._retired if window.start < mapped.end else windows).append(window)
        self._windows = windows
        self._read_windows = {
            start: window
            for start, window in self._read_windows.items()
            if window.file is not mapped
        }
        return mapped

    def unmap_retired(self) -> None:
        """Have a worker unmap the retired windows that no reader uses, and idle read windows."""
        self._read_windows = {
            start: window for start, window in self._read_windows.items() if window.is_used
        }
        for read_window in self._read_windows.values():
            read_window.is_used = False
        retired, self._retired = self._retired, []
        if not retired:
            return

        def work() -> list[_LogWindow]:
            used: list[_LogWindow] = []
            for window in retired:
                window.view.release()
                if not window.file.unmap(window.mapping):
                    used.append(window)
            return used

        def done(result: list[_LogWindow] | BaseException) -> None:
            if isinstance(result, BaseException):
                _LOG.error("unmapping a window of the commit log failed: %s", result)
            else:
                # Answers that are being sent use these; the next turn tries again.
                self._retired += result

        self._workers.submit(work, done)

    def close(self) -> None:
        """Close windows and files; the caller has synced them."""
        self._is_closed = True
        self.limit = -1
        self._forget_window()
        for window in self._retired:
            window.view.release()
            window.file.unmap(window.mapping)
        self._retired.clear()
        self._read_windows.clear()
        self.buffer = bytearray()
        if self._next is not None:
            self._next = None
            self._disk.remove(self._next_path)
        self.files.clear()
