"""The event loop of the simulator: asyncio on virtual time, one callback order per seed.

The loop runs unmodified asyncio code without waiting and without sockets, selectors, threads or
the machine's clock.  When nothing is ready, the clock jumps to the next timer; when there is no
timer either, the program can never continue and the loop raises `SimDeadlock`.

How a node dies.  Every callback carries the `contextvars` context in which it was scheduled, and
a node's code runs with the node's `Lifetime` in that context.  Tasks, timers and transport
callbacks inherit it, so the loop knows the owner of each callback without help from the code
under test.  `Lifetime.end()` makes every further callback of that life a no-op: its timers never
fire, its tasks never take another step, and their `finally` blocks do not run.  That is what a
power cut does; a task ended by `task.cancel()` would still clean up.

Determinism: asyncio itself is deterministic (a FIFO of ready callbacks and a heap of
timers); what usually differs between two runs is the selector and the clock.  This loop has
neither.  Code under test that iterates over sets of objects may still differ between runs.
"""

from __future__ import annotations

import asyncio
import contextvars
import warnings
from collections import deque
from collections.abc import Callable, Coroutine
from heapq import heapify, heappop, heappush
from typing import Any, Final, TypeVar, TypeVarTuple

from cometmq.errors import CometError
from cometmq.testing.markers import override

__all__ = [
    "Lifetime",
    "NodeCrashed",
    "SimDeadlock",
    "SimLivelock",
    "SimLoop",
    "context_of",
    "current_lifetime",
]

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

# Rounds of the loop without the clock moving.  Real programs settle within some hundreds; a
# higher count means that callbacks keep scheduling each other and virtual time stands still.
TURNS_PER_INSTANT_MAX: Final = 1_000_000
RESOLUTION_S: Final = 1e-9
"""Timers so close to each other are due together; it only has to beat float rounding."""
# A `finally` that awaits inside another takes two; no code under test nests deeper than this.
CLOSINGS_MAX: Final = 20


class SimDeadlock(CometError):
    """Nothing is ready and no timer is set, so the awaited result can never come."""


class SimLivelock(CometError):
    """Callbacks keep scheduling each other without letting virtual time pass."""


class NodeCrashed(BaseException):
    """Unwinds the callback of a node that crashes while the callback runs.

    A BaseException, so that no `except Exception` of the code under test catches it.
    """


