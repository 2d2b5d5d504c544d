"""Checks of a message's fields that only unusual values need, so that usual ones cost nothing.

Python formats anything as text, so a list of tags or a number as a property would be stored as
``str`` renders it and never match a filter.  A member of a text enumeration counts as its value,
because comparisons see the value while formatting gives the member's name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from cometmq.codec.properties import encode_properties_text
from cometmq.errors import LocalProtocolError, MessageTypeError
from cometmq.model import Message
from cometmq.model.names import check_topic
from cometmq.model.properties import RESERVED_PROPERTIES

__all__ = [
    "check_is_message",
    "check_sendable_topic",
    "delay_properties",
    "keys_text",
    "own_properties",
    "plain_bytes",
    "plain_text",
    "with_group",
]

_FLAG_MAX: Final = 2**31


def check_is_message(value: object) -> None:
    """Raise LocalProtocolError unless the value is a `Message` with a legal topic."""
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


def check_sendable_topic(topic: object) -> None:
    """Raise LocalProtocolError unless the value is a legal topic name."""
    if not isinstance(topic, str):
        raise MessageTypeError(
            f"the topic {topic!r:.100} is {type(topic).__name__}; a topic is named by a text"
        )
    if f"{topic}" != str.__str__(topic):
        # The name is formatted into many texts, where such a member gives another text.
        raise LocalProtocolError(
            f"the topic {topic!r} formats as {f'{topic}'!r}; give its value, {str.__str__(topic)!r}"
        )
    fault = check_topic(topic)
    if fault is not None:
        raise LocalProtocolError(fault)


def plain_bytes(topic: str, body: object) -> bytes:
    """The body as bytes; LocalProtocolError unless it has at least one."""
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise MessageTypeError(
            f"the body for {topic} is {type(body).__name__}; encode it to bytes first"
        )
    body = bytes(body)
    if not body:
        raise LocalProtocolError(
            f"the body for {topic} is empty; a frame cannot tell an empty body from none, "
            "so send at least one byte"
        )
    return body


def plain_text(value: object, description: str) -> str:
    """The value as a plain ``str``; LocalProtocolError unless it is a text without separators."""
    if not isinstance(value, str):
        raise MessageTypeError(
            f"the {description} {value!r:.100} is {type(value).__name__}; give a text"
        )
    text = str.__str__(value)
    if "\x01" in text or "\x02" in text:
        raise LocalProtocolError(
            f"the {description} {text!r} contains U+0001 or U+0002, which separate properties"
        )
    return text


def keys_text(topic: str, keys: object) -> str:
    """The keys joined by blanks, as they travel; a text is used as it is.

    Raises:
        LocalProtocolError: a key is not a text, or contains the blank that separates keys.
    """
    if keys is None:
        return ""
    if isinstance(keys, str) or not isinstance(keys, (tuple, Iterable)):
        return plain_text(keys, f"key for {topic}")
    several = keys if type(keys) is tuple else tuple(keys)
    try:
        text = " ".join(several)
    except TypeError:
        _check_keys(topic, several)
        raise
    if text.count(" ") != len(several) - 1 or "\x01" in text or "\x02" in text:
        _check_keys(topic, several)
    return text


def _check_keys(topic: str, several: tuple[object, ...]) -> None:
    for key in several:
        if " " in plain_text(key, f"key for {topic}"):
            raise LocalProtocolError(
                f"the key {key!r} for {topic} has a blank in it, which separates keys; "
                "leave it out or put another character there"
            )


def own_properties(message: Message) -> str:
    """The program's own properties as a string; LocalProtocolError if one or the flag is wrong."""
    if message.flag != 0:
        _check_flag(message)
    return _user_properties(message) if message.properties else ""


def _check_flag(message: Message) -> None:
    flag = message.flag
    if not isinstance(flag, int) or not -_FLAG_MAX <= flag < _FLAG_MAX:
        error = LocalProtocolError if isinstance(flag, int) else MessageTypeError
        raise error(
            f"the flag {flag!r:.100} of a message for {message.topic} is no whole number of 32 bits"
        )


def delay_properties(message: Message) -> str:
    """The properties that delay a message; LocalProtocolError if its times are wrong."""
    times = (message.delay_level or None, message.deliver_time_ms, message.delay_ms)
    if sum(value is not None for value in times) > 1:
        raise LocalProtocolError(
            f"the message for {message.topic} has delay_level {message.delay_level}, "
            f"deliver_time_ms {message.deliver_time_ms} and delay_ms {message.delay_ms}; "
            "give one of them"
        )
    for name, value in zip(("delay_level", "deliver_time_ms", "delay_ms"), times, strict=True):
        if value is not None and (type(value) is not int or value < 0):
            unit = "a level from 1 on" if name == "delay_level" else "whole milliseconds"
            if name == "deliver_time_ms":
                unit += " since 1970"
            error = LocalProtocolError if type(value) is int else MessageTypeError
            raise error(
                f"{name} of a message for {message.topic} is {value!r} "
                f"({type(value).__name__}); give {unit}"
            )
    if message.delay_ms is not None:
        return f"TIMER_DELAY_MS\x01{message.delay_ms}\x02"
    if message.deliver_time_ms is not None:
        return f"TIMER_DELIVER_MS\x01{message.deliver_time_ms}\x02"
    return f"DELAY\x01{message.delay_level}\x02"


def _user_properties(message: Message) -> str:
    properties = message.properties
    if type(properties) is not dict and not isinstance(properties, Mapping):
        raise MessageTypeError(
            f"the properties of a message for {message.topic} are {properties!r:.100} "
            f"({type(properties).__name__}); give a mapping of names to texts"
        )
    reserved = RESERVED_PROPERTIES.intersection(properties)
    if reserved:
        raise LocalProtocolError(
            f"the properties {', '.join(sorted(reserved))} belong to RocketMQ; use the "
            "fields of Message, or other names"
        )
    for name, value in properties.items():
        if type(value) is not str or type(name) is not str:
            properties = _plain_properties(message)
            break
    return encode_properties_text(properties)


def _plain_properties(message: Message) -> dict[str, str]:
    plain: dict[str, str] = {}
    for name, value in message.properties.items():
        if not isinstance(name, str):
            raise MessageTypeError(
                f"the property name {name!r:.100} of a message for {message.topic} is "
                f"{type(name).__name__}; give a text"
            )
        if not isinstance(value, str):
            raise MessageTypeError(
                f"the property {name!r} of a message for {message.topic} is {value!r:.100} "
                f"({type(value).__name__}); give a text, such as str(value)"
            )
        plain[str.__str__(name)] = str.__str__(value)
    return plain
