"""The native core: the inner loops in C, for what is plain.

It accepts or stops: it takes whole what it recognises, and leaves everything else, untouched, to
the Python text, which is the specification, serves every case, and says what is wrong.  The core
opens no file and no socket, reads no clock, logs nothing and decides nothing.

The C files lie in ``c``.  A build has the core where a C compiler was found (hatch_build.py);
everywhere else, and with ``COMETMQ_PURE=1``, the Python text does the work.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Container, Mapping, Sequence

    M = TypeVar("M")

__all__ = [
    "COUNT_KEYS",
    "LIST_KEYS",
    "NO_KEYS",
    "PURE_VARIABLE",
    "CopyEncoder",
    "EncodedRun",
    "NotedHalf",
    "NotedNumber",
    "NotedTimed",
    "ReadPull",
    "ScannedRun",
    "SendEncoder",
    "advance_queues",
    "answer_pull",
    "check_entries",
    "cut_messages",
    "decode_columns",
    "decode_record",
    "describe",
    "encode_send_request",
    "extend_tails",
    "gather_records",
    "hash_keys",
    "is_resident",
    "link_entries",
    "read_pull",
    "record_body",
    "record_property",
    "scan_records",
    "take_send_answers",
    "walk_records",
]

PURE_VARIABLE: Final = "COMETMQ_PURE"
"""Set to 1, it switches the core off."""
NO_KEYS: Final = 0
COUNT_KEYS: Final = 1
LIST_KEYS: Final = 2
"""What `scan_records` does with the index keys of the records."""

PendingKeys = tuple[str, int, int, tuple[str | None, str | None, str | None] | bytes]
"""Topic, physical offset, store time and index keys of a message, or the hashes of the keys."""
PendingRun = tuple[int, int, int, bytes]
"""Of a run of messages: their number, first physical offset, store time, index entries (two 32-bit
numbers each: hash, distance from the first physical offset)."""
NotedDelayed = tuple[int, int]
"""A level that got messages, and the queue offset behind the last one."""
NotedTimed = tuple[int, int, int, int, str, None, int]
"""Of a timed message: queue offset, physical offset, size, slot, topic, nothing, due time."""
NotedHalf = tuple[int, int, int, str, str, str, bytes]
"""Of a half message: queue offset, physical offset, born time, producer group, topic of its commit,
UNIQ_KEY, record."""
NotedNumber = tuple[str, int, int]
"""Of a message that its producer numbers: the producer's id, the number, the physical offset."""
RunQueue = tuple[Any, bytes, int, int]
"""Queue, units, next queue offset, first physical offset."""
ReadPull = tuple[int, bytes, int, int, int, int, int, int, int]
"""Of a pull: end of the frame, key, serialization type, opaque, queue offset, commit offset, count,
bytes (0: not stated), milliseconds that it may wait."""
EncodedRun = tuple[bytes, list[RunQueue], PendingRun | None, list[tuple[str, int, int, int]]]
"""Records; queues with their units; index entries, None without an index; arrivals at watched
queues, with SYNC_FLUSH at all."""

ScannedRun = tuple[
    int, int, list[tuple[Any, int, bytes]], int, list[PendingKeys],
]  # fmt: skip
"""Physical offset of the next record; number of records; queues with the queue offset of their
first unit, and units; number of index entries; index keys."""


class _ScanRecords(Protocol):
    """Reads the records of a stretch of the log; c/log_scan.c."""

    def __call__(
        self,
        data: bytes,
        index: int,
        position: int,
        end: int,
        is_crc_checked: bool,
        keys_use: int,
        queues: dict[tuple[bytes, int], Any],
        /,
    ) -> ScannedRun | None:
        """Read the records of known queues, but the last; None where Python has to read."""


TextColumn = tuple[bytearray, bytearray, bytearray | None, int]
"""Offsets, texts, a bit for each row that has one (None: all), and the number of those without."""
MapColumn = tuple[bytearray, list[bytes] | tuple[bytearray, bytearray], bytearray, bytearray]
"""Where the entries of each row begin; the names that every row has, or offsets and names of all
entries; offsets and values of all entries."""


class _DecodeColumns(Protocol):
    """Decodes records into the columns of a record batch; c/columns.c."""

    def __call__(
        self,
        log: Any,
        log_start: int,
        starts: Any,
        sizes: Any,
        kinds: bytes,
        queue_id: int,
        queue_offsets: Any | None,
        starting_ms: int,
        ending_ms: int,
        tags: frozenset[bytes] | None,
        is_crc_checked: bool,
        /,
    ) -> tuple[bytearray | None, list[Any]] | None:
        """Return the rows within the limits, None for all, and a column of each kind.

        A column is a bytearray of numbers, a `TextColumn`, or a `MapColumn`.  ``kinds`` are the
        columns' positions in `COLUMNS`.  With ``queue_offsets`` every record has to have this
        queue id and its offset; ``log_start`` is -1 where physical offsets are not compared.
        """


