"""Higher lanes go first, and lower ones get their share."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.client.handling.lanes import Lanes


def work(lane: int, number: int) -> tuple[Any, Any]:
    return SimpleNamespace(queue=SimpleNamespace(queue_id=lane)), (lane, number)


def taken(lanes: Lanes, count: int) -> list[tuple[int, int]]:
    return [lanes.popleft()[1] for _ in range(count)]


def test_the_highest_lane_goes_first_and_each_keeps_its_order() -> None:
    """With a small share the lower ones wait."""
    lanes = Lanes(0.01)
    lanes.append(work(0, 1))
    lanes.extend([work(2, 1), work(2, 2)])
    lanes.extend([])
    lanes.append(work(1, 1))
    lanes.appendleft(work(2, 0))
    assert len(lanes) == 5
    assert [item[1] for item in lanes] == [(2, 0), (2, 1), (2, 2), (1, 1), (0, 1)]
    assert taken(lanes, 5) == [(2, 0), (2, 1), (2, 2), (1, 1), (0, 1)]
    with pytest.raises(IndexError):
        lanes.popleft()
    lanes.append(work(0, 3))
    lanes.clear()
    assert not lanes


def test_lower_lanes_get_their_share_in_turn() -> None:
    """One in four, by turns, while the highest lane never ends."""
    lanes = Lanes(0.25)
    for number in range(40):
        for lane in (0, 1, 7):
            lanes.append(work(lane, number))
    order = [lane for lane, _ in taken(lanes, 16)]
    assert order == [7, 7, 7, 1, 7, 7, 7, 0, 7, 7, 7, 1, 7, 7, 7, 0]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=60),
    st.sampled_from([0.05, 0.1, 0.3, 1.0]),
)
def test_nothing_is_lost_and_nothing_starves(steps: list[tuple[int, int]], share: float) -> None:
    """Whatever comes and goes: each message is taken once, within the bound that lanes state."""
    lanes, sent = Lanes(share), 0
    got: list[tuple[int, int]] = []
    for lane, takes in steps:
        lanes.append(work(lane, sent))
        sent += 1
        for _ in range(min(takes, len(lanes))):
            got.append(lanes.popleft()[1])
    got += taken(lanes, len(lanes))
    assert len(got) == len(set(got)) == sent
    for lane in range(4):
        numbers = [number for each, number in got if each == lane]
        assert numbers == sorted(numbers)


@given(st.sampled_from([0.05, 0.1, 0.3, 1.0]), st.integers(1, 3))
def test_the_first_of_a_lower_lane_waits_for_a_bounded_number_of_takes(
    share: float, lower: int
) -> None:
    """While the highest lane never ends."""
    lanes = Lanes(share)
    for number in range(200):
        lanes.append(work(9, number))
    for lane in range(lower):
        lanes.append(work(lane, 0))
    order = taken(lanes, 200)
    bound = lower / share + 1
    assert all(order.index((lane, 0)) <= bound for lane in range(lower))


def test_work_that_is_returned_is_the_next_one_again() -> None:
    """A worker returns its work when its turn of the loop was long.

    With handlers longer than a turn each take was undone once, and a share of a half never came to
    a lower lane: its takes were those that were undone (seed 2767).
    """
    lanes = Lanes(0.5)
    for number in range(20):
        lanes.append(work(0, number))
        lanes.append(work(2, number))
    order: list[int] = []
    for _ in range(20):
        first = lanes.popleft()
        lanes.appendleft(first)
        again = lanes.popleft()
        assert again is first
        order.append(again[1][0])
    assert order == [2, 0] * 10
