"""The blocking side of a client connection: the same sans-IO framing over a plain socket.

A thread that sends and waits needs no event loop: a hop to a background loop costs a third of the
rate. One lock per channel makes it safe to share between threads; requests are then one at a time.

A request is two system calls: the kernel keeps the timeout (SO_RCVTIMEO), where Python's own would
poll before each of them, and what is read goes into a buffer that is there already.
"""

import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable

from cometmq.errors import ConnectFailed, RemoteProtocolError, RequestTimeout
from cometmq.net.network import foreign_protocol, not_a_host, parse_address
from cometmq.net.tls import TlsContext, wrap_socket
from cometmq.wire.command.command import RemotingCommand, encode_command
from cometmq.wire.frame.framing import FrameReader

__all__ = ["BlockingChannel"]

READ_BYTES = 64 * 1024
_TIMEVAL = struct.Struct("@ll")


class BlockingChannel:
    """One connection, one request at a time; ``on_request`` is told of the server's requests."""

    __slots__ = (
        "_buffer",
        "_has_kernel_timeout",
        "_lock",
        "_on_request",
        "_opaque",
        "_reader",
        "_socket",
        "_timeout_s",
        "address",
        "is_closed",
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
        self._reader = FrameReader()
        self._lock = threading.Lock()
        self._on_request = on_request
        self._opaque = 0
        self.address = address
        self.is_closed = False

    def next_opaque(self) -> int:
        """A number for the next request; call it while no other thread has one in flight."""
        self._opaque = opaque = (self._opaque + 1) & 0x7FFFFFFF
        return opaque

    def request(self, command: RemotingCommand, timeout_ms: int = 3000) -> RemotingCommand:
        """Send and wait for the response; RequestTimeout and ConnectFailed close the channel."""
        return self.exchange(lambda opaque: _with_opaque(command, opaque), timeout_ms)

    def exchange(self, encode: Callable[[int], bytes], timeout_ms: int = 3000) -> RemotingCommand:
        """Send what ``encode(opaque)`` gives and wait for the response of that opaque."""
        with self._lock:
            opaque = self.next_opaque()
            self._write(encode(opaque), timeout_ms)
            return self._read_until(opaque, timeout_ms)

    def oneway(self, command: RemotingCommand, timeout_ms: int = 3000) -> None:
        """Send a one-way request."""
        command.flag |= 2
        with self._lock:
            self._write(_with_opaque(command, self.next_opaque()), timeout_ms)

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
                for command in self._reader.receive(data):
                    self._serve(command)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except (OSError, RemoteProtocolError):
            self.close()
            return False
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the socket; a request waiting in another thread fails."""
        self.is_closed = True
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
        """What has arrived already; BlockingIOError if nothing has."""
        if self._has_kernel_timeout:
            count = self._socket.recv_into(self._buffer, 0, socket.MSG_DONTWAIT)
            return bytes(self._buffer[:count])
        self._set_timeout(0.0)
        return self._read()

    def _write(self, frame: bytes, timeout_ms: int) -> None:
        if self.is_closed:
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

    def _read_until(self, opaque: int, timeout_ms: int) -> RemotingCommand:
        deadline = 0.0
        while True:
            try:
                data = self._read()
                commands = self._reader.receive(data) if data else None
            except (TimeoutError, BlockingIOError) as error:
                # The answer may still come and would be taken for another request's: reconnect.
                self.close()
                raise RequestTimeout(
                    f"{self.address} did not answer within {timeout_ms} ms"
                ) from error
            except RemoteProtocolError as error:
                self.close()
                raise foreign_protocol(self.address, error) from error
            except OSError as error:
                self.close()
                raise ConnectFailed(
                    f"the connection to {self.address} broke: {error.strerror or error}"
                ) from error
            if commands is None:
                self.close()
                raise ConnectFailed(f"the connection to {self.address} was closed by the peer")
            found: RemotingCommand | None = None
            for command in commands:
                if command.flag & 1:
                    if command.opaque == opaque:
                        found = command
                else:
                    self._serve(command)
            if found is not None:
                return found
            # Only a peer that keeps sending other things gets here: bound the whole wait.
            now = time.monotonic()
            if deadline == 0.0:
                deadline = now + timeout_ms / 1000
            elif now >= deadline:
                self.close()
                raise RequestTimeout(f"{self.address} did not answer within {timeout_ms} ms")

    def _serve(self, command: RemotingCommand) -> None:
        if self._on_request is None or command.flag & 1:
            return
        answer = self._on_request(command)
        if answer is not None and not command.flag & 2:
            answer.opaque = command.opaque
            timeout_ms = int(self._timeout_s * 1000)
            self._write(encode_command(answer), timeout_ms if timeout_ms > 0 else 3_000)


def _with_opaque(command: RemotingCommand, opaque: int) -> bytes:
    command.opaque = opaque
    return encode_command(command)
