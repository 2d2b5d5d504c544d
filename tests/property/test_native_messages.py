"""The native core and the Python text read the same from a pull answer, also from a damaged one."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cometmq import native
from cometmq.client.message import message as message_module
from cometmq.client.message.message import ReceivedMessage, split_messages
from cometmq.codec.stored_message import (
    MAGIC_V1,
    MAGIC_V2,
    StoredMessage,
    decode_message,
    encode_message,
)
from cometmq.errors import CometError
from cometmq.model import MessageQueue

pytestmark = pytest.mark.skipif(
    native.cut_messages is None, reason=f"there is nothing to compare: {native.describe()}"
)

QUEUE = MessageQueue("T", "broker-a", 3)
INT32 = st.integers(-(2**31), 2**31 - 1) | st.integers(0, 3)
INT64 = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3)
TOPICS = st.sampled_from(["T", "", "Größe", "%RETRY%g", "t" * 127, "t" * 128])
PROPERTIES = st.sampled_from(
    [
        b"TAGS\x01a\x02KEYS\x01k\x02",
        b"MYTAGS\x01no\x02TAGS\x01last",
        b"TAGS\x01a\x02TAGS\x01\x02KEYS\x01a b\x02KEYS\x01c\x02",
        b"TAGS\x02UNIQ_KEY\x01x\x01y\x02",
        b"KEYS\x01\xff\x02TAGS\x01\xc3\xbc\x02",
    ]
)
TRAP = struct.pack(">ii", 97, MAGIC_V1) + bytes(89)
"""A record whose other fields are zero: it is cut, but six bytes too long to be decoded."""


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """One record, of either version, between hosts of either kind, compressed or not."""
    sys_flag = draw(st.sampled_from([0, 0, 0, 1, 1 | 0x200, 0x10, 0x20, 0x30, 4, 8]))
    body = draw(st.binary(max_size=40))
    if sys_flag & 1:
        body = zlib.compress(body)
    topic = draw(TOPICS)
    magic = draw(st.sampled_from([None, None, MAGIC_V1, MAGIC_V2]))
    return encode_message(
        topic,
        body,
        draw(st.binary(max_size=30) | PROPERTIES),
        queue_id=draw(INT32),
        flag=draw(INT32),
        queue_offset=draw(INT64),
        physical_offset=draw(INT64),
        sys_flag=sys_flag,
        born_timestamp_ms=draw(INT64),
        born_host=draw(st.binary(min_size=20, max_size=20))[: 20 if sys_flag & 0x10 else 8],
        store_timestamp_ms=draw(INT64),
        store_host=draw(st.binary(min_size=20, max_size=20))[: 20 if sys_flag & 0x20 else 8],
        reconsume_times=draw(INT32),
        prepared_transaction_offset=draw(INT64),
        magic=None if len(topic.encode()) > 127 else magic,
    )


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """The body of a pull answer; half of them are damaged."""
    body = bytearray(b"".join(draw(st.lists(records(), max_size=4))))
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        if not body:
            break
        position = draw(st.integers(0, len(body) - 1))
        kind = draw(st.integers(0, 4))
        if kind == 0:
            body[position] ^= 1 << draw(st.integers(0, 7))
        elif kind == 1:
            del body[position:]
        elif kind == 2:
            body[position:position] = draw(st.binary(max_size=9))
        elif kind == 3:
            # The fields that the cut reads: lengths, magic, flags.
            field = draw(st.sampled_from([0, 4, 36, 84]))
            body[field : field + 4] = struct.pack(">i", draw(INT32 | st.integers(80, 130)))
        else:
            del body[position : position + draw(st.integers(1, 9))]
    return bytes(body)


def outcome(work: Any) -> Any:
    """What a call gives, or the kind and the text of its error."""
    try:
        return work()
    except (CometError, UnicodeDecodeError) as error:
        return type(error), str(error)


def fields_of(message: ReceivedMessage) -> list[Any]:
    """Everything that a handler can read of a message, in this order."""
    whole = outcome(lambda: message.body)
    properties = [
        outcome(lambda: message.tags),
        outcome(lambda: message.keys),
        outcome(lambda: message.sandbox),
        outcome(lambda: message.message_id),
    ]
    record = outcome(lambda: message.stored)
    return [
        message.message_queue,
        message.queue_offset,
        message.size_bytes,
        message._position,
        whole,
        properties,
        record,
        type(record),
        outcome(lambda: message.body),  # from the record that is decoded now
    ]


def read(body: bytes) -> Any:
    """The fields of all messages of an answer, or its error."""
    messages = outcome(lambda: split_messages(body, QUEUE))
    return [fields_of(message) for message in messages] if type(messages) is list else messages


def in_python(monkeypatch: pytest.MonkeyPatch, body: bytes) -> Any:
    """The same without the core."""
    with monkeypatch.context() as patch:
        for name in (
            "_cut_natively",
            "_body_natively",
            "_property_natively",
            "_decode_natively",
        ):
            assert getattr(message_module, name) is not None
            patch.setattr(message_module, name, None)
        return read(body)


@given(answers())
@example(TRAP)
@example(TRAP * 2)
@example(b"")
@example(bytes(90))
def test_the_same_messages_and_the_same_faults(body: bytes) -> None:
    """Messages, bodies, records and errors are equal, whatever the bytes."""
    with pytest.MonkeyPatch.context() as patch:
        assert read(body) == in_python(patch, body)


def test_a_record_of_97_zeroes_is_one_message() -> None:
    """A record with a length and a magic only is cut, and its decoder says what is wrong."""
    assert native.cut_messages is not None
    messages = native.cut_messages(TRAP, QUEUE, ReceivedMessage)
    assert messages is not None
    (message,) = messages
    assert (message.queue_offset, message.size_bytes) == (0, 97)
    assert native.record_body is not None
    assert native.record_body(TRAP, 0) is None
    with pytest.raises(CometError, match="properties does not fit"):
        _ = message.body


def test_plain_records_take_the_native_way() -> None:
    """The core serves records of version 1 between IPv4 hosts, and stops at the others."""
    assert native.decode_record is not None
    assert native.record_body is not None
    plain = encode_message("T", b"body", b"TAGS\x01a\x02", queue_offset=7)
    compressed = encode_message("T", zlib.compress(b"body"), sys_flag=1)
    data = plain + compressed
    assert native.record_body(data, 0) == b"body"
    assert native.record_body(data, len(plain)) is None
    assert native.decode_record(data, 0, StoredMessage) == decode_message(data, 0)
    for other in (
        encode_message("t" * 128, b"body"),
        encode_message("T", b"body", sys_flag=0x10, born_host=bytes(20)),
        encode_message("ü", b"body"),
    ):
        assert native.decode_record(other, 0, StoredMessage) is None
        assert native.record_body(other, 0) is None


@pytest.mark.parametrize("position", [-1, 5])
def test_a_position_outside_the_buffer_is_refused(position: int) -> None:
    """A position that no caller has is an error, not a read."""
    assert native.record_body is not None
    with pytest.raises(ValueError, match="position is not in the buffer"):
        native.record_body(b"four", position)
