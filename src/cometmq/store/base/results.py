"""Arguments and results of the store: plain values that are cheap to make, one for each message."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "BatchItem",
    "ColdRead",
    "Copied",
    "GetResult",
    "GetStatus",
    "IndexKeys",
    "PutItem",
    "PutResult",
    "QueryResult",
    "RecoveryReport",
    "TimeBoundary",
]

IndexKeys = tuple[str | None, str | None, str | None]
"""UNIQ_KEY, KEYS (separated by spaces) and TAGS of a message: what the index has entries for."""


class PutItem(msgspec.Struct, gc=False):
    """A message as `MessageStore.append` takes it."""

    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    """The encoded property string."""
    flag: int
    sys_flag: int
    born_ms: int
    tags_code: int
    """What filters compare; for SCHEDULE_TOPIC_XXXX the time of delivery."""
    index_keys: IndexKeys | None
    """None: the message has no entry in the index."""
    reconsume_times: int = 0
    prepared_offset: int = 0
    """For a committed message the physical offset of its half message."""


class BatchItem(msgspec.Struct, gc=False):
    """A message of a batch, as `MessageStore.put_batch` takes it."""

    flag: int
    body: bytes
    properties: bytes
    """The encoded property string."""
    tags_code: int
    index_keys: IndexKeys | None


class PutResult(msgspec.Struct, gc=False, frozen=True):
    """Where a message, or a batch of consecutive ones, was stored."""

    physical_offset: int
    """Of the first message."""
    queue_offset: int
    """Of the first message."""
    end_offset: int
    """Physical offset behind the last byte: the argument of `when_durable`."""
    physical_offsets: tuple[int, ...] = ()
    """Of every message of a batch; empty for a single one."""


class Copied(NamedTuple):
    """What `MessageStore.append_copies` did."""

    end: int
    """Where the last copied record ends, in the bytes that were given."""
    copy_count: int
    last_queue_offset: int
    """Queue offset of the last copied record, -1 for none."""
    waiting_ms: int
    """Store time of the next record, if it was stored too late to be copied; else -1."""


class GetStatus(IntEnum):
    """Outcome of a read, in RocketMQ's names (``GetMessageStatus``;
    docs/internals/store.md#reading-a-queue)."""

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8


class GetResult(msgspec.Struct, gc=False, frozen=True):
    """Records of a queue as they lie in the log; a chunk has one or more of them."""

    status: GetStatus
    next_queue_offset: int
    min_queue_offset: int
    max_queue_offset: int
    chunks: Sequence[bytes | memoryview] = ()
    count: int = 0
    byte_count: int = 0


class ColdRead:
    """Says that a read would block, since its bytes are not in memory.

    Call `warm` in a worker, then `get` again with `allow_cold=True`.
    """

    __slots__ = ("_reads",)

    def __init__(self, reads: list[Callable[[], object]]) -> None:
        self._reads = reads

    def warm(self) -> None:
        """Bring the bytes into memory (blocks)."""
        for read in self._reads:
            read()


class TimeBoundary(IntEnum):
    """Which message a search by time returns where several have that time (``BoundaryType``)."""

    LOWER = 0
    UPPER = 1


class QueryResult(msgspec.Struct, gc=False, frozen=True):
    """The messages whose index entries have the key's hash, and how recent the index is."""

    physical_offsets: list[int]
    """Ascending."""
    last_update_timestamp_ms: int
    """Store time of the newest message that is indexed or waits for it."""
    last_update_physical_offset: int


@dataclass(slots=True)
class RecoveryReport:
    """What opening a store did, and which damage it met."""

    mode: str
    """``empty``, ``checkpoint`` (by our side file), ``normal`` or ``abnormal`` (Java's ways)."""
    reason: str = ""
    """Why the side file was not used; empty when it was used."""
    scan_start: int = 0
    """Physical offset from which the log was read."""
    scan_end: int = 0
    """Physical offset of the log's end, where the next record goes."""
    records_scanned: int = 0
    units_built: int = 0
    index_entries_built: int = 0
    queues: int = 0
    truncated_bytes: int = 0
    elapsed_ms: int = 0
    is_whole: bool = True
    """Whether all that the earlier process wrote is there; a power cut may take the newest."""
    damages: list[str] = field(default_factory=list)
    """One text for each damage: file and position, what is wrong, what was done."""
