"""What a handler asks for by its parameters: the message, its value, or both.

A parameter annotated as `ReceivedMessage`, or the only one without an annotation, gets the
message; the other gets the body as the type of its annotation.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from cometmq.app.serializers import Serializer, ValueReader
from cometmq.client import ReceivedMessage
from cometmq.errors import ConfigError

__all__ = ["VALUE", "HandlerParameters", "message_alone", "name_of", "parameters_of"]

MESSAGE = "message"
VALUE = "value"


@dataclass(frozen=True, slots=True)
class HandlerParameters:
    """The parameters of a handler."""

    order: tuple[str, ...]
    """`MESSAGE` and `VALUE` in the order of the call."""
    reader: ValueReader | None
    """Reads the value; None for a handler that takes messages only."""

    def build(self) -> Callable[[ReceivedMessage], tuple[Any, ...]]:
        """A function from a message to the arguments of the call; HOT."""
        reader = self.reader
        if reader is None:
            return message_alone
        decode, is_single, is_first = reader.decode, len(self.order) == 1, self.order[0] == VALUE

        def arguments(message: ReceivedMessage) -> tuple[Any, ...]:
            body = message.body
            try:
                value = decode(body)
            except Exception as error:
                raise reader.refused(body, error) from error
            if is_single:
                return (value,)
            return (value, message) if is_first else (message, value)

        return arguments


def parameters_of(
    function: Callable[..., Any], serializer: Serializer | None, *, is_batch: bool
) -> HandlerParameters:
    """What a handler asks for.

    Raises:
        ConfigError: it has another number of parameters, or an annotation cannot be used.
    """
    name = name_of(function)
    try:
        signature = inspect.signature(function, eval_str=True)
    except (NameError, AttributeError) as error:
        raise ConfigError(
            f"an annotation of {name}() cannot be resolved: {error}; define the type at the top "
            "level of its module"
        ) from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{function!r:.100} is no handler: {error}") from error
    parameters = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
    ]
    required = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
    ]
    if required or not 1 <= len(parameters) <= 2:
        names = [parameter.name for parameter in parameters] + required
        raise ConfigError(
            f"{name}() needs the arguments ({', '.join(names)}); a handler takes the value, the "
            "ReceivedMessage, or both"
        )
    kinds = [_kind_of(name, parameter, is_batch=is_batch) for parameter in parameters]
    order = tuple(
        MESSAGE
        if kind is ReceivedMessage or (kind is inspect.Parameter.empty and len(kinds) == 1)
        else VALUE
        for kind in kinds
    )
    if len(set(order)) < len(order):
        raise ConfigError(
            f"{name}() has two parameters of one kind; annotate the message's as ReceivedMessage "
            "and the value's by its type"
        )
    if VALUE not in order:
        return HandlerParameters(order, None)
    kind = kinds[order.index(VALUE)]
    try:
        reader = ValueReader(serializer, Any if kind is inspect.Parameter.empty else kind)
    except TypeError as error:
        raise ConfigError(f"{name}() asks for a type that no body is read as: {error}") from error
    return HandlerParameters(order, reader)


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function, or of another object that is called."""
    return getattr(function, "__qualname__", "") or type(function).__qualname__


def _kind_of(name: str, parameter: inspect.Parameter, *, is_batch: bool) -> Any:
    """The annotated type; that of one element for a handler of batches."""
    kind = parameter.annotation
    is_list = get_origin(kind) in (list, Sequence)
    if is_batch:
        if kind in (list, inspect.Parameter.empty):
            return inspect.Parameter.empty
        if not is_list:
            raise ConfigError(
                f"{name}() has batch=, so annotate {parameter.name} as a list, such as "
                f"list[{getattr(kind, '__name__', kind)}]"
            )
        return get_args(kind)[0]
    if is_list and get_args(kind)[:1] == (ReceivedMessage,):
        raise ConfigError(f"{name}() takes a list of messages; say how many by batch=")
    return kind


def message_alone(message: Any) -> tuple[Any, ...]:
    """The arguments of a call that takes what the client passes."""
    return (message,)
