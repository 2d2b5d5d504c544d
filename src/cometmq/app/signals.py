"""The end of a program by signals: the first one asks it to drain, the second one ends it at once.

After the first signal the system's own action is in force again, so the second one needs no help
from a program that may hang.  Nothing is lost by it: messages that were not acknowledged come
again.
"""

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator

__all__ = ["stop_signals"]

log = logging.getLogger("cometmq.app")


@contextlib.contextmanager
def stop_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` on the running loop at SIGTERM or SIGINT.

    Outside the main thread nothing happens, since Python's signals belong to that thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def stopped(number: signal.Signals) -> None:
        for other in before:
            loop.remove_signal_handler(other)
            signal.signal(other, signal.SIG_DFL)
        log.warning("%s: handlers finish; a second signal ends the process at once", number.name)
        stop()

    try:
        for number in before:
            loop.add_signal_handler(number, stopped, signal.Signals(number))
    except NotImplementedError:  # Windows: KeyboardInterrupt ends the loop
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
