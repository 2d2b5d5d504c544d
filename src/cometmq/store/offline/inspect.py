"""Describes the content of a store directory, ours or Java's, for `cometmq store inspect`.

`inspect_store` lists log files, queues, index files, checkpoint and markers; `read_records` returns
records.  Neither judges what it reads; verify.py does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cometmq.codec.checkpoint import Checkpoint, decode_checkpoint
from cometmq.codec.consume_queue import PRE_BLANK_SIZE
from cometmq.codec.stored_message import StoredMessage, decode_message
from cometmq.errors import CodecError
from cometmq.store.base.checkpoint import SIDE_FILE_NAME, SideState, load_side_file
from cometmq.store.log.reader import LogReader
from cometmq.store.offline.directory import OfflineStore
from cometmq.store.queue.unit_journal import UNIT_JOURNAL_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cometmq.codec.index import IndexHeader
    from cometmq.store.base.disk import Disk
    from cometmq.store.offline.directory import OfflineFile, OfflineQueue

__all__ = [
    "IndexFileView",
    "LogFileSummary",
    "QueueView",
    "StoreView",
    "inspect_store",
    "read_records",
]


@dataclass(frozen=True, slots=True)
class LogFileSummary:
    """A log file."""

    path: str
    start: int
    """Physical offset of its first byte."""
    size: int
    first_store_ms: int
    """Store time of its first record, -1 without one."""
    is_written: bool
    """Whether it has a record or other data."""


@dataclass(frozen=True, slots=True)
class QueueView:
    """A consume queue: the offsets of the units in its files, expired messages included."""

    topic: str
    queue_id: int
    min_queue_offset: int
    max_queue_offset: int
    last_physical_end: int
    file_count: int


@dataclass(frozen=True, slots=True)
class IndexFileView:
    """An index file; the counts are None when they cannot be derived, the header when it is cut."""

    path: str
    size: int
    slot_count: int | None
    entry_count_max: int | None
    header: IndexHeader | None


@dataclass(slots=True)
class StoreView:
    """A whole directory."""

    root: str
    log_file_bytes: int | None
    queue_file_bytes: int | None
    log_files: list[LogFileSummary] = field(default_factory=list)
    queues: list[QueueView] = field(default_factory=list)
    index_files: list[IndexFileView] = field(default_factory=list)
    checkpoint: Checkpoint | None = None
    side_file: SideState | str = ""
    """The content of `cometmq.checkpoint`, or a sentence that says why there is none."""
    abort: str | None = None
    """Content of the crash marker; None after a clean stop."""
    other_files: list[tuple[str, int]] = field(default_factory=list)
    """Path below the root, and size, of all other files."""


def inspect_store(
    disk: Disk, root: str, progress: Callable[[str, int, int], None] | None = None
) -> StoreView:
    """Describe a store directory.

    Args:
        progress: called with a text, the number done and the total (0 for unknown).

    Raises:
        StoreError: the path is not a directory.
    """
    store = OfflineStore(disk, root)
    view = StoreView(root, store.log_file_bytes, None)
    for file in store.log_files:
        view.log_files.append(_log_file(store, file))
    for done, queue in enumerate(store.queues()):
        if progress is not None and done % 64 == 0:
            progress("queues", done, 0)
        view.queues.append(_queue(queue))
    view.queue_file_bytes = store.queue_file_bytes
    view.index_files = [
        IndexFileView(index.path, index.size, index.slot_count, index.entry_count, index.header)
        for index in store.indexes()
    ]
    view.checkpoint = _checkpoint(disk, root)
    view.side_file = load_side_file(disk, f"{root}/{SIDE_FILE_NAME}")
    if disk.exists(f"{root}/abort"):
        view.abort = disk.read_bytes(f"{root}/abort").decode("ascii", "replace")
    view.other_files = list(_others(disk, root, ""))
    return view


def _log_file(store: OfflineStore, file: OfflineFile) -> LogFileSummary:
    reader = LogReader(store, file.start, file.end, is_crc_checked=False)
    first = reader.next_record()
    has_record = first is not None and first.physical_offset < file.end
    store_ms = first.store_ms if has_record and first is not None else -1
    return LogFileSummary(
        file.path, file.start, file.size, store_ms, has_record or not reader.is_unwritten
    )


def _queue(queue: OfflineQueue) -> QueueView:
    first, end, last_end = queue.first, queue.first, 0
    is_started = False
    for queue_offset, physical_offset, size, _ in _last_units(queue):
        if size <= 0 or physical_offset < 0:
            break
        end = queue_offset + 1
        if size == PRE_BLANK_SIZE:
            if not is_started:
                first = end
            continue
        is_started = True
        last_end = physical_offset + size
    return QueueView(queue.topic, queue.queue_id, first, end, last_end, len(queue.files))


def _last_units(queue: OfflineQueue) -> Iterator[tuple[int, int, int, int]]:
    """Yield the units of the first and of the last file, which are enough for both ends."""
    files = queue.files
    if len(files) > 2:
        queue.files = [files[0], files[-1]]
    try:
        yield from queue.units()
    finally:
        queue.files = files


def _checkpoint(disk: Disk, root: str) -> Checkpoint | None:
    try:
        return decode_checkpoint(disk.read_bytes(f"{root}/checkpoint"))
    except (OSError, CodecError):
        return None


_LISTED_ELSEWHERE = frozenset(
    {"commitlog", "consumequeue", "index", "checkpoint", "abort", SIDE_FILE_NAME}
)


def _others(disk: Disk, root: str, below: str) -> Iterator[tuple[str, int]]:
    """Yield path and size of the files that no other field of a StoreView lists."""
    for name in disk.listdir(f"{root}/{below}" if below else root):
        if not below and (name in _LISTED_ELSEWHERE or name.startswith(f"{UNIT_JOURNAL_NAME}.")):
            continue
        path = f"{below}/{name}" if below else name
        if disk.is_dir(f"{root}/{path}"):
            yield from _others(disk, root, path)
        else:
            yield path, disk.size(f"{root}/{path}")


def read_records(
    disk: Disk, root: str, *, start: int | None = None, count: int = 100
) -> list[StoredMessage]:
    """Return up to `count` records in log order, from a physical offset or the log's begin on.

    The result ends before the first damage.

    Raises:
        StoreError: the path is not a directory.
    """
    store = OfflineStore(disk, root)
    reader = LogReader(store, store.log_start if start is None else start, store.log_limit)
    messages: list[StoredMessage] = []
    while len(messages) < count:
        record = reader.next_record()
        if record is None:
            break
        messages.append(decode_message(store.read(record.physical_offset, record.size)))
    return messages
