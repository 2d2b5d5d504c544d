"""Cuts a byte stream into commands, without I/O.

`FrameReader.receive` takes whatever a transport delivered and returns every command that is
complete. It holds at most one unfinished frame, at most ``frame_bytes_max`` long, and refuses
impossible lengths as soon as it sees them. After one RemoteProtocolError the position in the stream
is unknown, so the reader stays closed.

Headers are decoded here, bodies are not. Ext fields stay as the header has them and are decoded
where they are used, save those of a SEND_MESSAGE_V2, a PULL_MESSAGE and an END_TRANSACTION for a
reader that ``has_fast_commands``.
"""

from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar, overload

import msgspec

from cometmq.errors import RemoteProtocolError
from cometmq.wire.command.command import (
    BINARY,
    FRAME_BYTES_MAX,
    FRAME_HEAD,
    JSON,
    RemotingCommand,
    decode_binary_header,
)
from cometmq.wire.command.lenient import decode_header_lenient
from cometmq.wire.header.fast_decode import (
    BINARY_SEND_START,
    END_COMMAND_START,
    SEND_COMMAND_START,
    EndCommand,
    PlainSend,
    SendCommand,
    decode_end_command,
    decode_send_command,
    plain_send_of,
)

__all__ = [
    "FRAME_BYTES_MAX",
    "HEAD_BYTES",
    "FrameReader",
    "ServerCommand",
    "decode_frame",
    "decode_header",
    "decode_json_header",
    "full_command",
    "split_head",
]

ServerCommand: TypeAlias = RemotingCommand | SendCommand | EndCommand
"""What a reader that ``has_fast_commands`` gives."""
C = TypeVar("C")

_HEADER_BYTES_MASK: Final = 0xFFFFFF
_LENGTH_BYTES: Final = 4
HEAD_BYTES: Final = 8
_unpack_head: Final = FRAME_HEAD.unpack_from
"""How long the head of a frame is: its length, and type and length of its header."""

_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)

_decode_command = msgspec.json.Decoder(RemotingCommand).decode


def decode_json_header(header: bytes) -> RemotingCommand:
    """Return the command of a JSON header.

    Raises:
        RemoteProtocolError: it is no JSON header.
    """
    try:
        command = _decode_command(header)
    except _UNREADABLE:
        return _decode_leniently(header)
    # Unknown keys are ignored, and so are the names of the fields that are ours alone.
    command.serialize_type = JSON
    command.decoded_ext = None
    command.body = b""
    return command


def _decode_leniently(header: bytes) -> RemotingCommand:
    code, opaque, flag, language, version, remark, ext = decode_header_lenient(header)
    command = RemotingCommand(code, opaque, flag, language, version, remark)
    command.decoded_ext = ext
    return command


def decode_header(serialize_type: int, header: bytes) -> RemotingCommand:
    """Return the command of a header, without its body.

    Raises:
        RemoteProtocolError: it is none, or of an unknown type.
    """
    if serialize_type == JSON:
        return decode_json_header(header)
    if serialize_type == BINARY:
        return decode_binary_header(header)
    raise RemoteProtocolError(
        f"serialization type {serialize_type} is unknown; 0 is JSON, 1 is binary"
    )


def split_head(head: bytes | bytearray) -> tuple[int, int, int]:
    """Return serialization type, length of the header and length of the body of a frame.

    Raises:
        RemoteProtocolError: no frame has such a head.
    """
    length, packed = FRAME_HEAD.unpack(head)
    header_bytes = packed & _HEADER_BYTES_MASK
    body_bytes = length - _LENGTH_BYTES - header_bytes
    if body_bytes < 0 or length + _LENGTH_BYTES > FRAME_BYTES_MAX:
        raise _bad_length(length, header_bytes, FRAME_BYTES_MAX)
    return packed >> 24, header_bytes, body_bytes


def full_command(command: SendCommand) -> RemotingCommand:
    """Return a send that was decoded in one pass as any other command."""
    full = decode_header(command.serialize_type, command.header)
    full.body = command.body
    return full


def _fast_command(
    serialize_type: int, header: bytes, body: bytes
) -> SendCommand | EndCommand | None:
    """Return a send or the end of a transaction decoded in one pass; None for others."""
    try:
        if serialize_type == JSON:
            if header.startswith(SEND_COMMAND_START):
                send = decode_send_command(header)
                # No peer can set what is ours.
                send.serialize_type = JSON
                send.header = header
                send.body = body
                return send
            if header.startswith(END_COMMAND_START):
                return decode_end_command(header)
        elif serialize_type == BINARY and header.startswith(BINARY_SEND_START):
            command = decode_binary_header(header)
            ext = plain_send_of(command, PlainSend)
            return SendCommand(
                command.code, ext, command.opaque, command.flag, header, body, BINARY
            )
    except _UNREADABLE:
        pass
    return None


