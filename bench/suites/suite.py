"""Runs rows: each row has a fresh broker and store, the echo server, and a worker for the load.

Server and echo server share one core, and only one of them works at a time; the worker has the
other core. The store of a row is removed when the row is done.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from bench.base.loads import ECHO_LOADS, Load, Rounds, WorkOrder
from bench.base.measure import read_machine, shares_of_others
from bench.base.processes import Server, run_worker, start_broker
from bench.suites.report import Row
from cometmq.errors import CometError

__all__ = ["SYNC_FLUSH", "Settings", "run_row"]

AGE_S: Final = 7200.0
AGE_EVERY_S: Final = 0.1
SYNC_FLUSH: Final[dict[str, str]] = {"flushDiskType": "SYNC_FLUSH"}


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a session, the same for all rows.

    `folder` takes the stores. `external` is the address of a running broker to load instead of
    starting one, `external_pid` its process for /proc readings (0: none).
    """

    folder: Path
    rounds: int = 5
    seconds: float = 3.0
    server_core: int | None = None
    generator_core: int | None = None
    fill_messages: int = 200_000
    broker_settings: Mapping[str, str] = field(default_factory=dict)
    broker_name: str = "broker-a"
    external: str = ""
    external_name_server: str = ""
    external_pid: int = 0

    @property
    def warm_up_s(self) -> float:
        """Untimed part before each round."""
        return min(0.5, self.seconds / 5)


def _order(load: Load, settings: Settings, server: Server | None, echo: Server | None) -> WorkOrder:
    uses_echo = echo is not None and load.has_echo
    return WorkOrder(
        load=load,
        address=server.address if server else settings.external,
        name_server=server.name_server if server else settings.external_name_server,
        echo_address=echo.address if echo is not None and uses_echo else "",
        echo_pid=echo.pid if echo is not None and uses_echo else 0,
        broker_name=settings.broker_name,
        server_pid=server.pid if server else settings.external_pid,
        core=settings.generator_core,
        rounds=settings.rounds,
        seconds=settings.seconds,
        warm_up_s=settings.warm_up_s,
        fill_messages=settings.fill_messages,
        # Topics of a broker that is already running must not meet those of an earlier session.
        seed=time.time_ns() // 1_000_000 % 1_000_000_000,  # noqa: TID251
    )


def worker_module(load: Load) -> str:
    """The module of the worker that runs a load."""
    return "bench.worker.client_worker" if load.kind == "client" else "bench.worker.worker"


def run_row(load: Load, settings: Settings, echo: Server | None) -> Row:
    """Run one row; a failure becomes the row's error, so that the other rows still run."""
    pids = [pid for pid in (echo.pid if echo else 0, settings.external_pid) if pid]
    before = read_machine(pids)
    row = Row(load)
    try:
        if settings.external:
            _work(row, _order(load, settings, None, echo), settings)
        else:
            _run_with_own_broker(row, settings, echo)
        if echo is not None and load.echo_as:
            _work_on_echo(row, settings, echo)
    except CometError as error:
        row.error = str(error)
    row.stolen_share, row.others_share = shares_of_others(before, read_machine(pids))
    return row


def _run_with_own_broker(row: Row, settings: Settings, echo: Server | None) -> None:
    load = row.load
    store = settings.folder / f"store-{os.getpid()}-{time.monotonic_ns()}"
    wanted = {
        **(SYNC_FLUSH if load.flush == "sync" else {}),
        **load.settings,
        **settings.broker_settings,
    }
    try:
        with start_broker(store, core=settings.server_core, settings=wanted) as server:
            try:
                with _growing_old(store, load.may_expire):
                    _work(row, _order(load, settings, server, echo), settings)
            except CometError as error:
                tail = server.log_tail()
                row.error = f"{error}\n{tail}" if tail else str(error)
    finally:
        shutil.rmtree(store, ignore_errors=True)
        store.with_suffix(".log").unlink(missing_ok=True)


@contextlib.contextmanager
def _growing_old(store: Path, wanted: bool) -> Iterator[None]:
    """Give full log files a time two hours ago, again and again, so that retention deletes them.

    The newest two files keep their times: one is written to, one may be prepared.
    """
    if not wanted:
        yield
        return
    finished = threading.Event()

    def age() -> None:
        while not finished.wait(AGE_EVERY_S):
            # Retention may delete a file after we have listed it.
            with contextlib.suppress(FileNotFoundError):
                files = sorted((store / "commitlog").glob("*"))
                for path in files[:-2]:
                    written = path.stat().st_mtime
                    if written > files[-1].stat().st_mtime - AGE_S / 2:
                        os.utime(path, (written - AGE_S, written - AGE_S))

    thread = threading.Thread(target=age, daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


def _work(row: Row, order: WorkOrder, settings: Settings) -> None:
    answer = run_worker(
        worker_module(row.load), msgspec.json.encode(order), settings.generator_core
    )
    result = msgspec.json.decode(answer, type=Rounds)
    row.rounds = result.rounds
    row.echo = result.echo


def _work_on_echo(row: Row, settings: Settings, echo: Server) -> None:
    """Measure the echo server for a client's row, since a client cannot use the echo server itself.

    Right after the row the same number of rounds of equivalent raw frames run; messages are
    counted.
    """
    order = replace(_order(ECHO_LOADS[row.load.echo_as], settings, echo, None), verify=False)
    answer = run_worker("bench.worker.worker", msgspec.json.encode(order), settings.generator_core)
    row.echo = [
        replace(one, rate=one.messages_rate)
        for one in msgspec.json.decode(answer, type=Rounds).rounds
    ]
