"""Framing: splits, limits, and headers that only a forgiving reader takes."""

import struct

import pytest

from cometmq.errors import RemoteProtocolError
from cometmq.wire.command.command import BINARY, RemotingCommand, encode_command, frame_json
from cometmq.wire.frame.framing import (
    HEAD_BYTES,
    FrameReader,
    decode_frame,
    decode_header,
    decode_json_header,
    full_command,
    split_head,
)
from cometmq.wire.header.fast_decode import EndCommand, SendCommand

FRAMES = [
    encode_command(RemotingCommand.request(310, {"a": "g"}, b"body", opaque=1)),
    encode_command(RemotingCommand.request(15, opaque=2, serialize_type=BINARY)),
    encode_command(RemotingCommand.response(0, None, {"b": "é"}, b"x" * 300, opaque=3)),
]
STREAM = b"".join(FRAMES)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 100, 1000])
def test_any_pieces_give_the_same_commands(size: int) -> None:
    """Whole, byte by byte, and across the borders of head, header and body."""
    reader = FrameReader()
    commands: list[RemotingCommand] = []
    for position in range(0, len(STREAM), size):
        commands += reader.receive(STREAM[position : position + size])
    assert [command.opaque for command in commands] == [1, 2, 3]
    assert [command.body for command in commands] == [b"body", b"", b"x" * 300]
    assert reader.pending_bytes == 0


@pytest.mark.parametrize("cut", range(len(FRAMES[0])))
def test_an_unfinished_frame_waits(cut: int) -> None:
    """Nothing comes early, nothing is lost."""
    reader = FrameReader()
    assert reader.receive(FRAMES[0][:cut]) == []
    assert reader.pending_bytes == cut
    (command,) = reader.receive(FRAMES[0][cut:])
    assert (command.opaque, command.body) == (1, b"body")


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_other_buffers_are_read(kind: type) -> None:
    """Some transports hand over a bytearray or a view of one."""
    reader = FrameReader()
    assert len(reader.receive(kind(STREAM[:50]))) + len(reader.receive(kind(STREAM[50:]))) == 3


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ("00000003", "length 3"),
        ("00000000", "length 0"),
        ("ffffffff", "length -1"),
        ("80000000", "length -2147483648"),
        ("01000000", "length 16777216"),
        ("00fffffd", "length 16777213"),
        ("7fffffff", "length 2147483647"),
        ("0000000400000001", "header of 1 bytes"),
        ("0000000800ffffff", "header of 16777215 bytes"),
        ("16030100", "length 369295616"),
        ("47455420", "length 1195725856"),
    ],
)
def test_impossible_lengths_are_refused_at_once(head: str, words: str) -> None:
    """Before a body is waited for; TLS and HTTP greetings are among them."""
    reader = FrameReader()
    with pytest.raises(RemoteProtocolError, match=words):
        reader.receive(bytes.fromhex(head))
    assert reader.is_closed
    assert reader.pending_bytes == 0


def test_the_longest_frame_is_waited_for() -> None:
    """16,777,216 bytes with the length field."""
    reader = FrameReader()
    assert reader.receive(bytes.fromhex("00fffffc")) == []
    small = FrameReader(frame_bytes_max=100)
    assert small.receive((96).to_bytes(4, "big")) == []
    with pytest.raises(RemoteProtocolError, match="length 97"):
        FrameReader(frame_bytes_max=100).receive((97).to_bytes(4, "big"))
    with pytest.raises(RemoteProtocolError, match="length 97"):
        FrameReader(frame_bytes_max=100).receive((97).to_bytes(4, "big") + bytes(96))


def test_a_closed_reader_stays_closed() -> None:
    """After one error no position in the stream is known; what came before is handed over."""
    reader = FrameReader()
    with pytest.raises(RemoteProtocolError, match="length -1"):
        reader.receive(STREAM + b"\xff" * 8)
    assert [command.opaque for command in reader.take_complete()] == [1, 2, 3]
    assert reader.take_complete() == []
    with pytest.raises(RemoteProtocolError, match="length -1"):
        reader.receive(FRAMES[0])


def test_unknown_serialization_types_are_refused() -> None:
    """0 and 1 exist."""
    with pytest.raises(RemoteProtocolError, match="type 2"):
        FrameReader().receive(b"\0\0\0\x06\x02\0\0\x02{}")


