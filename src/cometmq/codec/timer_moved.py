"""Properties of a timed message that was appended again, so that its old log file can be deleted.

Only the broker sets these properties. It removes those of a client when the message begins to wait,
and its own when it delivers the message::

    TIMER_DUE_MS      exact time of delivery; a delay no longer gives it, since a delay counts from
                      the store time of its record
    TIMER_MOVED_FROM  physical offset of the replaced record; if that was a message of a delay
                      level, also the level and its queue offset there: "1024", "1024,3,17"

A Java broker reads neither and delivers at the second of TIMER_OUT_MS.
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
    """The record that a record replaces."""

    physical_offset: int
    level: int = 0
    """Delay level, 0 for a timed message."""
    queue_offset: int = 0
    """Its queue offset in the queue of the level."""


def moved_from(raw: bytes) -> MovedFrom | None:
    """Return which record a property string replaces; None for an ordinary record."""
    text = find_property(raw, _FROM)
    if text is None:
        return None
    parts = text.split(b",")
    if len(parts) not in (1, 3) or not all(part.isdigit() for part in parts):
        return None
    return MovedFrom(*(int(part) for part in parts))


def without_own(raw: bytes) -> bytes:
    """Return the property string without both properties."""
    return remove_property(remove_property(raw, _FROM), DUE)


def with_due(raw: bytes, due_ms: int) -> bytes:
    """Return the property string with the exact time of delivery."""
    return ensure_trailing_separator(remove_property(raw, DUE)) + b"%s\x01%d\x02" % (DUE, due_ms)


def moved_timer(raw: bytes, physical_offset: int, due_ms: int) -> bytes:
    """Return the properties of the new record of a timed message at this old offset."""
    before = moved_from(raw)
    raw = with_due(remove_property(raw, _FROM), due_ms)
    if before is not None and before.level:
        # Delivery restores the level.
        text = b"%d,%d,%d" % (physical_offset, before.level, before.queue_offset)
    else:
        text = b"%d" % physical_offset
    return raw + b"%s\x01%s\x02" % (_FROM, text)


def moved_delayed(raw: bytes, moved: MovedFrom, due_ms: int, out_ms: int) -> bytes:
    """Return the properties of a message of a delay level that becomes a timed message.

    DELAY is removed, since a Java broker would delay the message once more.
    """
    for name in (_DELAY, _OUT, _FROM):
        raw = remove_property(raw, name)
    return with_due(raw, due_ms) + b"%s\x01%d\x02%s\x01%d,%d,%d\x02" % (_OUT, out_ms, _FROM, *moved)


def as_delivered(raw: bytes) -> bytes:
    """Return the property string for delivery: without both properties, with the old level."""
    if find_property(raw, DUE) is None:
        return raw
    moved = moved_from(raw)
    raw = without_own(raw)
    if moved is not None and moved.level:
        raw = ensure_trailing_separator(raw) + b"%s\x01%d\x02" % (_DELAY, moved.level)
    return raw
