"""Comparison of two brokers: rows, goals, ratios with their intervals, verdicts, without I/O.

A ratio says how many times better our figure is: ours / theirs for rates, theirs / ours for seconds
and megabytes.  It is the median over the pairs of neighbouring rounds, since a slow minute of the
machine affects both rounds of a pair, with the interval of that median.  So are our shares of their
p99 and of their processor time.  A row of the group `flat cost` compares ours with itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from bench.base.loads import FORMS, KIND_LOADS, RAW_LOADS, Form, Load, Round
from bench.base.measure import interval_of_median, median_of
from bench.java.java_load import JavaCall

__all__ = [
    "FACT_ROWS",
    "FLAT_COST",
    "LOAD_ROWS",
    "PAIRS_MIN",
    "ROW_NAMES",
    "Check",
    "Comparison",
    "Estimate",
    "Goal",
    "RowSpec",
    "chosen_rows",
]

#: At most these parts of the other's processor time for a sent message and for a pull.
SEND_CPU_SHARE: Final = 0.12
PULL_CPU_SHARE: Final = 0.45
PAIRS_MIN: Final = 20
"""A ratio of fewer pairs is shown, but is no result."""
FLAT_COST: Final = "flat cost"
FLAT_COST_MAX: Final = 1.2
MANY_TOPICS: Final = 1250


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

    Rows of one `group` share one pair of servers and its warm-up.  A row with `baseline` compares
    our broker under `load` with our broker under `baseline`.
    """

    name: str
    group: str
    unit: str
    goal: Goal = Goal()
    load: Load | None = None
    call: JavaCall | None = None
    baseline: Load | None = None
    is_rate: bool = True

    @property
    def other(self) -> str:
        """Whose figures ours are compared with."""
        return "Java" if self.baseline is None else self.baseline.name

    @property
    def is_asked(self) -> bool:
        """Whether the row runs without being named: a rate with a goal."""
        return self.is_rate and self.goal != Goal()


_RAW_GOALS: Final = {
    "send 1x1": Goal(ratio=2.0, cpu_share=SEND_CPU_SHARE),
    "send 1x64": Goal(ratio=4.0, cpu_share=SEND_CPU_SHARE),
    "send 4x64": Goal(ratio=5.0, p99_share=1 / 6, cpu_share=SEND_CPU_SHARE),
    "send 1KiB 4x16": Goal(ratio=3.0, cpu_share=SEND_CPU_SHARE),
    "batch100 4x4": Goal(),
    "send sync 4x64": Goal(),
    "pull32 x1": Goal(ratio=1.5, cpu_share=PULL_CPU_SHARE),
    "pull32 x4": Goal(),
    "pull32 x16": Goal(ratio=1.8, cpu_share=PULL_CPU_SHARE),
}


def _of_form(name: str, form: Form) -> str:
    """The name of a row or group; that of Java's JSON has no suffix."""
    return name if form == "java" else f"{name} {form}"


def _group(load: Load) -> str:
    if load.kind == "pull":
        return "pulls"
    return "synchronous flush" if load.flush == "sync" else "sends"


def _raw_rows() -> tuple[RowSpec, ...]:
    by_name = {load.name: load for load in RAW_LOADS}
    return tuple(
        RowSpec(
            name=_of_form(name, form),
            group=_of_form(_group(by_name[name]), form),
            unit="messages/s" if by_name[name].kind in {"pull", "batch"} else "sends/s",
            goal=goal,
            load=msgspec.structs.replace(by_name[name], form=form),
        )
        for form in FORMS
        for name, goal in _RAW_GOALS.items()
        if form == "java" or goal != Goal()
    )


def _flat_row(form: Form) -> RowSpec:
    few = Load(name="8 queues", kind="send", connections=4, form=form, has_echo=False)
    many = msgspec.structs.replace(few, name="10,000 queues", topics=MANY_TOPICS)
    return RowSpec(
        name=_of_form("10,000 queues : 8", form),
        group=FLAT_COST,
        unit="sends/s",
        goal=Goal(ratio=1 / FLAT_COST_MAX, cpu_share=FLAT_COST_MAX),
        load=many,
        baseline=few,
    )


def _java_row(name: str, ratio: float | None = None, **call: Any) -> tuple[RowSpec, ...]:
    """A row of Java's client for each form of header that it can write."""
    forms: tuple[Form, ...] = ("java", "binary") if ratio is not None else ("java",)
    return tuple(
        RowSpec(
            name=_of_form(name, form),
            group=_of_form("Java client", form),
            unit="messages/s",
            goal=Goal(ratio=ratio),
            call=JavaCall(**call),
        )
        for form in forms
    )


