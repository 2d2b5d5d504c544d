"""Runs a comparison: both brokers share the server's core, and one of them is always stopped.

A comparison whose Java side is missing is refused before anything runs.

Rows of a group share a pair of brokers on fresh stores.  The Java broker is first loaded with the
rows of the group for its warm-up time.  Then the rounds of every row alternate between ours and
theirs, with a short untimed part before each.  While one side is measured, the processes of the
other are stopped (SIGSTOP), so that an idle JVM's threads take no time.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from bench.base.loads import Load, Round, Rounds, WorkOrder
from bench.base.measure import median_of, read_machine, read_process, shares_of_others
from bench.base.processes import Server, run_worker, start_broker
from bench.java.against import FLAT_COST, Comparison, RowSpec
from bench.java.java_load import JavaLoad, start_java_load
from bench.java.java_peer import (
    RATE_HEAP,
    READY_S_MAX,
    SMALL_HEAP,
    JavaBroker,
    load_program,
    server_class_path,
    start_java_broker,
)
from bench.suites.kinds import KIND_SETTINGS, kind_round
from bench.suites.operations import restart_load
from bench.suites.suite import SYNC_FLUSH, Settings, run_row
from cometmq.errors import CometError

__all__ = ["Plan", "compare", "short"]

WARM_UP_ROUND_S: Final = 5.0
WARM_UP_FAILURES_MAX: Final = 20
OUR_WARM_UP_S: Final = 1.0
IDLE_AFTER_S: Final = 5.0
GROUP_SETTINGS: Final = {"synchronous flush": SYNC_FLUSH, "kinds": KIND_SETTINGS}
"""What both brokers of a group are started with."""
READY_AFTER_KILL_S_MAX: Final = 300.0
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a comparison; `settings` are those of the other suites.

    A Java broker is loaded for `warm_up_s` seconds before a group is timed.  Its consumer reads
    `backlog` messages.  A killed broker's store holds `restart_gb` gigabytes.
    """

    settings: Settings
    warm_up_s: float = 40.0
    heap: str = RATE_HEAP
    backlog: int = 300_000
    restart_gb: float = 6.0
    restart_queues: int = 1000
    idle_after_s: float = IDLE_AFTER_S


def compare(plan: Plan, rows: list[RowSpec], say: Say) -> list[Comparison]:
    """Compare all rows; a failure becomes the row's error.

    Raises:
        PeerMissing: the rows need Java, and Java, its compiler, Maven or the jars are missing.
    """
    _need_peer(plan, rows)
    found: list[Comparison] = []
    for group in dict.fromkeys(row.group for row in rows):
        comparisons = [Comparison(row) for row in rows if row.group == group]
        found += comparisons
        try:
            if group == FLAT_COST:
                for comparison in comparisons:
                    _flat_cost(plan, comparison, say)
            elif group == "operations":
                for comparison in comparisons:
                    _operation(plan, comparison, say)
            else:
                _run_group(plan, group, comparisons, say)
        except CometError as error:
            for comparison in comparisons:
                if not comparison.has_figures:
                    comparison.error = comparison.error or str(error)
    return found


def _need_peer(plan: Plan, rows: list[RowSpec]) -> None:
    if any(row.group != FLAT_COST for row in rows):
        server_class_path()
    if any(row.call is not None for row in rows):
        load_program(plan.settings.folder)


