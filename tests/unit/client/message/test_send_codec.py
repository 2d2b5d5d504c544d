"""What a send is made of: checks with words, properties, frames, answers."""

from itertools import count
from random import Random

import pytest

from cometmq.client.message.send_codec import SendCodec, is_retriable
from cometmq.codec.batch import decode_batch
from cometmq.codec.properties import decode_properties
from cometmq.errors import (
    LocalProtocolError,
    NoPermission,
    RemoteError,
    RemoteProtocolError,
    ResponseCode,
)
from cometmq.model import Message, MessageQueue, SendStatus
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.frame.framing import decode_frame
from cometmq.wire.header.headers import SendMessageHeader

QUEUE = MessageQueue("t", "broker-a", 2)


def codec(**options: object) -> SendCodec:
    numbers = count(1)
    return SendCodec("pg", lambda: f"ID{next(numbers)}", lambda: 123, **options)  # type: ignore[arg-type]


def header_of(made: SendCodec, message: Message) -> tuple[SendMessageHeader, RemotingCommand]:
    command = decode_frame(made.frame(made.prepare(message), QUEUE, 77))
    return SendMessageHeader.from_command(command), command


def test_a_frame_says_all_of_the_message() -> None:
    """Header fields, properties and body as a Java producer would send them."""
    header, command = header_of(
        codec(),
        Message(
            "t",
            b"body",
            tags="TagA",
            keys=("k1", "k2"),
            properties={"city": '北"京'},
            flag=5,
            delay_level=3,
            message_group="g",
        ),
    )
    assert (command.code, command.opaque, command.flag, command.body) == (310, 77, 0, b"body")
    assert (header.producer_group, header.topic, header.queue_id) == ("pg", "t", 2)
    assert (header.default_topic, header.default_topic_queue_nums) == ("TBW102", 4)
    assert (header.born_timestamp_ms, header.flag, header.sys_flag) == (123, 5, 0)
    assert decode_properties(header.properties or "") == {
        "UNIQ_KEY": "ID1",
        "WAIT": "true",
        "TAGS": "TagA",
        "KEYS": "k1 k2",
        "DELAY": "3",
        "__SHARDINGKEY": "g",
        "city": '北"京',
    }
    assert command.ext_fields["n"] == "broker-a"


def test_an_exact_time_is_a_property() -> None:
    """``deliver_time_ms`` is RocketMQ's TIMER_DELIVER_MS; no level stands beside it."""
    header, _ = header_of(codec(), Message("t", b"x", deliver_time_ms=1_700_000_000_123))
    properties = decode_properties(header.properties or "")
    assert properties["TIMER_DELIVER_MS"] == "1700000000123"
    assert "DELAY" not in properties


def test_keys_as_text_and_no_wait() -> None:
    """``keys`` may be one string; ``wait_store_ok=False`` reaches the broker."""
    header, _ = header_of(codec(), Message("t", b"x", keys="k9", wait_store_ok=False))
    properties = decode_properties(header.properties or "")
    assert (properties["KEYS"], properties["WAIT"]) == ("k9", "false")


@pytest.mark.parametrize(("kind", "flag"), [("zlib", 0x301), ("LZ4", 0x101), ("ZSTD", 0x201)])
def test_large_bodies_are_compressed(kind: str, flag: int) -> None:
    """From 4,096 bytes on, with the bits that name the algorithm."""
    made = codec(compression=kind)
    assert made.prepare(Message("t", b"y" * 4096)).sys_flag == flag
    assert made.prepare(Message("t", b"y" * 4095)).sys_flag == 0


def test_compression_that_does_not_help_is_left_out() -> None:
    """Random bytes travel as they are."""
    body = Random(5).randbytes(5000)
    prepared = codec().prepare(Message("t", body))
    assert (prepared.body, prepared.sys_flag) == (body, 0)


def test_properties_over_the_limit_are_refused_in_words() -> None:
    """Before anything is sent."""
    with pytest.raises(LocalProtocolError, match="limit is 32767"):
        codec().prepare(Message("t", b"x", properties={"a": "v" * 33_000}))


