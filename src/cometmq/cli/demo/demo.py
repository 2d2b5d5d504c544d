"""`cometmq demo`: runs the demo on its own cluster or a running one, and prints the result."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cometmq.cli.terminal.options import is_quiet, json_option, set_up_logging

if TYPE_CHECKING:
    from cometmq.cli.demo.archive import Archived
    from cometmq.cli.demo.page import DemoPage
    from cometmq.cli.demo.run import DemoPlan, DemoReport, GroupReport

__all__ = ["demo", "own_cluster"]

START_TIMEOUT_S: Final = 30
STOP_TIMEOUT_S: Final = 20
_MIB: Final = 1024 * 1024


@click.command(short_help="Send 336,776 real flights through a cluster and check every count.")
@click.option(
    "-n",
    "--name-server",
    "name_server",
    metavar="HOST:PORT",
    envvar="NAMESRV_ADDR",
    show_envvar=True,
    help="Use this running cluster; without it the demo starts one in a temporary folder.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Send only the first LIMIT flights.")
@click.option(
    "--carriers",
    default="UA,AA,DL",
    show_default=True,
    help="Carriers that the filtered group subscribes to.",
)
@click.option("--keep", is_flag=True, help="Keep the topic on the running cluster.")
@click.option(
    "--archive/--no-archive",
    "with_archive",
    default=True,
    show_default=True,
    help="Archive the messages with Spark at the end.",
)
@click.option(
    "--archive-to",
    default="cometmq-demo",
    show_default=True,
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the archive and the page to DIR.",
)
@json_option
@click.pass_context
def demo(
    ctx: click.Context,
    name_server: str | None,
    limit: int | None,
    carriers: str,
    keep: bool,
    with_archive: bool,
    archive_to: Path,
    as_json: bool,
) -> int:
    """Send 336,776 real flights through a cluster and check every count.

    Each departure from New York in 2013 becomes a JSON message, keyed by flight and tagged by
    carrier. Two instances of one consumer group share them; a second group takes some carriers
    only. Counts per carrier and a checksum of all bodies are compared with the source. At the end
    Spark archives the topic as Parquet, and a page shows when flights are late; without PySpark or
    Java that step is skipped. Exit code 1 when anything differs.
    """
    set_up_logging(ctx)
    from cometmq.cli.demo.flights import FLIGHT_COUNT, dataset_path, read_flights

    path = dataset_path()
    wanted = tuple(dict.fromkeys(part.strip() for part in carriers.split(",") if part.strip()))
    if not wanted:
        raise click.UsageError("--carriers names no carrier; try --carriers UA,AA")
    total = min(limit or FLIGHT_COUNT, FLIGHT_COUNT)
    started = time.monotonic()
    target = archive_to if with_archive else None
    with tempfile.TemporaryDirectory(prefix="cometmq-demo-") as folder:
        if name_server:
            flights = read_flights(path, limit)
            report, archived = _run(ctx, name_server, wanted, flights, total, target, keep=keep)
        else:
            with own_cluster(Path(folder)) as own:
                flights = read_flights(path, limit)
                report, archived = _run(ctx, own, wanted, flights, total, target, keep=True)
    seconds = time.monotonic() - started
    faults = report.faults()
    page = None
    if archived is not None:
        faults += archived.faults(report.sent.tally.count)
        if archived.is_done:
            from cometmq.cli.demo.page import write_demo_page

            page = write_demo_page(report, Path(archived.folder))
            faults += page.faults
    if as_json:
        _print_json(report, archived, page, faults, seconds)
    else:
        _print_tables(report, archived, page, faults, seconds)
    return 1 if faults else 0


def _run(
    ctx: click.Context,
    name_server: str,
    carriers: tuple[str, ...],
    flights: Iterator[Any],
    total: int,
    archive_to: Path | None,
    *,
    keep: bool,
) -> "tuple[DemoReport, Archived | None]":
    """Run the demo, archive its messages where a folder is given, then delete the topic."""
    import os

    from cometmq.cli.demo.archive import archive_demo
    from cometmq.cli.demo.run import DemoPlan, run_demo
    from cometmq.cli.terminal.output import note, progress
    from cometmq.net.loop import run

    run_id = f"{os.getpid():x}_{time.time_ns() // 1_000_000:x}"  # noqa: TID251 - a name, no clock
    plan = DemoPlan(name_server, run_id, carriers, keep=keep or archive_to is not None)
    texts = ("sent", "group of two", "only " + ", ".join(carriers))
    try:
        with progress(*texts, total=total, quiet=is_quiet(ctx)) as bars:
            report = run(run_demo(plan, flights, bars))
        if archive_to is None:
            return report, None
        if sys.stderr.isatty() and not is_quiet(ctx):
            note("archiving with Spark, which takes some seconds to start")
        return report, archive_demo(name_server, plan.topic, archive_to)
    finally:
        if plan.keep and not keep:
            _delete_topic(plan)


def _delete_topic(plan: "DemoPlan") -> None:
    from cometmq.errors import CometError
    from cometmq.sync import Admin

    with suppress(CometError), Admin(name_server=plan.name_server) as admin:
        admin.delete_topic(plan.topic)


@contextmanager
def own_cluster(folder: Path) -> Iterator[str]:
    """Run `cometmq up` on free ports in its own process; yield the name server's address.

    Raises:
        ClientError: the cluster ended before it was ready.
    """
    import threading

    from cometmq.errors import ClientError

    log_path = folder / "cluster.log"
    command = [sys.executable, "-m", "cometmq", "up", "--store", str(folder / "store")]
    command += ["--name-server-port", "0", "--broker-port", "0"]
    with (
        log_path.open("w", encoding="utf-8") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as server,
    ):
        watchdog = threading.Timer(START_TIMEOUT_S, server.kill)
        watchdog.start()
        try:
            assert server.stdout is not None
            ready = server.stdout.readline()
        finally:
            watchdog.cancel()
        try:
            if "name server " not in ready:
                server.kill()
                code = server.wait()
                tail = log_path.read_text(encoding="utf-8").strip().splitlines()[-5:]
                raise ClientError(
                    f"the demo's own cluster ended with code {code} before it was ready "
                    f"({START_TIMEOUT_S} s at most): " + (" / ".join(tail) or "it wrote nothing")
                )
            yield ready.partition("name server ")[2].partition(",")[0].strip()
        finally:
            server.terminate()
            try:
                server.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                server.kill()


def _step_rows(report: "DemoReport") -> list[dict[str, Any]]:
    sent = report.sent
    return [
        _row("sent", sent.tally.count, sent.seconds, sorted(sent.latencies_ms)),
        *(_group_row(group.name, group) for group in report.instances),
        _group_row(" || ".join(report.plan.carriers), report.filtered),
    ]


def _group_row(step: str, group: "GroupReport") -> dict[str, Any]:
    return _row(step, group.tally.count, group.seconds, sorted(group.latencies_ms))


def _row(step: str, count: int, seconds: float, latencies_ms: list[float]) -> dict[str, Any]:
    from cometmq.cli.demo.run import percentile

    return {
        "step": step,
        "messages": count,
        "seconds": round(seconds, 2),
        "per_second": round(count / seconds) if seconds > 0 else 0,
        "p50_ms": round(percentile(latencies_ms, 0.50), 2),
        "p99_ms": round(percentile(latencies_ms, 0.99), 2),
        "max_ms": round(latencies_ms[-1], 2) if latencies_ms else 0.0,
    }


def _carrier_rows(report: "DemoReport") -> list[dict[str, Any]]:
    source, group = report.sent.tally.carriers, report.group_tally.carriers
    wanted = set(report.plan.carriers)
    first, second = (instance.tally.carriers for instance in report.instances)
    rows = []
    for carrier in sorted(set(source) | set(group), key=lambda name: -source.get(name, 0)):
        filtered = report.filtered.tally.carriers.get(carrier, 0)
        expected = source.get(carrier, 0)
        filter_ok = filtered == (expected if carrier in wanted else 0)
        rows.append(
            {
                "carrier": carrier,
                "source": expected,
                "instance_A": first.get(carrier, 0),
                "instance_B": second.get(carrier, 0),
                "group": group.get(carrier, 0),
                "filtered": filtered,
                "equal": group.get(carrier, 0) == expected and filter_ok,
            }
        )
    return rows


def _print_json(
    report: "DemoReport",
    archived: "Archived | None",
    page: "DemoPage | None",
    faults: list[str],
    seconds: float,
) -> None:
    from dataclasses import asdict

    from cometmq.cli.terminal.output import print_json

    print_json(
        {
            "ok": not faults,
            "faults": faults,
            "topic": report.plan.topic,
            "seconds": round(seconds, 2),
            "body_bytes": report.sent.body_bytes,
            "redelivered": report.redelivered,
            "checksum": {
                "source": f"{report.sent.tally.checksum:012x}",
                "group": f"{report.group_tally.checksum:012x}",
                "source_filtered": f"{report.expected_filtered.checksum:012x}",
                "filtered": f"{report.filtered.tally.checksum:012x}",
            },
            "steps": _step_rows(report),
            "carriers": _carrier_rows(report),
            "archive": None if archived is None else asdict(archived),
            "page": None if page is None else page.path or None,
        }
    )


def _print_tables(
    report: "DemoReport",
    archived: "Archived | None",
    page: "DemoPage | None",
    faults: list[str],
    seconds: float,
) -> None:
    from cometmq.cli.terminal.output import print_listing

    print_listing(_carrier_rows(report), as_json=False, title="Messages per carrier")
    print()
    print_listing(
        _step_rows(report),
        as_json=False,
        title="Rates; latencies from send to result (sent) and from send to handler (groups)",
    )
    print()
    sent = report.sent
    print(
        f"{sent.tally.count:,} flights, {sent.body_bytes / _MIB:.1f} MiB of JSON, "
        f"{seconds:.1f} s in all, {report.redelivered:,} redelivered"
    )
    print(
        f"checksum of bodies: source {sent.tally.checksum:012x}, "
        f"group {report.group_tally.checksum:012x}; "
        f"filtered source {report.expected_filtered.checksum:012x}, "
        f"filtered group {report.filtered.tally.checksum:012x}"
    )
    if faults:
        for fault in faults:
            print(f"DIFFERS: {fault}")
    else:
        print("every count and checksum equals the source")
    if archived is not None:
        print(archived.line())
    if page is not None:
        print(page.line())
