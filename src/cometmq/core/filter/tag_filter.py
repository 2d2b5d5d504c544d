"""Tag subscriptions: from ``TagA || TagB`` to the Java hash codes that filter a consume queue.

Two tags may have one hash code.  The consumer compares the text again, so a false match is
harmless, while a false miss would lose a message.

Source: FilterAPI.buildSubscriptionData and ExpressionMessageFilter of RocketMQ 5.4.
"""

from __future__ import annotations

from cometmq.codec.java_hash import tags_code
from cometmq.errors import RemoteProtocolError
from cometmq.model.group import SUBSCRIBE_ALL, SubscriptionData

__all__ = ["TAG", "filter_codes", "is_tag_type", "parse_subscription"]

TAG = "TAG"


def is_tag_type(expression_type: str | None) -> bool:
    """Whether an expression type means tags: absent, empty or ``TAG``."""
    return not expression_type or expression_type == TAG


def parse_subscription(
    topic: str, expression: str | None, expression_type: str | None = TAG, sub_version: int = 0
) -> SubscriptionData:
    """Build the subscription of a topic.

    Raises:
        RemoteProtocolError: a tag expression that names no tag, such as ``||``.
    """
    if not is_tag_type(expression_type):
        return SubscriptionData(
            topic, expression or "", sub_version=sub_version, expression_type=expression_type or TAG
        )
    if not expression or expression == SUBSCRIBE_ALL:
        return SubscriptionData(topic, SUBSCRIBE_ALL, sub_version=sub_version)
    tags = frozenset(tag for part in expression.split("||") if (tag := part.strip()))
    if not tags:
        raise RemoteProtocolError(
            f"subscription {expression!r} of topic {topic} names no tag; "
            "write * for all messages or TagA || TagB"
        )
    codes = frozenset(tags_code(tag) for tag in tags)
    return SubscriptionData(topic, expression, tags, codes, sub_version)


def filter_codes(subscription: SubscriptionData) -> frozenset[int] | None:
    """The codes of which a message must have one; None if every message matches.

    They are computed from the tags.  Go's client hashes UTF-8 bytes, so the codes that it sends are
    wrong for tags outside ASCII.
    """
    if not is_tag_type(subscription.expression_type):
        return None
    if not subscription.tags_set or SUBSCRIBE_ALL in subscription.tags_set:
        return None
    return frozenset(tags_code(tag) for tag in subscription.tags_set)
