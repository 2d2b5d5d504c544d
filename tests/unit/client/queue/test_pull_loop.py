"""The states of a pull loop: every pair of state and event."""

import itertools

import pytest

from cometmq.client.queue.pull_loop import MOVES, PullEvent, PullState, move

BUSY = (
    PullState.CONNECTING,
    PullState.PULLING,
    PullState.HELD,
    PullState.PAUSED,
    PullState.INTRODUCING,
)
STARTS = {
    PullEvent.HOLD: PullState.HELD,
    PullEvent.CONNECT: PullState.CONNECTING,
    PullEvent.SEND: PullState.PULLING,
    PullEvent.PAUSE: PullState.PAUSED,
    PullEvent.INTRODUCE: PullState.INTRODUCING,
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(PullState, PullEvent)))
def test_every_pair(state: PullState, event: PullEvent) -> None:
    """A step begins in IDLE and ends there; RESTART and STOP leave any state; STOPPED is final."""
    if event is PullEvent.STOP or state is PullState.STOPPED:
        expected = PullState.STOPPED
        if event not in (PullEvent.STOP, PullEvent.RESTART):
            with pytest.raises(RuntimeError, match=f"STOPPED got the event {event.name}"):
                move(state, event)
            return
    elif event is PullEvent.RESTART or (event is PullEvent.END and state in BUSY):
        expected = PullState.IDLE
    elif state is PullState.IDLE and event in STARTS:
        expected = STARTS[event]
    else:
        with pytest.raises(RuntimeError, match=f"{state.name} got the event {event.name}"):
            move(state, event)
        return
    assert move(state, event) is expected


def test_no_state_is_a_trap() -> None:
    """Every state can be reached from IDLE, and left by the end of its step or by RESTART."""
    reached = {PullState.IDLE}
    while True:
        further = {MOVES[pair] for pair in MOVES if pair[0] in reached} - reached
        if not further:
            break
        reached |= further
    assert reached == set(PullState)
    for state in BUSY:
        assert move(state, PullEvent.END) is PullState.IDLE
