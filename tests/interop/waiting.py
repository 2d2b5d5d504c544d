"""Wait for what another process does.

Job: ask a condition again until it holds or a time has passed. A number of tries is no time: it
lasts as long as the questions do, less on a faster machine.
"""

import time
from collections.abc import Callable

PATIENCE_S = 90.0


def wait_until(
    holds: Callable[[], object], what: Callable[[], str] = lambda: "still not so"
) -> None:
    """Return once `holds` is true; AssertionError with `what` says after 90 s."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)
