"""A raw client that sends whole frames, half frames or garbage, and leaves rudely.

It puts exactly the bytes of a test on a real socket and reads the frames that come back.
It never retries, reconnects or hides an error.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Mapping
from types import TracebackType

from cometmq.errors import CometError
from cometmq.net.network import parse_address
from cometmq.wire.command.command import RemotingCommand, encode_command
from cometmq.wire.frame.framing import FrameReader

__all__ = ["PeerClosed", "RawClient"]

READ_BYTES = 65_536


class PeerClosed(CometError):
    """The server ended the connection instead of answering."""


class RawClient:
    """One blocking TCP connection; a context manager."""

    def __init__(self, address: str, *, timeout_s: float = 10.0) -> None:
        self._socket = socket.create_connection(parse_address(address), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = FrameReader()
        self._frames: list[RemotingCommand] = []
        self._opaque = 0

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def frame(
        self,
        code: int,
        ext_fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        oneway: bool = False,
    ) -> bytes:
        """Make a well-formed request with its own opaque."""
        self._opaque += 1
        command = RemotingCommand.request(
            code, dict(ext_fields or {}), body, opaque=self._opaque, oneway=oneway
        )
        return encode_command(command)

    def call(
        self, code: int, ext_fields: Mapping[str, str] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """Send a request and read the next frame."""
        self.send(self.frame(code, ext_fields, body))
        return self.receive()

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self._socket.sendall(data)

    def send_slowly(self, data: bytes) -> None:
        """Send bytes one by one, each in its own segment."""
        for position in range(len(data)):
            self._socket.sendall(data[position : position + 1])

    def receive(self) -> RemotingCommand:
        """Return the next frame.

        Raises:
            PeerClosed: the connection ended first.
            TimeoutError: nothing came in time.
        """
        while not self._frames:
            try:
                data = self._socket.recv(READ_BYTES)
            except ConnectionError as error:
                raise PeerClosed(f"connection lost: {error}") from error
            if not data:
                raise PeerClosed("the server closed the connection")
            self._frames.extend(self._reader.receive(data))
        return self._frames.pop(0)

    def is_closed_by_peer(self) -> bool:
        """Wait until the server ends the connection; False if it is still open at the timeout."""
        try:
            while True:
                self.receive()
        except PeerClosed:
            return True
        except TimeoutError:
            return False

    def half_close(self) -> None:
        """End the sending direction and keep reading."""
        self._socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Reset the connection without a regular end."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def shrink_receive_buffer(self, size_bytes: int) -> None:
        """Make the kernel's receive buffer small, so that the server notices a slow reader."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size_bytes)

    def close(self) -> None:
        """Close the connection regularly."""
        with contextlib.suppress(OSError):
            self._socket.close()
