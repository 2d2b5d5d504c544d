"""Two sides compared record by record: missing, different, repeated and late records.

Two DataFrames, batch or streaming, become the DataFrame of their differences.

    sides = sides_of(left, right, Comparing("orderId", "at", ("amount",)), late="10m")
    differences(matched(sides, late="10m"), on_time="1m")

Records with the same key form a group as long as their event times are within ``late`` of each
other (a session window of Spark).  Windows with fixed edges would report two records as missing
that are a second apart on both sides of an edge.  The same plan works for a stream: a group is
compared once, when the watermarks of both sides have passed it.

    kind             meaning
    MISSING_LEFT     the right side has the record, the left one does not
    MISSING_RIGHT    the other way round
    DIFFERENT        both have it, with other values
    DUPLICATE_LEFT   the left side has it more than once
    DUPLICATE_RIGHT  the right side has it more than once
    LATE             both have it, further apart than ``on_time``
    NO_KEY           records whose key is null: they cannot be compared
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from cometmq.errors import ConfigError
from cometmq.spark.pipelines.base.spark_errors import quiet_queries, spark_sentence

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

__all__ = [
    "KINDS",
    "Comparing",
    "by_window",
    "differences",
    "duration_s",
    "event_time_between",
    "matched",
    "sides_of",
    "timeless",
]

KINDS: Final = (
    "MISSING_LEFT",
    "MISSING_RIGHT",
    "DIFFERENT",
    "DUPLICATE_LEFT",
    "DUPLICATE_RIGHT",
    "LATE",
    "NO_KEY",
)
#: The most distinct values of a key that are shown per side.
_VALUES_MAX: Final = 5
_UNITS_S: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_INTEGRAL: Final = ("tinyint", "smallint", "int", "bigint")
_FRACTIONAL: Final = ("float", "double")


@dataclass(frozen=True, slots=True)
class Comparing:
    """The compared expressions, in Spark SQL over a side's columns.

    ``key`` and ``time`` are one expression each.  ``values`` are written ``EXPRESSION`` or
    ``EXPRESSION as NAME`` and compared by position; without values only presence is compared.
    """

    key: str
    time: str
    values: tuple[str, ...] = ()


def duration_s(text: str) -> float:
    """Seconds of ``90s``, ``10m``, ``1.5h``, ``10 minutes``.

    Raises:
        ConfigError: the text is no duration.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*", text)
    if match is not None:
        unit = match[2].lower()
        for name, long in (("s", "second"), ("m", "minute"), ("h", "hour"), ("d", "day")):
            if unit in (long, long + "s"):
                unit = name
        if unit in _UNITS_S:
            return float(match[1]) * _UNITS_S[unit]
    raise ConfigError(f"{text!r} is no duration: write 90s, 10m, 1h or 2d")


def _interval(text: str) -> str:
    """A duration in Spark's syntax."""
    return f"{round(duration_s(text) * 1000)} milliseconds"


def _select(frame: DataFrame, expressions: list[str], side: str) -> DataFrame:
    """The expressions as columns; Spark's error about a wrong one becomes one sentence."""
    from pyspark.errors import AnalysisException, ParseException

    try:
        with quiet_queries():
            chosen = frame.selectExpr(*expressions)
            chosen.schema  # noqa: B018 - analysis happens here, not at the first row
    except (AnalysisException, ParseException) as error:
        wrong = expressions if len(expressions) == 1 else _first_refused(frame, expressions)
        raise ConfigError(_explained(frame, side, spark_sentence(error), wrong)) from None
    return chosen


def _first_refused(frame: DataFrame, expressions: list[str]) -> list[str]:
    """The first expression that Spark refuses by itself; all expressions if there is none."""
    from pyspark.errors import AnalysisException, ParseException

    for expression in expressions:
        try:
            with quiet_queries():
                frame.selectExpr(expression).schema  # noqa: B018
        except (AnalysisException, ParseException):
            return [expression]
    return expressions


def _explained(frame: DataFrame, side: str, text: str, expressions: list[str]) -> str:
    missing = re.search(r"name `([^`]+)` cannot be resolved", text)
    columns = ", ".join(frame.columns)
    if missing is None:
        return f"the {side} side cannot be read as {', '.join(expressions)}: {text}"
    near = get_close_matches(missing[1], frame.columns, n=1)
    hint = f"; did you mean {near[0]}?" if near else "."
    return f"the {side} side has no column {missing[1]}{hint} It has {columns}"


