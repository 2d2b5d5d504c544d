"""Offsets by queue as Spark stores them, limits per batch, and the split into partitions.

Spark compares a stream's offsets as text, so they have one form with sorted topics and queues:
``{"Orders": {"broker-a:0": 1500, "broker-a:1": 1499}}``.  Each number is the next offset to read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from cometmq.arrow.options import EARLIEST, LATEST, nearest
from cometmq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cometmq.arrow.live import QueueId

__all__ = [
    "EARLIEST",
    "GROUP",
    "LATEST",
    "Offsets",
    "check_order",
    "from_json",
    "limited",
    "offsets_option",
    "split",
    "to_json",
]

#: The consumer group's offset; only in options.
GROUP: Final = -3
_NAMED: Final = {"earliest": EARLIEST, "latest": LATEST, "group": GROUP}
Offsets = dict[str, dict[str, int]]


def to_json(offsets: Mapping[QueueId, int]) -> Offsets:
    """Offsets in Spark's form: topics, then queues by broker and id, sorted."""
    written: Offsets = {}
    for queue, queue_offset in sorted(offsets.items()):
        written.setdefault(queue.topic, {})[f"{queue.broker}:{queue.queue_id}"] = queue_offset
    return written


def from_json(offsets: Mapping[str, Mapping[str, int]]) -> dict[tuple[str, str, int], int]:
    """Offsets by (topic, broker, queue id)."""
    by_queue = {}
    for topic, queues in offsets.items():
        for name, queue_offset in queues.items():
            broker, _, queue_id = name.rpartition(":")
            by_queue[topic, broker, int(queue_id)] = int(queue_offset)
    return by_queue


def offsets_option(name: str, value: str, allowed: Iterable[str]) -> int | Offsets:
    """The value of an option: a word for all queues, or JSON by topic and queue.

    In JSON -2 is earliest and -1 latest, as in Spark's Kafka source.

    Raises:
        ConfigError: it is neither.
    """
    words = tuple(allowed)
    if not value.lstrip().startswith("{"):
        if value.lower() not in words:
            raise ConfigError(
                f"option {name} is {value!r}: expected {', '.join(words)} or"
                f' {{"Topic": {{"broker-a:0": 1500}}}}{nearest(value, words)}'
            )
        return _NAMED[value.lower()]
    try:
        parsed = json.loads(value)
    except ValueError as error:
        raise ConfigError(f"option {name} is no JSON: {error}") from None
    for topic, queues in parsed.items():
        if not isinstance(queues, dict) or not queues:
            raise ConfigError(
                f"option {name}: topic {topic!r} has no offsets by queue:"
                f' expected {{"{topic}": {{"broker-a:0": 1500}}}}'
            )
        for queue, queue_offset in queues.items():
            _check(name, topic, queue, queue_offset)
    return {str(topic): dict(queues) for topic, queues in parsed.items()}


def _check(name: str, topic: str, queue: str, queue_offset: Any) -> None:
    broker, _, queue_id = queue.rpartition(":")
    if not broker or not (queue_id.isascii() and queue_id.isdigit()):
        raise ConfigError(
            f"option {name} names queue {queue!r} of topic {topic!r}: expected BROKER:ID,"
            " for example broker-a:0"
        )
    if isinstance(queue_offset, bool) or not isinstance(queue_offset, int):
        queue_offset = EARLIEST - 1
    if queue_offset < EARLIEST:
        raise ConfigError(
            f"option {name} holds no offset for {queue} of topic {topic!r}:"
            " expected a number, -2 (earliest) or -1 (latest)"
        )


def check_order(starting: Offsets, ending: Offsets) -> None:
    """Check that no queue's ending offset is before its starting offset.

    Raises:
        ConfigError: one is.
    """
    starts = from_json(starting)
    for key, end in from_json(ending).items():
        start = starts.get(key, EARLIEST)
        if 0 <= end < start:
            topic, broker, queue_id = key
            raise ConfigError(
                f"option startingOffsets is {start} for {broker}:{queue_id} of topic {topic!r},"
                f" after its endingOffsets {end}: nothing lies between them"
            )


def limited(
    start: Mapping[QueueId, int], end: Mapping[QueueId, int], rows_max: int
) -> dict[QueueId, int]:
    """Ends that leave about `rows_max` rows, divided in proportion to the waiting rows.

    A share below one is rounded up, so that no queue starves; a batch may therefore exceed the
    limit by one row per queue.
    """
    waiting = {queue: max(0, end[queue] - start[queue]) for queue in end}
    total = sum(waiting.values())
    if total <= rows_max:
        return dict(end)
    ends = {}
    for queue, rows in waiting.items():
        share = rows * rows_max / total
        rounded = int(share) if share >= 1 else (1 if rows else 0)
        ends[queue] = min(end[queue], start[queue] + rounded) if rows else end[queue]
    return ends


def split(
    ranges: Sequence[tuple[QueueId, int, int]], parts_min: int | None
) -> list[tuple[QueueId, int, int]]:
    """Ranges of offsets, divided so that there are at least `parts_min` pieces.

    Pieces are proportional to a range's rows; a piece has at least one row.
    """
    full = [item for item in ranges if item[1] < item[2]]
    if parts_min is None or len(full) >= parts_min:
        return full
    total = sum(end - start for _, start, end in full)
    pieces = []
    for queue, start, end in full:
        count = min(end - start, max(1, -(-(end - start) * parts_min // total)))
        marks = [start + (end - start) * number // count for number in range(count + 1)]
        pieces += [(queue, marks[number], marks[number + 1]) for number in range(count)]
    return pieces
