"""`cometmq pipeline cdc`: merges messages into a table batch by batch, and sums up the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cometmq.errors import ConfigError
from cometmq.report.charts import columns, lines
from cometmq.report.page import ReportPage
from cometmq.spark.base.progress import Summary
from cometmq.spark.base.report import add_facts, add_rate, many
from cometmq.spark.pipelines.cdc.events import BAD
from cometmq.spark.pipelines.cdc.state import Overview, changes, newest, overview, schema_changes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from cometmq.spark.base.progress import RunProgress
    from cometmq.spark.pipelines.base.watching import RowCounter
    from cometmq.spark.pipelines.cdc.table import Target

__all__ = ["Merger"]

_BATCHES: Final = 60
_EXAMPLES: Final = 20


@dataclass(slots=True)
class Merger:
    """Merges batches of messages into one table and counts its changes.

    Args:
        target: the table.
        key_columns: its key; empty to take the key from Canal's events.
        table: only changes of this ``database.table`` (or bare table name).
        columns: columns and types of the table; None to take them from the events.
    """

    target: Target
    key_columns: tuple[str, ...] = ()
    table: str | None = None
    columns: dict[str, str] | None = None
    changes: int = 0
    """Changed rows, statements and unreadable events; an event may have several rows."""
    upserts: int = 0
    deletes: int = 0
    bad: int = 0
    batches: int = 0
    repeated_batches: int = 0
    row_count: int = 0
    shape: list[str] = field(default_factory=list)
    """The changes of the table's columns, a sentence each."""
    bad_reasons: list[dict[str, Any]] = field(default_factory=list)
    per_batch: list[dict[str, Any]] = field(default_factory=list)

    def take(
        self,
        messages: DataFrame,
        stream: str = "",
        batch_id: int = -1,
        *,
        counter: RowCounter | None = None,
    ) -> None:
        """Merge one batch, unless the table already has it.

        Raises:
            ConfigError: the changes are of several tables or do not fit the table.
        """
        if stream:
            done = self.target.applied(stream)
            if done is not None and batch_id <= done:
                self.repeated_batches += 1
                return
        changed = changes(messages, key_columns=self.key_columns, counter=counter).persist()
        try:
            self._take(changed, stream, batch_id)
        finally:
            changed.unpersist()

    def _take(self, changed: DataFrame, stream: str, batch_id: int) -> None:
        from pyspark.sql import functions as F  # noqa: N812

        if self.table is not None:
            full = F.concat_ws(".", "database", "table")
            is_ours = (full == self.table) | (F.col("table") == self.table)
            chosen = changed.where(is_ours | (F.col("op") == BAD))
        else:
            chosen = changed
        seen = overview(chosen)
        self._check_table(changed, seen)
        before = self.target.columns()
        columns = self.columns or seen.columns
        shape = schema_changes(before, {**(before or {}), **columns}, seen.statements)
        if self.columns is not None:
            shape += [f"column {n} is left out" for n in seen.columns if n not in self.columns]
        if seen.upserts + seen.deletes:
            news = newest(chosen)
            self.row_count = self.target.apply(news, columns, stream=stream, batch_id=batch_id)
        self._add(seen, shape, batch_id)

    def _check_table(self, changed: DataFrame, seen: Overview) -> None:
        if len(seen.tables) > 1:
            raise ConfigError(
                f"the changes are of {len(seen.tables)} tables "
                f"({', '.join(sorted(seen.tables)[:5])}): choose one with --table"
            )
        if not seen.tables and self.table is not None and not self.batches:
            tables = sorted(overview(changed).tables)
            if tables:
                raise ConfigError(
                    f"no change is of table {self.table}; there are {', '.join(tables[:5])}"
                )

    def _add(self, seen: Overview, shape: list[str], batch_id: int) -> None:
        count = seen.upserts + seen.deletes + seen.ddl + seen.bad_count
        if not count:
            # A stream begins with an empty batch that saves its first offsets.
            return
        self.batches += 1
        self.changes += count
        self.upserts += seen.upserts
        self.deletes += seen.deletes
        self.bad += seen.bad_count
        self.bad_reasons += seen.bad[: max(0, _EXAMPLES - len(self.bad_reasons))]
        self.shape += [sentence for sentence in shape if sentence not in self.shape]
        self.per_batch.append(
            {
                "batch": batch_id if batch_id >= 0 else len(self.per_batch),
                "upserts": seen.upserts,
                "deletes": seen.deletes,
                "ddl": seen.ddl,
                "bad": seen.bad_count,
                "rows": self.row_count,
            }
        )

    def summary(self, path: str, progress: RunProgress) -> Summary:
        """The summary; unreadable events are faults, since the table may lack their changes."""
        facts: dict[str, Any] = {
            "table": path,
            "rows": self.row_count,
            "changes": self.changes,
            "upserts": self.upserts,
            "deletes": self.deletes,
            "batches": self.batches,
            "repeated_batches": self.repeated_batches,
            "schema_changes": self.shape,
            "bad_events": self.bad,
            **progress.reach_facts(),
            "seconds": round(progress.seconds, 3),
        }
        faults = [
            f"{row['count']:,} events could not be read: {row['example']}"
            for row in self.bad_reasons
        ]
        return Summary("cdc", facts, faults)

    def answer(self) -> str:
        """What was merged and what was not, in one sentence."""
        if not self.changes:
            return f"No change came; the table has {many(self.row_count, 'row')}"
        unread = f"; {many(self.bad, 'event')} could not be read" if self.bad else ""
        return (
            f"{many(self.upserts, 'upsert')} and {many(self.deletes, 'delete')} are merged; the "
            f"table has {many(self.row_count, 'row')}{unread}"
        )

    def report(self, summary: Summary, progress: RunProgress) -> ReportPage:
        """The report's page."""
        page = ReportPage(
            "What changed in the table?",
            self.answer(),
            f"Change events merged into {summary.facts['table']}.",
            summary.faults,
        )
        page.figure("Rows in the table", self.row_count)
        page.figure("Upserts", self.upserts)
        page.figure("Deletes", self.deletes)
        page.figure("Batches", self.batches, f"{self.repeated_batches:,} repeated and left out")
        page.figure("Unreadable events", self.bad)
        recent = self.per_batch[-_BATCHES:]
        if recent:
            numbers = [str(row["batch"]) for row in recent]
            kinds = {"upserts": "upserts", "deletes": "deletes", "ddl": "DDL", "bad": "unreadable"}
            page.section(
                f"Changes of the last {many(len(recent), 'batch', 'batches')}",
                "Changes by batch.",
                chart=columns(
                    numbers,
                    {
                        text: [float(row[kind]) for row in recent]
                        for kind, text in kinds.items()
                        if any(row[kind] for row in recent)
                    },
                    unit="changes",
                    name="batch",
                ),
                half=True,
            )
            page.section(
                f"The table went from {recent[0]['rows']:,} to {many(recent[-1]['rows'], 'row')}",
                "Rows in the table after each batch.",
                chart=lines(
                    {"rows": [(float(row["batch"]), float(row["rows"])) for row in recent]},
                    x="batch",
                    y="rows",
                    steps=True,
                    height=280,
                ),
                half=True,
            )
        page.section(
            f"{many(len(self.shape), 'change')} of the table's shape",
            rows=[{"change": text} for text in self.shape] if self.shape else None,
        )
        columns_now = self.target.columns() or {}
        page.section(
            f"The table has {many(len(columns_now), 'column')}",
            rows=[{"column": name, "type": kind} for name, kind in columns_now.items()],
        )
        if self.bad_reasons:
            page.section("Events that could not be read", rows=self.bad_reasons)
        add_rate(page, progress)
        add_facts(page, summary)
        return page
