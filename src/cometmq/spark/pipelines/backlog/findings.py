"""The findings of `cometmq pipeline backlog`: rates, skew and advice as a summary and a page."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from cometmq.report.charts import bars
from cometmq.report.page import ReportPage
from cometmq.report.texts import duration_text
from cometmq.spark.base.progress import Summary
from cometmq.spark.base.report import add_facts, add_rate, many
from cometmq.spark.pipelines.backlog.lag import (
    GROWING,
    SHARDING_KEY,
    STEADY,
    STOPPED,
    GroupBacklog,
    LagSample,
    QueueBacklog,
    advice,
    by_group,
    drain,
    heavy_keys,
    hot_producers,
    hot_queues,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from cometmq.spark.base.progress import RunProgress
    from cometmq.spark.base.reach import Ranges

__all__ = ["BacklogFindings", "read_waiting", "waiting_ranges"]


def waiting_ranges(queues: Sequence[QueueBacklog]) -> Ranges:
    """The waiting queue offsets: each queue from the slowest group's offset on."""
    ranges: Ranges = {}
    for queue in queues:
        if queue.lag:
            name = f"{queue.topic} {queue.broker}:{queue.queue_id}"
            begin = queue.consumer_offset
            before = ranges.get(name, (begin, begin))
            ranges[name] = (min(begin, before[0]), max(begin + queue.lag, before[1]))
    return ranges


def read_waiting(
    spark: SparkSession, queues: Sequence[QueueBacklog], options: dict[str, str]
) -> DataFrame | None:
    """The waiting messages: each queue from the slowest group's offset on; None if none waits."""
    starts: dict[str, dict[str, int]] = {}
    for name, (start, _) in waiting_ranges(queues).items():
        topic, _, queue = name.rpartition(" ")
        starts.setdefault(topic, {})[queue] = start
    if not starts:
        return None
    assigned = {topic: sorted(queues_of) for topic, queues_of in starts.items()}
    reader = spark.read.format("cometmq").option("assign", json.dumps(assigned))
    reader = reader.option("startingOffsets", json.dumps(starts, sort_keys=True))
    # Messages that expired meanwhile no longer wait.
    reader = reader.option("includeProperties", "true").option("failOnDataLoss", "false")
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