def _typed(frame: DataFrame, side: str) -> DataFrame:
    """The frame with the key as text and the time as a timestamp."""
    kinds = dict(frame.dtypes)
    time = kinds["_time"]
    if time in ("bigint", "int"):
        convert = "timestamp_millis(_time)"
    elif time in ("timestamp", "timestamp_ntz", "date", "string"):
        convert = "cast(_time as timestamp)"
    else:
        raise ConfigError(
            f"the event time of the {side} side is {time}: it must be a timestamp, or ms since 1970"
        )
    others = [f"`{name}`" for name in frame.columns if name not in ("_key", "_time")]
    return frame.selectExpr("cast(_key as string) as _key", f"{convert} as _time", *others)


def _value_columns(frame: DataFrame, wanted: Comparing, side: str) -> tuple[Any, list[str]]:
    aliased = [
        value if re.search(r"\sas\s+\S+\s*$", value, re.IGNORECASE) else f"({value}) as `{value}`"
        for value in wanted.values
    ]
    chosen = _select(
        frame, [f"({wanted.key}) as _key", f"({wanted.time}) as _time", *aliased], side
    )
    return _typed(chosen, side), [name for name in chosen.columns if name not in ("_key", "_time")]


def _common_type(left: str, right: str, names: tuple[str, str]) -> str:
    if left == right:
        return left
    if left in _INTEGRAL and right in _INTEGRAL:
        return "bigint"
    if left in _FRACTIONAL and right in _FRACTIONAL:
        return "double"
    decimals = [kind for kind in (left, right) if kind.startswith("decimal")]
    if decimals and (len(decimals) == 2 or {left, right} & set(_INTEGRAL)):
        return "decimal(38,9)"
    raise ConfigError(
        f"the sides do not match: {names[0]} is {left} on the left, {names[1]} is {right} on the "
        f"right. Cast one of them: --right-value 'cast({names[1]} as {left}) as {names[0]}'"
    )


def sides_of(
    left: DataFrame,
    right: DataFrame,
    left_wants: Comparing,
    right_wants: Comparing | None = None,
    *,
    late: str,
    each: Callable[[DataFrame, str], DataFrame] = lambda frame, side: frame,
) -> DataFrame:
    """The union of both sides: ``_side`` (L or R), ``_key``, ``_time``, ``_value`` (text).

    Records without a time stay; `matched` leaves them out and `timeless` counts them.  In a stream
    each side has a watermark with the delay ``late``: the slower side decides, so its records are
    awaited and not reported as missing.

    Args:
        each: called with each side's frame and L or R; its result replaces the frame.

    Raises:
        ConfigError: an expression does not fit a side's columns, or types do not match; nothing
            has been read.
    """
    right_wants = right_wants or left_wants
    if len(left_wants.values) != len(right_wants.values):
        raise ConfigError(
            f"{len(left_wants.values)} values on the left, {len(right_wants.values)} on the right: "
            "they are compared by position, so both sides need as many"
        )
    left_frame, left_names = _value_columns(left, left_wants, "left")
    right_frame, right_names = _value_columns(right, right_wants, "right")
    left_types, right_types = dict(left_frame.dtypes), dict(right_frame.dtypes)
    common = [
        _common_type(left_types[a], right_types[b], (a, b))
        for a, b in zip(left_names, right_names, strict=True)
    ]
    shaped = [
        each(_shaped(frame, names, left_names, common, side, late), side)
        for frame, names, side in (
            (left_frame, left_names, "L"),
            (right_frame, right_names, "R"),
        )
    ]
    return shaped[0].unionByName(shaped[1])


def _shaped(
    frame: DataFrame, names: list[str], shown: list[str], types: list[str], side: str, late: str
) -> DataFrame:
    """A side with its values as one JSON text under the left side's names."""
    fields = ", ".join(
        f"cast(`{name}` as {kind}) as `{label}`"
        for name, label, kind in zip(names, shown, types, strict=True)
    )
    value = (
        f"to_json(struct({fields}), map('ignoreNullFields', 'false'))"
        if fields
        else "cast(null as string)"
    )
    shaped = frame.selectExpr(f"'{side}' as _side", "_key", "_time", f"{value} as _value")
    return shaped.withWatermark("_time", _interval(late)) if frame.isStreaming else shaped


