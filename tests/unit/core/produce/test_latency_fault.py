"""The fault table: Java's pauses, and the three steps of choosing a queue."""

import pytest

from cometmq.core.produce.latency_fault import LatencyFaultTable, pause_of_latency
from cometmq.core.topic.selector import RoundRobin
from cometmq.model import MessageQueue

QUEUES = [MessageQueue("t", "a", 0), MessageQueue("t", "b", 0), MessageQueue("t", "c", 0)]


@pytest.mark.parametrize(
    ("latency_ms", "pause_ms"),
    [
        (0, 0),
        (49, 0),
        (50, 0),
        (549, 0),
        (550, 2_000),
        (1_800, 5_000),
        (2_999, 5_000),
        (3_000, 6_000),
        (5_000, 10_000),
        (14_999, 10_000),
        (15_000, 30_000),
        (99_999, 30_000),
    ],
)
def test_pauses_are_javas(latency_ms: float, pause_ms: int) -> None:
    """``latencyMax`` and ``notAvailableDuration`` of MQFaultStrategy."""
    assert pause_of_latency(latency_ms) == pause_ms


def test_a_failed_send_isolates_its_broker_for_ten_seconds() -> None:
    """A failure counts 10,000 ms, whatever it took."""
    table = LatencyFaultTable()
    table.update("a", 3, 1_000, failed=True, reachable=False)
    assert not table.is_available("a", 10_999)
    assert table.is_available("a", 11_000)
    assert not table.is_reachable("a")
    assert table.unreachable() == ["a"]
    assert table.is_available("b", 0)
    assert table.is_reachable("b")


def test_a_pause_only_grows() -> None:
    """A quick answer right after a slow one does not end the pause early."""
    table = LatencyFaultTable()
    table.update("a", 16_000, 0)
    table.update("a", 600, 1_000)
    health = table.health("a")
    assert health is not None
    assert (health.available_at_ms, health.latency_ms) == (30_000, 600)


def test_select_prefers_available_then_reachable_then_any() -> None:
    """The order of MQFaultStrategy.selectOneMessageQueue."""
    table = LatencyFaultTable()
    turn = RoundRobin()
    assert table.select(QUEUES, turn, 0) == QUEUES[0]
    table.update("b", 600, 0)
    table.update("c", 1, 0, failed=True, reachable=False)
    assert {table.select(QUEUES, turn, 100) for _ in range(4)} == {QUEUES[0]}
    assert table.select(QUEUES, turn, 100, last_broker="a") == QUEUES[1]
    table.update("b", 1, 0, failed=True, reachable=False)
    table.update("a", 1, 0, failed=True, reachable=False)
    assert table.select(QUEUES, turn, 100, last_broker="a") in QUEUES


def test_well_brokers_are_forgotten() -> None:
    """An empty table makes choosing a plain round robin again."""
    table = LatencyFaultTable()
    table.update("a", 600, 0)
    table.update("b", 1, 0, failed=True, reachable=False)
    table.prune(1_999)
    assert table.health("a") is not None
    table.prune(99_999)
    assert table.health("a") is None
    assert table.has_any
    table.forget("b")
    assert not table.has_any


def test_switched_off_it_remembers_nothing() -> None:
    """Java's default: only the last broker of this send is avoided."""
    table = LatencyFaultTable(enabled=False)
    table.update("a", 99_999, 0, failed=True)
    assert not table.has_any
    assert table.select(QUEUES, RoundRobin(), 0, last_broker="a") == QUEUES[1]


def test_a_quick_send_makes_no_pause() -> None:
    """The broker stays available."""
    table = LatencyFaultTable()
    table.update("a", 3, 1_000)
    assert table.is_available("a", 1_000)
