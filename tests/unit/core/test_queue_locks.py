"""Locks of queues: granting, renewing, expiry, and who is told."""

from cometmq.core.queue_locks import LOCK_LIVE_MS, QueueLocks
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
