"""The journey of every traced message: who produced it, who consumed it, how long it took.

    steps = trace_steps(bodies)              # one row per traced step, bad records with a reason
    rows = journeys(steps)                   # one row per message
    latencies(rows); never_consumed(rows); consumed_repeatedly(rows); failed(rows)

The message id (the client's unique id) joins the steps of a message; message id and request id
join the two steps of a delivery.  A message that only one side traced has a row too; the missing
producer, or the missing end of a delivery, is null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cometmq.errors import ConfigError
from cometmq.spark.pipelines.trace.contexts import BAD, SCHEMA, parse_contexts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import Column, DataFrame

    from cometmq.spark.pipelines.base.watching import RowCounter

__all__ = [
    "CONSUME_LATENCY",
    "DELIVERY_LATENCY",
    "SEND_LATENCY",
    "TRACE_TOPIC",
    "bad_records",
    "consumed_repeatedly",
    "failed",
    "journeys",
    "latencies",
    "never_consumed",
    "slowest",
    "trace_steps",
]

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
SEND_LATENCY: Final = "send"
DELIVERY_LATENCY: Final = "delivery"
CONSUME_LATENCY: Final = "consume"
_PERCENTILES: Final = (0.5, 0.9, 0.99)
#: 1/accuracy is the error of a percentile's rank; exact up to ten thousand values.
_ACCURACY: Final = 10_000
_STEPS_DDL: Final = (
    "kind string, timeMs bigint, region string, groupName string, topic string, msgId string, "
    "tags string, keys string, storeHost string, bodyBytes bigint, costMs bigint, "
    "msgType string, offsetMsgId string, success boolean, requestId string, retryTimes bigint, "
    "result string, transactionId string, state string, clientHost string, reason string"
)


def trace_steps(messages: DataFrame, counter: RowCounter | None = None) -> DataFrame:
    """One row per traced step in the column ``body`` of ``messages`` (see `contexts`).

    Args:
        counter: counts the bodies, for progress.

    Raises:
        ConfigError: there is no such column of bytes.
    """
    kinds = dict(messages.dtypes)
    if kinds.get("body") not in ("binary", "string"):
        raise ConfigError(
            f"the trace topic needs a column body of type binary; there are {', '.join(kinds)}"
        )
    assert len(_STEPS_DDL.split(",")) == len(SCHEMA.names)

    def parse(batches: Iterable[Any]) -> Iterator[Any]:
        """Runs in Spark's workers."""
        for batch in batches:
            yield parse_contexts(batch.column(0))
            if counter is not None:
                counter.add(len(batch))

    return messages.select("body").mapInArrow(parse, _STEPS_DDL)


def bad_records(steps: DataFrame) -> DataFrame:
    """Unreadable records: ``reason``, ``count`` and ``example``, the most frequent first."""
    from pyspark.sql import functions as F  # noqa: N812

    kind = F.substring_index("reason", ":", 1)
    bad = steps.where(F.col("kind") == BAD).groupBy(kind.alias("reason"))
    return bad.agg(F.count("*").alias("count"), F.min(steps["reason"]).alias("example")).orderBy(
        F.desc("count"), "reason"
    )


