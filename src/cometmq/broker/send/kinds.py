"""The kinds of messages that producers send, and what a message is on its way into the store.

A plain message goes into its own queue.  The other kinds wait somewhere else first: delayed and
timed messages, half messages, staged blocks.  Each is a `SendKind` in its own room, given to the
pipeline (`send.py`) by the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from cometmq.broker.send.shapes import Keys, remember_shapes
from cometmq.codec.java_hash import tags_code as hash_tags
from cometmq.codec.properties import PROPERTIES_BYTES_MAX
from cometmq.store.base.results import PutItem, PutResult
from cometmq.wire.header.headers import SendMessageHeader

__all__ = [
    "CHECK_BYTES_MAX",
    "PLAIN",
    "Destination",
    "Prepared",
    "Send",
    "SendKind",
    "Shape",
    "make_property_reader",
    "waits_for_flush",
]

CHECK_BYTES_MAX: Final = 100
"""What the checks of a transaction add to the properties of its half message, and the delivery of
a timed message to its own."""


Prepared = tuple[str, int, int, bytes]
"""Topic, queue and tags code under which a message is stored, and what is added to its properties,
behind those of the producer and of the broker."""


class SendKind:
    """One kind of message: plain here, the others derive from it."""

    mark: str = ""
    """Name and separator of the property that makes a message one of this kind."""
    is_varying: bool = False
    """Whether the value of that property differs from message to message."""
    is_transactional: bool = False
    dropped: tuple[str, ...] = ()
    """Properties that a producer cannot set, or that have no meaning for this kind."""
    properties_bytes_max: int = PROPERTIES_BYTES_MAX

    def is_open(self) -> bool:
        """Whether messages of this kind are stored without the checks, if they look sound."""
        return True

    def parse(self, value: str, text: str) -> Any:
        """Read the value of the mark, of a property string; None leaves it to the checks."""
        return None

    def check(self, header: SendMessageHeader, target: Destination, now_ms: int) -> None:
        """Make `target` one of this kind if its properties ask for it.

        Kinds are asked in the order of RocketMQ's checks; `target.kind` is what an earlier one has
        made of it.

        Raises:
            Refusal: the message cannot be what it asks for.
        """

    def prepare(
        self, topic: str, queue_id: int, shape: Shape, uniq_key: str, now_ms: int
    ) -> Prepared | None:
        """Return where a message for a queue is stored; None leaves it to the checks.  HOT."""
        return topic, queue_id, shape.tags_code, b""

    def stored(
        self, sends: Sequence[Send], results: Sequence[PutResult], born_host: bytes, now_ms: int
    ) -> Sequence[str] | None:
        """Take note of messages that were stored: the first `len(results)` of `sends`.

        Returns the recall handles of messages that have one.
        """
        return None


PLAIN: Final = SendKind()


class Shape(msgspec.Struct, gc=False, frozen=True):
    """What messages with alike properties have in common."""

    kind: SendKind
    tags: str | None
    tags_code: int
    is_flush_awaited: bool
    """Whether the producer waits for a synchronous flush (WAIT is not false)."""
    detail: Any = None
    """What the kind has parsed, or checked."""


_NO_SHAPE: Final = Shape(PLAIN, None, 0, is_flush_awaited=True)


class Send(PutItem, gc=False):
    """A message on its way: what is stored, for which queue it is, and who waits for an answer."""

    request: Any = None
    """The `RemotingCommand` or `SendCommand` to be answered; None for a message of the broker."""
    uniq_key: str = ""
    shape: Shape = _NO_SHAPE
    real_topic: str = ""
    real_queue_id: int = 0
    """Where the message is delivered; `topic` and `queue_id` are where it waits until then."""


@dataclass(slots=True)
class Destination:
    """Where a checked message goes, and with which properties."""

    topic: str
    queue_id: int
    properties: dict[str, str] = field(default_factory=dict)
    kind: SendKind = PLAIN
    detail: Any = None
    reason: str = ""
    """Why it waits, for refusals: "delay level 3"."""


def make_property_reader(
    kinds: Sequence[SendKind],
) -> Callable[[str], tuple[Keys, Shape] | None]:
    """Build the function that finds keys and shape of a property string, with a memory of shapes.

    The string has to end with a separator.  None: it needs the checks.
    """

    def parse(text: str) -> tuple[Keys, Shape] | None:
        kind = next((kind for kind in kinds if kind.mark in text), None)
        if kind is None:
            return _parse_plain(text)
        before, _, after = text.partition(kind.mark)
        value, _, rest = after.partition("\x02")
        if before[-1:] not in ("", "\x02") or "REAL_" in text:
            return None
        # Without the mark it is as good as a plain message, or it is not for this way.
        plain = read(before + rest)
        if plain is None or plain[1].kind is not PLAIN:
            return None
        detail = kind.parse(value, text)
        if detail is None:
            return None
        keys, shape = plain
        return keys, Shape(kind, shape.tags, shape.tags_code, shape.is_flush_awaited, detail)

    read = remember_shapes(parse, tuple(kind.mark for kind in kinds if kind.is_varying))
    return read


def _parse_plain(text: str) -> tuple[Keys, Shape] | None:
    """Parse any property string, of which the last of two equal names counts."""
    # Written out: producers whose own properties always differ come here with every message.
    at = text.rfind("UNIQ_KEY\x01")
    # With the separator at the end, text[at - 1] is one also where a name comes first.
    if (
        at < 0
        or text[at - 1] != "\x02"
        or "DELAY" in text
        or "TRAN_MSG" in text
        or "TIMER_" in text
        or "POP_CK" in text
    ):
        return None
    uniq_key = text[at + 9 : text.find("\x02", at)]
    tags = keys = None
    code = 0
    at = text.rfind("TAGS\x01")
    if at >= 0:
        if text[at - 1] != "\x02":
            return None
        tags = text[at + 5 : text.find("\x02", at)]
        code = hash_tags(tags)
    at = text.rfind("KEYS\x01")
    if at >= 0:
        if text[at - 1] != "\x02":
            return None
        keys = text[at + 5 : text.find("\x02", at)]
    # An empty value is no value, and then an earlier entry of the same name counts.
    if not uniq_key or keys == "" or tags == "":
        return None
    return (uniq_key, keys, tags), Shape(PLAIN, tags, code, waits_for_flush(text))


def waits_for_flush(text: str) -> bool:
    """Whether the sender waits for a synchronous flush: its last WAIT is not false.

    Names that only end alike ("AWAIT") are the sender's own and must not cost durability.
    """
    _, name, rest = f"\x02{text}".rpartition("\x02WAIT\x01")
    return not name or rest.partition("\x02")[0] != "false"
