"""The stored message: test vector, both versions, IPv6 hosts, every way to be broken."""

import pytest

from cometmq.codec.crc import body_crc, encode_crc_tail
from cometmq.codec.ids import encode_host
from cometmq.codec.stored_message import (
    HEAD_V4,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    StoredMessage,
    decode_message,
    decode_messages,
    decode_messages_lenient,
    encode_message,
    properties_of,
    read_record_header,
    record_size,
)
from cometmq.errors import CodecError, LocalProtocolError

# docs/internals/protocol.md#test-vectors, vector 4, from the Java classes.
VECTOR = bytes.fromhex(
    "00000073daa320a73610a6860000000300000000000000000000002a00000000000003e800000000"
    "0000018bcfe568000a0000010000c3500000018bcfe568010a00000200002a9f0000000000000000"
    "000000000000000568656c6c6f09546f70696354657374000a54414753015461674102"
)


def encode_vector() -> bytes:
    """The vector from its parts."""
    return encode_message(
        "TopicTest",
        b"hello",
        b"TAGS\x01TagA\x02",
        queue_id=3,
        queue_offset=42,
        physical_offset=1000,
        born_timestamp_ms=1700000000000,
        born_host=encode_host("10.0.0.1:50000"),
        store_timestamp_ms=1700000000001,
        store_host=encode_host("10.0.0.2:10911"),
    )


def test_vector_is_written() -> None:
    """Our bytes are Java's."""
    assert encode_vector() == VECTOR


def test_vector_is_read() -> None:
    """Every field comes back, ids and addresses included."""
    message = decode_message(VECTOR, check_crc=True)
    assert (message.topic, message.body, message.properties) == (
        "TopicTest",
        b"hello",
        {"TAGS": "TagA"},
    )
    assert (message.queue_id, message.queue_offset, message.physical_offset) == (3, 42, 1000)
    assert (message.flag, message.sys_flag, message.reconsume_times) == (0, 0, 0)
    assert (message.born_timestamp_ms, message.store_timestamp_ms) == (
        1700000000000,
        1700000000001,
    )
    assert (message.born_address, message.store_address) == ("10.0.0.1:50000", "10.0.0.2:10911")
    assert message.offset_message_id == "0A00000200002A9F00000000000003E8"
    assert (message.total_size, message.magic, message.body_crc) == (115, MAGIC_V1, 907060870)
    assert message.prepared_transaction_offset == 0
    assert message.is_body_crc_right
    assert message.encode() == VECTOR
    assert message.properties is message.properties


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_and_position_will_do(kind: type) -> None:
    """Bytes, a mapping's memoryview and a bytearray give the same message."""
    buffer = kind(b"\xff" * 7 + VECTOR + b"\xee" * 5)
    message = decode_message(buffer, 7)
    assert message.encode() == VECTOR
    assert isinstance(message.body, bytes)
    assert read_record_header(buffer, 7).total_size == len(VECTOR)


def test_negative_numbers_survive() -> None:
    """Signs are part of the format: bit 31 and bit 63."""
    raw = encode_message(
        "t",
        b"",
        queue_id=-1,
        flag=-(2**31),
        queue_offset=-1,
        physical_offset=-(2**63),
        reconsume_times=-5,
        prepared_transaction_offset=2**63 - 1,
    )
    message = decode_message(raw)
    assert (message.queue_id, message.flag, message.queue_offset) == (-1, -(2**31), -1)
    assert (message.physical_offset, message.reconsume_times) == (-(2**63), -5)
    assert message.prepared_transaction_offset == 2**63 - 1


def test_long_topics_are_written_as_v2() -> None:
    """127 bytes fit V1, 128 do not; both are read."""
    short = encode_message("t" * 127, b"x")
    long = encode_message("t" * 128, b"x")
    chinese = encode_message("题" * 50, b"x")
    assert decode_message(short).magic == MAGIC_V1
    assert decode_message(long).magic == decode_message(chinese).magic == MAGIC_V2
    assert decode_message(chinese).topic == "题" * 50
    assert decode_message(long).encode() == long
    assert len(long) == record_size(1, 128, 0, is_v2=True) == len(short) + 2


