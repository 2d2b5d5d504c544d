"""The filter of a pull in whose way skipped ranges lie (`core.group.skipped_ranges`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.codec.stored_message import PHYSICAL_OFFSET_POSITION

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cometmq.codec.cq_ext import BitmapHint
    from cometmq.codec.properties import Needle
    from cometmq.core.filter.property_filter import PropertyFilter, RetryFilter
    from cometmq.core.group.skipped_ranges import SkippedRange

__all__ = ["SkipFilter"]

_QUEUE_OFFSET: Final = slice(PHYSICAL_OFFSET_POSITION - 8, PHYSICAL_OFFSET_POSITION)


class SkipFilter:
    """Leaves out the records of skipped ranges, and what the pull's own filter leaves out."""

    __slots__ = ("_bounds", "_inner", "hint", "needles")

    def __init__(
        self, inner: PropertyFilter | RetryFilter | None, ranges: Iterable[SkippedRange]
    ) -> None:
        self._inner = inner
        self._bounds = tuple((item.begin, item.end) for item in ranges)
        self.hint: BitmapHint | None = None if inner is None else inner.hint
        self.needles: tuple[Needle, ...] = () if inner is None else inner.needles

    def matches(self, record: memoryview) -> bool:
        """Whether a pull gets a stored record."""
        queue_offset = int.from_bytes(record[_QUEUE_OFFSET], "big")
        if any(begin <= queue_offset < end for begin, end in self._bounds):
            return False
        return self._inner is None or self._inner.matches(record)