class _CheckEntries(Protocol):
    """Checks the entries of an index file; c/index_check.c."""

    def __call__(
        self,
        entries: bytes,
        first: int,
        number: int,
        newest: array[int],
        log_min: int,
        log: bytes,
        log_position: int,
        /,
    ) -> int:
        """Return how many entries, from `entries[first]` on, are sound; update `newest`."""


class _LinkEntries(Protocol):
    """Makes the entries of an index file; c/index_entries.c."""

    def __call__(
        self,
        hashes: Any,
        offsets: Any,
        times: Any,
        number: int,
        first_begin_ms: int,
        begin_ms: int,
        slots: Any,
        pages: Any,
        /,
    ) -> tuple[bytes, int]:
        """Return the entries, and how many slots are used for the first time; update the table."""


class _GatherRecords(Protocol):
    """Gathers the records of units in one body; c/records.c."""

    def __call__(
        self,
        units: bytes | bytearray,
        first: int,
        count: int,
        codes: frozenset[int] | None,
        max_count: int,
        max_bytes: int,
        span_max: int,
        read: Callable[[Any, int], memoryview | None],
        /,
    ) -> tuple[bytes | memoryview, int, int] | None:
        """Return the body, the number of its records and of the examined units; None to stop."""


class _AnswerPull(Protocol):
    """Gathers the records of units in the frame of an answer; c/records.c."""

    def __call__(
        self,
        units: bytes | bytearray,
        first: int,
        count: int,
        codes: frozenset[int] | None,
        max_count: int,
        max_bytes: int,
        span_max: int,
        read: Callable[[Any, int], memoryview | None],
        parts: tuple[bytes, ...],
        opaque: int,
        queue_offset: int,
        min_offset: int,
        max_offset: int,
        /,
    ) -> tuple[bytes, int, int, int] | None:
        """Return the frame, the number of its records, of the examined units, of record bytes.

        None where no record is wanted, and where Python has to read.
        """


class _ReadPull(Protocol):
    """Reads the frame of a pull; c/pulls.c."""

    def __call__(self, data: bytes, position: int, /) -> ReadPull | None:
        """Return the end of the frame and what it asks for; None to stop.

        Pulls with one key agree in all fields on which their checks depend.
        """


class _CutMessages(Protocol):
    """Makes a message of each record of a pull answer; c/messages.c."""

    def __call__(self, buffer: bytes, queue: object, message_type: type[M], /) -> list[M] | None:
        """Return the messages; None where a length or a magic number is wrong."""


class _DecodeRecord(Protocol):
    """Decodes a plain record; c/messages.c."""

    def __call__(self, buffer: bytes, position: int, record_type: type[M], /) -> M | None:
        """Return the record with its fields in the order of the layout; None to stop."""


class _EncodeSendRequest(Protocol):
    """Writes the frame of a client's send; c/client_sends.c."""

    def __call__(
        self,
        parts: tuple[bytes, bytes, bytes],
        opaque: int,
        queue_id: int,
        sys_flag: int,
        born_timestamp_ms: int,
        flag: int,
        properties: str,
        body: bytes,
        /,
    ) -> bytes | None:
        """Return the frame with the constant parts of its header; None to stop."""


class _TakeSendAnswers(Protocol):
    """Reads the answers to a client's sends; c/client_sends.c."""

    def __call__(
        self,
        data: bytes,
        waiting: dict[int, Any],
        served: list[Any],
        token_type: type,
        answer_type: type,
        /,
    ) -> int:
        """Move the tokens of the plain answers at the beginning; return where the last ends.

        ``waiting`` has (token, deadline) by opaque.  A pair of token and answer is appended to
        ``served`` for each, also before an exception.
        """


class _SendEncoder(Protocol):
    """Encodes sends of every kind, and batches; c/sends.c."""

    def encode(
        self,
        data: bytes,
        position: int,
        wrote: int,
        limit: int,
        store_ms: int,
        origin: bytes,
        body_bytes_max: int,
        timed_from_ms: int,
        timed_until_ms: int,
        takes_halves: bool,
        takes_numbered: bool,
        topics_revision: int,
        /,
    ) -> (
        tuple[
            int,
            bytes,
            EncodedRun,
            list[NotedDelayed],
            list[NotedTimed],
            list[NotedHalf],
            list[NotedNumber],
        ]
        | None
    ):
        """Encode the sends of ``data`` from ``position`` on; None where the first is not plain.

        ``topics_revision`` is another number after each change of a topic.
        Timed messages are taken for slots from `timed_from_ms` on, due until `timed_until_ms`.
        Returns the end of the last frame, the answers, the run, and the delayed, the timed, the
        half and the numbered messages.
        """


