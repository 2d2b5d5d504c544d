"""The index service's state table: every pair of state and event."""

import itertools

import pytest

from cometmq.store.index.service import MOVES, IndexEvent, IndexState, move

STATES = [IndexState(bits) for bits in range(2 ** len(IndexState))]
BEGINS = {IndexEvent.WRITE, IndexEvent.LOAD, IndexEvent.MEND}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(STATES, IndexEvent)))
def test_each_pair_moves_one_region_or_is_the_one_error(
    state: IndexState, event: IndexEvent
) -> None:
    """A region turns on when it is off and off when it is on; a closed service begins no job."""
    region, turns_on = MOVES[event]
    is_too_late = IndexState.CLOSED in state and event in BEGINS
    if is_too_late or (region in state) is turns_on:
        with pytest.raises(RuntimeError, match=f"got the event {event.name}"):
            move(state, event)
    else:
        following = move(state, event)
        assert (region in following) is turns_on
        assert following & ~region == state & ~region


def test_only_closing_is_for_good() -> None:
    """Every other region turns on by one event and off by another."""
    regions = set(IndexState) - {IndexState.CLOSED}
    moves = {*itertools.product(regions, (False, True)), (IndexState.CLOSED, True)}
    assert set(MOVES.values()) == moves
    assert len(MOVES) == len(moves)
