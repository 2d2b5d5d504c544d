"""Frames of the captures and of the peer under test, read and written without our own codec.

The replay judges the codec too, so it must not lean on it: this is a second, slow and strict
reading of the layouts (wire reference, sections 1.2 to 1.4 and 4.1).
"""

import json
import struct
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Frame", "decode_frame", "encode_frame", "loads_java", "stored_messages"]

LANGUAGES = (
    *("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO"),
    *("PHP", "OMS", "RUST", "NODE_JS"),
)
BINARY_HEAD = struct.Struct(">hBhiii")
MAGICS = {0xDAA320A7: 1, 0xDAA320AB: 2}


@dataclass
class Frame:
    """One frame: its header fields and the body bytes."""

    code: int
    opaque: int
    flag: int
    language: str
    version: int
    remark: str | None
    ext: dict[str, str]
    body: bytes
    serialize_type: int = 0
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def is_response(self) -> bool:
        """Return whether bit 0 of the flag marks an answer."""
        return bool(self.flag & 1)

    @property
    def is_oneway(self) -> bool:
        """Return whether bit 1 of the flag marks a one-way request."""
        return bool(self.flag & 2)


def decode_frame(data: bytes) -> Frame:
    """Decode one whole frame with its length field; assert every rule of the layout."""
    length, meta = struct.unpack_from(">iI", data)
    assert length == len(data) - 4, (length, len(data))
    kind, header_length = meta >> 24, meta & 0xFFFFFF
    assert kind in {0, 1}, kind
    assert 8 + header_length <= len(data), (header_length, len(data))
    header, body = data[8 : 8 + header_length], data[8 + header_length :]
    return _decode_json(header, body) if kind == 0 else _decode_binary(header, body)


def _decode_json(header: bytes, body: bytes) -> Frame:
    fields = json.loads(header.decode("utf-8"), strict=False)
    ext = fields.pop("extFields", None) or {}
    assert all(isinstance(value, str) for value in ext.values()), ext
    return Frame(
        fields.pop("code"),
        fields.pop("opaque"),
        fields.pop("flag"),
        fields.pop("language"),
        fields.pop("version"),
        fields.pop("remark", None),
        ext,
        body,
        0,
        fields,
    )


def _decode_binary(header: bytes, body: bytes) -> Frame:
    code, language, version, opaque, flag, remark_length = BINARY_HEAD.unpack_from(header)
    position = BINARY_HEAD.size
    remark = header[position : position + remark_length].decode("utf-8") or None
    position += remark_length
    (ext_length,) = struct.unpack_from(">i", header, position)
    position += 4
    assert position + ext_length == len(header), (position, ext_length, len(header))
    ext = {}
    while position < len(header):
        (size,) = struct.unpack_from(">h", header, position)
        key = header[position + 2 : position + 2 + size].decode("utf-8")
        position += 2 + size
        (size,) = struct.unpack_from(">i", header, position)
        ext[key] = header[position + 4 : position + 4 + size].decode("utf-8")
        position += 4 + size
    return Frame(code, opaque, flag, LANGUAGES[language], version, remark, ext, body, 1)


def encode_frame(frame: Frame) -> bytes:
    """Encode a frame in its own serialization type."""
    header = _encode_json(frame) if frame.serialize_type == 0 else _encode_binary(frame)
    length = 4 + len(header) + len(frame.body)
    return (
        struct.pack(">iI", length, frame.serialize_type << 24 | len(header)) + header + frame.body
    )


def _encode_json(frame: Frame) -> bytes:
    fields = {
        "code": frame.code,
        "extFields": frame.ext,
        "flag": frame.flag,
        "language": frame.language,
        "opaque": frame.opaque,
        "version": frame.version,
        **frame.extra,
    }
    if frame.remark is not None:
        fields["remark"] = frame.remark
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


