"""Which messages of a queue the members of a group pass over, and what becomes of them.

Under a backlog a broker may send a group past waiting messages: it *skips* them.  Members' pulls go
on behind the range, and a pull that begins before it does not read into it.  So a message of a
range comes to the group through the range or not at all:

- a *dropped* range stays as it is, until an operator replays it;
- the messages of a *copied* range are appended to the group's retry topic, oldest first.

A range begins where no member of the group has got a message yet.  It counts once it is on disk
(`SkippedRange.is_saved`): before that no pull of its queue is answered, so no member is past
messages of which a restart would know nothing.

This module changes tables; it reads no message and writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

__all__ = ["GroupSkips", "SkipReason", "SkippedRange", "SkippedRanges"]

RANGES_MAX: Final = 1_000
"""So many dropped ranges of a group stay known, about 150 bytes each; older ones are forgotten."""


class SkipReason(StrEnum):
    """Why messages were skipped."""

    AGE = "age"
    """They were older than the group's ``backlog.drop.age.ms``."""
    LAG = "lag"
    """More waited than the group's ``backlog.drop.lag``."""
    FRESH = "fresh"
    """The newest messages go first (``backlog.fresh.share``)."""
    RESCUE = "rescue"
    """An operator had the backlog copied to more queues."""


@dataclass(slots=True)
class SkippedRange:
    """The messages of a queue from `begin` to before `end`."""

    topic: str
    queue_id: int
    begin: int
    end: int
    reason: SkipReason
    at_ms: int
    is_copied: bool
    """Whether its messages come to the group as copies; else they are dropped."""
    next_offset: int
    """Messages before it have copies, or the group does not want them."""
    safe_offset: int
    """The same, of copies that no power cut can take."""
    is_saved: bool = False
    """Whether the file has it."""
    is_passed: bool = False
    """Whether the group goes on behind it."""

    @property
    def waiting_count(self) -> int:
        """How many messages still wait for their copy; 0 for a dropped range."""
        return self.end - self.next_offset if self.is_copied else 0

    @property
    def is_over(self) -> bool:
        """Whether nothing has to be known about it any more."""
        return self.is_copied and self.is_passed and self.safe_offset >= self.end

    @property
    def is_throttled(self) -> bool:
        """Whether its copies get a share of the group's capacity only."""
        return self.reason is SkipReason.FRESH


@dataclass(slots=True)
class GroupSkips:
    """The ranges of a group in the order in which they were skipped."""

    ranges: list[SkippedRange] = field(default_factory=list)
    retry_ends: dict[int, int] = field(default_factory=dict)
    """By queue id of the retry topic: copies before it are counted in `safe_offset`."""
    is_restored: bool = False
    """Whether the broker's life before skipped some of it, so that copies have to be looked for."""

    @property
    def is_copying(self) -> bool:
        """Whether copies are missing, or may not be durable yet."""
        return any(item.is_copied and item.safe_offset < item.end for item in self.ranges)


