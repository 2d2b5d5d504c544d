"""The file of what groups pass over, and how far it is copied.

``config/cometmqSkipped.json`` is written before a member goes past a skipped range, so no restart
forgets one.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from cometmq.core.group.skipped_ranges import GroupSkips, SkippedRange, SkippedRanges, SkipReason
from cometmq.errors import CodecError

__all__ = ["SkippedFile", "skipped_snapshot"]


class _RangeEntry(msgspec.Struct, rename="camel"):
    topic: str
    queue_id: int
    begin: int
    end: int
    reason: SkipReason
    at_ms: int
    is_copied: bool
    safe_offset: int
    is_passed: bool


class _SkipsEntry(msgspec.Struct, rename="camel"):
    ranges: list[_RangeEntry]
    retry_ends: dict[int, int]


class SkippedFile(msgspec.Struct, rename="camel"):
    """What the file has."""

    groups: dict[str, _SkipsEntry]

    @classmethod
    def decode(cls, raw: bytes) -> SkippedFile:
        """Read the file's bytes.

        Raises:
            CodecError: they are something else.
        """
        try:
            return msgspec.json.decode(raw, type=cls)
        except msgspec.DecodeError as error:
            raise CodecError(f"no file of skipped ranges: {error}") from error

    def skips(self, end_of_queue: Callable[[str, int], int]) -> dict[str, GroupSkips]:
        """Return the ranges by group, without what their queues have lost.

        Args:
            end_of_queue: gives the end of a queue; new messages may follow where lost ones were.
        """
        groups: dict[str, GroupSkips] = {}
        for name, group in self.groups.items():
            ranges: list[SkippedRange] = []
            for item in group.ranges:
                end = min(item.end, end_of_queue(item.topic, item.queue_id))
                if end <= item.begin:
                    continue
                safe = min(item.safe_offset, end)
                ranges.append(
                    SkippedRange(
                        item.topic,
                        item.queue_id,
                        item.begin,
                        end,
                        item.reason,
                        item.at_ms,
                        item.is_copied,
                        safe,
                        safe,
                        is_saved=True,
                        is_passed=item.is_passed,
                    )
                )
            groups[name] = GroupSkips(ranges, dict(group.retry_ends), is_restored=True)
        return groups


def skipped_snapshot(skipped: SkippedRanges) -> Callable[[], bytes]:
    """Copy the table; the result encodes the copy."""
    copy = SkippedFile(
        {
            name: _SkipsEntry(
                [
                    _RangeEntry(
                        item.topic,
                        item.queue_id,
                        item.begin,
                        item.end,
                        item.reason,
                        item.at_ms,
                        item.is_copied,
                        item.safe_offset,
                        item.is_passed,
                    )
                    for item in entry.ranges
                ],
                dict(entry.retry_ends),
            )
            for name, entry in skipped.all().items()
            if entry.ranges
        }
    )
    return lambda: msgspec.json.encode(copy)
