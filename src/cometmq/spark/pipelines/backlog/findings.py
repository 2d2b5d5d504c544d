"""The findings of `cometmq pipeline backlog`: rates, skew and advice as a summary and a page."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from cometmq.spark.base.progress import Summary
from cometmq.spark.base.report import HtmlReport
from cometmq.spark.pipelines.backlog.lag import (
    SHARDING_KEY,
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

    @classmethod
    def of(cls, first: LagSample, second: LagSample) -> BacklogFindings:
        """From two samples."""
        queues = drain(first, second)
        return cls((second.at_ms - first.at_ms) / 1000, by_group(queues, second.members), queues)

    def skew(self, messages: DataFrame, *, top: int = 20, key: str = SHARDING_KEY) -> None:
        """Heavy keys, hot queues and hot producers among the waiting messages."""
        frame = messages.select(
            "topic", "broker", "queueId", "keys", "properties", "bornHost", "body"
        ).persist()
        try:
            self.waiting_queues = _rows(hot_queues(frame, top=top))
            self.keys = _rows(heavy_keys(frame, top=top, key=key))
            self.producers = _rows(hot_producers(frame, top=top))
            self.waiting = frame.count()
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

    def report(self, summary: Summary, progress: RunProgress) -> HtmlReport:
        """The report's page."""
        page = HtmlReport(
            "BacklogFindings",
            f"Two samples of offsets, {self.seconds_between:.1f} seconds apart, and the waiting "
            "messages.",
        )
        page.heading("What to do")
        for text in self.advice() or ["Nothing needs attention."]:
            page.text(text)
        # The advice is above.
        facts = {name: value for name, value in summary.facts.items() if name != "advice"}
        page.summary(Summary(summary.pipeline, facts, summary.faults, summary.report_path))
        page.heading("Groups")
        page.table(self.group_rows())
        page.bar_chart(
            "Lag by group", [(f"{r.group} in {r.topic}", float(r.lag)) for r in self.groups[:40]]
        )
        page.heading("Queues")
        page.bar_chart(
            "Lag by queue",
            [
                (f"{r.group} {r.topic} {r.broker}:{r.queue_id}", float(r.lag))
                for r in self.queues[:40]
            ],
        )
        page.table(self.queue_rows())
        for title, names, label, rows in (
            ("Heavy keys among the waiting messages", "key", "key", self.keys),
            ("Hot queues among the waiting messages", "queue", "queueId", self.waiting_queues),
            ("Hot producers of the waiting messages", "producer", "producer", self.producers),
        ):
            page.heading(title)
            chart = [(f"{r['topic']} {r[label]}", float(r["messages"])) for r in rows]
            page.bar_chart(f"Messages by {names}", chart, unit="messages")
            page.table([{**row, "share": f"{row['share']:.1%}"} for row in rows])
        page.rate_chart(progress)
        return page


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]
