"""Rates, times and advice from samples of offsets."""

from __future__ import annotations

from typing import Any

from cometmq.spark.pipelines.backlog.lag import (
    DRAINED,
    DRAINING,
    GROWING,
    STEADY,
    STOPPED,
    GroupOffsetSample,
    LagSample,
    QueueBacklog,
    advice,
    by_group,
    drain,
)


def sample(at_ms: int, *places: tuple[int, int], members: int = 1) -> LagSample:
    """Queues 0, 1, … of one group at (broker offset, consumer offset)."""
    queues = [
        GroupOffsetSample("G", "T", "broker-a", queue_id, *place)
        for queue_id, place in enumerate(places)
    ]
    return LagSample(at_ms, tuple(queues), {"G": members})


def told(first: LagSample, second: LagSample, keys: Any = (), producers: Any = ()) -> str:
    """The advice as one text."""
    queues = drain(first, second)
    return "\n".join(advice(by_group(queues, second.members), queues, keys, producers))


def test_rates_are_those_between_the_samples() -> None:
    """100 in and 150 out in 10 s, 450 left: 90 s at 5 a second."""
    (queue,) = drain(sample(0, (1000, 500)), sample(10_000, (1100, 650)))
    assert (queue.produced_per_s, queue.drained_per_s, queue.lag) == (10.0, 15.0, 450)
    assert queue.time_to_drain_s == 90.0
    assert queue.state == DRAINING


def test_states() -> None:
    """Every relation of the two rates has its word, and only a shrinking lag a time."""

    def state(produced: float, drained: float, lag: int) -> tuple[str, float | None]:
        queue = QueueBacklog("G", "T", "b", 0, lag, 0, produced, drained)
        return queue.state, queue.time_to_drain_s

    assert state(5, 5, 0) == (DRAINED, 0.0)
    assert state(5, 10, 10) == (DRAINING, 2.0)
    assert state(5, 5, 10) == (STEADY, None)
    assert state(6, 5, 10) == (GROWING, None)
    assert state(0, 0, 10) == (STOPPED, None)


def test_a_reset_is_no_negative_rate() -> None:
    """Offsets that went back count as no progress; a queue that came meanwhile is left out."""
    (queue,) = drain(sample(0, (100, 90)), sample(1000, (100, 10), (5, 0)))
    assert (queue.queue_id, queue.drained_per_s, queue.lag) == (0, 0.0, 90)


def test_a_group_takes_as_long_as_its_slowest_queue() -> None:
    """Not as the sum of its queues says, and never if one never drains."""
    first = sample(0, (100, 0), (100, 90))
    (group,) = by_group(drain(first, sample(1000, (100, 10), (100, 99))), {"G": 1})
    assert (group.lag, group.time_to_drain_s) == (91, 9.0)
    (stuck,) = by_group(drain(first, sample(1000, (100, 0), (100, 99))), {"G": 1})
    assert stuck.time_to_drain_s is None
    assert stuck.state == DRAINING


def test_advice_names_the_cause_and_the_next_step() -> None:
    """No member, no progress, too many members, too slow: each with its figures."""
    assert "no member is online and 90 messages wait" in told(
        sample(0, (100, 0)), sample(1000, (100, 10), members=0)
    )
    assert "consumed nothing between the samples" in told(sample(0, (9, 1)), sample(1000, (9, 1)))
    assert "3 members share 1 queues, so 2 have nothing to do" in told(
        sample(0, (9, 9)), sample(1000, (9, 9), members=3)
    )
    growing = told(sample(0, (0, 0), (0, 0)), sample(1000, (20, 5), (20, 5)))
    assert "it needs 4.0 times the consumers' rate" in growing
    assert "add members, up to 2, one per queue" in growing
    assert "more threads" in told(sample(0, (0, 0)), sample(1000, (20, 5)))
    assert told(sample(0, (9, 9)), sample(1000, (9, 9))) == ""


def test_a_hot_queue_is_blamed_on_its_key_or_on_its_consumer() -> None:
    """A heavy key explains one hot queue; without one its consumer does."""
    first = sample(0, (1000, 0), (10, 5), (10, 5))
    second = sample(1000, (1000, 10), (10, 8), (10, 8))
    heavy = [{"topic": "T", "key": "shop-1", "share": 0.9}]
    assert "key shop-1 is 90% of the waiting messages" in told(first, second, heavy)
    light = [{"topic": "T", "key": "shop-1", "share": 0.01}]
    assert "Its consumer is slow or stuck" in told(first, second, light)
    assert "queue broker-a:0" in told(first, second)


def test_a_loud_producer_is_named_where_there_are_others() -> None:
    """One producer alone is no finding."""
    loud = {"topic": "T", "producer": "10.0.0.7", "share": 0.8}
    quiet = {"topic": "T", "producer": "10.0.0.8", "share": 0.2}
    idle = (sample(0, (9, 9)), sample(1000, (9, 9)))
    assert "Producer 10.0.0.7 sent 80%" in told(*idle, producers=[loud, quiet])
    assert told(*idle, producers=[{**loud, "share": 1.0}]) == ""
