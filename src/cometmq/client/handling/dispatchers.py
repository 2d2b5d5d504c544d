"""The interface of dispatchers, which run a handler with bounded concurrency and report outcomes.

A dispatcher neither retries nor commits, and talks to no broker; its consumer does.
"""

import inspect
from collections.abc import Callable
from typing import Any, Protocol

from cometmq.client.handling.coroutine_dispatcher import CoroutineDispatcher
from cometmq.client.handling.handlers import Outcome, OutcomeReport
from cometmq.client.handling.lanes import Lanes
from cometmq.client.handling.thread_dispatcher import ThreadDispatcher
from cometmq.client.message.message import ReceivedMessage
from cometmq.errors import ConfigError

__all__ = ["Dispatcher", "make_dispatcher"]


class Dispatcher(Protocol):
    """Runs one handler."""

    @property
    def running_count(self) -> int:
        """Messages inside the handler now."""
        ...

    def submit(self, assigned: Any, messages: list[ReceivedMessage]) -> None:
        """Queue messages of one queue, in their order."""
        ...

    @property
    def run_size(self) -> int:
        """The largest number of messages of a run."""
        ...

    def submit_run(self, assigned: Any, messages: list[ReceivedMessage]) -> None:
        """Queue messages that one worker handles one after the other, up to the first failure.

        Every message of a run is reported: finished or skipped.
        """
        ...

    def set_concurrency(self, concurrency: int) -> None:
        """Change how many handlers may run at a time; those under way may end."""
        ...

    async def drain(self, deadline_s: float) -> list[tuple[Any, ReceivedMessage]]:
        """Start no handler, wait for the running ones; returns the messages still in a handler."""
        ...

    async def run_one(self, message: ReceivedMessage) -> Outcome:
        """Run the handler on one message outside the ordinary flow (code 309)."""
        ...

    def expire(self, older_than_s: float) -> list[tuple[Any, ReceivedMessage]]:
        """Give up messages whose handler runs for too long, and return them."""
        ...


def make_dispatcher(
    handler: Callable[[Any], Any],
    report: OutcomeReport,
    *,
    concurrency: int,
    batch_size: int | None,
    spawn: Callable[[Any, str], None],
    low_share: float | None = None,
) -> Dispatcher:
    """The dispatcher for a coroutine function or a plain one.

    Args:
        low_share: see `Lanes`; None for no lanes.

    Raises:
        ConfigError: lanes are asked for a plain function.
    """
    call = getattr(handler, "__call__", handler)  # noqa: B004 - the method, to examine its kind
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call):
        lanes = None if low_share is None else Lanes(low_share)
        return CoroutineDispatcher(handler, report, concurrency, batch_size, spawn, lanes)
    if low_share is not None:
        raise ConfigError(
            "low_priority_share needs an async def handler: threads take messages in the order in"
            " which they come"
        )
    return ThreadDispatcher(handler, report, concurrency, batch_size)
