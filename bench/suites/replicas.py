"""Replicas: what slaves cost a master, what waiting for them costs, how fast they catch up.

sends       the same load on a broker alone, on masters with one and two slaves, and on one that
            answers when its slave has the message; round by round in turn
catch-up    a filled master gets its first slave: bytes and records a second from the slave's first
            byte to the master's last
java        both on RocketMQ's brokers, where Java is

Nothing is pinned: load, master and slaves share the cores.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from bench.base.control import log_end, slave_count
from bench.base.loads import Load, WorkOrder
from bench.base.processes import Server, free_ports, run_worker, spawn, start_broker
from bench.suites.report import Fact, Row, cpu_us_each
from bench.suites.suite import Settings, run_row
from cometmq.errors import ClientError, CometError
from cometmq.net.env import system_environment
from cometmq.net.loop import run

__all__ = ["REPLICAS", "measure_replicas"]

REPLICAS: Final = ("sends", "catch-up", "java")
SYNC_RATIO_FLOOR: Final = 0.5
CATCH_UP_MB_FLOOR: Final = 200.0
CATCH_UP_RECORDS_FLOOR: Final = 250_000.0
FOLLOW_S_MAX: Final = 120.0
LOOK_EVERY_S: Final = 0.01
JAVA_HEAP: Final = "1g"
SEND: Final = Load(name="send 1x32", kind="send", window=32, has_echo=False)
FILL: Final = Load(name="fill", kind="fill", window=4, batch_count=100, has_echo=False)
SIZES: Final = (1024, 100)
"""Bodies of the records that are caught up with: of those the floors are for."""
ONE_FILE: Final = {"mappedFileSizeCommitLog": str(1 << 30)}
"""A fresh RocketMQ slave gets the last file only."""
MASTER: Final = {**ONE_FILE, "brokerRole": "ASYNC_MASTER"}
WAITING: Final = {**ONE_FILE, "brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"}
SLAVE: Final = {**ONE_FILE, "brokerRole": "SLAVE", "slaveReadEnable": "true"}

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Kind:
    """How the brokers of one kind are started: a master, and a slave of it."""

    name: str
    start_master: Callable[[Path, Mapping[str, str]], contextlib.AbstractContextManager[Server]]
    start_slave: Callable[
        [Path, Server, Mapping[str, str]], contextlib.AbstractContextManager[Server]
    ]


def _our_master(
    folder: Path, settings: Mapping[str, str]
) -> contextlib.AbstractContextManager[Server]:
    return start_broker(folder, settings=settings)


@contextlib.contextmanager
def _our_slave(folder: Path, master: Server, settings: Mapping[str, str]) -> Iterator[Server]:
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "cometmq", "-q", "broker", "--store", str(folder)]
    command += ["--listen", "127.0.0.1", "--port", str(port), "-n", master.name_server]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    log = folder.with_suffix(".log")
    address = f"127.0.0.1:{port}"
    server = Server(address, master.name_server, spawn(command, log, None), log, 0.0)
    try:
        yield server
    finally:
        server.stop()


OURS: Final = _Kind("cometmq", _our_master, _our_slave)


def _java() -> _Kind:
    """RocketMQ's brokers.

    Raises:
        PeerMissing: Java or the jars are missing.
    """
    from bench.java.java_peer import join_java_broker, server_class_path, start_java_broker

    server_class_path()

    @contextlib.contextmanager
    def start_master(folder: Path, settings: Mapping[str, str]) -> Iterator[Server]:
        with start_java_broker(folder, heap=JAVA_HEAP, settings=settings) as java:
            java.broker.name_server = java.name_server.address
            yield java.broker

    def start_slave(
        folder: Path, master: Server, settings: Mapping[str, str]
    ) -> contextlib.AbstractContextManager[Server]:
        return join_java_broker(folder, master.name_server, heap=JAVA_HEAP, settings=settings)

    return _Kind("RocketMQ", start_master, start_slave)


@contextlib.contextmanager
def _members(
    kind: _Kind, settings: Settings, master: Mapping[str, str], slave_count: int
) -> Iterator[Server]:
    """Run a master and slaves that follow it."""
    folder = settings.folder / f"replicas-{time.monotonic_ns()}"
    folder.mkdir()
    wanted = {**master, "brokerName": settings.broker_name, **settings.broker_settings}
    try:
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(kind.start_master(folder / "master", wanted))
            for number in range(1, slave_count + 1):
                slave = {**SLAVE, "brokerName": settings.broker_name, "brokerId": str(number)}
                stack.enter_context(kind.start_slave(folder / f"slave-{number}", server, slave))
            if slave_count:
                _wait_for_slaves(server, slave_count)
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for_slaves(master: Server, count: int) -> None:
    deadline = time.monotonic() + FOLLOW_S_MAX
    while run(slave_count(system_environment(), master.address)) < count:
        if time.monotonic() > deadline:
            raise ClientError(f"{count} slaves do not follow: {master.log_tail()}")
        time.sleep(LOOK_EVERY_S)


# -- sends ----------------------------------------------------------------------------------------


def _sends(kind: _Kind, settings: Settings, say: Say) -> tuple[list[Row], list[Fact]]:
    cases = (
        ("alone", MASTER, 0),
        ("1 slave", MASTER, 1),
        ("2 slaves", MASTER, 2),
        ("waits for 1 slave", WAITING, 1),
    )
    rows = [
        Row(msgspec.structs.replace(SEND, name=f"{SEND.name}, {kind.name}, {case}"))
        for case, _, _ in cases
    ]
    for number in range(settings.rounds):
        for row, (_, master, count) in zip(rows, cases, strict=True):
            say(f"{row.load.name}, round {number + 1} of {settings.rounds}")
            with _members(kind, settings, master, count) as server:
                once = replace(settings, rounds=1, generator_core=None, external=server.address)
                once = replace(
                    once, external_pid=server.pid, external_name_server=server.name_server
                )
                result = run_row(row.load, once, None)
            if result.error:
                row.error = result.error
                return rows, []
            row.rounds += result.rounds
    alone, follows, _, waits = (row.median("rate") or 0.0 for row in rows)
    costs = [cpu_us_each(row.rounds) for row in rows]
    facts = [
        Fact(
            f"{kind.name}: sends that wait for a slave, to those that do not",
            waits / follows if follows else 0.0,
            "x",
            floor=SYNC_RATIO_FLOOR if kind is OURS else None,
            note=f"one slave, 32 in flight; to a broker alone {waits / (alone or 1.0):.2f}",
        )
    ]
    if all(costs):
        shown = ", ".join(f"{cost:.2f}" for cost in costs)
        name = f"{kind.name}: master's cost of a send and slave"
        extra = ((costs[2] or 0.0) - (costs[0] or 0.0)) / 2
        facts.append(
            Fact(name, extra, "us", note=f"alone, 1 and 2 slaves, waiting: {shown} us of CPU")
        )
    return rows, facts


# -- catch-up -------------------------------------------------------------------------------------


def _catch_up(kind: _Kind, settings: Settings, say: Say) -> list[Fact]:
    facts: list[Fact] = []
    for body_bytes in SIZES:
        count = settings.fill_messages * (3 if body_bytes >= 1024 else 6)
        say(f"{kind.name}: {count:,} records with bodies of {body_bytes} bytes, then a slave")
        mb_s, records_s, note = _caught_up(kind, settings, body_bytes, count)
        floors = (CATCH_UP_MB_FLOOR, CATCH_UP_RECORDS_FLOOR) if kind is OURS else (None, None)
        is_large = body_bytes >= 1024
        name = f"{kind.name}: catch-up, bodies of {body_bytes} bytes"
        facts.append(Fact(name, mb_s, "MB/s", floor=floors[0] if is_large else None, note=note))
        facts.append(Fact(name, records_s, "1/s", floor=None if is_large else floors[1]))
    return facts


def _caught_up(
    kind: _Kind, settings: Settings, body_bytes: int, count: int
) -> tuple[float, float, str]:
    """Bytes (MB) and records a second of a slave that begins with nothing."""
    with _members(kind, settings, MASTER, 0) as master:
        order = WorkOrder(
            load=msgspec.structs.replace(FILL, body_bytes=body_bytes),
            address=master.address,
            rounds=1,
            fill_messages=count,
            broker_name=settings.broker_name,
            state_path=str(settings.folder / "filled.npz"),
        )
        run_worker("bench.worker.worker", msgspec.json.encode(order), None)
        (settings.folder / "filled.npz").unlink(missing_ok=True)
        end = run(log_end(system_environment(), master.address))
        folder = settings.folder / f"slave-{time.monotonic_ns()}"
        slave = {**SLAVE, "brokerName": settings.broker_name, "brokerId": "1"}
        try:
            with kind.start_slave(folder, master, slave) as server:
                seconds, copied = _time_copy(server, end)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            folder.with_suffix(".log").unlink(missing_ok=True)
    rate = copied / seconds
    note = f"{copied / 1e6:,.0f} MB in {seconds:.2f} s, queues and index derived"
    return rate / 1e6, rate / (end / count), note


def _time_copy(slave: Server, end: int) -> tuple[float, int]:
    """Seconds between the first look with bytes and the last one, and the bytes between."""
    deadline = time.monotonic() + FOLLOW_S_MAX
    begin, first = 0.0, 0
    while True:
        try:
            now_end = run(log_end(system_environment(), slave.address))
        except CometError:
            now_end = 0
        now = time.monotonic()
        if now_end and not first:
            begin, first = now, now_end
        if now_end == end and first:
            # Where the first look has found all of it, one look is the finest that is known.
            return max(now - begin, LOOK_EVERY_S), end - first or end
        if now > deadline or slave.process.poll() is not None:
            raise ClientError(f"the slave does not catch up, at {now_end} of {end}")
        time.sleep(LOOK_EVERY_S)


def measure_replicas(name: str, settings: Settings, say: Say) -> tuple[list[Row], list[Fact]]:
    """Rows and facts of one step; a failure becomes the error of a row."""
    try:
        if name == "sends":
            return _sends(OURS, settings, say)
        if name == "catch-up":
            return [], _catch_up(OURS, settings, say)
        kind = _java()
        rows, facts = _sends(kind, settings, say)
        return rows, facts + _catch_up(kind, settings, say)
    except CometError as error:
        return [Row(Load(name=f"replicas {name}", kind="send"), error=str(error))], []
