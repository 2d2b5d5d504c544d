"""Where two logs of one set part."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.codec.epoch_file import Epoch
from cometmq.core.replication.epochs import EpochList, parting_point


def epochs(*pairs: tuple[int, int]) -> EpochList:
    """A list of (number, start)."""
    return EpochList([Epoch(*pair) for pair in pairs])


def test_an_epoch_without_a_record_is_dropped() -> None:
    """So no two epochs share a start, and numbers grow."""
    first = EpochList().began(1, 0)
    assert first.entries == ((1, 0),)
    assert EpochList().last == -1
    assert first.began(2, 100).began(3, 100).entries == ((1, 0), (3, 100))
    assert first.began(2, 100).began(3, 100).last == 3
    assert first.began(1, 100).entries == ((1, 0),)
    assert first.began(5, 100).began(4, 200).entries == ((1, 0), (4, 200))


def test_a_list_knows_the_epoch_of_each_byte() -> None:
    """The last epoch has no end yet."""
    both = epochs((1, 50), (3, 100))
    assert both.at(49) is None
    assert both.at(50) == ((1, 50), 100)
    assert both.at(99) == ((1, 50), 100)
    assert both.at(100) == ((3, 100), None)
    assert both.up_to(100).entries == ((1, 50),)
    assert both.up_to(101).entries == both.entries


@pytest.mark.parametrize(
    ("own", "own_end", "theirs", "their_end", "point"),
    [
        # The same mastership: the shorter log ends.
        ([(1, 0)], 80, [(1, 0)], 100, 80),
        ([(1, 0)], 120, [(1, 0)], 100, 100),
        # A tail of epoch 3 that nobody has, behind which the master began epoch 4.
        ([(1, 0), (3, 50)], 90, [(1, 0), (3, 50), (4, 70)], 100, 70),
        # Both went on from the end of epoch 1, each in an epoch of its own.
        ([(1, 0), (2, 50)], 90, [(1, 0), (3, 60)], 100, 50),
        ([(1, 0), (2, 60)], 90, [(1, 0), (3, 50)], 100, 50),
        # The same number with another start is another epoch.
        ([(1, 0), (2, 60)], 90, [(1, 0), (2, 50)], 100, 50),
        # Nothing in common.
        ([(2, 60)], 90, [(1, 0)], 100, None),
        ([], 90, [(1, 0)], 100, None),
    ],
)
def test_two_logs_part_behind_their_last_common_epoch(
    own: list[tuple[int, int]],
    own_end: int,
    theirs: list[tuple[int, int]],
    their_end: int,
    point: int | None,
) -> None:
    """Where the first of both ends it."""
    assert parting_point(epochs(*own), own_end, epochs(*theirs), their_end) == point


@given(st.data())
def test_histories_of_one_set_part_where_their_bytes_do(data: st.DataObject) -> None:
    """Any masterships, each from a copy of an earlier log: equal before the point, not behind."""
    logs: list[tuple[list[int], EpochList]] = [([], EpochList())]
    for number in range(1, data.draw(st.integers(2, 6)) + 1):
        bytes_, history = logs[data.draw(st.integers(0, len(logs) - 1))]
        kept = bytes_[: data.draw(st.integers(0, len(bytes_)))]
        before = history.up_to(len(kept))
        written = [number] * data.draw(st.integers(0, 4))
        logs.append((kept + written, before.began(number, len(kept))))
    own_bytes, own = logs[data.draw(st.integers(0, len(logs) - 1))]
    their_bytes, theirs = logs[data.draw(st.integers(0, len(logs) - 1))]
    point = parting_point(
        own.up_to(len(own_bytes)), len(own_bytes), theirs.up_to(len(their_bytes)), len(their_bytes)
    )
    common = 0
    while common < min(len(own_bytes), len(their_bytes)) and (
        own_bytes[common] == their_bytes[common]
    ):
        common += 1
    assert (point or 0) == common