class FrameReader(Generic[C]):
    """Turns received bytes into commands; each side of a connection has one."""

    __slots__ = (
        "_complete",
        "_error",
        "_frame_bytes_max",
        "_has_fast_commands",
        "_needed",
        "_pending",
    )

    @overload
    def __init__(
        self: "FrameReader[RemotingCommand]",
        frame_bytes_max: int = ...,
        *,
        has_fast_commands: Literal[False] = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: "FrameReader[ServerCommand]", frame_bytes_max: int = ..., *, has_fast_commands: bool
    ) -> None: ...
    def __init__(
        self, frame_bytes_max: int = FRAME_BYTES_MAX, *, has_fast_commands: bool = False
    ) -> None:
        """``frame_bytes_max`` includes the length field.

        ``has_fast_commands`` lets ``receive`` give a ``SendCommand`` for a plain
        SEND_MESSAGE_V2 and an ``EndCommand`` for an END_TRANSACTION, which only a server's handlers
        of those know.
        """
        self._frame_bytes_max = frame_bytes_max
        self._has_fast_commands = has_fast_commands
        # The start of an unfinished frame, and how long it must grow before parsing it pays.
        self._pending = bytearray()
        self._needed = 0
        self._error: str | None = None
        self._complete: list[C] = []

    @property
    def is_closed(self) -> bool:
        """Whether a protocol error ended this stream."""
        return self._error is not None

    @property
    def pending_bytes(self) -> int:
        """How many bytes of an unfinished frame the reader holds."""
        return len(self._pending)

    def receive(self, data: bytes) -> list[C]:
        """Return the commands that these bytes complete, in order; an empty list asks for more.

        After an error `take_complete` gives the commands before the bad bytes.

        Raises:
            RemoteProtocolError: bytes that are no frame, now or in an earlier call.
        """
        return self.parse(self.join(data), 0)

    def join(self, data: bytes) -> bytes:
        """Return received bytes behind the unfinished frame before them, for `parse`.

        They are empty while that frame is still unfinished, and after an error.
        """
        if self._error is not None:
            return b""
        if self._needed:
            self._pending += data
            if len(self._pending) < self._needed:
                return b""
            data = bytes(self._pending)
            self._pending.clear()
            self._needed = 0
        return data if type(data) is bytes else bytes(data)

    def parse(self, data: bytes, position: int) -> list[C]:
        """Return the commands of what `join` gave, from a position between two frames on.

        Raises:
            RemoteProtocolError: as `receive`.
        """
        if self._error is not None:
            raise RemoteProtocolError(self._error)
        commands: list[C] = []
        try:
            self._parse(data, position, commands)
        except RemoteProtocolError as error:
            self._error = str(error)
            self._pending.clear()
            self._complete = commands
            raise
        return commands

    def take_complete(self) -> list[C]:
        """Return, once, the commands that preceded the bytes that closed this reader."""
        complete, self._complete = self._complete, []
        return complete

    def _parse(self, data: bytes, position: int, commands: list[Any]) -> None:
        end = len(data)
        has_fast_commands = self._has_fast_commands
        length_end = self._frame_bytes_max - _LENGTH_BYTES + 1
        while end - position >= HEAD_BYTES:
            length, packed = _unpack_head(data, position)
            frame_end = position + _LENGTH_BYTES + length
            header_start = position + HEAD_BYTES
            header_end = header_start + (packed & _HEADER_BYTES_MASK)
            # An impossible length must be refused now, not waited for.
            if header_end > frame_end or length >= length_end:
                raise _bad_length(length, packed & _HEADER_BYTES_MASK, self._frame_bytes_max)
            if frame_end > end:
                break
            serialize_type = packed >> 24
            header = data[header_start:header_end]
            body = data[header_end:frame_end]
            position = frame_end
            command: Any = None
            if has_fast_commands:
                command = _fast_command(serialize_type, header, body)
            if command is None:
                command = decode_header(serialize_type, header)
                command.body = body
            commands.append(command)
        if position < end:
            self._keep(data, position)

    def _keep(self, data: bytes, position: int) -> None:
        """Hold the data from ``position`` on until its frame can be complete."""
        start = data[position:]
        # A bad length is refused when its four bytes are there, a bad header length at eight.
        needed = _LENGTH_BYTES
        if len(start) >= _LENGTH_BYTES:
            needed = HEAD_BYTES
            length = int.from_bytes(start[:_LENGTH_BYTES], "big", signed=True)
            if length < _LENGTH_BYTES or length + _LENGTH_BYTES > self._frame_bytes_max:
                raise _bad_length(length, 0, self._frame_bytes_max)
            if len(start) >= HEAD_BYTES:
                needed = _LENGTH_BYTES + length
        self._needed = needed
        self._pending += start


def _bad_length(length: int, header_bytes: int, frame_bytes_max: int) -> RemoteProtocolError:
    if length < _LENGTH_BYTES or length + _LENGTH_BYTES > frame_bytes_max:
        raw = length.to_bytes(_LENGTH_BYTES, "big", signed=True)
        # Servers of other protocols begin with words.
        word = f" ({raw.decode()!r})" if raw.isascii() and raw.decode().isprintable() else ""
        return RemoteProtocolError(
            f"frame length {length}{word} is out of range; {_LENGTH_BYTES} to"
            f" {frame_bytes_max - _LENGTH_BYTES} bytes may follow the length field"
        )
    return RemoteProtocolError(
        f"a header of {header_bytes} bytes does not fit a frame of length {length}"
    )


def decode_frame(frame: bytes) -> RemotingCommand:
    """Return the command of one frame.

    Raises:
        RemoteProtocolError: it is more or less than one frame.
    """
    commands = FrameReader().receive(frame)
    if len(commands) != 1:
        raise RemoteProtocolError(f"expected one frame, {len(frame)} bytes hold {len(commands)}")
    return commands[0]
