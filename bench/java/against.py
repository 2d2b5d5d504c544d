"""Comparison of two brokers: rows, goals, medians, spreads, ratios and verdicts, without I/O.

A ratio says how many times better our figure is: ours / theirs for rates, theirs / ours for seconds
and megabytes.  It is the ratio of the medians.  The spread of the ratios of neighbouring rounds
shows its accuracy, since a slow minute of the machine affects both rounds of a pair.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from bench.base.loads import KIND_LOADS, RAW_LOADS, Load, Round
from bench.base.measure import median_of
from bench.java.java_load import JavaCall

__all__ = [
    "FACT_ROWS",
    "LOAD_ROWS",
    "ROW_NAMES",
    "Check",
    "Comparison",
    "Goal",
    "RowSpec",
    "chosen_rows",
]

#: At most this part of the other's CPU seconds per million sends.
CPU_SHARE: Final = 0.40


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """The goal of a row; None where there is none.

    Our figure should be at least `ratio` times better.  Our p99 and CPU time should be at most
    `p99_share` and `cpu_share` of theirs.  `limit` is the upper bound of our figure in its unit.
    """

    ratio: float | None = None
    p99_share: float | None = None
    cpu_share: float | None = None
    limit: float | None = None


class RowSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A row: raw frames (`load`), the Java client (`call`), or neither for start-up and the like.

    Rows of one `group` share one pair of servers and its warm-up.
    """

    name: str
    group: str
    unit: str
    goal: Goal = Goal()
    load: Load | None = None
    call: JavaCall | None = None
    is_rate: bool = True


_RAW_GOALS: Final = {
    "send 1x1": Goal(ratio=1.6, cpu_share=CPU_SHARE),
    "send 1x64": Goal(ratio=2.0, cpu_share=CPU_SHARE),
    "send 4x64": Goal(ratio=1.8, p99_share=0.25, cpu_share=CPU_SHARE),
    "send 1KiB 4x16": Goal(ratio=2.5, cpu_share=CPU_SHARE),
    "batch100 4x4": Goal(),
    "send sync 4x64": Goal(),
    "pull32 x1": Goal(ratio=1.4),
    "pull32 x4": Goal(),
    "pull32 x16": Goal(ratio=1.1),
}


def _group(load: Load) -> str:
    if load.kind == "pull":
        return "pulls"
    return "synchronous flush" if load.flush == "sync" else "sends"


def _raw_rows() -> tuple[RowSpec, ...]:
    by_name = {load.name: load for load in RAW_LOADS}
    return tuple(
        RowSpec(
            name=name,
            group=_group(by_name[name]),
            unit="messages/s" if by_name[name].kind in {"pull", "batch"} else "sends/s",
            goal=goal,
            load=by_name[name],
        )
        for name, goal in _RAW_GOALS.items()
    )


def _java_row(name: str, ratio: float, **call: Any) -> RowSpec:
    return RowSpec(
        name=name,
        group="Java client",
        unit="messages/s",
        goal=Goal(ratio=ratio),
        call=JavaCall(**call),
    )


LOAD_ROWS: Final = (
    *_raw_rows(),
    _java_row("java sync 1", 1.2, mode="sync", threads=1),
    _java_row("java sync 16", 1.3, mode="sync", threads=16),
    _java_row("java sync 64", 1.3, mode="sync", threads=64),
    _java_row("java async 1", 1.2, mode="async", threads=1),
    _java_row("java async 16", 1.3, mode="async", threads=16),
    _java_row("java async 64", 1.3, mode="async", threads=64),
    _java_row("java batch100 1", 1.1, mode="batch", threads=1, batch_count=100),
    _java_row("java batch100 4", 1.1, mode="batch", threads=4, batch_count=100),
    _java_row("java batch100 16", 1.1, mode="batch", threads=16, batch_count=100),
    _java_row("java batch100 64", 1.1, mode="batch", threads=64, batch_count=100),
    _java_row("java backlog", 1.0, mode="consume"),
    *(RowSpec(name=load.name, group="kinds", unit="messages/s", load=load) for load in KIND_LOADS),
)


def _fact(name: str, unit: str, goal: Goal) -> RowSpec:
    return RowSpec(name=name, group="operations", unit=unit, goal=goal, is_rate=False)


FACT_ROWS: Final = (
    _fact("start-up", "s", Goal(ratio=10.0)),
    _fact("idle memory", "MB", Goal(ratio=8.0)),
    _fact("restart", "s", Goal(limit=1.0)),
)
ROW_NAMES: Final = tuple(row.name for row in (*LOAD_ROWS, *FACT_ROWS))


