"""A supervisor of several broker processes: starts them, restarts them, stops them.

The lines of all children go into one log.  The caller says how a child is started (`ChildPlan`).

The brokers share nothing: each has its own port, store and name, registers by itself, and goes on
serving while another one is down.

The stdin of a child is a pipe that closes when the supervisor ends in any way.  `parent_ended`
reports that to the child, which then stops as on SIGTERM; so a supervisor killed with -9 leaves no
child behind.  Children run in sessions of their own: Ctrl-C reaches them once, through the
supervisor.

The pause before a restart doubles from 0.25 s to 30 s, and is short again for a child that served
for a minute.  A child that ends before it ever served fails the start and is not started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cometmq.errors import CometError, ConfigError

__all__ = ["ChildFailed", "ChildPlan", "Supervisor", "check_stores", "child_store", "parent_ended"]

PAUSE_S_MIN: Final = 0.25
PAUSE_S_MAX: Final = 30.0
STEADY_S: Final = 60.0
"""After so long the next end of a child is not a failed start any more."""
STOP_S_MAX: Final = 60.0
"""A graceful stop writes what is in memory; a child that takes longer is killed."""
LINE_BYTES_MAX: Final = 1 << 16

WriteLine = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """The name of a child, its command line, and how its ready line begins.

    `command` takes the address that the child had before, None the first time: a child whose port
    the system chose keeps it.
    """

    name: str
    command: Callable[[str | None], Sequence[str]]
    ready_prefix: str


class ChildFailed(CometError):
    """A child ended before it ever served; `code` is its exit code, negative for a signal."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class _Child:
    """One child over all its lives."""

    def __init__(self, plan: ChildPlan) -> None:
        self.plan = plan
        self.process: Process | None = None
        self.ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.address: str | None = None
        self.last_line = ""


