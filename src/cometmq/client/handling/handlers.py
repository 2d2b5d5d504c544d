"""The types of a program's handler, and the outcomes that its results and exceptions mean."""

import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeAlias

from cometmq.client.message.message import ReceivedMessage
from cometmq.core.retry.consume_retry import DELAY_LEVEL_BY_BROKER, DELAY_LEVEL_DEAD_LETTER
from cometmq.core.retry.dead_letters import REASON_PROPERTIES
from cometmq.errors import CometError, ConfigError, ConfigTypeError
from cometmq.model.message_checks import plain_text
from cometmq.model.properties import RESERVED_PROPERTIES

__all__ = [
    "OUTCOME_STOP",
    "DeadLetter",
    "Handler",
    "HandlerResult",
    "Outcome",
    "OutcomeReport",
    "RetryLater",
    "StopConsuming",
    "check_handler",
    "deliver_time_of",
    "ends_program",
    "error_of",
    "is_delay",
    "outcome_of",
    "outcomes_of",
    "pause_of",
    "properties_of",
    "reason_of",
    "result_of_error",
    "unshown_error",
]

log = logging.getLogger("cometmq.client")

_LEVEL_MAX: Final = 2**31 - 1
"""The largest number in a request's field; a broker lowers it to its highest level."""
_TIME_MS_MAX: Final = 2**53
_reported_types: Final[set[type]] = set()
"""Types of results without a meaning that the log has reported."""

Outcome = int | None
"""None for done, `OUTCOME_STOP`, or the delay level of the next try.

Level 0 is the broker's choice, and -1 makes the message a dead letter.
"""
OUTCOME_STOP: Final = -2
"""The outcome of a message whose handler asks that nothing more is consumed."""
REASON_LENGTH_MAX: Final = 1_000
"""Characters of a reason in a property; all properties of a message share 32 KiB."""


class RetryLater(CometError):
    """Asks for another try of the message: ``delay_level`` 1..18, or 0 for the usual back-off.

    ``delay_ms`` or ``deliver_time_ms`` (milliseconds since 1970) ask for an exact time instead.
    Brokers without timers deliver the message after the shortest level that is not earlier.

    Raises:
        ConfigError: a value is not a whole number in its range, or two of them are given.
    """

    delay_level: int = DELAY_LEVEL_BY_BROKER
    delay_ms: int | None = None
    deliver_time_ms: int | None = None
    handler_error: BaseException | None = None
    """The exception of a handler that asked for nothing; the log shows its traceback."""

    def __init__(
        self,
        delay_level: int = DELAY_LEVEL_BY_BROKER,
        reason: str = "",
        *,
        delay_ms: int | None = None,
        deliver_time_ms: int | None = None,
    ) -> None:
        if type(delay_level) is not int or not -1 <= delay_level <= _LEVEL_MAX:
            raise ConfigError(
                f"the delay level of RetryLater is {delay_level!r:.100}; give a level from 1 on, "
                "or 0 for the usual back-off"
            )
        self.delay_level = delay_level
        self.delay_ms = delay_ms
        self.deliver_time_ms = deliver_time_ms
        times = {"delay_ms": delay_ms, "deliver_time_ms": deliver_time_ms}
        given = {name: value for name, value in times.items() if value is not None}
        for name, value in given.items():
            if type(value) is not int or not 0 < value <= _TIME_MS_MAX:
                raise ConfigError(
                    f"{name} of RetryLater is {value!r:.100}; give milliseconds, a whole number "
                    "above 0"
                )
        if len(given) + (delay_level != DELAY_LEVEL_BY_BROKER) > 1:
            raise ConfigError(
                f"RetryLater has delay_level {delay_level}, delay_ms {delay_ms} and "
                f"deliver_time_ms {deliver_time_ms}; give one of them"
            )
        when = "".join(f"{name} {value}" for name, value in given.items())
        super().__init__(reason or f"retry later at {when or f'delay level {delay_level}'}")


