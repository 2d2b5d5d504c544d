"""The demo's page: its figures are the archive's, and a spoilt archive is said first."""

from __future__ import annotations

import re
from array import array
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cometmq.cli.demo.findings import SHARES, FlightFacts, airline_names, run_facts
from cometmq.cli.demo.flights import Flight, read_flights
from cometmq.cli.demo.page import demo_page
from cometmq.cli.demo.run import DemoPlan, DemoReport, GroupReport, SendReport

FLIGHTS = 4_000
BORN_US = 1_700_000_000_000_000


def archived(flights: list[Flight], folder: Path) -> list[Path]:
    """Two files as the archive has them: the message, and the members of its body as columns."""
    bodies = [msgspec.json.decode(flight.body) for flight in flights]
    names = ("carrier", "origin", "dest", "month", "hour", "dep_delay", "arr_delay")
    columns = {name: pa.array([body[name] for body in bodies]) for name in names}
    for name, late_us in (("bornTimestamp", 0), ("storeTimestamp", 2_000)):
        # A thousand messages a second.
        times = [BORN_US + number * 1_000 + late_us for number in range(len(flights))]
        columns[name] = pa.array(times, pa.timestamp("us", tz="UTC"))
    columns["tags"] = pa.array([flight.carrier for flight in flights])
    columns["body"] = pa.array([flight.body for flight in flights])
    table = pa.table(columns)
    paths = [folder / "a.parquet", folder / "b.parquet"]
    pq.write_table(table.slice(0, 1_500), paths[0])
    pq.write_table(table.slice(1_500), paths[1])
    return paths


def measured(flights: list[Flight]) -> DemoReport:
    """A run in which everything arrived; latencies are 1 to n ms."""
    report = DemoReport(
        DemoPlan("n:1", "x", ("UA",)),
        SendReport(seconds=2.0),
        [GroupReport("instance A"), GroupReport("instance B")],
        GroupReport("filtered"),
        GroupReport("expected").tally,
    )
    for number, flight in enumerate(flights):
        report.sent.tally.add(flight.carrier, flight.body)
        instance = report.instances[number % 2]
        instance.tally.add(flight.carrier, flight.body)
        instance.latencies_ms.append(number + 1.0)
        instance.per_second[1_700_000_000 + number // 1_000] += 1
        if flight.carrier == "UA":
            report.filtered.tally.add(flight.carrier, flight.body)
            report.expected_filtered.add(flight.carrier, flight.body)
    report.sent.latencies_ms = array("d", [1.0, 3.0])
    return report


@pytest.fixture(scope="module")
def flights() -> list[Flight]:
    """The first days of January."""
    return list(read_flights(limit=FLIGHTS))


def mean(values: list[float]) -> float:
    """The mean."""
    return sum(values) / len(values)


def test_figures_are_those_of_the_flights(flights: list[Flight], tmp_path: Path) -> None:
    """Counted again from the source, one flight at a time."""
    facts = FlightFacts.of(archived(flights, tmp_path))
    run = run_facts(measured(flights))
    rows = [msgspec.json.decode(flight.body) for flight in flights]
    left = [row for row in rows if row["dep_delay"] is not None]
    assert (facts.count, facts.cancelled) == (FLIGHTS, FLIGHTS - len(left))
    assert facts.late == sum(row["dep_delay"] >= 15 for row in left)
    assert facts.departure == pytest.approx(mean([row["dep_delay"] for row in left]))
    at_19 = [row["dep_delay"] for row in left if row["hour"] == 19]
    assert facts.by_hour[19].departure == pytest.approx(mean(at_19))
    assert facts.by_hour[19].departed == len(at_19)
    route = [r for r in rows if (r["origin"], r["dest"]) == ("JFK", "LAX")]
    landed = [r["arr_delay"] for r in route if r["arr_delay"] is not None]
    assert facts.by_route["JFK-LAX"].arrival == pytest.approx(mean(landed))
    assert facts.by_route["JFK-LAX"].flights == len(route)
    assert facts.by_month_hour["1:19"] == facts.by_hour[19]
    assert facts.stored_per_second == {1_700_000_000 + n: 1_000 for n in range(4)} | {
        1_700_000_000: 998,
        1_700_000_004: 2,
    }
    assert set(facts.stored_ms) == {2.0}
    assert facts.faults(run) == []
    assert run.latencies_ms["handled by the group of two"][SHARES.index(0.5)] == 2000.5
    assert run.handled_per_second["handled by the group of two"][1_700_000_003] == 1_000


def test_page_answers_with_the_computed_figures(flights: list[Flight], tmp_path: Path) -> None:
    """The worst hour and the best one stand in the answer, with their difference."""
    facts = FlightFacts.of(archived(flights, tmp_path))
    report = demo_page(facts, run_facts(measured(flights)), airline_names())
    usual = {
        hour: one.departure for hour, one in facts.by_hour.items() if one.departure is not None
    }
    worst, best = max(usual, key=usual.__getitem__), min(usual, key=usual.__getitem__)
    assert report.answer == (
        f"Flights planned for {worst}:00 to {worst}:59 left {usual[worst] - usual[best]:.0f} min "
        f"later than those for {best}:00 to {best}:59"
    )
    assert "Every count and checksum equals the source." in report.lead
    page = report.page()
    assert page.count("class='plot'") == 7
    assert "<td>United Air Lines (UA)</td>" in page
    assert f"{facts.checksum:012x}" in page


def test_a_spoilt_archive_is_said_first(flights: list[Flight], tmp_path: Path) -> None:
    """One flight twice, another one missing: the count is the same and the page is not fooled."""
    spoilt = [*flights[:-1], flights[0]]
    facts = FlightFacts.of(archived(spoilt, tmp_path))
    run = run_facts(measured(flights))
    assert any("checksum" in fault for fault in facts.faults(run))
    report = demo_page(facts, run, {})
    assert report.faults == facts.faults(run)
    assert "equals the source" not in report.lead
    assert re.search(r"class='fault'>.*<p>the archive: checksum \w+, expected", report.page())


@pytest.mark.parametrize("count", [1, 12])
def test_a_short_run_has_a_page_too(flights: list[Flight], tmp_path: Path, count: int) -> None:
    """`cometmq demo --limit 1`: what cannot be compared is left out."""
    few = flights[:count]
    page = demo_page(FlightFacts.of(archived(few, tmp_path)), run_facts(measured(few)), {}).page()
    assert "carriers have the same count" in page
