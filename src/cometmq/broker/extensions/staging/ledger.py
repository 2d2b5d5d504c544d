"""The ledger of staged batches: for each sink, the last batch that this broker published.

The records of `STAGED_DECISION_TOPIC` and the file ``config/cometmqStaging.json`` hold the ledger;
a broker reads both when it starts.

=========  =========================================================================
record     written
=========  =========================================================================
decision   before the first message of a batch: from here on the batch is published
slice      directly before the messages of a slice, with the queue offset they get
done       after the last message of a batch
forgotten  when a sink leaves the ledger
=========  =========================================================================

A crash cuts the log only at its end.  So a decided batch has lost at most its last messages.  The
next start compares the last slice record with the messages in the queue and appends the missing
messages, none of them twice.

The file holds the ledger as it was at one moment, and the offset in the decision queue from which
the next start reads records.  The file only has decisions that are on stable storage, so it is
never ahead of a log that lost its end.  Decision records before that offset may expire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
    """Base of the records; the field `kind` says which record it is."""


class Decision(_Record, frozen=True):
    """Batch `batch_id` of `sink` is published: these tokens, in this order.

    `limits` has, by topic and queue id, the offset from which readers wait until the batch is done.
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
        """The ledger's line for this batch."""
        return SinkEntry(
            self.batch_id, self.rows, self.decided_ms, self.home, self.plan, is_complete
        )


class Slice(_Record, frozen=True):
    """`count` messages of block `block`, from number `first`, follow at `queue_offset`."""

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
    """The sink is not in the ledger any more; its next batch may have any number."""

    sink: str


Record: TypeAlias = Decision | Slice | Done | Forgotten

_decode = msgspec.json.Decoder(Record).decode


def encode_record(record: Record) -> bytes:
    """The body of a record of the decision topic."""
    return msgspec.json.encode(record)


def decode_record(data: bytes) -> Record:
    """The record in a body of the decision topic.

    Raises:
        CodecError: the body is not a record.
    """
    try:
        record: Record = _decode(data)
    except msgspec.MsgspecError as error:
        raise CodecError(f"not a record of a staged batch: {error}") from error
    return record


class LedgerFile(msgspec.Struct, frozen=True, rename=wire_names()):
    """The content of ``config/cometmqStaging.json``: the lines of the ledger, and the offsets from
    which a start reads the decision queue and the staged queue."""

    sinks: dict[str, SinkEntry] = {}
    decision_next: int = 0
    staged_next: int = 0

    @classmethod
    def decode(cls, raw: bytes) -> LedgerFile:
        """Read the file's bytes.

        Raises:
            CodecError: the bytes are not a ledger.
        """
        try:
            return msgspec.json.decode(raw, type=cls)
        except msgspec.MsgspecError as error:
            raise CodecError(f"not a ledger of staged batches: {error}") from error


class Unfinished(msgspec.Struct, frozen=True):
    """A decision without a done record, and the last slice record of it."""

    decision: Decision
    queue_offset: int
    """The queue offset of the decision record."""
    physical_offset: int
    last: Slice | None
    last_end: int
    """Physical offset behind the last slice's record."""


class Ledger:
    """Lines by sink: `sinks` as they are now, `durable` those that may go to the file."""

    def __init__(self, file: LedgerFile) -> None:
        self.sinks: dict[str, SinkEntry] = dict(file.sinks)
        self.durable: dict[str, SinkEntry] = dict(file.sinks)
        self.decision_next = file.decision_next
        self.revision = 0
        """Grows by one whenever the file has to be written."""

    def last_batch(self, sink: str) -> int:
        """The last published batch of a sink; NO_BATCH for an unknown sink.

        NO_BATCH is below -1, the empty batch that tells a broker a sink's home before batch 0.
        """
        entry = self.sinks.get(sink)
        return NO_BATCH if entry is None else entry.batch_id

    def replay(self, records: Iterable[tuple[int, int, int, Record]]) -> Unfinished | None:
        """Apply the records that are newer than the file, and return the unfinished batch, if any.

        `records` has queue offset, physical offset, physical end offset and record of each.
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
        """Mark a decision as complete and return its line."""
        entry = self.sinks[decision.sink] = decision.entry(is_complete=True)
        return entry

    def settle(self, sink: str, entry: SinkEntry | None, decision_next: int) -> None:
        """Note that a line (None: its removal) and all records before `decision_next` are safe."""
        if entry is None:
            self.durable.pop(sink, None)
        else:
            self.durable[sink] = entry
        self.decision_next = decision_next
        self.revision += 1

    def snapshot(self, staged_next: int) -> Callable[[], bytes]:
        """Copy the content of the file; the returned function encodes it.

        `staged_next` is the offset in the staged queue from which the next start reads.
        """
        file = LedgerFile(dict(self.durable), self.decision_next, staged_next)
        return lambda: msgspec.json.encode(file)