class DeadLetter(RetryLater):
    """Sends the message to the group's dead-letter topic.

    The reason travels as the dead letter's property ``error``, which ``cometmq dead-letters list``
    shows, unless ``properties`` has one of its own; other ``properties`` travel too.

    Raises:
        ConfigError: a property's name is reserved.
        LocalProtocolError: a property is not a text, or contains a separator of properties.
    """

    delay_level = DELAY_LEVEL_DEAD_LETTER
    properties: Mapping[str, str] = MappingProxyType({})

    def __init__(self, reason: str = "", *, properties: Mapping[str, str] | None = None) -> None:
        super().__init__(DELAY_LEVEL_DEAD_LETTER, reason or "sent to the dead-letter topic")
        self.properties = dict(properties or {})
        if reason and not any(name in self.properties for name in REASON_PROPERTIES):
            self.properties[REASON_PROPERTIES[0]] = _property_text(reason)
        for name, value in self.properties.items():
            if plain_text(name, "property name of DeadLetter") in RESERVED_PROPERTIES:
                raise ConfigError(f"the property {name} of DeadLetter has a meaning to brokers")
            plain_text(value, f"property {name} of DeadLetter")


class StopConsuming(CometError):
    """Stops the consumer: for a message whose effect must not be repeated.

    The message is neither done nor tried again, and no handler starts until the program calls
    `PushConsumer.resume`; the message is then handled again.  The consumer stays a member of its
    group, so no other member gets the message as long as this process lives.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "the handler asks to stop consuming")


def _property_text(text: str) -> str:
    """A text that fits a property: short, and without the separators of properties."""
    clean = text.replace("\x01", " ").replace("\x02", " ")
    return clean[:REASON_LENGTH_MAX]


HandlerResult: TypeAlias = bool | RetryLater | StopConsuming | None
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
try again at a time of the handler's choice; `DeadLetter`: never again; `StopConsuming`: the
consumer stops.  A list handler may also return one such value per message.

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
    deliver_time_ms: int | None = None
    delay_ms: int | None = None
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


def deliver_time_of(outcome: Outcome, now_ms: int) -> int | None:
    """The exact time of the next try, ms since 1970; None where the handler asked for none."""
    if not isinstance(outcome, _Failed):
        return None
    return outcome.deliver_time_ms if outcome.delay_ms is None else now_ms + outcome.delay_ms


def is_delay(outcome: Outcome) -> bool:
    """Whether that time is the end of a delay, and no time that the handler has named."""
    return isinstance(outcome, _Failed) and outcome.delay_ms is not None


def pause_of(outcome: Outcome, now_ms: int) -> int | None:
    """Milliseconds until the exact time of the next try; None where the handler asked for none."""
    deliver_time_ms = deliver_time_of(outcome, now_ms)
    return None if deliver_time_ms is None else max(0, deliver_time_ms - now_ms)


def outcome_of(value: Any) -> Outcome:
    """The outcome that a handler's return value means."""
    if value is None or value is True:
        return None
    if isinstance(value, StopConsuming):
        stopped = _Failed(OUTCOME_STOP)
        stopped.reason = str(value)
        return stopped
    if isinstance(value, RetryLater):
        failed = _Failed(value.delay_level)
        failed.reason = str(value)
        failed.error = value.handler_error
        failed.deliver_time_ms = value.deliver_time_ms
        failed.delay_ms = value.delay_ms
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
            "Return None or True for that, otherwise False, RetryLater, DeadLetter or "
            "StopConsuming",
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


def result_of_error(error: BaseException) -> RetryLater | StopConsuming:
    """The result that a handler's exception means."""
    if isinstance(error, (RetryLater, StopConsuming)):
        return error
    result = RetryLater(reason=f"{type(error).__name__}: {error}")
    result.handler_error = error
    return result
