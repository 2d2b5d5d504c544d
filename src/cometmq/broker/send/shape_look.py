"""What a property string asks for, remembered by its *shape*: all of it but UNIQ_KEY and KEYS.

Job: spare a closer look at strings that differ from message to message in those two entries only.
It must not know what is looked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

__all__ = ["Keys", "make_shape_look"]

_SHAPES_MAX: Final = 1024
_SHAPE_CHARS_MAX: Final = 512

S = TypeVar("S")
Keys = tuple[str, str | None, str | None]
"""UNIQ_KEY, KEYS and TAGS."""


def make_shape_look(
    closer: Callable[[str], tuple[Keys, S] | None], tags_of: Callable[[S], str | None]
) -> Callable[[str], tuple[Keys, S] | None]:
    """Build a look with a memory: `closer` is asked only about what is new but for the keys.

    It takes a string that ends with a separator; None when it is not plain.
    """
    shapes: dict[tuple[str, str], tuple[S, str | None]] = {}
    known = shapes.get

    def look_at(text: str) -> tuple[Keys, S] | None:
        before, _, rest = text.partition("UNIQ_KEY\x01")
        uniq_key, _, after = rest.partition("\x02")
        head, has_keys, tail = before.partition("KEYS\x01")
        keys, _, between = tail.partition("\x02")
        around = head + between
        found = known((around, after))
        if found is not None and uniq_key and (keys or not has_keys):
            return (uniq_key, keys or None, found[1]), found[0]
        looked = closer(text)
        if (
            looked is not None
            and len(around) + len(after) <= _SHAPE_CHARS_MAX
            # Nothing of the other two may be in what is remembered, nor a name cut in two.
            and not any(f"{name}\x01" in around + after for name in ("UNIQ_KEY", "KEYS"))
            and all(part[-1:] in ("", "\x02") for part in (before, head, between))
            and looked[0][:2] == (uniq_key, keys or None)
        ):
            if len(shapes) >= _SHAPES_MAX:
                shapes.clear()
            shapes[around, after] = looked[1], tags_of(looked[1])
        return looked

    return look_at
