"""`cometmq pipeline reconcile`: runs the comparison, batch or stream, and sums up differences."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cometmq.errors import ConfigError
from cometmq.report.charts import bars, columns
from cometmq.report.page import ReportPage
from cometmq.spark.base.progress import Summary
from cometmq.spark.base.report import add_facts, add_rate, many
from cometmq.spark.pipelines.base.following import follow
from cometmq.spark.pipelines.reconcile.differences import (
    KINDS,
    by_window,
    differences,
    duration_s,
    matched,
    timeless,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from pyspark.sql import DataFrame

    from cometmq.spark.base.progress import RunProgress
    from cometmq.spark.base.reach import Extent

__all__ = ["Reconciling", "check_out"]

_EXAMPLES: Final = 200
_WINDOWS_MAX: Final = 100
_KIND_TEXTS: Final = {
    "MISSING_LEFT": "missing on the left",
    "MISSING_RIGHT": "missing on the right",
    "DIFFERENT": "different",
    "DUPLICATE_LEFT": "more than once on the left",
    "DUPLICATE_RIGHT": "more than once on the right",
    "LATE": "late",
    "NO_KEY": "without a key",
}


def check_out(out: str | None, *, stream: bool) -> None:
    """Check the directory for differences before anything is read.

    A stream continues in the directory of its earlier batches; a batch run needs an empty one.

    Raises:
        ConfigError: the directory holds other things.
    """
    if out is None or not Path(out).exists():
        return
    names = sorted(path.name for path in Path(out).iterdir())
    strange = [name for name in names if not (stream and name.startswith("batch="))]
    if strange:
        raise ConfigError(f"{out} is not empty ({strange[0]}): differences need an empty directory")


@dataclass(slots=True)
class Reconciling:
    """One comparison and its counts.

    Args:
        late, on_time, window: durations such as ``10m`` (see `differences`).
        out: a directory for the differences as Parquet, or None.

    Raises:
        ConfigError: a duration is none, or ``on_time`` is longer than ``late``.
    """

    late: str
    on_time: str | None = None
    window: str = "1h"
    out: str | None = None
    left_records: int = 0
    right_records: int = 0
    compared_keys: int = 0
    equal_keys: int = 0
    without_time: int = 0
    dropped_late: int = 0
    open_groups: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    windows: Counter[tuple[datetime, str]] = field(default_factory=Counter)
    examples: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for text in (self.late, self.window, *([self.on_time] if self.on_time else [])):
            duration_s(text)
        if self.on_time is not None and duration_s(self.on_time) > duration_s(self.late):
            raise ConfigError(
                f"on time ({self.on_time}) cannot be later than late ({self.late}): records further"
                " apart than that do not belong together"
            )

    @property
    def is_equal(self) -> bool:
        """Whether the sides are equal."""
        return not self.counts and not self.without_time and not self.dropped_late

    def batch(self, sides: DataFrame, watched: DataFrame | None = None) -> None:
        """Compare all records; ``watched`` are the same sides with counted rows."""
        self.without_time += sum(row["count"] for row in timeless(sides).collect())
        self._take(matched(sides if watched is None else watched, late=self.late), self.out)

    def stream(
        self,
        sides: DataFrame,
        *,
        checkpoint: str,
        once: bool,
        every: str = "5 seconds",
        progress: RunProgress | None = None,
        extents: Sequence[Extent] = (),
    ) -> None:
        """Compare records as they come; a group is compared when the watermarks have passed it.

        With ``once`` the run ends after the records that exist now; groups that wait for later
        records stay in the checkpoint for the next run (`open_groups`).

        Raises:
            CometError, ConfigError: see `follow`.
        """
        from pyspark.sql import functions as F  # noqa: N812

        watched = sides.observe(
            "sides", F.count(F.when(F.col("_time").isNull(), 1)).alias("without_time")
        )

        def take(batch: DataFrame, stream: str, batch_id: int) -> None:
            # A batch that is repeated after a crash overwrites its own directory.
            out = None if self.out is None else f"{self.out}/batch={batch_id:08d}"
            self._take(batch, out)

        followed = follow(
            matched(watched, late=self.late),
            take,
            checkpoint=checkpoint,
            once=once,
            every=every,
            progress=progress,
            extents=extents,
        )
        self.dropped_late += sum(followed.dropped_late.values())
        self.without_time += sum(
            metrics.get("without_time", 0) for metrics in followed.observed.values()
        )
        self.open_groups = followed.open_groups

    def _take(self, groups: DataFrame, out: str | None) -> None:
        from pyspark.sql import functions as F  # noqa: N812

        groups = groups.persist()
        try:
            total = groups.agg(
                F.coalesce(F.sum("left_count"), F.lit(0)),
                F.coalesce(F.sum("right_count"), F.lit(0)),
                F.count("*"),
            ).collect()[0]
            self.left_records += total[0]
            self.right_records += total[1]
            self.compared_keys += total[2]
            differing = differences(groups, on_time=self.on_time).persist()
            try:
                wrong = self._count(differing)
                if out is not None and wrong:
                    differing.write.mode("overwrite").parquet(out)
            finally:
                differing.unpersist()
            self.equal_keys += total[2] - wrong
        finally:
            groups.unpersist()

    def _count(self, differing: DataFrame) -> int:
        """Add up the differences; returns how many groups have one."""
        for row in by_window(differing, self.window).collect():
            self.counts[row["kind"]] += row["count"]
            self.windows[row["window_start"], row["kind"]] += row["count"]
        room = _EXAMPLES - len(self.examples)
        if room > 0 and self.counts:
            rows = differing.orderBy("time", "key", "kind").limit(room).collect()
            self.examples += [row.asDict() for row in rows]
        return differing.select("key", "time").distinct().count()

    # -- summary and report ------------------------------------------------------------------------

    def summary(self, left: str, right: str, progress: RunProgress) -> Summary:
        """The summary; each kind of difference is a fault."""
        facts: dict[str, Any] = {
            "left": left,
            "right": right,
            "left_records": self.left_records,
            "right_records": self.right_records,
            "compared_keys": self.compared_keys,
            "equal_keys": self.equal_keys,
            **{kind.lower(): self.counts[kind] for kind in KINDS},
            "without_time": self.without_time,
            "dropped_late": self.dropped_late,
            "open_groups": self.open_groups,
            "differences_path": self.out if self.counts else None,
            **progress.reach_facts(),
            "seconds": round(progress.seconds, 3),
        }
        faults = [
            f"{self.counts[kind]:,} {_KIND_TEXTS[kind]}{self._first(kind)}"
            for kind in KINDS
            if self.counts[kind]
        ]
        if self.without_time:
            faults.append(f"{self.without_time:,} records have no event time")
        if self.dropped_late:
            faults.append(
                f"{self.dropped_late:,} records were more than {self.late} late: not compared"
            )
        return Summary("reconcile", facts, faults)

    def _first(self, kind: str) -> str:
        for row in self.examples:
            if row["kind"] == kind and row["key"] is not None:
                return f", for example key {row['key']} at {row['time']:%Y-%m-%d %H:%M:%S}"
        return ""

    def answer(self, left: str, right: str) -> str:
        """What differs, in one sentence."""
        if self.is_equal:
            return f"{left} and {right} hold the same {many(self.compared_keys, 'record')}"
        parts = [
            f"{self.counts[kind]:,} {_KIND_TEXTS[kind]}" for kind in KINDS if self.counts[kind]
        ]
        if self.without_time:
            parts.append(f"{self.without_time:,} without an event time")
        if self.dropped_late:
            parts.append(f"{self.dropped_late:,} too late to compare")
        wrong = self.compared_keys - self.equal_keys
        return f"{wrong:,} of {many(self.compared_keys, 'record')} differ: {', '.join(parts)}"

    def report(self, summary: Summary, progress: RunProgress) -> ReportPage:
        """The report's page."""
        left, right = summary.facts["left"], summary.facts["right"]
        page = ReportPage(
            "What differs between the two sources?",
            self.answer(left, right),
            f"Left: {left}. Right: {right}. Records of one key belong together within {self.late}.",
            summary.faults,
        )
        share = self.equal_keys / self.compared_keys if self.compared_keys else 0
        page.figure("Compared", self.compared_keys, "keys")
        page.figure("Equal", self.equal_keys, f"{share:.2%}")
        page.figure("Left", self.left_records, "records")
        page.figure("Right", self.right_records, "records")
        if self.open_groups:
            page.figure("Still open", self.open_groups, "wait for later records")
        kinds = [(_KIND_TEXTS[kind], self.counts[kind]) for kind in KINDS if self.counts[kind]]
        if kinds:
            ranked = sorted(kinds, key=lambda item: -item[1])
            page.section(
                f"Most of them are {ranked[0][0]}"
                if len(ranked) > 1
                else f"All are {ranked[0][0]}",
                "Differences by kind.",
                chart=bars(
                    [(text, float(count)) for text, count in ranked], unit="records", name="kind"
                ),
                half=True,
            )
            self._windows(page)
            page.section(
                f"The first {many(len(self.examples), 'difference')}",
                rows=[
                    {name: _shown(value) for name, value in row.items()} for row in self.examples
                ],
            )
        add_rate(page, progress)
        add_facts(page, summary)
        return page

    def _all_windows(self) -> list[datetime]:
        """The windows with differences, and those between them while they are few."""
        starts = sorted({start for start, _ in self.windows})
        step = timedelta(seconds=duration_s(self.window))
        count = (starts[-1] - starts[0]) // step + 1
        if count > _WINDOWS_MAX:
            return starts
        return [starts[0] + number * step for number in range(count)]

    def _windows(self, page: ReportPage) -> None:
        starts = self._all_windows()
        form = "%H:%M" if len({start.date() for start in starts}) == 1 else "%m-%d %H:%M"
        sums = {start: sum(self.windows[start, kind] for kind in KINDS) for start in starts}
        worst = max(starts, key=sums.__getitem__)
        present = [kind for kind in KINDS if self.counts[kind]]
        page.section(
            f"{worst:%Y-%m-%d %H:%M} has the most: {sums[worst]:,}",
            f"Differences by window of {self.window} of event time.",
            chart=columns(
                [f"{start:{form}}" for start in starts],
                {
                    _KIND_TEXTS[kind]: [float(self.windows[start, kind]) for start in starts]
                    for kind in present
                },
                unit="differences",
                name="window",
            ),
            half=True,
        )


def _shown(value: Any) -> Any:
    return value.isoformat(" ") if hasattr(value, "isoformat") else value