@pytest.mark.parametrize(
    ("born", "store", "sys_flag"),
    [
        ("1.2.3.4:1", "[2001:db8::1]:10911", 0x20),
        ("[::1]:50000", "1.2.3.4:10911", 0x10),
        ("[::1]:50000", "[2001:db8::1]:10911", 0x30),
    ],
)
def test_ipv6_hosts_are_read(born: str, store: str, sys_flag: int) -> None:
    """Each wide host shifts what follows by 12 bytes (we never write one ourselves, T8)."""
    raw = encode_message(
        "topic",
        b"body",
        b"a\x011\x02",
        sys_flag=sys_flag,
        born_host=encode_host(born),
        store_host=encode_host(store),
        store_timestamp_ms=7,
        reconsume_times=3,
    )
    message = decode_message(b"\0" * 3 + raw, 3)
    assert (message.born_address, message.store_address) == (born, store)
    assert (message.store_timestamp_ms, message.reconsume_times) == (7, 3)
    assert message.encode() == raw
    assert len(raw) == record_size(4, 5, 4, sys_flag=sys_flag)
    header = read_record_header(raw)
    assert raw[header.body_position : header.body_position + header.body_bytes] == b"body"
    assert header.store_timestamp_ms == 7


def test_header_alone_says_where_the_body_is() -> None:
    """The store reads a record's head without copying its body."""
    header = read_record_header(VECTOR)
    assert header == (
        115,
        MAGIC_V1,
        907060870,
        3,
        0,
        42,
        1000,
        0,
        1700000000000,
        1700000000001,
        0,
        0,
        88,
        5,
    )


def patched(position: int, value: bytes) -> bytes:
    """The vector with some bytes replaced."""
    return VECTOR[:position] + value + VECTOR[position + len(value) :]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "0 bytes left"),
        (VECTOR[:50], "50 bytes left"),
        (VECTOR[:-1], "total size 115, only 114"),
        (patched(0, b"\x7f\xff\xff\xff"), "total size 2147483647"),
        (patched(0, b"\x00\x00\x00\x10"), "total size 16"),
        (patched(0, b"\xff\xff\xff\xff"), "total size -1"),
        (patched(0, b"\x00\x00\x00\x72"), "properties does not fit"),
        (patched(4, b"\xaa\xbb\xcc\xa7"), "magic 0xaabbcca7"),
        (patched(4, b"\xcb\xd4\x31\x94"), "magic 0xcbd43194"),
        (patched(84, b"\xff\xff\xff\xff"), "body does not fit"),
        (patched(84, b"\x7f\xff\xff\xff"), "body does not fit"),
        (patched(93, b"\x7f"), "topic does not fit"),
        (patched(93, b"\xff"), "topic does not fit"),
        (patched(94, b"\xff"), "not UTF-8"),
        (patched(103, b"\xff\xff"), "properties does not fit"),
        (patched(103, b"\x00\x09"), "properties does not fit"),
        (patched(36, b"\x00\x00\x00\x30"), "does not fit|fewer than"),
    ],
)
def test_broken_records_are_refused(raw: bytes, words: str) -> None:
    """One kind of error, which names the position and the field."""
    with pytest.raises(CodecError, match=words) as caught:
        decode_message(b"\0" * 9 + raw, 9)
    assert "position 9" in str(caught.value)


@pytest.mark.parametrize("size", [0, 4, 90])
def test_other_buffers_are_checked_as_well(size: int) -> None:
    """A memoryview that is too short is refused before it is copied."""
    with pytest.raises(CodecError, match="position 0"):
        decode_message(memoryview(VECTOR[:size]))
    with pytest.raises(CodecError):
        read_record_header(VECTOR[: min(size, 80)])


def test_negative_v2_topic_and_properties_lengths_are_refused() -> None:
    """Both lengths are signed shorts in Java."""
    raw = bytearray(encode_message("t" * 200, b"x" * 40000))
    position = 88 + 40000
    raw[position] = 0x80
    with pytest.raises(CodecError, match="topic does not fit"):
        decode_message(bytes(raw))
    total = 91 + 1 + 40000
    head = HEAD_V4.pack(total, MAGIC_V1, 0, 0, 0, 0, 0, 0, 0, bytes(8), 0, bytes(8), 0, 0, 0)
    raw = bytearray(head + b"\x01t" + (40000).to_bytes(2, "big") + b"p" * 40000)
    with pytest.raises(CodecError, match="properties does not fit"):
        decode_message(bytes(raw))


def test_wrong_body_crc_is_found_only_on_request() -> None:
    """The layout still holds, so a reader without the check delivers the message."""
    raw = patched(88, b"j")
    assert decode_message(raw).is_body_crc_right is False
    with pytest.raises(CodecError, match="body CRC"):
        decode_message(raw, check_crc=True)


def test_an_empty_body_is_not_checked() -> None:
    """Java writes 0 for it and older writers wrote anything."""
    raw = encode_message("t", b"", body_crc=5)
    assert decode_message(raw, check_crc=True).body_crc == 5


