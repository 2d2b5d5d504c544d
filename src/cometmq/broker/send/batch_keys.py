"""What filters and the index want to know of a batch's messages, found for all of them at once.

Job: tags codes and index keys from the property strings of a batch, and whether one of them may
ask for a time.  It must not judge.

The messages of one producer have the same names in the same order.  So a pattern is made of the
first message's names, the second time they are seen, and cuts all strings of a batch in one go.
Where it does not fit all of them each string is cut alone.  Both give the same: the last entry of
a name counts, and an empty value is none.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.codec.java_hash import tags_code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.store.base.results import IndexKeys

__all__ = ["BatchKeys", "BatchLook", "MayWait", "keys_of_text", "may_wait"]

_ENTRY_END: Final = "\x02"
# Put before each string; a batch whose strings hold one of their own is cut one by one.
_MARK: Final = b"\x03"
_UNIQ_KEY: Final = "UNIQ_KEY"
_KEYS: Final = "KEYS"
_TAGS: Final = "TAGS"
_WANTED: Final = (_UNIQ_KEY, _KEYS, _TAGS)
_WAIT_NAMES: Final = (b"TIMER_DEL", b"DELAY\x01")
"""Part of the name of every property that asks for a time, or recalls what does."""
_PATTERNS_MAX: Final = 256
_NAMES_MAX: Final = 32


class MayWait(Exception):
    """A message of the batch may ask for a time."""


class BatchKeys(NamedTuple):
    """One entry for each message."""

    codes: list[int]
    keys: list[IndexKeys]


def may_wait(raw: bytes) -> bool:
    """Whether a property, or a word that reads like one, asks for a time; one or many strings."""
    return any(name in raw for name in _WAIT_NAMES)


class _Shape(NamedTuple):
    """How strings with certain names are cut."""

    pattern: re.Pattern[str]
    places: tuple[int | None, int | None, int | None]
    """Which of the pattern's groups are UNIQ_KEY, KEYS and TAGS."""


def keys_of_text(text: str) -> IndexKeys:
    """UNIQ_KEY, KEYS and TAGS of one property string."""
    uniq_key = names = tags = None
    for entry in text.split(_ENTRY_END):
        head = entry[:5]
        if head == "TAGS\x01":
            tags = entry[5:] or None
        elif head == "KEYS\x01":
            names = entry[5:] or None
        elif head == "UNIQ_" and entry[:9] == "UNIQ_KEY\x01":
            uniq_key = entry[9:] or None
    return uniq_key, names, tags


class BatchLook:
    """Looks at batches; remembers the names of the producers' properties."""

    def __init__(self, *, stops_at_waiting: bool = False) -> None:
        """With `stops_at_waiting`, `find` raises `MayWait` where `may_wait` holds."""
        self._shapes: dict[tuple[str, ...], _Shape | None] = {}
        self._stops_at_waiting = stops_at_waiting

    def find(self, properties: Sequence[bytes]) -> BatchKeys:
        """Tags codes and index keys of one message and more, given their property strings.

        Raises:
            MayWait: one may ask for a time, and that was to be told.
        """
        found = self._together(properties)
        if found is None:
            # Strings that are cut together have no such names.
            if self._stops_at_waiting and may_wait(b"".join(properties)):
                raise MayWait
            keys = [keys_of_text(one.decode("utf-8", "replace")) for one in properties]
            found = BatchKeys([tags_code(tags) for _, _, tags in keys], keys)
        return found

    def _together(self, properties: Sequence[bytes]) -> BatchKeys | None:
        count = len(properties)
        try:
            first = properties[0].decode()
            # A mark is a character of its own, so all of it is Unicode only if each string is.
            text = (_MARK + _MARK.join(properties)).decode()
        except UnicodeDecodeError:
            return None
        shape = self._shape(first)
        if shape is None or text.count("\x03") != count:
            return None
        rows = shape.pattern.findall(text)
        if len(rows) != count:
            return None
        columns = tuple(zip(*rows, strict=True))
        nothing = (None,) * count
        uniqs, names, tags = [
            nothing if place is None else columns[place] for place in shape.places
        ]
        known = {one: tags_code(one) for one in set(tags)}
        return BatchKeys([known[one] for one in tags], list(zip(uniqs, names, tags, strict=True)))

    def _shape(self, text: str) -> _Shape | None:
        """How strings like this one are cut; None when it is not known, or not worth it."""
        entries = text.split(_ENTRY_END, _NAMES_MAX)
        names = tuple([entry.partition("\x01")[0] for entry in entries])
        shapes = self._shapes
        if names in shapes:
            shape = shapes[names]
            if shape is None:
                shape = shapes[names] = _make_shape(names)
            return shape
        if len(shapes) >= _PATTERNS_MAX:
            shapes.clear()
        # A pattern costs as much as some hundred messages: only for names that come again.
        shapes[names] = None
        return None


def _make_shape(names: tuple[str, ...]) -> _Shape:
    """The pattern of strings with these names, of which the last is empty: what ends them."""
    wanted = [name for name in names if name in _WANTED]
    places = [wanted.index(name) if name in wanted else None for name in _WANTED]
    has_wait = may_wait("".join(f"{name}\x01" for name in names).encode())
    if names[-1] or len(set(wanted)) != len(wanted) or len(wanted) < 2 or has_wait:
        # Not worth a pattern, or not to be had with one: this one fits nothing.
        return _Shape(re.compile("(?!)"), (None, None, None))
    parts = [
        f"{name}\x01([^\x02]+)\x02" if name in _WANTED else f"{re.escape(name)}\x01[^\x02]*\x02"
        for name in names[:-1]
    ]
    # With two groups and more a row is a tuple.
    return _Shape(
        re.compile("\x03" + "".join(parts) + "(?![^\x03])"), (places[0], places[1], places[2])
    )
