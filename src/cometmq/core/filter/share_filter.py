"""Which messages of a topic a member gets whose group has several filters of it.

A message goes to the first share that wants it (`core.group.filter_shares`).  Tags are compared as
text, since two tags may have one hash code: the broker would leave a message to a consumer that
drops it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from cometmq.codec.properties import decode_properties
from cometmq.codec.stored_message import properties_of
from cometmq.core.filter.sql92.expression import compile_expression
from cometmq.core.filter.tag_filter import filter_codes, is_tag_type
from cometmq.errors import CodecError, ExpressionIllegal
from cometmq.model.names import RETRY_PREFIX

if TYPE_CHECKING:
    from cometmq.codec.cq_ext import BitmapHint
    from cometmq.codec.properties import Needle
    from cometmq.core.group.filter_shares import SharePart
    from cometmq.model.group import SubscriptionData

__all__ = ["ShareFilter", "filter_of_part", "wants"]

_TAGS: Final = "TAGS"
_RETRY_TOPIC: Final = "RETRY_TOPIC"

_Wants = Callable[[Mapping[str, str]], bool]


def wants(subscription: SubscriptionData) -> _Wants:
    """Return the function that says of a message's properties whether a subscription takes it."""
    if is_tag_type(subscription.expression_type):
        if filter_codes(subscription) is None:
            return lambda _: True
        tags = subscription.tags_set
        return lambda properties: properties.get(_TAGS) in tags
    try:
        return compile_expression(subscription.sub_string).matches
    except ExpressionIllegal:
        return lambda _: False


def _wants_of_topics(wishes: Iterable[SubscriptionData]) -> _Wants:
    """Like `wants`, for messages of a retry topic, which name the topic they come from."""
    by_topic = {item.topic: wants(item) for item in wishes}

    def takes(properties: Mapping[str, str]) -> bool:
        one = by_topic.get(properties.get(_RETRY_TOPIC, ""))
        return one is not None and one(properties)

    return takes


class ShareFilter:
    """The messages of one share, of records."""

    __slots__ = ("_others", "_own", "_takes_unwanted")

    hint: BitmapHint | None = None
    needles: tuple[Needle, ...] = ()

    def __init__(
        self, own: _Wants, others: Iterable[_Wants], *, takes_unwanted: bool = False
    ) -> None:
        """The share gets what it wants and the others do not.

        With `takes_unwanted` it gets all that it wants, and what neither it nor the others want.
        """
        self._own = own
        self._others = tuple(others)
        self._takes_unwanted = takes_unwanted

    def takes(self, properties: Mapping[str, str]) -> bool:
        """Whether the share gets a message with these properties."""
        if self._takes_unwanted and self._own(properties):
            return True
        if not self._takes_unwanted and not self._own(properties):
            return False
        return not any(other(properties) for other in self._others)

    def matches(self, record: memoryview) -> bool:
        """Whether the share gets a stored record; an unreadable one only where nobody else does."""
        try:
            return self.takes(decode_properties(properties_of(record)))
        except CodecError:
            return self._takes_unwanted


def filter_of_part(part: SharePart, topic: str) -> tuple[frozenset[int] | None, ShareFilter | None]:
    """Return the tag codes (None: all) and the filter of records by which a member's pull reads.

    Messages of a retry topic whose topic nobody wants any more go to the first share.
    """
    if topic.startswith(RETRY_PREFIX):
        others = part.others if part.is_first else part.seniors
        return None, ShareFilter(
            _wants_of_topics(part.wishes),
            [_wants_of_topics(item) for item in others],
            takes_unwanted=part.is_first,
        )
    own = part.wishes[0]
    seniors = [item for (item,) in part.seniors]
    codes = filter_codes(own)
    if is_tag_type(own.expression_type) and not any(_may_clash(own, item) for item in seniors):
        return codes, None
    return codes, ShareFilter(wants(own), [wants(item) for item in seniors])


def _may_clash(own: SubscriptionData, senior: SubscriptionData) -> bool:
    """Whether the codes alone do not tell the messages of two subscriptions apart."""
    codes = filter_codes(own)
    others = filter_codes(senior) if is_tag_type(senior.expression_type) else None
    return codes is None or others is None or bool(codes & others)
