"""Checks of the arguments that programs pass to clients.

Functions that take several names, queues or messages also accept a single one.  Otherwise a text
would count as a sequence of characters, and a queue, which is a named tuple, as three items.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from cometmq.client.message.checks import check_is_message
from cometmq.core.produce.batching import check_batch
from cometmq.errors import ConfigError, ConfigTypeError
from cometmq.model import Message, MessageQueue
from cometmq.model.names import check_group, check_topic

__all__ = [
    "batch_topic",
    "check_callable",
    "check_count",
    "check_ms",
    "check_queue",
    "checked_group",
    "checked_text",
    "checked_topic",
    "message_list",
    "name_list",
    "queue_list",
    "subscription_map",
]

NUMBER_MAX: Final = 2**31 - 1
"""The largest number in a request's field, as in RocketMQ's clients; 24.8 days in ms."""


def check_count(name: str, value: object, least: int = 1, most: int = NUMBER_MAX) -> None:
    """Check that the value is a whole number in the range.

    Raises:
        ConfigError: it is not; `ConfigTypeError` if it is no whole number at all.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        span = f"of at least {least}" if most >= NUMBER_MAX else f"from {least} to {most}"
        error = ConfigError if isinstance(value, int) else ConfigTypeError
        raise error(f"{name} is {_shown(value)}; give a whole number {span}")


def check_ms(name: str, value: object, *, may_be_zero: bool = False) -> None:
    """Check that the value is a duration in milliseconds.

    Raises:
        ConfigError: it is not; `ConfigTypeError` if it is no number at all.
    """
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not 0 <= value <= NUMBER_MAX  # false for NaN
        or not (value or may_be_zero)
    ):
        least = "0" if may_be_zero else "above 0"
        error = ConfigError if isinstance(value, (int, float)) else ConfigTypeError
        raise error(
            f"{name} is {_shown(value)}; give milliseconds, {least} and at most {NUMBER_MAX}"
        )


def check_callable(name: str, value: object) -> None:
    """Check that the value can be called.

    Raises:
        ConfigTypeError: it cannot.
    """
    if not callable(value):
        raise ConfigTypeError(f"{name} is {_shown(value)}; give a function")


def check_queue(queue: object, message: Message, selector: object) -> None:
    """Check that the queue belongs to the message's topic and that there is no selector.

    Raises:
        ConfigError: the queue is not a `MessageQueue` or is one of another topic, or a selector
            was passed too.
    """
    if not isinstance(queue, MessageQueue):
        raise ConfigTypeError(
            f"queue is {_shown(queue)}; give a MessageQueue, such as one of "
            "`fetch_publish_queues(topic)`"
        )
    if queue.topic != message.topic:
        raise ConfigError(
            f"the queue {queue} does not belong to {message.topic}, the topic of the message"
        )
    if selector is not None:
        raise ConfigError(f"queue is {queue} and a selector is set too; set one of them")


def checked_text(name: str, value: object) -> str:
    """The value, which must be a text.

    Raises:
        ConfigTypeError: it is not.
    """
    if not isinstance(value, str):
        raise ConfigTypeError(f"{name} is {_shown(value)}; give a text")
    return value


def checked_group(group: object) -> str:
    """The name of a group.

    Raises:
        ConfigError: it is not a text, or RocketMQ does not allow it as a name.
    """
    fault = check_group(checked_text("the group", "" if group is None else group))
    if fault is not None:
        raise ConfigError(fault)
    return str.__str__(group)


def checked_topic(topic: object) -> str:
    """The name of a topic.

    Raises:
        ConfigError: it is not a text, or RocketMQ does not allow it as a name.
    """
    fault = check_topic(checked_text("the topic", "" if topic is None else topic))
    if fault is not None:
        raise ConfigError(fault)
    return str.__str__(topic)


def message_list(messages: object) -> Sequence[Message]:
    """The messages as a sequence; a single message is a sequence of one.

    Raises:
        ConfigError: the value is not iterable.
    """
    if isinstance(messages, Message):
        return [messages]
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Iterable):
        raise ConfigTypeError(
            f"the messages of a batch are {_shown(messages)}; give a list of Message"
        )
    return messages if isinstance(messages, Sequence) else list(messages)


def batch_topic(messages: Sequence[Message]) -> str:
    """The topic that all messages of a batch share.

    Raises:
        LocalProtocolError: an item is not a `Message`, or the topics differ.
    """
    try:
        return check_batch(messages)
    except (AttributeError, TypeError):
        for message in messages:
            check_is_message(message)
        raise


def _shown(value: object) -> str:
    return f"{value!r:.100} ({type(value).__name__})"


def name_list(names: Iterable[str]) -> list[str]:
    """The names as a list; a text is a single name."""
    return [names] if isinstance(names, str) else list(names)


def queue_list(queues: Iterable[MessageQueue] | MessageQueue) -> list[MessageQueue]:
    """The queues as a list; a single queue is a list of one.

    Raises:
        ConfigError: an item is not a queue.
    """
    if isinstance(queues, MessageQueue):
        return [queues]
    items = list(queues)
    if not all(isinstance(queue, MessageQueue) for queue in items):
        raise ConfigError(
            f"{queues!r} is not a list of MessageQueue; `fetch_queues(topic)` returns one"
        )
    return items


def subscription_map(subscriptions: object) -> Mapping[str, str]:
    """Tag expressions by topic; None means no subscription.

    Raises:
        ConfigError: the value is not a mapping.
    """
    if subscriptions is None:
        return {}
    if isinstance(subscriptions, Mapping):
        return subscriptions
    raise ConfigError(
        f"subscriptions is {subscriptions!r}; it must map topics to tag expressions, such as "
        "{'topic': '*'}"
    )
