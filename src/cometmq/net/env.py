"""The surroundings of a server or client: clock, random numbers, network and worker threads.

Production passes the real ones (:func:`system_environment`). ``cometmq.testing`` passes virtual
ones, so that a whole cluster runs in one process on virtual time from one seed. Timers are the
running event loop's ``call_later``, which the simulator's loop drives by virtual time too.
"""

import asyncio
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from cometmq.net.memory import available_memory
from cometmq.net.network import Network, TcpNetwork

__all__ = [
    "Clock",
    "Environment",
    "SystemClock",
    "ThreadWorkers",
    "WorkerPool",
    "let_go",
    "physical_memory_bytes",
    "system_environment",
]

T = TypeVar("T")

WORKER_THREADS_MAX = 8
"""Enough threads that a slow fdatasync never waits for cold reads, file allocation and deletion."""


class Clock(Protocol):
    """Wall-clock and monotonic time."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...


class SystemClock:
    """The machine's clock."""

    # The function itself, since every message reads the clock twice.
    monotonic = staticmethod(time.monotonic)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


def physical_memory_bytes() -> int:
    """Return the machine's memory; 16 GiB where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 16 << 30


def let_go() -> None:
    """Release the interpreter's lock for the event loop; workers call this in long computations."""
    time.sleep(0)


class WorkerPool(Protocol):
    """Runs blocking work away from the event loop."""

    def submit(
        self, work: Callable[[], T], done: Callable[[T | BaseException], None] | None = None
    ) -> None:
        """Run ``work`` in a worker thread, then ``done(result or exception)`` on the loop."""
        ...

    def shutdown(self) -> None:
        """Wait for the submitted work; nothing may be submitted afterwards."""
        ...


class ThreadWorkers:
    """A small thread pool bound to the event loop that was running when it was first used."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(
        self, work: Callable[[], T], done: Callable[[T | BaseException], None] | None = None
    ) -> None:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(WORKER_THREADS_MAX, "cometmq-worker")
            self._loop = asyncio.get_running_loop()
        future = self._executor.submit(work)
        if done is not None:
            future.add_done_callback(lambda finished: self._hand_over(finished, done))

    def _hand_over(self, finished: Future[Any], done: Callable[[Any], None]) -> None:
        error = finished.exception()
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(done, error if error is not None else finished.result())

    def shutdown(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=True)


def _unknown_memory() -> int | None:
    return None


@dataclass(frozen=True, slots=True)
class Environment:
    """Clock, random numbers, network and workers of one process."""

    clock: Clock
    chance: random.Random
    network: Network
    workers: WorkerPool
    available_memory: Callable[[], int | None] = _unknown_memory
    """Bytes that this process may still take before the system is in trouble; None: unknown."""


def system_environment() -> Environment:
    """Return the real clock, random numbers, TCP and threads."""
    return Environment(
        SystemClock(), random.Random(), TcpNetwork(), ThreadWorkers(), available_memory
    )
