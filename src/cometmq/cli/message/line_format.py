"""The lines that `cometmq consume --format` prints, in the manner of kcat."""

import base64
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from cometmq.client.message.message import ReceivedMessage

__all__ = ["FIELDS", "parse_format"]

Part = Callable[["ReceivedMessage"], bytes]

FIELDS: Final[dict[str, tuple[str, Part]]] = {
    "t": ("topic", lambda message: message.topic.encode()),
    "b": ("broker", lambda message: message.message_queue.broker_name.encode()),
    "p": ("queue id", lambda message: b"%d" % message.message_queue.queue_id),
    "o": ("queue offset", lambda message: b"%d" % message.queue_offset),
    "i": ("message id", lambda message: message.message_id.encode()),
    "g": ("tag", lambda message: (message.tags or "").encode()),
    "k": ("keys", lambda message: " ".join(message.keys).encode()),
    "h": (
        "properties",
        lambda message: ",".join(f"{k}={v}" for k, v in message.properties.items()).encode(),
    ),
    "T": ("time stored, in ms", lambda message: b"%d" % message.store_timestamp_ms),
    "S": ("length of the body", lambda message: b"%d" % len(message.body)),
    "s": ("body", lambda message: message.body),
    "B": ("body as base64", lambda message: base64.b64encode(message.body)),
}
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


def parse_format(text: str) -> Part:
    r"""Return what makes a message's line, from text with fields like `%s` and escapes like `\n`.

    Raises:
        click.UsageError: an unknown field or escape, or one that is cut off; the text has all.
    """
    parts: list[Part] = []
    position = 0
    while position < len(text):
        mark, name = text[position], text[position + 1 : position + 2]
        if mark == "%" and name in FIELDS:
            parts.append(FIELDS[name][1])
        elif mark == "\\" and name in _ESCAPES:
            parts.append(_constant(_ESCAPES[name]))
        elif mark == "%" and name == "%":
            parts.append(_constant(b"%"))
        elif mark in "%\\":
            fields = ", ".join(f"%{key} {meaning}" for key, (meaning, _) in FIELDS.items())
            raise click.UsageError(
                f"--format has {mark + name!r}; there are {fields}, %% and \\n \\t \\r \\0 \\\\"
            )
        else:
            parts.append(_constant(mark.encode()))
            position -= 1
        position += 2
    return lambda message: b"".join([part(message) for part in parts])


def _constant(data: bytes) -> Part:
    return lambda message: data
