"""The three forms of a request's header: JSON as Java or as Go writes it, and binary.

`java`    {"code":..,"extFields":{..},"flag":..,"language":..,"opaque":..,...}, keys in their order
`go`      {"code":..,"language":..,"version":..,"opaque":..,"flag":..,"remark":"","extFields":{..}}
`binary`  docs/internals/protocol.md#binary-header, which RocketMQ calls ROCKETMQ

A load renders its requests in one form.  Java's broker answers every form in JSON, ours in the form
of the request, so that answers are read by the type byte of their frame.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from bench.base.loads import Form
from cometmq.wire.command.command import BINARY, decode_binary_header

__all__ = [
    "FRAME_DIGITS",
    "OPAQUE_BASE",
    "Answer",
    "Bytes",
    "Template",
    "pull_request",
    "read_answer",
    "request_header",
]

FRAME_DIGITS: Final = 9
# Ten digits in every frame, and still an int32 for every frame number of nine digits.
OPAQUE_BASE: Final = 1_000_000_000
VERSION: Final = 493
PYTHON: Final = 3
_BINARY_HEAD: Final = struct.Struct(">hBhiii")
Bytes = npt.NDArray[np.uint8]


class Template:
    """Bytes under construction, with the positions of the fields that change."""

    def __init__(self, text: bytes = b"") -> None:
        self.parts: list[bytes] = [text]
        self.size = len(text)
        self.numbers: list[int] = []
        self.marks: dict[str, int] = {}

    def add(self, text: bytes) -> Template:
        """Append bytes that stay."""
        self.parts.append(text)
        self.size += len(text)
        return self

    def mark(self, name: str, width: int) -> Template:
        """Append a named field of `width` bytes."""
        self.marks[name] = self.size
        return self.add(b"0" * width)

    def number(self) -> Template:
        """Append a frame number, which every lap patches."""
        self.numbers.append(self.size)
        return self.add(b"0" * FRAME_DIGITS)

    def join(self, other: Template) -> Template:
        """Append another template with its fields."""
        self.numbers += [self.size + column for column in other.numbers]
        self.marks |= {name: self.size + column for name, column in other.marks.items()}
        return self.add(b"".join(other.parts))

    def render(self) -> Bytes:
        """The bytes, each field filled with zeros."""
        return np.frombuffer(b"".join(self.parts), np.uint8).copy()


def request_header(form: Form, code: int, fields: Mapping[str, Template]) -> Template:
    """The frame's lengths (marks `length` and `header_length`) and a header of equal length always.

    The opaque is `OPAQUE_BASE` plus the frame number: digits in JSON, the mark `opaque` of four
    bytes in a binary header.
    """
    template = Template().mark("length", 4).mark("header_length", 4)
    if form == "binary":
        ext = Template()
        for name, value in fields.items():
            ext.add(len(name).to_bytes(2, "big") + name.encode() + value.size.to_bytes(4, "big"))
            ext.join(value)
        head = _BINARY_HEAD.pack(code, PYTHON, VERSION, 0, 0, 0)
        template.add(head[:5]).mark("opaque", 4).add(head[9:])
        return template.add(ext.size.to_bytes(4, "big")).join(ext)
    ext = Template(b'"extFields":{')
    for index, (name, value) in enumerate(fields.items()):
        ext.add(b'%b"%b":"' % (b"," if index else b"", name.encode())).join(value).add(b'"')
    ext.add(b"}")
    template.add(b'{"code":%d,' % code)
    if form == "go":
        template.add(b'"language":"PYTHON","version":%d,"opaque":1' % VERSION).number()
        return template.add(b',"flag":0,"remark":"",').join(ext).add(b"}")
    template.join(ext).add(b',"flag":0,"language":"PYTHON","opaque":1').number()
    return template.add(b',"serializeTypeCurrentRPC":"JSON","version":%d}' % VERSION)


def pull_request(form: Form, fields: Mapping[str, str]) -> Callable[[int, int], bytes]:
    """A function of (queue offset, opaque) that returns the frame of a pull with these fields."""
    code = 11
    if form == "binary":
        ext = b"".join(
            len(name).to_bytes(2, "big") + name.encode() + _sized(value.encode())
            for name, value in fields.items()
        )
        ext += len(b"queueOffset").to_bytes(2, "big") + b"queueOffset"

        def binary(queue_offset: int, opaque: int) -> bytes:
            value = _sized(b"%d" % queue_offset)
            head = _BINARY_HEAD.pack(code, PYTHON, VERSION, opaque, 0, 0)
            size = len(head) + 4 + len(ext) + len(value)
            lengths = struct.pack(">iI", size + 4, BINARY << 24 | size)
            return lengths + head + (len(ext) + len(value)).to_bytes(4, "big") + ext + value

        return binary
    ext = msgspec.json.encode(dict(fields))[:-1] + b',"queueOffset":"'
    if form == "go":
        start = b'{"code":%d,"language":"PYTHON","version":%d,"opaque":' % (code, VERSION)
        middle = b',"flag":0,"remark":"","extFields":' + ext

        def go(queue_offset: int, opaque: int) -> bytes:
            return _json_frame(b'%b%d%b%d"}}' % (start, opaque, middle, queue_offset))

        return go
    start = b'{"code":%d,"extFields":%b' % (code, ext)
    middle = b'"},"flag":0,"language":"PYTHON","opaque":'
    end = b',"serializeTypeCurrentRPC":"JSON","version":%d}' % VERSION

    def java(queue_offset: int, opaque: int) -> bytes:
        return _json_frame(b"%b%d%b%d%b" % (start, queue_offset, middle, opaque, end))

    return java


def _sized(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value


def _json_frame(header: bytes) -> bytes:
    size = len(header)
    return (size + 4).to_bytes(4, "big") + size.to_bytes(4, "big") + header


class _Ext(msgspec.Struct, rename="camel", gc=False):
    queue_id: str = "-1"
    queue_offset: str = "-1"
    next_begin_offset: str = "0"
    min_offset: str = "0"
    max_offset: str = "0"


_NO_EXT: Final = _Ext()


class Answer(msgspec.Struct, rename={"ext_fields": "extFields"}, gc=False):
    """What the load programs read of an answer's header."""

    code: int
    opaque: int
    remark: str | None = None
    ext_fields: _Ext | None = None

    @property
    def ext(self) -> _Ext:
        """The fields, with the default of each that is absent."""
        return self.ext_fields or _NO_EXT


_decode_json: Final = msgspec.json.Decoder(Answer).decode


def read_answer(header: memoryview, serialize_type: int) -> Answer:
    """The answer in a header of this encoding.

    Raises:
        RemoteProtocolError: a field leaves a binary header.
        msgspec.MsgspecError: a JSON header is not one.
    """
    if serialize_type != BINARY:
        return _decode_json(header)
    command = decode_binary_header(bytes(header))
    ext = msgspec.convert(command.ext_fields, _Ext)
    return Answer(command.code, command.opaque, command.remark, ext)
