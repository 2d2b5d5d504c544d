"""The report of a run: a table for people and a JSON document for programs, from the same rows.

Every figure is the median over the rounds of a row and stands beside the row's target.  Marks name
what disturbed a figure: `G` the generator's core was more than 90 % busy, `S` other guests of the
host took more than 2 % of the machine's time, `B` other processes of this machine took more than
5 %.  A row whose verification failed shows the reason and no figure.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from bench.base.loads import Load, Round
from bench.base.measure import Conditions, median_of

__all__ = [
    "Fact",
    "Row",
    "as_json",
    "as_text",
    "conditions_text",
    "cpu_us_each",
    "disturbance_marks",
    "legend",
    "sync_flush_fact",
    "table",
    "write_report",
]

R = TypeVar("R")
GENERATOR_BOUND: Final = 0.90
STOLEN_SHARE: Final = 0.02
OTHERS_SHARE: Final = 0.05
LEGEND: Final = {
    "G": "G: the generator's core was over 90 % busy; the server could do more.",
    "g": "g: the same with Java's.",
    "S": "S: other guests of the host took over 2 % of the machine's time.",
    "B": "B: other processes here took over 5 % of the machine's time; repeat it when quiet.",
}
FIGURES: Final = (
    "rate",
    "messages_rate",
    "p50_us",
    "p99_us",
    "p999_us",
    "max_us",
    "server_cpu_s",
    "server_resident_kb",
    "server_anonymous_kb",
    "generator_cpu_s",
    "seconds",
)


@dataclass(slots=True)
class Row:
    """One load with its rounds, those of the echo server, or the error that voids it.

    `stolen_share` and `others_share` are the parts of the machine's time that other guests of the
    host and other processes of this machine took during the row.
    """

    load: Load
    rounds: list[Round] = field(default_factory=list)
    echo: list[Round] = field(default_factory=list)
    error: str = ""
    stolen_share: float = 0.0
    others_share: float = 0.0

    def median(self, figure: str) -> float | None:
        """Median of a `Round` figure over the rounds."""
        return median_of([getattr(one, figure) for one in self.rounds])

    def echo_median(self, figure: str) -> float | None:
        """Median of a `Round` figure over the rounds against the echo server."""
        return median_of([getattr(one, figure) for one in self.echo])

    @property
    def generator_share(self) -> float:
        """Busy part of the generator's core."""
        busy, seconds = self.median("generator_cpu_s"), self.median("seconds")
        return busy / seconds if busy is not None and seconds else 0.0

    @property
    def server_share(self) -> float | None:
        """Busy part of the server's core."""
        busy, seconds = self.median("server_cpu_s"), self.median("seconds")
        return busy / seconds if busy is not None and seconds else None

    @property
    def share_of_echo(self) -> float | None:
        """The rate divided by the echo server's rate."""
        rate, echo = self.median("rate"), self.echo_median("rate")
        return rate / echo if rate is not None and echo else None

    @property
    def share_asked(self) -> float | None:
        """The target's share of echo on the machine for which it was set."""
        load = self.load
        return load.target / load.echo_then if load.target and load.echo_then else None

    @property
    def reached_by_share(self) -> float | None:
        """Like `reached`, with shares of echo instead of rates."""
        share, asked = self.share_of_echo, self.share_asked
        return share / asked if share is not None and asked else None

    @property
    def latency_to_echo(self) -> float | None:
        """Median latency as a multiple of the echo server's."""
        p50, echo = self.median("p50_us"), self.echo_median("p50_us")
        return p50 / echo if p50 is not None and echo else None

    @property
    def marks(self) -> str:
        """`G`: bound by the generator; `S`: disturbed by other guests; `B`: by other processes."""
        marks = "G" if self.generator_share > GENERATOR_BOUND else ""
        return marks + disturbance_marks(self.stolen_share, self.others_share)

    @property
    def reached(self) -> float | None:
        """Figure over target; 1.0 and more is good. For latency rows the inverse."""
        if self.load.echo_target is not None and self.latency_to_echo:
            return self.load.echo_target / self.latency_to_echo
        rate = self.median("rate")
        if self.load.target is not None and rate is not None:
            return rate / self.load.target
        return None


@dataclass(frozen=True, slots=True)
class Fact:
    """A figure that is not a load: start-up, idle memory, a ratio of two rows.

    It should be at most `limit`, or at least `floor`.
    """

    name: str
    value: float
    unit: str
    limit: float | None = None
    note: str = ""
    floor: float | None = None

    @property
    def holds(self) -> bool | None:
        """Whether the value keeps its limit or floor; None without either."""
        if self.limit is not None:
            return self.value <= self.limit
        if self.floor is not None:
            return self.value >= self.floor
        return None


