"""Prepared frames say what the ordinary writer says."""

import pytest

from cometmq.errors import LocalProtocolError
from cometmq.wire.command.command import BINARY, JSON
from cometmq.wire.frame.framing import decode_frame
from cometmq.wire.header.fast_encode import (
    PullRequestTemplate,
    SendRequestTemplate,
    SendResponseEncoder,
    encode_pull_response,
)
from cometmq.wire.header.headers import (
    PullMessageHeader,
    PullResponseHeader,
    SendMessageHeader,
    SendResponseHeader,
)

MESSAGE_ID = "7F0000010000A0330000000000010CD8"
UNIQ_KEY = "0A4D000218B130946E0969AF0CE10000"


@pytest.mark.parametrize("serialize_type", [JSON, BINARY])
@pytest.mark.parametrize("uniq_key", [UNIQ_KEY, "0A-4D", 'x"y', "键", "", None])
def test_send_answers(serialize_type: int, uniq_key: str | None) -> None:
    """Any unique id a client made up comes back as it was."""
    encoder = SendResponseEncoder()
    frame = encoder.encode(-3, serialize_type, 2, 123456789012, MESSAGE_ID, uniq_key)
    command = decode_frame(frame)
    assert (command.code, command.opaque, command.flag, command.remark) == (0, -3, 1, None)
    assert (command.language, command.version) == ("PYTHON", 493)
    assert command.serialize_type == serialize_type
    header = SendResponseHeader.from_command(command)
    assert (header.msg_id, header.queue_id, header.queue_offset) == (MESSAGE_ID, 2, 123456789012)
    expected = uniq_key if serialize_type == JSON else uniq_key or None
    assert header.transaction_id == expected
    assert (header.region, header.trace_on) == ("DefaultRegion", True)


def test_other_send_answers() -> None:
    """A status that is not OK, a recall handle, a refusal, a region to be escaped."""
    encoder = SendResponseEncoder('re"gion', trace_on=False)
    command = decode_frame(
        encoder.encode_full(
            1, JSON, 10, 0, 5, MESSAGE_ID, UNIQ_KEY, remark="flush timed out", recall_handle="h"
        )
    )
    assert (command.code, command.remark) == (10, "flush timed out")
    header = SendResponseHeader.from_command(command)
    assert (header.recall_handle, header.region, header.trace_on) == ("h", 're"gion', False)
    fast = decode_frame(encoder.encode(1, JSON, 0, 5, MESSAGE_ID, UNIQ_KEY))
    assert fast.ext_fields["MSG_REGION"] == 're"gion'
    refusal = decode_frame(encoder.encode_refusal(2, JSON, 17, "no topic"))
    assert (refusal.code, refusal.remark) == (17, "no topic")
    assert refusal.ext_fields == {"MSG_REGION": 're"gion', "TRACE_ON": "false"}


@pytest.mark.parametrize("serialize_type", [JSON, BINARY])
@pytest.mark.parametrize("remark", ["FOUND", None, 'odd "remark"'])
def test_pull_answers(serialize_type: int, remark: str | None) -> None:
    """Head and chunks make one frame with the six fields Java sends."""
    chunks = [memoryview(b"one"), memoryview(b"three")]
    parts = encode_pull_response(
        7,
        serialize_type,
        0,
        remark,
        10,
        2,
        2**40,
        chunks,
        8,
        suggest_which_broker_id=1,
        topic_sys_flag=2,
        group_sys_flag=3,
    )
    assert parts[1:] == chunks
    command = decode_frame(b"".join(parts))
    assert (command.code, command.opaque, command.remark) == (0, 7, remark)
    assert command.body == b"onethree"
    assert PullResponseHeader.from_command(command) == PullResponseHeader(
        1, 10, 2, 2**40, None, 2, 3
    )


def test_pull_answers_without_messages() -> None:
    """19, 20 and 21 are a head alone."""
    (frame,) = encode_pull_response(7, JSON, 19, "NO_MESSAGE_IN_QUEUE", 0, 0, 0)
    assert decode_frame(bytes(frame)).code == 19
    with pytest.raises(LocalProtocolError, match="longer than"):
        encode_pull_response(7, JSON, 0, "FOUND", 0, 0, 0, [], 2**24)


@pytest.mark.parametrize(("is_batch", "is_reply", "code"), [(0, 0, 310), (1, 0, 320), (0, 1, 325)])
def test_send_requests(is_batch: int, is_reply: int, code: int) -> None:
    """Names with percent signs and quotes, properties with separators."""
    template = SendRequestTemplate(
        'g"1', "%RETRY%群", "broker-%d", is_batch=bool(is_batch), is_reply=bool(is_reply)
    )
    frame = template.encode(
        -9,
        3,
        769,
        1795264279777,
        7,
        "TAGS\x01%d\x02",
        b"body",
        oneway=True,
        reconsume_times=2,
        max_reconsume_times=16,
    )
    command = decode_frame(frame)
    assert (command.code, command.opaque, command.flag, command.body) == (code, -9, 2, b"body")
    assert (command.language, command.version) == ("PYTHON", 493)
    assert SendMessageHeader.from_command(command) == SendMessageHeader(
        'g"1',
        "%RETRY%群",
        "TBW102",
        4,
        3,
        769,
        1795264279777,
        7,
        "TAGS\x01%d\x02",
        2,
        False,
        16,
        bool(is_batch),
        "broker-%d",
    )


def test_plain_send_request_leaves_out_what_it_need_not_say() -> None:
    """No field l, no one-way flag."""
    command = decode_frame(SendRequestTemplate("g", "t", "b").encode(1, 0, 0, 1, 0, "", b""))
    assert command.flag == 0
    assert "l" not in command.ext_fields


def test_send_requests_that_cannot_be_written() -> None:
    """Too long, or not Unicode."""
    template = SendRequestTemplate("g", "t", "b")
    with pytest.raises(LocalProtocolError, match="longer than"):
        template.encode(1, 0, 0, 1, 0, "", bytes(2**24))
    with pytest.raises(LocalProtocolError, match="surrogate"):
        template.encode(1, 0, 0, 1, 0, "\ud800", b"")


@pytest.mark.parametrize("subscription", [None, "TagA || 标签 100%"])
def test_pull_requests(subscription: str | None) -> None:
    """With and without the subscription in the request."""
    template = PullRequestTemplate(
        "g%s", "t", 3, subscription=subscription, broker_name="b", code=361
    )
    command = decode_frame(template.encode(5, 100, 32, 3, 99, 15000, 1795264279777, 65536))
    assert (command.code, command.opaque) == (361, 5)
    assert command.ext_fields["bname"] == "b"
    assert PullMessageHeader.from_command(command) == PullMessageHeader(
        "g%s",
        "t",
        3,
        100,
        32,
        3,
        99,
        15000,
        subscription,
        1795264279777,
        "TAG",
        65536,
    )


def test_a_send_that_is_too_long_for_a_frame_is_refused() -> None:
    """Before it is built."""
    template = SendRequestTemplate("pg", "T", "broker-a")
    with pytest.raises(LocalProtocolError, match="longer than 16777216"):
        template.encode(1, 0, 0, 0, 0, "", bytes(16_777_216))


def test_a_message_groups_home_travels_with_its_send() -> None:
    """In a field of our own."""
    template = SendRequestTemplate("pg", "T", "broker-a")
    command = decode_frame(template.encode(1, 0, 0, 0, 0, "", b"x", group_home="3:77"))
    assert command.ext_fields["cmqGroup"] == "3:77"
