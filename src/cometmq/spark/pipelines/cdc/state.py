"""Change events merged into the state of a table, as DataFrames.

    changed = changes(messages, key_columns=("id",))     # one row per changed row
    state = merged(None, newest(changed))                # one row per key, deleted ones marked
    rows(state, columns)                                 # the table itself, typed

The state has one row per key (as JSON text).  It keeps deleted keys with their version, so that an
older update that arrives after the delete does not bring the row back.  Merging compares versions
only: the order of arrival does not matter, and a repeated event changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cometmq.errors import ConfigError
from cometmq.spark.pipelines.cdc.events import (
    BAD,
    COLUMN_TYPES,
    DDL,
    DELETE,
    UPSERT,
    parse_change,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame

    from cometmq.spark.pipelines.base.watching import RowCounter

__all__ = [
    "STATE_DDL",
    "Overview",
    "changes",
    "merged",
    "newest",
    "overview",
    "rows",
    "schema_changes",
    "wider",
]

_CHANGES_DDL: Final = (
    "op string, database string, table string, key string, version string, timeMs bigint, "
    "row map<string,string>, types map<string,string>, text string"
)
STATE_DDL: Final = "key string, version string, deleted boolean, row map<string,string>"


def changes(
    messages: DataFrame, *, key_columns: tuple[str, ...] = (), counter: RowCounter | None = None
) -> DataFrame:
    """One row per changed row in the column ``body`` of ``messages`` (see `events.Change`).

    Args:
        key_columns: the table's key; default Canal's ``pkNames``, which Debezium lacks.
        counter: counts the bodies, for progress.

    Raises:
        ConfigError: there is no such column of bytes.
    """
    kinds = dict(messages.dtypes)
    if kinds.get("body") not in ("binary", "string"):
        raise ConfigError(
            f"change events need a column body of type binary; there are {', '.join(kinds)}"
        )
    return messages.select("body").mapInArrow(_parser(key_columns, counter), _CHANGES_DDL)


def _parser(
    key_columns: tuple[str, ...], counter: RowCounter | None
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """The function that runs in Spark's workers."""

    def parse(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        texts = pa.map_(pa.string(), pa.string())
        schema = pa.schema(
            [
                *((name, pa.string()) for name in ("op", "database", "table", "key", "version")),
                ("timeMs", pa.int64()),
                ("row", texts),
                ("types", texts),
                ("text", pa.string()),
            ]
        )
        for batch in batches:
            columns: list[list[Any]] = [[] for _ in schema]
            for body in batch.column(0).to_pylist():
                raw = body.encode() if isinstance(body, str) else body
                for change in parse_change(raw, key_columns):
                    values = (
                        change.op,
                        change.database,
                        change.table,
                        change.key,
                        change.version,
                        change.time_ms,
                        list(change.row.items()),
                        list(change.types.items()),
                        change.text,
                    )
                    for column, value in zip(columns, values, strict=True):
                        column.append(value)
            arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
            if counter is not None:
                counter.add(len(batch))

    return parse


@dataclass(slots=True)
class Overview:
    """A summary of changes, from one pass over them."""

    upserts: int = 0
    deletes: int = 0
    ddl: int = 0
    tables: set[str] = field(default_factory=set)
    """``database.table`` of changed rows."""
    statements: list[str] = field(default_factory=list)
    """DDL statements in their order."""
    columns: dict[str, str] = field(default_factory=dict)
    """Column to the widest type that a change names."""
    bad: list[dict[str, Any]] = field(default_factory=list)
    """Unreadable events: reason, count, example."""

    @property
    def bad_count(self) -> int:
        """The number of unreadable events."""
        return sum(row["count"] for row in self.bad)


def overview(changed: DataFrame) -> Overview:
    """Counts, tables, columns and faults of the changes."""
    from pyspark.sql import functions as F  # noqa: N812

    is_row = F.col("op").isin(UPSERT, DELETE)
    reason = F.when(F.col("op") == BAD, F.substring_index("text", ":", 1))
    counts = changed.groupBy("op", "database", "table", reason.alias("reason")).agg(
        F.count("*").alias("count"),
        F.min("text").alias("example"),
        F.collect_set(F.when(F.col("op") == DDL, F.struct("version", "text"))).alias("ddl"),
        # Nearly all events of a table name the same columns and types: the sets stay small.
        F.collect_set(F.when(is_row, F.map_entries("types"))).alias("types"),
        F.collect_set(F.when(is_row, F.map_keys("row"))).alias("names"),
    )
    result = Overview()
    ddl: set[tuple[str, str]] = set()
    for row in counts.collect():
        count = int(row["count"])
        if row["op"] == BAD:
            example = str(row["example"])
            result.bad.append({"reason": row["reason"], "count": count, "example": example})
        elif row["op"] == DDL:
            result.ddl += count
            ddl |= {(str(statement["version"]), str(statement["text"])) for statement in row["ddl"]}
        else:
            result.tables.add(".".join(filter(None, (row["database"], row["table"]))))
            result.upserts += count if row["op"] == UPSERT else 0
            result.deletes += count if row["op"] == DELETE else 0
            _add_columns(result.columns, row["types"], row["names"])
    result.statements = [text for _, text in sorted(ddl)]
    result.bad.sort(key=lambda fault: (-fault["count"], fault["reason"]))
    result.columns = dict(sorted(result.columns.items()))
    return result


def _add_columns(columns: dict[str, str], typed: Iterable[Any], named: Iterable[Any]) -> None:
    for entries in typed:
        for entry in entries:
            columns[entry["key"]] = wider(columns.get(entry["key"]), entry["value"])
    for names in named:
        for name in names:
            columns.setdefault(name, COLUMN_TYPES[-1])


def newest(changed: DataFrame) -> DataFrame:
    """The newest change of each key: the columns of `STATE_DDL`, one row per key.

    Of a delete and an upsert with one version the upsert counts: an update may change the key of
    one row and give the old key to another.
    """
    from pyspark.sql import functions as F  # noqa: N812

    last = F.max_by(F.struct("version", "op", "row"), F.struct("version", "op")).alias("last")
    last_changes = changed.where(F.col("op").isin(UPSERT, DELETE)).groupBy("key").agg(last)
    return last_changes.select(
        "key",
        F.col("last.version").alias("version"),
        (F.col("last.op") == DELETE).alias("deleted"),
        F.col("last.row").alias("row"),
    )


def merged(state: DataFrame | None, news: DataFrame) -> DataFrame:
    """The state after the changes: per key the row with the higher version."""
    from pyspark.sql import functions as F  # noqa: N812

    if state is None:
        return news
    columns = ("version", "deleted", "row")
    both = state.select("key", *columns).unionByName(news.select("key", *columns))
    last = F.max_by(F.struct(*columns), F.struct("version", ~F.col("deleted"))).alias("last")
    chosen = both.groupBy("key").agg(last)
    return chosen.select("key", *(F.col(f"last.{name}").alias(name) for name in columns))


def wider(first: str | None, second: str) -> str:
    """A type that holds the values of both types."""
    if first is None or first == second:
        return second
    if {first, second} == {"bigint", "double"}:
        return "double"
    return COLUMN_TYPES[-1]


def schema_changes(
    before: Mapping[str, str] | None, now: Mapping[str, str], statements: Iterable[str] = ()
) -> list[str]:
    """The changes of the table's columns, a sentence each, after the source's DDL statements."""
    sentences = [f"statement: {' '.join(text.split())}" for text in statements]
    if before is None:
        return sentences
    sentences += [f"column {name} is new ({now[name]})" for name in now if name not in before]
    sentences += [
        f"column {name} was {before[name]} and is {now[name]}"
        for name in now
        if name in before and before[name] != now[name]
    ]
    return sentences


def rows(state: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    """The table: rows that are not deleted, typed; null where a row lacks a column.

    A value that does not fit its type fails the job; the types of `overview` fit all values.
    """
    from pyspark.sql import functions as F  # noqa: N812

    return state.where(~F.col("deleted")).select(
        *(F.col("row")[name].cast(kind).alias(name) for name, kind in columns.items())
    )
