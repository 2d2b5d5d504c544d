"""Retention's state table: every pair of state and event."""

import itertools

import pytest

from cometmq.store.retention.retention import MOVES, RetentionEvent, RetentionState, move

STATES = [RetentionState(bits) for bits in range(2 ** len(RetentionState))]


@pytest.mark.parametrize(("state", "event"), list(itertools.product(STATES, RetentionEvent)))
def test_each_pair_moves_one_region_or_is_the_one_error(
    state: RetentionState, event: RetentionEvent
) -> None:
    """A region turns on when it is off and off when it is on; the others stay."""
    region, turns_on = MOVES[event]
    if (region in state) is turns_on:
        with pytest.raises(RuntimeError, match=f"got the event {event.name}"):
            move(state, event)
    else:
        following = move(state, event)
        assert (region in following) is turns_on
        assert following & ~region == state & ~region


def test_every_region_turns_on_by_one_event_and_off_by_another() -> None:
    """No region can be entered for good."""
    assert sorted(MOVES.values()) == sorted(itertools.product(RetentionState, (False, True)))
