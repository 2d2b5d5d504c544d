"""`cometmq pipeline cdc`: merges messages into a table batch by batch, and sums up the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cometmq.errors import ConfigError
from cometmq.spark.base.progress import Summary
from cometmq.spark.base.report import HtmlReport
from cometmq.spark.pipelines.cdc.events import BAD
from cometmq.spark.pipelines.cdc.state import Overview, changes, newest, overview, schema_changes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from cometmq.spark.base.progress import RunProgress
    from cometmq.spark.pipelines.base.watching import RowCounter
    from cometmq.spark.pipelines.cdc.table import Target

__all__ = ["Merger"]

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

    def report(self, summary: Summary, progress: RunProgress) -> HtmlReport:
        """The report's page."""
        page = HtmlReport("Changes merged into a table", f"Table {summary.facts['table']}.")
        page.summary(summary)
        page.heading("Columns")
        page.table([{"column": n, "type": t} for n, t in (self.target.columns() or {}).items()])
        page.heading("Changes of the table's shape")
        page.table([{"change": text} for text in self.shape])
        page.heading("Batches")
        page.bar_chart(
            "Rows in the table after each batch",
            [(f"batch {row['batch']}", float(row["rows"])) for row in self.per_batch[-60:]],
        )
        page.table(self.per_batch)
        page.heading("Events that could not be read")
        page.table(self.bad_reasons)
        page.rate_chart(progress)
        return page