# -- rates ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Pair:
    """Both brokers of a group, and the Java client if the group needs it."""

    plan: Plan
    ours: Server
    theirs: JavaBroker
    client: JavaLoad | None

    @property
    def pids(self) -> list[int]:
        """The processes that are ours and not children that have ended."""
        servers = (self.ours, self.theirs.broker, self.theirs.name_server)
        own = [server.pid for server in servers]
        return [*own, self.client.pid] if self.client is not None else own

    @contextlib.contextmanager
    def only(self, is_ours: bool) -> Iterator[Server]:
        """Let one side run while the other is stopped."""
        if is_ours:
            self.theirs.pause()
        else:
            self.ours.pause()
        try:
            yield self.ours if is_ours else self.theirs.broker
        finally:
            self.theirs.resume()
            self.ours.resume()

    def round(self, row: RowSpec, *, is_ours: bool, seconds: float, warm_up_s: float) -> Round:
        """Run one verified round against one side."""
        with self.only(is_ours) as server:
            if row.call is not None:
                assert self.client is not None
                return self.client.round(
                    row.call,
                    server,
                    seconds=seconds,
                    warm_up_s=warm_up_s,
                    messages=self.plan.backlog,
                )
            assert row.load is not None
            if row.load.kind == "message":
                return kind_round(self.plan.settings, row.load, server, seconds)
            return _raw_round(self.plan.settings, row.load, server, seconds, warm_up_s)


def _raw_round(
    settings: Settings, load: Load, server: Server, seconds: float, warm_up_s: float
) -> Round:
    order = WorkOrder(
        load=load,
        address=server.address,
        name_server=server.name_server,
        broker_name=settings.broker_name,
        server_pid=server.pid,
        core=settings.generator_core,
        rounds=1,
        seconds=seconds,
        warm_up_s=warm_up_s,
        fill_messages=settings.fill_messages,
        seed=time.time_ns() // 1_000_000 % 1_000_000_000,  # noqa: TID251
    )
    answer = run_worker("bench.worker.worker", msgspec.json.encode(order), settings.generator_core)
    return msgspec.json.decode(answer, type=Rounds).rounds[0]


def _run_group(plan: Plan, group: str, comparisons: list[Comparison], say: Say) -> None:
    settings = plan.settings
    folder = settings.folder / f"against-{time.monotonic_ns()}"
    folder.mkdir(parents=True)
    extra = GROUP_SETTINGS.get(group, {})
    say(f"{group}: starting both brokers, Java with a heap of {plan.heap}")
    try:
        with contextlib.ExitStack() as stack:
            theirs = stack.enter_context(
                start_java_broker(
                    folder / "java", core=settings.server_core, heap=plan.heap, settings=extra
                )
            )
            ours = stack.enter_context(
                start_broker(
                    folder / "ours",
                    core=settings.server_core,
                    settings={**extra, **settings.broker_settings},
                )
            )
            client = None
            if any(comparison.spec.call is not None for comparison in comparisons):
                client = stack.enter_context(
                    start_java_load(
                        folder / "client",
                        core=settings.generator_core,
                        is_binary=group.endswith("binary"),
                    )
                )
            pair = _Pair(plan, ours, theirs, client)
            _warm_up(pair, [comparison.spec for comparison in comparisons], say)
            for comparison in comparisons:
                _measure(pair, comparison, say)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _warm_up(pair: _Pair, rows: list[RowSpec], say: Say) -> None:
    """Load theirs with the group's rows for the warm-up time, and ours shortly with each row.

    These rounds are verified like the timed ones; a send that a cold JVM refuses only costs time.
    """
    total = pair.plan.warm_up_s
    if not total:
        return
    each = min(WARM_UP_ROUND_S, max(total / len(rows), 0.2))
    loaded, failures, number = 0.0, 0, 0
    while loaded < total:
        row = rows[number % len(rows)]
        say(f"warming Java up: {row.name}, {loaded:.0f} of {total:.0f} s")
        try:
            one = pair.round(row, is_ours=False, seconds=each, warm_up_s=0.0)
            # A backlog has no time limit.
            loaded += one.seconds
        except CometError as error:
            failures += 1
            loaded += each
            say(f"warm-up: {error}")
            if failures >= WARM_UP_FAILURES_MAX:
                raise
        number += 1
    for row in rows:
        pair.round(row, is_ours=True, seconds=min(OUR_WARM_UP_S, each), warm_up_s=0.0)