def event_time_between(sides: DataFrame, since_ms: int | None, until_ms: int | None) -> DataFrame:
    """The records of `sides_of` with an event time in [since, until), ms since 1970.

    Records without a time stay, to be counted.  A record just outside an edge whose counterpart is
    just inside makes a difference: choose edges at quiet times.
    """
    from pyspark.sql import functions as F  # noqa: N812

    for moment_ms, is_start in ((since_ms, True), (until_ms, False)):
        if moment_ms is not None:
            edge = F.timestamp_millis(F.lit(moment_ms))
            column = F.col("_time")
            is_inside = column >= edge if is_start else column < edge
            sides = sides.where(is_inside | column.isNull())
    return sides


def timeless(sides: DataFrame) -> DataFrame:
    """The number of records without an event time: ``_side`` and ``count``."""
    return sides.where("_time is null").groupBy("_side").count()


def matched(sides: DataFrame, *, late: str) -> DataFrame:
    """One row per key and group of records that are within ``late`` of each other.

    Columns: key, left_count, right_count, left_time, right_time (the first of each side),
    is_equal, left_values, right_values (sorted, distinct, a few).  In a stream ``late`` is also the
    watermark's delay: Spark drops a record that comes later and counts it in its progress
    (``numRowsDroppedByWatermark``).
    """
    from pyspark.sql import functions as F  # noqa: N812

    gap = _interval(late)
    timed = sides.where(F.col("_time").isNotNull())

    def of(side: str, column: str) -> Any:
        return F.when(F.col("_side") == side, F.col(column))

    columns = []
    for side, name in (("L", "left"), ("R", "right")):
        values = F.sort_array(F.collect_set(of(side, "_value")))
        columns += [
            F.count(of(side, "_side")).alias(f"{name}_count"),
            F.min(of(side, "_time")).alias(f"{name}_time"),
            values.alias(f"{name}_values"),
        ]
    grouped = timed.groupBy(F.col("_key").alias("key"), F.session_window("_time", gap))
    shown = {
        f"{name}_values": F.slice(f"{name}_values", 1, _VALUES_MAX) for name in ("left", "right")
    }
    is_equal = F.col("left_values").eqNullSafe(F.col("right_values"))
    groups = grouped.agg(*columns).drop("session_window").withColumn("is_equal", is_equal)
    return groups.withColumns(shown)


def differences(groups: DataFrame, *, on_time: str | None = None) -> DataFrame:
    """The differences in the rows of `matched`, one row per kind.

    Columns: kind, key, time (the earlier side's), left_count, right_count, left_time, right_time,
    delay_ms (right after left), left_values, right_values.  Without ``on_time`` nothing is LATE.
    """
    from pyspark.sql import functions as F  # noqa: N812

    left, right = F.col("left_count"), F.col("right_count")
    delay = F.unix_millis("right_time") - F.unix_millis("left_time")
    both = (left > 0) & (right > 0)
    has_key = F.col("key").isNotNull()
    kinds = [
        F.when(~has_key, "NO_KEY"),
        F.when(has_key & (left == 0), "MISSING_LEFT"),
        F.when(has_key & (right == 0), "MISSING_RIGHT"),
        F.when(has_key & both & ~F.col("is_equal"), "DIFFERENT"),
        F.when(has_key & (left > 1), "DUPLICATE_LEFT"),
        F.when(has_key & (right > 1), "DUPLICATE_RIGHT"),
    ]
    if on_time is not None:
        limit_ms = round(duration_s(on_time) * 1000)
        kinds.append(F.when(has_key & both & (F.abs(delay) > limit_ms), "LATE"))
    by_kind = groups.withColumn("kind", F.explode(F.array_compact(F.array(*kinds))))
    return by_kind.select(
        "kind",
        "key",
        F.least("left_time", "right_time").alias("time"),
        "left_count",
        "right_count",
        "left_time",
        "right_time",
        delay.alias("delay_ms"),
        "left_values",
        "right_values",
    )


def by_window(differing: DataFrame, window: str) -> DataFrame:
    """Differences per event-time window: window_start, kind, count, ordered by time."""
    from pyspark.sql import functions as F  # noqa: N812

    start = F.window("time", _interval(window))
    counted = differing.groupBy(start.alias("window"), "kind").count()
    return counted.select(F.col("window.start").alias("window_start"), "kind", "count").orderBy(
        "window_start", "kind"
    )
