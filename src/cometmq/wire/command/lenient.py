"""The lenient reader of JSON headers, for texts that fastjson accepts and strict JSON does not.

It reads a header that the fast decoder refused. Such headers have raw control characters inside
strings, numbers, bools or nulls as ext values, numbers as strings, half surrogate pairs, or bytes
that are not UTF-8 (docs/internals/protocol.md#json-header). It does not guess: a header that is not
a JSON object, or has a number out of range, is a RemoteProtocolError that names the field.
"""

import json
import re
from typing import Any, Final

from cometmq.errors import RemoteProtocolError

__all__ = ["decode_ext_lenient", "decode_header_lenient", "parse_int32"]

_DECIMAL: Final = re.compile(r"[+-]?[0-9]{1,20}\Z")
_INT32_MIN: Final = -(2**31)
_INT32_MAX: Final = 2**31 - 1


def _loads(raw: bytes) -> Any:
    """Parse JSON with numbers as their own text; RemoteProtocolError for anything else."""
    try:
        text = raw.decode("utf-8", "replace")
        # Numbers keep their spelling, since ext values are text and may exceed any integer.
        return json.loads(text, strict=False, parse_int=_Number, parse_float=_Number)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"the header is not JSON: {error}") from None


class _Number(str):
    """A JSON number kept as text."""

    __slots__ = ()


def _text(value: str) -> str:
    """Return the string with surrogate pairs joined and lone halves replaced, as Java sends it."""
    if value.isascii():
        return str(value)
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _ext_text(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return _text(json.dumps(value, separators=(",", ":"), ensure_ascii=False))


def _stringify(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RemoteProtocolError(
            f"extFields is a JSON {type(value).__name__}, expected an object of strings"
        )
    return {_text(name): _ext_text(item) for name, item in value.items() if item is not None}


def decode_ext_lenient(raw: bytes) -> dict[str, str]:
    """Return ext fields with every value as a string; nulls are left out."""
    return _stringify(_loads(raw))


def parse_int32(name: str, value: Any) -> int:
    """Return a header number.

    Raises:
        RemoteProtocolError: it is no 32-bit number; the text names field, value and range.
    """
    if value is None:
        return 0
    if isinstance(value, str) and _DECIMAL.match(value):
        number = int(value)
        if _INT32_MIN <= number <= _INT32_MAX:
            return number
    raise RemoteProtocolError(f"header field {name} is {value!r:.80}, expected a 32-bit integer")


def _optional_text(name: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return None if value is None else _text(value)
    raise RemoteProtocolError(f"header field {name} is {value!r:.80}, expected a string")


def decode_header_lenient(
    raw: bytes,
) -> tuple[int, int, int, str, int, str | None, dict[str, str] | None]:
    """Return (code, opaque, flag, language, version, remark, ext fields) of a JSON header.

    Raises:
        RemoteProtocolError: the header is no JSON object, or a number is out of range.
    """
    header = _loads(raw)
    if not isinstance(header, dict):
        raise RemoteProtocolError(f"the header is a JSON {type(header).__name__}, not an object")
    ext = header.get("extFields")
    return (
        parse_int32("code", header.get("code")),
        parse_int32("opaque", header.get("opaque")),
        parse_int32("flag", header.get("flag")),
        _optional_text("language", header.get("language")) or "",
        parse_int32("version", header.get("version")),
        _optional_text("remark", header.get("remark")),
        None if ext is None else _stringify(ext),
    )
