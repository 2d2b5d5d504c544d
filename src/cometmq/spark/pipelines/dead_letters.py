"""`dead-letters`: why messages died, and the selection of messages to send again.

When a consumer group has refused a message too often, its broker appends the message to the topic
`%DLQ%group`.  The property `RETRY_TOPIC` (of newer brokers also `DLQ_ORIGIN_TOPIC`) keeps the
message's first topic, `ORIGIN_MESSAGE_ID` its first id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cometmq.arrow.options import nearest
from cometmq.core.retry.dead_letters import REASON_PROPERTIES
from cometmq.errors import ConfigError, NoRoute
from cometmq.model import MessageQueue
from cometmq.model.names import DLQ_PREFIX
from cometmq.model.properties import (
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "GROUPINGS",
    "REASON_PROPERTIES",
    "Selection",
    "by_cause",
    "dead_topics",
    "explain",
    "offsets_of",
    "over_time",
    "select_dead",
]

GROUPINGS: Final = ("originTopic", "consumerGroup", "timesRefused", "tags", "reason")


@dataclass(frozen=True, slots=True)
class Selection:
    """A choice of dead messages: all conditions must hold; an empty one holds always."""

    origin_topics: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    """The reason contains one of these texts."""
    message_ids: tuple[str, ...] = ()
    """Either of a message's two ids."""
    starting_ms: int | None = None
    """Stored in the dead-letter topic at or after this time."""
    ending_ms: int | None = None
    where: str | None = None
    """A predicate in Spark's SQL over the columns of `explain`."""


def dead_topics(topics: Iterable[str], groups: Sequence[str] = ()) -> list[str]:
    """The dead-letter topics among a cluster's topics, of all groups or of some.

    Raises:
        NoRoute: a group has no dead-letter topic.
    """
    dead = sorted(topic for topic in topics if topic.startswith(DLQ_PREFIX))
    if not groups:
        return dead
    for group in groups:
        if DLQ_PREFIX + group not in dead:
            names = [topic.removeprefix(DLQ_PREFIX) for topic in dead]
            raise NoRoute(
                f"group {group!r} has no dead letters: no topic {DLQ_PREFIX}{group} among"
                f" {len(dead)} dead-letter topics{nearest(group, names)}",
            )
    return [DLQ_PREFIX + group for group in groups]


def explain(frame: Any, reason_properties: Sequence[str] = REASON_PROPERTIES) -> Any:
    """A DataFrame of dead-letter topics with columns about each message's death.

    Adds ``consumerGroup``, ``originTopic``, ``originMessageId``, ``timesRefused`` and ``reason``
    (the first of the properties that exists, otherwise null).  Needs ``properties``.
    """
    from pyspark.sql import functions as sql

    def first_of(names: Sequence[str]) -> Any:
        if not names:
            return sql.lit(None).cast("string")
        return sql.coalesce(*[sql.col("properties")[name] for name in names])

    return (
        frame.where(sql.col("topic").startswith(DLQ_PREFIX))
        .withColumn("consumerGroup", sql.substring("topic", len(DLQ_PREFIX) + 1, 255))
        .withColumn("originTopic", first_of([DLQ_ORIGIN_TOPIC, RETRY_TOPIC]))
        .withColumn("originMessageId", first_of([DLQ_ORIGIN_MESSAGE_ID, ORIGIN_MESSAGE_ID]))
        # The broker counts the last refusal when it appends the message.
        .withColumn("timesRefused", sql.col("reconsumeTimes"))
        .withColumn("reason", first_of(list(reason_properties)))
    )


def by_cause(explained: Any, groupings: Sequence[str] = GROUPINGS) -> Any:
    """Counts of `explain`'s rows by some of its columns, the most frequent first.

    Raises:
        ConfigError: there is no such column.
    """
    from pyspark.sql import functions as sql

    for name in groupings:
        if name not in explained.columns:
            usual = ", ".join(GROUPINGS)
            raise ConfigError(
                f"cannot group by {name!r}{nearest(name, explained.columns)} The usual ones are"
                f" {usual}"
            )
    return (
        explained.groupBy(*groupings)
        .agg(
            sql.count("*").alias("messages"),
            sql.min("storeTimestamp").alias("first"),
            sql.max("storeTimestamp").alias("last"),
            sql.max_by("keys", "storeTimestamp").alias("exampleKeys"),
        )
        .orderBy(sql.desc("messages"), *groupings)
    )


def over_time(explained: Any, step_ms: int) -> Any:
    """Deaths per step of time and origin topic: ``originTopic, step (seconds), messages``."""
    from pyspark.sql import functions as sql

    step_s = max(1, step_ms // 1000)
    step = (sql.unix_timestamp("storeTimestamp") / step_s).cast("long") * step_s
    return (
        explained.groupBy("originTopic", step.alias("step"))
        .agg(sql.count("*").alias("messages"))
        .orderBy("originTopic", "step")
    )


def select_dead(explained: Any, selection: Selection) -> Any:
    """The rows of `explain` that a selection chooses.

    Raises:
        ConfigError: the times are in the wrong order, or Spark refuses the predicate.
    """
    from pyspark.sql import functions as sql

    from cometmq.spark.pipelines.archive.read import ArchiveSlice, select_slice

    times = ArchiveSlice(
        starting_ms=selection.starting_ms,
        ending_ms=selection.ending_ms,
        keys=selection.keys,
        tags=selection.tags,
        where=selection.where,
    )
    times.check()
    chosen = select_slice(explained, times)
    if selection.origin_topics:
        chosen = chosen.where(sql.col("originTopic").isin(*selection.origin_topics))
    if selection.message_ids:
        ids = selection.message_ids
        own_id = sql.coalesce("uniqKey", "msgId")
        chosen = chosen.where(sql.col("originMessageId").isin(*ids) | own_id.isin(*ids))
    if selection.reasons:
        conditions = [sql.col("reason").contains(text) for text in selection.reasons]
        condition = conditions[0]
        for alternative in conditions[1:]:
            condition = condition | alternative
        chosen = chosen.where(condition)
    return chosen


def offsets_of(selected: Any) -> dict[MessageQueue, list[int]]:
    """The ascending queue offsets of the rows, by queue."""
    from pyspark.sql import functions as sql

    rows = (
        selected.groupBy("topic", "broker", "queueId")
        .agg(sql.sort_array(sql.collect_list("queueOffset")).alias("offsets"))
        .collect()
    )
    return {
        MessageQueue(row["topic"], row["broker"], row["queueId"]): list(row["offsets"])
        for row in rows
    }
