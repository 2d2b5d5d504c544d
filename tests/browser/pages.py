"""The pages that the manual shows, built from inputs that do not change.

The flights' page is that of a recorded run of `cometmq demo`; `python -m tests.browser.screenshots
--record` records one.  The pipelines' pages have small made-up inputs; tests/spark has real ones.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.cli.demo.findings import FlightFacts, RunFacts, airline_names
from cometmq.cli.demo.page import demo_page
from cometmq.spark.base.progress import RunProgress
from cometmq.spark.pipelines.backlog.findings import BacklogFindings
from cometmq.spark.pipelines.backlog.lag import GroupOffsetSample, LagSample
from cometmq.spark.pipelines.reconcile.findings import Reconciling
from cometmq.spark.pipelines.trace.findings import TraceFindings

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.report.page import ReportPage

__all__ = ["PAGES", "RECORDED", "RecordedRun"]

RECORDED: Final = Path(__file__).with_name("flights.json")


@dataclass(frozen=True)
class RecordedRun:
    """What a run of the demo measured."""

    command: str
    flights: FlightFacts
    run: RunFacts


def _progress(rows: int) -> RunProgress:
    """A run that began now: too short for a rate."""
    progress = RunProgress("page", quiet=True, now=lambda: 0.0)
    progress.rows = rows
    return progress


def _finished(page: ReportPage, command: str) -> ReportPage:
    page.condition("command", command)
    return page


def flights_page() -> ReportPage:
    """What the flights say, from a whole run."""
    recorded = msgspec.json.decode(RECORDED.read_bytes(), type=RecordedRun)
    page = demo_page(recorded.flights, recorded.run, airline_names())
    return _finished(page, recorded.command)


#: Group, topic, queue, end, end ten seconds later, offset, offset ten seconds later.
_OFFSETS: Final = (
    ("Billing", "Orders", 0, 41_200, 41_900, 39_800, 40_310),
    ("Billing", "Orders", 1, 40_900, 41_450, 40_020, 40_530),
    ("Billing", "Orders", 2, 96_000, 99_400, 71_000, 71_500),
    ("Billing", "Orders", 3, 40_100, 40_700, 39_000, 39_530),
    ("Mail", "Orders", 0, 41_200, 41_900, 41_100, 41_880),
    ("Mail", "Orders", 1, 40_900, 41_450, 40_850, 41_450),
    ("Mail", "Orders", 2, 96_000, 99_400, 95_900, 99_390),
    ("Mail", "Orders", 3, 40_100, 40_700, 40_090, 40_700),
    ("Search", "Products", 0, 8_000, 8_000, 5_100, 6_300),
    ("Search", "Products", 1, 7_900, 7_900, 5_300, 6_400),
)


def backlog_page() -> ReportPage:
    """A hot queue that grows, a group that catches up, one that nearly has."""
    samples = [
        LagSample(
            1_767_225_600_000 + 10_000 * late,
            tuple(
                GroupOffsetSample(group, topic, "broker-a", queue, *(ends[late], ends[2 + late]))
                for group, topic, queue, *ends in _OFFSETS
            ),
            {"Billing": 2, "Mail": 4, "Search": 2},
        )
        for late in (0, 1)
    ]
    findings = BacklogFindings.of(samples[0], samples[1])
    findings.oldest_ms = samples[1].at_ms - 512_000
    findings.waiting = sum(queue.lag for queue in findings.queues)
    total = findings.waiting
    findings.keys = [
        {"topic": "Orders", "key": key, "messages": count, "body_bytes": 180 * count}
        | {"share": count / total}
        for key, count in (
            ("customer-17", 24_310),
            ("customer-4", 812),
            ("customer-230", 640),
            ("customer-99", 410),
            ("customer-61", 395),
        )
    ]
    findings.producers = [
        {"topic": "Orders", "producer": host, "messages": count, "body_bytes": 180 * count}
        | {"share": count / total}
        for host, count in (("10.0.4.12", 25_120), ("10.0.4.13", 4_210), ("10.0.4.14", 3_904))
    ]
    progress = _progress(findings.waiting)
    page = findings.report(findings.summary("127.0.0.1:9876", progress), progress)
    return _finished(page, "cometmq pipeline backlog --report backlog.html")


def trace_page() -> ReportPage:
    """Slow handlers, one retried message, one that waited behind a long queue."""
    findings = TraceFindings(
        steps=36_412, messages=12_080, never_consumed_count=2, failed_count=1, retried_count=14
    )
    findings.latencies = [
        {"topic": topic, "group": group, "measure": measure, "messages": 12_080}
        | dict(zip(("p50_ms", "p90_ms", "p99_ms", "max_ms"), values, strict=True))
        for topic, group, measure, values in (
            ("Orders", "Billing", "delivery", (9, 34, 410, 12_900)),
            ("Orders", "Mail", "delivery", (7, 18, 64, 880)),
            ("Orders", "Shop", "send", (3, 6, 15, 210)),
            ("Orders", "Billing", "consume", (22, 90, 1_350, 9_020)),
            ("Orders", "Mail", "consume", (4, 9, 31, 400)),
        )
    ]
    #: Send, wait in the queue, handler, wait for retries: milliseconds.
    times = (
        ("order-7731", "Billing", 3, (4, 120, 9_020, 31_400)),
        ("order-1184", "Billing", 1, (3, 12_897, 130, 0)),
        ("order-5520", "Billing", 2, (6, 300, 2_100, 10_020)),
        ("order-9008", "Billing", 1, (5, 1_900, 6_300, 0)),
        ("order-1185", "Billing", 1, (3, 7_400, 95, 0)),
        ("order-1190", "Billing", 1, (2, 6_900, 80, 0)),
        ("order-6177", "Mail", 1, (210, 870, 400, 0)),
    )
    findings.slowest = [
        {
            "msgId": f"7F00000100002A9F{number:016X}",
            "topic": "Orders",
            "keys": key,
            "groupName": group,
            "deliveries": deliveries,
            "total_ms": sum(parts),
            **dict(zip(("send_ms", "queue_ms", "handler_ms", "retry_ms"), parts, strict=True)),
        }
        for number, (key, group, deliveries, parts) in enumerate(times)
    ]
    findings.never_consumed = [
        {"msgId": f"7F00000100002A9F{number:016X}", "topic": "Orders", "keys": key}
        | {"producerGroup": "Shop", "producedMs": at, "storeHost": "10.0.4.2:10911"}
        for number, (key, at) in enumerate(
            (("order-3", 1_767_225_600_120), ("order-4", 1_767_225_600_180))
        )
    ]
    findings.failed = [
        {"msgId": f"7F00000100002A9F{7:016X}", "topic": "Orders", "keys": "order-12"}
        | {"groupName": "Billing", "deliveries": 16, "successes": 0, "retries": 16}
        | {"result": "EXCEPTION"}
    ]
    progress = _progress(findings.steps)
    page = findings.report(findings.summary("topic:RMQ_SYS_TRACE_TOPIC", progress), progress)
    return _finished(page, "cometmq pipeline trace --report trace.html")


def reconcile_page() -> ReportPage:
    """A day of payments: most differences are late in the evening."""
    comparison = Reconciling("10m", "1m", "1h")
    comparison.left_records, comparison.right_records = 48_118, 48_094
    comparison.compared_keys, comparison.equal_keys = 48_123, 48_076
    begin = datetime(2026, 1, 14)  # noqa: DTZ001 - as Spark gives it
    for hour, kind, count in (
        (2, "MISSING_RIGHT", 1),
        (9, "DIFFERENT", 3),
        (10, "DIFFERENT", 2),
        (13, "DUPLICATE_LEFT", 1),
        (19, "LATE", 4),
        (20, "MISSING_RIGHT", 6),
        (20, "LATE", 5),
        (21, "MISSING_RIGHT", 17),
        (21, "DIFFERENT", 2),
        (22, "MISSING_LEFT", 3),
        (22, "MISSING_RIGHT", 3),
    ):
        comparison.windows[begin + timedelta(hours=hour), kind] += count
    comparison.counts = Counter()
    for (_, kind), count in comparison.windows.items():
        comparison.counts[kind] += count
    comparison.examples = [
        {
            "kind": "MISSING_RIGHT",
            "key": f"payment-{number}",
            "time": begin + timedelta(hours=21, minutes=number),
            "left_count": 1,
            "right_count": 0,
            "left_values": ['{"amount":"12.50"}'],
            "right_values": [],
        }
        for number in range(5)
    ]
    progress = _progress(comparison.left_records)
    summary = comparison.summary("topic:Payments", "jdbc:ledger#payments", progress)
    page = comparison.report(summary, progress)
    return _finished(page, "cometmq pipeline reconcile ... --window 1h --report page.html")


PAGES: Final[dict[str, Callable[[], ReportPage]]] = {
    "flights": flights_page,
    "backlog": backlog_page,
    "trace": trace_page,
    "reconcile": reconcile_page,
}
