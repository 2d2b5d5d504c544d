"""A method that takes exactly what another callable takes, said once.

Job: give the synchronous clients the signatures of the asynchronous ones, to type checkers and
editors as well as to ``help`` and ``inspect``.
Must not: change a call.
"""

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

__all__ = ["same_arguments"]

P = ParamSpec("P")
S = TypeVar("S")


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
