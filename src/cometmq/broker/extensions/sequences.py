"""Recognises a producer's own repetitions, also after a restart.

`ProducerSequences` remembers what is stored.  Its file ``config/cometmqSequences.json`` has the
numbers, and the physical offset up to which the log's messages are in them: a start reads the log
from there.  There is no file until a producer uses sequences; the first such sends wait for it, so
a store without the file has nothing to remember.

A message is noted when it is stored, never before: what the store refused is no repetition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from cometmq.broker.base.state import Refusal, WhenSaved
from cometmq.broker.send.kinds import Send, SendKind, Shape
from cometmq.codec.properties import find_property
from cometmq.core.extensions.producer_sequences import (
    NEW,
    TOO_OLD,
    WINDOW,
    ProducerSequences,
    RingState,
    parse_sequence,
)
from cometmq.core.extensions.producer_sequences import Sequence as Number
from cometmq.errors import CodecError, ResponseCode, StoreError
from cometmq.model import properties as prop
from cometmq.store.base.results import PutResult
from cometmq.store.log.reader import ScannedRecord
from cometmq.store.message_store import MessageStore
from cometmq.wire.header.header import wire_names

__all__ = ["SequenceFile", "SequencedKind", "SequencedSends"]

log = logging.getLogger("cometmq.broker")

_ADVANCE_SHIFT: Final = 23
"""While a producer pauses the file is written again after 8 MiB of log, so that a start reads
little."""
_STORED: Final = prop.PRODUCED_SEQUENCE.encode()
_SENT_NAME: Final = f"{prop.PRODUCER_SEQUENCE}\x01".encode()
_STORED_NAME: Final = f"{prop.PRODUCED_SEQUENCE}\x01".encode()


class SequenceFile(msgspec.Struct, frozen=True, rename=wire_names()):
    """The content of ``config/cometmqSequences.json``."""

    log_from: int
    """Physical offset from which a start reads the log."""
    producers: dict[str, RingState]

    @classmethod
    def decode(cls, raw: bytes) -> SequenceFile:
        """Read the file's bytes.

        Raises:
            CodecError: the bytes are no such file.
        """
        try:
            return msgspec.json.decode(raw, type=cls)
        except msgspec.MsgspecError as error:
            raise CodecError(f"not a file of producers' sequences: {error}") from error


class SequencedSends:
    """What one broker remembers of its producers' sequences."""

    def __init__(self, store: MessageStore, file: SequenceFile | None) -> None:
        self.table = ProducerSequences()
        self.is_used = file is not None
        self.is_behind = False
        """Whether the file has messages that the log has lost, so that it must be written now."""
        self._store = store
        self._is_ready = self.is_used
        self._written: Callable[[], int] = lambda: 0
        self._when_saved: WhenSaved | None = None
        if file is not None:
            self.table.restore(file.producers)
            end = store.max_physical_offset
            self.is_behind = self.table.cut(end) or file.log_from > end
            # The log's oldest files may have gone since.
            self._replay(max(min(file.log_from, end), store.min_physical_offset))

    def _replay(self, start: int) -> None:
        """Note the messages behind the file's position."""
        count = 0
        for record in self._store.records_from(start):
            value = find_property(record.properties, _STORED)
            number = None if value is None else parse_sequence(value.decode("utf-8", "replace"))
            # The first message counts: a later one is a copy, such as a retry of its consumer.
            if number is not None and self.table.find(number) == NEW:
                self.table.note(number, record.physical_offset)
                count += 1
        if count:
            log.info("%d sequences of producers were read from the log", count)

    # -- the file ---------------------------------------------------------------------------

    @property
    def revision(self) -> int:
        """Grows whenever the file has to be written; 0 without a use."""
        if not self.is_used:
            return 0
        return 1 + self.table.revision + (self._store.max_physical_offset >> _ADVANCE_SHIFT)

    def snapshot(self) -> Callable[[], bytes]:
        """Copy the numbers; the result encodes the copy."""
        file = SequenceFile(self._store.max_physical_offset, self.table.snapshot())
        return lambda: msgspec.json.encode(file)

    def attach(self, written: Callable[[], int], when_saved: WhenSaved) -> None:
        """Take what says which revision the file has, and what waits for the present one."""
        self._written = written
        self._when_saved = when_saved

    @property
    def is_ready(self) -> bool:
        """Whether the file is there, without which no message with a sequence is stored."""
        if not self._is_ready:
            self._is_ready = self._written() > 0
        return self._is_ready

    def when_ready(self, done: Callable[[StoreError | None], None]) -> None:
        """Call `done` when the file is there, or when its write has failed."""
        self.is_used = True
        assert self._when_saved is not None
        self._when_saved(done)

    # -- one message ------------------------------------------------------------------------

    def take(self, properties: dict[str, str]) -> Number | None:
        """Give a message's sequence its stored name, and return it; None without one.

        Raises:
            Refusal: the property is no sequence.
        """
        value = properties.pop(prop.PRODUCER_SEQUENCE, None)
        if value is None:
            return None
        properties[prop.PRODUCED_SEQUENCE] = value
        return self.read(value)

    @staticmethod
    def read(value: str) -> Number:
        """Read a sequence.

        Raises:
            Refusal: the value is none.
        """
        number = parse_sequence(value)
        if number is None:
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message is illegal: property {prop.PRODUCER_SEQUENCE} is {value!r:.80}, "
                "expected a producer's id, a colon and a number",
            )
        return number

    def earlier(self, number: Number) -> ScannedRecord | None:
        """Return the record that is stored with this sequence; None where there is none.

        Raises:
            Refusal: the number is too old to be known, or its message has expired.
        """
        physical_offset = self.table.find(number)
        if physical_offset == NEW:
            return None
        if physical_offset != TOO_OLD:
            # Also a record that has not passed the barrier yet.
            record = next(self._store.records_from(physical_offset, physical_offset + 1), None)
            wanted = f"{number.producer}:{number.number}".encode()
            if record is not None and find_property(record.properties, _STORED) == wanted:
                return record
        raise Refusal(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message {number.number} of producer {number.producer} is not among the last "
            f"{WINDOW} that the broker knows, so it may be stored already; send it as a new one",
        )

    def note(self, number: Number, physical_offset: int) -> None:
        """Remember a message that is stored."""
        self.table.note(number, physical_offset)


