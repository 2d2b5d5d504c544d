"""How far groups are behind, how fast that changes, and which keys and queues are hot.

    first = take_sample(admin, ["Billing"], now_ms=...)
    second = take_sample(admin, ["Billing"], now_ms=...)      # some seconds later
    drains = drain(first, second)                            # one per group and queue
    heavy_keys(waiting), hot_queues(waiting), hot_producers(waiting)     # DataFrame to DataFrame

Rates are those between the two samples; nothing is assumed about the time before or after.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Protocol

from cometmq.errors import NoRoute, RemoteError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from cometmq.client.admin.calls import QueueProgress
    from cometmq.model import MessageQueue

__all__ = [
    "DRAINED",
    "DRAINING",
    "GROWING",
    "SHARDING_KEY",
    "STEADY",
    "STOPPED",
    "GroupBacklog",
    "GroupOffsetSample",
    "LagSample",
    "QueueBacklog",
    "advice",
    "by_group",
    "drain",
    "heavy_keys",
    "hot_producers",
    "hot_queues",
    "take_sample",
]

DRAINED: Final = "DRAINED"
DRAINING: Final = "DRAINING"
STEADY: Final = "STEADY"
GROWING: Final = "GROWING"
STOPPED: Final = "STOPPED"
#: The key that chose a message's queue, if it has one; otherwise its keys.
SHARDING_KEY: Final = "coalesce(properties['__SHARDINGKEY'], keys)"
#: A queue with this many times the median lag is hot.
_HOT: Final = 3.0
#: A producer with this share of the messages is mentioned in the advice.
_LOUD: Final = 0.5


class AdminLike(Protocol):
    """The methods of `cometmq.sync.Admin` that a sample needs."""

    def group_topics(self, group: str) -> list[str]:
        """The topics for which the group has stored offsets."""
        ...

    def group_offsets(
        self, group: str, topics: Iterable[str] | None = None
    ) -> dict[MessageQueue, QueueProgress]:
        """The group's progress by queue."""
        ...

    def consumer_list(self, group: str) -> list[str]:
        """Client ids of the online members."""
        ...


@dataclass(frozen=True, slots=True)
class GroupOffsetSample:
    """A group's offset in a queue; ``consumer_offset`` is 0 where none is stored."""

    group: str
    topic: str
    broker: str
    queue_id: int
    broker_offset: int
    consumer_offset: int


@dataclass(frozen=True, slots=True)
class LagSample:
    """All queues of the groups at one time, and each group's number of online members."""

    at_ms: int
    queues: tuple[GroupOffsetSample, ...]
    members: Mapping[str, int] = field(default_factory=dict)


def take_sample(
    admin: AdminLike, groups: Iterable[str], *, now_ms: int, topics: Sequence[str] = ()
) -> LagSample:
    """Ask the brokers once; deleted topics are left out.

    Args:
        topics: only these topics; empty for all.

    Raises:
        ClientError, RemoteError: a broker does not answer or refuses.
    """
    queues: list[GroupOffsetSample] = []
    members: dict[str, int] = {}
    for group in groups:
        try:
            members[group] = len(admin.consumer_list(group))
        except RemoteError:
            members[group] = 0
        for topic in admin.group_topics(group):
            if topics and topic not in topics:
                continue
            try:
                progress = admin.group_offsets(group, [topic])
            except NoRoute:
                continue
            queues += [
                GroupOffsetSample(
                    group,
                    topic,
                    queue.broker_name,
                    queue.queue_id,
                    reached.broker_offset,
                    max(reached.consumer_offset or 0, 0),
                )
                for queue, reached in sorted(progress.items())
            ]
    return LagSample(now_ms, tuple(queues), members)


@dataclass(frozen=True, slots=True)
class QueueBacklog:
    """A group's progress in a queue between two samples; rates are messages per second."""

    group: str
    topic: str
    broker: str
    queue_id: int
    lag: int
    consumer_offset: int
    produced_per_s: float
    drained_per_s: float

    @property
    def time_to_drain_s(self) -> float | None:
        """Seconds until no message waits, at constant rates; None for never."""
        if not self.lag:
            return 0.0
        net = self.drained_per_s - self.produced_per_s
        return self.lag / net if net > 0 else None

    @property
    def state(self) -> str:
        """DRAINED, DRAINING, STEADY, GROWING or STOPPED."""
        if not self.lag:
            return DRAINED
        if self.drained_per_s <= 0:
            return STOPPED
        net = self.drained_per_s - self.produced_per_s
        return DRAINING if net > 0 else GROWING if net < 0 else STEADY


