"""Strands: what may run next, and what follows a failure."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.core.consume.order import (
    RECONSUME_FOR_EVER,
    GiveBack,
    OrderPolicy,
    Park,
    StrandEvent,
    Strands,
    StrandState,
    Suspend,
    move_strand,
)


def test_one_strand_is_serial_and_others_run_beside_it() -> None:
    """Nothing of a strand runs while its messages are in the handler."""
    strands: Strands[int] = Strands()
    strands.add([("a", 1), ("b", 2), ("a", 3)])
    assert strands.strand_count == 2
    assert strands.take(1) == ("a", [1])
    assert strands.take(1) == ("b", [2])
    assert strands.take(1) is None
    strands.add([("a", 4)])
    assert not strands.is_ready
    strands.done("b", 1)
    assert strands.strand_count == 1
    strands.done("a", 1)
    assert strands.take(5) == ("a", [3, 4])
    strands.done("a", 2)
    assert (strands.strand_count, strands.is_ready) == (0, False)


def test_strands_take_turns() -> None:
    """A strand with much to do does not keep the others waiting."""
    strands: Strands[int] = Strands()
    strands.add([("a", 1), ("a", 2), ("b", 3)])
    taken = []
    while (work := strands.take(1)) is not None:
        taken.append(work[1][0])
        strands.done(work[0], 1)
    assert taken == [1, 3, 2]


def test_a_failed_batch_is_the_next_one_again() -> None:
    """The same messages, after a pause, though more have come since."""
    strands: Strands[int] = Strands()
    strands.add([("", number) for number in range(3)])
    assert strands.take(3) == ("", [0, 1, 2])
    strands.suspend("", 0)
    assert strands.suspended == [""]
    strands.add([("", 3), ("", 4)])
    assert strands.take(3) is None
    strands.resume("")
    strands.resume("")
    assert strands.take(9) == ("", [0, 1, 2])
    strands.suspend("", 2)
    strands.resume("")
    assert strands.take(9) == ("", [2])
    strands.done("", 1)
    assert strands.take(9) == ("", [3, 4])
    strands.resume("gone")


def test_what_never_ran_is_ready_again() -> None:
    """A batch may end early without a failure."""
    strands: Strands[int] = Strands()
    strands.add([("", 1), ("", 2)])
    strands.take(2)
    strands.done("", 1)
    assert strands.take(2) == ("", [2])


@pytest.mark.parametrize("state", StrandState)
@pytest.mark.parametrize("event", StrandEvent)
def test_every_pair_of_state_and_event(state: StrandState, event: StrandEvent) -> None:
    """Each pair ends in the state it should, or is refused."""
    ready, running, suspended, gone = StrandState
    expected = {
        StrandEvent.TAKE: {ready: running},
        StrandEvent.DONE: {running: ready},
        StrandEvent.FAIL: {running: suspended},
        StrandEvent.RESUME: {suspended: ready},
        StrandEvent.EMPTY: {ready: gone, running: gone, suspended: gone},
    }[event]
    if state in expected:
        assert move_strand(state, event) is expected[state]
        return
    with pytest.raises(RuntimeError, match=f"{state.name} got the event {event.name}"):
        move_strand(state, event)


def test_the_last_messages_of_any_strand_can_be_withdrawn() -> None:
    """A ready or suspended strand is gone then; a running one keeps what is in the handler."""
    strands: Strands[int] = Strands()
    strands.add([("ready", 1), ("run", 2), ("run", 3), ("wait", 4)])
    strands.take(1)
    strands.done("ready", 0)
    assert strands.take(1) == ("run", [2])
    assert strands.take(1) == ("wait", [4])
    strands.suspend("wait", 0)
    assert [strands.withdraw(name, bool) for name in ("ready", "run", "wait")] == [[1], [3], [4]]
    assert (strands.strand_count, strands.is_ready) == (1, False)
    strands.resume("wait")
    strands.done("run", 1)
    assert strands.strand_count == 0


@pytest.mark.parametrize(
    ("level", "times", "limit", "follows"),
    [
        (0, 0, RECONSUME_FOR_EVER, Suspend(700)),
        (0, 1_000_000, RECONSUME_FOR_EVER, Suspend(700)),
        (0, 2, 3, Suspend(700)),
        (0, 3, 3, GiveBack(-1)),
        (0, 0, 0, GiveBack(-1)),
        (2, 0, 3, Suspend(5_000)),
        (99, 0, 3, Suspend(7_200_000)),
        (-1, 0, RECONSUME_FOR_EVER, GiveBack(-1)),
    ],
)
def test_what_follows_a_failure(
    level: int, times: int, limit: int, follows: Suspend | GiveBack
) -> None:
    """Waiting and trying again, as long as the limit is not reached; then a dead letter."""
    assert OrderPolicy(700, limit).after_failure(level, times) == follows


@given(st.lists(st.sampled_from("abc"), max_size=40), st.integers(1, 4), st.randoms())
def test_order_holds_under_any_failures(
    names: list[str], count_max: int, chance: random.Random
) -> None:
    """Against lists: each strand finishes its messages in their order, each once."""
    strands: Strands[int] = Strands()
    strands.add((name, place) for place, name in enumerate(names))
    finished: dict[str, list[int]] = {}
    running: list[tuple[str, list[int]]] = []
    while strands.strand_count:
        work = strands.take(count_max)
        if work is not None:
            assert work[0] not in [name for name, _ in running]
            running.append(work)
        elif running:
            name, batch = running.pop(chance.randrange(len(running)))
            done = chance.randint(0, len(batch))
            finished.setdefault(name, []).extend(batch[:done])
            if chance.random() < 0.5:
                strands.done(name, done)
            else:
                strands.suspend(name, done)
        else:
            for name in strands.suspended:
                strands.resume(name)
    for name in set(names):
        assert finished[name] == [place for place, one in enumerate(names) if one == name]


def test_withdrawing_from_nothing() -> None:
    """A strand that does not exist, and one of which nothing is wanted."""
    strands: Strands[int] = Strands()
    assert strands.withdraw("a", lambda message: True) == []
    strands.add([("a", 1)])
    assert strands.withdraw("a", lambda message: False) == []
    assert strands.take(10) == ("a", [1])


def test_parking_after_so_many_tries() -> None:
    """The policy parks a message instead of trying it again."""
    policy = OrderPolicy(park_after=2)
    assert policy.after_failure(0, 1) == Park()
    assert policy.after_failure(0, 0) == Suspend(1_000)
