"""The memory of producers' sequences: its window, its growth, its bound and its copies."""

import random

import pytest

from cometmq.core.extensions.producer_sequences import (
    NEW,
    TOO_OLD,
    WINDOW,
    ProducerSequences,
    Sequence,
    parse_sequence,
)


@pytest.mark.parametrize(
    ("value", "sequence"),
    [
        ("a.1f:7", Sequence("a.1f", 7)),
        ("a:b:0", None),
        ("a:0", Sequence("a", 0)),
        ("a", None),
        (":7", None),
        ("a:", None),
        ("a:-7", None),
        ("a:\u0667", None),
        ("a:9223372036854775807", Sequence("a", (1 << 63) - 1)),
        ("a:9223372036854775808", None),
        ("x" * 256 + ":1", None),
    ],
)
def test_a_property_names_a_sequence(value: str, sequence: Sequence | None) -> None:
    """A producer's id, a colon and a number of 63 bits."""
    assert parse_sequence(value) == sequence


def test_the_newest_numbers_are_known_in_any_order() -> None:
    """Whatever gaps they have; of two notes of a number the later counts."""
    chance = random.Random(7)
    table = ProducerSequences()
    numbers = chance.sample(range(3 * WINDOW), 2 * WINDOW)
    known: dict[int, int] = {}
    for physical_offset, number in enumerate(numbers):
        known[number] = physical_offset
        table.note(Sequence("a", number), physical_offset)
        assert table.revision == physical_offset + 1
    highest = max(numbers)
    for number in range(3 * WINDOW):
        expected = known.get(number, NEW) if number > highest - WINDOW else TOO_OLD
        found = table.find(Sequence("a", number))
        # A number below the window may still be there, where no newer one has its slot.
        assert found == expected or (expected == TOO_OLD and found == known.get(number))
    assert table.find(Sequence("b", 1)) == NEW
    table.note(Sequence("a", highest), 77)
    assert table.find(Sequence("a", highest)) == 77
    assert table.find(Sequence("a", highest - WINDOW - 1)) in (
        TOO_OLD,
        known.get(highest - WINDOW - 1),
    )


def test_a_number_below_the_window_is_not_remembered() -> None:
    """It would push out one that counts."""
    table = ProducerSequences()
    table.note(Sequence("a", WINDOW + 5), 100)
    table.note(Sequence("a", 5), 200)
    assert table.find(Sequence("a", 5)) == TOO_OLD
    assert table.find(Sequence("a", WINDOW + 5)) == 100


def test_the_producers_that_sent_least_recently_are_forgotten() -> None:
    """When all together have too many numbers."""
    table = ProducerSequences(slots_max=256)
    for name in "abcd":
        table.note(Sequence(name, 1), 1)
    table.note(Sequence("a", 2), 2)
    for number in range(65):
        table.note(Sequence("e", number), number)
    assert table.find(Sequence("a", 1)) == 1
    assert [name for name in "bcd" if table.find(Sequence(name, 1)) == NEW] == ["b", "c"]
    assert (len(table), table.forgotten_count) == (3, 2)
    table.note(Sequence("f", 1), 1)
    assert table.find(Sequence("d", 1)) == NEW


def test_a_copy_is_equal(tmp_path: object) -> None:
    """Also in which numbers are too old, and which producer is forgotten first."""
    table = ProducerSequences()
    for number in range(0, 3 * WINDOW, 2):
        table.note(Sequence("a", number), 10 * number)
    table.note(Sequence("b", 3), 30)
    copy = ProducerSequences()
    copy.restore(table.snapshot())
    for number in range(3 * WINDOW):
        assert copy.find(Sequence("a", number)) == table.find(Sequence("a", number))
    assert copy.find(Sequence("b", 3)) == 30
    assert list(copy.snapshot()) == ["a", "b"]


def test_what_the_log_has_lost_is_forgotten() -> None:
    """So that a message which a power cut has taken is stored when it comes again."""
    table = ProducerSequences()
    for number in range(10):
        table.note(Sequence("a", number), 100 * number)
    assert table.cut(500)
    assert not table.cut(500)
    assert [table.find(Sequence("a", number)) for number in (4, 5)] == [400, NEW]


def test_runs_are_as_single_notes() -> None:
    """Of one producer or of several, with gaps, known numbers and twins."""
    chance = random.Random(3)
    fast, slow = ProducerSequences(), ProducerSequences()
    physical_offset = highest = 0
    for _ in range(300):
        names = chance.choice(["a", "a", "ab"])
        notes = []
        for _ in range(chance.choice([1, 5, 200])):
            highest += chance.choice([1, 1, 1, 1, 40, -3])
            physical_offset += 100
            notes.append((chance.choice(names), abs(highest), physical_offset))
        keys = [note[:2] for note in notes]
        is_new = len(set(keys)) == len(keys) and all(
            slow.find(Sequence(*key)) == NEW for key in keys
        )
        assert fast.are_new(notes) == is_new
        if is_new:
            fast.note_run(notes)
            for producer, number, offset in notes:
                slow.note(Sequence(producer, number), offset)
            assert fast.snapshot() == slow.snapshot()
