"""The tags code and the index keys of a record, derived from its bytes.

Recovery, repair and verify derive them when they read a record again.  On the hot path the broker
passes the same values, since it has parsed the properties already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.codec.consume_queue import is_cq_ext_address
from cometmq.codec.java_hash import tags_code
from cometmq.codec.properties import find_property
from cometmq.model.names import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from cometmq.store.base.results import IndexKeys

__all__ = ["index_keys_of", "is_code_wrong", "queue_tags_code"]

_SCHEDULE: Final = SCHEDULE_TOPIC.encode()
# The delay of a level that the table does not have (docs/internals/store.md#tags-code).
_DELAY_MS_FALLBACK: Final = 1000


def queue_tags_code(
    topic: bytes, properties: bytes, store_ms: int, delays_ms: tuple[int, ...]
) -> int:
    """Return the tags code of a record's unit: hash of its tags, or due time of a delayed one."""
    if topic == _SCHEDULE:
        level = _level(find_property(properties, b"DELAY"))
        if level > 0:
            level = min(level, len(delays_ms)) if delays_ms else level
            is_in_table = 0 < level <= len(delays_ms)
            return store_ms + (delays_ms[level - 1] if is_in_table else _DELAY_MS_FALLBACK)
    raw = find_property(properties, b"TAGS")
    return 0 if raw is None else tags_code(raw.decode("utf-8", "replace"))


def is_code_wrong(topic: bytes, stored: int, derived: int) -> bool:
    """Return whether the tags code stored in a unit is provably not that of its record.

    Two kinds of code prove nothing: the address of an extension unit, and the due time of a delayed
    message, which depends on the delay levels at the time of the put.
    """
    return stored != derived and topic != _SCHEDULE and not is_cq_ext_address(stored)


def _level(raw: bytes | None) -> int:
    try:
        return int(raw) if raw is not None else 0
    except ValueError:
        return 0


def index_keys_of(properties: bytes) -> IndexKeys | None:
    """Return UNIQ_KEY, KEYS and TAGS of a record for the index; None when it has none."""
    uniq = find_property(properties, b"UNIQ_KEY")
    keys = find_property(properties, b"KEYS")
    tags = find_property(properties, b"TAGS")
    if uniq is None and keys is None and tags is None:
        return None
    return (_text(uniq), _text(keys), _text(tags))


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode("utf-8", "replace")
