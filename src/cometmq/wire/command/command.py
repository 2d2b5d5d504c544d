"""RemotingCommand: one request or response, and its two header encodings.

Frame, big-endian (``RemotingCommand``, ``RocketMQSerializable``; docs/internals/protocol.md#frames
and #flags-and-opaque)::

    0      4    5            8
    |length|type|header_bytes|header...|body...|

``length`` counts what follows it.  Type 0 is a JSON object, type 1 this binary header::

    0    2        3       5      9    13
    |code|language|version|opaque|flag|remark_bytes|remark...|ext_bytes|ext...|

with ext a repetition of ``key_bytes 2, key, value_bytes 4, value``.  An empty value means "null"
to Java, so decoding drops it.

A command that was read keeps its ext fields as raw JSON. A typed header (``wire.header``) decodes
straight from them, at half the price of a dictionary.
Writing is strict whatever was read: compact JSON, ext values always strings.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import msgspec

from cometmq.errors import LocalProtocolError, RemoteProtocolError
from cometmq.wire.command.codes import (
    CODE_MAX,
    CODE_MIN,
    JSON_ONLY_CODES,
    LANGUAGE,
    LANGUAGE_CODES,
    LANGUAGE_NAMES,
    LANGUAGE_OTHER,
    VERSION,
    LanguageCode,
)
from cometmq.wire.command.lenient import decode_ext_lenient

__all__ = [
    "BINARY",
    "BINARY_HEAD_BYTES",
    "FLAG_ONEWAY",
    "FLAG_RESPONSE",
    "FRAME_BYTES_MAX",
    "FRAME_HEAD",
    "JSON",
    "RemotingCommand",
    "decode_binary_header",
    "encode_command",
    "encode_json_text",
    "encode_response",
    "encode_response_parts",
    "frame_json",
]

JSON: Final = 0
BINARY: Final = 1
FLAG_RESPONSE: Final = 1
FLAG_ONEWAY: Final = 2
# Counts the length field too. A peer closes the connection on longer frames (``NettyDecoder``).
FRAME_BYTES_MAX: Final = 16_777_216

_INT32_MIN: Final = -(2**31)
_INT32_MAX: Final = 2**31 - 1
_Int32 = Annotated[int, msgspec.Meta(ge=_INT32_MIN, le=_INT32_MAX)]
FRAME_HEAD: Final = struct.Struct(
    ">"
    "i"  # length of what follows
    "I"  # serialization type << 24 | header bytes
)
_BINARY_HEAD: Final = struct.Struct(
    ">"
    "h"  # code
    "B"  # language
    "h"  # version
    "i"  # opaque
    "i"  # flag
    "i"  # remark bytes
)
BINARY_HEAD_BYTES: Final = 17
_INT: Final = struct.Struct(">i")
_HEADER_BYTES_MAX: Final = 0xFFFFFF

_EXT_DECODER: Final = msgspec.json.Decoder(dict[str, str])
_encode_json = msgspec.json.Encoder().encode
_NO_RAW: Final = msgspec.Raw()


class RemotingCommand(
    msgspec.Struct,
    gc=False,
    rename={
        "raw_ext": "extFields",
        "decoded_ext": "-ext",
        "body": "-body",
        "serialize_type": "-type",
    },
):
    """A request or response.

    ``code``, ``opaque``, ``flag`` and ``version`` are 32-bit numbers; ``language`` is the peer's
    word, known or not; ``remark`` is error text.  ``body`` is b"" when the frame has none.
    ``serialize_type`` is JSON or BINARY; a server answers in the type of the request.
    ``request``, ``response`` and ``answer`` build commands. ``raw_ext`` and ``decoded_ext`` belong
    to the decoder; everybody else uses ``ext_fields``.

    ``gc=False``: a command refers to nothing that could refer back to it.
    """

    code: _Int32 = 0
    opaque: _Int32 = 0
    flag: _Int32 = 0
    language: str = ""
    version: _Int32 = 0
    remark: str | None = None
    raw_ext: msgspec.Raw = _NO_RAW
    decoded_ext: dict[str, str] | None = None
    body: bytes = b""
    serialize_type: int = JSON

    @staticmethod
    def request(
        code: int,
        ext_fields: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        opaque: int = 0,
        oneway: bool = False,
        serialize_type: int = JSON,
    ) -> "RemotingCommand":
        """Return a new request in our language and version."""
        return RemotingCommand(
            code,
            opaque,
            FLAG_ONEWAY if oneway else 0,
            LANGUAGE,
            VERSION,
            None,
            _NO_RAW,
            ext_fields,
            body,
            serialize_type,
        )

    @staticmethod
    def response(
        code: int,
        remark: str | None = None,
        ext_fields: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        opaque: int = 0,
        serialize_type: int = JSON,
    ) -> "RemotingCommand":
        """Return a new response; opaque and type are those of the request it answers."""
        return RemotingCommand(
            code,
            opaque,
            FLAG_RESPONSE,
            LANGUAGE,
            VERSION,
            remark,
            _NO_RAW,
            ext_fields,
            body,
            serialize_type,
        )

    def answer(
        self,
        code: int,
        remark: str | None = None,
        ext_fields: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> "RemotingCommand":
        """Return a response to this request: same opaque, same serialization type."""
        return RemotingCommand(
            code,
            self.opaque,
            FLAG_RESPONSE,
            LANGUAGE,
            VERSION,
            remark,
            _NO_RAW,
            ext_fields,
            body,
            self.serialize_type,
        )

    @property
    def is_response(self) -> bool:
        """Whether flag bit 0 is set."""
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """Whether flag bit 1 is set: never answer."""
        return self.flag & FLAG_ONEWAY != 0

    @property
    def ext_fields(self) -> dict[str, str]:
        """The ext fields, values as strings; assign a dictionary to change them.

        A command without any returns a new empty dictionary, and changing that changes nothing.

        Raises:
            RemoteProtocolError: the peer sent something other than an object.
        """
        ext = self.decoded_ext
        if ext is None:
            if not self.has_ext_fields:
                return {}
            ext = self.decoded_ext = _decode_ext(self.raw_ext)
        return ext

    @ext_fields.setter
    def ext_fields(self, value: dict[str, str] | None) -> None:
        self.decoded_ext = value
        self.raw_ext = _NO_RAW

    @property
    def has_ext_fields(self) -> bool:
        """Whether the header carried ext fields at all, possibly none inside."""
        return self.decoded_ext is not None or bytes(self.raw_ext) not in (b"", b"null")


def _decode_ext(raw: msgspec.Raw) -> dict[str, str]:
    try:
        return _EXT_DECODER.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return decode_ext_lenient(bytes(raw))


def encode_json_text(text: str) -> bytes:
    """Return a string as a JSON literal.

    Raises:
        LocalProtocolError: it has half a surrogate pair.
    """
    try:
        return _encode_json(text)
    except UnicodeEncodeError:
        raise LocalProtocolError(f"{text[:80]!r} is not valid Unicode") from None


def _encode_ext(ext_fields: Mapping[str, str]) -> bytes:
    for name, value in ext_fields.items():
        if type(value) is not str:
            raise LocalProtocolError(
                f"ext field {name!r} is {value!r}; every ext value travels as a string"
            )
    try:
        return _encode_json(ext_fields)
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"an ext field is not valid Unicode: {error.reason}") from None


def frame_json(header: bytes, body: bytes) -> bytes:
    """Return the frame of a finished JSON header and a body.

    Raises:
        LocalProtocolError: the frame is longer than peers accept.
    """
    header_bytes = len(header)
    length = 4 + header_bytes + len(body)
    if length + 4 > FRAME_BYTES_MAX:
        raise _too_long(length + 4)
    return b"%b%b%b" % (FRAME_HEAD.pack(length, header_bytes), header, body)


def _too_long(frame_bytes: int) -> LocalProtocolError:
    return LocalProtocolError(
        f"a frame of {frame_bytes} bytes is longer than {FRAME_BYTES_MAX}, which peers refuse;"
        " send less at once"
    )


def _check_numbers(command: RemotingCommand) -> None:
    code = command.code
    if not CODE_MIN <= code <= CODE_MAX and code not in JSON_ONLY_CODES:
        raise LocalProtocolError(f"code {code} does not fit 16 bits")
    if not _INT32_MIN <= command.opaque <= _INT32_MAX:
        raise LocalProtocolError(f"opaque {command.opaque} does not fit 32 bits")
    if not CODE_MIN <= command.version <= CODE_MAX:
        raise LocalProtocolError(f"version {command.version} does not fit 16 bits")


def encode_command(command: RemotingCommand) -> bytes:
    """Return the frame of a command in its own serialization type.

    Raises:
        LocalProtocolError: the protocol cannot carry it.
    """
    _check_numbers(command)
    ext = command.ext_fields if command.has_ext_fields else None
    language = command.language or LANGUAGE
    version = command.version or VERSION
    if command.serialize_type == BINARY:
        return _encode_binary(command, language, version, ext)
    parts = [b'{"code":%d' % command.code]
    if ext is not None:
        parts.append(b',"extFields":' + _encode_ext(ext))
    parts.append(
        b',"flag":%d,"language":%b,"opaque":%d'
        % (command.flag, encode_json_text(language), command.opaque)
    )
    if command.remark is not None:
        parts.append(b',"remark":' + encode_json_text(command.remark))
    parts.append(b',"serializeTypeCurrentRPC":"JSON","version":%d}' % version)
    return frame_json(b"".join(parts), command.body)


def _encode_binary(
    command: RemotingCommand, language: str, version: int, ext: Mapping[str, str] | None
) -> bytes:
    if command.code > CODE_MAX:
        raise LocalProtocolError(
            f"code {command.code} does not fit a binary header; send it with a JSON header"
        )
    header = _binary_header(
        command.code,
        LANGUAGE_CODES.get(language, LanguageCode.OTHER),
        version,
        command.opaque,
        command.flag,
        command.remark,
        ext,
    )
    return _frame_head(BINARY, len(header), len(command.body)) + header + command.body


def _binary_header(
    code: int,
    language: int,
    version: int,
    opaque: int,
    flag: int,
    remark: str | None,
    ext: Mapping[str, str] | None,
) -> bytes:
    raw_remark = b"" if remark is None else _utf8(remark)
    parts: list[bytes] = []
    for name, value in (ext or {}).items():
        raw_name = _utf8(name)
        raw_value = _utf8(value)
        if len(raw_name) > CODE_MAX:
            raise LocalProtocolError(f"ext field name of {len(raw_name)} bytes is too long")
        parts += (
            len(raw_name).to_bytes(2, "big"),
            raw_name,
            _INT.pack(len(raw_value)),
            raw_value,
        )
    raw_ext = b"".join(parts)
    head = _BINARY_HEAD.pack(code, language, version, opaque, flag, len(raw_remark))
    return b"".join((head, raw_remark, _INT.pack(len(raw_ext)), raw_ext))


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except (UnicodeEncodeError, AttributeError):
        raise LocalProtocolError(f"{text!r:.80} is not a valid Unicode string") from None


def _frame_head(serialize_type: int, header_bytes: int, body_bytes: int) -> bytes:
    length = 4 + header_bytes + body_bytes
    if header_bytes > _HEADER_BYTES_MAX or length + 4 > FRAME_BYTES_MAX:
        raise _too_long(length + 4)
    return FRAME_HEAD.pack(length, serialize_type << 24 | header_bytes)


_RESPONSE_TAIL: Final = b',"serializeTypeCurrentRPC":"JSON","version":%d}' % VERSION
_RESPONSE_FLAG: Final = b',"flag":1,"language":"%b","opaque":' % LANGUAGE.encode()


def _response_header(
    opaque: int, serialize_type: int, code: int, remark: str | None, ext: Mapping[str, str] | None
) -> bytes:
    if serialize_type == BINARY:
        return _binary_header(
            code, LanguageCode.PYTHON, VERSION, opaque, FLAG_RESPONSE, remark, ext
        )
    raw_ext = b"" if ext is None else b',"extFields":' + _encode_ext(ext)
    raw_remark = b"" if remark is None else b',"remark":' + encode_json_text(remark)
    return b'{"code":%d%b%b%d%b%b' % (
        code,
        raw_ext,
        _RESPONSE_FLAG,
        opaque,
        raw_remark,
        _RESPONSE_TAIL,
    )


def encode_response(
    opaque: int,
    serialize_type: int,
    code: int,
    remark: str | None = None,
    ext: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> bytes:
    """Return the frame of a response to the request with this opaque and serialization type."""
    header = _response_header(opaque, serialize_type, code, remark, ext)
    return b"%b%b%b" % (_frame_head(serialize_type, len(header), len(body)), header, body)


def encode_response_parts(
    opaque: int,
    serialize_type: int,
    code: int,
    remark: str | None,
    ext: Mapping[str, str] | None,
    chunks: Sequence[bytes | memoryview],
) -> list[bytes | memoryview]:
    """Return the buffers of a response whose body is already in pieces, without joining them."""
    header = _response_header(opaque, serialize_type, code, remark, ext)
    body_bytes = 0
    for chunk in chunks:
        body_bytes += len(chunk)
    return [_frame_head(serialize_type, len(header), body_bytes) + header, *chunks]


def decode_binary_header(header: bytes) -> RemotingCommand:
    """Return the command of a binary header.

    Raises:
        RemoteProtocolError: a field leaves the header; the text names it.
    """
    if len(header) < BINARY_HEAD_BYTES + 4:
        raise RemoteProtocolError(
            f"a binary header has at least {BINARY_HEAD_BYTES + 4} bytes, got {len(header)}"
        )
    code, language, version, opaque, flag, remark_bytes = _BINARY_HEAD.unpack_from(header, 0)
    remark_end = BINARY_HEAD_BYTES + remark_bytes
    if remark_bytes < 0 or remark_end + 4 > len(header):
        raise RemoteProtocolError(
            f"the remark of {remark_bytes} bytes does not fit a binary header of {len(header)}"
        )
    remark = None
    if remark_bytes:
        remark = header[BINARY_HEAD_BYTES:remark_end].decode("utf-8", "replace")
    (ext_bytes,) = _INT.unpack_from(header, remark_end)
    position = remark_end + 4
    if ext_bytes < 0 or position + ext_bytes > len(header):
        raise RemoteProtocolError(
            f"ext fields of {ext_bytes} bytes do not fit a binary header of {len(header)}"
        )
    return RemotingCommand(
        code,
        opaque,
        flag,
        LANGUAGE_NAMES.get(language, LANGUAGE_OTHER),
        version,
        remark,
        _NO_RAW,
        _decode_binary_ext(header, position, position + ext_bytes) if ext_bytes else None,
        b"",
        BINARY,
    )


def _decode_binary_ext(header: bytes, position: int, end: int) -> dict[str, str]:
    ext: dict[str, str] = {}
    while position < end:
        name_start = position + 2
        if name_start > end:
            raise _broken_ext(position)
        name_end = name_start + ((header[position] << 8) | header[position + 1])
        value_start = name_end + 4
        if value_start > end:
            raise _broken_ext(position)
        value_bytes = int.from_bytes(header[name_end:value_start], "big", signed=True)
        position = value_start + value_bytes
        if value_bytes < 0 or position > end:
            raise _broken_ext(name_end)
        if value_bytes:
            name = header[name_start:name_end].decode("utf-8", "replace")
            ext[name] = header[value_start:position].decode("utf-8", "replace")
    return ext


def _broken_ext(position: int) -> RemoteProtocolError:
    return RemoteProtocolError(f"the ext field at byte {position} of a binary header is cut short")
