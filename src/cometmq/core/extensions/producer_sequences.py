"""Which sequences of producers are stored: a broker's memory against a producer's own repetitions.

A producer with ``producer_id`` numbers its messages: the property ``PRODUCER_SEQ`` is its id, a
colon and the number.  The broker stores the message with the property ``PRODUCED_SEQ`` in its
place, so that a message which a consumer passes on is no repetition.  A repeated number is answered
with the physical offset of the first message.

The memory is bounded.  Of each producer it has the newest `WINDOW` numbers, in a ring that grows
with use; of all producers `SLOTS_MAX` numbers, and those that sent least recently go first.  A
producer has less than `WINDOW` numbers between its oldest open message and its newest one, so a
number below the window is an error.  The memory is a file and the log behind the file's position.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final, NamedTuple

__all__ = [
    "NEW",
    "TOO_OLD",
    "WINDOW",
    "ProducerSequences",
    "RingState",
    "Sequence",
    "parse_sequence",
]

WINDOW: Final = 16_384
SLOTS_MAX: Final = 1 << 21
"""Numbers of all producers; each takes 16 bytes."""
_SLOTS_MIN: Final = 64
_ID_CHARS_MAX: Final = 255
_NUMBER_MAX: Final = (1 << 63) - 1
_EMPTY: Final = -1
NEW: Final = -1
TOO_OLD: Final = -2


class Sequence(NamedTuple):
    """The id of one life of a producer, and the number of a message."""

    producer: str
    number: int


class RingState(NamedTuple):
    """The numbers of a producer and their physical offsets, as little-endian 64-bit integers."""

    highest: int
    numbers: bytes
    offsets: bytes


def parse_sequence(value: str) -> Sequence | None:
    """Return the sequence that a property names; None if it is none."""
    producer, _, digits = value.partition(":")
    if not (producer and digits.isascii() and digits.isdigit() and len(producer) <= _ID_CHARS_MAX):
        return None
    number = int(digits)
    return Sequence(producer, number) if number <= _NUMBER_MAX else None


class _Ring:
    __slots__ = ("highest", "mask", "numbers", "offsets", "used")

    def __init__(self) -> None:
        self.numbers = array("q", [_EMPTY]) * _SLOTS_MIN
        self.offsets = array("q", [0]) * _SLOTS_MIN
        self.mask = _SLOTS_MIN - 1
        self.highest = _EMPTY
        self.used = 0

    def grow(self) -> None:
        numbers, offsets = self.numbers, self.offsets
        size = 2 * len(numbers)
        self.numbers = array("q", [_EMPTY]) * size
        self.offsets = array("q", [0]) * size
        self.mask = size - 1
        for number, physical_offset in zip(numbers, offsets, strict=True):
            if number != _EMPTY:
                self.numbers[number & self.mask] = number
                self.offsets[number & self.mask] = physical_offset


class ProducerSequences:
    """The newest numbers of the producers of one broker."""

    def __init__(self, slots_max: int = SLOTS_MAX) -> None:
        self._slots_max = slots_max
        self._slots = 0
        self._rings: dict[str, _Ring] = {}
        self.revision = 0
        """Grows with each change."""
        self.forgotten_count = 0
        """Producers that were forgotten because others needed their slots."""

    def __len__(self) -> int:
        return len(self._rings)

    def find(self, sequence: Sequence) -> int:
        """Return the physical offset of a stored message, `NEW`, or `TOO_OLD`."""
        ring = self._rings.get(sequence.producer)
        if ring is None:
            return NEW
        number = sequence.number
        slot = number & ring.mask
        if ring.numbers[slot] == number:
            return ring.offsets[slot]
        return TOO_OLD if number <= ring.highest - WINDOW else NEW

    def note(self, sequence: Sequence, physical_offset: int) -> None:
        """Remember a message that is stored."""
        producer, number = sequence
        ring = self._rings.get(producer)
        if ring is None:
            ring = self._rings[producer] = _Ring()
            self._slots += _SLOTS_MIN
            self._forget(producer)
        self.revision += 1
        ring.used = self.revision
        if number <= ring.highest - WINDOW:
            return
        while True:
            slot = number & ring.mask
            before = ring.numbers[slot]
            if before in (_EMPTY, number) or before <= max(ring.highest, number) - WINDOW:
                break
            self._slots += len(ring.numbers)
            ring.grow()
            self._forget(producer)
        ring.numbers[slot] = number
        ring.offsets[slot] = physical_offset
        ring.highest = max(ring.highest, number)

    def are_new(self, notes: Iterable[tuple[str, int, int]]) -> bool:
        """Whether no message of a run is stored already, or twice among these.  HOT.

        Args:
            notes: producer, number and physical offset of each message.
        """
        last = ""
        highest = _EMPTY
        for producer, number, _ in notes:
            if producer != last:
                ring = self._rings.get(producer)
                highest = _EMPTY if ring is None else ring.highest
                if last:
                    # Messages of several producers may alternate.
                    return self._are_all_new(notes)
                last = producer
            if number <= highest:
                return self._are_all_new(notes)
            highest = number
        return True

    def _are_all_new(self, notes: Iterable[tuple[str, int, int]]) -> bool:
        seen: set[Sequence] = set()
        for producer, number, _ in notes:
            sequence = Sequence(producer, number)
            if sequence in seen or self.find(sequence) != NEW:
                return False
            seen.add(sequence)
        return True

    def note_run(self, notes: Iterable[tuple[str, int, int]]) -> None:
        """Remember the messages of a run that is stored.  HOT."""
        last = ""
        ring: _Ring | None = None
        for producer, number, physical_offset in notes:
            if producer != last or ring is None:
                last = producer
                self.note(Sequence(producer, number), physical_offset)
                ring = self._rings[producer]
                continue
            slot = number & ring.mask
            before = ring.numbers[slot]
            if number <= ring.highest or not (before == _EMPTY or before <= number - WINDOW):
                self.note(Sequence(producer, number), physical_offset)
                continue
            # The usual note in one step.
            ring.numbers[slot] = ring.highest = number
            ring.offsets[slot] = physical_offset

    def _forget(self, sender: str) -> None:
        """Forget the producers that sent least recently, while there are too many numbers."""
        while self._slots > self._slots_max and len(self._rings) > 1:
            others = (name for name in self._rings if name != sender)
            oldest = min(others, key=lambda name: self._rings[name].used)
            self._slots -= len(self._rings.pop(oldest).numbers)
            self.forgotten_count += 1

    def cut(self, log_end: int) -> bool:
        """Forget messages that the log has lost; return whether there were some."""
        is_changed = False
        for ring in self._rings.values():
            for slot, physical_offset in enumerate(ring.offsets):
                if physical_offset >= log_end and ring.numbers[slot] != _EMPTY:
                    ring.numbers[slot] = _EMPTY
                    is_changed = True
        self.revision += is_changed
        return is_changed

    def snapshot(self) -> dict[str, RingState]:
        """Copy the numbers of each producer, those that sent least recently first."""
        rings = sorted(self._rings.items(), key=lambda item: item[1].used)
        return {
            name: RingState(ring.highest, ring.numbers.tobytes(), ring.offsets.tobytes())
            for name, ring in rings
        }

    def restore(self, states: dict[str, RingState]) -> None:
        """Take what `snapshot` gave."""
        for producer, state in states.items():
            numbers, offsets = array("q"), array("q")
            numbers.frombytes(state.numbers)
            offsets.frombytes(state.offsets)
            for number, physical_offset in zip(numbers, offsets, strict=True):
                if number != _EMPTY:
                    self.note(Sequence(producer, number), physical_offset)
            ring = self._rings.get(producer)
            if ring is not None:
                ring.highest = max(ring.highest, state.highest)