class SequencedKind(SendKind):
    """Plain messages with a sequence, which go the fast way while their number is new."""

    mark = f"{prop.PRODUCER_SEQUENCE}\x01"
    is_varying = True

    def __init__(self, sequences: SequencedSends) -> None:
        self._sequences = sequences
        self._table = sequences.table
        self._in_run: set[Number] = set()
        """Numbers of the run that is gathered; those of a failed one only cost a check."""

    def is_open(self) -> bool:
        """Whether such messages may be stored yet."""
        return self._sequences.is_ready

    def parse(self, value: str, text: str) -> Number | None:
        """Return the sequence."""
        return parse_sequence(value)

    def needs_checks(self, shape: Shape, now_ms: int) -> bool:
        """Whether the number is known, or in this run already."""
        number: Number = shape.detail
        if number in self._in_run or self._table.find(number) != NEW:
            return True
        self._in_run.add(number)
        return False

    def stored_properties(self, properties: bytes) -> bytes:
        """Rename the sequence."""
        return properties.replace(_SENT_NAME, _STORED_NAME)

    def stored(
        self, sends: Sequence[Send], results: Sequence[PutResult], born_host: bytes, now_ms: int
    ) -> None:
        """Note the numbers."""
        self._in_run.clear()
        note = self._table.note
        for send, result in zip(sends, results, strict=False):
            note(send.shape.detail, result.physical_offset)