@dataclass(slots=True)
class BacklogFindings:
    """The findings; `skew` adds those that need the messages themselves."""

    seconds_between: float
    groups: list[GroupBacklog]
    queues: list[QueueBacklog]
    keys: list[dict[str, Any]] = field(default_factory=list)
    waiting_queues: list[dict[str, Any]] = field(default_factory=list)
    producers: list[dict[str, Any]] = field(default_factory=list)
    waiting: int = 0
    sampled_ms: int = 0
    """Time of the second sample."""
    oldest_ms: int | None = None
    """Store time of the oldest waiting message; None where none was read."""

    @classmethod
    def of(cls, first: LagSample, second: LagSample) -> BacklogFindings:
        """From two samples."""
        queues = drain(first, second)
        return cls(
            (second.at_ms - first.at_ms) / 1000,
            by_group(queues, second.members),
            queues,
            sampled_ms=second.at_ms,
        )

    @property
    def oldest_seconds(self) -> float | None:
        """Age of the oldest waiting message at the second sample."""
        if self.oldest_ms is None:
            return None
        return max(0.0, (self.sampled_ms - self.oldest_ms) / 1000)

    def skew(self, messages: DataFrame, *, top: int = 20, key: str = SHARDING_KEY) -> None:
        """Heavy keys, hot queues and hot producers among the waiting messages."""
        from pyspark.sql import functions as F  # noqa: N812

        frame = messages.select(
            "topic",
            "broker",
            "queueId",
            "keys",
            "properties",
            "bornHost",
            "body",
            "storeTimestamp",
        ).persist()
        try:
            self.waiting_queues = _rows(hot_queues(frame, top=top))
            self.keys = _rows(heavy_keys(frame, top=top, key=key))
            self.producers = _rows(hot_producers(frame, top=top))
            counted = frame.agg(F.count("*"), F.min(F.unix_millis("storeTimestamp")))
            self.waiting, self.oldest_ms = counted.collect()[0]
        finally:
            frame.unpersist()

    def advice(self) -> list[str]:
        """The advice, one sentence each."""
        return advice(self.groups, self.queues, self.keys, self.producers)

    def group_rows(self) -> list[dict[str, Any]]:
        """Rows of the table of groups."""
        return [
            {
                "group": row.group,
                "topic": row.topic,
                "members": row.members,
                "queues": row.queues,
                "lag": row.lag,
                "in_per_s": round(row.produced_per_s, 1),
                "out_per_s": round(row.drained_per_s, 1),
                "drains_in_s": None
                if row.time_to_drain_s is None
                else round(row.time_to_drain_s, 1),
                "state": row.state,
            }
            for row in self.groups
        ]

    def queue_rows(self) -> list[dict[str, Any]]:
        """Rows of the table of queues."""
        return [
            {
                **asdict(row),
                "produced_per_s": round(row.produced_per_s, 1),
                "drained_per_s": round(row.drained_per_s, 1),
                "drains_in_s": None
                if row.time_to_drain_s is None
                else round(row.time_to_drain_s, 1),
                "state": row.state,
            }
            for row in self.queues
        ]

    def summary(self, name_server: str, progress: RunProgress) -> Summary:
        """The summary."""
        facts: dict[str, Any] = {
            "name_server": name_server,
            "between_samples_seconds": self.seconds_between,
            "groups": len({row.group for row in self.groups}),
            "queues": len(self.queues),
            "lag": sum(row.lag for row in self.groups),
            "messages_examined": self.waiting,
            "oldest_waiting_seconds": self.oldest_seconds,
            "advice": self.advice(),
            **progress.reach_facts(),
            "seconds": round(progress.seconds, 3),
        }
        return Summary("backlog", facts)

    def as_json(self, summary: Summary) -> dict[str, Any]:
        """The summary and the tables as a JSON object."""
        return {
            **summary.as_json(),
            "by_group": self.group_rows(),
            "by_queue": self.queue_rows(),
            "heavy_keys": self.keys,
            "hot_queues": self.waiting_queues,
            "hot_producers": self.producers,
        }

    def answer(self) -> str:
        """Where the backlog is, in one sentence."""
        if not self.groups or not self.groups[0].lag:
            groups = many(len({row.group for row in self.groups}), "group")
            return f"No message waits: {groups} read to the end"
        worst = self.groups[0]
        queue = next(
            row for row in self.queues if (row.group, row.topic) == (worst.group, worst.topic)
        )
        part = (
            ""
            if worst.queues == 1
            else f", {queue.lag / worst.lag:.0%} of them in queue {queue.broker}:{queue.queue_id}"
        )
        waiting = "message waits" if worst.lag == 1 else "messages wait"
        return f"{worst.lag:,} {waiting} for {worst.group} in {worst.topic}{part}; {_trend(worst)}"

    def report(self, summary: Summary, progress: RunProgress) -> ReportPage:
        """The report's page."""
        page = ReportPage(
            "Where is the backlog?",
            self.answer(),
            f"Offsets were read twice, {self.seconds_between:.1f} seconds apart; rates are those "
            "between the two readings.",
            summary.faults,
        )
        for text in self.advice():
            page.advise(text)
        worst = self.groups[0] if self.groups else None
        page.figure("Waiting messages", sum(row.lag for row in self.groups), "of all groups")
        if worst is not None:
            page.figure("Arriving", f"{_rate(worst.produced_per_s)}/s", f"in {worst.topic}")
            page.figure("Consumed", f"{_rate(worst.drained_per_s)}/s", f"by {worst.group}")
            time = worst.time_to_drain_s
            page.figure(
                "Time to drain",
                "never" if time is None else duration_text(time),
                "for the slowest queue, at these rates",
            )
            page.figure("Members online", worst.members, f"for {many(worst.queues, 'queue')}")
        if self.oldest_seconds is not None:
            page.figure(
                "Oldest waiting message", duration_text(self.oldest_seconds), "since stored"
            )
        self._lag_sections(page)
        for names, label, rows in (
            ("key", "key", self.keys),
            ("queue", "queueId", self.waiting_queues),
            ("producer", "producer", self.producers),
        ):
            if rows:
                _share_section(page, names, label, rows)
        add_rate(page, progress)
        # The advice is above.
        add_facts(page, summary, without=("advice",))
        return page

    def _lag_sections(self, page: ReportPage) -> None:
        behind = [row for row in self.groups if row.lag]
        title = f"Backlog in {len(behind)} of {many(len(self.groups), 'subscription')}"
        groups = [(f"{row.group} in {row.topic}", float(row.lag)) for row in behind]
        page.section(
            title if groups else "No group is behind",
            "Waiting messages by group and topic." if groups else "",
            chart=bars(groups, unit="messages", name="group") if groups else None,
            rows=self.group_rows(),
        )
        lagging = [row for row in self.queues if row.lag]
        if lagging:
            page.section(
                f"Backlog in {len(lagging)} of {many(len(self.queues), 'queue')}",
                "Waiting messages by group and queue, the longest first.",
                chart=bars(
                    [
                        (f"{row.group}: {row.topic} {row.broker}:{row.queue_id}", float(row.lag))
                        for row in lagging
                    ],
                    unit="messages",
                    name="queue",
                ),
                rows=self.queue_rows(),
            )


def _trend(group: GroupBacklog) -> str:
    net = group.produced_per_s - group.drained_per_s
    if group.state == STOPPED:
        grows = f", and {_rate(net)} more come in each second" if net > 0 else ""
        return f"nothing was consumed{grows}"
    if group.state == GROWING:
        return f"the backlog grows by {_rate(net)} a second"
    if group.state == STEADY:
        return "the backlog neither grows nor shrinks"
    if group.time_to_drain_s is None:
        return f"the backlog shrinks by {_rate(-net)} a second, but one queue does not"
    return f"nothing waits any more in {duration_text(group.time_to_drain_s)}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:,.1f}"


def _share_section(
    page: ReportPage, names: str, label: str, rows: Sequence[dict[str, Any]]
) -> None:
    def named(row: dict[str, Any]) -> str:
        text = "(none)" if row[label] is None else str(row[label])
        text = f"{row['broker']}:{text}" if "broker" in row else text
        return f"{text} of {row['topic']}"

    page.section(
        f"{rows[0]['share']:.0%} of the waiting messages: {names} {named(rows[0])}",
        f"Waiting messages by {names}.",
        chart=bars(
            [(named(row), float(row["messages"])) for row in rows], unit="messages", name=names
        ),
        rows=[{**row, "share": f"{row['share']:.1%}"} for row in rows],
        half=True,
    )


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]
