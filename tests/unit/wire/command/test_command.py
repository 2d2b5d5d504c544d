"""RemotingCommand in both encodings: test vectors, strict writing, refusals."""

import json
import struct

import pytest

from cometmq.errors import LocalProtocolError, RemoteProtocolError
from cometmq.wire.command.codes import (
    JSON_ONLY_CODES,
    OWN_CODE_MAX,
    OWN_CODE_MIN,
    VERSION,
    LanguageCode,
    RequestCode,
    version_of,
)
from cometmq.wire.command.command import (
    BINARY,
    FRAME_BYTES_MAX,
    JSON,
    RemotingCommand,
    decode_binary_header,
    encode_command,
    encode_json_text,
    encode_response,
    encode_response_parts,
    frame_json,
)
from cometmq.wire.frame.framing import decode_frame

ROUTE_JSON = (
    b'{"code":105,"extFields":{"topic":"TopicTest"},"flag":0,"language":"JAVA","opaque":7,'
    b'"serializeTypeCurrentRPC":"JSON","version":479}'
)
NO_ROUTE_JSON = (
    b'{"code":17,"flag":1,"language":"JAVA","opaque":7,"remark":"no route",'
    b'"serializeTypeCurrentRPC":"JSON","version":479}'
)
# docs/internals/protocol.md#test-vectors, vectors 1 to 3.
VECTORS = [
    (
        RemotingCommand.request(105, {"topic": "TopicTest"}, opaque=7),
        bytes.fromhex("0000008700000083") + ROUTE_JSON,
    ),
    (
        RemotingCommand.request(105, {"topic": "TopicTest"}, opaque=7, serialize_type=BINARY),
        bytes.fromhex(
            "0000002d010000290069 00 01df0000000700000000000000000000001400 05746f706963"
            "00000009546f70696354657374"
        ),
    ),
    (
        RemotingCommand.response(17, "no route", opaque=7, serialize_type=BINARY),
        bytes.fromhex("000000210100001d00110001df0000000700000001000000086e6f20726f75746500000000"),
    ),
    (
        RemotingCommand.response(17, "no route", opaque=7),
        (4 + len(NO_ROUTE_JSON)).to_bytes(4, "big")
        + len(NO_ROUTE_JSON).to_bytes(4, "big")
        + NO_ROUTE_JSON,
    ),
]


@pytest.mark.parametrize(("command", "frame"), VECTORS)
def test_vectors_are_written(command: RemotingCommand, frame: bytes) -> None:
    """As Java 5.3.3 writes them."""
    command.language, command.version = "JAVA", 479
    assert encode_command(command) == frame


@pytest.mark.parametrize(("command", "frame"), VECTORS)
def test_vectors_are_read(command: RemotingCommand, frame: bytes) -> None:
    """Every field comes back."""
    read = decode_frame(frame)
    assert (read.code, read.opaque, read.flag) == (command.code, 7, command.flag)
    assert (read.language, read.version, read.remark) == ("JAVA", 479, command.remark)
    assert read.ext_fields == command.ext_fields
    assert read.serialize_type == command.serialize_type
    assert read.body == b""


def test_versions_are_ordinals() -> None:
    """docs/internals/protocol.md#versions and the captures."""
    assert [version_of(4, 9, 3), version_of(5, 0, 0), version_of(5, 3, 3)] == [399, 413, 479]
    assert version_of(4, 9, 8) == 409
    assert version_of(5, 4, 0) == VERSION == 493
    # Trap T28: Java refuses SQL92 below 232, Go holds an int16.
    assert 232 < VERSION < 2**15


def test_own_requests_fit_every_header() -> None:
    """Codes of our own collide with none of RocketMQ's and fit 16 bits."""
    assert OWN_CODE_MAX < 2**15
    assert not [code for code in RequestCode if OWN_CODE_MIN <= code <= OWN_CODE_MAX]


def test_we_announce_ourselves() -> None:
    """Language and version of our own commands."""
    command = decode_frame(encode_command(RemotingCommand.request(34)))
    assert (command.language, command.version) == ("PYTHON", 493)
    bare = decode_frame(encode_command(RemotingCommand(code=34)))
    assert (bare.language, bare.version) == ("PYTHON", 493)
    binary = RemotingCommand.request(34, serialize_type=BINARY)
    assert encode_command(binary)[10] == LanguageCode.PYTHON