class Lifetime:
    """One life of a simulated node, from start to crash; the owner of its callbacks."""

    __slots__ = ("_postponed", "alive", "is_paused", "name", "number", "tasks")

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.alive = True
        self.is_paused = False
        self._postponed: list[asyncio.Handle] = []
        self.tasks: list[tuple[asyncio.Task[Any], Coroutine[Any, Any, Any]]] = []

    def is_alive(self) -> bool:
        """Whether callbacks of this life still run."""
        return self.alive

    def end(self) -> None:
        """Stop every callback of this life from now on."""
        self.alive = False
        self._postponed.clear()

    def pause(self) -> None:
        """Postpone every callback of this life until `resume`; its clocks go on."""
        self.is_paused = True

    def resume(self, loop: SimLoop) -> None:
        """Run the postponed callbacks in their order, and all others from now on."""
        self.is_paused = False
        postponed, self._postponed = self._postponed, []
        loop._ready.extend(postponed)

    def postpone(self, callback: asyncio.Handle) -> None:
        """Have `resume` run a callback whose time has come."""
        self._postponed.append(callback)

    def bury(self) -> None:
        """Close the coroutines of this life, after the simulation."""
        # Without this a `finally` that gathers would make a loop that stays open.
        asyncio.set_event_loop(None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            self._close_coroutines()

    def _close_coroutines(self) -> None:
        for task, coroutine in self.tasks:
            if not task.done():
                # The crash loses the task on purpose; asyncio must not log it.
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _close(coroutine)
        self.tasks.clear()


def _close(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Close a coroutine completely, so that none of it runs when it is freed."""
    for _ in range(CLOSINGS_MAX):
        try:
            coroutine.close()
        except (RuntimeError, ValueError, CometError, OSError, NodeCrashed):
            # A `finally` used the crashed disk or awaited; close the coroutine again at its await.
            continue
        return


_LIFETIME: contextvars.ContextVar[Lifetime | None] = contextvars.ContextVar(
    "cometmq_sim_lifetime", default=None
)


def current_lifetime() -> Lifetime | None:
    """Return the life of the node whose code is running, None for the world itself."""
    return _LIFETIME.get()


def context_of(lifetime: Lifetime) -> contextvars.Context:
    """Return a new context in which code runs as part of `lifetime`."""
    context = contextvars.copy_context()
    context.run(_LIFETIME.set, lifetime)
    return context


class _NoSelector:
    """Stands where asyncio expects a selector, of which it asks nothing but the end."""

    def close(self) -> None:
        """There is nothing to close."""


class SimLoop(asyncio.BaseEventLoop):
    """A deterministic asyncio event loop whose time is a number that timers push forward.

    Callbacks of timers that are due at the same time run in the order in which they were made.
    """

    # Set by BaseEventLoop.__init__; typeshed does not know them.
    _ready: deque[asyncio.Handle]
    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self._selector = _NoSelector()
        self._now_s = 0.0
        self._turns_at_instant = 0
        self._timers: list[tuple[float, int, _Timer]] = []
        """A heap; tuples, since they are compared in C."""
        self._timer_count = 0
        self._cancelled_count = 0
        self.set_task_factory(_task_of_lifetime)

    @override
    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now_s

    def _run_once(self) -> None:
        """Run what is ready; if nothing is, move the clock to the next timer."""
        ready = self._ready
        if ready or self._stopping:
            self._turns_at_instant += 1
            if self._turns_at_instant > TURNS_PER_INSTANT_MAX:
                raise SimLivelock(
                    f"{TURNS_PER_INSTANT_MAX} turns of the loop at {self._now_s:.6f} s of virtual "
                    "time: callbacks keep scheduling each other; look for a retry without a delay"
                )
        else:
            self._pass_time()
        self._take_due()
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _write_to_self(self) -> None:
        """Part of BaseEventLoop's contract; there is no selector to wake."""

    def _pass_time(self) -> None:
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heappop(timers)
            self._cancelled_count -= 1
        if not timers:
            raise SimDeadlock(
                f"nothing is ready and no timer is set at {self._now_s:.6f} s of virtual time: "
                "the program waits for an event that can never happen; look for a lost wake-up"
            )
        self._now_s = max(self._now_s, timers[0][0])
        self._turns_at_instant = 0

    def _take_due(self) -> None:
        timers, ready = self._timers, self._ready
        end_s = self._now_s + RESOLUTION_S
        while timers and timers[0][0] < end_s:
            timer = heappop(timers)[2]
            timer._scheduled = False
            if timer._cancelled:
                self._cancelled_count -= 1
            else:
                ready.append(timer)

    def _timer_handle_cancelled(self, handle: _Timer) -> None:
        """Called by a timer when it is cancelled; drop such timers when they are the most."""
        if not handle._scheduled:
            return
        self._cancelled_count += 1
        if self._cancelled_count > 100 and 2 * self._cancelled_count > len(self._timers):
            # The one that calls counts as cancelled only after this.
            self._timers = [entry for entry in self._timers if not entry[2]._cancelled]
            heapify(self._timers)
            self._cancelled_count = 1

    @override
    def call_soon(
        self,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = _Soon(callback, args, self, context)
        handle.lifetime = _LIFETIME.get() if context is None else context.get(_LIFETIME)
        self._ready.append(handle)
        return handle

    @override
    def call_later(
        self,
        delay: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    @override
    def call_at(
        self,
        when: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        timer.lifetime = _LIFETIME.get() if context is None else context.get(_LIFETIME)
        timer._scheduled = True
        self._timer_count += 1
        heappush(self._timers, (when, self._timer_count, timer))
        return timer

    @override
    def run_in_executor(
        self, executor: object, func: Callable[[*_Ts], _T], *args: *_Ts
    ) -> asyncio.Future[_T]:
        """Run `func` on the loop in a later turn: threads would make the order random."""
        future: asyncio.Future[_T] = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_soon(run)
        return future


class _Mortal(asyncio.Handle):
    """A callback that does nothing once its life has ended, and waits while its life is paused."""

    __slots__ = ()

    lifetime: Lifetime | None
    # Of asyncio's handle; typeshed does not know them.
    _callback: Callable[..., object]
    _context: contextvars.Context
    _loop: asyncio.AbstractEventLoop

    def _run(self) -> None:
        lifetime = self.lifetime
        if lifetime is not None:
            if not lifetime.alive:
                return
            if lifetime.is_paused:
                lifetime.postpone(self)
                return
        try:
            self._context.run(self._callback, *self._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            if isinstance(error, NodeCrashed) and lifetime is not None and not lifetime.alive:
                return
            self._loop.call_exception_handler(
                {"message": f"Exception in callback {self!r}", "exception": error, "handle": self}
            )


class _Soon(_Mortal):
    __slots__ = ("lifetime",)


class _Timer(asyncio.TimerHandle, _Mortal):
    __slots__ = ("lifetime",)

    _scheduled: bool

    _run = _Mortal._run


def _task_of_lifetime(
    loop: asyncio.AbstractEventLoop,
    coro: Any,
    *,
    context: contextvars.Context | None = None,
    **options: Any,
) -> asyncio.Task[Any]:
    # Later Pythons also pass the task's name and eagerness to the factory.
    task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, context=context, **options)
    lifetime = _LIFETIME.get() if context is None else context.get(_LIFETIME)
    if lifetime is not None:
        if len(lifetime.tasks) >= 1024:
            lifetime.tasks[:] = [pair for pair in lifetime.tasks if not pair[0].done()]
        lifetime.tasks.append((task, coro))
    return task
