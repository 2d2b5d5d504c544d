"""Runs one text of a pattern for plain and for ``async def`` programs.

A flow is a generator that yields what it needs: a `Query` of a store, or a `Call` of the program's
own function.  The driver runs it and sends the value back, or throws its exception into the flow.
"""

import asyncio
import inspect
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from cometmq.errors import ConfigError

__all__ = ["Call", "Flow", "Query", "is_coroutine_function", "run_async", "run_plain"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """Runs a function of the program."""

    function: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Query:
    """Runs a store's operation; a blocking one runs in a thread when the program has a loop."""

    function: Callable[[], Any]
    is_blocking: bool


Flow: TypeAlias = Generator[Call | Query, Any, T]


def is_coroutine_function(function: object) -> bool:
    """Whether a call returns a coroutine, also of an object with an ``async`` ``__call__``."""
    call = getattr(function, "__call__", function)  # noqa: B004 - the method, to examine its kind
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


async def run_async(flow: Flow[T]) -> T:
    """Run a flow on the event loop."""
    try:
        request = next(flow)
        while True:
            try:
                if isinstance(request, Query) and request.is_blocking:
                    value = await asyncio.to_thread(request.function)
                else:
                    value = request.function()
                    if inspect.isawaitable(value):
                        value = await value
            except BaseException as error:
                request = flow.throw(error)
            else:
                request = flow.send(value)
    except StopIteration as end:
        result: T = end.value
        return result


def run_plain(flow: Flow[T]) -> T:
    """Run a flow in the calling thread.

    Raises:
        ConfigError: a function returned a coroutine.
    """
    try:
        request = next(flow)
        while True:
            try:
                value = request.function()
                if inspect.isawaitable(value):
                    value.close() if inspect.iscoroutine(value) else None
                    raise ConfigError(
                        f"{request.function!r:.100} returned a coroutine; declare the handler with "
                        "async def, or give a plain engine or client"
                    )
            except BaseException as error:
                request = flow.throw(error)
            else:
                request = flow.send(value)
    except StopIteration as end:
        result: T = end.value
        return result
