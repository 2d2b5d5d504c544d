"""A blocking connection for answers of several MiB: requests are sent ahead, bodies not copied.

`post` sends requests, and `take` returns the answer to one of them later. In between, the caller
works on an earlier answer while the peer works on this one. Threads must not share a channel.

Bodies are received into two buffers in turn, so that receiving does not touch new pages each time.
The body that `take` returns is valid until the second `take` after it.
"""

from collections.abc import Sequence

from cometmq.errors import ConnectFailed, RemoteProtocolError, RequestTimeout
from cometmq.net.blocking import BlockingChannel
from cometmq.net.tls import TlsContext
from cometmq.wire.command.command import FLAG_RESPONSE, FRAME_BYTES_MAX, RemotingCommand
from cometmq.wire.frame.framing import HEAD_BYTES, decode_header, split_head

__all__ = ["PipelinedChannel"]


class PipelinedChannel(BlockingChannel):
    """One connection; answers are matched by opaque, whatever their order."""

    __slots__ = ("_bodies", "_early", "_turn")

    def __init__(
        self, address: str, connect_timeout_ms: int = 3000, tls: TlsContext | None = None
    ) -> None:
        super().__init__(address, connect_timeout_ms, tls=tls)
        self._bodies = [memoryview(bytearray()), memoryview(bytearray())]
        self._turn = 0
        self._early: dict[int, tuple[RemotingCommand, memoryview]] = {}
        """Answers that came before `take` asked for them, with copies of their bodies."""

    def post(self, commands: Sequence[RemotingCommand], timeout_ms: int) -> list[int]:
        """Send requests in one write and return their opaques; an error closes the channel.

        Raises:
            LocalProtocolError: the protocol cannot carry a request; the channel stays open.
            RequestTimeout: the peer did not take them in time.
            ConnectFailed: the connection is closed or broke.
        """
        connection = self._connection
        opaques = [connection.next_opaque() for _ in commands]
        frames = b"".join(map(connection.encode_request, commands, opaques))
        for opaque in opaques:
            connection.start_request(opaque, True)
        self._write(frames, timeout_ms)
        return opaques

    def take(self, opaque: int, timeout_ms: int) -> tuple[RemotingCommand, memoryview]:
        """Return the answer to a posted request and its body; the command itself has no body.

        ``timeout_ms`` is for each wait, so an answer that keeps coming is received to its end.
        An error closes the channel.

        Raises:
            RequestTimeout: nothing came in time.
            ConnectFailed: the connection is closed or broke.
            RemoteProtocolError: the peer sent bytes that are not a frame, or an answer to a request
                that was not sent.
        """
        early = self._early.pop(opaque, None)
        if early is not None:
            return early
        try:
            self._set_timeout(timeout_ms / 1000)
            while True:
                command, body = self._read_frame()
                if not command.flag & FLAG_RESPONSE:
                    continue
                if not self._connection.take_request(command.opaque):
                    raise RemoteProtocolError(
                        f"{self.address} answered a request that was not sent, with opaque "
                        f"{command.opaque}"
                    )
                if command.opaque == opaque:
                    return command, body
                self._early[command.opaque] = command, memoryview(bytes(body))
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

    def _read_frame(self) -> tuple[RemotingCommand, memoryview]:
        head = bytearray(HEAD_BYTES)
        self._fill(memoryview(head))
        serialize_type, header_bytes, body_bytes = split_head(head)
        header = bytearray(header_bytes)
        self._fill(memoryview(header))
        command = decode_header(serialize_type, bytes(header))
        self._turn ^= 1
        if len(self._bodies[self._turn]) < body_bytes:
            # A little more than needed: the next answer is about as long.
            size_bytes = min(FRAME_BYTES_MAX, body_bytes + body_bytes // 8)
            self._bodies[self._turn] = memoryview(bytearray(size_bytes))
        body = self._bodies[self._turn][:body_bytes]
        self._fill(body)
        return command, body

    def _fill(self, view: memoryview) -> None:
        receive = self._socket.recv_into
        position, end = 0, len(view)
        while position < end:
            count = receive(view[position:])
            if not count:
                self.close()
                raise ConnectFailed(f"the connection to {self.address} was closed by the peer")
            position += count