def test_crc_tail_covers_the_record() -> None:
    """The last 20 bytes of the properties, digits backwards."""
    properties = b"a\x011\x02"
    draft = encode_message("t", b"body", properties + encode_crc_tail(0))
    record = draft[:-20] + encode_crc_tail(body_crc(draft[:-20]))
    assert decode_message(record, check_crc=True).properties["a"] == "1"
    spoiled = bytearray(record)
    spoiled[50] ^= 1
    with pytest.raises(CodecError, match="whole record"):
        decode_message(bytes(spoiled), check_crc=True)


def test_many_records_are_read_in_order() -> None:
    """A pull answer is records back to back."""
    records = [encode_message("t", b"%d" % number, queue_offset=number) for number in range(5)]
    messages = decode_messages(b"".join(records))
    assert [message.queue_offset for message in messages] == [0, 1, 2, 3, 4]
    assert decode_messages(memoryview(b"".join(records)))[4].body == b"4"
    assert decode_messages(b"") == []
    with pytest.raises(CodecError, match=f"position {len(records[0])}"):
        decode_messages(records[0] + b"rest")


def test_lenient_reader_skips_one_bad_record() -> None:
    """The records around a bad one are delivered, and the bad one is reported."""
    good = encode_message("t", b"good")
    bad = bytearray(good)
    bad[91] = 0x7F
    bad[88 + 4] = 0x7F
    messages, broken = decode_messages_lenient(good + bytes(bad) + good)
    assert [message.body for message in messages] == [b"good", b"good"]
    assert [(item.position, item.size) for item in broken] == [(len(good), len(bad))]
    assert "topic does not fit" in broken[0].reason


def test_lenient_reader_gives_up_where_no_record_follows() -> None:
    """Without a length to trust the rest is one broken stretch."""
    good = encode_message("t", b"good")
    messages, broken = decode_messages_lenient(memoryview(good + b"\x00\x00\x00\x70garbage"))
    assert len(messages) == 1
    assert [(item.position, item.size) for item in broken] == [(len(good), 11)]
    assert decode_messages_lenient(b"") == ([], [])


def test_lenient_reader_skips_a_bad_last_record() -> None:
    """A bad record that ends with the buffer is reported with its own size."""
    good = encode_message("t", b"good")
    bad = bytearray(good)
    bad[88 + 4] = 0x7F
    messages, broken = decode_messages_lenient(good + bytes(bad))
    assert len(messages) == 1
    assert [(item.position, item.size) for item in broken] == [(len(good), len(bad))]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"topic": "t" * 40000}, "topic of 40000"),
        ({"topic": "t" * 128, "magic": MAGIC_V1}, "topic of 128"),
        ({"properties": b"p" * 32768}, "properties of 32768"),
        ({"sys_flag": 0x10}, "do not fit sysFlag"),
        ({"born_host": b"1234"}, "do not fit sysFlag"),
    ],
)
def test_what_does_not_fit_is_not_written(change: dict[str, object], words: str) -> None:
    """The writer refuses instead of truncating."""
    arguments: dict[str, object] = {"topic": "t", "body": b"", **change}
    with pytest.raises(LocalProtocolError, match=words):
        encode_message(**arguments)  # type: ignore[arg-type]


def test_smallest_record() -> None:
    """91 bytes with nothing in it, though no broker stores an empty topic."""
    raw = encode_message("", b"")
    assert len(raw) == RECORD_BYTES_MIN == 91
    assert isinstance(decode_message(raw), StoredMessage)


@pytest.mark.parametrize("topic", ["t", "t" * 128])
@pytest.mark.parametrize(("host", "sys_flag"), [("1.2.3.4:1", 0), ("[::1]:50000", 0x10)])
def test_properties_alone_are_those_of_the_record(topic: str, host: str, sys_flag: int) -> None:
    """Short and long topics, narrow and wide hosts."""
    raw = encode_message(
        topic, b"body", b"a\x011\x02", sys_flag=sys_flag, born_host=encode_host(host)
    )
    assert properties_of(raw) == b"a\x011\x02"


def test_lengths_that_lead_out_of_a_record_are_refused() -> None:
    """Of its topic and of its properties."""
    raw = encode_message("t", b"body", b"a\x011\x02")
    with pytest.raises(CodecError, match="before its properties do"):
        properties_of(raw[:-1])
    with pytest.raises(CodecError, match="lead out of it"):
        properties_of(raw[:86])


def test_a_header_that_is_none_is_refused() -> None:
    """Alone, as with the whole record."""
    with pytest.raises(CodecError, match="magic 0x00000000"):
        read_record_header(bytes(91))
