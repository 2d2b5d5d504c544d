"""Steps of a handler whose results are stored with the claim, so that a repetition skips them.

    async def handle(message):
        charge = await async_step("charge", lambda: bank.charge(order))
        await async_step("mail", lambda: mail(order, charge))

A step's value must be JSON.  A crash between a step and its record repeats that step alone.
"""

import json
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar, cast

from cometmq import ReceivedMessage
from cometmq.errors import ConfigError
from cometmq.patterns.base.flow import Call, Flow, Query, run_async, run_plain
from cometmq.patterns.idempotent.claims import ClaimStore

__all__ = ["StepBook", "async_step", "current_steps", "step"]

T = TypeVar("T")


class StepBook:
    """The steps of the messages that one call of a handler has."""

    def __init__(
        self, store: ClaimStore, group: str, token: str, steps: dict[str, dict[str, Any]]
    ) -> None:
        self._store = store
        self._group = group
        self._token = token
        self.steps = steps
        """Key of a message -> name of a step -> its value."""
        self.keys: dict[int, str] = {}
        """Identity of a message -> its key."""

    def run(self, name: str, work: Callable[[], Any], message: ReceivedMessage | None) -> Flow[Any]:
        """Run a step unless an earlier try has done it.

        Raises:
            ConfigError: the call has several messages and none is named.
        """
        if message is not None:
            key = self.keys[id(message)]
        elif len(self.steps) == 1:
            (key,) = self.steps
        else:
            raise ConfigError(
                f"the step {name!r} of a handler with {len(self.steps)} messages needs message="
            )
        done = self.steps[key]
        if name in done:
            return done[name]
        value = yield Call(work)
        text = json.dumps(value)
        save = partial(self._store.save_step, self._group, key, self._token, name, text)
        yield Query(save, not self._store.is_async)
        done[name] = value
        return value


current_steps: ContextVar[StepBook] = ContextVar("cometmq_steps")


def _book() -> StepBook:
    try:
        return current_steps.get()
    except LookupError:
        raise ConfigError("a step runs inside a handler that idempotent(...) wraps") from None


def step(name: str, work: Callable[[], T], *, message: ReceivedMessage | None = None) -> T:
    """Run a step of a plain handler once; a repetition gets the stored value.

    Args:
        name: of the step, unique in its handler.
        work: runs the step.
        message: whose step it is, in a handler of lists.

    Raises:
        ConfigError: there is no handler around it, or the message is not named.
    """
    return cast(T, run_plain(_book().run(name, work, message)))


async def async_step(
    name: str, work: Callable[[], Any], *, message: ReceivedMessage | None = None
) -> Any:
    """Run a step of an ``async def`` handler once: see `step`.

    Raises:
        ConfigError: there is no handler around it, or the message is not named.
    """
    return await run_async(_book().run(name, work, message))
