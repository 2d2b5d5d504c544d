"""Properties of a timed message that was appended again, so that its log file could go.

Job: add and read what such a record of the timer topic says of the one it replaces.  It must not
decide what is appended again.

Both properties are this broker's own: what a client says in them is taken out when its message
begins to wait, and what the broker says when the message is delivered::

    TIMER_DUE_MS      exact time of delivery; a delay says it no more, as it counts from the
                      record's own store time
    TIMER_MOVED_FROM  physical offset of the replaced record; for one of a delay level followed by
                      the level and its queue offset there: "1024", "1024,3,17"

A Java broker reads neither: TIMER_OUT_MS has the second it delivers at.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from cometmq.codec.properties import ensure_trailing_separator, find_property, remove_property

__all__ = [
    "DUE",
    "OWN_NAMES",
    "MovedFrom",
    "as_delivered",
    "moved_delayed",
    "moved_from",
    "moved_timer",
    "with_due",
    "without_own",
]

DUE: Final = b"TIMER_DUE_MS"
_FROM: Final = b"TIMER_MOVED_FROM"
OWN_NAMES: Final = (DUE.decode(), _FROM.decode())
_OUT: Final = b"TIMER_OUT_MS"
_DELAY: Final = b"DELAY"


class MovedFrom(NamedTuple):
    """Where the message was."""

    place: int
    """Physical offset."""
    level: int = 0
    """Delay level, 0 for a timed message."""
    queue_offset: int = 0
    """In the queue of the level."""


def moved_from(raw: bytes) -> MovedFrom | None:
    """What a record replaces, by its property string; None for an ordinary one."""
    text = find_property(raw, _FROM)
    if text is None:
        return None
    parts = text.split(b",")
    if len(parts) not in (1, 3) or not all(part.isdigit() for part in parts):
        return None
    return MovedFrom(*(int(part) for part in parts))


def without_own(raw: bytes) -> bytes:
    """A property string that says neither where a message was nor its exact time."""
    return remove_property(remove_property(raw, _FROM), DUE)


def with_due(raw: bytes, due_ms: int) -> bytes:
    """A property string with the exact time."""
    return ensure_trailing_separator(remove_property(raw, DUE)) + b"%s\x01%d\x02" % (DUE, due_ms)


def moved_timer(raw: bytes, place: int, due_ms: int) -> bytes:
    """Properties of the new record of a timed message; what it came from stays known."""
    before = moved_from(raw)
    raw = with_due(remove_property(raw, _FROM), due_ms)
    if before is not None and before.level:
        # Its level is given back to it when it is delivered.
        text = b"%d,%d,%d" % (place, before.level, before.queue_offset)
    else:
        text = b"%d" % place
    return raw + b"%s\x01%s\x02" % (_FROM, text)


def moved_delayed(raw: bytes, moved: MovedFrom, due_ms: int, out_ms: int) -> bytes:
    """Properties of a message of a delay level as a timed one.

    DELAY goes, since a Java broker would delay it once more.
    """
    for name in (_DELAY, _OUT, _FROM):
        raw = remove_property(raw, name)
    return with_due(raw, due_ms) + b"%s\x01%d\x02%s\x01%d,%d,%d\x02" % (_OUT, out_ms, _FROM, *moved)


def as_delivered(raw: bytes) -> bytes:
    """The property string without what only this broker knows, and with the level it had."""
    if find_property(raw, DUE) is None:
        return raw
    moved = moved_from(raw)
    raw = without_own(raw)
    if moved is not None and moved.level:
        raw = ensure_trailing_separator(raw) + b"%s\x01%d\x02" % (_DELAY, moved.level)
    return raw
