"""The findings of `cometmq pipeline trace`: answers from journeys, as Parquet, summary and page."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cometmq.errors import ConfigError
from cometmq.report.charts import bars, stacked_bars
from cometmq.report.page import ReportPage
from cometmq.report.texts import duration_text
from cometmq.spark.base.progress import Summary
from cometmq.spark.base.report import add_facts, add_rate, many
from cometmq.spark.pipelines.trace.journeys import (
    DELIVERY_LATENCY,
    bad_records,
    consumed_repeatedly,
    failed,
    journeys,
    latencies,
    never_consumed,
    slowest,
    trace_steps,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from cometmq.spark.base.progress import RunProgress
    from cometmq.spark.pipelines.base.watching import RowCounter

__all__ = ["TraceFindings", "check_fresh", "examine"]

_SLOWEST: Final = 20
#: A part of a journey to its column in `slowest`.
_TIMES: Final = {
    "send": "send_ms",
    "wait in the queue": "queue_ms",
    "handler": "handler_ms",
    "wait for retries": "retry_ms",
}
_PARTS: Final = ("journeys", "latencies", "never_consumed", "consumed_repeatedly")


def check_fresh(out: str | None) -> None:
    """Check that a directory is empty or new, before anything is read.

    Raises:
        ConfigError: it is not empty.
    """
    if out is not None and Path(out).exists() and any(Path(out).iterdir()):
        raise ConfigError(f"{out} is not empty: results need an empty directory")


@dataclass(slots=True)
class TraceFindings:
    """Counts and lists; a list holds the first ``list_max`` rows."""

    steps: int = 0
    messages: int = 0
    never_consumed_count: int = 0
    repeated_count: int = 0
    failed_count: int = 0
    retried_count: int = 0
    bad: list[dict[str, Any]] = field(default_factory=list)
    latencies: list[dict[str, Any]] = field(default_factory=list)
    slowest: list[dict[str, Any]] = field(default_factory=list)
    never_consumed: list[dict[str, Any]] = field(default_factory=list)
    repeated: list[dict[str, Any]] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)
    out: str | None = None

    @property
    def bad_count(self) -> int:
        """The number of unreadable records."""
        return sum(int(row["count"]) for row in self.bad)

    def summary(self, source: str, progress: RunProgress) -> Summary:
        """The summary. Lost and repeated messages are findings, not faults of the run."""
        facts: dict[str, Any] = {
            "source": source,
            "trace_records": self.steps,
            "messages": self.messages,
            "never_consumed": self.never_consumed_count,
            "consumed_repeatedly": self.repeated_count,
            "failed": self.failed_count,
            "retried": self.retried_count,
            "bad_records": self.bad_count,
            "out": self.out,
            **progress.reach_facts(),
            "seconds": round(progress.seconds, 3),
        }
        return Summary("trace", facts)

    def as_json(self, summary: Summary) -> dict[str, Any]:
        """The summary and the lists as a JSON object."""
        return {
            **summary.as_json(),
            "latencies": self.latencies,
            "slowest_messages": self.slowest,
            "never_consumed_messages": self.never_consumed,
            "consumed_repeatedly_messages": self.repeated,
            "failed_messages": self.failed,
            "bad_reasons": self.bad,
        }

    def answer(self) -> str:
        """Which journey was slow and where its time went, in one sentence."""
        if not self.messages:
            return "The trace has no message"
        if not self.slowest:
            return f"None of {many(self.messages, 'message')} has a traced delivery"
        worst = self.slowest[0]
        total = duration_text(worst["total_ms"] / 1000)
        part = max(_TIMES, key=lambda name: worst[_TIMES[name]])
        share = worst[_TIMES[part]] / max(worst["total_ms"], 1)
        return (
            f"The slowest of {many(self.messages, 'message')} took {total} to {worst['groupName']}:"
            f" {share:.0%} of it was {_PART_TEXTS[part]}"
        )

    def report(self, summary: Summary, progress: RunProgress) -> ReportPage:
        """The report's page."""
        page = ReportPage(
            "Which traces were slow, and where did their time go?",
            self.answer(),
            "From the traces of producers and consumers. Delivery is the time from the start of a "
            "send to the start of the first consumption, by the clocks of two machines.",
            summary.faults,
        )
        page.figure("Messages", self.messages, f"{self.steps:,} trace records")
        delivery = [row for row in self.latencies if row["measure"] == DELIVERY_LATENCY]
        if delivery:
            late = max(delivery, key=lambda row: row["p99_ms"])
            to = f"{late['topic']} to {late['group']}"
            page.figure("Slowest delivery, p99", f"{late['p99_ms']:,} ms", to)
        page.figure("Never consumed", self.never_consumed_count, "stored, and no delivery traced")
        page.figure("Consumed twice or more", self.repeated_count, "by one group, with success")
        page.figure("Failed at last", self.failed_count, "last delivery without success")
        page.figure("Retried", self.retried_count, "delivered again after a failure")
        if self.slowest:
            page.section(
                f"Where the time of the {many(len(self.slowest), 'slowest journey')} went",
                "Milliseconds from the start of the send to the end of the last consumption, by "
                "key or message id.",
                chart=stacked_bars(
                    [
                        f"{row['keys'] or row['msgId']} to {row['groupName']}"
                        for row in self.slowest
                    ],
                    {
                        name: [row[column] for row in self.slowest]
                        for name, column in _TIMES.items()
                    },
                    unit="ms",
                    name="message",
                ),
                rows=self.slowest,
            )
        if delivery:
            ranked = sorted(delivery, key=lambda row: -row["p99_ms"])
            page.section(
                f"99 of 100 messages reach {ranked[0]['group']} within {ranked[0]['p99_ms']:,} ms",
                "Delivery by topic and group, 99th percentile in milliseconds, the slowest first; "
                "the table has all measures.",
                chart=bars(
                    [(f"{row['topic']} to {row['group']}", float(row["p99_ms"])) for row in ranked],
                    unit="ms",
                    name="delivery",
                ),
                rows=self.latencies,
            )
        for title, count, rows in (
            ("produced and never consumed", self.never_consumed_count, self.never_consumed),
            ("consumed more than once by a group", self.repeated_count, self.repeated),
            ("failed in a group", self.failed_count, self.failed),
        ):
            page.section(
                f"{many(count, 'message')} {title}",
                rows=[_with_times(row) for row in rows] if count else None,
            )
        if self.bad:
            page.section(f"{many(self.bad_count, 'trace record')} could not be read", rows=self.bad)
        add_rate(page, progress)
        add_facts(page, summary)
        return page


