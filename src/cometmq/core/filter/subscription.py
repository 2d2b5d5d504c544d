"""Subscriptions as a consumer states them.

The module checks the expressions of a program: `tag_filter` parses tags, `sql92` parses filters.
The broker evaluates them.

A broker compares 32-bit hashes of tags, so a message passes whose tag only has the same hash.  The
consumer therefore compares the text with ``tags_set``.  An empty set means all messages, as do the
expressions ``*``, the empty string and None.
"""

from typing import Final, Self

from cometmq.core.filter.tag_filter import TAG, parse_subscription
from cometmq.errors import ConfigError, ConfigTypeError, RemoteProtocolError
from cometmq.model import SUBSCRIBE_ALL, SubscriptionData

__all__ = ["SQL92", "Sql92", "subscription_of"]

SQL92: Final = "SQL92"


class Sql92(str):
    """A filter over the properties of messages, wherever a tag expression may stand.

        PushConsumer("billing", {"Orders": Sql92("amount > 100 AND region = 'eu'")}, handle)

    Brokers evaluate it: CometMQ's does, RocketMQ's where ``enablePropertyFilter=true`` is set.

    Raises:
        ExpressionIllegal: the text is not a filter; the error names line, column and cause.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        """Check the text, which stays as it is."""
        if not isinstance(text, str):
            raise ConfigTypeError(
                f"an SQL92 filter is {text!r:.100} ({type(text).__name__}); give a text"
            )
        _check(text)
        return super().__new__(cls, text)

    def __repr__(self) -> str:
        return f"Sql92({super().__repr__()})"


def _check(text: str) -> None:
    # Imported here: a client that subscribes by tags starts without a compiler.
    from cometmq.core.filter.sql92.expression import compile_expression

    compile_expression(text)


def subscription_of(
    topic: str, expression: str | None, sub_version: int, expression_type: str = TAG
) -> SubscriptionData:
    """The subscription for ``TagA || TagB``, ``*``, or an SQL92 expression.

    Raises:
        ExpressionIllegal: the text is not an SQL92 filter.
        ConfigError: the expression type is unknown, or the expression selects nothing.
    """
    if isinstance(expression, Sql92):
        expression_type = SQL92
    if expression_type not in (TAG, SQL92):
        raise ConfigError(f"expression type {expression_type!r} is neither {TAG} nor {SQL92}")
    text = (expression or "").strip()
    if expression_type == SQL92 and not text:
        raise ConfigError(f"the {SQL92} subscription of {topic} has an empty expression")
    if expression_type == SQL92 and not isinstance(expression, Sql92):
        _check(text)
    if expression_type == TAG and not text:
        text = SUBSCRIBE_ALL
    try:
        return parse_subscription(topic, text, expression_type, sub_version)
    except RemoteProtocolError as error:
        raise ConfigError(str(error)) from error
