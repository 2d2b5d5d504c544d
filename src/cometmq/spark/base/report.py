"""What the pages of all pipelines share: the rate of the run, and the facts at their foot."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from cometmq.report.charts import lines

if TYPE_CHECKING:
    from collections.abc import Collection

    from cometmq.report.page import ReportPage
    from cometmq.spark.base.progress import RunProgress, Summary

__all__ = ["add_facts", "add_rate", "many"]

_POINTS_MAX: Final = 100


def add_rate(page: ReportPage, progress: RunProgress) -> None:
    """Add rows per second over the run; nothing where the run was too short to be sampled."""
    samples = progress.samples
    if len(samples) < 3:
        return
    step = max(1, len(samples) // _POINTS_MAX)
    thinned = [*samples[:-1:step], samples[-1]]
    points = [
        (late, (rows - before) / (late - early))
        for (early, before), (late, rows) in pairwise(thinned)
        if late > early
    ]
    if len(points) < 2:
        return
    mean = samples[-1][1] / samples[-1][0] if samples[-1][0] else 0
    page.section(
        f"The run read {mean:,.0f} rows a second",
        "Rows per second, over the run.",
        chart=lines(
            {"rows per second": points}, x="second of the run", y="rows per second", height=240
        ),
    )


def add_facts(page: ReportPage, summary: Summary, *, without: Collection[str] = ()) -> None:
    """Add the summary's facts to the page's foot, but for those that stand above already."""
    for line in summary.facts_as_text(without=without):
        page.condition(*line)


def many(count: int, name: str, plural: str = "") -> str:
    """``1 queue``, ``2,000 queues``."""
    return f"{count:,} {name}" if count == 1 else f"{count:,} {plural or name + 's'}"
