"""Batch bodies: test vector and every way to be broken."""

import pytest

from cometmq.codec.batch import BATCH_ITEM_OVERHEAD_BYTES, decode_batch, encode_batch
from cometmq.errors import CodecError, LocalProtocolError

# docs/internals/protocol.md#test-vectors, vector 5.
VECTOR = bytes.fromhex("00000022000000000000000000000000000000026231000a54414753015461674102")


def test_vector_both_ways() -> None:
    """One message, flag 0."""
    items = [(0, b"b1", b"TAGS\x01TagA\x02")]
    assert encode_batch(items) == VECTOR
    assert decode_batch(VECTOR) == items
    assert BATCH_ITEM_OVERHEAD_BYTES + 2 + 10 == len(VECTOR) == 34


def test_many_items_keep_their_order_and_flags() -> None:
    """Empty bodies and properties are allowed."""
    items = [(7, b"", b""), (-1, b"x" * 300, b"p"), (0, b"y", b"q\x01r\x02")]
    assert decode_batch(encode_batch(items)) == items


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "empty"),
        (VECTOR[:10], "message 0 at byte 0"),
        (VECTOR[:-1], "message 0 at byte 0"),
        (VECTOR + b"\0" * 5, "message 1 at byte 34"),
        (VECTOR + b"\0" * 30, "message 1 at byte 34"),
        (b"\xff" * 40, "message 0"),
        (VECTOR[:16] + b"\xff\xff\xff\xff" + VECTOR[20:], "body -1"),
        (VECTOR[:16] + b"\x00\x00\x00\x0d" + VECTOR[20:], "body 13"),
        (VECTOR[:22] + b"\x00\x09" + VECTOR[24:], "properties 9"),
        (b"plain body, flagged as a batch by mistake", "message 0"),
    ],
)
def test_broken_bodies_are_refused(raw: bytes, words: str) -> None:
    """Java answers a buffer underflow; we name the message and the byte."""
    with pytest.raises(CodecError, match=words):
        decode_batch(raw)


def test_too_many_properties_are_not_written() -> None:
    """The length is a signed short."""
    with pytest.raises(LocalProtocolError, match="message 1 of the batch"):
        encode_batch([(0, b"", b""), (0, b"", b"p" * 32768)])