def test_an_empty_body_is_a_message() -> None:
    """Tombstones need it: alone and in a batch; RocketMQ's broker refuses it, and that is told."""
    made = codec()
    prepared = made.prepare(Message("t", b"", keys="k"))
    assert (prepared.body, prepared.sys_flag) == (b"", 0)
    assert made.batch_item(Message("t", b""))[0][1] == b""
    refused = answer(ResponseCode.MESSAGE_ILLEGAL)
    failed = RemotingCommand.response(1, "java.lang.NullPointerException: Cannot read", {})
    with pytest.raises(RemoteError, match="stores no message with an empty body") as final:
        made.result(prepared, QUEUE, failed)
    assert not is_retriable(final.value.code)
    with pytest.raises(RemoteError, match=r"stores no message with an empty body.*why"):
        made.result(prepared, QUEUE, refused)
    with pytest.raises(RemoteError) as plain:
        made.result(made.prepare(Message("t", b"x")), QUEUE, refused)
    assert "empty" not in str(plain.value)


def test_bodies_over_the_limit() -> None:
    """The limit counts what would travel, so a body that compresses well may be larger."""
    made = codec(message_bytes_max=5000)
    assert made.prepare(Message("t", b"z" * 60_000)).sys_flag
    noise = Random(5).randbytes(5001)
    with pytest.raises(LocalProtocolError, match="5001 bytes; the limit is 5000"):
        made.prepare(Message("t", noise))
    with pytest.raises(LocalProtocolError, match="in a batch"):
        made.batch_item(Message("t", noise))


def test_other_byte_types_are_taken() -> None:
    """bytearray and memoryview are bytes to a user."""
    assert codec().prepare(Message("t", bytearray(b"x"))).body == b"x"  # type: ignore[arg-type]
    assert codec().prepare(Message("t", memoryview(b"x"))).body == b"x"  # type: ignore[arg-type]


def test_a_batch_travels_as_320() -> None:
    """Items back to back, the batch mark set, each with its own id."""
    made = codec()
    pairs = [made.batch_item(Message("t", b"%d" % number, tags="a")) for number in range(3)]
    prepared = made.prepare_batch("t", [item for item, _ in pairs], ",".join(i for _, i in pairs))
    command = decode_frame(made.frame(prepared, QUEUE, 1))
    header = SendMessageHeader.from_command(command)
    assert (command.code, header.batch) == (320, True)
    items = decode_batch(command.body)
    assert [body for _, body, _ in items] == [b"0", b"1", b"2"]
    assert [decode_properties(raw)["UNIQ_KEY"] for _, _, raw in items] == ["ID1", "ID2", "ID3"]


def answer(code: int = 0, **ext: str) -> RemotingCommand:
    return RemotingCommand.response(code, "why", ext)


GOOD = {"msgId": "A", "queueId": "2", "queueOffset": "9"}


@pytest.mark.parametrize("code", [0, 10, 11, 12])
def test_stored_is_a_result_whatever_the_flush(code: int) -> None:
    """10, 11 and 12 are statuses, not exceptions."""
    made = codec()
    result = made.result(made.prepare(Message("t", b"x")), QUEUE, answer(code, **GOOD))
    assert (result.status, result.queue_offset, result.offset_message_id) == (
        SendStatus(code),
        9,
        "A",
    )
    assert (result.message_id, result.message_queue) == ("ID1", QUEUE)


def test_the_broker_may_choose_the_queue() -> None:
    """The result names the queue that was used."""
    made = codec()
    result = made.result(
        made.prepare(Message("t", b"x")), QUEUE, answer(0, **{**GOOD, "queueId": "5"})
    )
    assert result.message_queue == MessageQueue("t", "broker-a", 5)


def test_refusals_and_nonsense_are_exceptions() -> None:
    """A code becomes its class; an answer without its fields is no answer."""
    made = codec()
    prepared = made.prepare(Message("t", b"x"))
    with pytest.raises(NoPermission, match="why"):
        made.result(prepared, QUEUE, answer(16))
    with pytest.raises(RemoteProtocolError):
        made.result(prepared, QUEUE, answer(0, msgId="A"))
    with pytest.raises(NoPermission):
        made.batch_results(["ID1"], QUEUE, answer(16))
    assert is_retriable(2)
    assert not is_retriable(13)


def test_batch_results_are_one_per_message() -> None:
    """Offsets count up from the first; an inner batch has one id for all."""
    made = codec()
    results = made.batch_results(["I", "J"], QUEUE, answer(0, **{**GOOD, "msgId": "A,B"}))
    assert [(r.message_id, r.queue_offset, r.offset_message_id) for r in results] == [
        ("I", 9, "A"),
        ("J", 10, "B"),
    ]
    inner = made.batch_results(["I", "J"], QUEUE, answer(0, **{**GOOD, "queueId": "1"}))
    assert [(r.message_queue.queue_id, r.offset_message_id) for r in inner] == [(1, "A"), (1, "A")]
