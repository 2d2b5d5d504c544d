"""Reads typed values from a decoded JSON body: lenient about their form, strict about their kind.

C++ clients send ordinals for enums and text for numbers, Go leaves keys out
(docs/internals/protocol.md#heartbeats). Every refusal is a CodecError that names body, field and
value.
"""

import re
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, Final, TypeVar

from cometmq.errors import CodecError

__all__ = [
    "bool_field",
    "each_object",
    "enum_field",
    "float_field",
    "int_field",
    "int_key",
    "list_field",
    "object_field",
    "optional_int_field",
    "optional_str_field",
    "str_field",
    "str_list_field",
]

_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1
_DECIMAL: Final = re.compile(r"[+-]?[0-9]{1,20}\Z")
_E = TypeVar("_E", bound=IntEnum)
_T = TypeVar("_T")


def _refuse(body: str, name: str, value: Any, expected: str) -> CodecError:
    return CodecError(f"{body}: field {name} is {value!r:.100}, expected {expected}")


def _as_int(body: str, name: str, value: Any) -> int:
    number: int | None = None
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif (isinstance(value, str) and _DECIMAL.match(value)) or (
        isinstance(value, float) and value.is_integer()
    ):
        number = int(value)
    if number is None or not _INT64_MIN <= number <= _INT64_MAX:
        raise _refuse(body, name, value, "a 64-bit integer")
    return number


def int_field(data: Mapping[Any, Any], body: str, name: str, default: int | None = None) -> int:
    """Return a number; the default if it is absent or null.

    Raises:
        CodecError: it is no 64-bit integer, or it is absent and has no default.
    """
    value = data.get(name)
    if value is None:
        if default is None:
            raise CodecError(f"{body}: the required field {name} is missing")
        return default
    return _as_int(body, name, value)


def optional_int_field(data: Mapping[Any, Any], body: str, name: str) -> int | None:
    """Return a number or None."""
    value = data.get(name)
    return None if value is None else _as_int(body, name, value)


def int_key(body: str, key: Any) -> int:
    """Return the number of an integer-keyed map's key, quoted or not."""
    return _as_int(body, "key", key)


def float_field(data: Mapping[Any, Any], name: str) -> float:
    """Return a rate; 0 for anything that is no number, as Java writes NaN in several ways."""
    value = data.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and value is not None else 0.0


def str_field(data: Mapping[Any, Any], body: str, name: str, default: str | None = None) -> str:
    """Return a text; the default if it is absent or null.

    Raises:
        CodecError: it is no text, or it is absent and has no default.
    """
    value = data.get(name)
    if value is None:
        if default is None:
            raise CodecError(f"{body}: the required field {name} is missing")
        return default
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise _refuse(body, name, value, "a string")


def optional_str_field(data: Mapping[Any, Any], body: str, name: str) -> str | None:
    """Return text or None."""
    return None if data.get(name) is None else str_field(data, body, name)


def bool_field(data: Mapping[Any, Any], body: str, name: str, default: bool) -> bool:
    """Return a truth value, also from its word or from 0 and 1.

    Raises:
        CodecError: it is none.
    """
    value = data.get(name)
    if value is None:
        return default
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if isinstance(value, int) and value in (0, 1):
        return value == 1
    raise _refuse(body, name, value, "true or false")


def enum_field(data: Mapping[Any, Any], body: str, name: str, kind: type[_E], default: _E) -> _E:
    """Return an enum member from its name in any case, its ordinal, or the ordinal as text.

    Raises:
        CodecError: it is none of the members.
    """
    value = data.get(name)
    if value is None:
        return default
    if isinstance(value, str):
        member = kind.__members__.get(value.upper())
        if member is not None:
            return member
        if _DECIMAL.match(value):
            value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return kind(value)
        except ValueError:
            pass
    raise _refuse(body, name, value, f"one of {', '.join(kind.__members__)}")


def list_field(data: Mapping[Any, Any], body: str, name: str) -> list[Any]:
    """Return a list; an empty one if it is absent or null.

    Raises:
        CodecError: it is no list.
    """
    value = data.get(name)
    if value is None:
        return []
    if isinstance(value, list):
        return value
    raise _refuse(body, name, value, "a list")


def str_list_field(data: Mapping[Any, Any], body: str, name: str) -> list[str]:
    """Return a list of texts.

    Raises:
        CodecError: it is no list, or holds something else.
    """
    values = list_field(data, body, name)
    for value in values:
        if not isinstance(value, str):
            raise _refuse(body, name, value, "a list of strings")
    return values


def object_field(data: Mapping[Any, Any], body: str, name: str) -> dict[Any, Any]:
    """Return an object; an empty one if it is absent or null.

    Raises:
        CodecError: it is no object.
    """
    value = data.get(name)
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    raise _refuse(body, name, value, "an object")


def each_object(
    data: Mapping[Any, Any], body: str, name: str, read: Callable[[dict[Any, Any]], _T]
) -> list[_T]:
    """Return what ``read`` makes of every object of a list.

    Raises:
        CodecError: it is no list, or holds something else.
    """
    result = []
    for value in list_field(data, body, name):
        if not isinstance(value, dict):
            raise _refuse(body, name, value, "a list of objects")
        result.append(read(value))
    return result