def test_flags_say_what_a_command_is() -> None:
    """Bit 0 response, bit 1 one-way (T5)."""
    request = RemotingCommand.request(15)
    oneway = RemotingCommand.request(15, oneway=True)
    response = request.answer(0)
    assert (request.flag, oneway.flag, response.flag) == (0, 2, 1)
    assert (request.is_response, request.is_oneway) == (False, False)
    assert (oneway.is_response, oneway.is_oneway) == (False, True)
    assert (response.is_response, response.is_oneway) == (True, False)


@pytest.mark.parametrize("serialize_type", [JSON, BINARY])
def test_an_answer_has_opaque_and_type_of_its_request(serialize_type: int) -> None:
    """C++ cannot read type 1 at all (T4)."""
    request = RemotingCommand.request(11, opaque=-5, serialize_type=serialize_type)
    answer = decode_frame(encode_command(request.answer(19, "x", {"a": "1"}, b"body")))
    assert (answer.opaque, answer.serialize_type) == (-5, serialize_type)
    assert (answer.code, answer.remark, answer.body) == (19, "x", b"body")
    direct = decode_frame(encode_response(-5, serialize_type, 19, "x", {"a": "1"}, b"body"))
    assert direct.ext_fields == answer.ext_fields == {"a": "1"}
    assert (direct.code, direct.opaque, direct.flag) == (19, -5, 1)
    assert (direct.remark, direct.body, direct.version) == ("x", b"body", 493)


@pytest.mark.parametrize("serialize_type", [JSON, BINARY])
def test_a_body_in_pieces_is_the_same_frame(serialize_type: int) -> None:
    """Pull answers are never joined before the socket."""
    chunks: list[bytes | memoryview] = [b"one", memoryview(b"two"), b""]
    parts = encode_response_parts(3, serialize_type, 0, "FOUND", {"a": "1"}, chunks)
    whole = encode_response(3, serialize_type, 0, "FOUND", {"a": "1"}, b"onetwo")
    assert b"".join(parts) == whole
    assert len(parts) == 4


def test_json_headers_are_compact_and_values_are_strings() -> None:
    """Go keeps blanks, C++ ignores numbers (T1, T3)."""
    frame = encode_command(RemotingCommand.request(11, {"queueId": "3", "x": "\x01\x02é😀"}))
    header = frame[8:]
    assert b": " not in header
    assert b", " not in header
    assert b"\\u0001\\u0002" in header
    decoded = json.loads(header)
    assert decoded["extFields"] == {"queueId": "3", "x": "\x01\x02é😀"}
    assert all(isinstance(decoded[name], int) for name in ("code", "flag", "opaque", "version"))


@pytest.mark.parametrize("value", [3, True, None, b"x", 1.5])
def test_other_values_are_refused(value: object) -> None:
    """The type checker says so, and so does the writer."""
    with pytest.raises(LocalProtocolError, match="queueId"):
        encode_response(1, JSON, 0, None, {"queueId": value})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "command",
    [
        RemotingCommand.request(70000),
        RemotingCommand.request(-40000),
        RemotingCommand.request(11, opaque=2**31),
        RemotingCommand(code=11, version=40000),
        RemotingCommand.request(11, {"a": "\ud800"}),
        RemotingCommand.request(11, {"a": "\ud800"}, serialize_type=BINARY),
        RemotingCommand.response(1, "\ud800"),
        RemotingCommand.response(1, "\ud800", serialize_type=BINARY),
        RemotingCommand.request(11, {"k" * 40000: "v"}, serialize_type=BINARY),
        RemotingCommand.request(200050, serialize_type=BINARY),
        RemotingCommand.request(11, body=bytes(FRAME_BYTES_MAX)),
        RemotingCommand.request(11, body=bytes(FRAME_BYTES_MAX), serialize_type=BINARY),
    ],
)
def test_what_the_protocol_cannot_carry_is_refused(command: RemotingCommand) -> None:
    """An error here, instead of a truncated number at the peer."""
    with pytest.raises(LocalProtocolError):
        encode_command(command)


def test_pop_codes_need_json() -> None:
    """Binary headers truncate them: 200050 would arrive as 3442 (T6)."""
    assert {code & 0xFFFF for code in JSON_ONLY_CODES} == {*range(3442, 3449), 3543}
    for code in JSON_ONLY_CODES:
        assert decode_frame(encode_command(RemotingCommand.request(code))).code == code


def test_the_longest_frame() -> None:
    """16 MiB with the length field are allowed, one byte more is not."""
    header = b"{}"
    body = bytes(FRAME_BYTES_MAX - 8 - len(header))
    assert len(frame_json(header, body)) == FRAME_BYTES_MAX
    with pytest.raises(LocalProtocolError, match="16777217"):
        frame_json(header, body + b"x")
    with pytest.raises(LocalProtocolError, match="longer than"):
        encode_response(1, JSON, 0, None, None, body)