def sync_flush_fact(conditions: Conditions, rows: list[Row]) -> list[Fact]:
    """Compare synchronous flush with asynchronous: half its rate, or 80 % of the disk's limit.

    The disk's limit is one group of 256 messages (4 connections x 64) for each fdatasync.
    """
    rates = {row.load.name: row.median("rate") for row in rows if not row.error}
    asynchronous, synchronous = rates.get("send 4x64"), rates.get("send sync 4x64")
    if asynchronous is None or synchronous is None:
        return []
    wanted, note = asynchronous / 2, f"half of {asynchronous:,.0f}"
    if conditions.fdatasync_us:
        disk = 256 / conditions.fdatasync_us * 1e6
        if 0.8 * disk < wanted:
            wanted, note = 0.8 * disk, f"80 % of 256 messages per fdatasync, {disk:,.0f}"
    return [Fact("synchronous flush 4x64", synchronous, "sends/s", note=note, floor=wanted)]


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _target(row: Row) -> str:
    load = row.load
    if load.echo_target is not None:
        ratio = row.latency_to_echo
        return f"{_number(ratio, 2)} <= {load.echo_target}x echo"
    if load.target is None:
        return ""
    asked = row.share_asked
    return f"{load.target:,.0f}" + (f" ({asked:.0%})" if asked else "")


def _verdict(row: Row) -> str:
    reached = row.reached
    if reached is None:
        return ""
    text = ("met" if reached >= 1 else "MISSED") + f" {reached:.2f}"
    by_share = row.reached_by_share
    if reached < 1 and by_share is not None:
        text += f", by share {'met' if by_share >= 1 else 'MISSED'} {by_share:.2f}"
    return text


def cpu_us_each(rounds: list[Round], figure: str = "server_cpu_s") -> float | None:
    """CPU microseconds for each unit; a slow or shared machine changes this figure least."""
    costs = [
        getattr(one, figure) * 1e6 / (one.rate * one.seconds)
        for one in rounds
        if getattr(one, figure) is not None and one.rate
    ]
    return median_of(list(costs))


RESULTS: Final[tuple[tuple[str, Callable[[Row], str]], ...]] = (
    ("load", lambda row: row.load.name),
    (">rate/s", lambda row: _number(row.median("rate"))),
    ("unit", lambda row: row.load.unit),
    (">p50 us", lambda row: _number(row.median("p50_us"))),
    (">p99 us", lambda row: _number(row.median("p99_us"))),
    (">p99.9 us", lambda row: _number(row.median("p999_us"))),
    (">max us", lambda row: _number(row.median("max_us"))),
    (">echo/s", lambda row: _number(row.echo_median("rate"))),
    (">of echo", lambda row: _percent(row.share_of_echo)),
    ("target", _target),
    ("", _verdict),
    ("", lambda row: row.marks),
)
COSTS: Final[tuple[tuple[str, Callable[[Row], str]], ...]] = (
    ("load", lambda row: row.load.name),
    (">server cpu", lambda row: _percent(row.server_share)),
    (">us each", lambda row: _number(cpu_us_each(row.rounds), 1)),
    (">echo us each", lambda row: _number(cpu_us_each(row.echo), 1)),
    (">resident MB", lambda row: _megabytes(row.median("server_resident_kb"))),
    (">anonymous MB", lambda row: _megabytes(row.median("server_anonymous_kb"))),
    (">generator cpu", lambda row: _percent(row.generator_share)),
    (">us each", lambda row: _number(cpu_us_each(row.rounds, "generator_cpu_s"), 1)),
    (">stolen", lambda row: _percent(row.stolen_share)),
    (">others", lambda row: _percent(row.others_share)),
    (">read back", lambda row: _number(sum(one.read_back for one in row.rounds))),
)


def _megabytes(kilobytes: float | None) -> str:
    return _number(kilobytes / 1024 if kilobytes else None)


def table(columns: tuple[tuple[str, Callable[[R], str]], ...], rows: list[R]) -> list[str]:
    """Lines of aligned columns; a heading that begins with `>` aligns its column to the right."""
    lines = [[heading.removeprefix(">") for heading, _ in columns]]
    lines += [[cell(row) for _, cell in columns] for row in rows]
    aligned = []
    widths = [max(len(line[column]) for line in lines) for column in range(len(columns))]
    for line in lines:
        cells = [
            text.rjust(width) if heading.startswith(">") else text.ljust(width)
            for text, width, (heading, _) in zip(line, widths, columns, strict=True)
        ]
        aligned.append("  ".join(cells).rstrip())
    return aligned


