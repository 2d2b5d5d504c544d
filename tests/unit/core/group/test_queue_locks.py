"""Locks of queues: granting, renewing, expiry, and who is told."""

from cometmq.core.group.queue_locks import FORMER_MS, LOCK_LIVE_MS, RELIED_ON_MS, QueueLocks
from cometmq.model import MessageQueue

Q0, Q1, Q2 = [MessageQueue("t", "b", number) for number in range(3)]


def test_a_lock_is_of_one_client_until_it_is_released() -> None:
    """Others are refused; what was granted or renewed is answered."""
    locks = QueueLocks()
    assert locks.lock("g", "c1", [Q0, Q1], 0) == [Q0, Q1]
    assert locks.lock("g", "c2", [Q1, Q2, Q0], 5) == [Q2]
    assert locks.lock("other", "c2", [Q0], 5) == [Q0]
    assert (locks.owner("g", Q0, 5), locks.owner("g", Q2, 5)) == ("c1", "c2")
    assert locks.lock("g", "c1", [Q0, Q1], 10) == [Q0, Q1]
    # Only the owner may release; those who were refused are told once.
    assert locks.unlock("g", "c3", [Q0]) == []
    assert locks.unlock("g", "c1", [Q0, Q1]) == ["c2"]
    assert locks.unlock("g", "c1", [Q0, Q1]) == []
    assert locks.unlock("nobody", "c1", [Q0]) == []
    assert locks.owner("g", Q0, 10) is None
    assert locks.lock("g", "c2", [Q0], 11) == [Q0]


def test_a_lock_expires_after_its_last_renewal() -> None:
    """Then whoever asks first has it; RocketMQ's 60 s, to the millisecond."""
    locks = QueueLocks()
    locks.lock("g", "c1", [Q0], 0)
    locks.lock("g", "c1", [Q0], 1_000)
    assert locks.lock("g", "c2", [Q0], 1_000 + LOCK_LIVE_MS) == []
    assert not locks.are_all_expired("g", 1_000 + LOCK_LIVE_MS)
    assert locks.are_all_expired("g", 1_001 + LOCK_LIVE_MS)
    assert locks.are_all_expired("nobody", 0)
    assert locks.owner("g", Q0, 1_001 + LOCK_LIVE_MS) is None
    assert locks.lock("g", "c2", [Q0], 1_001 + LOCK_LIVE_MS) == [Q0]
    assert locks.lock("g", "c1", [Q0], 1_002 + LOCK_LIVE_MS) == []
    assert locks.unlock("g", "c2", [Q0]) == ["c1"]


def test_those_who_wait_are_told_at_expiry() -> None:
    """The next moment worth looking at is that of the oldest lock somebody waits for."""
    locks = QueueLocks(live_ms=100)
    locks.lock("g", "c1", [Q0, Q1], 0)
    locks.lock("h", "c1", [Q2], 0)
    assert locks.next_expiry_ms() is None
    locks.lock("g", "c2", [Q0], 10)
    locks.lock("g", "c3", [Q0, Q1], 20)
    assert locks.next_expiry_ms() == 101
    locks.lock("g", "c1", [Q0], 50)
    assert locks.next_expiry_ms() == 101
    assert locks.expire(100) == {}
    assert locks.expire(101) == {"g": ["c3"]}
    assert locks.next_expiry_ms() == 151
    assert locks.expire(151) == {"g": ["c2", "c3"]}
    assert locks.next_expiry_ms() is None
    assert locks.lock("g", "c2", [], 200) == []


