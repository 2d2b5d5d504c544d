"""Running a process: the fastest event loop there is, stop signals, open files."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["allow_open_files", "run", "wait_for_stop_signal"]

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` on uvloop, or on plain asyncio where uvloop does not exist (Windows)."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def allow_open_files() -> None:
    """Let this process open as many files as it may, as a JVM does by itself.

    The usual soft limit of 1,024 would refuse the thousandth connection. Where there is no such
    limit (Windows), or the system does not let go of it, it stays.
    """
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        # macOS names no limit and takes none above its own.
        return


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
