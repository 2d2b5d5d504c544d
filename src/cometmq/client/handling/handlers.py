"""The types of a program's handler, and the outcomes that its results and exceptions mean."""

import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeAlias

from cometmq.client.message.message import ReceivedMessage
from cometmq.core.retry.consume_retry import DELAY_LEVEL_BY_BROKER, DELAY_LEVEL_DEAD_LETTER
from cometmq.errors import CometError, ConfigError, ConfigTypeError
from cometmq.model.message_checks import plain_text
from cometmq.model.properties import RESERVED_PROPERTIES

__all__ = [
    "DeadLetter",
    "Handler",
    "HandlerResult",
    "Outcome",
    "OutcomeReport",
    "RetryLater",
    "check_handler",
    "ends_program",
    "error_of",
    "outcome_of",
    "outcomes_of",
    "properties_of",
    "reason_of",
    "result_of_error",
    "unshown_error",
]

log = logging.getLogger("cometmq.client")

_LEVEL_MAX: Final = 2**31 - 1
"""The largest number in a request's field; a broker lowers it to its highest level."""
_reported_types: Final[set[type]] = set()
"""Types of results without a meaning that the log has reported."""

Outcome = int | None
"""None for done, else the delay level of the next try (0: the broker's choice, -1: dead letter)."""


class RetryLater(CometError):
    """Asks for another try of the message: ``delay_level`` 1..18, or 0 for the usual back-off.

    Raises:
        ConfigError: the delay level is not a whole number from -1 on.
    """

    delay_level: int = DELAY_LEVEL_BY_BROKER
    handler_error: BaseException | None = None
    """The exception of a handler that asked for nothing; the log shows its traceback."""

    def __init__(self, delay_level: int = DELAY_LEVEL_BY_BROKER, reason: str = "") -> None:
        if type(delay_level) is not int or not -1 <= delay_level <= _LEVEL_MAX:
            raise ConfigError(
                f"the delay level of RetryLater is {delay_level!r:.100}; give a level from 1 on, "
                "or 0 for the usual back-off"
            )
        self.delay_level = delay_level
        super().__init__(reason or f"retry later at delay level {delay_level}")


class DeadLetter(RetryLater):
    """Sends the message to the group's dead-letter topic.

    With ``properties`` the dead letter is a copy that has these properties too, such as
    ``{"error": "no such customer"}``, which ``cometmq dead-letters list`` shows. Without them the
    broker moves the message itself, and only the consumer's log has the reason.

    Raises:
        ConfigError: a property's name is reserved.
        LocalProtocolError: a property is not a text, or contains a separator of properties.
    """

    delay_level = DELAY_LEVEL_DEAD_LETTER
    properties: Mapping[str, str] = MappingProxyType({})

    def __init__(self, reason: str = "", *, properties: Mapping[str, str] | None = None) -> None:
        super().__init__(DELAY_LEVEL_DEAD_LETTER, reason or "sent to the dead-letter topic")
        if properties is not None:
            self.properties = dict(properties)
        for name, value in self.properties.items():
            if plain_text(name, "property name of DeadLetter") in RESERVED_PROPERTIES:
                raise ConfigError(f"the property {name} of DeadLetter has a meaning to brokers")
            plain_text(value, f"property {name} of DeadLetter")


HandlerResult: TypeAlias = bool | RetryLater | None
"""What a handler returns for a message."""
Handler: TypeAlias = (
    Callable[[ReceivedMessage], HandlerResult | Awaitable[HandlerResult]]
    | Callable[
        [list[ReceivedMessage]],
        HandlerResult
        | Sequence[HandlerResult]
        | Awaitable[HandlerResult | Sequence[HandlerResult]],
    ]
)
"""Takes a `ReceivedMessage` (or a list of them); plain or ``async``.

None or True: done.  False or an exception: try again later.  `RetryLater` (returned or raised):
try again after a level of the handler's choice; `DeadLetter`: never again.  A list handler may
also return one such value per message.

Other values count as done and are reported once in the log.  A coroutine or generator that was
returned without being run counts as a failure.  ``SystemExit`` and ``KeyboardInterrupt`` of an
``async def`` handler on the main thread end the program; elsewhere they are failures too.
"""


class OutcomeReport(Protocol):
    """Receives the outcomes from a dispatcher; called on the event loop."""

    def finished(self, assigned: Any, message: ReceivedMessage, outcome: Outcome) -> None:
        """Called when one message was handled."""
        ...

    def finished_all(self, assigned: Any, messages: Sequence[ReceivedMessage]) -> None:
        """Called when all of these messages were handled with success."""
        ...

    def skipped(self, assigned: Any, messages: Sequence[ReceivedMessage]) -> None:
        """Called for messages of a run that are not handled here."""
        ...


