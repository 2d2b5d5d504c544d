"""The key under which a message counts as handled."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from cometmq import DeadLetter, ReceivedMessage, RetryLater
from cometmq.patterns.base.names import OUTBOX_ID

__all__ = ["KeyOf", "by_keys", "by_message_id", "keys_of"]

KeyOf: TypeAlias = Callable[[ReceivedMessage], str]


def by_message_id(message: ReceivedMessage) -> str:
    """The id of an outbox's row, else the producer's message id, which every try has.

    A second send by the program has another message id.
    """
    properties = message.properties
    name = properties.get(OUTBOX_ID) or properties.get("UNIQ_KEY")
    return name or properties.get("ORIGIN_MESSAGE_ID") or message.message_id


def by_keys(message: ReceivedMessage) -> str:
    """The topic and the business keys: the same order sent twice is handled once.

    Raises:
        DeadLetter: the message has no keys.
    """
    if not message.keys:
        raise DeadLetter("the message has no keys, by which its handler recognises duplicates")
    return f"{message.topic} {' '.join(message.keys)}"


def keys_of(
    messages: Sequence[ReceivedMessage], key: KeyOf
) -> tuple[list[str | RetryLater], dict[str, ReceivedMessage]]:
    """The key of each message, or the answer to one without; and the first message of each key."""
    keys: list[str | RetryLater] = []
    first: dict[str, ReceivedMessage] = {}
    for message in messages:
        try:
            name = key(message)
        except RetryLater as answer:
            keys.append(answer)
        else:
            keys.append(name)
            first.setdefault(name, message)
    return keys, first
