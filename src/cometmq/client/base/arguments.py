"""What programs pass where several names, queues or subscriptions are meant.

Job: take one where several are meant, and refuse what cannot be meant: a text is a sequence of
characters to Python, and a consumer that pauses the queues ``"o"``, ``"r"``, ``"d"`` does so in
silence, and so does one that pauses the three parts of a single queue, which is a named tuple.
Must not: know what the values are for.
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
"""The largest number of a request's field, as RocketMQ's clients have them; 24.8 days in ms."""


def check_count(name: str, value: object, least: int = 1, most: int = NUMBER_MAX) -> None:
    """Raise ConfigError unless it is a whole number in that range."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        span = f"of at least {least}" if most >= NUMBER_MAX else f"from {least} to {most}"
        error = ConfigError if isinstance(value, int) else ConfigTypeError
        raise error(f"{name} is {_shown(value)}; give a whole number {span}")


def check_ms(name: str, value: object, *, may_be_zero: bool = False) -> None:
    """Raise ConfigError unless it is a time in milliseconds that can be waited for."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not 0 <= value <= NUMBER_MAX  # false for what is no number (NaN)
        or not (value or may_be_zero)
    ):
        least = "0" if may_be_zero else "above 0"
        error = ConfigError if isinstance(value, (int, float)) else ConfigTypeError
        raise error(
            f"{name} is {_shown(value)}; give milliseconds, {least} and at most {NUMBER_MAX}"
        )


def check_callable(name: str, value: object) -> None:
    """Raise ConfigError unless it can be called."""
    if not callable(value):
        raise ConfigTypeError(f"{name} is {_shown(value)}; give a function")


def check_queue(queue: object, message: Message, selector: object) -> None:
    """Raise ConfigError unless a message can be sent to this queue, chosen by it alone."""
    if not isinstance(queue, MessageQueue):
        raise ConfigTypeError(
            f"queue is {_shown(queue)}; give a MessageQueue, such as one of "
            "`fetch_publish_queues(topic)`"
        )
    if queue.topic != message.topic:
        raise ConfigError(f"the queue {queue} is none of {message.topic}, where the message goes")
    if selector is not None:
        raise ConfigError(f"queue is {queue} and there is a selector too; give one of them")


def checked_text(name: str, value: object) -> str:
    """The text; ConfigError if it is none."""
    if not isinstance(value, str):
        raise ConfigTypeError(f"{name} is {_shown(value)}; give a text")
    return value


def checked_group(group: object) -> str:
    """The name of a group; ConfigError if it is not legal."""
    fault = check_group(checked_text("the group", "" if group is None else group))
    if fault is not None:
        raise ConfigError(fault)
    return str.__str__(group)


def checked_topic(topic: object) -> str:
    """The name of a topic; ConfigError if it is not legal."""
    fault = check_topic(checked_text("the topic", "" if topic is None else topic))
    if fault is not None:
        raise ConfigError(fault)
    return str.__str__(topic)


def message_list(messages: object) -> Sequence[Message]:
    """The messages; one alone is taken as such.

    Raises:
        ConfigError: they are no iterable.
    """
    if isinstance(messages, Message):
        return [messages]
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Iterable):
        raise ConfigTypeError(
            f"the messages of a batch are {_shown(messages)}; give a list of Message"
        )
    return messages if isinstance(messages, Sequence) else list(messages)


def batch_topic(messages: Sequence[Message]) -> str:
    """The one topic of a batch; LocalProtocolError if something among them is no message."""
    try:
        return check_batch(messages)
    except (AttributeError, TypeError):
        for message in messages:
            check_is_message(message)
        raise


def _shown(value: object) -> str:
    return f"{value!r:.100} ({type(value).__name__})"


def name_list(names: Iterable[str]) -> list[str]:
    """The names; a plain text is one name."""
    return [names] if isinstance(names, str) else list(names)


def queue_list(queues: Iterable[MessageQueue] | MessageQueue) -> list[MessageQueue]:
    """The queues; one alone is taken as such.

    Raises:
        ConfigError: something among them is no queue, such as the name of a topic.
    """
    if isinstance(queues, MessageQueue):
        return [queues]
    given = list(queues)
    if not all(isinstance(queue, MessageQueue) for queue in given):
        raise ConfigError(
            f"{queues!r} is no list of MessageQueue; `fetch_queues(topic)` gives those of a topic"
        )
    return given


def subscription_map(subscriptions: object) -> Mapping[str, str]:
    """Tag expressions by topic; None for none.

    Raises:
        ConfigError: it is no mapping.
    """
    if subscriptions is None:
        return {}
    if isinstance(subscriptions, Mapping):
        return subscriptions
    raise ConfigError(
        f"subscriptions is {subscriptions!r}; it must map topics to tag expressions, such as "
        "{'topic': '*'}"
    )