def test_a_restart_leaves_a_lock_to_its_owner_for_as_long_as_it_may_rely_on_it() -> None:
    """What is written down is ahead of the renewals, once for many; a clean stop is exact."""
    locks = QueueLocks()
    assert locks.lock("g", "c1", [Q0], 1_000) == [Q0]
    written, snapshot = locks.revision, locks.snapshot()
    assert snapshot.renewed_until_ms >= 1_000
    locks.lock("g", "c1", [Q0], 21_000)
    assert locks.revision == written
    assert locks.snapshot().renewed_until_ms >= 21_000
    locks.lock("g", "c1", [Q0], 41_000)
    assert locks.revision > written
    assert locks.snapshot().renewed_until_ms >= 41_000

    killed = QueueLocks()
    killed.restore(snapshot, 5_000)
    assert killed.lock("g", "c2", [Q0, Q1], 5_000) == [Q1]
    assert killed.lock("g", "c1", [Q0], 6_000) == [Q0]
    assert killed.lock("g", "c2", [Q0], 6_000 + LOCK_LIVE_MS) == []

    late = QueueLocks()
    late.restore(snapshot, snapshot.renewed_until_ms + LOCK_LIVE_MS)
    assert late.lock("g", "c2", [Q0], snapshot.renewed_until_ms + LOCK_LIVE_MS) == []
    # A full disk may have kept later renewals from the file: clients rely on them for 30 s.
    later, start_ms = QueueLocks(), snapshot.renewed_until_ms + 10 * LOCK_LIVE_MS
    later.restore(snapshot, start_ms)
    assert later.lock("g", "c2", [Q0], start_ms + RELIED_ON_MS) == []
    assert later.lock("g", "c2", [Q0], start_ms + RELIED_ON_MS + 1) == [Q0]

    locks.ended(42_000)
    stopped = QueueLocks()
    stopped.restore(locks.snapshot(), 100_000)
    assert stopped.owner("g", Q0, 42_000 + LOCK_LIVE_MS) == "c1"
    assert stopped.owner("g", Q0, 42_001 + LOCK_LIVE_MS) is None


def test_every_change_of_owners_is_written_down() -> None:
    """Granting, taking over, giving back and expiring; a refusal and an idle unlock change none."""
    locks = QueueLocks(live_ms=100)
    seen = [locks.revision]

    def is_new() -> bool:
        seen.append(locks.revision)
        return seen[-1] != seen[-2]

    locks.lock("g", "c1", [Q0], 0)
    assert is_new()
    locks.lock("g", "c2", [Q0], 50)
    locks.unlock("g", "c2", [Q0])
    assert not is_new()
    locks.lock("g", "c2", [Q0], 101)
    assert is_new()
    assert locks.snapshot().owners == {"g": {Q0: "c2"}}
    locks.unlock("g", "c2", [Q0])
    assert is_new()
    locks.lock("g", "c2", [Q0], 102)
    locks.expire(203)
    assert is_new()
    assert locks.snapshot().owners == {}


def test_a_clean_end_without_locks_and_one_long_ago() -> None:
    """A table without locks has nothing to end; locks of an end long ago are not taken up."""
    locks = QueueLocks()
    revision = locks.revision
    locks.ended(5)
    assert locks.revision == revision
    locks.lock("g", "c1", [Q0], 0)
    locks.ended(5)
    late = QueueLocks()
    late.restore(locks.snapshot(), LOCK_LIVE_MS + 6)
    assert late.owner("g", Q0, LOCK_LIVE_MS + 6) is None
    soon = QueueLocks()
    soon.restore(locks.snapshot(), 6)
    assert soon.owner("g", Q0, 6) == "c1"


def test_the_last_owner_of_an_ended_lock_is_known_for_a_while() -> None:
    """As long as a broker may still have a connection of the owner before."""
    locks = QueueLocks(live_ms=100)
    assert not locks.has_been_used("g")
    assert locks.last_owner("g", Q0) is None
    locks.lock("g", "c1", [Q0, Q1], 0)
    locks.lock("g", "c2", [Q0], 50)
    locks.unlock("g", "c1", [Q0])
    assert (locks.last_owner("g", Q0), locks.last_owner("g", Q1)) == ("c1", "c1")
    locks.lock("g", "c2", [Q0], 60)
    assert locks.last_owner("g", Q0) == "c2"
    locks.expire(200)
    assert (locks.owner("g", Q0, 200), locks.last_owner("g", Q0)) == (None, "c2")
    locks.expire(FORMER_MS)
    assert (locks.last_owner("g", Q1), locks.has_been_used("g")) == ("c1", True)
    locks.expire(FORMER_MS + 1)
    assert (locks.last_owner("g", Q1), locks.last_owner("g", Q0)) == (None, "c2")
    locks.expire(FORMER_MS + 61)
    assert not locks.has_been_used("g")
