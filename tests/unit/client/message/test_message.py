"""Received messages: cutting an answer, fields on demand, damage named by position."""

import re

import pytest

from cometmq.client.message.message import ReceivedMessage, split_messages
from cometmq.codec.compression import compress
from cometmq.codec.ids import encode_host
from cometmq.codec.properties import encode_properties
from cometmq.codec.stored_message import encode_message
from cometmq.errors import CodecError
from cometmq.model import MessageQueue

QUEUE = MessageQueue("t", "broker-a", 3)
HOST = encode_host("10.0.0.2:10911")


def record(
    body: bytes = b"hello",
    topic: str = "t",
    *,
    sys_flag: int = 0,
    offset: int = 7,
    **properties: str,
) -> bytes:
    return encode_message(
        topic,
        body,
        encode_properties(properties),
        queue_id=3,
        flag=9,
        queue_offset=offset,
        physical_offset=1000,
        sys_flag=sys_flag,
        born_timestamp_ms=1,
        born_host=encode_host("10.0.0.1:5000"),
        store_timestamp_ms=2,
        store_host=HOST,
        reconsume_times=4,
    )


def only(raw: bytes) -> ReceivedMessage:
    (message,) = split_messages(raw, QUEUE)
    return message


def test_all_fields_of_a_plain_message() -> None:
    """Each field under its readable name."""
    message = only(
        record(TAGS="TagA", KEYS="k1 k2", UNIQ_KEY="ID", DELAY="3", __SHARDINGKEY="g", city="北京")
    )
    assert (message.body, message.tags, message.keys) == (b"hello", "TagA", ("k1", "k2"))
    assert (message.topic, message.broker_name, message.queue_id) == ("t", "broker-a", 3)
    assert (message.queue_offset, message.physical_offset) == (7, 1000)
    assert (message.message_id, message.offset_message_id) == (
        "ID",
        "0A00000200002A9F00000000000003E8",
    )
    assert (message.delay_level, message.message_group) == (3, "g")
    assert (message.born_host, message.store_host) == ("10.0.0.1:5000", "10.0.0.2:10911")
    assert (message.born_timestamp_ms, message.store_timestamp_ms) == (1, 2)
    assert (message.reconsume_times, message.flag, message.sys_flag) == (4, 9, 0)
    assert message.properties["city"] == "北京"
    assert repr(message) == (
        "<ReceivedMessage t@broker-a:3 at 7: ID, keys ('k1', 'k2'), tag TagA, 5 B>"
    )


def test_a_message_shows_its_id_key_and_tag() -> None:
    """Its repr named a queue and a size only; a damaged record is shown too, with its damage."""
    raw = bytearray(record(TAGS="TagA", KEYS="k1", UNIQ_KEY="ID"))
    assert {"ID", "k1", "TagA"} <= set(re.findall(r"\w+", repr(only(bytes(raw)))))
    raw[84:88] = b"\x7f\xff\xff\xff"
    assert "does not fit" in repr(only(bytes(raw)))


def test_the_time_it_was_to_be_delivered_at() -> None:
    """As sent, or as a broker that held it left it."""
    assert only(record(TIMER_DELIVER_MS="17")).deliver_time_ms == 17
    assert only(record(TIMER_OUT_MS="18")).deliver_time_ms == 18
    assert only(record()).deliver_time_ms is None


def test_a_message_without_properties() -> None:
    """No tag, no key, no group; the broker's id stands in for the unique one."""
    message = only(record())
    assert (message.tags, message.keys, message.message_group) == (None, (), None)
    assert message.delay_level == 0
    assert message.message_id == message.offset_message_id


def test_a_retried_message_shows_its_own_topic() -> None:
    """The wire has the retry topic; users think in the topic they sent to."""
    assert only(record(topic="%RETRY%g", RETRY_TOPIC="orders")).topic == "orders"
    assert only(record(topic="%RETRY%g")).topic == "%RETRY%g"


@pytest.mark.parametrize("kind", ["ZLIB", "LZ4", "ZSTD"])
def test_bodies_are_decompressed(kind: str) -> None:
    """Whatever the producer chose, the handler sees what was sent."""
    packed, flag = compress(b"x" * 9000, kind)
    message = only(record(packed, sys_flag=flag))
    assert message.body == b"x" * 9000
    assert message.body is message.body


def test_many_records_are_cut_in_order() -> None:
    """Sizes and offsets without decoding."""
    raw = b"".join(record(b"b" * number, offset=number) for number in range(1, 5))
    messages = split_messages(raw, QUEUE)
    assert [message.queue_offset for message in messages] == [1, 2, 3, 4]
    assert sum(message.size_bytes for message in messages) == len(raw)
    assert [len(message.body) for message in messages] == [1, 2, 3, 4]
    assert split_messages(b"", QUEUE) == []


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda raw: raw[:-1], "only"),
        (lambda raw: raw[:40], "40 bytes left"),
        (lambda raw: raw[:4] + b"\0\0\0\0" + raw[8:], "magic"),
        (lambda raw: b"\xff" * 4 + raw[4:], "total size -1"),
        (lambda raw: raw + b"\0", "1 bytes left"),
    ],
)
def test_damage_is_named(spoil, fault: str) -> None:  # type: ignore[no-untyped-def]
    """One error type, with the position."""
    with pytest.raises(CodecError, match=fault):
        split_messages(spoil(record()), QUEUE)
