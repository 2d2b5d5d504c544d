"""Any bytes in any pieces give commands, a request for more, or RemoteProtocolError."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.header_registry import REQUEST_HEADERS, RESPONSE_HEADERS

from cometmq.errors import CodecError, RemoteProtocolError
from cometmq.model.offsets import ConsumerOffset
from cometmq.model.queue import MessageQueue
from cometmq.wire.body import admin as admin_body
from cometmq.wire.body import client as client_body
from cometmq.wire.body import route as route_body
from cometmq.wire.command.command import BINARY, JSON, RemotingCommand, encode_command, frame_json
from cometmq.wire.command.fastjson import dumps, loads_lenient
from cometmq.wire.frame.framing import FrameReader, decode_frame
from cometmq.wire.header.header import Header

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
INT32 = st.integers(-(2**31), 2**31 - 1)
HEADERS = sorted(
    {*REQUEST_HEADERS.values(), *RESPONSE_HEADERS.values()}, key=lambda kind: kind.__name__
)
FRAME_BYTES_MAX = 4096


@st.composite
def commands(draw: st.DrawFn) -> RemotingCommand:
    """Draw a command that both encodings can carry."""
    serialize_type = draw(st.sampled_from([JSON, BINARY]))
    # An empty value or remark is "absent" in a binary header.
    value = TEXT if serialize_type == JSON else TEXT.filter(bool)
    return RemotingCommand(
        code=draw(st.integers(-(2**15), 2**15 - 1)),
        opaque=draw(INT32),
        flag=draw(st.sampled_from([0, 1, 2])),
        language=draw(st.sampled_from(["JAVA", "CPP", "GO", "PYTHON", "RUST"])),
        version=draw(st.integers(1, 2**15 - 1)),
        remark=draw(st.none() | value),
        decoded_ext=draw(st.dictionaries(TEXT, value, min_size=1, max_size=6)),
        body=draw(st.binary(max_size=100)),
        serialize_type=serialize_type,
    )


def fields_of(command: RemotingCommand) -> tuple[Any, ...]:
    """Return the fields of a command that must come back."""
    return (
        command.code,
        command.opaque,
        command.flag,
        command.language,
        command.version,
        command.remark,
        command.ext_fields,
        command.body,
        command.serialize_type,
    )


@given(commands())
def test_commands_come_back(command: RemotingCommand) -> None:
    """Every field of a command comes back in both encodings."""
    assert fields_of(decode_frame(encode_command(command))) == fields_of(command)


def feed(stream: bytes, cuts: list[int]) -> tuple[list[RemotingCommand], str | None, int]:
    """Feed a stream in pieces; return commands, error and pending bytes."""
    reader = FrameReader(FRAME_BYTES_MAX)
    found: list[RemotingCommand] = []
    errors: list[str] = []
    position = 0
    for end in [*sorted(cuts), len(stream)]:
        piece = stream[position:end]
        position = end
        try:
            found += reader.receive(piece)
        except RemoteProtocolError as caught:
            errors.append(str(caught))
            found += reader.take_complete()
        # Bounded memory: never more than one frame is held back.
        assert reader.pending_bytes <= FRAME_BYTES_MAX
        assert reader.is_closed is bool(errors)
    # A closed reader says the same again for every later piece.
    assert len(set(errors)) <= 1
    return found, errors[0] if errors else None, reader.pending_bytes


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[int]]:
    """Draw frames, spoilt frames and garbage, and the cuts between their pieces."""
    parts: list[bytes] = []
    for _ in range(draw(st.integers(0, 4))):
        frame = bytearray(encode_command(draw(commands())))
        kind = draw(st.sampled_from(["whole", "whole", "byte", "cut", "garbage", "header"]))
        if kind == "byte":
            frame[draw(st.integers(0, len(frame) - 1))] = draw(st.integers(0, 255))
        elif kind == "cut":
            frame = frame[: draw(st.integers(0, len(frame)))]
        elif kind == "garbage":
            frame = bytearray(draw(st.binary(max_size=40)))
        elif kind == "header":
            frame = bytearray(frame_json(draw(st.binary(max_size=60)), b""))
        parts.append(bytes(frame))
    stream = b"".join(parts)
    return stream, draw(st.lists(st.integers(0, len(stream)), max_size=6))


@given(streams())
def test_any_stream_in_any_pieces(case: tuple[bytes, list[int]]) -> None:
    """A stream gives the same commands whole and in pieces, and at most one documented error."""
    stream, cuts = case
    whole, error, pending = feed(stream, [])
    pieces, piece_error, piece_pending = feed(stream, cuts)
    assert [(c.code, c.opaque, c.body) for c in pieces] == [
        (c.code, c.opaque, c.body) for c in whole
    ]
    assert (piece_error, piece_pending) == (error, pending)
    for command in whole:
        look_into(command)


def look_into(command: RemotingCommand) -> int:
    """Read every field that a broker reads; count the documented refusals."""
    refused = 0
    try:
        assert all(type(value) is str for value in command.ext_fields.values())
        # What was read can be written: no half surrogates, nothing but strings.
        encode_command(
            RemotingCommand.response(0, command.remark, command.ext_fields, opaque=command.opaque)
        )
    except RemoteProtocolError:
        refused += 1
    for kind in (REQUEST_HEADERS.get(command.code), RESPONSE_HEADERS.get(command.code)):
        if kind is None:
            continue
        try:
            kind.from_command(command)
        except RemoteProtocolError:
            refused += 1
    return refused


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_garbage_in_any_pieces(stream: bytes, cuts: list[int]) -> None:
    """Random bytes in pieces give the documented error or a request for more."""
    cuts = [min(cut, len(stream)) for cut in cuts]
    whole = feed(stream, [])
    assert feed(stream, cuts)[1:] == whole[1:]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | INT32 | st.floats() | st.text(max_size=5) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(
    st.dictionaries(
        st.sampled_from(["code", "opaque", "flag", "version", "language", "remark", "extFields"]),
        JSON_VALUES | st.dictionaries(st.sampled_from("abcdefgin"), JSON_VALUES, max_size=5),
    )
)
def test_headers_of_wrong_types(header: dict[str, Any]) -> None:
    """A header with a wrong type in any field gives a usable command or the documented error."""
    raw = json.dumps(header).encode()
    try:
        command = decode_frame(frame_json(raw, b"body"))
    except RemoteProtocolError:
        return
    for number in (command.code, command.opaque, command.flag, command.version):
        assert -(2**31) <= number < 2**31
    command.code = 310
    assert look_into(command) <= 3


@pytest.mark.parametrize("kind", HEADERS, ids=lambda kind: kind.__name__)
@settings(max_examples=10)
@given(data=st.data())
def test_any_ext_fields_for_any_header(kind: type[Header], data: st.DataObject) -> None:
    """A typed header refuses its fields, or takes them and writes them again."""
    names = kind.__struct_encode_fields__
    values = st.sampled_from(["", "0", "-1", "+7", "true", "FALSE", "null", "9" * 30, "1.0", "x"])
    ext = data.draw(st.dictionaries(st.sampled_from(names), values | TEXT))
    try:
        header = kind.from_ext(ext)
    except RemoteProtocolError:
        return
    assert kind.from_ext(header.to_ext()).to_ext() == header.to_ext()


QUEUES = st.builds(MessageQueue, TEXT, TEXT, st.integers(0, 9))
BODY_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXT,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(TEXT, inner, max_size=3)
        | st.dictionaries(QUEUES, inner, max_size=3)
    ),
    max_leaves=8,
)


@given(BODY_VALUES)
def test_bodies_with_queue_keys_come_back(value: object) -> None:
    """Bodies whose keys are objects, as fastjson writes them, come back at any depth."""
    assert loads_lenient(dumps(value)) == value


DECODERS: list[Callable[[bytes], Any]] = [
    loads_lenient,
    client_body.HeartbeatData.decode,
    client_body.LockBatchRequest.decode,
    client_body.ResetOffsetBody.decode,
    client_body.ConsumerRunningInfo.decode,
    route_body.decode_topic_route,
    route_body.decode_register_broker_body,
    lambda raw: route_body.decode_register_broker_body(raw, compressed=True),
    route_body.decode_cluster_info,
    admin_body.decode_group_config_wrapper,
    admin_body.decode_consume_stats,
    admin_body.decode_consumer_offsets,
]
SEEDS = [
    client_body.HeartbeatData("c", ("p",), (client_body.ConsumerData("g"),)).encode(),
    client_body.ResetOffsetBody({MessageQueue("t", "b", 0): 5}).encode(),
    admin_body.encode_consumer_offsets(admin_body.ConsumerOffsets({"t@g": {0: ConsumerOffset(1)}})),
    b'{"brokerDatas":[{"brokerAddrs":{0:"a:1"},"brokerName":"b","cluster":"c"}],"queueDatas":[]}',
]


@given(st.sampled_from(SEEDS) | st.binary(max_size=60), st.data())
def test_any_bytes_are_a_body_or_refused(raw: bytes, data: st.DataObject) -> None:
    """A body with a changed byte gives a value or a CodecError."""
    spoilt = bytearray(raw)
    if spoilt:
        spoilt[data.draw(st.integers(0, len(spoilt) - 1))] = data.draw(st.integers(0, 255))
    refused = 0
    for decode in DECODERS:
        try:
            decode(bytes(spoilt))
        except CodecError:
            refused += 1
    assert refused >= 1
