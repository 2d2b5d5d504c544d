"""Open transactions of a broker: half messages without an outcome, op messages, check-back rules.

A broker stores a half message again to count a check, or to move the offset that the half queue is
read from.  The message then has a new queue offset, and its producer may still name an earlier one.
The table maps all of these offsets to one transaction with one outcome
(docs/internals/delivery.md#half-messages).

Source of formats: ``TransactionalMessageServiceImpl`` and ``TransactionalMessageUtil`` of RocketMQ
5.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from cometmq.codec.properties import find_property

__all__ = [
    "OP_TAG",
    "CheckRules",
    "CommitContent",
    "HalfMessage",
    "OpenHalves",
    "decode_op_body",
    "encode_op_body",
    "end_deadline_ms",
    "half_of",
    "immunity_ms",
    "immunity_s",
]

OP_TAG: Final = "d"
_NEVER: Final = b"-1,"
"""An op body that names no message: Java ignores offsets before the one it has reached."""


class CommitContent(msgspec.Struct, gc=False, frozen=True):
    """The parts of a half message, as the log has them, that its commit stores again."""

    queue_id: int
    """The queue its producer chose."""
    body: bytes
    raw: bytes
    """Properties without REAL_TOPIC and REAL_QID."""
    flag: int
    sys_flag: int
    born_host: bytes
    reconsume_times: int
    tags_code: int
    index_keys: tuple[str | None, str | None, str | None]
    """UNIQ_KEY, KEYS and TAGS."""


class HalfMessage(msgspec.Struct, gc=False):
    """One open transaction, at its newest offset in the half queue."""

    queue_offset: int
    physical_offset: int
    born_ms: int
    group: str
    """The producer group that is asked for the outcome."""
    topic: str = ""
    """The topic its producer chose; "" if it names none."""
    uniq_key: str = ""
    """UNIQ_KEY of a message with something cached."""
    cached: CommitContent | bytes | None = None
    """What the commit stores, or the record that has it; None if it must be read from the log."""
    check_count: int = 0
    immunity_s: int = -1
    """CHECK_IMMUNITY_TIME_IN_SECONDS; -1 when it has none that is a number."""
    has_immunity: bool = False
    first_offset: int = -1
    """The queue offset it was first stored at, -1 when this is the first."""


class CheckRules(msgspec.Struct, frozen=True):
    """When a half message is checked and when it is given up."""

    timeout_ms: int
    """transactionTimeOut"""
    check_max: int
    """transactionCheckMax"""
    reserved_ms: int
    """fileReservedTime"""

    def is_due(self, half: HalfMessage, now_ms: int) -> bool:
        """Whether it is time to ask the producer, or to give the message up."""
        if self.is_abandoned(half, now_ms):
            return True
        age_ms = now_ms - half.born_ms
        if half.has_immunity:
            return age_ms > self.first_check_ms(half)
        # A producer whose clock is ahead is asked at once, as Java does.
        return age_ms < 0 or age_ms > self.timeout_ms

    def is_abandoned(self, half: HalfMessage, now_ms: int) -> bool:
        """Whether it was checked as often as allowed, or is older than the retention time."""
        return half.check_count >= self.check_max or now_ms - half.born_ms > self.reserved_ms

    def first_check_ms(self, half: HalfMessage) -> int:
        """The age at which the producer is asked for the first time."""
        return self.timeout_ms if half.immunity_s < 0 else half.immunity_s * 1000


def immunity_ms(text: bytes | None, timeout_ms: int) -> int | None:
    """How long a producer may end its transaction unasked; None for ever, without the property.

    The time is at least `timeout_ms`, also if the property is not a number.
    """
    if not text:
        return None
    return max(_number(text) * 1000, timeout_ms)


def immunity_s(text: bytes | None) -> int:
    """CHECK_IMMUNITY_TIME_IN_SECONDS as a number; -1 if it is missing or not a number."""
    return -1 if text is None else max(-1, _number(text))


def end_deadline_ms(properties: bytes, born_ms: int, timeout_ms: int) -> int | None:
    """Time after which only the answer to a check may end a transaction; None for never."""
    limit = immunity_ms(find_property(properties, b"CHECK_IMMUNITY_TIME_IN_SECONDS"), timeout_ms)
    return None if limit is None else born_ms + limit


def half_of(
    queue_offset: int, physical_offset: int, born_ms: int, properties: bytes
) -> HalfMessage:
    """The half message at these offsets, from its property string."""
    immunity = find_property(properties, b"CHECK_IMMUNITY_TIME_IN_SECONDS")
    checks = find_property(properties, b"TRANSACTION_CHECK_TIMES")
    first = find_property(properties, b"TRAN_PREPARED_QUEUE_OFFSET")
    group = find_property(properties, b"PGROUP") or b""
    topic = find_property(properties, b"REAL_TOPIC") or b""
    return HalfMessage(
        queue_offset,
        physical_offset,
        born_ms,
        group.decode("utf-8", "replace"),
        topic.decode("utf-8", "replace"),
        check_count=0 if checks is None else max(0, _number(checks)),
        immunity_s=immunity_s(immunity),
        has_immunity=immunity is not None,
        first_offset=-1 if first is None else _number(first),
    )


def _number(text: bytes) -> int:
    """A decimal number; -1 for any other text."""
    try:
        return int(text)
    except ValueError:
        return -1


def encode_op_body(queue_offsets: list[int]) -> bytes:
    """The body that names ended half messages, ``10,11,``; without any, a body that names none."""
    if not queue_offsets:
        return _NEVER
    return b"".join([b"%d," % queue_offset for queue_offset in queue_offsets])


def decode_op_body(body: bytes) -> list[int]:
    """The queue offsets in an op message: RocketMQ 5 writes ``10,11,``, 4 a single number."""
    return [int(part) for part in body.split(b",") if part.strip().isdigit()]


class OpenHalves:
    """The half messages of one queue that are neither committed, rolled back nor given up."""

    def __init__(self) -> None:
        self._open: dict[int, HalfMessage] = {}
        self._newest: dict[int, int] = {}
        """Earlier queue offset -> newest one, for messages that were stored again."""
        self._earlier: dict[int, list[int]] = {}
        self.counts: dict[str, int] = {}
        """How many transactions are open, by topic; a topic stays after its last one."""
        self.changes = 0
        """How often `counts` has changed."""

    def __len__(self) -> int:
        return len(self._open)

    def add(self, *halves: HalfMessage) -> None:
        """Add half messages at the end of the half queue."""
        counts, still_open = self.counts, self._open
        for half in halves:
            still_open[half.queue_offset] = half
            counts[half.topic] = counts.get(half.topic, 0) + 1
        self.changes += len(halves)

    def at(self, queue_offset: int) -> HalfMessage | None:
        """The open half message with this newest queue offset."""
        return self._open.get(queue_offset)

    def find(self, queue_offset: int) -> HalfMessage | None:
        """The open half message that has or had this queue offset."""
        return self._open.get(self._newest.get(queue_offset, queue_offset))

    def offsets(self) -> list[int]:
        """Newest queue offsets of all open half messages, ascending."""
        return list(self._open)

    def first(self) -> HalfMessage | None:
        """The open half message with the lowest queue offset."""
        return next(iter(self._open.values()), None)

    def last(self) -> HalfMessage | None:
        """The open half message with the highest queue offset."""
        return next(reversed(self._open.values()), None)

    def offsets_for(self, topic: str) -> list[int]:
        """Newest queue offsets of the half messages for a topic, ascending."""
        return [offset for offset, half in self._open.items() if half.topic == topic]

    def remove(self, half: HalfMessage) -> Sequence[int]:
        """Remove an ended half message; return all its queue offsets, the newest last."""
        newest = half.queue_offset
        del self._open[newest]
        self.counts[half.topic] -= 1
        self.changes += 1
        if newest not in self._earlier:
            return (newest,)
        offsets = self._earlier.pop(newest)
        for queue_offset in offsets:
            self._newest.pop(queue_offset, None)
        return [*offsets, newest]

    def add_earlier_offset(self, half: HalfMessage, queue_offset: int) -> None:
        """Make an open half message known by an earlier queue offset, whose record may be gone."""
        self._newest[queue_offset] = half.queue_offset
        self._earlier.setdefault(half.queue_offset, []).append(queue_offset)

    def replace(self, half: HalfMessage, newer: HalfMessage) -> None:
        """Note that a message was stored again at the end of the half queue."""
        if self._open.pop(half.queue_offset, None) is not None:
            self.counts[half.topic] -= 1
        self.counts[newer.topic] = self.counts.get(newer.topic, 0) + 1
        self.changes += 1
        offsets = self._earlier.pop(half.queue_offset, [])
        offsets.append(half.queue_offset)
        for queue_offset in offsets:
            self._newest[queue_offset] = newer.queue_offset
        self._open[newer.queue_offset] = newer
        self._earlier.setdefault(newer.queue_offset, []).extend(offsets)
