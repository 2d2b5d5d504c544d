"""Sets up a process: the fastest event loop, stop signals, the limit of open files."""

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

__all__ = ["allow_open_files", "interrupt", "run", "wait_for_stop_signal"]

T = TypeVar("T")
_main_tasks: Final[list[asyncio.Task[Any]]] = []
"""The task that `run` runs in the main thread, if any."""
_interrupted: Final[list[asyncio.Task[Any]]] = []


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` on uvloop, or on plain asyncio where uvloop does not exist (Windows).

    Raises:
        KeyboardInterrupt: after Ctrl-C or `interrupt`, once ``main`` was cancelled.
    """
    factory: Callable[[], asyncio.AbstractEventLoop] | None
    try:
        from uvloop import new_event_loop as factory
    except ImportError:
        factory = None
    is_main = threading.current_thread() is threading.main_thread()
    with asyncio.Runner(loop_factory=factory) as runner:
        try:
            return runner.run(_interruptible(main) if is_main else main)
        except asyncio.CancelledError:
            if not is_main or not _interrupted:
                raise
            raise KeyboardInterrupt from None
        finally:
            if is_main:
                _interrupted.clear()


async def _interruptible(main: Coroutine[Any, Any, T]) -> T:
    task = asyncio.current_task()
    assert task is not None
    _main_tasks.append(task)
    try:
        return await main
    finally:
        _main_tasks.clear()


def interrupt() -> bool:
    """Cancel the task that `run` runs in the main thread; False if nothing runs.

    A signal's handler calls this. The loop cancels by itself at Ctrl-C, except where SIGINT was
    ignored when the loop began, as in a shell's background jobs.
    """
    for task in _main_tasks:
        _interrupted.append(task)
        task.cancel()
        # The loop may be waiting for the selector.
        task.get_loop().call_soon_threadsafe(_nothing)
        return True
    return False


def _nothing() -> None:
    pass


def allow_open_files() -> None:
    """Let this process open as many files as the system permits, as a JVM does.

    The usual soft limit of 1,024 would refuse the thousandth connection. Does nothing where there
    is no such limit (Windows) or the system refuses to raise it.
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
        # macOS reports an unlimited maximum and refuses values above its own.
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