def test_no_body_is_an_empty_body() -> None:
    """Upstream calls it null; nothing tells the two apart on the wire."""
    assert decode_frame(frame_json(b'{"code":1}', b"")).body == b""


def test_one_frame_is_one_frame() -> None:
    """For tests and tools that hold exactly one."""
    for wrong in (b"", STREAM, FRAMES[0][:-1]):
        with pytest.raises(RemoteProtocolError, match="expected one frame"):
            decode_frame(wrong)


# -- headers that are not as we would write them ------------------------------------------------


def header(text: str | bytes) -> RemotingCommand:
    """The command of a JSON header, read through a frame."""
    raw = text if isinstance(text, bytes) else text.encode()
    command = decode_frame(frame_json(raw, b"body"))
    direct = decode_json_header(raw)
    assert (direct.code, direct.opaque, direct.ext_fields) == (
        command.code,
        command.opaque,
        command.ext_fields,
    )
    return command


def test_keys_in_any_order_with_blanks_and_unknown_ones() -> None:
    """Only the names matter."""
    command = header(
        '\n{ "zzz" : [1,{"x":null}] , "opaque" : 9 , "extFields" : { "a" : "1" } , "code" : 310 }'
    )
    assert (command.code, command.opaque, command.ext_fields) == (310, 9, {"a": "1"})


@pytest.mark.parametrize(
    "text",
    ['{"code":1}', '{"code":1,"extFields":null,"remark":null}', '{"code":1,"extFields":{}}'],
)
def test_absent_null_and_empty_mean_none(text: str) -> None:
    """C++ leaves out, Go writes null."""
    command = header(text)
    assert (command.ext_fields, command.remark) == ({}, None)


def test_numbers_bools_and_nulls_in_ext_fields() -> None:
    """C++ and Python clients send numbers (T3); a null is an absent field."""
    command = header(
        '{"code":310,"extFields":{"queueId":3,"d":4,"f":0,"k":false,"m":true,"n":null,'
        '"big":123456789012345678901234567890,"x":1.50,"o":{"a":[1,"é"]}}}'
    )
    assert command.ext_fields == {
        "queueId": "3",
        "d": "4",
        "f": "0",
        "k": "false",
        "m": "true",
        "big": "123456789012345678901234567890",
        "x": "1.50",
        "o": '{"a":["1","é"]}',
    }


def test_raw_control_characters() -> None:
    """Property strings come unescaped from some clients."""
    command = header('{"code":10,"extFields":{"properties":"a\x011\x02"},"remark":"a\tb"}')
    assert command.ext_fields == {"properties": "a\x011\x02"}
    assert command.remark == "a\tb"


def test_half_surrogates_become_replacement_characters() -> None:
    """A Java string may hold one; UTF-8 cannot, so nobody downstream may get it."""
    command = header(r'{"code":10,"extFields":{"a":"x\ud800y","b":"\ud83d\ude00"}}')
    assert command.ext_fields == {"a": "x\ufffdy", "b": "😀"}
    assert header(r'{"code":1,"remark":"\udc00"}').remark == "\ufffd"


def test_bytes_that_are_not_utf8() -> None:
    """They cost a character, not the connection."""
    assert header(b'{"code":10,"extFields":{"a":"\xff"}}').ext_fields == {"a": "\ufffd"}
    assert header(b'{"code":10,"remark":"\xff"}').remark == "\ufffd"


def test_numbers_as_text() -> None:
    """fastjson converts them."""
    command = header('{"code":"310","opaque":"-7","flag":"2","version":"+493"}')
    assert (command.code, command.opaque, command.flag, command.version) == (310, -7, 2, 493)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "list, not an object"),
        ("null", "NoneType"),
        ('"x"', "str"),
        ('{"code":{}}', "code"),
        ('{"code":1.5}', "code"),
        ('{"code":true}', "code"),
        ('{"code":99999999999}', "code"),
        ('{"code":"310x"}', "code"),
        ('{"opaque":2147483648}', "opaque"),
        ('{"opaque":"-2147483649"}', "opaque"),
        ('{"flag":[]}', "flag"),
        ('{"version":1e400}', "version"),
        ('{"language":[]}', "language"),
        ('{"remark":{}}', "remark"),
        ("[" * 100_000, "not JSON"),
        ('{"extFields":' + "[" * 100_000 + "}", "not JSON"),
        ('{"code":1}{', "not JSON"),
    ],
)
def test_what_is_no_header_is_refused(text: str, words: str) -> None:
    """One kind of error, which names the field."""
    with pytest.raises(RemoteProtocolError, match=words):
        decode_frame(frame_json(text.encode(), b""))
    with pytest.raises(RemoteProtocolError, match=words):
        decode_json_header(text.encode())


