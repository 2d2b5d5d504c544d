"""Compares `cometmq broker --processes N` with one broker under the same load.

There are as many generators as brokers, one for each broker; with one process all of them load that
broker.  No process is pinned, so brokers and generators share all cores: on a machine with two
cores the generators take the time that a second broker could use.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from bench.base.loads import Load, Round, Rounds, WorkOrder
from bench.base.processes import READY_S_MAX, Server, run_worker, spawn
from bench.suites.report import Fact, Row
from bench.suites.suite import Settings
from cometmq.errors import ClientError

__all__ = ["Family", "joined", "measure_processes", "start_family"]

READY: Final = re.compile(r"cometmq broker: ready in .*, brokers (.*), store ")
LOAD: Final = Load(name="send 4x64", kind="send", connections=4, has_echo=False)
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Family:
    """A running supervisor and the addresses of its brokers."""

    supervisor: Server
    addresses: tuple[str, ...]


@contextlib.contextmanager
def start_family(store: Path, count: int, settings: Settings) -> Iterator[Family]:
    """Run `cometmq broker --processes COUNT` on free ports; yield the family when it is ready.

    Raises:
        ClientError: it ended or was not ready in time; the text has its last lines.
    """
    command = [sys.executable, "-m", "cometmq", "-q", "broker", "--store", str(store)]
    command += ["--listen", "127.0.0.1", "--port", "0", "--processes", str(count)]
    for key, value in settings.broker_settings.items():
        command += ["--set", f"{key}={value}"]
    log = store.with_suffix(".log")
    begin = time.monotonic()
    process = spawn(command, log, None)
    server = Server("", "", process, log, 0.0)
    try:
        while (found := READY.search(log.read_text(errors="replace"))) is None:
            if process.poll() is not None or time.monotonic() > begin + READY_S_MAX:
                raise ClientError(f"{count} brokers did not start: {server.log_tail()}")
            time.sleep(0.01)
        server.ready_s = time.monotonic() - begin
        yield Family(server, tuple(found[1].split()))
    finally:
        server.stop()
        shutil.rmtree(store, ignore_errors=True)
        log.unlink(missing_ok=True)


def joined(parts: Sequence[Round]) -> Round:
    """Combine rounds that ran at the same time on several brokers, or on one, into one round.

    Rates and costs are added.  Of the latencies the worst is used, since percentiles of parts do
    not give a percentile of the whole.
    """

    def most(figure: str) -> float | None:
        values = [value for one in parts if (value := getattr(one, figure)) is not None]
        return max(values) if values else None

    return msgspec.structs.replace(
        parts[0],
        rate=sum(one.rate for one in parts),
        messages_rate=sum(one.messages_rate for one in parts),
        p50_us=most("p50_us"),
        p99_us=most("p99_us"),
        p999_us=most("p999_us"),
        max_us=most("max_us"),
        server_cpu_s=None,
        server_resident_kb=None,
        server_anonymous_kb=None,
        generator_cpu_s=max(one.generator_cpu_s for one in parts),
        acknowledged=sum(one.acknowledged for one in parts),
        read_back=sum(one.read_back for one in parts),
    )


def _round(family: Family, generators: int, settings: Settings, number: int) -> Round:
    addresses = family.addresses
    start = time.time_ns() // 1_000_000 % 100_000_000  # noqa: TID251
    orders = [
        WorkOrder(
            load=LOAD,
            address=addresses[generator % len(addresses)],
            rounds=1,
            seconds=settings.seconds,
            warm_up_s=settings.warm_up_s,
            broker_name=settings.broker_name,
            # The last digits distinguish the topics of the generators on one broker.
            seed=start + 1 + number * generators + generator,
        )
        for generator in range(generators)
    ]
    with ThreadPoolExecutor(generators) as pool:
        answers = pool.map(
            lambda order: run_worker("bench.worker.worker", msgspec.json.encode(order), None),
            orders,
        )
        return joined([msgspec.json.decode(a, type=Rounds).rounds[0] for a in answers])


def measure_processes(
    settings: Settings, say: Say, *, count: int = 2
) -> tuple[list[Row], list[Fact]]:
    """Measure one process and `count` processes in alternating rounds."""
    rows = []
    for processes in (1, count):
        word = "process" if processes == 1 else "processes"
        rows.append(Row(msgspec.structs.replace(LOAD, name=f"send 4x64, {processes} {word}")))
    unpinned = replace(settings, server_core=None, generator_core=None)
    with contextlib.ExitStack() as stack:
        families = [
            stack.enter_context(
                start_family(settings.folder / f"family-{n}-{time.monotonic_ns()}", n, unpinned)
            )
            for n in (1, count)
        ]
        for number in range(settings.rounds):
            for row, family in zip(rows, families, strict=True):
                say(f"{row.load.name}, round {number + 1} of {settings.rounds}")
                row.rounds.append(_round(family, count, unpinned, number))
    one, several = (row.median("rate") or 0.0 for row in rows)
    note = f"{count} generators of 4x64 each, nothing pinned; they share the cores with the brokers"
    return rows, [Fact(f"{count} processes to one", several / one if one else 0.0, "x", note=note)]
