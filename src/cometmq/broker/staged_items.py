"""Blocks of staged messages: taken apart, checked, and read back from the log.

Job: what a block may hold, and its messages in the form the store appends.  It must not put
anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.broker.state import Refusal
from cometmq.codec.batch import decode_batch
from cometmq.codec.java_hash import tags_code
from cometmq.codec.properties import PROPERTIES_BYTES_MAX, find_property
from cometmq.codec.stored_message import decode_message
from cometmq.errors import ResponseCode, StoreCorrupt

if TYPE_CHECKING:
    from cometmq.broker.staged_tokens import StagedBlock
    from cometmq.store.message_store import MessageStore
    from cometmq.store.results import BatchItem

__all__ = ["StagedItems", "check_block", "read_block"]

_SPECIAL: Final = {
    b"TIMER_DELIVER_MS": "delivery at an exact time",
    b"TIMER_DELAY_MS": "delivery at an exact time",
    b"TIMER_DELAY_SEC": "delivery at an exact time",
    b"DELAY": "a delay level",
    b"TRAN_MSG": "a transaction",
}
"""Properties by which a broker treats a message otherwise, and what they ask for."""
_NOTHING_SPECIAL: Final = (None, b"0", b"false")


class StagedItems(msgspec.Struct):
    """The messages of a block, and where they came from."""

    items: list[BatchItem]
    born_ms: int
    born_host: bytes


def check_block(data: bytes) -> int:
    """How many messages a block has.

    Raises:
        CodecError: its lengths do not fit.
        Refusal: a message asks for something that a batch cannot give.
    """
    items = decode_batch(data)
    # One look at all of them: the usual block has none of these names in it anywhere.
    suspects = [name for name in _SPECIAL if name + b"\x01" in data]
    for number, (_, body, properties) in enumerate(items):
        if not body:
            raise _illegal(number, "it has no body; send at least one byte")
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise _illegal(
                number,
                f"its properties have {len(properties)} bytes, {PROPERTIES_BYTES_MAX} are allowed",
            )
        for name in suspects:
            if find_property(properties, name) not in _NOTHING_SPECIAL:
                raise _illegal(
                    number,
                    f"{_SPECIAL[name]} ({name.decode()}) is not supported for staged messages by "
                    "this version of CometMQ; send it with a Producer, or without",
                )
    return len(items)


def _illegal(number: int, why: str) -> Refusal:
    return Refusal(ResponseCode.MESSAGE_ILLEGAL, f"message {number} of the block is illegal: {why}")


def read_block(store: MessageStore, block: StagedBlock) -> StagedItems:
    """Read a block back from the log.  May block: for a worker.

    Raises:
        StoreCorrupt, CodecError: it is not there any more as it was.
    """
    found = store.message_at(block.physical_offset)
    if found is None:
        raise StoreCorrupt(
            f"no staged block is at physical offset {block.physical_offset} any more"
        )
    message = decode_message(found)
    # Equal property strings but for the id are the rule: one hash for each tag.
    codes: dict[bytes | None, int] = {None: 0}
    items: list[BatchItem] = []
    for flag, body, properties in decode_batch(bytes(message.body)):
        tags = find_property(properties, b"TAGS")
        code = codes.get(tags)
        if code is None:
            code = codes[tags] = tags_code(_text(tags))
        keys = (
            _text(find_property(properties, b"UNIQ_KEY")),
            _text(find_property(properties, b"KEYS")),
            _text(tags),
        )
        items.append((flag, body, properties, code, keys))
    return StagedItems(items, message.born_timestamp_ms, message.born_host)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