def _measure(pair: _Pair, comparison: Comparison, say: Say) -> None:
    settings, row = pair.plan.settings, comparison.spec
    before = read_machine(pair.pids)
    # The JVM may have compiled its code for the previous row.
    again = min(WARM_UP_ROUND_S, pair.plan.warm_up_s / 10)
    try:
        if again:
            pair.round(row, is_ours=False, seconds=again, warm_up_s=0.0)
        for number in range(settings.rounds):
            say(f"{row.name}, round {number + 1} of {settings.rounds}")
            for is_ours, rounds in (
                (True, comparison.our_rounds),
                (False, comparison.their_rounds),
            ):
                rounds.append(
                    pair.round(
                        row,
                        is_ours=is_ours,
                        seconds=settings.seconds,
                        warm_up_s=settings.warm_up_s,
                    )
                )
    except CometError as error:
        comparison.error = str(error)
    shares = shares_of_others(before, read_machine(pair.pids))
    comparison.stolen_share, comparison.others_share = shares


def _flat_cost(plan: Plan, comparison: Comparison, say: Say) -> None:
    """Ours under both loads of the row, each round on a fresh broker, in turn."""
    row, settings = comparison.spec, replace(plan.settings, rounds=1)
    assert row.load is not None
    assert row.baseline is not None
    before = read_machine()
    for number in range(plan.settings.rounds):
        say(f"{row.name}, round {number + 1} of {plan.settings.rounds}")
        for load, rounds in (
            (row.load, comparison.our_rounds),
            (row.baseline, comparison.their_rounds),
        ):
            once = run_row(load, settings, None)
            if once.error:
                comparison.error = once.error
                return
            rounds.extend(once.rounds)
    comparison.note = "the columns of Java show ours over 8 queues"
    shares = shares_of_others(before, read_machine())
    comparison.stolen_share, comparison.others_share = shares


# -- start-up, memory, restart --------------------------------------------------------------------