def _with_times(row: dict[str, Any]) -> dict[str, Any]:
    """A row in which ms since 1970 are a time (UTC)."""
    made = row.get("producedMs")
    if made is None:
        return row
    text = datetime.fromtimestamp(made / 1000, UTC).isoformat(" ", "milliseconds")
    return {
        "produced" if name == "producedMs" else name: text[:23] if name == "producedMs" else value
        for name, value in row.items()
    }


_PART_TEXTS: Final = {
    "send": "the send",
    "wait in the queue": "the wait in the queue",
    "handler": "in the handler",
    "wait for retries": "the wait for retries",
}


def examine(
    messages: DataFrame,
    *,
    grace_ms: int = 0,
    group: str | None = None,
    list_max: int = 100,
    out: str | None = None,
    counter: RowCounter | None = None,
) -> TraceFindings:
    """Compute the findings about the messages of a trace topic.

    Args:
        messages: with a column ``body``.
        grace_ms: messages produced this shortly before the trace's end may still be in flight.
        group: "never consumed" means by this group; None for any group.
        list_max: the most rows of each list.
        out: an empty directory for Parquet: journeys, latencies and two lists.
        counter: counts the bodies, for progress.
    """
    check_fresh(out)
    steps = trace_steps(messages, counter).persist()
    journey_rows = journeys(steps).persist()
    result = TraceFindings(out=out)
    try:
        _answer(result, steps, journey_rows, grace_ms, group, list_max)
        if out is not None:
            parts = (
                journey_rows,
                latencies(journey_rows),
                never_consumed(journey_rows, grace_ms=grace_ms, group=group),
            )
            for name, frame in zip(
                _PARTS, (*parts, consumed_repeatedly(journey_rows)), strict=True
            ):
                frame.write.parquet(f"{out}/{name}")
    finally:
        journey_rows.unpersist()
        steps.unpersist()
    return result


def _answer(
    result: TraceFindings,
    steps: DataFrame,
    journey_rows: DataFrame,
    grace_ms: int,
    group: str | None,
    list_max: int,
) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    result.steps = steps.count()
    result.bad = [row.asDict() for row in bad_records(steps).limit(list_max).collect()]
    counts = journey_rows.agg(F.count("*"), F.count(F.when(F.col("retries") > 0, 1))).collect()[0]
    result.messages, result.retried_count = counts[0], counts[1]
    result.latencies = [
        {
            "topic": row["topic"],
            "group": row["groupName"],
            "measure": row["measure"],
            "messages": row["messages"],
            "p50_ms": row["p50"],
            "p90_ms": row["p90"],
            "p99_ms": row["p99"],
            "max_ms": row["max"],
        }
        for row in latencies(journey_rows).collect()
    ]
    result.slowest = [row.asDict() for row in slowest(journey_rows, top=_SLOWEST).collect()]
    lost = never_consumed(journey_rows, grace_ms=grace_ms, group=group)
    result.never_consumed_count, result.never_consumed = _listed(
        lost, ("msgId", "topic", "keys", "producerGroup", "producedMs", "storeHost"), list_max
    )
    in_group = ("msgId", "topic", "keys", "groupName", "deliveries", "successes", "retries")
    result.repeated_count, result.repeated = _listed(
        consumed_repeatedly(journey_rows), in_group, list_max
    )
    result.failed_count, result.failed = _listed(
        failed(journey_rows), (*in_group, "result"), list_max
    )


def _listed(
    frame: DataFrame, columns: tuple[str, ...], list_max: int
) -> tuple[int, list[dict[str, Any]]]:
    """(number of rows, the oldest rows)."""
    rows = frame.orderBy("producedMs", "msgId").limit(list_max).collect()
    # The length of a complete list is the count.
    count = len(rows) if len(rows) < list_max else frame.count()
    return count, [{name: row[name] for name in columns} for row in rows]
