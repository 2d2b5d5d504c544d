"""Lanes: what may run next, and what follows a failure."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.core.consume.order import RECONSUME_FOR_EVER, Lanes, OrderPolicy, SendBack, Suspend


def test_one_lane_is_serial_and_others_run_beside_it() -> None:
    """Nothing of a lane runs while its messages are in the handler."""
    lanes: Lanes[int] = Lanes()
    lanes.add([("a", 1), ("b", 2), ("a", 3)])
    assert lanes.lane_count == 2
    assert lanes.take(1) == ("a", [1])
    assert lanes.take(1) == ("b", [2])
    assert (lanes.take(1), lanes.running_count) == (None, 2)
    lanes.add([("a", 4)])
    assert not lanes.is_ready
    lanes.done("b", 1)
    assert lanes.lane_count == 1
    lanes.done("a", 1)
    assert lanes.take(5) == ("a", [3, 4])
    lanes.done("a", 2)
    assert (lanes.lane_count, lanes.running_count, lanes.is_ready) == (0, 0, False)


def test_lanes_take_turns() -> None:
    """A lane with much to do does not keep the others waiting."""
    lanes: Lanes[int] = Lanes()
    lanes.add([("a", 1), ("a", 2), ("b", 3)])
    taken = []
    while (work := lanes.take(1)) is not None:
        taken.append(work[1][0])
        lanes.done(work[0], 1)
    assert taken == [1, 3, 2]


def test_a_failed_batch_is_the_next_one_again() -> None:
    """The same messages, after a pause, though more have come since."""
    lanes: Lanes[int] = Lanes()
    lanes.add([("", number) for number in range(3)])
    assert lanes.take(3) == ("", [0, 1, 2])
    lanes.suspend("", 0)
    assert lanes.suspended == [""]
    lanes.add([("", 3), ("", 4)])
    assert lanes.take(3) is None
    lanes.resume("")
    lanes.resume("")
    assert lanes.take(9) == ("", [0, 1, 2])
    lanes.suspend("", 2)
    lanes.resume("")
    assert lanes.take(9) == ("", [2])
    lanes.done("", 1)
    assert lanes.take(9) == ("", [3, 4])
    lanes.resume("gone")


def test_what_never_ran_is_ready_again() -> None:
    """A batch may end early without a failure."""
    lanes: Lanes[int] = Lanes()
    lanes.add([("", 1), ("", 2)])
    lanes.take(2)
    lanes.done("", 1)
    assert lanes.take(2) == ("", [2])


@pytest.mark.parametrize(
    ("level", "times", "limit", "follows"),
    [
        (0, 0, RECONSUME_FOR_EVER, Suspend(700)),
        (0, 1_000_000, RECONSUME_FOR_EVER, Suspend(700)),
        (0, 2, 3, Suspend(700)),
        (0, 3, 3, SendBack(-1)),
        (0, 0, 0, SendBack(-1)),
        (2, 0, 3, Suspend(5_000)),
        (99, 0, 3, Suspend(7_200_000)),
        (-1, 0, RECONSUME_FOR_EVER, SendBack(-1)),
    ],
)
def test_what_follows_a_failure(
    level: int, times: int, limit: int, follows: Suspend | SendBack
) -> None:
    """Waiting and trying again, as long as the limit is not reached; then a dead letter."""
    assert OrderPolicy(700, limit).after_failure(level, times) == follows


@given(st.lists(st.sampled_from("abc"), max_size=40), st.integers(1, 4), st.randoms())
def test_order_holds_under_any_failures(
    names: list[str], count_max: int, chance: random.Random
) -> None:
    """Against lists: each lane finishes its messages in their order, each once."""
    lanes: Lanes[int] = Lanes()
    lanes.add((name, place) for place, name in enumerate(names))
    finished: dict[str, list[int]] = {}
    running: list[tuple[str, list[int]]] = []
    while lanes.lane_count:
        work = lanes.take(count_max)
        if work is not None:
            assert work[0] not in [name for name, _ in running]
            running.append(work)
        elif running:
            name, batch = running.pop(chance.randrange(len(running)))
            done = chance.randint(0, len(batch))
            finished.setdefault(name, []).extend(batch[:done])
            if chance.random() < 0.5:
                lanes.done(name, done)
            else:
                lanes.suspend(name, done)
        else:
            for name in lanes.suspended:
                lanes.resume(name)
    for name in set(names):
        assert finished[name] == [place for place, one in enumerate(names) if one == name]
