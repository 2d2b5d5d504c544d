"""The file sizes of a store: its files say them, and a setting counts for a new store only.

The position of a byte follows from the file size, so another size would cut files or leave gaps.
`fit_to_files` reads the sizes of commit log, consume queues and index from their files, puts them
in place of the settings and logs which size holds.  `made_size` decides for one row of files.

What tells the size that a row of files was made with, the first line that fits:

======================================= ======================================================
files                                   size
======================================= ======================================================
none, or empty ones only                setting
all as the setting says                 setting
several, one as long as the step        step
several, the side file says the step    step: all were cut
several, unlike, the setting is the     step: all were cut
step
several, otherwise                      unknown: a file is missing, or all were cut
one, the side file says its length      length
one, the side file says more; torn      what the side file says: the file was cut
one, the side file says more; whole     setting, if it is one of the two; else unknown
one, whole                              length
one, torn, shorter than the setting     setting: the file was cut
one, torn, longer than the setting      unknown
======================================= ======================================================

The *step* is the smallest distance between two names: a file is named by its first byte.
The *side file* (``cometmq.checkpoint``) says the sizes of a store that our broker had last.  A file
is *whole* when its last page is zeros (of a file of less than two pages: its second half), or when
it ends with the BLANK of a full log file: no record was cut then.  The name of a lone file is a
multiple of its size; where it is not, the size is the setting, if that is larger and fits the name,
else unknown.

A file of another length than the size is mended later: a log file in `log_files`, a queue file in
`queue.loader`.  An unknown size ends the start, with nothing changed.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from cometmq.codec.consume_queue import CQ_UNIT_BYTES
from cometmq.codec.index import index_file_bytes
from cometmq.codec.stored_message import BLANK, MAGIC_BLANK
from cometmq.errors import StoreCorrupt
from cometmq.store.base.checkpoint import SIDE_FILE_NAME, load_side_file
from cometmq.store.offline.directory import OfflineStore

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from cometmq.store.base.config import StoreConfig
    from cometmq.store.base.disk import Disk

__all__ = ["fit_to_files", "made_size", "size_of_row"]

_LOG: Final = logging.getLogger("cometmq.store")
_NAME_DIGITS: Final = 20
_QUEUE_FILES_MAX: Final = 64
"""Queue files looked at; a store may have 100,000 queues."""
_PAGE_BYTES: Final = 4096


def fit_to_files(disk: Disk, config: StoreConfig) -> StoreConfig:
    """Return the settings with the sizes that the store's files have.

    Raises:
        StoreCorrupt: the files do not tell a size; the text names what they say.
    """
    side: dict[str, Any] = {}

    def stated(name: str) -> int | None:
        if not side:
            # Read only where files and settings disagree: it may name 100,000 queues.
            state = load_side_file(disk, f"{config.root}/{SIDE_FILE_NAME}")
            side.update({"read": True} if isinstance(state, str) else state.heading)
        return side.get(name)

    slot_count, entry_count = config.index_slot_count, config.index_entry_count
    if config.is_index_enabled:
        slot_count, entry_count = _index_counts(disk, config)
    return replace(
        config,
        commit_log_file_bytes=size_of_row(
            disk,
            config.log_path,
            "mappedFileSizeCommitLog",
            config.commit_log_file_bytes,
            lambda: stated("log_file_bytes"),
        ),
        consume_queue_file_bytes=_queue_size(disk, config, lambda: stated("queue_file_bytes")),
        index_slot_count=slot_count,
        index_entry_count=entry_count,
    )


def size_of_row(
    disk: Disk,
    path: str,
    key: str,
    setting: int,
    stated: Callable[[], int | None] = lambda: None,
) -> int:
    """Return the size of the files in a directory, `setting` of `key` when there are none.

    `stated` says what the side file knows.

    Raises:
        StoreCorrupt: the files do not tell their size.
    """
    row = _row(disk, path)
    if _agrees(row, setting):
        return setting
    size = made_size(row, setting, stated(), lambda: _is_whole(disk, path, *row[0]))
    return _checked(path, key, setting, size, {length for _, length in row}, _steps(row))


def made_size(
    row: Sequence[tuple[int, int]],
    setting: int,
    stated: int | None,
    is_whole: Callable[[], bool],
) -> int | None:
    """Return the size that files were made with, None when that is unknown (see the module).

    Args:
        row: first byte and length of each file, in order.
        stated: what the side file says.
        is_whole: whether the only file was not cut.
    """
    if _agrees(row, setting):
        return setting
    lengths = {length for _, length in row if length}
    if len(row) > 1:
        step = min(_steps(row))
        if step in lengths or step == stated or (step == setting and len(lengths) > 1):
            return step
        return None
    start, length = row[0]
    if stated is not None and stated > length:
        size = stated
        if is_whole():
            size = setting if setting in {length, stated} else 0
    elif stated == length or is_whole():
        size = length
        if start % size:
            size = max(setting, length)
    else:
        size = setting if setting > length else 0
    return size if size and not start % size else None


def _agrees(row: Sequence[tuple[int, int]], setting: int) -> bool:
    """Whether names and lengths say what the setting says; an empty file has no length yet."""
    return all(length in {0, setting} for _, length in row) and _steps(row) <= {setting}


def _steps(row: Sequence[tuple[int, int]]) -> set[int]:
    """Return the distances between the names of neighbours."""
    return {after[0] - before[0] for before, after in pairwise(row)}


def _row(disk: Disk, path: str) -> list[tuple[int, int]]:
    """Return first byte and length of each file that is named by its first byte."""
    return [
        (int(name), disk.size(f"{path}/{name}"))
        for name in disk.listdir(path)
        if len(name) == _NAME_DIGITS and name.isdigit()
    ]


def _is_whole(disk: Disk, path: str, start: int, length: int) -> bool:
    """Whether the end of a file shows that nothing was cut off."""
    file = disk.open_random(f"{path}/{start:0{_NAME_DIGITS}d}", length, create=False)
    raw = file.read(max(0, length - _PAGE_BYTES), _PAGE_BYTES)
    if length >= _PAGE_BYTES and not raw[-(length // 2) :].strip(b"\0"):
        return True
    return any(
        raw.startswith(BLANK.pack(len(raw) - at, MAGIC_BLANK), at)
        for at in range(len(raw) - BLANK.size + 1)
    )


def _checked(
    path: str,
    key: str,
    setting: int,
    size: int | None,
    lengths: Collection[int],
    steps: Collection[int] = (),
) -> int:
    """Log which size holds where it is not the setting.

    Raises:
        StoreCorrupt: it is unknown.
    """
    if size is None:
        distances = f", and their names are {_listed(steps)} apart" if steps else ""
        raise StoreCorrupt(
            f"the files of {path} do not tell the size that they were made with: they are"
            f" {_listed(lengths)} bytes long{distances}; {key} says {setting}. Nothing was changed:"
            f" put missing files back, or set {key} to the size that the store was made with"
        )
    if size != setting:
        _LOG.warning(
            "the files of %s have %d bytes each, so that size holds and not %s=%d:"
            " a store keeps the sizes it was made with",
            path,
            size,
            key,
            setting,
        )
    return size


def _listed(numbers: Collection[int]) -> str:
    return ", ".join(str(number) for number in sorted(numbers)[-5:])


# -- consume queues -------------------------------------------------------------------------------


def _queue_size(disk: Disk, config: StoreConfig, stated: Callable[[], int | None]) -> int:
    """Return the size of queue files: all queues of a store have the same."""
    setting = config.queue_file_bytes
    base = f"{config.root}/consumequeue"
    rows = dict(_queue_rows(disk, base))
    if all(_agrees(row, setting) for row in rows.values()):
        return setting
    step_counts = Counter(
        step for row in rows.values() for step in _steps(row) & {length for _, length in row}
    )
    counts = Counter(length for row in rows.values() for _, length in row if length)
    stated_size = stated()
    usual = max(counts, key=lambda length: (counts[length], length), default=setting)
    size: int | None
    if step_counts:
        size = max(step_counts, key=lambda step: (step_counts[step], step))
    elif stated_size in counts:
        size = stated_size
    elif counts[usual] > 1:
        # Several files of one length were made so, unless the side file states a larger size.
        size = usual if stated_size is None or stated_size < usual else None
    else:
        path, file = max(
            ((path, file) for path, row in rows.items() for file in row),
            key=lambda item: item[1][1],
        )
        size = made_size([file], setting, stated_size, lambda: _is_whole(disk, path, *file))
    if size is not None and size % CQ_UNIT_BYTES:
        size = None
    return _checked(base, "mappedFileSizeConsumeQueue", setting, size, counts)


def _queue_rows(disk: Disk, base: str) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Yield the files of queues by their directory, up to _QUEUE_FILES_MAX files."""
    count = 0
    for topic in disk.listdir(base):
        for queue_id in disk.listdir(f"{base}/{topic}"):
            row = _row(disk, f"{base}/{topic}/{queue_id}")
            if row:
                yield f"{base}/{topic}/{queue_id}", row
            count += len(row)
            if count >= _QUEUE_FILES_MAX:
                return


