"""Remembers what property strings say by their *shape*: the string without UNIQ_KEY and KEYS.

A producer writes the same names in the same order for ever, and mostly the same values but for
those two.  So a string is parsed when its shape is new, and otherwise cut in two places.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

__all__ = ["Keys", "remember_shapes"]

_SHAPES_MAX: Final = 1024
_SHAPE_CHARS_MAX: Final = 512

T = TypeVar("T")
Keys = tuple[str, str | None, str | None]
"""UNIQ_KEY, KEYS and TAGS."""


def remember_shapes(
    parse: Callable[[str], tuple[Keys, T] | None], varying: tuple[str, ...] = ()
) -> Callable[[str], tuple[Keys, T] | None]:
    """Build `parse` with a memory of shapes.

    Both take a property string that ends with a separator and return None for one they do not
    read.  What `parse` returns beside the keys must depend on the shape only; strings that contain
    one of `varying` are parsed every time.
    """
    shapes: dict[str | tuple[str, str], tuple[T, str | None]] = {}
    shape_of = shapes.get

    def read(text: str) -> tuple[Keys, T] | None:
        before, _, after = text.partition("UNIQ_KEY\x01")
        uniq_key, _, rest = after.partition("\x02")
        shape: str | tuple[str, str] = rest
        keys: str | None = None
        is_cut_well = True
        if before:
            head, has_keys, tail = before.partition("KEYS\x01")
            keys, _, between = tail.partition("\x02")
            shape = (head + between, rest)
            # Names that only end alike ("MYKEYS") are cut in two here.
            is_cut_well = (
                before[-1] == "\x02" and head[-1:] in ("", "\x02") and bool(keys or not has_keys)
            )
            keys = keys or None
        if is_cut_well and uniq_key:
            remembered = shape_of(shape)
            if remembered is not None:
                value, tags = remembered
                return (uniq_key, keys, tags), value
        parsed = parse(text)
        if (
            parsed is None
            or not is_cut_well
            or parsed[0][0] != uniq_key
            or parsed[0][1] != keys
            or any(name in text for name in varying)
        ):
            return parsed
        text_of_shape = shape if isinstance(shape, str) else "".join(shape)
        # What is remembered holds for any UNIQ_KEY and KEYS, so it must not have its own.
        if (
            len(text_of_shape) <= _SHAPE_CHARS_MAX
            and "UNIQ_KEY\x01" not in text_of_shape
            and "KEYS\x01" not in text_of_shape
        ):
            if len(shapes) >= _SHAPES_MAX:
                shapes.clear()
            shapes[shape] = parsed[1], parsed[0][2]
        return parsed

    return read