@dataclass(frozen=True, slots=True)
class GroupBacklog:
    """A group's progress in a topic: the sums of its queues, and the slowest queue's time."""

    group: str
    topic: str
    members: int
    queues: int
    lag: int
    produced_per_s: float
    drained_per_s: float
    time_to_drain_s: float | None
    """Time of the slowest queue; None if a queue never drains."""
    state: str


def drain(first: LagSample, second: LagSample) -> list[QueueBacklog]:
    """Rates per group and queue, the greatest lag first; a queue must be in both samples.

    An offset that went back (a reset) gives a rate of 0, not a negative one.
    """
    seconds = max((second.at_ms - first.at_ms) / 1000, 0.001)
    before = {(q.group, q.topic, q.broker, q.queue_id): q for q in first.queues}
    result = []
    for queue in second.queues:
        old = before.get((queue.group, queue.topic, queue.broker, queue.queue_id))
        if old is None:
            continue
        result.append(
            QueueBacklog(
                queue.group,
                queue.topic,
                queue.broker,
                queue.queue_id,
                max(0, queue.broker_offset - queue.consumer_offset),
                queue.consumer_offset,
                max(0, queue.broker_offset - old.broker_offset) / seconds,
                max(0, queue.consumer_offset - old.consumer_offset) / seconds,
            )
        )
    return sorted(result, key=lambda q: (-q.lag, q.group, q.topic, q.broker, q.queue_id))


def by_group(queues: Sequence[QueueBacklog], members: Mapping[str, int]) -> list[GroupBacklog]:
    """One row per group and topic, the greatest lag first."""
    parts: dict[tuple[str, str], list[QueueBacklog]] = {}
    for queue in queues:
        parts.setdefault((queue.group, queue.topic), []).append(queue)
    rows = []
    for (group, topic), ours in parts.items():
        times = [queue.time_to_drain_s for queue in ours]
        lag = sum(queue.lag for queue in ours)
        produced = sum(queue.produced_per_s for queue in ours)
        drained = sum(queue.drained_per_s for queue in ours)
        whole = QueueBacklog(group, topic, "", -1, lag, 0, produced, drained)
        longest = None if None in times else max(time for time in times if time is not None)
        online = members.get(group, 0)
        rows.append(
            GroupBacklog(
                group, topic, online, len(ours), lag, produced, drained, longest, whole.state
            )
        )
    return sorted(rows, key=lambda row: (-row.lag, row.group, row.topic))


# -- keys, queues and producers of waiting messages ---------------------------------------------


def _shares(frame: DataFrame, columns: dict[str, Any], top: int) -> DataFrame:
    """The largest groups: the columns, messages, body_bytes, share of all messages."""
    from pyspark.sql import functions as F  # noqa: N812

    chosen = frame.select(
        *(c.alias(n) for n, c in columns.items()), F.octet_length("body").alias("_b")
    )
    total = chosen.agg(F.count("*").alias("_total"))
    grouped = chosen.groupBy(*columns).agg(
        F.count("*").alias("messages"), F.sum("_b").alias("body_bytes")
    )
    largest = grouped.orderBy(F.desc("messages"), *columns).limit(top)
    return (
        largest.crossJoin(F.broadcast(total))
        .withColumn("share", F.col("messages") / F.col("_total"))
        .drop("_total")
        .orderBy(F.desc("messages"), *columns)
    )


def heavy_keys(messages: DataFrame, *, top: int = 20, key: str = SHARDING_KEY) -> DataFrame:
    """The keys with the most messages: topic, key, messages, body_bytes, share.

    Args:
        messages: from the live or the store source, with properties if ``key`` uses them.
        key: a Spark SQL expression; messages without a key count together as null.
    """
    from pyspark.sql import functions as F  # noqa: N812

    return _shares(messages, {"topic": F.col("topic"), "key": F.expr(key)}, top)


