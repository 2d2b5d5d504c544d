"""The handle by which a timed message is recalled.

Job: write and read it.  Layout (``RecallMessageHandle.HandleV1``, RocketMQ 5.4.0): URL-safe base64,
padded, of ``v1 <topic> <broker name> <time, ms> <UNIQ_KEY>`` in UTF-8, one blank between.  The time
is TIMER_OUT_MS + 1, which falls into the same slot of the wheel as the message.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple

from cometmq.errors import CodecError

__all__ = [
    "RecallHandle",
    "decode_recall_handle",
    "encode_recall_handle",
    "finish_recall_handle",
    "recall_handle_head",
]

_VERSION: Final = "v1"
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")


class RecallHandle(NamedTuple):
    """What a handle says."""

    topic: str
    broker_name: str
    time_ms: int
    """A time in the slot of the message."""
    uniq_key: str


def encode_recall_handle(handle: RecallHandle) -> str:
    """Return the text of a handle."""
    head = recall_handle_head(handle.topic, handle.broker_name, handle.time_ms)
    return finish_recall_handle(head, handle.uniq_key)


def recall_handle_head(topic: str, broker_name: str, time_ms: int) -> bytes:
    """What the handles of messages for one topic and slot have in common."""
    return f"{_VERSION} {topic} {broker_name} {time_ms} ".encode()


def finish_recall_handle(head: bytes, uniq_key: str) -> str:
    """Return the text of a handle, given what `recall_handle_head` gave."""
    raw = binascii.b2a_base64(head + uniq_key.encode(), newline=False)
    return raw.translate(_URL_SAFE).decode("latin-1")


def decode_recall_handle(text: str) -> RecallHandle:
    """Return what a handle says.

    Raises:
        CodecError: it is none; the text says what is wrong with it.
    """
    try:
        # Java's decoder takes handles without padding too.
        padded = text.encode() + b"=" * (-len(text) % 4)
        items = base64.b64decode(padded, b"-_", validate=True).decode().split(" ")
    except (binascii.Error, UnicodeError, ValueError):
        raise CodecError(f"recall handle is invalid: {text!r:.80} is not URL-safe base64") from None
    if len(items) < 5 or items[0] != _VERSION:
        raise CodecError(
            f"recall handle is invalid: it holds {len(items)} fields of version {items[0]!r:.20}, "
            "expected five of version v1; use the handle the send returned"
        )
    time_text = items[3]
    if not (time_text.isascii() and time_text.isdigit() and len(time_text) < 19):
        raise CodecError(f"recall handle is invalid: its time is {time_text!r:.30}")
    return RecallHandle(items[1], items[2], int(time_text), items[4])