class Supervisor:
    """Keeps one child running per plan; `await start()`, `await stop()`, each once.

    Args:
        write_line: takes each line of the merged log, without its end.
    """

    def __init__(self, plans: Sequence[ChildPlan], write_line: WriteLine) -> None:
        self._plans = plans
        self._write_line = write_line
        self._children: list[_Child] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()

    @property
    def addresses(self) -> list[str]:
        """The address of each child, in the order of the plans."""
        return [child.address or "" for child in self._children]

    async def start(self) -> None:
        """Start all children and wait until each of them serves.

        Raises:
            ChildFailed: one ended before it served; call `stop` for the others.
        """
        self._children = [_Child(plan) for plan in self._plans]
        self._tasks = [asyncio.create_task(self._keep_running(child)) for child in self._children]
        await asyncio.gather(*(child.ready for child in self._children))

    async def stop(self) -> None:
        """End every child by SIGTERM, and one that does not end by SIGKILL."""
        self._stopping.set()
        for child in self._children:
            _signal(child.process, signal.SIGTERM)
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=STOP_S_MAX)
        if late:
            for child in self._children:
                if child.process is not None:
                    self._write_line(
                        f"cometmq: {child.plan.name} did not stop in {STOP_S_MAX:.0f} s"
                    )
                _signal(child.process, signal.SIGKILL)
            await asyncio.wait(late)

    async def _keep_running(self, child: _Child) -> None:
        """Run a child again and again until the stop."""
        name, pause_s = child.plan.name, PAUSE_S_MIN
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            begin = loop.time()
            code = await self._run_once(child)
            if self._stopping.is_set():
                return
            ending = _how_it_ended(code)
            if not child.ready.done():
                child.ready.set_exception(
                    ChildFailed(f"{name} {ending} before it served: {child.last_line}", code)
                )
                return
            if loop.time() - begin > STEADY_S:
                pause_s = PAUSE_S_MIN
            self._write_line(f"cometmq: {name} {ending}; starting it again in {pause_s:g} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    async def _run_once(self, child: _Child) -> int:
        """Run a child until it ends; give its exit code."""
        process = await asyncio.create_subprocess_exec(
            *child.plan.command(child.address),
            stdin=PIPE,
            stdout=PIPE,
            stderr=STDOUT,
            start_new_session=True,
            limit=LINE_BYTES_MAX,
        )
        child.process = process
        if self._stopping.is_set():
            # The stop came while the process was being created, and missed it.
            _signal(process, signal.SIGTERM)
        try:
            assert process.stdout is not None
            while line := await _line(process.stdout):
                self._handle_line(child, line.decode("utf-8", "replace").rstrip("\r\n"))
            return await process.wait()
        finally:
            child.process = None

    def _handle_line(self, child: _Child, line: str) -> None:
        if not line.startswith(child.plan.ready_prefix):
            child.last_line = line
            self._write_line(f"{child.plan.name}: {line}")
            return
        match = re.search(r"broker (\S+:\d+)", line)
        child.address = match[1] if match else child.address
        if child.ready.done():
            self._write_line(f"cometmq: {child.plan.name} serves again on {child.address}")
        else:
            child.ready.set_result(line)


async def _line(stream: asyncio.StreamReader) -> bytes:
    """Read the next line, or a part of one that is too long; empty at the end."""
    try:
        return await stream.readline()
    except ValueError:
        return await stream.read(LINE_BYTES_MAX)


def _signal(process: Process | None, number: signal.Signals) -> None:
    if process is not None and process.returncode is None:
        try:
            process.send_signal(number)
        except ProcessLookupError:
            return


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    return f"was ended by signal {-code} ({name})"


def parent_ended() -> asyncio.Future[str]:
    """Give a future that is done when the supervisor of this child ended and closed our stdin."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[str] = loop.create_future()

    def read() -> None:
        if os.read(sys.stdin.fileno(), 1024):
            return
        loop.remove_reader(sys.stdin.fileno())
        if not ended.done():
            ended.set_result("end of the supervisor")

    loop.add_reader(sys.stdin.fileno(), read)
    return ended


# -- the stores of a family -----------------------------------------------------------------------


def child_store(folder: str, broker_name: str, number: int) -> str:
    """Give the store of broker `number` of a family: FOLDER/NAME-number."""
    return f"{folder}/{broker_name}-{number}"


def check_stores(folder: str, broker_name: str, count: int) -> None:
    """Refuse a start that would leave messages unserved.

    Raises:
        ConfigError: FOLDER holds messages of brokers beyond `count`, or of one that was started
            without --processes; the text says how to go on.
    """
    pattern = re.compile(re.escape(broker_name) + r"-(\d+)")
    root = Path(folder)
    matches = [pattern.fullmatch(path.name) for path in root.iterdir()] if root.is_dir() else []
    numbers = sorted(int(match[1]) for match in matches if match is not None)
    unserved = [
        number
        for number in numbers
        if number >= count and _holds_messages(root / f"{broker_name}-{number}")
    ]
    if unserved:
        names = ", ".join(f"{broker_name}-{number}" for number in unserved)
        stores = ", ".join(child_store(folder, broker_name, number) for number in unserved)
        raise ConfigError(
            f"--processes {count} would leave the messages of {names} unserved. Start with "
            f"--processes {unserved[-1] + 1}, let nobody send to {names} any more "
            f"(mqadmin wipeWritePerm -b {broker_name}-{unserved[0]}), wait until every group has "
            f"read them, stop, and move away {stores}; then --processes {count} starts"
        )
    if _holds_messages(root):
        raise ConfigError(
            f"{folder} holds messages of a broker that was started without --processes, which "
            f"would be left unserved. Start it without --processes until every group has read "
            f"them, or give it another --store; or, with it stopped, move its files into "
            f"{child_store(folder, broker_name, 0)}, and it goes on as {broker_name}-0"
        )


def _holds_messages(store: Path) -> bool:
    """Say whether the commit log of a store directory begins with a record."""
    log_folder = store / "commitlog"
    if not log_folder.is_dir():
        return False
    for path in sorted(log_folder.iterdir()):
        if path.is_file():
            with path.open("rb") as file:
                return any(file.read(4))
    return False
