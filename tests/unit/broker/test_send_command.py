"""Sends decoded in one pass: the same as the ordinary way, and the ordinary way for the rest."""

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.broker.harness import SEND_DEFAULTS

from cometmq.wire.command.command import RemotingCommand, encode_command
from cometmq.wire.frame.framing import FrameReader, full_command
from cometmq.wire.header.fast_decode import EndCommand, SendCommand
from cometmq.wire.header.headers import SendMessageHeader


def frame(header: dict[str, Any] | bytes, body: bytes = b"body") -> bytes:
    raw = (
        header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    )
    return struct.pack(">iI", 4 + len(raw) + len(body), len(raw)) + raw + body


def header(ext: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    found = {**SEND_DEFAULTS, **(ext or {})}
    return {"code": 310, "extFields": found, "flag": 0, "opaque": 7, "version": 493, **fields}


def test_plain_send_has_everything_its_handler_needs() -> None:
    """And `full_command` gives what the ordinary reader gives."""
    data = frame(header({"e": "3", "i": "TAGS\x01A\x02"}, flag=2))
    (send,) = FrameReader(has_fast_commands=True).receive(data)
    (plain,) = FrameReader().receive(data)
    assert isinstance(send, SendCommand)
    assert (send.code, send.opaque, send.flag, send.body) == (310, 7, 2, b"body")
    assert (send.ext.topic, send.ext.queue_id, send.ext.properties) == ("t", 3, "TAGS\x01A\x02")
    full = full_command(send)
    assert SendMessageHeader.from_command(full) == SendMessageHeader.from_command(plain)
    assert (full.opaque, full.flag, full.version, full.body) == (7, 2, 493, b"body")


@pytest.mark.parametrize(
    "data",
    [
        frame(dict(reversed(header({"i": "a\x01b\x02"}).items()))),
        frame({"code": 310, "language": "GO", **header({"i": "a\x01b\x02"})}),
        encode_command(
            RemotingCommand.request(
                310, {**SEND_DEFAULTS, "i": "a\x01b\x02"}, b"body", opaque=7, serialize_type=1
            )
        ),
    ],
)
def test_header_of_any_form_gives_the_same_send(data: bytes) -> None:
    """Whatever the order of the keys, and with a binary header too."""
    (read,) = FrameReader(has_fast_commands=True).receive(data)
    assert not isinstance(read, EndCommand)
    send = full_command(read) if isinstance(read, SendCommand) else read
    (plain,) = FrameReader().receive(data)
    assert SendMessageHeader.from_command(send) == SendMessageHeader.from_command(plain)
    assert (send.opaque, send.body, send.serialize_type) == (7, b"body", plain.serialize_type)
    is_code_first = data[8:].startswith((b'{"code"', b"\x016"))
    assert isinstance(read, SendCommand) == is_code_first


@pytest.mark.parametrize(
    "data",
    [
        frame(header({"e": "x"})),
        frame(header({"e": "99999999999"})),
        frame({"extFields": SEND_DEFAULTS, "code": 310}),
        frame(header(code=311)),
        frame(b'{"code":310,"extFields":{"'),
        frame(b'{"code":310,"extFields":{"b":1}}'),
        frame(header(opaque="seven")),
        encode_command(
            RemotingCommand.request(310, {**SEND_DEFAULTS, "e": "x"}, b"x", serialize_type=1)
        ),
        encode_command(RemotingCommand.request(310, {"b": "t"}, b"x", serialize_type=1)),
        encode_command(RemotingCommand.request(11, {"topic": "t"})),
    ],
)
def test_everything_else_takes_the_ordinary_way(data: bytes) -> None:
    """Same commands, or the same refusal."""

    def read(reader: FrameReader[Any]) -> Any:
        try:
            return reader.receive(data)
        except Exception as error:
            return type(error), str(error)

    assert read(FrameReader(has_fast_commands=True)) == read(FrameReader())


def test_peer_cannot_set_what_is_the_readers() -> None:
    """`header` and `body` in the JSON are not believed."""
    data = frame(header(header="e30=", body="AAAA", serialize_type=1))
    (send,) = FrameReader(has_fast_commands=True).receive(data)
    assert isinstance(send, SendCommand)
    assert send.body == b"body"
    assert send.header == data[8:-4]
    assert send.serialize_type == 0


@given(st.dictionaries(st.sampled_from("abcdefghijklmn"), st.text(max_size=12)), st.integers(1, 40))
def test_both_ways_agree_on_any_fields_in_any_split(ext: dict[str, str], step: int) -> None:
    """Whatever the values and wherever the stream is cut."""
    data = frame(header(ext)) + frame(header())
    fast, slow = FrameReader(has_fast_commands=True), FrameReader()
    left: list[Any] = []
    right: list[RemotingCommand] = []
    for place in range(0, len(data), step):
        left += fast.receive(data[place : place + step])
        right += slow.receive(data[place : place + step])
    full = [full_command(c) if isinstance(c, SendCommand) else c for c in left]
    assert [(c.code, c.opaque, c.ext_fields, c.body) for c in full] == [
        (c.code, c.opaque, c.ext_fields, c.body) for c in right
    ]
