"""The handle by which a timed message is recalled.

Layout (``RecallMessageHandle.HandleV1``, RocketMQ 5.4.0): padded URL-safe base64 of
``v1 <topic> <broker name> <time, ms> <UNIQ_KEY>`` in UTF-8, with one blank between. The time is
TIMER_OUT_MS + 1, which falls into the same slot of the wheel as the message.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "RecallHandle",
    "decode_recall_handle",
    "encode_recall_handle",
    "encode_recall_handles",
    "recall_handle_head",
]

_VERSION: Final = "v1"
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")


class RecallHandle(NamedTuple):
    """The fields of a handle."""

    topic: str
    broker_name: str
    time_ms: int
    """A time in the slot of the message."""
    uniq_key: str


def encode_recall_handle(handle: RecallHandle) -> str:
    """Return the text of a handle."""
    head = recall_handle_head(handle.topic, handle.broker_name)
    return _encode(f"{head}{handle.time_ms} {handle.uniq_key}".encode())


def recall_handle_head(topic: str, broker_name: str) -> str:
    """Return how the handles of a topic begin; time, a blank and UNIQ_KEY follow."""
    return f"{_VERSION} {topic} {broker_name} "


def encode_recall_handles(texts: Sequence[str]) -> list[str]:
    """Return many handles, given the texts they encode.

    Texts of one run are usually equally long. They are then encoded as one text: each is filled up
    with zeros to whole groups of three bytes, and the padding replaces the zeros' characters.
    """
    width = len(texts[0])
    joined = "".join(texts)
    if not joined.isascii() or any(len(text) != width for text in texts):
        return [_encode(text.encode()) for text in texts]
    fill = -width % 3
    if fill:
        zeros = "\0" * fill
        joined = zeros.join(texts) + zeros
    encoded = _encode(joined.encode())
    step = (width + fill) // 3 * 4
    padding = "=" * fill
    return [
        encoded[start : start + step - fill] + padding
        for start in range(0, step * len(texts), step)
    ]


def _encode(raw: bytes) -> str:
    return binascii.b2a_base64(raw, newline=False).translate(_URL_SAFE).decode("latin-1")


def decode_recall_handle(text: str) -> RecallHandle:
    """Return the fields of a handle.

    Raises:
        CodecError: the text is no handle.
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