def _encode_binary(frame: Frame) -> bytes:
    remark = (frame.remark or "").encode("utf-8")
    parts = []
    for key, value in frame.ext.items():
        name, data = key.encode("utf-8"), value.encode("utf-8")
        parts.append(struct.pack(">h", len(name)) + name + struct.pack(">i", len(data)) + data)
    ext = b"".join(parts)
    code = struct.unpack(">h", struct.pack(">H", frame.code & 0xFFFF))[0]
    head = BINARY_HEAD.pack(
        code,
        LANGUAGES.index(frame.language),
        frame.version,
        frame.opaque,
        frame.flag,
        len(remark),
    )
    return head + remark + struct.pack(">i", len(ext)) + ext


def stored_messages(body: bytes) -> list[dict[str, Any]]:
    """Return each stored message of a body as a dict of fields, with properties as a dict."""
    messages = []
    position = 0
    while position < len(body):
        message, position = _stored_message(body, position)
        messages.append(message)
    return messages


def _stored_message(data: bytes, start: int) -> tuple[dict[str, Any], int]:
    size, magic, crc, queue_id, flag = struct.unpack_from(">iIIii", data, start)
    assert magic in MAGICS, (hex(magic), start)
    assert start + size <= len(data), (start, size, len(data))
    queue_offset, physical_offset, sys_flag, born = struct.unpack_from(">qqiq", data, start + 20)
    position = start + 48
    hosts = []
    store = 0
    for bit in (0x10, 0x20):
        width = 16 if sys_flag & bit else 4
        address = ".".join(str(byte) for byte in data[position : position + width])
        (port,) = struct.unpack_from(">i", data, position + width)
        hosts.append(f"{address}:{port}")
        position += width + 4
        if bit == 0x10:
            (store,) = struct.unpack_from(">q", data, position)
            position += 8
    reconsume, prepared, body_length = struct.unpack_from(">iqi", data, position)
    position += 16
    body = data[position : position + body_length]
    position += body_length
    width = MAGICS[magic]
    topic_length = int.from_bytes(data[position : position + width], "big")
    position += width
    topic = data[position : position + topic_length].decode("utf-8")
    position += topic_length
    (properties_length,) = struct.unpack_from(">h", data, position)
    position += 2
    raw = data[position : position + properties_length]
    position += properties_length
    assert position == start + size, (position, start, size)
    properties = dict(
        item.split("\x01", 1) for item in raw.decode("utf-8").split("\x02") if "\x01" in item
    )
    return {
        "totalSize": size,
        "magic": magic,
        "bodyCRC": crc,
        "queueId": queue_id,
        "flag": flag,
        "queueOffset": queue_offset,
        "commitLogOffset": physical_offset,
        "sysFlag": sys_flag,
        "bornTimestamp": born,
        "bornHost": hosts[0],
        "storeTimestamp": store,
        "storeHost": hosts[1],
        "reconsumeTimes": reconsume,
        "preparedTransactionOffset": prepared,
        "body": body,
        "topic": topic,
        "properties": properties,
        "propertiesTail": raw[-1:],
    }, position


def loads_java(data: bytes) -> Any:
    """Parse fastjson's output, in which numbers and objects may be map keys.


    A key comes back as a string; an object key as its fields joined in alphabetical order.
    """
    text = data.decode("utf-8")
    value, position = _value(text, 0)
    assert position == len(text), (position, len(text), text[position : position + 40])
    return value


def _value(text: str, position: int) -> tuple[Any, int]:
    if text[position] == "{":
        return _object(text, position + 1)
    if text[position] == "[":
        return _array(text, position + 1)
    return json.JSONDecoder(strict=False).raw_decode(text, position)


def _object(text: str, position: int) -> tuple[dict[str, Any], int]:
    result: dict[str, Any] = {}
    while text[position] != "}":
        if text[position] == ",":
            position += 1
        key, position = _value(text, position)
        if isinstance(key, dict):
            key = "|".join(f"{name}={key[name]}" for name in sorted(key))
        assert text[position] == ":", (position, text[position - 20 : position + 20])
        result[str(key)], position = _value(text, position + 1)
    return result, position + 1


def _array(text: str, position: int) -> tuple[list[Any], int]:
    result: list[Any] = []
    while text[position] != "]":
        if text[position] == ",":
            position += 1
        item, position = _value(text, position)
        result.append(item)
    return result, position + 1
