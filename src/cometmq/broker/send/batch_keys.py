"""Reads tags codes and index keys of a batch's messages, for all of them at once.

The messages of one producer have the same property names in the same order.  When a list of names
comes for the second time, the reader makes a pattern of it, which cuts all property strings of a
batch in one go.  Where the pattern does not fit all strings, each is cut alone.  Both ways give the
same result: the last entry of a name counts, and an empty value is none.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.codec.java_hash import tags_code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.store.base.results import IndexKeys

__all__ = ["BatchKeys", "BatchKeysReader", "MayWait", "keys_of_text", "may_wait"]

_ENTRY_END: Final = "\x02"
# It is put before each string; a batch whose strings have one of their own is cut one by one.
_MARK: Final = b"\x03"
_UNIQ_KEY: Final = "UNIQ_KEY"
_KEYS: Final = "KEYS"
_TAGS: Final = "TAGS"
_WANTED: Final = (_UNIQ_KEY, _KEYS, _TAGS)
_TIME_NAMES: Final = (b"TIMER_DEL", b"DELAY\x01")
"""Parts of the names of all properties that ask for a time or recall a timed message."""
_PATTERNS_MAX: Final = 256
_NAMES_MAX: Final = 32


class MayWait(Exception):
    """A message of the batch may ask for a time."""


class BatchKeys(NamedTuple):
    """Tags codes and index keys, one of each for every message."""

    codes: list[int]
    keys: list[IndexKeys]


def may_wait(raw: bytes) -> bool:
    """Whether property strings have a property that asks for a time, or a word that looks so."""
    return any(name in raw for name in _TIME_NAMES)


class _Cut(NamedTuple):
    """How strings with certain names are cut."""

    pattern: re.Pattern[str]
    groups: tuple[int | None, int | None, int | None]
    """The pattern's groups for UNIQ_KEY, KEYS and TAGS."""


def keys_of_text(text: str) -> IndexKeys:
    """Return UNIQ_KEY, KEYS and TAGS of one property string."""
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


class BatchKeysReader:
    """Reads batches; remembers the names of the producers' properties."""

    def __init__(self, *, stops_at_waiting: bool = False) -> None:
        """With `stops_at_waiting`, `read` raises `MayWait` where `may_wait` holds."""
        self._cuts: dict[tuple[str, ...], _Cut | None] = {}
        self._stops_at_waiting = stops_at_waiting

    def read(self, properties: Sequence[bytes]) -> BatchKeys:
        """Read the property strings of at least one message.

        Raises:
            MayWait: a message may ask for a time, and the reader was made with `stops_at_waiting`.
        """
        batch_keys = self._read_together(properties)
        if batch_keys is None:
            # Strings that are cut together do not ask for a time.
            if self._stops_at_waiting and may_wait(b"".join(properties)):
                raise MayWait
            keys = [keys_of_text(raw.decode("utf-8", "replace")) for raw in properties]
            batch_keys = BatchKeys([tags_code(tags) for _, _, tags in keys], keys)
        return batch_keys

    def _read_together(self, properties: Sequence[bytes]) -> BatchKeys | None:
        count = len(properties)
        try:
            first = properties[0].decode()
            # The mark is a whole character, so the joined text decodes only if each string does.
            text = (_MARK + _MARK.join(properties)).decode()
        except UnicodeDecodeError:
            return None
        cut = self._cut_for(first)
        if cut is None or text.count("\x03") != count:
            return None
        rows = cut.pattern.findall(text)
        if len(rows) != count:
            return None
        columns = tuple(zip(*rows, strict=True))
        nothing = (None,) * count
        uniqs, names, tags = [nothing if group is None else columns[group] for group in cut.groups]
        codes = {text: tags_code(text) for text in set(tags)}
        return BatchKeys([codes[text] for text in tags], list(zip(uniqs, names, tags, strict=True)))

    def _cut_for(self, text: str) -> _Cut | None:
        """Return how strings with the names of this one are cut; None when the names are new."""
        entries = text.split(_ENTRY_END, _NAMES_MAX)
        names = tuple([entry.partition("\x01")[0] for entry in entries])
        cuts = self._cuts
        if names in cuts:
            cut = cuts[names]
            if cut is None:
                cut = cuts[names] = _make_cut(names)
            return cut
        if len(cuts) >= _PATTERNS_MAX:
            cuts.clear()
        # A pattern costs as much as some hundred messages: it is made when the names come again.
        cuts[names] = None
        return None


def _make_cut(names: tuple[str, ...]) -> _Cut:
    """Make the pattern of strings with these names; the last name is empty, behind the last end."""
    wanted = [name for name in names if name in _WANTED]
    groups = [wanted.index(name) if name in wanted else None for name in _WANTED]
    has_time = may_wait("".join(f"{name}\x01" for name in names).encode())
    if names[-1] or len(set(wanted)) != len(wanted) or len(wanted) < 2 or has_time:
        # A pattern is not worth it, or cannot read these names: this one matches nothing.
        return _Cut(re.compile("(?!)"), (None, None, None))
    parts = [
        f"{name}\x01([^\x02]+)\x02" if name in _WANTED else f"{re.escape(name)}\x01[^\x02]*\x02"
        for name in names[:-1]
    ]
    # There are two groups at least, so `findall` gives tuples.
    return _Cut(
        re.compile("\x03" + "".join(parts) + "(?![^\x03])"), (groups[0], groups[1], groups[2])
    )
