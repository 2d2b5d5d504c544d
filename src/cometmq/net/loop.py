"""Running a process: the fastest event loop there is, and stop signals."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["run", "wait_for_stop_signal"]

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` on uvloop, or on plain asyncio where uvloop does not exist (Windows)."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


async def wait_for_stop_signal() -> str:
    """Wait for SIGTERM or SIGINT and return its name.

    Where the loop has no signal handlers (Windows) KeyboardInterrupt ends :func:`run` instead.
    """
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[str] = loop.create_future()

    def stop(name: str) -> None:
        if not stopped.done():
            stopped.set_result(name)

    watched = (signal.SIGTERM, signal.SIGINT)
    for number in watched:
        try:
            loop.add_signal_handler(number, stop, number.name)
        except (NotImplementedError, RuntimeError):
            continue
    try:
        return await stopped
    finally:
        for number in watched:
            try:
                loop.remove_signal_handler(number)
            except (NotImplementedError, RuntimeError):
                continue
