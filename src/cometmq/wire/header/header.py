"""Base of all typed headers: conversion between ext fields and typed fields.

A header is a ``msgspec.Struct``. ``from_command`` decodes it straight from the raw JSON of the ext
fields, at half the cost of a dictionary and conversions in Python; ``from_ext`` takes a dictionary
and explains what is wrong. Numbers and bools may come as strings or as JSON numbers and bools; an
empty string counts as absent for anything but text (docs/internals/protocol.md#json-header and
#traps). ``to_ext`` writes strings only and leaves out what is None.

Wire spellings exist nowhere but in the ``rename`` of these classes.
"""

import re
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar

import msgspec

from cometmq.errors import RemoteProtocolError
from cometmq.wire.command.command import RemotingCommand

__all__ = ["RIDER_FIELDS", "Header", "Int32", "Int64", "convert_ext", "wire_names"]

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

# Any request may have these fields; no broker rule depends on them
# (docs/internals/protocol.md#fields-on-any-request, capture README 20).
RIDER_FIELDS: Final = frozenset(
    {
        "AccessKey",
        "OnsChannel",
        "Owner",
        "ReqT",
        "SecurityToken",
        "Signature",
        "__ZONE_MODE",
        "__ZONE_NAME",
        "bname",
        "lo",
        "ns",
        "nsd",
        "oway",
    }
)

_T = TypeVar("_T", bound="Header")
_DECODERS: Final[dict[type[Any], Callable[[Any], Any]]] = {}
_DECIMAL: Final = re.compile(r"([+-]?)0*([0-9]+)\Z", re.ASCII)


def wire_names(**spellings: str) -> Callable[[str], str]:
    """Return the renaming of a header: camelCase without ``_ms``, except for ``spellings``."""

    def wire_name(name: str) -> str:
        spelled = spellings.get(name)
        if spelled is not None:
            return spelled
        first, *words = name.removesuffix("_ms").split("_")
        return first + "".join([word.capitalize() for word in words])

    return wire_name


def _decoder_of(cls: type[_T]) -> Callable[[Any], _T]:
    decode = _DECODERS.get(cls)
    if decode is None:
        decode = _DECODERS[cls] = msgspec.json.Decoder(cls, strict=False).decode
    return decode


class Header(msgspec.Struct, gc=False, rename=wire_names()):
    """Base of the typed headers."""

    @classmethod
    def from_command(cls: type[_T], command: RemotingCommand) -> _T:
        """Return the typed header of a command.

        Raises:
            RemoteProtocolError: as `from_ext`.
        """
        if command.decoded_ext is None:
            try:
                return _decoder_of(cls)(command.raw_ext)
            except (msgspec.MsgspecError, ValueError, RecursionError):
                # `from_ext` is more forgiving, and explains what is wrong.
                pass
        return cls.from_ext(command.ext_fields)

    @classmethod
    def from_ext(cls: type[_T], ext: dict[str, str]) -> _T:
        """Return the typed header of ext fields; unknown fields are ignored.

        Raises:
            RemoteProtocolError: a field is missing or has another type; the text names it.
        """
        return convert_ext(cls, ext)

    def to_ext(self) -> dict[str, str]:
        """Return the ext fields: every value a string, None left out."""
        ext: dict[str, str] = {}
        names = self.__struct_encode_fields__
        for index, name in enumerate(self.__struct_fields__):
            value = getattr(self, name)
            if value is None:
                continue
            if value is True:
                ext[names[index]] = "true"
            elif value is False:
                ext[names[index]] = "false"
            else:
                ext[names[index]] = str(value)
        return ext


def convert_ext(cls: type[_T], ext: dict[str, str]) -> _T:
    """Return the header of a class from ext fields, as `Header.from_ext` does.

    Raises:
        RemoteProtocolError: a field is missing or has another type; the text names it.
    """
    try:
        return msgspec.convert(ext, cls, strict=False)
    except msgspec.ValidationError:
        pass
    repaired = _repair(cls, ext)
    try:
        return msgspec.convert(repaired, cls, strict=False)
    except msgspec.ValidationError as error:
        raise _explain(cls, ext, error) from None


def _repair(cls: type[Any], ext: dict[str, str]) -> dict[str, str]:
    """Return the ext fields with what Java's number parser accepts put in canonical form."""
    repaired: dict[str, str] = {}
    for field in msgspec.structs.fields(cls):
        value = ext.get(field.encode_name)
        if value is None:
            continue
        if not _is_text(field.type):
            if value == "":
                continue
            match = _DECIMAL.match(value)
            if match:
                value = ("-" if match[1] == "-" else "") + match[2]
        repaired[field.encode_name] = value
    return repaired


def _is_text(kind: Any) -> bool:
    return kind is str or kind == (str | None)


def _explain(
    cls: type[Any], ext: dict[str, str], error: msgspec.ValidationError
) -> RemoteProtocolError:
    cause, _, path = str(error).replace("`", "").partition(" - at $.")
    if path:
        value = ext.get(path, "")
        expected = cause.partition(", got")[0].removeprefix("Expected ")
        return RemoteProtocolError(
            f"{cls.__name__}: field {_both_names(cls, path)} is {value!r:.100}, expected {expected}"
        )
    missing = cause.rpartition(" ")[2]
    return RemoteProtocolError(
        f"{cls.__name__}: the required field {_both_names(cls, missing)} is missing"
    )


def _both_names(cls: type[Any], wire_name: str) -> str:
    for field in msgspec.structs.fields(cls):
        if field.encode_name == wire_name and field.name != wire_name:
            return f"{wire_name} ({field.name})"
    return wire_name
