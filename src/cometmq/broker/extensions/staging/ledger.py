"""The ledger of staged batches: per sink the last batch published here, and how it is kept.

It is in the records of `STAGED_DECISION_TOPIC` and in the file ``config/cometmqStaging.json``;
after a start both are read.

=========  =========================================================================
record     written
=========  =========================================================================
decision   before the first message of a batch is appended: from here on it counts
slice      directly before the messages of a slice, with the queue offset they get
done       behind the last message
forgotten  when a sink is taken out of the ledger
=========  =========================================================================

The log is cut only at its end by a crash.  So a batch with a decision has lost at most the end of
what was appended of it; what the last slice record announces is compared with what is in the
queue, and the rest is appended again, no message twice.

The file holds the ledger of a moment and the place in the decision queue from which on records
have to be read; it is only ever written of what is on stable storage, so it is never ahead of a
log that lost its end.  Decision records in front of that place may expire.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

import msgspec

from cometmq.errors import CodecError
from cometmq.wire.extensions.staging import SinkEntry, TokenClaim
from cometmq.wire.header.header import wire_names

__all__ = [
    "NO_BATCH",
    "Decision",
    "Done",
    "Forgotten",
    "Ledger",
    "LedgerFile",
    "Slice",
    "Unfinished",
    "decode_record",
    "encode_record",
]

NO_BATCH: Final = -2


class _Record(msgspec.Struct, frozen=True, rename=wire_names(), tag_field="kind", tag=str.lower):
    """Base of the records, told apart by `kind`."""


class Decision(_Record, frozen=True):
    """Batch `batch_id` of `sink` is published: these tokens, in this order.

    `limits` has, by topic and queue id, the offset from which on readers must wait.
    """

    sink: str
    batch_id: int
    rows: int
    decided_ms: int
    home: str
    plan: dict[str, list[TokenClaim]]
    tokens: list[TokenClaim]
    limits: dict[str, dict[str, int]]

    def entry(self, *, is_complete: bool) -> SinkEntry:
        """The ledger's line it makes."""
        return SinkEntry(
            self.batch_id, self.rows, self.decided_ms, self.home, self.plan, is_complete
        )


class Slice(_Record, frozen=True):
    """Messages `first` to `first + count` of block `block` follow, from `queue_offset` on."""

    block: int
    first: int
    count: int
    topic: str
    queue_id: int
    queue_offset: int


class Done(_Record, frozen=True):
    """All messages of the last decision are appended."""

    sink: str
    batch_id: int


class Forgotten(_Record, frozen=True):
    """The sink begins anew."""

    sink: str


Record: TypeAlias = Decision | Slice | Done | Forgotten

_decode = msgspec.json.Decoder(Record).decode


def encode_record(record: Record) -> bytes:
    """The body of a record of the decision topic."""
    return msgspec.json.encode(record)


def decode_record(data: bytes) -> Record:
    """The record of a body; CodecError when it is none."""
    try:
        record: Record = _decode(data)
    except msgspec.MsgspecError as error:
        raise CodecError(f"not a record of a staged batch: {error}") from error
    return record


class LedgerFile(msgspec.Struct, frozen=True, rename=wire_names()):
    """What ``config/cometmqStaging.json`` holds: lines of the ledger, and from which offsets on
    decision and staged queue have to be read."""

    sinks: dict[str, SinkEntry] = {}
    decision_next: int = 0
    staged_next: int = 0

    @classmethod
    def decode(cls, raw: bytes) -> LedgerFile:
        """Of the file's bytes; CodecError when they are something else."""
        try:
            return msgspec.json.decode(raw, type=cls)
        except msgspec.MsgspecError as error:
            raise CodecError(f"not a ledger of staged batches: {error}") from error


class Unfinished(msgspec.Struct, frozen=True):
    """A decision whose messages are not all known to be there, and its last slice."""

    decision: Decision
    queue_offset: int
    """Of the decision record."""
    physical_offset: int
    last: Slice | None
    last_end: int
    """Physical offset behind the last slice's record."""


class Ledger:
    """Lines by sink: those that hold now, and those that are safe to write to the file."""

    __slots__ = ("decision_next", "durable", "revision", "sinks")

    def __init__(self, found: LedgerFile | None = None) -> None:
        found = found or LedgerFile()
        self.sinks: dict[str, SinkEntry] = dict(found.sinks)
        self.durable: dict[str, SinkEntry] = dict(found.sinks)
        self.decision_next = found.decision_next
        self.revision = 0
        """Moves when the file has to be written."""

    def last_batch(self, sink: str) -> int:
        """The last published batch; for a sink that was never seen NO_BATCH, which is below the
        empty batch -1 by which a broker learns of a sink's home before batch 0."""
        entry = self.sinks.get(sink)
        return NO_BATCH if entry is None else entry.batch_id

    def replay(self, records: Iterable[tuple[int, int, int, Record]]) -> Unfinished | None:
        """Take up the records behind the file; the batch that is to be finished, if any.

        Each comes with its queue offset and the physical offsets of its beginning and end.
        """
        unfinished: Unfinished | None = None
        for queue_offset, physical_offset, end_offset, record in records:
            if isinstance(record, Decision):
                if record.batch_id < self.last_batch(record.sink):
                    # Only a log that is older than the file has it again.
                    continue
                self.sinks[record.sink] = record.entry(is_complete=False)
                unfinished = Unfinished(record, queue_offset, physical_offset, None, 0)
            elif isinstance(record, Slice):
                if unfinished is not None:
                    unfinished = msgspec.structs.replace(
                        unfinished, last=record, last_end=end_offset
                    )
            elif isinstance(record, Done):
                if unfinished is not None:
                    self.complete(unfinished.decision)
                unfinished = None
            else:
                self.sinks.pop(record.sink, None)
        return unfinished

    def complete(self, decision: Decision) -> SinkEntry:
        """All messages of a decision are there; the line it makes."""
        entry = self.sinks[decision.sink] = decision.entry(is_complete=True)
        return entry

    def settle(self, sink: str, entry: SinkEntry | None, decision_next: int) -> None:
        """A line (None: no line) is on stable storage, with all records before `decision_next`."""
        if entry is None:
            self.durable.pop(sink, None)
        else:
            self.durable[sink] = entry
        self.decision_next = decision_next
        self.revision += 1