# -- index ----------------------------------------------------------------------------------------


def _index_counts(disk: Disk, config: StoreConfig) -> tuple[int, int]:
    """Return slots and entries of index files that have entries.

    Files of another kind are built again from the log.
    """
    setting = config.index_slot_count, config.index_entry_count
    expected = index_file_bytes(*setting)
    base = f"{config.root}/index"
    if all(disk.size(f"{base}/{name}") == expected for name in disk.listdir(base)):
        return setting
    file_counts = {
        setting if file.size == expected else (file.slot_count, file.entry_count)
        for file in OfflineStore(disk, config.root).indexes()
        if file.slot_count is not None
        and file.entry_count is not None
        and file.header is not None
        and file.header.index_count > 1
    }
    if len(file_counts) > 1:
        kinds = " and ".join(
            f"{slots} slots and {entries} entries" for slots, entries in file_counts
        )
        raise StoreCorrupt(
            f"the files of {base} were made with different sizes, {kinds}; set maxHashSlotNum and"
            f" maxIndexNum to those of the store, and move {base} away to have it built again"
        )
    if not file_counts or file_counts == {setting}:
        return setting
    slot_count, entry_count = counts = file_counts.pop()
    _LOG.warning(
        "the files of %s have %d slots and %d entries each, so that holds and not maxHashSlotNum=%d"
        " and maxIndexNum=%d: a store keeps the sizes it was made with",
        base,
        slot_count,
        entry_count,
        *setting,
    )
    return counts