LOAD_ROWS: Final = (
    *_raw_rows(),
    *(_flat_row(form) for form in FORMS),
    *_java_row("java sync 1", 1.1, mode="sync", threads=1),
    *_java_row("java sync 16", 1.2, mode="sync", threads=16),
    *_java_row("java sync 64", 1.2, mode="sync", threads=64),
    *_java_row("java async 1", mode="async", threads=1),
    *_java_row("java async 16", mode="async", threads=16),
    *_java_row("java async 64", mode="async", threads=64),
    *_java_row("java batch100 1", mode="batch", threads=1, batch_count=100),
    *_java_row("java batch100 4", 1.2, mode="batch", threads=4, batch_count=100),
    *_java_row("java batch100 16", mode="batch", threads=16, batch_count=100),
    *_java_row("java batch100 64", mode="batch", threads=64, batch_count=100),
    *_java_row("java backlog", mode="consume"),
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
    """Rows whose name or group equals, or else contains, one of `only`.

    With an empty `only` these are the rates that have a goal; "all" names every row.
    """
    rows = [*LOAD_ROWS, *FACT_ROWS]
    if not only:
        return [row for row in rows if row.is_asked]
    names = {row.name for row in rows} | {row.group for row in rows}
    return [
        row
        for row in rows
        if any(
            part in {row.name, row.group, "all"} or (part not in names and part in row.name)
            for part in only
        )
    ]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median over pairs of rounds, with its 95 % interval where there are enough pairs."""

    value: float
    interval: tuple[float, float] | None
    pairs: int

    @classmethod
    def of(cls, values: list[float]) -> Estimate | None:
        """The median of the values; None without any."""
        middle = median_of(list(values))
        if middle is None:
            return None
        return cls(middle, interval_of_median(values), len(values))


@dataclass(frozen=True, slots=True)
class Check:
    """One goal of a row and the estimate; `text` names the unit of the estimate."""

    text: str
    estimate: Estimate
    bound: float
    is_at_least: bool

    @property
    def value(self) -> float:
        """The measured median."""
        return self.estimate.value

    @property
    def is_met(self) -> bool:
        """Whether the value keeps its bound."""
        return self.value >= self.bound if self.is_at_least else self.value <= self.bound


@dataclass(slots=True)
class Comparison:
    """A row with the figures of both sides, in the order of measurement.

    Rate rows have rounds; other rows have plain figures.  With an `error` the row has no result.
    The shares are the parts of the machine's
    time that other guests of its host and other processes took during the row.
    """

    spec: RowSpec
    our_rounds: list[Round] = field(default_factory=list)
    their_rounds: list[Round] = field(default_factory=list)
    our_values: list[float] = field(default_factory=list)
    their_values: list[float] = field(default_factory=list)
    error: str = ""
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
        return bool(self.ours and self.theirs) and not self.error

    def better(self, ours: float, theirs: float) -> float:
        """How many times better our figure of this pair is."""
        over, under = (ours, theirs) if self.spec.is_rate else (theirs, ours)
        return over / under if under else float("inf")

    @property
    def ratio(self) -> Estimate | None:
        """How many times better ours is: the median over the pairs of neighbouring rounds."""
        return Estimate.of(self.pair_ratios)

    @property
    def pair_ratios(self) -> list[float]:
        """The ratio of each pair of neighbouring rounds."""
        return [self.better(a, b) for a, b in zip(self.ours, self.theirs, strict=False)]

    def medians(self, figure: str) -> tuple[float | None, float | None]:
        """Our median and their median of a `Round` figure."""
        ours = median_of([getattr(one, figure) for one in self.our_rounds])
        return ours, median_of([getattr(one, figure) for one in self.their_rounds])

    def p99_share(self) -> Estimate | None:
        """Our part of their p99: the median over the pairs."""
        return self._share(lambda one: one.p99_us)

    def cpu_share(self) -> Estimate | None:
        """Our part of their processor time per message: the median over the pairs."""
        return self._share(cpu_us_each)

    def _share(self, figure: Callable[[Round], float | None]) -> Estimate | None:
        pairs = zip(self.our_rounds, self.their_rounds, strict=False)
        figures = [(figure(ours), figure(theirs)) for ours, theirs in pairs]
        return Estimate.of([a / b for a, b in figures if a is not None and b])

    def cpu_us_each(self) -> tuple[float | None, float | None]:
        """Processor time of the broker per message in microseconds, our and their median."""
        ours = median_of([cpu_us_each(one) for one in self.our_rounds])
        return ours, median_of([cpu_us_each(one) for one in self.their_rounds])

    def checks(self) -> list[Check]:
        """The goals of the row with the measured values."""
        if not self.has_figures:
            return []
        goal, other = self.spec.goal, self.spec.other
        wanted = (
            ("times better", goal.ratio, self.ratio, True),
            (self.spec.unit, goal.limit, Estimate.of(self.ours), False),
            (f"of the p99 of {other}", goal.p99_share, self.p99_share(), False),
            (f"of the processor time of {other}", goal.cpu_share, self.cpu_share(), False),
        )
        return [
            Check(text, estimate, bound, is_at_least)
            for text, bound, estimate, is_at_least in wanted
            if bound is not None and estimate is not None
        ]


def cpu_us_each(one: Round) -> float | None:
    """Processor time of the server for a message of the round, in microseconds."""
    if one.server_cpu_s is None or not one.messages_rate:
        return None
    return one.server_cpu_s * 1e6 / (one.messages_rate * one.seconds)
