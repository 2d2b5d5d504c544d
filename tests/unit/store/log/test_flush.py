"""The flusher's state table: every pair of state and event."""

import itertools

import pytest

from cometmq.store.log.flush import MOVES, FlushEvent, FlushState, move

STATE, EVENT = FlushState, FlushEvent
#: Pairs in which no worker's answer, no gathering and no start can occur.
ILLEGAL = {
    *itertools.product(
        [STATE.IDLE, STATE.SCHEDULED, STATE.GATHERING, STATE.BROKEN], [EVENT.SYNCED, EVENT.FAIL]
    ),
    *itertools.product(set(STATE) - {STATE.IDLE}, [EVENT.GATHER]),
    *itertools.product(set(STATE) - {STATE.GATHERING}, [EVENT.GATHERED]),
    *itertools.product(
        [STATE.FLUSHING, STATE.FLUSHING_AGAIN, STATE.BROKEN, STATE.CLOSED], [EVENT.START]
    ),
}


@pytest.mark.parametrize("state", FlushState)
@pytest.mark.parametrize("event", FlushEvent)
def test_each_pair_has_a_next_state_or_the_one_error(state: FlushState, event: FlushEvent) -> None:
    """What cannot occur raises; everything else is in the table."""
    if (state, event) in ILLEGAL:
        with pytest.raises(RuntimeError, match=f"{state.name} got the event {event.name}"):
            move(state, event)
    else:
        assert move(state, event) is MOVES[state, event]


def test_an_end_is_an_end() -> None:
    """A closed flusher stays closed; a broken one can only be closed."""
    for (state, _), following in MOVES.items():
        if state is STATE.CLOSED:
            assert following is STATE.CLOSED
        if state is STATE.BROKEN:
            assert following in {STATE.BROKEN, STATE.CLOSED}


def test_a_request_is_never_lost() -> None:
    """After a request a flush is due, unless there will be no further one."""
    due = {STATE.SCHEDULED, STATE.GATHERING, STATE.FLUSHING_AGAIN}
    assert {MOVES[state, EVENT.REQUEST] for state in STATE} == due | {STATE.BROKEN, STATE.CLOSED}
