"""Waiting for something to become true, without asserting how long it takes."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], timeout_s: float = 15.0) -> None:
    """Return once the condition holds; a hang is an AssertionError that names it."""
    try:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 - conditions of any kind, in tests only
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"still not so after {timeout_s} s: {condition!r}") from None
