"""Checks that a value is a message, and the properties that only unusual messages have."""

from dataclasses import replace

from cometmq.codec.properties import encode_properties_text
from cometmq.errors import MessageTypeError
from cometmq.model import Message
from cometmq.model.message_checks import (
    check_delays,
    check_flag,
    check_properties,
    check_sendable_topic,
)

__all__ = ["check_is_message", "delay_properties", "own_properties", "with_group"]


def check_is_message(value: object) -> None:
    """Check that the value is a `Message` with a legal topic.

    Raises:
        MessageTypeError: it is not a `Message`, or its topic is not a text.
        LocalProtocolError: RocketMQ does not allow the topic's name.
    """
    if not isinstance(value, Message):
        raise MessageTypeError(
            f"{value!r:.100} ({type(value).__name__}) is no Message; "
            "give Message(topic, body), a new one also for what was received"
        ) from None
    check_sendable_topic(value.topic)


def with_group(message: Message, message_group: str) -> Message:
    """A copy of the message, in another message group; the caller's message stays as it is.

    Raises:
        LocalProtocolError: it is no `Message`.
    """
    check_is_message(message)
    return replace(message, message_group=message_group)


def own_properties(message: Message) -> str:
    """The program's own properties as a string.

    Raises:
        LocalProtocolError: a property or the flag is not accepted.
    """
    if message.flag != 0:
        check_flag(message.topic, message.flag)
    if not message.properties:
        return ""
    return encode_properties_text(check_properties(message.topic, message.properties))


def delay_properties(message: Message) -> str:
    """The properties that delay a message.

    Raises:
        LocalProtocolError: more than one of the three times is set, or one is out of range.
    """
    check_delays(message)
    if message.delay_ms is not None:
        return f"TIMER_DELAY_MS\x01{message.delay_ms}\x02"
    if message.deliver_time_ms is not None:
        return f"TIMER_DELIVER_MS\x01{message.deliver_time_ms}\x02"
    return f"DELAY\x01{message.delay_level}\x02"
