"""What the demo's page shows, reduced to small figures: the flights, and the run of the messages.

The flights' figures come from the Parquet files that Spark archived, so each of them went through
producer, broker and archive.  numpy and pyarrow are imported late: only the page needs them.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cometmq.cli.demo.flights import Tally, dataset_path

if TYPE_CHECKING:
    from array import array
    from collections import Counter
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from cometmq.cli.demo.run import DemoReport

__all__ = [
    "LATE_MINUTES",
    "SHARES",
    "Delays",
    "FlightFacts",
    "RunFacts",
    "airline_names",
    "run_facts",
]

#: The shares of messages whose latency the page shows: each percent, and the slow end finer.
SHARES: Final = (*(percent / 100 for percent in range(1, 100)), 0.995, 0.999, 0.9999, 1.0)
#: A flight is late from this delay on, as the aviation authority counts it.
LATE_MINUTES: Final = 15


@dataclass(frozen=True, slots=True)
class Delays:
    """The mean delays of some flights in minutes; None where no flight left or arrived."""

    flights: int
    departed: int
    departure: float | None
    arrival: float | None


@dataclass(slots=True)
class FlightFacts:
    """What the archive says about the flights, and about its messages."""

    count: int = 0
    checksum: int = 0
    """As `Tally.checksum`, over the archived bodies."""
    carriers: dict[str, int] = field(default_factory=dict)
    cancelled: int = 0
    late: int = 0
    departure: float | None = None
    by_carrier: dict[str, Delays] = field(default_factory=dict)
    by_hour: dict[int, Delays] = field(default_factory=dict)
    by_month_hour: dict[str, Delays] = field(default_factory=dict)
    """By ``month:hour``."""
    by_route: dict[str, Delays] = field(default_factory=dict)
    """By ``JFK-LAX``."""
    stored_per_second: dict[int, int] = field(default_factory=dict)
    """Second since 1970 to messages."""
    stored_ms: list[float] = field(default_factory=list)
    """Milliseconds from a message's birth to its storage, at each of `SHARES`."""

    @classmethod
    def of(cls, files: Iterable[Path]) -> FlightFacts:
        """Read an archive's files, a batch of rows at a time."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.dataset as ds

        dataset: Any = ds.dataset([str(path) for path in files], format="parquet")
        tally = Tally()
        for batch in dataset.to_batches(columns=["tags", "body"]):
            tags, bodies = (column.to_pylist() for column in batch.columns)
            for tag, body in zip(tags, bodies, strict=True):
                tally.add(tag or "", body)
        names = ["carrier", "origin", "dest", "month", "hour", "dep_delay", "arr_delay"]
        table = dataset.to_table(columns=[*names, "bornTimestamp", "storeTimestamp"])
        route = pc.binary_join_element_wise(table["origin"], table["dest"], "-")
        slot = pc.binary_join_element_wise(
            *(pc.cast(table[name], pa.string()) for name in ("month", "hour")), ":"
        )
        table = table.append_column("route", route).append_column("slot", slot)
        stored, born = (
            pc.cast(table[name], pa.int64()).to_numpy()
            for name in ("storeTimestamp", "bornTimestamp")
        )
        seconds, counts = np.unique(stored // 1_000_000, return_counts=True)
        late = pc.sum(pc.greater_equal(table["dep_delay"], LATE_MINUTES)).as_py()
        return cls(
            tally.count,
            tally.checksum,
            tally.carriers,
            table["dep_delay"].null_count,
            late or 0,
            pc.mean(table["dep_delay"]).as_py(),
            _delays(table, "carrier"),
            _delays(table, "hour"),
            _delays(table, "slot"),
            _delays(table, "route"),
            dict(zip(seconds.tolist(), counts.tolist(), strict=True)),
            _quantiles((stored - born) / 1000),
        )

    def faults(self, run: RunFacts) -> list[str]:
        """Each difference between the archive and the sent messages in one sentence."""
        faults = []
        if self.carriers != {code: counts[0] for code, counts in run.carriers.items()}:
            faults.append("the archive: counts per carrier differ from the source")
        if self.checksum != run.sent_checksum:
            faults.append(
                f"the archive: checksum {self.checksum:012x}, expected {run.sent_checksum:012x}"
            )
        return faults


def _delays(table: Any, column: str) -> dict[Any, Delays]:
    wanted = [
        (column, "count"),
        ("dep_delay", "count"),
        ("dep_delay", "mean"),
        ("arr_delay", "mean"),
    ]
    grouped = table.group_by(column).aggregate(wanted).sort_by(column)
    return {
        row[column]: Delays(
            row[f"{column}_count"],
            row["dep_delay_count"],
            row["dep_delay_mean"],
            row["arr_delay_mean"],
        )
        for row in grouped.to_pylist()
        if row[column] is not None
    }


def _quantiles(values: Any) -> list[float]:
    import numpy as np

    if not len(values):
        return []
    found: list[float] = np.quantile(np.asarray(values), SHARES).round(3).tolist()
    return found


@dataclass(slots=True)
class RunFacts:
    """What producer and consumers measured."""

    topic: str
    sent: int
    sent_checksum: int
    group_checksum: int
    body_bytes: int
    send_seconds: float
    redelivered: int
    carriers: dict[str, tuple[int, int, int]]
    """Carrier to messages in the source, in the group of two, in the filtered group."""
    filtered_carriers: tuple[str, ...]
    faults: list[str]
    latencies_ms: dict[str, list[float]]
    """What was waited for to milliseconds, at each of `SHARES`."""
    handled_per_second: dict[str, dict[int, int]]
    """Group to (second since 1970 to messages)."""


def run_facts(report: DemoReport) -> RunFacts:
    """Reduce what the demo measured."""
    group, some = report.group_tally, report.filtered.tally
    both: array[float] = report.instances[0].latencies_ms + report.instances[1].latencies_ms
    handled: Counter[int] = report.instances[0].per_second + report.instances[1].per_second
    carriers = sorted(report.sent.tally.carriers.items(), key=lambda item: (-item[1], item[0]))
    return RunFacts(
        report.plan.topic,
        report.sent.tally.count,
        report.sent.tally.checksum,
        group.checksum,
        report.sent.body_bytes,
        report.sent.seconds,
        report.redelivered,
        {
            name: (count, group.carriers.get(name, 0), some.carriers.get(name, 0))
            for name, count in carriers
        },
        report.plan.carriers,
        report.faults(),
        {
            "acknowledged": _quantiles(report.sent.latencies_ms),
            "handled by the group of two": _quantiles(both),
            "handled by the filtered group": _quantiles(report.filtered.latencies_ms),
        },
        {
            "handled by the group of two": dict(handled),
            "handled by the filtered group": dict(report.filtered.per_second),
        },
    )


def airline_names(path: Path | None = None) -> dict[str, str]:
    """Carrier codes to names, from the dataset's second file; empty where there is none."""
    source = (dataset_path() if path is None else path).with_name("airlines.csv")
    if not source.is_file():
        return {}
    with source.open(encoding="utf-8", newline="") as text:
        rows: Sequence[dict[str, str]] = list(csv.DictReader(text))
    return {row["carrier"]: row["name"].split(" Inc")[0].split(" Co.")[0] for row in rows}
