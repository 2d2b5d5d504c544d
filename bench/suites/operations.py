"""Operations that are no rates: start, idle memory, restart after kill -9, queues, rolling files.

start       `cometmq up` on an empty store until it answers a request, and its memory when idle
restart     N GB over Q queues, kill -9, `cometmq up` until it answers, everything read back
queues      the same load over 8 and over 10,000 queues, round by round in turn
rolling     p99.9 to p50 while small log files roll, are flushed and expire
processes   the same load over one broker process and over several (`family`)
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from bench.base.loads import Load, Rounds, WorkOrder
from bench.base.measure import ProcessReading, median_of, read_process
from bench.base.processes import Server, run_worker, start_broker
from bench.suites.family import measure_processes
from bench.suites.report import Fact, Row, cpu_us_each
from bench.suites.suite import Settings, run_row
from cometmq.errors import CometError

__all__ = ["OPERATIONS", "measure_operation", "restart_load"]

READY_S_LIMIT: Final = 0.4
IDLE_MB_LIMIT: Final = 60.0
RESTART_S_LIMIT: Final = 1.0
QUEUES_RATIO_LIMIT: Final = 1.2
ROLLING_RATIO_LIMIT: Final = 10.0
IDLE_AFTER_S: Final = 2.0
RESTART_BODY_BYTES: Final = 4096
FILL_BATCH: Final = 100
READY_AFTER_KILL_S_MAX: Final = 300.0

Say = Callable[[str], None]

TRAFFIC: Final = Load(name="a little traffic", kind="send", window=8, has_echo=False)
TRAFFIC_S: Final = 0.2
FEW_QUEUES: Final = Load(name="send 4x64, 8 queues", kind="send", connections=4, has_echo=False)
MANY_QUEUES: Final = Load(
    name="send 4x64, 10,000 queues", kind="send", connections=4, topics=1250, has_echo=False
)
ROLLING: Final = Load(
    name="send 4x64, rolling",
    kind="send",
    connections=4,
    has_echo=False,
    may_expire=True,
    settings={
        "mappedFileSizeCommitLog": str(8 << 20),
        "mappedFileSizeConsumeQueue": str(20 * 3000),
        "fileReservedTime": "1",  # hours, the minimum; `suite._growing_old` makes files old enough
        "deleteWhen": ";".join(f"{hour:02d}" for hour in range(24)),
        "cleanResourceInterval": "500",
    },
)


def _start(settings: Settings, say: Say) -> tuple[list[Row], list[Fact]]:
    """Measure the time to ready, idle memory, and idle memory after a little traffic."""
    ready: list[float] = []
    idle: list[ProcessReading] = []
    used: list[ProcessReading] = []
    for number in range(settings.rounds):
        say(f"start {number + 1} of {settings.rounds}")
        store = settings.folder / f"start-{time.monotonic_ns()}"
        try:
            with start_broker(
                store, core=settings.server_core, settings=settings.broker_settings
            ) as server:
                ready.append(server.ready_s)
                _read_when_idle(server, idle)
                order = WorkOrder(
                    load=TRAFFIC, address=server.address, core=settings.generator_core,
                    rounds=1, seconds=TRAFFIC_S, broker_name=settings.broker_name,
                )  # fmt: skip
                _worker(order, settings)
                _read_when_idle(server, used)
        finally:
            _remove(store)
    facts = [Fact("ready on an empty store", _median(ready), "s", READY_S_LIMIT, _spread(ready))]
    for name, readings, limit in (
        ("idle resident memory", idle, IDLE_MB_LIMIT),
        ("idle again after traffic", used, None),
    ):
        if readings:
            resident = _median([one.resident_kb / 1024 for one in readings])
            anonymous = _median([one.anonymous_kb / 1024 for one in readings])
            facts.append(Fact(name, resident, "MB", limit, f"anonymous {anonymous:.1f} MB"))
    return [], facts


def _read_when_idle(server: Server, readings: list[ProcessReading]) -> None:
    time.sleep(IDLE_AFTER_S)
    reading = read_process(server.pid)
    if reading is not None:
        readings.append(reading)


def restart_load(gigabytes: float, queues: int) -> tuple[Load, int]:
    """The load that fills a store before the kill, and the number of messages for `gigabytes`."""
    load = Load(
        name="restart",
        kind="fill",
        connections=1,
        window=4,
        body_bytes=RESTART_BODY_BYTES,
        batch_count=FILL_BATCH,
        topics=max(queues // 8, 1),
        queues=min(queues, 8),
    )
    return load, int(gigabytes * 1e9 / (RESTART_BODY_BYTES + 250))


def _restart(settings: Settings, say: Say, *, gigabytes: float, queues: int) -> list[Fact]:
    """Fill over `queues` queues, kill -9 right after the last answer, start again, read back."""
    store = settings.folder / f"restart-{time.monotonic_ns()}"
    load, messages = restart_load(gigabytes, queues)
    try:
        say(f"filling {gigabytes:g} GB over {load.topics * load.queues} queues")
        with start_broker(
            store, core=settings.server_core, settings=settings.broker_settings
        ) as server:
            order = WorkOrder(
                load=load,
                address=server.address,
                core=settings.generator_core,
                rounds=1,
                fill_messages=messages,
                broker_name=settings.broker_name,
                state_path=str(store.with_suffix(".npz")),
            )
            _worker(order, settings)
            server.kill()
        say("killed; starting again")
        with start_broker(
            store,
            core=settings.server_core,
            settings=settings.broker_settings,
            ready_s_max=READY_AFTER_KILL_S_MAX,
        ) as server:
            ready_s = server.ready_s
            say("serving again; reading everything back")
            checked = _check_after_restart(order, server, settings)
    finally:
        _remove(store)
        store.with_suffix(".npz").unlink(missing_ok=True)
    name = f"ready after kill -9, {gigabytes:g} GB, {load.topics * load.queues} queues"
    note = f"{checked:,} acknowledged messages read back"
    return [Fact(name, ready_s, "s", RESTART_S_LIMIT, note)]


def _check_after_restart(order: WorkOrder, server: Server, settings: Settings) -> int:
    check = msgspec.structs.replace(
        order,
        address=server.address,
        load=msgspec.structs.replace(order.load, kind="check"),
    )
    return _worker(check, settings).rounds[0].read_back


def _worker(order: WorkOrder, settings: Settings) -> Rounds:
    answer = run_worker("bench.worker.worker", msgspec.json.encode(order), settings.generator_core)
    return msgspec.json.decode(answer, type=Rounds)


def _queues(settings: Settings, say: Say) -> tuple[list[Row], list[Fact]]:
    """Alternate the rounds of both rows, so that a slow minute of the machine affects both."""
    rows = [Row(FEW_QUEUES), Row(MANY_QUEUES)]
    one_round = replace(settings, rounds=1)
    for number in range(settings.rounds):
        for row in rows:
            say(f"{row.load.name}, round {number + 1} of {settings.rounds}")
            once = run_row(row.load, one_round, None)
            if once.error:
                row.error = once.error
                return rows, []
            row.rounds += once.rounds
            row.stolen_share += once.stolen_share / settings.rounds
            row.others_share += once.others_share / settings.rounds
    few, many = (row.median("rate") or 0.0 for row in rows)
    ratio = few / many if many else math.inf
    note = f"by rates {ratio:.2f}"
    few_us, many_us = (cpu_us_each(row.rounds) for row in rows)
    if few_us and many_us:
        # CPU time is the cost of a send; a rate also depends on other programs of the machine.
        ratio, note = many_us / few_us, f"{few_us:.1f} and {many_us:.1f} us of CPU; {note}"
    name = "cost of a send over 10,000 queues to 8"
    return rows, [Fact(name, ratio, "x", QUEUES_RATIO_LIMIT, note)]


def _rolling(settings: Settings, say: Say) -> tuple[list[Row], list[Fact]]:
    say(ROLLING.name)
    row = run_row(ROLLING, settings, None)
    p50, p999 = row.median("p50_us"), row.median("p999_us")
    if p50 is None or p999 is None:
        return [row], []
    sent = sum(one.acknowledged for one in row.rounds)
    expired = sum(one.expired for one in row.rounds)
    note = f"{expired:,} of {sent:,} messages had expired when they were to be read back"
    return [row], [
        Fact("p99.9 to p50 while files roll", p999 / p50, "x", ROLLING_RATIO_LIMIT, note)
    ]


OPERATIONS: Final = ("start", "restart", "queues", "rolling", "processes")


def measure_operation(
    name: str,
    settings: Settings,
    say: Say,
    *,
    gigabytes: float,
    queues: int,
    processes: int = 2,
) -> tuple[list[Row], list[Fact]]:
    """Rows and facts of one operation; a failure becomes the error of a row."""
    try:
        if name == "start":
            return _start(settings, say)
        if name == "restart":
            return [], _restart(settings, say, gigabytes=gigabytes, queues=queues)
        if name == "queues":
            return _queues(settings, say)
        if name == "processes":
            return measure_processes(settings, say, count=processes)
        return _rolling(settings, say)
    except CometError as error:
        return [Row(Load(name=name, kind="send"), error=str(error))], []


def _median(values: list[float]) -> float:
    median = median_of(list(values))
    assert median is not None
    return median


def _spread(values: list[float]) -> str:
    return f"{min(values):.3f} to {max(values):.3f}" if len(values) > 1 else ""


def _remove(store: Path) -> None:
    shutil.rmtree(store, ignore_errors=True)
    store.with_suffix(".log").unlink(missing_ok=True)
