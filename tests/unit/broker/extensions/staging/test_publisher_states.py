"""What a publisher may do in each state: every pair of state and event."""

from __future__ import annotations

from itertools import product

import pytest

from cometmq.broker.extensions.staging.publication import (
    MOVES,
    PublisherEvent,
    PublisherState,
    move,
)

STATE, EVENT = PublisherState, PublisherEvent
LEGAL = {
    STATE.IDLE: {EVENT.BEGIN, EVENT.RESUME, EVENT.STOP},
    STATE.FLUSHING_STAGED: {EVENT.GIVE_UP, EVENT.DECIDE, EVENT.STOP},
    STATE.APPENDING: {EVENT.READ, EVENT.REFUSED, EVENT.DONE, EVENT.STOP},
    STATE.READING: {EVENT.BLOCK_READ, EVENT.STOP},
    STATE.STUCK: {EVENT.RETRY, EVENT.STOP},
    STATE.FLUSHING_DONE: {EVENT.DURABLE, EVENT.STOP},
    STATE.STOPPED: {EVENT.STOP},
}


@pytest.mark.parametrize(("state", "event"), list(product(STATE, EVENT)))
def test_every_pair_has_a_next_state_or_is_an_error(
    state: PublisherState, event: PublisherEvent
) -> None:
    """The events of a state are the listed ones, and a stop is final."""
    if event not in LEGAL[state]:
        with pytest.raises(RuntimeError, match="got the event"):
            move(state, event)
        return
    following = move(state, event)
    assert following is MOVES[state, event]
    assert (following is STATE.STOPPED) == (event is EVENT.STOP)


def test_a_decided_batch_is_never_given_up() -> None:
    """From the decision on, every way to IDLE leads through DONE and DURABLE."""
    decided = {STATE.APPENDING, STATE.READING, STATE.STUCK, STATE.FLUSHING_DONE}
    ends = {(state, event) for (state, event), following in MOVES.items()
            if state in decided and following not in {*decided, STATE.STOPPED}}  # fmt: skip
    assert ends == {(STATE.FLUSHING_DONE, EVENT.DURABLE)}
    assert [state for (state, event) in MOVES if event is EVENT.DONE] == [STATE.APPENDING]
