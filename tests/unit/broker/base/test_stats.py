"""Counters: read off the queues, sampled as RocketMQ samples, forgotten with topic and group."""

from typing import cast

from cometmq.broker.base.stats import (
    BROKER_GETS,
    BROKER_PUTS,
    GROUP_GETS,
    SEND_BACKS,
    TOPIC_PUTS,
    BrokerStats,
)
from cometmq.store.message_store import MessageStore
from cometmq.wire.body.stats import StatsWindow

T0_MS = 1_795_262_400_000
TICK_MS = 10_000


class Ends:
    """Stands in for a store: how many messages each topic was given."""

    def __init__(self, **ends: int) -> None:
        self.ends = ends

    def topics(self) -> list[str]:
        return sorted(self.ends)

    def message_count(self, topic: str) -> int:
        return self.ends.get(topic, 0)


def make(ends: Ends) -> BrokerStats:
    return BrokerStats(cast("MessageStore", ends), lambda: T0_MS, "cluster")


def windows_of(stats: BrokerStats, name: str, key: str) -> tuple[StatsWindow, ...]:
    found = stats.windows(name, key)
    assert found is not None
    return found.minute, found.hour, found.day


def test_only_what_comes_after_the_start_counts() -> None:
    """A topic's past is not traffic; without traffic there is no counter."""
    ends = Ends(old=100)
    stats = make(ends)
    assert stats.windows(TOPIC_PUTS, "old") is None
    ends.ends["old"] += 5
    ends.ends["SCHEDULE_TOPIC_XXXX"] = 2
    stats.count_puts()
    assert (stats.put_messages, stats.put_messages_of_users) == (7, 5)
    assert windows_of(stats, TOPIC_PUTS, "old") == (StatsWindow(),) * 3
    assert stats.windows(TOPIC_PUTS, "unheard") is None
    assert stats.windows("NO_SUCH_STATS", "old") is None


def test_windows_grow_and_slide() -> None:
    """The first sample is preceded by zero; a minute holds seven samples, and then slides."""
    ends = Ends(t=0)
    stats = make(ends)
    ends.ends["t"] = 50
    stats.count_puts()
    stats.sample(T0_MS)
    minute, hour, day = windows_of(stats, TOPIC_PUTS, "t")
    assert (minute.sum, minute.tps) == (50, 5.0)
    assert (hour.sum, day.sum) == (50, 50)
    assert stats.put_tps("t") == 5.0
    for tick in range(1, 6):
        ends.ends["t"] += 10
        stats.count_puts()
        stats.sample(T0_MS + tick * TICK_MS)
    assert windows_of(stats, TOPIC_PUTS, "t")[0] == StatsWindow(100, 100 / 60, 100 / 6)
    for tick in range(6, 13):
        stats.sample(T0_MS + tick * TICK_MS)
    minute, hour, day = windows_of(stats, TOPIC_PUTS, "t")
    assert minute == StatsWindow()
    assert (hour.sum, day.sum) == (50, 50), "the next sample of the hour is ten minutes later"
    for tick in range(13, 61):
        stats.sample(T0_MS + tick * TICK_MS)
    assert windows_of(stats, TOPIC_PUTS, "t")[1].sum == 100
    assert windows_of(stats, BROKER_PUTS, "cluster")[1].sum == 100


def test_pulls_are_counted_by_group() -> None:
    """Messages, calls and their mean; misses only for the broker."""
    stats = make(Ends(t=0))
    stats.got("t", "g", 0, 32, 4096, 7)
    stats.got("t", "g", 0, 8, 1024, 7)
    stats.got("t", "h", 0, 1, 10, 7)
    stats.missed_pulls += 3
    stats.sent_back("t", "g")
    stats.sample(T0_MS)
    assert windows_of(stats, GROUP_GETS, "t@g")[0] == StatsWindow(40, 4.0, 20.0)
    assert windows_of(stats, "GROUP_GET_SIZE", "t@g")[0].sum == 5120
    assert windows_of(stats, SEND_BACKS, "t@g")[0].sum == 1
    assert windows_of(stats, BROKER_GETS, "cluster")[0] == StatsWindow(41, 4.1, 41 / 3)
    assert (stats.get_messages, stats.successful_pulls) == (41, 3)
    assert stats.get_tps("t", "g") == 4.0
    assert stats.get_tps("t", "nobody") == 0.0
    assert stats.pulled_offset("t", "g", 0) == 7
    assert (stats.pulled_offset("t", "g", 1), stats.pulled_offset("u", "g", 0)) == (0, 0)


def test_rates_of_the_broker() -> None:
    """Three spans: ten seconds, a minute, ten minutes, as far as samples reach."""
    ends = Ends(t=0)
    stats = make(ends)
    assert stats.rates(lambda total: total.put_messages) == "0.0 0.0 0.0"
    for tick in range(8):
        stats.count_puts()
        stats.sample(T0_MS + tick * TICK_MS)
        ends.ends["t"] += 100 if tick < 7 else 0
    text = stats.rates(lambda total: total.put_messages)
    assert text == "10.00 10.00 10.00"
    stats.sample(T0_MS + 8 * TICK_MS)
    assert stats.rates(lambda total: total.put_messages) == "0.00 8.33 8.75"


def test_a_day_begins_at_midnight() -> None:
    """Totals of the mornings move when the local date does."""
    ends = Ends(t=0)
    stats = make(ends)
    day_ms = 86_400_000
    for day, count in enumerate((10, 30, 60)):
        ends.ends["t"] = count
        stats.got("t", "g", 0, count, 1, 7)
        stats.count_puts()
        stats.sample(T0_MS + day * day_ms)
    assert (stats.put_yesterday, stats.put_today, stats.put_messages_of_users) == (30, 60, 60)
    assert (stats.get_yesterday, stats.get_today, stats.get_messages) == (40, 100, 100)


def test_deleted_topics_and_groups_are_forgotten() -> None:
    """Their counters go; a topic made again under the name counts from its own beginning."""
    ends = Ends(t=0, u=0)
    stats = make(ends)
    ends.ends.update(t=9, u=1)
    stats.count_puts()
    stats.got("t", "g", 0, 1, 1, 7)
    stats.got("t", "h", 0, 1, 1, 7)
    stats.got("u", "g", 0, 1, 1, 7)
    stats.forget_topic("t")
    del ends.ends["t"]
    assert stats.windows(TOPIC_PUTS, "t") is None
    assert stats.windows(GROUP_GETS, "t@g") is None
    assert stats.windows(GROUP_GETS, "u@g") is not None
    stats.forget_group("g")
    assert stats.windows(GROUP_GETS, "u@g") is None
    ends.ends["t"] = 4
    stats.got("t", "g", 0, 2, 2, 7)
    stats.sample(T0_MS)
    stats.count_puts()
    assert (stats.put_messages, stats.get_messages, stats.successful_pulls) == (14, 5, 4)
    assert windows_of(stats, GROUP_GETS, "t@g")[0].sum == 2


def test_a_shorter_queue_is_a_new_one() -> None:
    """A topic deleted and made again between two samples adds what it holds now."""
    ends = Ends(t=100)
    stats = make(ends)
    ends.ends["t"] = 3
    stats.count_puts()
    assert stats.put_messages == 3
