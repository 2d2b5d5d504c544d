"""Checks of a message's fields, made when the message is made and again when it is sent.

Python formats anything as text, so a list of tags or a number as a property would be stored as
``str`` renders it and never match a filter.  A member of a text enumeration counts as its value,
because comparisons see the value while formatting gives the member's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from cometmq.errors import LocalProtocolError, MessageTypeError
from cometmq.model.names import check_topic
from cometmq.model.properties import RESERVED_PROPERTIES

if TYPE_CHECKING:
    from cometmq.model.message import Message

__all__ = [
    "check_delays",
    "check_flag",
    "check_properties",
    "check_sendable_topic",
    "keys_text",
    "plain_bytes",
    "plain_text",
]

_FLAG_MAX: Final = 2**31


def check_sendable_topic(topic: object) -> None:
    """Check that the value is a legal topic name.

    Raises:
        MessageTypeError: it is not a text.
        LocalProtocolError: RocketMQ does not allow it, or it formats as another text.
    """
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
    """The body as bytes.

    Raises:
        MessageTypeError: it is not bytes.
    """
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise MessageTypeError(
            f"the body for {topic} is {type(body).__name__}; "
            + ("b'' is an empty body" if body is None else "encode it to bytes first")
        )
    return bytes(body)


def plain_text(value: object, description: str) -> str:
    """The value as a plain ``str``.

    Raises:
        MessageTypeError: it is not a text.
        LocalProtocolError: it contains a character that separates properties.
    """
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
    """The keys joined by blanks, as they travel; a text is one key.

    Raises:
        MessageTypeError: a key is not a text.
        LocalProtocolError: a key contains the blank that separates keys.
    """
    key = keys[0] if type(keys) is tuple and len(keys) == 1 else keys
    if type(key) is str and not (" " in key or "\x01" in key or "\x02" in key):
        return key
    if keys is None:
        return ""
    if isinstance(keys, str) or not isinstance(keys, (tuple, Iterable)):
        return _key(topic, keys)
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
        _key(topic, key)


def _key(topic: str, key: object) -> str:
    text = plain_text(key, f"key for {topic}")
    if " " in text:
        raise LocalProtocolError(
            f"the key {text!r} for {topic} has a blank in it, which separates keys; give several "
            f"keys as a tuple, {tuple(text.split())!r}, or put another character there"
        )
    return text


def check_flag(topic: str, flag: object) -> None:
    """Check that a message's flag is a whole number of 32 bits.

    Raises:
        MessageTypeError: it is no whole number.
        LocalProtocolError: it is too large.
    """
    if not isinstance(flag, int) or not -_FLAG_MAX <= flag < _FLAG_MAX:
        error = LocalProtocolError if isinstance(flag, int) else MessageTypeError
        raise error(
            f"the flag {flag!r:.100} of a message for {topic} is no whole number of 32 bits"
        )


def check_delays(message: Message) -> None:
    """Check the three times that delay a message.

    Raises:
        MessageTypeError: a time is no whole number.
        LocalProtocolError: more than one of the times is set, or one is out of range.
    """
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


def check_properties(topic: str, properties: object) -> Mapping[str, str]:
    """The program's own properties, as plain texts.

    Raises:
        MessageTypeError: they are no mapping, or a name or a value is not a text.
        LocalProtocolError: a name is RocketMQ's, or a text contains a separator.
    """
    if type(properties) is not dict and not isinstance(properties, Mapping):
        raise MessageTypeError(
            f"the properties of a message for {topic} are {properties!r:.100} "
            f"({type(properties).__name__}); give a mapping of names to texts"
        )
    if not RESERVED_PROPERTIES.isdisjoint(properties):
        reserved = RESERVED_PROPERTIES.intersection(properties)
        raise LocalProtocolError(
            f"the properties {', '.join(sorted(reserved))} belong to RocketMQ; use the "
            "fields of Message, or other names"
        )
    for name, value in properties.items():
        if (
            type(value) is not str
            or type(name) is not str
            or not name
            or "\x01" in value
            or "\x02" in value
            or "\x01" in name
            or "\x02" in name
        ):
            return _plain_properties(topic, properties)
    return properties


def _plain_properties(topic: str, properties: Mapping[str, str]) -> dict[str, str]:
    plain: dict[str, str] = {}
    for name, value in properties.items():
        if not isinstance(name, str):
            raise MessageTypeError(
                f"the property name {name!r:.100} of a message for {topic} is "
                f"{type(name).__name__}; give a text"
            )
        if not isinstance(value, str):
            raise MessageTypeError(
                f"the property {name!r} of a message for {topic} is {value!r:.100} "
                f"({type(value).__name__}); give a text, such as str(value)"
            )
        text = plain_text(name, f"property name of a message for {topic}")
        if not text:
            raise LocalProtocolError(
                f"a property of a message for {topic} has the value {value!r:.100} "
                "and an empty name"
            )
        plain[text] = plain_text(value, f"property {text!r} of a message for {topic}")
    return plain