def _when(kind: str, name: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.when(F.col("kind") == kind, F.col(name))


def _deliveries(steps: DataFrame) -> DataFrame:
    """One row per delivery of a message to a consumer, from its two steps."""
    from pyspark.sql import functions as F  # noqa: N812

    started = F.min(_when("SubBefore", "timeMs"))
    cost = F.max(_when("SubAfter", "costMs"))
    paired = steps.where(F.col("kind").isin("SubBefore", "SubAfter"))
    return paired.groupBy("msgId", "requestId").agg(
        # Go writes the bare group in both steps; Java's SubAfter may have none: prefer the first.
        F.coalesce(
            F.max(_when("SubBefore", "groupName")), F.max(_when("SubAfter", "groupName"))
        ).alias("groupName"),
        F.max(_when("SubBefore", "retryTimes")).alias("retryTimes"),
        F.max("keys").alias("keys"),
        started.alias("startedMs"),
        F.coalesce(F.max(_when("SubAfter", "timeMs")), started + cost).alias("finishedMs"),
        cost.alias("costMs"),
        F.max(_when("SubAfter", "success")).alias("success"),
        F.max(_when("SubAfter", "result")).alias("result"),
        F.max(F.when(F.col("kind") == "SubBefore", F.col("clientHost"))).alias("clientHost"),
    )


def _consumers(steps: DataFrame) -> DataFrame:
    """One row per message: the groups that received it, each with its results."""
    from pyspark.sql import functions as F  # noqa: N812

    latest = F.struct(
        F.coalesce("startedMs", "finishedMs").alias("at"), F.col("success"), F.col("result")
    )
    per_group = (
        _deliveries(steps)
        .groupBy("msgId", "groupName")
        .agg(
            F.count("*").alias("deliveries"),
            F.count(F.when(F.col("success"), 1)).alias("successes"),
            F.max("retryTimes").alias("retries"),
            F.min("startedMs").alias("firstStartedMs"),
            F.max("finishedMs").alias("lastFinishedMs"),
            F.sum("costMs").alias("costMs"),
            F.max(latest).alias("last"),
            F.max("keys").alias("keys"),
        )
    )
    return per_group.groupBy("msgId").agg(
        F.max("keys").alias("consumedKeys"),
        F.sort_array(
            F.collect_list(
                F.struct(
                    "groupName",
                    "deliveries",
                    "successes",
                    "retries",
                    "firstStartedMs",
                    "lastFinishedMs",
                    "costMs",
                    F.col("last.success").alias("success"),
                    F.col("last.result").alias("result"),
                )
            )
        ).alias("consumers"),
    )


def _productions(steps: DataFrame) -> DataFrame:
    """One row per message: its send, the end of its transaction, whether it was recalled."""
    from pyspark.sql import functions as F  # noqa: N812

    columns = (
        "timeMs",
        "topic",
        "groupName",
        "tags",
        "keys",
        "storeHost",
        "offsetMsgId",
        "bodyBytes",
        "costMs",
        "msgType",
        "success",
        "clientHost",
    )
    first = F.min(F.when(F.col("kind") == "Pub", F.struct(*columns)))
    ended = F.max(F.when(F.col("kind") == "EndTransaction", F.struct("timeMs", "state")))
    recalled = F.max(F.when(F.col("kind") == "Recall", F.col("success")))
    side = steps.where(F.col("kind").isin("Pub", "EndTransaction", "Recall"))
    grouped = side.groupBy("msgId").agg(
        first.alias("p"),
        F.count(_when("Pub", "timeMs")).alias("sends"),
        ended.alias("e"),
        F.coalesce(recalled, F.lit(False)).alias("recalled"),
        F.max("topic").alias("anyTopic"),
    )
    return grouped.select(
        "msgId",
        F.coalesce("p.topic", "anyTopic").alias("topic"),
        F.col("p.groupName").alias("producerGroup"),
        F.col("p.timeMs").alias("producedMs"),
        F.col("p.costMs").alias("sendCostMs"),
        F.col("p.success").alias("sent"),
        "sends",
        F.col("p.storeHost").alias("storeHost"),
        F.col("p.offsetMsgId").alias("offsetMsgId"),
        F.col("p.clientHost").alias("producerHost"),
        F.col("p.msgType").alias("msgType"),
        F.col("p.bodyBytes").alias("bodyBytes"),
        F.col("p.tags").alias("tags"),
        F.col("p.keys").alias("producedKeys"),
        F.col("e.state").alias("transactionState"),
        "recalled",
    )


def journeys(steps: DataFrame) -> DataFrame:
    """One row per message: its producer, its consumers and their results.

    Columns: msgId, topic, keys, tags, msgType, bodyBytes, producerGroup, producerHost, producedMs,
    sendCostMs, sent, sends, storeHost, offsetMsgId, transactionState, recalled, deliveries,
    retries, consumers (array of groupName, deliveries, successes, retries, firstStartedMs,
    lastFinishedMs, costMs, success, result).  Times are ms since 1970, costs ms.
    """
    from pyspark.sql import functions as F  # noqa: N812

    made = _productions(steps)
    both = made.join(_consumers(steps), "msgId", "full_outer")
    none = F.array().cast(
        "array<struct<groupName:string,deliveries:bigint,successes:bigint,retries:bigint,"
        "firstStartedMs:bigint,lastFinishedMs:bigint,costMs:bigint,success:boolean,result:string>>"
    )
    consumers = F.coalesce("consumers", none)
    return both.select(
        "msgId",
        "topic",
        F.coalesce("producedKeys", "consumedKeys").alias("keys"),
        "tags",
        "msgType",
        "bodyBytes",
        "producerGroup",
        "producerHost",
        "producedMs",
        "sendCostMs",
        "sent",
        F.coalesce("sends", F.lit(0)).alias("sends"),
        "storeHost",
        "offsetMsgId",
        "transactionState",
        F.coalesce("recalled", F.lit(False)).alias("recalled"),
        F.expr(
            "coalesce(aggregate(consumers, 0L, (total, group) -> total + group.deliveries), 0L)"
        ).alias("deliveries"),
        F.coalesce(F.array_max("consumers.retries"), F.lit(0)).alias("retries"),
        consumers.alias("consumers"),
    )


def never_consumed(
    journey_rows: DataFrame, *, grace_ms: int = 0, group: str | None = None
) -> DataFrame:
    """Stored messages without a traced delivery to any group (or to ``group``).

    Left out are recalled messages, uncommitted transactions, and messages produced in the last
    ``grace_ms`` before the newest step of the trace.
    """
    from pyspark.sql import functions as F  # noqa: N812

    seen = F.size("consumers") > 0
    if group is not None:
        seen = F.exists("consumers", lambda consumer: consumer["groupName"] == group)
    is_half = F.col("msgType") == "TRANSACTION_HALF"
    is_open = is_half & (F.coalesce("transactionState", F.lit("")) != "COMMIT_MESSAGE")
    chosen = journey_rows.where(
        F.col("sent") & ~F.col("recalled") & ~seen & ~F.coalesce(is_open, F.lit(False))
    )
    if grace_ms:
        newest = journey_rows.agg(
            F.max(F.greatest("producedMs", F.array_max("consumers.lastFinishedMs"))).alias(
                "newestMs"
            )
        )
        chosen = chosen.crossJoin(F.broadcast(newest))
        chosen = chosen.where(F.col("producedMs") <= F.col("newestMs") - grace_ms).drop("newestMs")
    return chosen.drop("consumers", "deliveries", "retries")


def _by_group(journey_rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    return journey_rows.select(
        "msgId",
        "topic",
        "keys",
        "producedMs",
        "sendCostMs",
        F.explode("consumers").alias("consumer"),
    ).select("msgId", "topic", "keys", "producedMs", "sendCostMs", "consumer.*")


def consumed_repeatedly(journey_rows: DataFrame) -> DataFrame:
    """Messages that a group consumed with success more than once, a row per message and group.

    In a broadcasting group this is normal: each member consumes every message.
    """
    from pyspark.sql import functions as F  # noqa: N812

    return _by_group(journey_rows).where(F.col("successes") > 1)


def failed(journey_rows: DataFrame) -> DataFrame:
    """Messages whose last delivery to a group did not succeed, a row per message and group."""
    from pyspark.sql import functions as F  # noqa: N812

    return _by_group(journey_rows).where((F.col("successes") == 0) & F.col("success").isNotNull())


def slowest(journey_rows: DataFrame, *, top: int) -> DataFrame:
    """The journeys that took longest, a row per message and group, and where their time went.

    Columns: msgId, topic, keys, groupName, deliveries, total_ms (start of the send to the end of
    the last consumption), and its parts: send_ms (the producer waited for its broker), queue_ms
    (stored, until the first consumption began), handler_ms (in the handler, all deliveries),
    retry_ms (between the deliveries).  Messages without a traced begin or end have no length.
    """
    from pyspark.sql import functions as F  # noqa: N812

    zero = F.lit(0).cast("bigint")
    total = F.greatest(F.col("lastFinishedMs") - F.col("producedMs"), zero)
    waited = F.greatest(F.col("firstStartedMs") - F.col("producedMs"), zero)
    send = F.least(F.coalesce("sendCostMs", zero), waited)
    handler = F.least(F.coalesce("costMs", zero), total - waited)
    known = _by_group(journey_rows).where(
        F.col("producedMs").isNotNull()
        & F.col("firstStartedMs").isNotNull()
        & F.col("lastFinishedMs").isNotNull()
    )
    return (
        known.select(
            "msgId",
            "topic",
            "keys",
            "groupName",
            "deliveries",
            total.alias("total_ms"),
            send.alias("send_ms"),
            (waited - send).alias("queue_ms"),
            handler.alias("handler_ms"),
            (total - waited - handler).alias("retry_ms"),
        )
        .orderBy(F.desc("total_ms"), "msgId", "groupName")
        .limit(top)
    )


def latencies(journey_rows: DataFrame) -> DataFrame:
    """Percentiles in ms: rows of (topic, groupName, measure, messages, p50, p90, p99, max).

    ``send`` is the time that a producer waited for its broker.  ``delivery`` is the time from the
    start of the send to the start of the first consumption (by the clocks of two machines; a
    negative one counts as 0).  ``consume`` is the time in the handler, summed over deliveries.
    """
    from pyspark.sql import functions as F  # noqa: N812

    topic = F.coalesce("topic", F.lit("(not traced)")).alias("topic")
    sends = journey_rows.where(F.col("sendCostMs").isNotNull()).select(
        topic,
        F.col("producerGroup").alias("groupName"),
        F.lit(SEND_LATENCY).alias("measure"),
        F.col("sendCostMs").alias("value"),
    )
    groups = _by_group(journey_rows)
    # `greatest` skips nulls: without a producer's step the time is unknown, not 0.
    waited = F.when(
        F.col("producedMs").isNotNull() & F.col("firstStartedMs").isNotNull(),
        F.greatest(F.col("firstStartedMs") - F.col("producedMs"), F.lit(0)),
    )
    values = sends.unionByName(
        groups.select(
            topic, "groupName", F.lit(DELIVERY_LATENCY).alias("measure"), waited.alias("value")
        )
    ).unionByName(
        groups.select(
            topic,
            "groupName",
            F.lit(CONSUME_LATENCY).alias("measure"),
            F.col("costMs").alias("value"),
        )
    )
    cut = F.percentile_approx("value", list(_PERCENTILES), _ACCURACY)
    return (
        values.where(F.col("value").isNotNull())
        .groupBy("topic", "groupName", "measure")
        .agg(F.count("*").alias("messages"), cut.alias("cut"), F.max("value").alias("max"))
        .select(
            "topic",
            "groupName",
            "measure",
            "messages",
            F.col("cut")[0].alias("p50"),
            F.col("cut")[1].alias("p90"),
            F.col("cut")[2].alias("p99"),
            "max",
        )
        .orderBy("topic", "groupName", "measure")
    )