@pytest.mark.parametrize("text", ["[1]", '"x"', "3", "true"])
def test_ext_fields_that_are_no_object_are_refused_when_asked_for(text: str) -> None:
    """The rest of the header is good, so the request can be answered with the reason."""
    command = decode_frame(
        frame_json(b'{"code":10,"opaque":5,"extFields":%b}' % text.encode(), b"")
    )
    assert command.opaque == 5
    with pytest.raises(RemoteProtocolError, match="extFields"):
        _ = command.ext_fields


def test_no_peer_can_set_what_is_ours() -> None:
    """The private fields of a command have no name on the wire."""
    command = header('{"code":1,"-ext":{"a":"1"},"-body":"YWJj","-type":1,"body":"YWJj"}')
    assert (command.ext_fields, command.serialize_type, command.body) == ({}, 0, b"body")
    assert decode_json_header(b'{"code":1,"-body":"YWJj"}').body == b""


def test_the_head_of_a_frame_is_split_into_its_lengths() -> None:
    """For a transport that reads a body where it belongs."""
    frame = encode_command(RemotingCommand.request(1, {"a": "b"}, b"body"))
    serialize_type, header_bytes, body_bytes = split_head(frame[:HEAD_BYTES])
    assert (serialize_type, body_bytes) == (0, 4)
    assert HEAD_BYTES + header_bytes + body_bytes == len(frame)
    command = decode_header(serialize_type, frame[HEAD_BYTES : HEAD_BYTES + header_bytes])
    assert (command.code, command.ext_fields, command.body) == (1, {"a": "b"}, b"")


@pytest.mark.parametrize(
    ("length", "header_bytes", "words"),
    [
        (2, 0, "frame length 2 is out of range"),
        (-1, 0, "frame length -1 is out of range"),
        (1 << 30, 4, "out of range"),
        (10, 500, "a header of 500 bytes does not fit"),
    ],
)
def test_a_head_of_no_frame_is_refused(length: int, header_bytes: int, words: str) -> None:
    """Before anything behind it is read."""
    with pytest.raises(RemoteProtocolError, match=words):
        split_head(struct.pack(">iI", length, header_bytes))


def test_a_server_reads_sends_and_ends_in_one_pass() -> None:
    """What does not decode so, and every other code, is an ordinary command."""
    fields = {"a": "g", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "5", "h": "0"}
    end = {"producerGroup": "g", "tranStateTableOffset": "1", "commitLogOffset": "2",
           "commitOrRollback": "8"}  # fmt: skip
    commands = [
        RemotingCommand.request(310, fields, b"body", opaque=1),
        RemotingCommand.request(37, end, opaque=2, oneway=True),
        RemotingCommand.request(310, {**fields, "e": "x"}, opaque=3),
        RemotingCommand.request(34, opaque=4),
        RemotingCommand.request(310, fields, opaque=5, serialize_type=1),
    ]
    data = b"".join(map(encode_command, commands))
    send, ended, odd, other, binary = FrameReader(has_fast_commands=True).receive(data)
    assert isinstance(send, SendCommand)
    assert (send.ext.topic, send.body, send.opaque) == ("T", b"body", 1)
    assert full_command(send).ext_fields == fields
    assert full_command(send).body == b"body"
    assert isinstance(ended, EndCommand)
    assert (ended.is_oneway, ended.opaque) == (True, 2)
    assert [type(command) for command in (odd, other)] == [RemotingCommand] * 2
    assert isinstance(binary, SendCommand)
    assert (binary.ext.topic, binary.opaque, binary.serialize_type) == ("T", 5, 1)
    assert full_command(binary).ext_fields == fields