def _operation(plan: Plan, comparison: Comparison, say: Say) -> None:
    folder = plan.settings.folder / f"against-{time.monotonic_ns()}"
    folder.mkdir(parents=True)
    steps = {"start-up": _start_up, "idle memory": _idle_memory, "restart": _restart}
    before = read_machine()
    try:
        steps[comparison.spec.name](plan, comparison, folder, say)
    except CometError as error:
        comparison.error = str(error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    # All servers have ended; their CPU time counts as that of our children.
    comparison.stolen_share, comparison.others_share = shares_of_others(before, read_machine())


def _start_up(plan: Plan, comparison: Comparison, folder: Path, say: Say) -> None:
    """Time from an empty store to the first answer: ours with its name server, theirs without."""
    settings = plan.settings
    name_servers: list[float] = []
    for number in range(settings.rounds):
        say(f"start-up, round {number + 1} of {settings.rounds}")
        with start_broker(
            folder / f"ours-{number}", core=settings.server_core, settings=settings.broker_settings
        ) as ours:
            comparison.our_values.append(ours.ready_s)
        with start_java_broker(
            folder / f"java-{number}", core=settings.server_core, heap=SMALL_HEAP
        ) as theirs:
            comparison.their_values.append(theirs.broker.ready_s)
            name_servers.append(theirs.name_server.ready_s)
    comparison.note = (
        f"ours: name server and broker in one process; Java: the broker alone with a heap of "
        f"{SMALL_HEAP}, after {median_of(list(name_servers)):.1f} s of its name server"
    )


def _idle_memory(plan: Plan, comparison: Comparison, folder: Path, say: Say) -> None:
    """Resident memory of all processes of a side, idle after the start."""
    settings = plan.settings
    parts: list[tuple[float, float]] = []
    for number in range(settings.rounds):
        say(f"idle memory, round {number + 1} of {settings.rounds}")
        with start_broker(
            folder / f"ours-{number}", core=settings.server_core, settings=settings.broker_settings
        ) as ours:
            time.sleep(plan.idle_after_s)
            comparison.our_values.append(_resident_mb(ours))
        with start_java_broker(
            folder / f"java-{number}", core=settings.server_core, heap=SMALL_HEAP
        ) as theirs:
            time.sleep(plan.idle_after_s)
            both = _resident_mb(theirs.broker), _resident_mb(theirs.name_server)
            comparison.their_values.append(sum(both))
            parts.append(both)
    broker, name_server = (median_of([part[side] for part in parts]) for side in (0, 1))
    comparison.note = (
        f"Java: heaps of {SMALL_HEAP}, broker {broker:.0f} MB and name server {name_server:.0f} MB"
    )


def _resident_mb(server: Server) -> float:
    reading = read_process(server.pid)
    if reading is None:
        raise CometError("this system has no /proc to read a process's memory from")
    return reading.resident_kb / 1024


def _restart(plan: Plan, comparison: Comparison, folder: Path, say: Say) -> None:
    """Fill, kill -9, start again until it answers, read everything back; ours, then theirs."""
    settings = plan.settings

    @contextlib.contextmanager
    def our_broker(ready_s_max: float) -> Iterator[Server]:
        with start_broker(
            folder / "ours",
            core=settings.server_core,
            settings=settings.broker_settings,
            ready_s_max=ready_s_max,
        ) as server:
            yield server

    @contextlib.contextmanager
    def java_broker(ready_s_max: float) -> Iterator[Server]:
        with start_java_broker(
            folder / "java", core=settings.server_core, heap=SMALL_HEAP, ready_s_max=ready_s_max
        ) as pair:
            yield pair.broker

    load, messages = restart_load(plan.restart_gb, plan.restart_queues)
    counts = []
    for name, start, values in (
        ("ours", our_broker, comparison.our_values),
        ("Java", java_broker, comparison.their_values),
    ):
        say(f"restart: filling {plan.restart_gb:g} GB, {name}")
        with start(READY_S_MAX) as server:
            order = WorkOrder(
                load=load,
                address=server.address,
                core=settings.generator_core,
                rounds=1,
                fill_messages=messages,
                broker_name=settings.broker_name,
                state_path=str(folder / f"{name}.npz"),
            )
            _work(order, settings)
            server.kill()
        say(f"restart: {name} was killed; starting again")
        with start(READY_AFTER_KILL_S_MAX) as server:
            values.append(server.ready_s)
            check = _reading_back(order, server.address)
            counts.append(_work(check, settings).rounds[0].read_back)
        shutil.rmtree(folder / name.lower(), ignore_errors=True)
    comparison.note = (
        f"kill -9 with {plan.restart_gb:g} GB in {load.topics * load.queues} queues; "
        f"{counts[0]:,} and {counts[1]:,} acknowledged messages read back"
    )


def _reading_back(order: WorkOrder, address: str) -> WorkOrder:
    """The order that reads back the messages of ``order``."""
    check = msgspec.structs.replace(order.load, kind="check")
    return msgspec.structs.replace(order, address=address, load=check)


def _work(order: WorkOrder, settings: Settings) -> Rounds:
    answer = run_worker("bench.worker.worker", msgspec.json.encode(order), settings.generator_core)
    return msgspec.json.decode(answer, type=Rounds)


def short(plan: Plan) -> Plan:
    """The plan of a trial: one round of at most a second, with small stores."""
    seconds = min(plan.settings.seconds, 1.0)
    settings = replace(plan.settings, rounds=1, seconds=seconds, fill_messages=50_000)
    return replace(
        plan,
        settings=settings,
        warm_up_s=min(plan.warm_up_s, 2.0),
        backlog=min(plan.backlog, 50_000),
        restart_gb=min(plan.restart_gb, 0.2),
        idle_after_s=1.0,
    )
