"""A blocking connection for answers of MiBs: requests are sent ahead, bodies are not copied.

Job: `post` a request, `take` its answer later; in between the caller works on an earlier answer
while the peer works on this one.  It must not be shared between threads.

A body is received into a buffer that stays, so no page is touched for the first time again and
again; there are two in turn: what `take` gave holds until the next but one `take`.
"""

import struct

from cometmq.errors import ConnectFailed, RemoteProtocolError, RequestTimeout
from cometmq.net.blocking import BlockingChannel
from cometmq.net.tls import TlsContext
from cometmq.wire.command.command import (
    BINARY,
    FRAME_BYTES_MAX,
    JSON,
    RemotingCommand,
    decode_binary_header,
)
from cometmq.wire.frame.framing import decode_json_header

__all__ = ["PipelinedChannel"]

_FRAME_HEAD = struct.Struct(">iI")
_HEADER_BYTES_MASK = 0xFFFFFF
_STASH_MAX = 64


class PipelinedChannel(BlockingChannel):
    """One connection; answers are matched by opaque, whatever their order."""

    __slots__ = ("_bodies", "_stash", "_turn")

    def __init__(
        self, address: str, connect_timeout_ms: int = 3000, tls: TlsContext | None = None
    ) -> None:
        super().__init__(address, connect_timeout_ms, tls=tls)
        self._bodies = [memoryview(bytearray()), memoryview(bytearray())]
        self._turn = 0
        self._stash: dict[int, tuple[RemotingCommand, memoryview]] = {}

    def post(self, frame: bytes, timeout_ms: int) -> None:
        """Send an encoded request; ConnectFailed closes the channel."""
        self._write(frame, timeout_ms)

    def take(self, opaque: int, timeout_ms: int) -> tuple[RemotingCommand, memoryview]:
        """The answer to a posted request and its body; the command itself has no body.

        The timeout is for each wait, so an answer that keeps coming is taken to its end.
        RequestTimeout, ConnectFailed and RemoteProtocolError close the channel.
        """
        found = self._stash.pop(opaque, None)
        if found is not None:
            return found
        try:
            self._set_timeout(timeout_ms / 1000)
            while True:
                command, body = self._frame()
                if not command.flag & 1:
                    continue
                if command.opaque == opaque:
                    return command, body
                if len(self._stash) >= _STASH_MAX:
                    raise RemoteProtocolError(
                        f"{self.address} answers what was not asked: opaque {command.opaque}"
                    )
                self._stash[command.opaque] = command, memoryview(bytes(body))
        except (TimeoutError, BlockingIOError) as error:
            self.close()
            raise RequestTimeout(f"{self.address} did not answer within {timeout_ms} ms") from error
        except (RemoteProtocolError, ConnectFailed):
            self.close()
            raise
        except OSError as error:
            self.close()
            raise ConnectFailed(
                f"the connection to {self.address} broke: {error.strerror or error}"
            ) from error

    def _frame(self) -> tuple[RemotingCommand, memoryview]:
        head = bytearray(_FRAME_HEAD.size)
        self._fill(memoryview(head))
        length, packed = _FRAME_HEAD.unpack(head)
        header_bytes = packed & _HEADER_BYTES_MASK
        body_bytes = length - 4 - header_bytes
        if not 4 <= length <= FRAME_BYTES_MAX - 4 or body_bytes < 0:
            raise RemoteProtocolError(
                f"{self.address} sent a frame of length {length} with a header of {header_bytes}"
            )
        header = bytearray(header_bytes)
        self._fill(memoryview(header))
        kind = packed >> 24
        if kind == JSON:
            command = decode_json_header(bytes(header))
        elif kind == BINARY:
            command = decode_binary_header(bytes(header))
        else:
            raise RemoteProtocolError(f"serialization type {kind} is unknown")
        self._turn ^= 1
        if len(self._bodies[self._turn]) < body_bytes:
            # A little more than needed: the next answer is about as long.
            room = min(FRAME_BYTES_MAX, body_bytes + body_bytes // 8)
            self._bodies[self._turn] = memoryview(bytearray(room))
        body = self._bodies[self._turn][:body_bytes]
        self._fill(body)
        return command, body

    def _fill(self, view: memoryview) -> None:
        receive = self._socket.recv_into
        place, end = 0, len(view)
        while place < end:
            count = receive(view[place:])
            if not count:
                self.close()
                raise ConnectFailed(f"the connection to {self.address} was closed by the peer")
            place += count
