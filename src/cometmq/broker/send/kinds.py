"""The kinds of messages that producers send, and the shape of a message on its way into the store.

A plain message goes into its own queue.  The other kinds wait somewhere else first, and each is a
`SendKind` in its own room: delayed messages (`delay.levels`), timed messages (`delay.wheel`), half
messages (`transaction`), staged blocks (`extensions.staging`).

A property says that a message is delayed, timed or half, so the broker gives these kinds to the
pipeline (`send.py`), which finds them.  A request of its own stages a block: its service hands the
block to the pipeline with its kind (`Destination.kind`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import msgspec

from cometmq.codec.java_hash import tags_code as hash_tags
from cometmq.codec.properties import PROPERTIES_BYTES_MAX
from cometmq.store.base.results import PutItem, PutResult
from cometmq.wire.header.headers import SendMessageHeader

__all__ = [
    "CHECK_BYTES_MAX",
    "PLAIN",
    "Destination",
    "Keys",
    "Prepared",
    "Send",
    "SendKind",
    "Shape",
    "make_property_reader",
    "real_entries",
    "waits_for_flush",
]

CHECK_BYTES_MAX: Final = 100
"""The most that check-back adds to the properties of a half message, and delivery to those of a
timed message."""

Keys = tuple[str, str | None, str | None]
"""UNIQ_KEY, KEYS and TAGS."""
Prepared = tuple[str, int, int, bytes]
"""Topic, queue and tags code under which a message is stored, and the properties that are added
behind those of the producer and of the broker."""


class SendKind:
    """One kind of message.  This class is the plain kind, and the others derive from it.

    A message of a kind is found in two ways.  The fast way, for properties that need no check:
    `mark`, `is_open`, `parse`, and `needs_checks` for a varying kind.  The way with all checks:
    `check`.  Both go on with `prepare` and, once the message is stored, `stored`.
    """

    mark: str = ""
    """Name and separator of the property that makes a message one of this kind."""
    is_varying: bool = False
    """Whether the value of that property differs from message to message."""
    is_transactional: bool = False
    dropped: tuple[str, ...] = ()
    """Properties that the checks remove: a producer cannot set them, or they mean nothing here."""
    properties_bytes_max: int = PROPERTIES_BYTES_MAX

    def is_open(self) -> bool:
        """Whether messages of this kind may go the fast way at present."""
        return True

    def parse(self, value: str, text: str) -> Any:
        """Return the detail of a shape from the value of the mark; None leaves it to the checks.

        `text` is the whole property string.
        """
        return None

    def needs_checks(self, shape: Shape, now_ms: int) -> bool:
        """Whether a parsed message of a varying kind goes through the checks at this time."""
        return False

    def check(self, header: SendMessageHeader, target: Destination, now_ms: int) -> None:
        """Make `target` one of this kind if its properties ask for it.

        Kinds are asked in the order of RocketMQ's checks; `target.kind` is the kind that an earlier
        one has given it.

        Raises:
            Refusal: the message cannot be what it asks for.
        """

    def prepare(
        self, topic: str, queue_id: int, shape: Shape, uniq_key: str, now_ms: int
    ) -> Prepared:
        """Return where a message for a queue is stored.  HOT."""
        return topic, queue_id, shape.tags_code, b""

    def stored_properties(self, properties: bytes) -> bytes:
        """Return the properties as they are stored.  HOT."""
        return properties

    def stored(
        self, sends: Sequence[Send], results: Sequence[PutResult], born_host: bytes, now_ms: int
    ) -> Sequence[str] | None:
        """Take note of messages that were stored: the first `len(results)` of `sends`.

        Returns the recall handles of messages that have one.
        """
        return None


PLAIN: Final = SendKind()


class Shape(msgspec.Struct, gc=False, frozen=True):
    """What messages have in common whose properties differ in UNIQ_KEY and KEYS only."""

    kind: SendKind
    tags: str | None
    tags_code: int
    is_flush_awaited: bool
    """Whether the producer waits for a synchronous flush (WAIT is not false)."""
    detail: Any = None
    """What `SendKind.parse` or `SendKind.check` has found out."""


_NO_SHAPE: Final = Shape(PLAIN, None, 0, is_flush_awaited=True)


class Send(PutItem, gc=False):
    """A message on its way: what is stored, for which queue, and the request to answer."""

    request: Any = None
    """The `RemotingCommand` or `SendCommand` to be answered; None for a message of the broker."""
    uniq_key: str = ""
    shape: Shape = _NO_SHAPE
    real_topic: str = ""
    real_queue_id: int = 0
    """Where the message is delivered; `topic` and `queue_id` are where it waits until then."""


@dataclass(slots=True)
class Destination:
    """Where a checked message goes, with which properties, and as which kind."""

    topic: str
    queue_id: int
    properties: dict[str, str] = field(default_factory=dict)
    kind: SendKind = PLAIN
    detail: Any = None
    reason: str = ""
    """Why the message waits, for refusals: "delay level 3"."""


PropertyReader = Callable[[str], tuple[Keys, "Shape"] | None]
"""Returns keys and shape of a property string that ends with a separator; None leaves the message
to the checks."""


def make_property_reader(kinds: Sequence[SendKind]) -> PropertyReader:
    """Build a reader of property strings of any kind."""

    def read(text: str) -> tuple[Keys, Shape] | None:
        plain = _parse_plain(text)
        if plain is not None:
            return plain
        for kind in kinds:
            if kind.mark in text:
                return _parse_kind(kind, read, text)
        return None

    return read


def _parse_kind(kind: SendKind, read: PropertyReader, text: str) -> tuple[Keys, Shape] | None:
    """Parse a property string of one kind; `read` reads the string without the mark."""
    before, mark, after = text.partition(kind.mark)
    value, _, rest = after.partition("\x02")
    if not mark or before[-1:] not in ("", "\x02") or "REAL_" in text:
        return None
    # Without the mark it must read as a plain message; a message of two kinds needs the checks.
    plain = read(before + rest)
    if plain is None or plain[1].kind is not PLAIN:
        return None
    detail = kind.parse(value, text)
    if detail is None:
        return None
    keys, shape = plain
    return keys, Shape(kind, shape.tags, shape.tags_code, shape.is_flush_awaited, detail)


def _parse_plain(text: str) -> tuple[Keys, Shape] | None:
    """Parse the property string of a plain message; the last of two equal names counts."""
    # Written out: every message comes here.
    at = text.rfind("UNIQ_KEY\x01")
    # The string ends with a separator, so text[at - 1] is one for the first name too.
    if (
        at < 0
        or text[at - 1] != "\x02"
        or "DELAY" in text
        or "TRAN_MSG" in text
        or "TIMER_" in text
        or "POP_CK" in text
        or "PRODUCER_SEQ" in text
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


@lru_cache(maxsize=1024)
def real_entries(topic: str, queue_id: int) -> bytes:
    """Return the properties that say to which queue a waiting message goes."""
    return f"REAL_TOPIC\x01{topic}\x02REAL_QID\x01{queue_id}\x02".encode()


def waits_for_flush(text: str) -> bool:
    """Whether the sender waits for a synchronous flush: its last WAIT is not false.

    A name that only ends alike ("AWAIT") is the sender's own and must not cost durability.
    """
    _, name, rest = f"\x02{text}".rpartition("\x02WAIT\x01")
    return not name or rest.partition("\x02")[0] != "false"
