"""A client connection over a blocking socket, with the same sans-IO `Connection` as asyncio's.

A thread that sends and waits needs no event loop: handing requests to a background loop costs a
third of the rate. Threads may share a channel: its lock lets one request run at a time.

A request takes two system calls. The kernel watches the timeout (SO_RCVTIMEO), because Python's own
timeout would poll before each call. One buffer receives all answers.
"""

import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from cometmq import native
from cometmq.errors import ConnectFailed, RequestTimeout
from cometmq.net.channel import SendToken
from cometmq.net.network import foreign_protocol, not_a_host, parse_address
from cometmq.net.tls import TlsContext, wrap_socket
from cometmq.wire.command.command import FLAG_RESPONSE, RemotingCommand
from cometmq.wire.frame.connection import Connection
from cometmq.wire.frame.framing import FrameReader
from cometmq.wire.header.fast_decode import PlainSendAnswer

__all__ = ["BlockingChannel"]

READ_BYTES = 64 * 1024
_TIMEVAL = struct.Struct("@ll")
_take_natively: Final = native.take_send_answers
_SEND: Final = SendToken()
"""Waits for the answer to a send, of which one is in flight."""


class BlockingChannel:
    """One connection, one request at a time; ``on_request`` serves the server's requests.

    Raises:
        ConnectFailed: the connection could not be made, or the address has another form.
    """

    __slots__ = (
        "_buffer",
        "_connection",
        "_has_kernel_timeout",
        "_lock",
        "_on_request",
        "_socket",
        "_timeout_s",
        "address",
        "next_opaque",
    )

    def __init__(
        self,
        address: str,
        connect_timeout_ms: int = 3000,
        on_request: Callable[[RemotingCommand], RemotingCommand | None] | None = None,
        tls: TlsContext | None = None,
    ) -> None:
        host, port = parse_address(address)
        try:
            self._socket = socket.create_connection((host, port), connect_timeout_ms / 1000)
        except OSError as error:
            raise ConnectFailed(f"no connection to {address}: {error.strerror or error}") from error
        except UnicodeError as error:
            raise not_a_host(host, port) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self._socket = wrap_socket(self._socket, tls, host, address)
        # Under TLS a read may need a write first, which only Python's own timeout waits for.
        self._has_kernel_timeout = tls is None and os.name == "posix"
        if self._has_kernel_timeout:
            self._socket.settimeout(None)
        self._timeout_s = -1.0
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._connection: Connection[RemotingCommand, SendToken | bool] = Connection(FrameReader())
        self._lock = threading.Lock()
        self._on_request = on_request
        self.address = address
        self.next_opaque: Callable[[], int] = self._connection.next_opaque
        """Returns a number for the next request; no other thread may have one in flight."""

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended."""
        return self._connection.is_closed

    def request(self, command: RemotingCommand, timeout_ms: int = 3000) -> RemotingCommand:
        """Send a request and wait for its response. Either error closes the channel.

        Raises:
            RequestTimeout: no response came in time.
            ConnectFailed: the connection is closed or broke.
        """
        return self.exchange(
            lambda opaque: self._connection.encode_request(command, opaque), timeout_ms
        )

    def exchange(self, encode: Callable[[int], bytes], timeout_ms: int = 3000) -> RemotingCommand:
        """Send what ``encode(opaque)`` gives and wait for the response of that opaque."""
        with self._lock:
            connection = self._connection
            opaque = connection.next_opaque()
            frame = encode(opaque)
            connection.start_request(opaque, True)
            self._write(frame, timeout_ms)
            answer = self._read_answer(timeout_ms)
            assert isinstance(answer, RemotingCommand), "only a send is answered in the short form"
            return answer

    def exchange_send(
        self, encode: Callable[[int], bytes], timeout_ms: int = 3000
    ) -> RemotingCommand | PlainSendAnswer:
        """`exchange` for a send; the answer of a success has the short form where C reads it.  HOT.

        Raises:
            RequestTimeout, ConnectFailed: as `request`.
        """
        if _take_natively is None:
            return self.exchange(encode, timeout_ms)
        with self._lock:
            connection = self._connection
            opaque = connection.next_opaque()
            frame = encode(opaque)
            connection.start_request(opaque, _SEND)
            self._write(frame, timeout_ms)
            return self._read_answer(timeout_ms)

    def oneway(self, command: RemotingCommand, timeout_ms: int = 3000) -> None:
        """Send a one-way request."""
        with self._lock:
            self._write(self._connection.encode_oneway(command), timeout_ms)

    def send(self, encode: Callable[[int], bytes], timeout_ms: int = 3000) -> None:
        """Send what ``encode(opaque)`` gives without waiting for an answer."""
        with self._lock:
            self._write(encode(self.next_opaque()), timeout_ms)

    def poll(self) -> bool:
        """Serve requests of the server that have already arrived, without waiting.

        Returns:
            whether the connection is still open.
        """
        if not self._lock.acquire(blocking=False):
            return not self.is_closed
        try:
            if self.is_closed:
                return False
            while True:
                data = self._read_ready()
                if not data:
                    self.close()
                    return False
                for command in self._connection.receive_data(data):
                    self._serve(command)
                if self._connection.fault is not None:
                    self.close()
                    return False
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except (ConnectFailed, RequestTimeout):
            raise  # an answer of this client was not sent
        except OSError:
            self.close()
            return False
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the socket; a request waiting in another thread fails."""
        self._connection.close("this side closed it")
        self._socket.close()

    def fileno(self) -> int:
        """The socket's descriptor, or -1 once closed."""
        return self._socket.fileno()

    # -- inside -----------------------------------------------------------------------------

    def _set_timeout(self, timeout_s: float) -> None:
        # A system call; nearly every request has the same timeout.
        if timeout_s == self._timeout_s:
            return
        self._timeout_s = timeout_s
        if not self._has_kernel_timeout:
            self._socket.settimeout(timeout_s)
            return
        value = _TIMEVAL.pack(*divmod(max(1, int(timeout_s * 1_000_000)), 1_000_000))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)

    def _read(self) -> bytes:
        return bytes(self._buffer[: self._socket.recv_into(self._buffer)])

    def _read_ready(self) -> bytes:
        """Return the bytes that have arrived already.

        Raises:
            BlockingIOError: none have.
        """
        if self._has_kernel_timeout:
            count = self._socket.recv_into(self._buffer, 0, socket.MSG_DONTWAIT)
            return bytes(self._buffer[:count])
        self._set_timeout(0.0)
        return self._read()

    def _write(self, frame: bytes, timeout_ms: int) -> None:
        if self._connection.is_closed:
            raise ConnectFailed(f"the connection to {self.address} is closed")
        self._set_timeout(timeout_ms / 1000)
        try:
            self._socket.sendall(frame)
        except (TimeoutError, BlockingIOError) as error:
            self.close()
            raise RequestTimeout(
                f"{self.address} did not take {len(frame)} bytes within {timeout_ms} ms"
            ) from error
        except OSError as error:
            self.close()
            raise ConnectFailed(
                f"the connection to {self.address} broke: {error.strerror or error}"
            ) from error

    def _take_plain(self, data: bytes) -> tuple[int, PlainSendAnswer | None]:
        """Return where the plain answer at the beginning ends, and that answer to a send."""
        served: list[tuple[SendToken, PlainSendAnswer]] = []

        def take(data: bytes, waiting: dict[int, Any]) -> int:
            assert _take_natively is not None
            return _take_natively(data, waiting, served, SendToken, PlainSendAnswer)

        end = self._connection.take_answers(take, data)
        return end, served[0][1] if served else None

    def _receive(self, timeout_ms: int) -> bytes:
        """Return what the peer sends next."""
        try:
            data = self._read()
        except (TimeoutError, BlockingIOError) as error:
            # A late answer would be taken for another request's, so the channel closes.
            self.close()
            raise RequestTimeout(f"{self.address} did not answer within {timeout_ms} ms") from error
        except OSError as error:
            self.close()
            raise ConnectFailed(
                f"the connection to {self.address} broke: {error.strerror or error}"
            ) from error
        if not data:
            self.close()
            raise ConnectFailed(f"the connection to {self.address} was closed by the peer")
        return data

    def _read_answer(self, timeout_ms: int) -> RemotingCommand | PlainSendAnswer:
        """Return the answer to the one request in flight."""
        connection = self._connection
        deadline = 0.0
        while True:
            data = connection.join_data(self._receive(timeout_ms))
            end = 0
            answer: RemotingCommand | PlainSendAnswer | None = None
            if _take_natively is not None:
                end, answer = self._take_plain(data)
                if answer is not None and end == len(data):
                    return answer
            commands = connection.parse_data(data, end)
            if connection.fault is not None:
                self.close()
                raise foreign_protocol(self.address, connection.fault) from connection.fault
            for command in commands:
                if not command.flag & FLAG_RESPONSE:
                    self._serve(command)
                elif connection.take_request(command.opaque):
                    answer = command
            if answer is not None:
                return answer
            # The peer sends other commands, so the kernel's timeout does not bound the whole wait.
            now = time.monotonic()
            if deadline == 0.0:
                deadline = now + timeout_ms / 1000
            elif now >= deadline:
                self.close()
                raise RequestTimeout(f"{self.address} did not answer within {timeout_ms} ms")

    def _serve(self, command: RemotingCommand) -> None:
        if self._on_request is None or command.flag & FLAG_RESPONSE:
            return
        answer = self._on_request(command)
        frame = None if answer is None else self._connection.encode_answer(command, answer)
        if frame is not None:
            timeout_ms = int(self._timeout_s * 1000)
            self._write(frame, timeout_ms if timeout_ms > 0 else 3_000)