def chosen_rows(only: tuple[str, ...]) -> list[RowSpec]:
    """Rows whose name or group equals, or else contains, one of `only`; all rows if it is empty."""
    rows = [*LOAD_ROWS, *FACT_ROWS]
    if not only:
        return rows
    names = {row.name for row in rows} | {row.group for row in rows}
    return [
        row
        for row in rows
        if any(
            part in {row.name, row.group} or (part not in names and part in row.name)
            for part in only
        )
    ]


@dataclass(frozen=True, slots=True)
class Check:
    """One goal of a row and the measured value; `text` names the unit of `value`."""

    text: str
    value: float
    bound: float
    is_at_least: bool

    @property
    def is_met(self) -> bool:
        """Whether the value keeps its bound."""
        return self.value >= self.bound if self.is_at_least else self.value <= self.bound


@dataclass(slots=True)
class Comparison:
    """A row with the figures of both sides, in the order of measurement.

    Rate rows have rounds; other rows have plain figures.  With an `error` the row has no result;
    `skipped` is the reason why the row did not run.  The shares are the parts of the machine's
    time that other guests of its host and other processes took during the row.
    """

    spec: RowSpec
    our_rounds: list[Round] = field(default_factory=list)
    their_rounds: list[Round] = field(default_factory=list)
    our_values: list[float] = field(default_factory=list)
    their_values: list[float] = field(default_factory=list)
    error: str = ""
    skipped: str = ""
    note: str = ""
    stolen_share: float = 0.0
    others_share: float = 0.0

    @property
    def ours(self) -> list[float]:
        """Our figures, one for each round."""
        return [one.messages_rate for one in self.our_rounds] or self.our_values

    @property
    def theirs(self) -> list[float]:
        """The other broker's figures, one for each round."""
        return [one.messages_rate for one in self.their_rounds] or self.their_values

    @property
    def has_figures(self) -> bool:
        """Whether both sides were measured without an error."""
        return bool(self.ours and self.theirs) and not self.error and not self.skipped

    def better(self, ours: float, theirs: float) -> float:
        """How many times better our figure of this pair is."""
        over, under = (ours, theirs) if self.spec.is_rate else (theirs, ours)
        return over / under if under else float("inf")

    @property
    def ratio(self) -> float | None:
        """How many times better our median is."""
        ours, theirs = median_of(list(self.ours)), median_of(list(self.theirs))
        return None if ours is None or theirs is None else self.better(ours, theirs)

    @property
    def pair_ratios(self) -> list[float]:
        """The ratio of each pair of neighbouring rounds."""
        return [self.better(a, b) for a, b in zip(self.ours, self.theirs, strict=False)]

    def medians(self, figure: str) -> tuple[float | None, float | None]:
        """Our median and their median of a `Round` figure."""
        ours = median_of([getattr(one, figure) for one in self.our_rounds])
        return ours, median_of([getattr(one, figure) for one in self.their_rounds])

    def cpu_per_million(self) -> tuple[float | None, float | None]:
        """CPU seconds of the broker per million messages, ours and theirs."""
        return _cpu_per_million(self.our_rounds), _cpu_per_million(self.their_rounds)

    def checks(self) -> list[Check]:
        """The goals of the row with the measured values."""
        if not self.has_figures:
            return []
        goal, found = self.spec.goal, list[Check]()
        ratio = self.ratio
        if goal.ratio is not None and ratio is not None:
            found.append(Check("times better", ratio, goal.ratio, is_at_least=True))
        ours = median_of(list(self.ours))
        if goal.limit is not None and ours is not None:
            found.append(Check(self.spec.unit, ours, goal.limit, is_at_least=False))
        for text, bound, (our_part, their_part) in (
            ("of their p99", goal.p99_share, self.medians("p99_us")),
            ("of their CPU", goal.cpu_share, self.cpu_per_million()),
        ):
            if bound is not None and our_part is not None and their_part:
                found.append(Check(text, our_part / their_part, bound, is_at_least=False))
        return found


def _cpu_per_million(rounds: list[Round]) -> float | None:
    costs = [
        one.server_cpu_s * 1e6 / (one.messages_rate * one.seconds)
        for one in rounds
        if one.server_cpu_s is not None and one.messages_rate
    ]
    return median_of(list(costs))
