"""What a pull by SQL92 asks of each message: first the bitmap in its extension, then its record.

Job: one filter in the two forms a read needs, `hint` for what an extension unit can rule out and
`matches` for the record as it is stored.  It must not read anything, and knows no broker.

Theory: see `cometmq.core.filter.filter_table`.  A hint may only be used with the text whose
bitmaps it
speaks of; a pull that brings another text than its group registered has none.

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
    def of(cls, one: ConsumerFilter) -> PropertyFilter | None:
        """Make the filter of a registered one; None where its text is not one here."""
        if one.expression is None:
            return None
        hint = None
        if one.key is not None:
            hint = BitmapHint(tuple(one.key.positions), one.key.bit_count // 8, one.born_ms)
        return cls(one.expression, hint)

    @classmethod
    def of_text(cls, text: str) -> PropertyFilter:
        """Make the filter of a pull's own text; raises ExpressionIllegal."""
        return cls(compile_expression(text))

    @property
    def needles(self) -> tuple[Needle, ...]:
        """Bytes of which a record that matches has at least one; none when nothing is known."""
        return self.expression.needles

    def matches(self, record: memoryview) -> bool:
        """Say whether a stored record matches; one that cannot be read does not."""
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
        """Say whether a record is wanted; what nobody filters is."""
        try:
            properties = decode_properties(properties_of(record))
        except CodecError:
            return True
        one = self._find(properties.get(_RETRY_TOPIC, ""))
        return one is None or one.expression is None or one.expression.matches(properties)
