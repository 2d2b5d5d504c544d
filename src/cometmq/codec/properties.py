"""The property string of a message: ``name 0x01 value 0x02`` repeated, UTF-8.

Writers end with 0x02, readers accept its absence (Java 4.9.8 leaves it out).  Java's reader
drops entries with an empty name or an empty value and lets the last of two equal names win
(``MessageDecoder.string2messageProperties``; docs/internals/protocol.md#properties); so do we.
There is no escape: 0x01 and 0x02 inside a name or value would corrupt the map, so the writer
refuses them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from cometmq.errors import LocalProtocolError

__all__ = [
    "PROPERTIES_BYTES_MAX",
    "Needle",
    "decode_properties",
    "encode_properties",
    "encode_properties_text",
    "ensure_trailing_separator",
    "find_property",
    "pick_properties",
    "property_marks",
    "remove_property",
    "split_keys",
]

Needle: TypeAlias = bytes | re.Pattern[bytes]
"""What property strings are searched for: bytes, or an expression where they have many forms."""
# The length field of a stored message is a signed 16-bit integer.
PROPERTIES_BYTES_MAX: Final = 32767


def encode_properties_text(properties: Mapping[str, str]) -> str:
    """Return the property string without the entries whose value is empty; readers drop those.

    Raises:
        LocalProtocolError: a name is empty, or a name or value contains 0x01 or 0x02.
    """
    text = "".join(
        [
            f"{name}\x01{value}\x02" if name else "\x01"
            for name, value in properties.items()
            if value
        ]
    )
    if text.count("\x01") != text.count("\x02") or text.count("\x01") > len(properties):
        raise LocalProtocolError(_explain_illegal(properties))
    return text


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Return the property string as UTF-8 with a trailing 0x02.

    Raises:
        LocalProtocolError: as `encode_properties_text`, or for half a surrogate pair.
    """
    try:
        return encode_properties_text(properties).encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(
            f"a message property is not valid Unicode: {error.object[error.start : error.end]!r}"
            " is half of a surrogate pair"
        ) from None


def _explain_illegal(properties: Mapping[str, str]) -> str:
    for name, value in properties.items():
        if not value:
            continue
        if not name:
            return f"a message property with value {value!r} has an empty name"
        for text, part in ((name, "name"), (value, "value")):
            if "\x01" in text or "\x02" in text:
                return (
                    f"the {part} of message property {name!r} holds U+0001 or U+0002, which"
                    " separate properties on the wire; encode the value (for example base64)"
                )
    return "a message property is illegal"


def decode_properties(raw: bytes | str) -> dict[str, str]:
    """Return the properties of a property string; undecodable UTF-8 becomes U+FFFD."""
    text = raw if isinstance(raw, str) else raw.decode("utf-8", "replace")
    result: dict[str, str] = {}
    for item in text.split("\x02"):
        name, _, value = item.partition("\x01")
        if name and value:
            result[name] = value
    return result


def find_property(raw: bytes, name: bytes) -> bytes | None:
    """Return the value of one property without decoding the others; None if absent or empty.

    Of several entries of the name, the last with a value wins, as in `decode_properties`.
    """
    needle = name + b"\x01"
    position = raw.find(needle)
    if position < 0:
        return None
    start = position + len(needle)
    end = raw.find(b"\x02", start)
    if end < 0:
        end = len(raw)
    # Usually the name has one entry, with a value, and no longer name ends like it.
    if end > start and (position == 0 or raw[position - 1] == 2) and raw.find(needle, end) < 0:
        return raw[start:end]
    return _find_last(raw, needle, position)


def split_keys(text: str) -> tuple[str, ...]:
    """Return the keys of a KEYS property; only blanks separate them.

    Source: ``MessageConst.KEY_SEPARATOR``; the index splits them in the same way.
    """
    return tuple(key for key in text.split(" ") if key)


def property_marks(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return each name with the text that precedes its value, for `pick_properties`."""
    return [(name, f"\x02{name}\x01") for name in sorted(names)]


def pick_properties(raw: bytes, wanted: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return some properties of a property string, as `decode_properties` gives them; HOT.

    Args:
        raw: the property string.
        wanted: what `property_marks` made of their names.
    """
    text = "\x02" + raw.decode("utf-8", "replace")
    picked: dict[str, str] = {}
    for name, mark in wanted:
        start = text.rfind(mark)
        if start < 0:
            continue
        start += len(mark)
        end = text.find("\x02", start)
        value = text[start:end] if end >= 0 else text[start:]
        if not value:
            # An empty value does not count; an earlier entry may have another.
            return decode_properties(raw)
        picked[name] = value
    return picked


def _find_last(raw: bytes, needle: bytes, position: int) -> bytes | None:
    value: bytes | None = None
    while position >= 0:
        start = position + len(needle)
        # A match that does not start an entry is the end of a longer name.
        if position == 0 or raw[position - 1] == 2:
            end = raw.find(b"\x02", start)
            if end < 0:
                end = len(raw)
            if end > start:
                value = raw[start:end]
        position = raw.find(needle, start)
    return value


def remove_property(raw: bytes, name: bytes) -> bytes:
    """Return the property string without any entry of this name; others keep their bytes."""
    prefix = name + b"\x01"
    if prefix not in raw:
        return raw
    return b"\x02".join([item for item in raw.split(b"\x02") if not item.startswith(prefix)])


def ensure_trailing_separator(raw: bytes) -> bytes:
    """Return the property string ending in 0x02, so that further entries can be appended."""
    return raw if not raw or raw.endswith(b"\x02") else raw + b"\x02"