def disturbance_marks(stolen_share: float, others_share: float) -> str:
    """The marks `S` and `B` of a row, if others took too much of the machine's time."""
    return ("S" if stolen_share > STOLEN_SHARE else "") + (
        "B" if others_share > OTHERS_SHARE else ""
    )


def legend(marks: str) -> list[str]:
    """The meaning of each mark that occurs in a report, a line each."""
    return [line for mark, line in LEGEND.items() if mark in marks]


def conditions_text(conditions: Conditions) -> list[str]:
    """Machine and settings, a line each."""
    width = max((len(name) for name, _ in conditions.rows), default=0)
    return [f"{name.ljust(width)}  {value}" for name, value in conditions.rows]


def write_report(text: str, document: dict[str, Any], json_path: str | None) -> None:
    """Print the text, and write the JSON document to a file; `-` prints only the document."""
    rendered = json.dumps(document, indent=2)
    if json_path == "-":
        print(rendered)
        return
    print(text)
    if json_path:
        Path(json_path).write_text(rendered + "\n", encoding="utf-8")


def _fact_text(fact: Fact) -> str:
    value = f"{fact.value:,.0f}" if fact.value >= 1000 else f"{fact.value:.3g}"
    text = f"{value} {fact.unit}"
    if fact.holds is not None:
        bound = f"at most {fact.limit:g}" if fact.limit is not None else f"at least {fact.floor:,g}"
        text += f"  ({bound}: {'met' if fact.holds else 'MISSED'})"
    return f"{text}  {fact.note}" if fact.note else text


def as_text(conditions: Conditions, rows: list[Row], facts: list[Fact]) -> str:
    """The report for a person."""
    text = conditions_text(conditions)
    good = [row for row in rows if not row.error]
    if good:
        text += ["", *table(RESULTS, good), "", *table(COSTS, good)]
        text += legend("".join(row.marks for row in rows))
    if facts:
        text.append("")
    name_width = max((len(fact.name) for fact in facts), default=0)
    for fact in facts:
        text.append(f"{fact.name.ljust(name_width)}  {_fact_text(fact)}")
    failed = [row for row in rows if row.error]
    if failed:
        text.append("")
    text += [f"FAILED  {row.load.name}: {row.error}" for row in failed]
    return "\n".join(text)


def as_json(conditions: Conditions, rows: list[Row], facts: list[Fact]) -> dict[str, Any]:
    """The report for a machine: conditions, rows with medians and all rounds, facts."""
    return {
        "conditions": conditions.as_dict(),
        "rows": [_row_json(row) for row in rows],
        "facts": [
            {
                "name": fact.name,
                "value": fact.value,
                "unit": fact.unit,
                "limit": fact.limit,
                "floor": fact.floor,
                "holds": fact.holds,
                "note": fact.note,
            }
            for fact in facts
        ],
    }


def _row_json(row: Row) -> dict[str, Any]:
    builtins = msgspec.to_builtins
    return {
        "name": row.load.name,
        "unit": row.load.unit,
        "load": builtins(row.load),
        "error": row.error or None,
        "median": {figure: row.median(figure) for figure in FIGURES},
        "echo": {figure: row.echo_median(figure) for figure in FIGURES} if row.echo else None,
        "server_cpu_us_each": cpu_us_each(row.rounds),
        "generator_cpu_us_each": cpu_us_each(row.rounds, "generator_cpu_s"),
        "echo_cpu_us_each": cpu_us_each(row.echo),
        "share_of_echo": row.share_of_echo,
        "latency_to_echo": row.latency_to_echo,
        "generator_share": row.generator_share,
        "generator_bound": "G" in row.marks,
        "stolen_share": row.stolen_share,
        "others_share": row.others_share,
        "target": row.load.target,
        "echo_target": row.load.echo_target,
        "reached": row.reached,
        "share_asked": row.share_asked,
        "reached_by_share": row.reached_by_share,
        "acknowledged": sum(one.acknowledged for one in row.rounds),
        "read_back": sum(one.read_back for one in row.rounds),
        "rounds": [builtins(one) for one in row.rounds],
        "echo_rounds": [builtins(one) for one in row.echo],
    }
