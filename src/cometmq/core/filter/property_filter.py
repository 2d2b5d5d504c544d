"""SQL92 filters over stored messages: first the bitmap of an extension unit, then the record.

`hint` rules messages out by their bitmap, `matches` evaluates a record; see `filter_table`.  The
bitmaps are made from the text that the group registered, so a pull with another text has no hint.

Source: ExpressionMessageFilter and ExpressionForRetryMessageFilter of RocketMQ 5.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.codec.cq_ext import BitmapHint
from cometmq.codec.properties import decode_properties, pick_properties, property_marks
from cometmq.codec.stored_message import properties_of
from cometmq.core.filter.sql92.expression import compile_expression
from cometmq.core.filter.sql92.needles import any_of
from cometmq.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.codec.properties import Needle
    from cometmq.core.filter.consumer_filter import ConsumerFilter
    from cometmq.core.filter.sql92.expression import Expression

__all__ = ["PropertyFilter", "RetryFilter"]

_NAMES_MAX: Final = 4
"""Up to so many properties are looked up one by one; more are decoded all at once."""
_SEARCHED_ALONE: Final = 1024
"""Larger records are likely not to have been searched with others: see `store.record_search`."""
_RETRY_TOPIC: Final = "RETRY_TOPIC"


class PropertyFilter:
    """A filter over stored records."""

    __slots__ = ("_any_needle", "_wanted", "expression", "hint")

    def __init__(self, expression: Expression, hint: BitmapHint | None = None) -> None:
        self.expression = expression
        self.hint = hint
        """What extension units must have; None when they say nothing about this filter."""
        self._any_needle = any_of(expression.needles)
        names = expression.properties
        self._wanted = property_marks(names) if len(names) <= _NAMES_MAX else []

    @classmethod
    def of(cls, registered: ConsumerFilter) -> PropertyFilter | None:
        """Make the filter that a group registered; None if its text is illegal here."""
        if registered.expression is None:
            return None
        hint, key = None, registered.key
        if key is not None:
            hint = BitmapHint(tuple(key.positions), key.bit_count // 8, registered.born_ms)
        return cls(registered.expression, hint)

    @classmethod
    def of_text(cls, text: str) -> PropertyFilter:
        """Make the filter of the text that a pull brings.

        Raises:
            ExpressionIllegal: the text is not a filter.
        """
        return cls(compile_expression(text))

    @property
    def needles(self) -> tuple[Needle, ...]:
        """Byte patterns of which every matching record has one; empty if the filter has none."""
        return self.expression.needles

    def matches(self, record: memoryview) -> bool:
        """Whether a stored record matches; an unreadable record does not."""
        try:
            raw = properties_of(record)
        except CodecError:
            return False
        if len(record) > _SEARCHED_ALONE and self._any_needle and not self._any_needle.search(raw):
            return False
        wanted = self._wanted
        return self.expression.matches(
            pick_properties(raw, wanted) if wanted else decode_properties(raw)
        )


class RetryFilter:
    """Filters a retry topic by the filter of each message's real topic (`filterSupportRetry`)."""

    __slots__ = ("_find",)

    hint: BitmapHint | None = None
    needles: tuple[Needle, ...] = ()

    def __init__(self, find: Callable[[str], ConsumerFilter | None]) -> None:
        """`find` gives the group's filter of a topic."""
        self._find = find

    def matches(self, record: memoryview) -> bool:
        """Whether a record matches the filter of its first topic; without a filter it does."""
        try:
            properties = decode_properties(properties_of(record))
        except CodecError:
            return True
        one = self._find(properties.get(_RETRY_TOPIC, ""))
        return one is None or one.expression is None or one.expression.matches(properties)