class _SendEncoderType(Protocol):
    def __call__(
        self,
        queue_counts: Mapping[str, int],
        moving_topics: Container[str],
        topics: Mapping[str, Mapping[int, object]],
        queue_type: type,
        suffix: bytes,
        json_answer: tuple[bytes, bytes, bytes],
        binary_answer: tuple[bytes, bytes],
        id_start: bytes,
        sys_flag_mask: int,
        delays_ms: bytes,
        precision_ms: int,
        broker_name: bytes,
        is_indexed: bool,
        is_sync: bool,
    ) -> _SendEncoder: ...


class _CopyEncoder(Protocol):
    """Encodes deliveries of messages that waited; c/copies.c."""

    def encode(
        self,
        records: bytes | memoryview,
        position: int,
        wrote: int,
        limit: int,
        store_ms: int,
        stored_until_ms: int,
        body_bytes_max: int,
        are_commits: bool,
        /,
    ) -> tuple[int, int, int, int, EncodedRun]:
        """Copy records into the queues that they name, as far as they are due and plain.

        Of half messages it stores the commits.

        Returns the end of the last one, their number, the queue offset of the last one, the store
        time of the next one if it is not due, else -1, and the run.
        """


class _CopyEncoderType(Protocol):
    def __call__(
        self,
        topics: Mapping[str, Mapping[int, object]],
        queue_type: type,
        store_host: bytes,
        is_indexed: bool,
        is_sync: bool,
    ) -> _CopyEncoder: ...


SendEncoder: _SendEncoderType | None = None
CopyEncoder: _CopyEncoderType | None = None
hash_keys: Callable[[Sequence[PendingKeys | PendingRun]], tuple[bytes, bytes, bytes]] | None = None
link_entries: _LinkEntries | None = None
extend_tails: Callable[[list[RunQueue]], None] | None = None
"""Adds the units of a run to the tails of its queues; c/run_queues.c."""
advance_queues: Callable[[list[RunQueue], bool, Callable[..., None], int], None] | None = None
"""Moves the ends of the queues of a run, and visible ends too if so; calls a function with queue,
first position and store time for those that are not dirty; c/run_queues.c."""
gather_records: _GatherRecords | None = None
answer_pull: _AnswerPull | None = None
is_resident: Callable[[memoryview, int, int], bool] | None = None
"""Whether bytes of a mapped file, from a position on, are in memory; c/resident.c."""
read_pull: _ReadPull | None = None
cut_messages: _CutMessages | None = None
decode_columns: _DecodeColumns | None = None
walk_records: Callable[[Any, int, int, int], tuple[bytes, int]] | None = None
decode_record: _DecodeRecord | None = None
record_body: Callable[[bytes, int], bytes | None] | None = None
record_property: Callable[[bytes, int, bytes], bytes | None] | None = None
encode_send_request: _EncodeSendRequest | None = None
take_send_answers: _TakeSendAnswers | None = None
scan_records: _ScanRecords | None = None
check_entries: _CheckEntries | None = None
_absence = ""
if os.environ.get(PURE_VARIABLE) == "1":
    _absence = f"{PURE_VARIABLE}=1"
else:
    try:
        _core = import_module("cometmq.native._core")
        SendEncoder, CopyEncoder = _core.SendEncoder, _core.CopyEncoder
        hash_keys, link_entries, gather_records = (
            _core.hash_keys, _core.link_entries, _core.gather_records,
        )  # fmt: skip
        extend_tails, advance_queues = _core.extend_tails, _core.advance_queues
        cut_messages, decode_record, record_body = (
            _core.cut_messages, _core.decode_record, _core.record_body,
        )  # fmt: skip
        answer_pull, read_pull = _core.answer_pull, _core.read_pull
        is_resident = _core.is_resident
        encode_send_request, take_send_answers = _core.encode_send_request, _core.take_send_answers
        scan_records, check_entries = _core.scan_records, _core.check_entries
        record_property = _core.record_property
        decode_columns, walk_records = _core.decode_columns, _core.walk_records
    except ImportError:
        _absence = "this installation was built without the core"
    except AttributeError:
        _absence = "the core is older than this tree, run python hatch_build.py"


def describe() -> str:
    """Say which of the two does the work: ``native core``, or ``pure Python`` with the reason."""
    return f"pure Python ({_absence})" if _absence else "native core"
