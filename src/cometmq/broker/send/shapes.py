"""Remembers how property strings were parsed, by their *shape*: the string without UNIQ_KEY and
KEYS.

A producer writes the same names in the same order each time, and mostly the same values except for
those two.  So a string is parsed only when its shape is new.
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
    """Build a function that does what `parse` does, with a memory of shapes.

    Both take a property string that ends with a separator, and return None for a string that they
    do not read.  The second value that `parse` returns must depend on the shape only.  Strings that
    contain one of `varying` are parsed every time.
    """
    shapes: dict[str | tuple[str, str], tuple[T, str | None]] = {}
    shape_of = shapes.get

    def read(text: str) -> tuple[Keys, T] | None:
        before, _, after = text.partition("UNIQ_KEY\x01")
        uniq_key, _, rest = after.partition("\x02")
        # Most producers write KEYS, if they have any, then UNIQ_KEY, then what is always the same.
        keys: str | None = before[5:-1] or None
        shape: str | tuple[str, str] = rest
        is_cut_well = not before
        if keys:
            is_cut_well = before == f"KEYS\x01{keys}\x02" and "\x02" not in keys
        if before and not is_cut_well:
            head, has_keys, tail = before.partition("KEYS\x01")
            keys, _, between = tail.partition("\x02")
            shape = (head + between, rest)
            # A name that only ends alike ("MYKEYS") is cut in two here, which is no good cut.
            is_cut_well = (
                before[-1] == "\x02" and head[-1:] in ("", "\x02") and bool(keys or not has_keys)
            )
            keys = keys or None
        if is_cut_well and uniq_key:
            remembered = shape_of(shape)
            if remembered is not None:
                return (uniq_key, keys, remembered[1]), remembered[0]
        parsed = parse(text)
        if parsed is None or not is_cut_well or parsed[0][0] != uniq_key or parsed[0][1] != keys:
            return parsed
        for name in varying:
            if name in text:
                return parsed
        text_of_shape = shape if isinstance(shape, str) else "".join(shape)
        # The memory serves any UNIQ_KEY and KEYS, so the shape must not have entries of these.
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
