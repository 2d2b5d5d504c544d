"""A whole cluster in one process on virtual time, from one seed.

`simulate` makes a `World` (loop, clock, network, nodes with disks), runs a scenario in it and
returns the result with the trace of all deliveries.  It uses no clock, chance, network or disk of
the machine, so the same seed gives the same trace.

    async def main(world: World) -> int:
        node = world.node("broker-a")
        broker = await node.run(lambda: start_broker(node.environment(), node.disk))
        ...
        node.crash()                     # or at a chosen disk operation: node.crash_at("sync", 3)
        node.restart()                   # a new life on what the disk kept

    outcome = simulate(seed=7, main=main)

Code of a node runs inside `node.run` or `node.spawn`; everything it schedules dies with the
node.  Code of `main` itself belongs to the world and never crashes.

Process ids and the numbers of clients are part of message and client ids, so while a simulation
runs `os.getpid` returns `PROCESS_ID` and clients count from 1: a seed gives the same trace in
every process.  Pass `client_ip=` to clients, or the machine's address becomes part of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import os
import random
import sys
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from cometmq.client.base import instance as client_instance
from cometmq.errors import CometError
from cometmq.net.env import Environment
from cometmq.testing.clock import VirtualClock
from cometmq.testing.disk import SimDisk
from cometmq.testing.loop import (
    Lifetime,
    NodeCrashed,
    SimLoop,
    context_of,
    current_lifetime,
)
from cometmq.testing.network import NetworkFaults, SimNetwork
from cometmq.testing.workers import SimWorkers

__all__ = [
    "Event",
    "Node",
    "NodeGone",
    "Outcome",
    "SimulationFault",
    "Trace",
    "World",
    "simulate",
]

_T = TypeVar("_T")

PROCESS_ID: Final = 4242


class NodeGone(CometError):
    """The node crashed before the awaited call on it was done."""


class SimulationFault(CometError):
    """A callback or task of the simulation failed and nobody awaited it."""


@dataclass(frozen=True, slots=True)
class Event:
    """What a scenario recorded, or what happened to a machine."""

    at_s: float
    kind: str
    node: str
    """The machine whose code recorded it; "" for the world."""
    body: bytes | None
    """The message that it is about."""
    detail: str


@dataclass(slots=True)
class Trace:
    """Everything observable, in order: deliveries, losses, crashes and recorded results."""

    time_s: Callable[[], float]
    lines: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    """What was recorded, without the network's deliveries."""

    def add(self, kind: str, detail: str) -> None:
        """Append an event with its virtual time."""
        self.lines.append(f"{self.time_s():.6f} {kind} {detail}")

    def digest(self) -> str:
        """Return the SHA-256 of all lines so far."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Outcome(Generic[_T]):
    """The result of a simulation: `value` of its main, and the trace with its digest."""

    seed: int
    value: _T
    digest: str
    trace: tuple[str, ...]
    virtual_s: float


class Node:
    """One machine: an address, a disk that outlives crashes, and at most one life at a time."""

    def __init__(self, world: World, name: str, address: str, disk: SimDisk) -> None:
        self.name = name
        self.address = address
        self.disk = disk
        self._world = world
        self._lives: list[Lifetime] = []
        self._waiting: dict[asyncio.Future[Any], None] = {}
        self.clock = VirtualClock(world.loop.time)
        self.paused_s = 0.0
        """For how long the machine has stood still so far, without a pause under way."""
        self._environment = self._begin_life()

    @property
    def lifetime(self) -> Lifetime:
        """The current life, or the last one of a crashed node."""
        return self._lives[-1]

    @property
    def is_alive(self) -> bool:
        """Whether the node runs."""
        return self.lifetime.alive

    def environment(self) -> Environment:
        """Return clock, chance, network and workers of the current life."""
        return self._environment

    def restart(self) -> None:
        """Begin a new life on the node's disk; a living node is killed first."""
        if self.is_alive:
            self.crash(power_cut=False)
        self._world.record("restart", "", node=self.name)
        self._environment = self._begin_life()

    def _begin_life(self) -> Environment:
        number = len(self._lives) + 1
        self._world.network.host(self.address).is_silent = False
        self._lives.append(Lifetime(self.name, number))
        chance = random.Random(f"{self._world.seed}/{self.name}/{number}")
        return Environment(
            self.clock, chance, self._world.network.host(self.address), SimWorkers(chance)
        )

    async def run(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Run `work()` as this node's code and return its result.

        Raises:
            NodeGone: the node is down or crashes before `work()` ends.
        """
        task = self.spawn(work)
        # A future of the world: the node's own task reports nothing after a crash.
        result: asyncio.Future[_T] = self._world.loop.create_future()

        def settle(finished: asyncio.Task[_T]) -> None:
            if result.done():
                return
            if finished.cancelled():
                result.cancel()
            elif (error := finished.exception()) is not None:
                result.set_exception(error)
            else:
                result.set_result(finished.result())

        task.add_done_callback(settle)
        self._waiting[result] = None
        try:
            return await result
        finally:
            self._waiting.pop(result, None)

    def spawn(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> asyncio.Task[_T]:
        """Start `work()` as this node's code.

        Raises:
            NodeGone: the node is down.
        """
        if not self.is_alive:
            raise NodeGone(f"{self.name} is down: call restart() first")
        context = context_of(self.lifetime)
        return self._world.loop.create_task(context.run(work), context=context)

    def crash(self, *, power_cut: bool = True, is_silent: bool = False) -> None:
        """Crash: connections are reset, timers and tasks never run again, unsynced data is at risk.

        With `power_cut` False only the process dies (kill -9) and the page cache survives.

        Args:
            is_silent: nobody hears of it: connections stay open at their other ends.
        """
        if not self.is_alive:
            return
        self._world.record("crash", "power cut" if power_cut else "kill", node=self.name)
        self.lifetime.end()
        self._world.network.host(self.address).crash(is_silent=is_silent)
        if power_cut:
            self.disk.power_cut()
        else:
            self.disk.kill()
        for waiting in list(self._waiting):
            if not waiting.done():
                waiting.set_exception(NodeGone(f"{self.name} crashed"))

    async def pause(self, seconds: float) -> None:
        """Let the machine stand still: its code does nothing, while time and network go on."""
        life = self.lifetime
        if not life.alive or life.is_paused:
            return
        self._world.record("pause", f"{seconds:.3f} s", node=self.name)
        life.pause()
        try:
            await asyncio.sleep(seconds)
        finally:
            self.paused_s += seconds
            self._world.record("goes on", "", node=self.name)
            life.resume(self._world.loop)

    def crash_at(
        self, operation: str, hit: int = 1, *, path_contains: str = "", power_cut: bool = True
    ) -> None:
        """Crash just before the `hit`-th such disk operation from now takes effect."""

        def crash() -> None:
            self.crash(power_cut=power_cut)
            raise NodeCrashed

        self.disk.at(operation, action=crash, path_contains=path_contains, hit=hit)

    def bury(self) -> None:
        """Close the coroutines of crashed lives, after the simulation."""
        for life in self._lives:
            if not life.alive:
                life.bury()


class World:
    """Everything in one simulation."""

    def __init__(self, seed: int, loop: SimLoop, faults: NetworkFaults | None) -> None:
        self.seed = seed
        self.loop = loop
        self.clock = VirtualClock(loop.time)
        self.trace = Trace(loop.time)
        self.chance = random.Random(f"{seed}/world")
        self.network = SimNetwork(
            loop, random.Random(f"{seed}/network"), self.trace.add, faults or NetworkFaults()
        )
        self.nodes: dict[str, Node] = {}
        self.faults: list[str] = []
        loop.set_exception_handler(self._unawaited)

    def node(self, name: str, *, capacity_bytes: int = 1 << 40) -> Node:
        """Return the machine called `name`, made on first use with its own address."""
        node = self.nodes.get(name)
        if node is None:
            address = f"10.0.0.{len(self.nodes) + 1}"
            disk = SimDisk(
                random.Random(f"{self.seed}/{name}/disk"),
                self.clock.now_ms,
                capacity_bytes=capacity_bytes,
            )
            node = self.nodes[name] = Node(self, name, address, disk)
        return node

    def record(
        self, kind: str, detail: object = "", *, node: str | None = None, body: bytes | None = None
    ) -> None:
        """Put a result of the scenario into the trace.

        Args:
            node: the machine it is about; by default the one whose code calls.
            body: of the message it is about.
        """
        if node is None:
            life = current_lifetime()
            node = "" if life is None else life.name
        text = str(detail)
        about = "" if body is None else repr(body[:20])
        self.trace.add(kind, " ".join(filter(None, (node, about, text))))
        self.trace.events.append(Event(self.loop.time(), kind, node, body, text))

    def _unawaited(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.faults.append(f"{context.get('message')}: {error!r}")


def simulate(
    seed: int,
    main: Callable[[World], Awaitable[_T]],
    *,
    faults: NetworkFaults | None = None,
) -> Outcome[_T]:
    """Run `main(world)` to its end on virtual time.

    Raises:
        SimDeadlock: main waits for an event that can never happen.
        SimLivelock: callbacks schedule each other and virtual time stands still.
        SimulationFault: a callback or task failed and nobody awaited it.
    """
    loop = SimLoop()
    world = World(seed, loop, faults)

    async def scenario() -> tuple[_T, str]:
        value = await main(world)
        return value, world.trace.digest()

    try:
        with _same_in_every_process():
            value, digest = loop.run_until_complete(scenario())
        outcome = Outcome(seed, value, digest, tuple(world.trace.lines), loop.time())
        if world.faults:
            raise SimulationFault(f"seed {seed}: " + "; ".join(world.faults))
        return outcome
    finally:
        _clean_up(world, loop)


@contextlib.contextmanager
def _same_in_every_process() -> Iterator[None]:
    """Fix the process id and the client numbers, which are part of ids, during a simulation."""
    getpid, numbers = os.getpid, client_instance._numbers
    os.getpid = lambda: PROCESS_ID
    client_instance._numbers = itertools.count(1)  # type: ignore[misc]
    try:
        yield
    finally:
        os.getpid = getpid
        client_instance._numbers = numbers  # type: ignore[misc]


@contextlib.contextmanager
def without_warnings_of_the_dead() -> Iterator[None]:
    """Pass over coroutines that a crashed life makes while it is closed, and nobody awaits."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        yield


def _clean_up(world: World, loop: SimLoop) -> None:
    """End tasks that main left running, silently: its result is complete."""
    for node in world.nodes.values():
        node.disk.freeze()
        if not node.is_alive:
            continue
        node.lifetime.end()
    loop.set_exception_handler(lambda _loop, _context: None)
    # Coroutines of crashed lives that await while they are closed report it when they are freed.
    previous_hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with without_warnings_of_the_dead():
            for node in world.nodes.values():
                node.bury()
    finally:
        sys.unraisablehook = previous_hook
    world.network.forget()
    leftover = [task for task in asyncio.all_tasks(loop) if not task.done()]
    for task in leftover:
        task.cancel()
    if leftover:
        loop.run_until_complete(_settle(leftover))
    loop.close()


async def _settle(tasks: list[asyncio.Task[Any]]) -> None:
    """Let cancelled tasks of the world end; tasks of crashed nodes cannot."""
    for _ in range(10):
        if all(task.done() for task in tasks):
            return
        await asyncio.sleep(0)
    for task in tasks:
        if not task.done():
            task._log_destroy_pending = False  # type: ignore[attr-defined]
