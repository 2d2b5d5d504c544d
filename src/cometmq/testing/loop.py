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
from collections.abc import Callable, Coroutine
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
        self._postponed: list[_Mortal] = []
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

    def resume(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the postponed callbacks in their order, and all others from now on."""
        self.is_paused = False
        postponed, self._postponed = self._postponed, []
        for callback in postponed:
            callback.schedule(loop)

    def postpone(self, callback: _Mortal) -> None:
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
    """Replaces asyncio's selector: it moves the clock instead of waiting."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[object]:
        self._loop._pass_time(timeout)
        return []

    def close(self) -> None:
        pass


class SimLoop(asyncio.BaseEventLoop):
    """A deterministic asyncio event loop whose time is a number that timers push forward."""

    # Set by BaseEventLoop.__init__ and used by its _run_once; typeshed does not know them.
    _scheduled: list[asyncio.TimerHandle]
    _clock_resolution: float

    def __init__(self) -> None:
        super().__init__()
        self._selector = _NoSelector(self)
        self._now_s = 0.0
        self._turns_at_instant = 0
        # Timers within one nanosecond are due together; it only has to beat float rounding.
        self._clock_resolution = 1e-9
        self.set_task_factory(_task_of_lifetime)

    @override
    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now_s

    def _pass_time(self, timeout: float | None) -> None:
        if timeout is None and not self._stopping_now():
            raise SimDeadlock(
                f"nothing is ready and no timer is set at {self._now_s:.6f} s of virtual time: "
                "the program waits for an event that can never happen; look for a lost wake-up"
            )
        if timeout:
            # Jump exactly onto the timer: adding the difference may fall short by one rounding.
            self._now_s = max(self._now_s, self._scheduled[0].when())
            self._turns_at_instant = 0
            return
        self._turns_at_instant += 1
        if self._turns_at_instant > TURNS_PER_INSTANT_MAX:
            raise SimLivelock(
                f"{TURNS_PER_INSTANT_MAX} turns of the loop at {self._now_s:.6f} s of virtual "
                "time: callbacks keep scheduling each other; look for a retry without a delay"
            )

    def _stopping_now(self) -> bool:
        return bool(getattr(self, "_stopping", False))

    def _process_events(self, event_list: list[object]) -> None:
        """Part of BaseEventLoop's contract; there is no I/O to process."""

    def _write_to_self(self) -> None:
        """Part of BaseEventLoop's contract; there is no selector to wake."""

    @override
    def call_soon(
        self,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        mortal = _Mortal.of(callback, context)
        if mortal is None:
            return super().call_soon(callback, *args, context=context)
        run: Any = mortal.run
        mortal.handle = super().call_soon(run, *args, context=mortal.context)
        return mortal.handle

    @override
    def call_at(
        self,
        when: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        mortal = _Mortal.of(callback, context)
        if mortal is None:
            return super().call_at(when, callback, *args, context=context)
        run: Any = mortal.run
        handle = super().call_at(when, run, *args, context=mortal.context)
        mortal.handle = handle
        return handle

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


class _Mortal:
    """A callback that does nothing once its life has ended, and waits while its life is paused."""

    __slots__ = ("_args", "_callback", "_lifetime", "context", "handle")

    def __init__(
        self,
        callback: Callable[..., object],
        lifetime: Lifetime,
        context: contextvars.Context,
    ) -> None:
        self._callback = callback
        self._lifetime = lifetime
        self._args: tuple[Any, ...] = ()
        self.context = context
        self.handle: asyncio.Handle | None = None

    @classmethod
    def of(
        cls, callback: Callable[..., object], context: contextvars.Context | None
    ) -> _Mortal | None:
        """Return the callback bound to the life that schedules it; None for the world's."""
        lifetime = _LIFETIME.get() if context is None else context.get(_LIFETIME)
        if lifetime is None:
            return None
        return cls(callback, lifetime, contextvars.copy_context() if context is None else context)

    def run(self, *args: Any) -> object:
        """Run the callback, as its handle does."""
        lifetime = self._lifetime
        if not lifetime.is_alive():
            return None
        if lifetime.is_paused:
            self._args = args
            lifetime.postpone(self)
            return None
        try:
            return self._callback(*args)
        except NodeCrashed:
            if lifetime.is_alive():
                raise
            return None

    def schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the postponed callback in the next turn, unless it is cancelled before."""
        loop.call_soon(self._run_late, context=self.context)

    def _run_late(self) -> None:
        # The handle was spent when the callback was postponed, and can be cancelled all the same.
        if self.handle is None or not self.handle.cancelled():
            self._callback(*self._args)


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
