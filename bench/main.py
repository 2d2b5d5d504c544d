"""The command `cometmq bench`: selects rows, runs them, prints the report, returns the exit code.

Exit code 0 means that every row ran and every acknowledged message was read back unchanged.  A
missed target is printed but does not change the exit code, since it depends on the machine.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import click

from bench.base.loads import (
    CLIENT_LOADS,
    KIND_LOADS,
    RAW_LOADS,
    SCALE_STEPS,
    Load,
    custom_load,
)
from bench.base.measure import Conditions, cores, machine_conditions
from bench.base.processes import start_echo
from bench.suites.kinds import measure_kinds
from bench.suites.operations import OPERATIONS, measure_operation
from bench.suites.replicas import REPLICAS, measure_replicas
from bench.suites.report import Fact, Row, as_json, as_text, sync_flush_fact, write_report
from bench.suites.suite import Settings, run_row
from cometmq.errors import ConfigError

__all__ = ["bench_command", "run"]

SUITES: Final = ("raw", "client", "operations", "scale", "kinds", "replicas", "all")
KINDS: Final = "kinds"
"""An operation of its own: its rows share a broker and are compared with one another."""
ROUNDS: Final = 5
ROUND_SECONDS: Final = 3.0
PAIRS: Final = 20
"""As many as a ratio needs for an interval; shorter rounds keep a comparison within an hour."""
PAIR_SECONDS: Final = 1.0
QUICK_SECONDS: Final = 1.0
QUICK_FILL: Final = 50_000
QUICK_SCALE: Final = 20


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _pick_cores(wanted: bool) -> tuple[int | None, int | None]:
    available = cores()
    if not wanted or len(available) < 2:
        return None, None
    return available[0], available[-1]


def _assignments(pairs: Sequence[str]) -> dict[str, str]:
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {pair!r} is not KEY=VALUE")
        settings[key] = value
    return settings


def _chosen(suites: Sequence[str], only: Sequence[str]) -> tuple[list[Load], list[str]]:
    """Loads and operations of the wanted suites whose names contain one of `only`."""
    wanted = set(suites or ("raw", "client"))
    every = "all" in wanted
    loads: list[Load] = []
    if every or "raw" in wanted:
        loads += RAW_LOADS
    if every or "client" in wanted:
        loads += CLIENT_LOADS
    operations = list(OPERATIONS) if every or "operations" in wanted else []
    operations += [f"scale {name}" for name in SCALE_STEPS] if every or "scale" in wanted else []
    operations += [f"replicas {name}" for name in REPLICAS] if "replicas" in wanted else []
    operations += [KINDS] if every or KINDS in wanted else []
    if only:
        loads = [load for load in loads if any(part in load.name for part in only)]
        # "start" selects the operation of this name only, although "restart" contains it.
        operations = [
            name
            for name in operations
            if any(part == name or (part in name and part not in OPERATIONS) for part in only)
            or (name == KINDS and any(part in load.name for part in only for load in KIND_LOADS))
        ]
        if not loads and not operations:
            raise ConfigError(
                f"no row of {', '.join(sorted(wanted))} is called like {' or '.join(only)}; "
                "see cometmq bench --list"
            )
    return loads, operations


def _list_rows(against: str | None) -> None:
    if against:
        from bench.java.against_main import list_rows

        list_rows()
        return
    for suite, loads in (("raw", RAW_LOADS), ("client", CLIENT_LOADS)):
        for load in loads:
            target = f"target {load.target:,.0f} {load.unit}/s" if load.target else ""
            print(f"{suite:11} {load.name:22} {target}".rstrip())
    for name in OPERATIONS:
        print(f"{'operations':11} {name}")
    for name in SCALE_STEPS:
        print(f"{'scale':11} scale {name}")
    for name in REPLICAS:
        print(f"{'replicas':11} replicas {name}")
    for load in KIND_LOADS:
        print(f"{'kinds':11} {load.name}")


@click.command(
    "bench",
    short_help="Measure throughput and latency.",
    # The command has its own settings: click keeps those of its first run outside the group.
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--suite",
    "suites",
    multiple=True,
    type=click.Choice(SUITES),
    help="raw frames, our client (these two by default), operations, scale, kinds of messages,"
    " all of these, or replicas; may be repeated.",
)
@click.option("--only", multiple=True, metavar="TEXT", help="Rows whose name contains TEXT.")
@click.option("--list", "list_rows", is_flag=True, help="Print the rows and their targets.")
@click.option(
    "--rounds",
    type=click.IntRange(1),
    help="Rounds a row; figures are their medians.  [default: 5; 20 with --against]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.05, 60),
    help="Timed part of a round.  [default: 3; 1 with --against]",
)
@click.option("--quick", is_flag=True, help="One round of one second, smaller fills.")
@click.option(
    "--kind",
    type=click.Choice(("send", "batch", "pull", "end-to-end")),
    help="One row of your own instead of a suite, from the options below.",
)
@click.option(
    "--body",
    "body_bytes",
    type=click.IntRange(12, 4_000_000),
    default=128,
    show_default=True,
    metavar="BYTES",
    help="Size of a body.",
)
@click.option("--connections", type=click.IntRange(1), default=1, show_default=True)
@click.option(
    "--window",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Requests in flight on each connection.",
)
@click.option(
    "--batch",
    "batch_count",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    help="Messages in a batch, for --kind batch.",
)
@click.option("--topics", type=click.IntRange(1, 10_000), default=1, show_default=True)
@click.option(
    "--queues",
    type=click.IntRange(1, 10),
    default=8,
    show_default=True,
    help="Queues of each topic.",
)
@click.option(
    "--flush",
    type=click.Choice(("async", "sync")),
    default="async",
    show_default=True,
    help="Flush mode of the broker.",
)
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    help="Broker setting by RocketMQ's name; may be repeated.",
)
@click.option(
    "--broker",
    "external",
    metavar="HOST:PORT",
    default="",
    help="Load this running broker instead of starting one.",
)
@click.option(
    "-n",
    "--name-server",
    "external_name_server",
    metavar="HOST:PORT",
    default="",
    help="With --broker: its name server, for client rows.  [env var: NAMESRV_ADDR]",
)
@click.option("--broker-name", default="broker-a", show_default=True)
@click.option(
    "--broker-pid",
    "external_pid",
    type=int,
    default=0,
    help="Its process id on this machine, for CPU and memory.",
)
@click.option(
    "--store",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the stores; a temporary one by default. Its disk is measured.",
)
@click.option("--restart-gb", type=click.FloatRange(0.001), default=6.0, show_default=True)
@click.option("--restart-queues", type=click.IntRange(8), default=1000, show_default=True)
@click.option(
    "--processes",
    type=click.IntRange(2, 100),
    default=2,
    show_default=True,
    help="Brokers of the row `processes`, beside one.",
)
@click.option(
    "--pin/--no-pin",
    default=True,
    show_default=True,
    help="Server on one core, generator on another.",
)
@click.option(
    "--echo/--no-echo",
    "with_echo",
    default=True,
    show_default=True,
    help="Run the echo server in turn with every row.",
)
@click.option("--json", "json_path", metavar="FILE", help="Write JSON too; - prints only JSON.")
@click.option(
    "--against",
    type=click.Choice(("java",)),
    help="Run rows beside RocketMQ's Java broker, round by round in turn; needs Java and Maven.",
)
@click.option(
    "--warm-up",
    type=click.FloatRange(0, 600),
    default=40.0,
    show_default=True,
    metavar="SECONDS",
    help="Load on each started Java broker before it is timed, for its JIT.",
)
@click.option(
    "--java-heap",
    default="4g",
    show_default=True,
    metavar="SIZE",
    help="Heap of the Java broker in the rate rows; memory is always measured with 256m.",
)
@click.option("--html", "html_path", metavar="FILE", help="With --against: a page with charts.")
def bench_command(**options: Any) -> int:  # fmt: skip
    """Measure throughput and latency, and read back everything that was acknowledged.

    Each row gets a fresh broker process on one core and a load generator on another. Rounds
    against the broker alternate with rounds of the same load against an echo server, which only
    parses and answers. The share of echo compares machines. A row counts only when every
    acknowledged message was read back with the right checksum. Exit code 1: a row failed.
    """
    if options["list_rows"]:
        _list_rows(options["against"])
        return 0
    if options["against"]:
        return _measure_against(options)
    if options["html_path"]:
        raise ConfigError("--html draws a comparison; give --against java too")
    options["external_name_server"] = _name_server_of(options)
    return _measure(options)


def _name_server_of(options: dict[str, Any]) -> str:
    """The name server of the running broker, if one is loaded."""
    given: str = options["external_name_server"]
    if options["external"]:
        return given or os.environ.get("NAMESRV_ADDR", "")
    if given:
        raise ConfigError(
            f"-n {given}: bench starts a cluster of its own unless it is given the broker to load, "
            "by --broker HOST:PORT"
        )
    return ""


def _measure_against(options: dict[str, Any]) -> int:
    if options["external"]:
        raise ConfigError("--against starts both brokers itself; leave out --broker")
    from bench.java.against_main import measure_against

    with _store_folder(options["folder"]) as folder:
        return measure_against(options, _settings(options, folder), _say)


@contextmanager
def _store_folder(wanted: Path | None) -> Iterator[Path]:
    """The folder for the stores; a temporary one is removed afterwards."""
    if wanted is not None:
        wanted.mkdir(parents=True, exist_ok=True)
        yield wanted
        return
    folder = Path(tempfile.mkdtemp(prefix="cometmq-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _settings(options: dict[str, Any], folder: Path) -> Settings:
    server_core, generator_core = _pick_cores(options["pin"])
    quick = options["quick"]
    rounds, seconds = (PAIRS, PAIR_SECONDS) if options["against"] else (ROUNDS, ROUND_SECONDS)
    seconds = options["seconds"] or seconds
    return Settings(
        folder=folder,
        rounds=1 if quick else options["rounds"] or rounds,
        seconds=min(seconds, QUICK_SECONDS) if quick else seconds,
        server_core=server_core,
        generator_core=generator_core,
        fill_messages=QUICK_FILL if quick else 200_000,
        broker_settings=_assignments(options["assignments"]),
        broker_name=options["broker_name"],
        external=options["external"],
        external_name_server=options["external_name_server"],
        external_pid=options["external_pid"],
    )


def _conditions(settings: Settings) -> Conditions:
    machine = machine_conditions(settings.folder, settings.server_core, settings.generator_core)
    run_rows = (
        ("rounds", f"{settings.rounds} of {settings.seconds:g} s, medians shown"),
        ("server", f"running broker {settings.external}" if settings.external
         else "cometmq up, a fresh store for each row"),
        ("broker settings", ", ".join(f"{k}={v}" for k, v in settings.broker_settings.items())
         or "defaults"),
    )  # fmt: skip
    return Conditions(machine.rows + run_rows, machine.fdatasync_us)


def _measure(options: dict[str, Any]) -> int:
    loads, operations = _chosen(options["suites"], options["only"])
    if options["kind"]:
        loads, operations = [_own_row(options)], list[str]()
    if options["external"] and operations:
        raise ConfigError("operations start and kill their own brokers; leave out --broker")
    rows: list[Row] = []
    facts: list[Fact] = []
    with _store_folder(options["folder"]) as folder:
        settings = _settings(options, folder)
        conditions = _conditions(settings)
        _run_loads(loads, settings, options["with_echo"], rows)
        for name in operations:
            more_rows, more_facts = _operate(name, settings, options)
            rows += more_rows
            facts += more_facts
    facts = sync_flush_fact(conditions, rows) + facts
    text, document = as_text(conditions, rows, facts), as_json(conditions, rows, facts)
    write_report(text, document, options["json_path"])
    return 1 if any(row.error for row in rows) else 0


def _operate(
    name: str, settings: Settings, options: dict[str, Any]
) -> tuple[list[Row], list[Fact]]:
    quick = options["quick"]
    if name.startswith("scale "):
        from bench.suites.scale import Sizes, measure_scale  # brings numpy

        sizes = Sizes().smaller(QUICK_SCALE) if quick else Sizes()
        return measure_scale(name.removeprefix("scale "), settings, _say, sizes)
    if name.startswith("replicas "):
        return measure_replicas(name.removeprefix("replicas "), settings, _say)
    if name == KINDS:
        return measure_kinds(settings, _say, _kind_loads(options["only"]))
    return measure_operation(
        name,
        settings,
        _say,
        gigabytes=min(options["restart_gb"], 0.2) if quick else options["restart_gb"],
        queues=options["restart_queues"],
        processes=options["processes"],
    )


def _kind_loads(only: Sequence[str]) -> tuple[Load, ...]:
    """The loads of the wanted kinds, and the plain messages for comparison."""
    wanted = [
        load for load in KIND_LOADS[1:] if any(part in load.name for part in only if part != KINDS)
    ]
    return (KIND_LOADS[0], *(wanted or KIND_LOADS[1:]))


def _own_row(options: dict[str, Any]) -> Load:
    return custom_load(
        options["kind"],
        connections=options["connections"],
        window=options["window"],
        body_bytes=options["body_bytes"],
        batch_count=options["batch_count"] if options["kind"] == "batch" else 0,
        topics=options["topics"],
        queues=options["queues"],
        flush=options["flush"],
    )


def _run_loads(loads: list[Load], settings: Settings, with_echo: bool, rows: list[Row]) -> None:
    with ExitStack() as stack:
        echo = None
        if with_echo and any(load.has_echo or load.echo_as for load in loads):
            echo = stack.enter_context(start_echo(settings.folder, core=settings.server_core))
        for number, load in enumerate(loads, 1):
            _say(f"{number}/{len(loads)} {load.name}")
            rows.append(run_row(load, settings, echo))


def run(argv: Sequence[str]) -> int:
    """`cometmq bench` with arguments as a list; returns the exit code."""
    result = bench_command.main(list(argv), prog_name="cometmq bench", standalone_mode=False)
    return int(result or 0)


if __name__ == "__main__":
    raise SystemExit(run(sys.argv[1:]))