def test_empty_values_vanish_in_binary_headers() -> None:
    """Java reads them as null (T24)."""
    command = RemotingCommand.request(11, {"a": "", "b": "1"}, serialize_type=BINARY)
    assert decode_frame(encode_command(command)).ext_fields == {"b": "1"}


def test_the_last_of_two_equal_binary_keys_wins() -> None:
    """Java writes some twice when a hook ran."""
    first = encode_command(RemotingCommand.request(11, {"a": "1"}, serialize_type=BINARY))
    field = first[-8:]
    header = first[8:-12] + (16).to_bytes(4, "big") + field[:-1] + b"0" + field
    assert decode_binary_header(header).ext_fields == {"a": "1"}


BINARY_FRAME = encode_command(
    RemotingCommand.response(1, "remark", {"key": "value"}, serialize_type=BINARY)
)


@pytest.mark.parametrize("size", range(len(BINARY_FRAME) - 8))
def test_cut_binary_headers_are_refused(size: int) -> None:
    """Wherever the cut is, one error."""
    with pytest.raises(RemoteProtocolError):
        decode_binary_header(BINARY_FRAME[8 : 8 + size])


@pytest.mark.parametrize(
    ("position", "value", "words"),
    [
        (13, b"\xff\xff\xff\xff", "remark of -1"),
        (13, b"\x7f\xff\xff\xff", "remark of 2147483647"),
        (23, b"\xff\xff\xff\xff", "ext fields of -1"),
        (23, b"\x00\x00\x00\x05", "cut short"),
        (27, b"\x7f\xff", "cut short"),
        (32, b"\xff\xff\xff\xff", "cut short"),
        (32, b"\x00\x00\x00\x06", "cut short"),
    ],
)
def test_broken_binary_lengths_are_refused(position: int, value: bytes, words: str) -> None:
    """Lengths are signed and may point anywhere."""
    header = bytearray(BINARY_FRAME[8:])
    header[position : position + len(value)] = value
    with pytest.raises(RemoteProtocolError, match=words):
        decode_binary_header(bytes(header))


def test_unknown_binary_language_is_other() -> None:
    """Java decodes it without failing."""
    header = bytearray(BINARY_FRAME[8:])
    header[2] = 99
    assert decode_binary_header(bytes(header)).language == "OTHER"


def test_ext_fields_can_be_replaced() -> None:
    """A relay changes them between reading and writing."""
    command = decode_frame(VECTORS[0][1])
    assert command.has_ext_fields
    command.ext_fields = {"a": "1"}
    assert decode_frame(encode_command(command)).ext_fields == {"a": "1"}
    command.ext_fields = None
    assert command.ext_fields == {}


def test_looking_does_not_make_ext_fields() -> None:
    """Java tells an absent object from an empty one in what it writes, and so do we."""
    for command in (RemotingCommand.request(1), decode_frame(VECTORS[3][1])):
        before = encode_command(command)
        assert command.ext_fields == {}
        assert not command.has_ext_fields
        assert encode_command(command) == before
    assert decode_frame(encode_command(RemotingCommand.request(1, {}))).has_ext_fields


def test_json_text() -> None:
    """One string as JSON."""
    assert encode_json_text('a"\x01é') == '"a\\"\\u0001é"'.encode()
    with pytest.raises(LocalProtocolError):
        encode_json_text("\udfff")


def test_an_empty_value_of_a_binary_header_is_none() -> None:
    """To Java it is null."""
    frame = encode_command(RemotingCommand.request(1, {"a": "", "b": "2"}, serialize_type=BINARY))
    assert decode_frame(frame).ext_fields == {"b": "2"}


def test_a_value_that_leaves_a_binary_header_is_refused() -> None:
    """Its length says more than the ext fields have."""
    frame = bytearray(encode_command(RemotingCommand.request(1, {"a": "xyz"}, serialize_type=1)))
    frame[-4] = 9
    with pytest.raises(RemoteProtocolError, match="cut short"):
        decode_frame(bytes(frame))


def test_a_single_byte_is_no_ext_field() -> None:
    """Not even its name's length fits."""
    header = struct.pack(">hBhiii", 1, 12, 493, 1, 0, 0) + struct.pack(">i", 1) + b"\0"
    with pytest.raises(RemoteProtocolError, match="cut short"):
        decode_binary_header(header)
