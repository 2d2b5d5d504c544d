"""Tag expressions and the codes they filter by."""

import pytest

from cometmq.core.filter.tag_filter import filter_codes, parse_subscription
from cometmq.errors import RemoteProtocolError
from cometmq.model.group import SubscriptionData


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_all_messages(expression: str | None) -> None:
    """No expression, an empty one and * mean everything."""
    subscription = parse_subscription("t", expression)
    assert subscription.sub_string == "*"
    assert filter_codes(subscription) is None


def test_tags_are_split_trimmed_and_hashed() -> None:
    """`TagA` hashes to 2598919 and `标签` to 857175 (docs/internals/protocol.md#tag-hash)."""
    subscription = parse_subscription("t", "TagA ||  标签||", "TAG", 9)
    assert subscription.tags_set == {"TagA", "标签"}
    assert subscription.code_set == {2598919, 857175}
    assert subscription.sub_version == 9
    assert filter_codes(subscription) == {2598919, 857175}


def test_an_expression_without_a_tag_is_refused() -> None:
    """`||` names nothing: SUBSCRIPTION_PARSE_FAILED."""
    with pytest.raises(RemoteProtocolError, match="names no tag"):
        parse_subscription("t", " || ")


def test_codes_come_from_the_tags_not_from_the_client() -> None:
    """Go's codes for tags outside ASCII are wrong."""
    sent = SubscriptionData("t", "标签", frozenset({"标签"}), frozenset({-1853217173}))
    assert filter_codes(sent) == {857175}


def test_sql_is_not_a_tag_filter() -> None:
    """An SQL92 subscription is kept as it is."""
    subscription = parse_subscription("t", "a > 3", "SQL92")
    assert (subscription.sub_string, subscription.expression_type) == ("a > 3", "SQL92")
    assert filter_codes(subscription) is None