def hot_queues(messages: DataFrame, *, top: int = 20) -> DataFrame:
    """The queues with the most messages: topic, broker, queueId, messages, body_bytes, share."""
    from pyspark.sql import functions as F  # noqa: N812

    return _shares(messages, {name: F.col(name) for name in ("topic", "broker", "queueId")}, top)


def hot_producers(messages: DataFrame, *, top: int = 20) -> DataFrame:
    """The hosts that sent the most: topic, producer (bornHost without port), messages, …"""
    from pyspark.sql import functions as F  # noqa: N812

    host = F.regexp_replace("bornHost", ":[0-9]+$", "")
    return _shares(messages, {"topic": F.col("topic"), "producer": host}, top)


# -- advice ---------------------------------------------------------------------------------------


def advice(
    groups: Sequence[GroupBacklog],
    queues: Sequence[QueueBacklog],
    keys: Sequence[Mapping[str, Any]] = (),
    producers: Sequence[Mapping[str, Any]] = (),
) -> list[str]:
    """Advice, one sentence each, with the figures behind it."""
    sentences: list[str] = []
    for group in groups:
        sentences += _about_members(group)
        ours = [q for q in queues if (q.group, q.topic) == (group.group, group.topic)]
        sentences += _about_queues(group, ours, [k for k in keys if k["topic"] == group.topic])
    for topic in dict.fromkeys(row["topic"] for row in producers):
        hosts = [row for row in producers if row["topic"] == topic]
        if len(hosts) > 1 and hosts[0]["share"] >= _LOUD:
            sentences.append(
                f"Producer {hosts[0]['producer']} sent {hosts[0]['share']:.0%} of the waiting "
                f"messages in {topic}: look there first if the rate is unexpected."
            )
    return sentences


def _about_members(group: GroupBacklog) -> list[str]:
    name = f"{group.group} in {group.topic}"
    sentences = []
    if group.lag and not group.members:
        return [f"{name}: no member is online and {group.lag:,} messages wait. Start consumers."]
    if group.state == STOPPED:
        return [
            f"{name}: {group.members} members are online and consumed nothing between the samples "
            f"while {group.lag:,} messages wait. Look at their handlers, or take a longer "
            "--interval."
        ]
    if group.members > group.queues:
        sentences.append(
            f"{name}: {group.members} members share {group.queues} queues, so "
            f"{group.members - group.queues} have nothing to do. Raise the queues to "
            f"{group.members}, or stop members."
        )
    if group.state == GROWING:
        factor = group.produced_per_s / group.drained_per_s
        way = (
            f"add members, up to {group.queues}, one per queue"
            if group.members < group.queues
            else "give members more threads, or the topic more queues and then members"
        )
        sentences.append(
            f"{name}: {group.produced_per_s:,.0f}/s come in and {group.drained_per_s:,.0f}/s are "
            f"consumed: it needs {factor:.1f} times the consumers' rate. Next step: {way}."
        )
    return sentences


def _about_queues(
    group: GroupBacklog, queues: Sequence[QueueBacklog], keys: Sequence[Mapping[str, Any]]
) -> list[str]:
    if len(queues) < 2 or not group.lag:
        return []
    name = f"{group.group} in {group.topic}"
    hottest = max(queues, key=lambda queue: queue.lag)
    usual = median(queue.lag for queue in queues)
    if hottest.lag <= _HOT * max(usual, 1):
        return []
    where = f"queue {hottest.broker}:{hottest.queue_id}"
    share = hottest.lag / group.lag
    heaviest = next((key for key in keys if key["key"] is not None), None)
    if heaviest is not None and heaviest["share"] > 1.5 / len(queues):
        return [
            f"{name}: {where} holds {share:.0%} of the lag, and key {heaviest['key']} is "
            f"{heaviest['share']:.0%} of the waiting messages. A key stays in one queue: "
            "choose a finer sharding key, or add a part to this one."
        ]
    return [
        f"{name}: {where} holds {share:.0%} of the lag ({hottest.lag:,}, the median is "
        f"{usual:,.0f}), and no key is heavy. Its consumer is slow or stuck: more queues will not "
        "help."
    ]
