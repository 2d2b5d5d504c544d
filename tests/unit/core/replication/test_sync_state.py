"""Who must have a record before it is acknowledged."""

from cometmq.core.replication.sync_state import TARGET_MS, SyncState


def state(*members: int, least: int = 1, epoch: int = 5) -> SyncState:
    """The set of broker 1, which may be behind for 1000 ms, at 0."""
    made = SyncState(1, 1000, least, 0)
    made.recorded(frozenset(members or (1,)), epoch)
    return made


def test_every_member_of_both_sets_is_waited_for() -> None:
    """A member without a connection stops everything; others do not count."""
    pair = state(1, 2)
    assert pair.confirmed(100, {2: 80, 3: 10}) == 80
    assert pair.confirmed(100, {2: 120}) == 100
    assert pair.confirmed(100, {3: 100}) is None
    assert state().confirmed(100, {}) == 100


def test_a_replica_that_keeps_up_is_proposed_and_waited_for_at_once() -> None:
    """The controller is asked when it has what the log had then."""
    alone = state()
    alone.noticed(100, {2: 50}, 0)
    alone.noticed(100, {2: 50}, TARGET_MS)
    alone.noticed(200, {2: 50}, 2 * TARGET_MS)
    assert alone.propose(200, {2: 50}, 2 * TARGET_MS) is None
    assert alone.union == {1}
    alone.noticed(220, {2: 205}, 3 * TARGET_MS)
    assert alone.propose(220, {2: 205}, 3 * TARGET_MS) is None
    assert alone.union == {1, 2}
    assert alone.confirmed(230, {2: 205}) == 205
    assert alone.propose(240, {2: 220}, 3 * TARGET_MS) == {1, 2}
    # The same again while there is no answer, also when the replica is gone.
    assert alone.propose(250, {}, 3 * TARGET_MS) == {1, 2}
    assert alone.confirmed(250, {}) is None
    alone.recorded(frozenset({1, 2}), 6)
    assert (alone.members, alone.proposed, alone.epoch) == ({1, 2}, None, 6)


def test_a_proposal_that_nobody_was_asked_for_is_given_up() -> None:
    """The replica is gone before it had everything."""
    alone = state()
    assert alone.propose(100, {2: 50}, 0) is None
    assert alone.union == {1, 2}
    assert alone.propose(100, {}, 0) is None
    assert alone.union == {1}


def test_a_member_that_is_behind_for_too_long_is_to_leave() -> None:
    """The longest first, and never below the minimum."""
    three = state(1, 2, 3, least=2)
    three.noticed(100, {2: 100, 3: 100}, 0)
    three.noticed(100, {2: 100, 3: 100}, 500)
    three.noticed(200, {2: 100, 3: 200}, 1000)
    three.noticed(200, {2: 100, 3: 200}, 1400)
    assert three.propose(200, {2: 100, 3: 200}, 1500) is None
    assert three.in_sync_count(1500) == 3
    three.noticed(200, {2: 100}, 2600)
    assert three.in_sync_count(2600) == 1
    assert three.propose(200, {2: 100}, 2600) == {1, 3}
    assert three.union == {1, 2, 3}
    three.recorded(frozenset({1, 3}), 6)
    assert three.propose(200, {2: 100}, 9000) is None
    assert state(1, 2, least=1).propose(0, {}, 2000) == {1}


def test_an_older_answer_changes_nothing() -> None:
    """And a refusal ends the proposal."""
    three = state(1, 2, 3)
    assert three.propose(0, {}, 2000) == {1}
    three.recorded(frozenset({1}), 4)
    assert (three.members, three.proposed) == ({1, 2, 3}, {1})
    three.recorded(frozenset({1, 2, 3}), 5)
    assert three.proposed == {1}
    three.refused()
    assert three.union == {1, 2, 3}
