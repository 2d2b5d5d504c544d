"""The steps of a flow, and the decision what follows each call.

    RUNNING --every step done--> CONFIRMING --every confirm done--> DONE
       |                         (only where a step has one)
       +--a step failed, or the time is over--> COMPENSATING --all are done--> COMPENSATED

A flow is never lost between two steps: its row has the state and the number of the next call.  A
call may come twice, after a crash between the call and the row, so each has a key.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias

from cometmq.errors import CometError, ConfigError

__all__ = [
    "ACTIVE",
    "Refused",
    "Saga",
    "SagaCall",
    "SagaRow",
    "SagaState",
    "SagaStep",
    "after_failure",
    "after_success",
]


class Refused(CometError):
    """Raised by a step that has no effect and never will have one, such as "out of stock"."""


class SagaState(StrEnum):
    """The states of a flow."""

    RUNNING = "running"
    CONFIRMING = "confirming"
    COMPENSATING = "compensating"
    DONE = "done"
    COMPENSATED = "compensated"


ACTIVE: Final = (SagaState.RUNNING, SagaState.CONFIRMING, SagaState.COMPENSATING)


@dataclass(frozen=True, slots=True)
class SagaCall:
    """What a step gets.

    ``key`` is equal in every repetition of the call, for the callee's own check of duplicates.
    """

    saga_id: str
    key: str
    data: Any
    results: Mapping[str, Any]
    """Name of each step that is done -> the value that it returned."""


StepFunction: TypeAlias = Callable[[SagaCall], Any]


@dataclass(frozen=True, slots=True)
class SagaStep:
    """A step of a flow; its functions are ``async def``, or plain and run in threads.

    ``compensate`` takes back an ``action`` that may or may not have happened; None: nothing is to
    be taken back.  ``confirm`` runs when all actions are done.  After a ``pivot`` is done the flow
    only goes forward: later steps are tried until they succeed.
    """

    name: str
    action: StepFunction
    compensate: StepFunction | None = None
    confirm: StepFunction | None = None
    is_pivot: bool = False


class Saga:
    """A kind of flow.

    Args:
        name: in the table; it stays the same from one version of the program to the next.
        steps: in their order; flows under way go on with the steps of the running program.
        tries_max: tries of a step before the flow is taken back.
        deadline_ms: the time for all actions; the flow is taken back when it is over. None: none.

    Raises:
        ConfigError: there is no step, or two have one name.
    """

    def __init__(
        self,
        name: str,
        steps: Sequence[SagaStep],
        *,
        tries_max: int = 5,
        deadline_ms: int | None = None,
    ) -> None:
        names = [step.name for step in steps]
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"the steps of saga {name} are {names}; give at least one, once each")
        if tries_max < 1:
            raise ConfigError(f"tries_max of saga {name} is {tries_max}; give at least 1")
        self.name = name
        self.steps = tuple(steps)
        self.tries_max = tries_max
        self.deadline_ms = deadline_ms


@dataclass(frozen=True, slots=True)
class SagaRow:
    """A flow as the table has it."""

    saga_id: str
    name: str
    state: SagaState
    step: int
    data: Any
    results: dict[str, Any]
    tries: int
    error: str
    deadline_ms: int


def after_success(saga: Saga, state: SagaState, step: int) -> tuple[SagaState, int]:
    """The state and the next step after a call has succeeded."""
    if state is SagaState.COMPENSATING:
        return (state, step - 1) if step > 0 else (SagaState.COMPENSATED, 0)
    if step + 1 < len(saga.steps):
        return state, step + 1
    if state is SagaState.RUNNING and any(one.confirm is not None for one in saga.steps):
        return SagaState.CONFIRMING, 0
    return SagaState.DONE, 0


def after_failure(
    saga: Saga, row: SagaRow, *, is_refused: bool, is_late: bool
) -> tuple[SagaState, int] | None:
    """The state and the next step after a call has failed for good; None to try it again.

    A step that was refused has no effect; any other failed step may have one, so its own
    compensation runs too.
    """
    if row.state is not SagaState.RUNNING:
        return None
    if any(step.is_pivot for step in saga.steps[: row.step]):
        return None
    if not is_refused and not is_late and row.tries + 1 < saga.tries_max:
        return None
    first = row.step - 1 if is_refused else row.step
    return (SagaState.COMPENSATING, first) if first >= 0 else (SagaState.COMPENSATED, 0)