class SkippedRanges:
    """The skipped ranges of all groups of a broker.

    `revision` grows with each change of what the file has; `plan_revision` when a group begins or
    ends to have ranges that its pulls meet.
    """

    def __init__(self) -> None:
        self.revision = 0
        self.plan_revision = 0
        self._groups: dict[str, GroupSkips] = {}
        self._met: dict[tuple[str, str, int], list[SkippedRange]] = {}
        """By group and queue: the ranges that pulls may meet."""
        self._met_groups: set[str] = set()

    # -- questions --------------------------------------------------------------------------

    def all(self) -> dict[str, GroupSkips]:
        """Return the live table; callers only read it."""
        return self._groups

    def ranges_of(self, group: str) -> list[SkippedRange]:
        """Return the ranges of a group; callers only read the list."""
        entry = self._groups.get(group)
        return [] if entry is None else entry.ranges

    def concerns(self, group: str) -> bool:
        """Whether pulls of a group may meet a range.  HOT: once per pull."""
        return group in self._met_groups

    def ahead(self, group: str, topic: str, queue_id: int, queue_offset: int) -> list[SkippedRange]:
        """Return the ranges that a pull from an offset may meet."""
        met = self._met.get((group, topic, queue_id), ())
        return [item for item in met if item.end > queue_offset]

    def find(self, group: str, topic: str, queue_id: int, queue_offset: int) -> SkippedRange | None:
        """Return the newest range that has a message."""
        for item in reversed(self.ranges_of(group)):
            is_here = (item.topic, item.queue_id) == (topic, queue_id)
            if is_here and item.begin <= queue_offset < item.end:
                return item
        return None

    def following(self, group: str, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return where a pull from an offset goes on: behind the ranges that lie there."""
        for item in self._met.get((group, topic, queue_id), ()):
            if item.begin <= queue_offset < item.end:
                queue_offset = item.end
        return queue_offset

    def is_unsaved(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether pulls of the queue wait until a range of it is on disk."""
        return any(not item.is_saved for item in self._met.get((group, topic, queue_id), ()))

    def to_copy(self, group: str) -> Iterator[SkippedRange]:
        """Yield the saved ranges with messages that wait for their copies, oldest first."""
        for item in self.ranges_of(group):
            if item.waiting_count and item.is_saved:
                yield item

    # -- changes ----------------------------------------------------------------------------

    def skip(
        self,
        group: str,
        topic: str,
        queue_id: int,
        begin: int,
        end: int,
        reason: SkipReason,
        now_ms: int,
        retry_ends: dict[int, int],
    ) -> SkippedRange:
        """Skip the messages from `begin` to before `end`, which lie behind every other range.

        Args:
            retry_ends: the ends of the queues of the group's retry topic.
        """
        entry = self._groups.setdefault(group, GroupSkips())
        if not entry.is_copying:
            entry.retry_ends = dict(retry_ends)
        is_copied = reason in (SkipReason.FRESH, SkipReason.RESCUE)
        item = SkippedRange(topic, queue_id, begin, end, reason, now_ms, is_copied, begin, begin)
        entry.ranges.append(item)
        dropped = [one for one in entry.ranges if not one.is_copied]
        if len(dropped) > RANGES_MAX:
            entry.ranges.remove(dropped[0])
        self._changed(group)
        return item

    def withdraw(self, group: str, item: SkippedRange) -> None:
        """Forget a range that could not be saved; its messages were never skipped."""
        entry = self._groups.get(group)
        if entry is not None and item in entry.ranges:
            entry.ranges.remove(item)
            self._changed(group)

    def replay(self, group: str, topics: Iterable[str], retry_ends: dict[int, int]) -> int:
        """Have the dropped messages of a group copied; return how many.

        Args:
            topics: of these; empty for all.
        """
        wanted, count = set(topics), 0
        entry = self._groups.get(group)
        if entry is None:
            return 0
        if not entry.is_copying:
            entry.retry_ends = dict(retry_ends)
        for item in entry.ranges:
            if not item.is_copied and (not wanted or item.topic in wanted):
                item.is_copied = True
                count += item.end - item.begin
        self._changed(group)
        return count

    def copied(self, item: SkippedRange, next_offset: int) -> None:
        """Note that copies were made of all wanted messages before an offset."""
        item.next_offset = min(max(next_offset, item.next_offset), item.end)

    def settle(
        self, group: str, item: SkippedRange, safe_offset: int, retry_ends: dict[int, int]
    ) -> None:
        """Note that these copies are durable, and where the retry topic ended behind them."""
        item.safe_offset = max(item.safe_offset, min(safe_offset, item.end))
        entry = self._groups.get(group)
        if entry is not None:
            entry.retry_ends = retry_ends
        self.revision += 1

    def would_pass(self, group: str, topic: str, queue_id: int, consumer_offset: int) -> bool:
        """Whether `passed` would change something."""
        return any(
            item.is_saved and consumer_offset >= item.end
            for item in self._met.get((group, topic, queue_id), ())
        )

    def passed(self, group: str, topic: str, queue_id: int, consumer_offset: int) -> None:
        """Note from where even a restart goes on in a queue; ranges before it meet no pull."""
        passed = False
        for item in self._met.get((group, topic, queue_id), ()):
            if item.is_saved and consumer_offset >= item.end:
                item.is_passed = passed = True
        if passed:
            self._changed(group)

    def tidy(self, group: str, topic: str, queue_id: int, min_offset: int) -> None:
        """Forget what is over, and ranges all of whose messages retention has removed."""
        entry = self._groups.get(group)
        if entry is None:
            return
        kept = [
            item
            for item in entry.ranges
            if (item.topic, item.queue_id) != (topic, queue_id)
            or not (item.is_over or (item.is_passed and item.end <= min_offset))
        ]
        if len(kept) != len(entry.ranges):
            entry.ranges = kept
            self._changed(group)

    def forget_from(self, group: str, topic: str, queue_id: int, consumer_offset: int) -> None:
        """Forget ranges from an offset on: an operator wants these messages from the queue."""
        entry = self._groups.get(group)
        if entry is None:
            return
        kept: list[SkippedRange] = []
        for item in entry.ranges:
            if (item.topic, item.queue_id) == (topic, queue_id) and item.end > consumer_offset:
                if item.begin >= consumer_offset:
                    continue
                item.end = consumer_offset
                item.next_offset = min(item.next_offset, item.end)
                item.safe_offset = min(item.safe_offset, item.end)
            kept.append(item)
        entry.ranges = kept
        self._changed(group)

    def forget(self, group: str) -> None:
        """Forget a deleted group."""
        if self._groups.pop(group, None) is not None:
            self._changed(group)

    def forget_topic(self, topic: str) -> None:
        """Forget a deleted topic."""
        for group, entry in self._groups.items():
            if any(item.topic == topic for item in entry.ranges):
                entry.ranges = [item for item in entry.ranges if item.topic != topic]
                self._changed(group)

    def restore(self, groups: dict[str, GroupSkips]) -> None:
        """Take the ranges of a broker's life before."""
        self._groups = groups
        for group in groups:
            self._changed(group)

    def _changed(self, group: str) -> None:
        self.revision += 1
        self._met = {key: items for key, items in self._met.items() if key[0] != group}
        for item in self.ranges_of(group):
            if not item.is_passed:
                key = (group, item.topic, item.queue_id)
                self._met.setdefault(key, []).append(item)
        has_met = any(key[0] == group for key in self._met)
        if has_met != (group in self._met_groups):
            self.plan_revision += 1
            (self._met_groups.add if has_met else self._met_groups.discard)(group)