def check_handler(handler: object) -> None:
    """Refuse a handler that cannot be called with a message, or would not run when called.

    Raises:
        ConfigError: the text says why.
    """
    if not callable(handler):
        raise ConfigTypeError(
            f"the handler {handler!r:.100} is {type(handler).__name__}; it must be a function that "
            "takes a message"
        )
    call = getattr(handler, "__call__", handler)  # noqa: B004 - the method, to examine its kind
    if any(map(inspect.isgeneratorfunction, (handler, call))) or any(
        map(inspect.isasyncgenfunction, (handler, call))
    ):
        raise ConfigError(
            f"the handler {handler!r:.100} contains a yield, so a call of it runs nothing; use "
            "return instead"
        )
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return  # written in C, without a signature
    try:
        signature.bind(None)
    except TypeError as error:
        raise ConfigError(
            f"the handler {handler!r:.100} cannot be called with a message alone: {error}"
        ) from None


class _Failed(int):
    """A delay level with the handler's reason and properties for the dead letter."""

    reason: str = ""
    properties: Mapping[str, str] = MappingProxyType({})
    error: BaseException | None = None
    is_error_shown: bool = False


def error_of(outcome: Outcome) -> BaseException | None:
    """The exception of a handler that meant no result by it."""
    return outcome.error if isinstance(outcome, _Failed) else None


def unshown_error(outcome: Outcome) -> BaseException | None:
    """That exception, the first time; the messages of a list handler share one."""
    if not isinstance(outcome, _Failed) or outcome.is_error_shown:
        return None
    outcome.is_error_shown = True
    return outcome.error


def reason_of(outcome: Outcome) -> str:
    """The reason that the handler gave for a failure; empty without one."""
    return outcome.reason if isinstance(outcome, _Failed) else ""


def properties_of(outcome: Outcome) -> Mapping[str, str]:
    """The properties that the handler asked for on the dead letter."""
    return outcome.properties if isinstance(outcome, _Failed) else {}


def outcome_of(value: Any) -> Outcome:
    """The outcome that a handler's return value means."""
    if value is None or value is True:
        return None
    if isinstance(value, RetryLater):
        failed = _Failed(value.delay_level)
        failed.reason = str(value)
        failed.error = value.handler_error
        if isinstance(value, DeadLetter):
            failed.properties = value.properties
        return failed
    if value is False:
        return DELAY_LEVEL_BY_BROKER
    return _outcome_of_meaningless(value)


def _outcome_of_meaningless(value: Any) -> Outcome:
    """The outcome of a meaningless value: a failure for work that never ran, else done."""
    kind = type(value)
    if inspect.isawaitable(value) or inspect.isgenerator(value) or inspect.isasyncgen(value):
        close = getattr(value, "close", None)
        if close is not None:
            close()
        text = f"the handler returned a {kind.__name__} that nobody has run; await it"
        log.error("%s; the message is tried again", text)
        return outcome_of(RetryLater(reason=text))
    if kind not in _reported_types:
        _reported_types.add(kind)
        log.warning(
            "a handler returned %.100r (%s), which has no meaning; its messages count as done. "
            "Return None or True for that, False, RetryLater or DeadLetter otherwise",
            value,
            kind.__name__,
        )
    return None


def outcomes_of(value: Any, count: int) -> list[Outcome]:
    """The outcome of each of ``count`` messages that a list handler's return value means."""
    if isinstance(value, (list, tuple)):
        if len(value) == count:
            return [outcome_of(result) for result in value]
        log.warning(
            "a list handler returned %d results for %d messages; all are tried again",
            len(value),
            count,
        )
        return [DELAY_LEVEL_BY_BROKER] * count
    return [outcome_of(value)] * count


def ends_program(error: BaseException) -> bool:
    """Whether a handler's exception ends the program.

    It does on the main thread only; elsewhere it would end a thread or a loop that others use.
    """
    return (
        isinstance(error, (KeyboardInterrupt, SystemExit))
        and threading.current_thread() is threading.main_thread()
    )


def result_of_error(error: BaseException) -> RetryLater:
    """The result that a handler's exception means."""
    if isinstance(error, RetryLater):
        return error
    result = RetryLater(reason=f"{type(error).__name__}: {error}")
    result.handler_error = error
    return result
