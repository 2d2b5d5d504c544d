"""A broker's counters: messages in and out, by topic and by group, over a minute, hour and day.

A timer takes samples of the counters.  A stored message costs nothing: new messages are counted
from the ends of the queues when a sample is taken, and messages handed out once per pull.

The windows are RocketMQ's (StatsItem): samples every 10 s for the minute, every 10 minutes for
the hour, every hour for the day; a window is the growth between its oldest and its newest sample,
and a counter's first sample is preceded by one of zero.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime
from typing import Final, NamedTuple

from cometmq.model.names import is_system_topic
from cometmq.store.message_store import MessageStore
from cometmq.wire.body.stats import StatsWindow, StatsWindows

__all__ = ["BROKER_GETS", "BROKER_PUTS", "GROUP_GETS", "SEND_BACKS", "TOPIC_PUTS", "BrokerStats"]

TOPIC_PUTS: Final = "TOPIC_PUT_NUMS"
GROUP_GETS: Final = "GROUP_GET_NUMS"
GROUP_GET_BYTES: Final = "GROUP_GET_SIZE"
SEND_BACKS: Final = "SNDBCK_PUT_NUMS"
BROKER_PUTS: Final = "BROKER_PUT_NUMS"
BROKER_GETS: Final = "BROKER_GET_NUMS"
SAMPLE_INTERVAL_MS: Final = 10_000
_MINUTE_SAMPLES: Final = 7
_HOUR_SAMPLES: Final = 7
_DAY_SAMPLES: Final = 25
_TOTAL_SAMPLES: Final = 61
"""Ten minutes and one sample: the longest of the three rates of `rates`."""
_TOPICS_AT_ONCE: Final = 500
_COUNTERS_AT_ONCE: Final = 1000
"""Topics and counters handled in one turn of the loop, so that ten thousand stall nobody."""


class _Sample(NamedTuple):
    at_ms: int
    times: int
    value: int


class _Counter:
    """A growing number, how many calls made it grow, and its samples."""

    __slots__ = ("_day", "_hour", "_minute", "times", "value")

    def __init__(self) -> None:
        self.value = 0
        self.times = 0
        self._minute: list[_Sample] = []
        self._hour: list[_Sample] = []
        self._day: list[_Sample] = []

    def sample(self, now_ms: int, turn: int) -> None:
        """Take the samples that are due in the `turn`-th interval of 10 s."""
        self._append(self._minute, now_ms, SAMPLE_INTERVAL_MS, _MINUTE_SAMPLES)
        if turn % 60 == 0:
            self._append(self._hour, now_ms, 60 * SAMPLE_INTERVAL_MS, _HOUR_SAMPLES)
        if turn % 360 == 0:
            self._append(self._day, now_ms, 360 * SAMPLE_INTERVAL_MS, _DAY_SAMPLES)

    def _append(self, samples: list[_Sample], now_ms: int, interval_ms: int, most: int) -> None:
        if not samples:
            samples.append(_Sample(now_ms - interval_ms, 0, 0))
        samples.append(_Sample(now_ms, self.times, self.value))
        if len(samples) > most:
            del samples[0]

    def windows(self) -> StatsWindows:
        """Give the growth over the last minute, hour and day."""
        return StatsWindows(_growth(self._minute), _growth(self._hour), _growth(self._day))


def _growth(samples: list[_Sample]) -> StatsWindow:
    if not samples:
        return StatsWindow()
    first, last = samples[0], samples[-1]
    value, times, span_ms = (
        last.value - first.value,
        last.times - first.times,
        last.at_ms - first.at_ms,
    )
    return StatsWindow(
        value, value * 1000 / span_ms if span_ms else 0.0, value / times if times else 0.0
    )


class _GroupGets:
    """The messages a group got from a topic, and where its last pull of each queue ended."""

    __slots__ = ("message_bytes", "messages", "pulled", "pulls")

    def __init__(self) -> None:
        self.messages = 0
        self.message_bytes = 0
        self.pulls = 0
        self.pulled: dict[int, int] = {}


class BrokerTotals(NamedTuple):
    """The counters of the whole broker at one moment."""

    at_ms: int
    put_messages: int
    get_messages: int
    successful_pulls: int
    missed_pulls: int


class BrokerStats:
    """The counters of one broker.

    Args:
        store: the ends of its queues tell how many messages came in.
        now_ms: the clock.
        cluster: the key of the broker's own counters, as in RocketMQ.
    """

    def __init__(self, store: MessageStore, now_ms: Callable[[], int], cluster: str) -> None:
        self._store = store
        self._now_ms = now_ms
        self._cluster = cluster
        self._counters: dict[tuple[str, str], _Counter] = {}
        self._gets: dict[tuple[str, str], _GroupGets] = {}
        self._forgotten_messages = self._forgotten_pulls = 0
        """Counts of groups and topics that were deleted."""
        self._timer: asyncio.TimerHandle | None = None
        self._turn = 0
        self._totals: list[BrokerTotals] = []
        self._day: date | None = None
        self.put_messages = 0
        """Messages stored since the start, up to the last sample."""
        self.put_messages_of_users = 0
        """The same, without system topics."""
        self.missed_pulls = 0
        self.put_yesterday = self.put_today = 0
        """The totals at the begin of yesterday and of today."""
        self.get_yesterday = self.get_today = 0
        self._ends = {topic: store.message_count(topic) for topic in store.topics()}

    # -- counting -------------------------------------------------------------------------

    def got(
        self,
        topic: str,
        group: str,
        queue_id: int,
        messages: int,
        message_bytes: int,
        next_queue_offset: int,
    ) -> None:
        """Count a pull that brought messages.  HOT: once per pull."""
        gets = self._gets.get((topic, group))
        if gets is None:
            gets = self._gets[topic, group] = _GroupGets()
        gets.messages += messages
        gets.message_bytes += message_bytes
        gets.pulls += 1
        gets.pulled[queue_id] = next_queue_offset

    def pulled_offset(self, topic: str, group: str, queue_id: int) -> int:
        """Give where the group's last pull of a queue ended; 0 if it got nothing since the start.

        Consumers hold the messages between the committed offset and this one.
        """
        gets = self._gets.get((topic, group))
        return 0 if gets is None else gets.pulled.get(queue_id, 0)

    @property
    def get_messages(self) -> int:
        """Messages handed out since the start."""
        return self._forgotten_messages + sum(gets.messages for gets in self._gets.values())

    @property
    def successful_pulls(self) -> int:
        """Pulls that brought messages since the start."""
        return self._forgotten_pulls + sum(gets.pulls for gets in self._gets.values())

    def sent_back(self, topic: str, group: str) -> None:
        """Count a message that a consumer sent back for another try."""
        self._add(SEND_BACKS, f"{topic}@{group}", 1)

    def _counter(self, name: str, key: str) -> _Counter:
        counter = self._counters.get((name, key))
        if counter is None:
            counter = self._counters[name, key] = _Counter()
        return counter

    def _add(self, name: str, key: str, count: int) -> None:
        counter = self._counter(name, key)
        counter.value += count
        counter.times += 1

    def _set(self, name: str, key: str, value: int, times: int) -> None:
        counter = self._counter(name, key)
        counter.value, counter.times = value, times

    def count_puts(self, topics: Iterable[str] | None = None) -> None:
        """Count the messages that came into these topics, or all, since the last call."""
        store, ends = self._store, self._ends
        new_messages = 0
        for topic in store.topics() if topics is None else topics:
            end = store.message_count(topic)
            growth = end - ends.get(topic, 0)
            if growth == 0:
                continue
            ends[topic] = end
            if growth < 0:  # the topic was deleted and created again
                growth = end
            new_messages += growth
            self._add(TOPIC_PUTS, topic, growth)
            if not is_system_topic(topic):
                self.put_messages_of_users += growth
        if new_messages:
            self.put_messages += new_messages
            self._add(BROKER_PUTS, self._cluster, new_messages)

    # -- samples --------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to take samples."""
        self._timer = asyncio.get_running_loop().call_later(SAMPLE_INTERVAL_MS / 1000, self._due)

    def stop(self) -> None:
        """Take no more samples."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> None:
        """Count and sample, one piece in each turn of the loop."""
        now_ms = self._now_ms()
        self._run(self._pieces(now_ms), now_ms + SAMPLE_INTERVAL_MS)

    def _run(self, pieces: Iterator[None], next_ms: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in pieces:
            self._timer = loop.call_later(0, self._run, pieces, next_ms)
            return
        self._timer = loop.call_later(max(0, next_ms - self._now_ms()) / 1000, self._due)

    def _pieces(self, now_ms: int) -> Iterator[None]:
        topics = self._store.topics()
        for index in range(0, len(topics), _TOPICS_AT_ONCE):
            self.count_puts(topics[index : index + _TOPICS_AT_ONCE])
            yield
        yield from self._samples(now_ms)

    def sample(self, now_ms: int) -> None:
        """Take the samples of one interval, and begin a new day where one has begun."""
        for _ in self._samples(now_ms):
            pass

    def _samples(self, now_ms: int) -> Iterator[None]:
        self._set(BROKER_GETS, self._cluster, self.get_messages, self.successful_pulls)
        for (topic, group), gets in self._gets.items():
            key = f"{topic}@{group}"
            self._set(GROUP_GETS, key, gets.messages, gets.pulls)
            self._set(GROUP_GET_BYTES, key, gets.message_bytes, gets.pulls)
        counters = list(self._counters.values())
        for index in range(0, len(counters), _COUNTERS_AT_ONCE):
            for counter in counters[index : index + _COUNTERS_AT_ONCE]:
                counter.sample(now_ms, self._turn)
            yield
        self._turn += 1
        self._totals.append(self._total(now_ms))
        del self._totals[:-_TOTAL_SAMPLES]
        today = datetime.fromtimestamp(now_ms / 1000, tz=UTC).astimezone().date()
        if self._day is not None and today != self._day:
            self.put_yesterday, self.put_today = self.put_today, self.put_messages_of_users
            self.get_yesterday, self.get_today = self.get_today, self.get_messages
        self._day = today

    def _total(self, now_ms: int) -> BrokerTotals:
        return BrokerTotals(
            now_ms, self.put_messages, self.get_messages, self.successful_pulls, self.missed_pulls
        )

    # -- answers --------------------------------------------------------------------------

    def windows(self, name: str, key: str) -> StatsWindows | None:
        """Give the windows of a counter; None if it never counted anything."""
        if name == TOPIC_PUTS:
            self.count_puts((key,))
        elif name == BROKER_PUTS:
            self.count_puts()
        elif name in (GROUP_GETS, GROUP_GET_BYTES):
            topic, _, group = key.partition("@")
            if (topic, group) in self._gets:
                self._counter(name, key)
        counter = self._counters.get((name, key))
        return None if counter is None else counter.windows()

    def totals(self, name: str) -> dict[str, int]:
        """Give a counter's totals since the start, by key."""
        return {key: count.value for (kind, key), count in self._counters.items() if kind == name}

    def group_gets(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Give the messages and bytes that each group got from each topic since the start."""
        return {key: (gets.messages, gets.message_bytes) for key, gets in self._gets.items()}

    def put_tps(self, topic: str) -> float:
        """Messages a second into a topic over the last minute."""
        counter = self._counters.get((TOPIC_PUTS, topic))
        return 0.0 if counter is None else counter.windows().minute.tps

    def get_tps(self, topic: str, group: str) -> float:
        """Messages a second to a group over the last minute."""
        counter = self._counters.get((GROUP_GETS, f"{topic}@{group}"))
        return 0.0 if counter is None else counter.windows().minute.tps

    def rates(self, pick: Callable[[BrokerTotals], int]) -> str:
        """Three rates as RocketMQ writes them: over 10 s, a minute and ten minutes."""
        texts = []
        for count in (2, 7, 61):
            totals = self._totals[-count:]
            span_ms = totals[-1].at_ms - totals[0].at_ms if totals else 0
            new_messages = pick(totals[-1]) - pick(totals[0]) if totals else 0
            texts.append(f"{new_messages * 1000 / span_ms:.2f}" if span_ms > 0 else "0.0")
        return " ".join(texts)

    def forget_topic(self, topic: str) -> None:
        """Drop the counters of a deleted topic."""
        self._ends.pop(topic, None)
        self._forget(lambda key: key == topic or key.startswith(f"{topic}@"))

    def forget_group(self, group: str) -> None:
        """Drop the counters of a deleted group."""
        self._forget(lambda key: key.endswith(f"@{group}"))

    def _forget(self, matches: Callable[[str], bool]) -> None:
        for name, key in [pair for pair in self._counters if matches(pair[1])]:
            del self._counters[name, key]
        for topic, group in [pair for pair in self._gets if matches("@".join(pair))]:
            gets = self._gets.pop((topic, group))
            self._forgotten_messages += gets.messages
            self._forgotten_pulls += gets.pulls
