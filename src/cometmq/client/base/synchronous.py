"""Makes synchronous clients from the asyncio clients: same names, arguments, types and help texts.

A method is declared once, as a coroutine of the asyncio client.  The synchronous client gets a
method that runs it, either on the background loop or, over blocking sockets, in the caller's
thread.  ``ParamSpec`` carries the arguments to type checkers, ``functools.wraps`` to ``help``.
"""

import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from cometmq.client.base.background import background
from cometmq.client.base.options import check_names
from cometmq.client.base.transport import run_inline

__all__ = ["build_settings", "in_caller", "on_background", "same_arguments"]

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


def same_arguments(
    model: Callable[P, object],
) -> Callable[[Callable[Concatenate[S, ...], None]], Callable[Concatenate[S, P], None]]:
    """Declare that an ``__init__`` takes the arguments of the class ``model``."""

    def declare(
        function: Callable[Concatenate[S, ...], None],
    ) -> Callable[Concatenate[S, P], None]:
        own: Any = function
        own.__signature__ = inspect.signature(model.__init__)
        return own  # type: ignore[no-any-return]

    return declare


def build_settings(kind: type[T], arguments: tuple[Any, ...], options: dict[str, Any]) -> T:
    """An object of a settings class, from the arguments of a client that takes the same ones.

    Raises:
        TypeError: an argument is missing or unknown; the text does not name ``kind``, because the
            program calls another class.
    """
    try:
        return kind(*arguments, **options)
    except TypeError:
        signature = inspect.signature(kind)
        check_names(options, signature.parameters)
        signature.bind(*arguments, **options)
        raise


def on_background(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """A method that runs ``method`` of the asyncio client on the background loop.

    The synchronous client returns its asyncio client from ``_ready``, which may raise.
    """

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return background().run(method(self._ready(), *args, **kwargs))

    return call


def in_caller(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """A method that runs ``method`` of ``self._calls``, over blocking sockets, to its end."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run_inline(method(self._calls, *args, **kwargs))

    return call
