"""Listens and connects. Everything above this room gets its network as an argument."""

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Protocol, TypeVar

from cometmq.errors import ConnectFailed, RemoteProtocolError

__all__ = [
    "Listener",
    "Network",
    "TcpNetwork",
    "foreign_protocol",
    "format_address",
    "local_ip",
    "not_a_host",
    "parse_address",
]

P = TypeVar("P", bound=asyncio.BaseProtocol)

LISTEN_BACKLOG = 1024
"""Connections the kernel queues while the loop is busy; Java has the same default."""


def foreign_protocol(address: str, fault: RemoteProtocolError) -> ConnectFailed:
    """Return the error of requests to a peer whose bytes are no frames: another kind of server."""
    return ConnectFailed(
        f"what {address} sends is not the remoting protocol: {fault}; check that the port is a "
        "RocketMQ broker's or name server's"
    )


class Listener(Protocol):
    """A listening endpoint."""

    @property
    def port(self) -> int:
        """The bound port, also when 0 was asked for."""
        ...

    def close(self) -> None:
        """Stop accepting; accepted connections stay open."""
        ...


class Network(Protocol):
    """Makes connections; ``TcpNetwork`` in production, an in-memory one in the simulator."""

    async def listen(
        self, host: str, port: int, accept: Callable[[], asyncio.Protocol]
    ) -> Listener:
        """Listen; ``accept`` makes the protocol of each new connection.

        Raises:
            ConnectFailed: the address cannot be bound.
        """
        ...

    async def connect(
        self, host: str, port: int, factory: Callable[[], P], timeout_ms: int = 3000
    ) -> P:
        """Connect; ``factory`` makes the protocol of the connection.

        Raises:
            ConnectFailed: no connection could be made; the text names address and cause.
        """
        ...


class _TcpListener:
    __slots__ = ("_server", "port")

    def __init__(self, server: asyncio.Server, port: int) -> None:
        self._server = server
        self.port = port

    def close(self) -> None:
        self._server.close()


class TcpNetwork:
    """Plain TCP on the running event loop."""

    __slots__ = ()

    async def listen(
        self, host: str, port: int, accept: Callable[[], asyncio.Protocol]
    ) -> Listener:
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(
                accept, host, port, backlog=LISTEN_BACKLOG, reuse_address=True
            )
        except OSError as error:
            raise ConnectFailed(
                f"cannot listen on {format_address(host, port)}: {error.strerror or error}; "
                f"{_listen_hint(error)}"
            ) from error
        return _TcpListener(server, server.sockets[0].getsockname()[1])

    async def connect(
        self, host: str, port: int, factory: Callable[[], P], timeout_ms: int = 3000
    ) -> P:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                _, protocol = await loop.create_connection(factory, host, port)
        except TimeoutError as error:
            raise ConnectFailed(
                f"no connection to {format_address(host, port)} within {timeout_ms} ms"
            ) from error
        except OSError as error:
            raise ConnectFailed(
                f"no connection to {format_address(host, port)}: {error.strerror or error}"
            ) from error
        except UnicodeError as error:
            raise not_a_host(host, port) from error
        return protocol


def _listen_hint(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "choose another port or stop the process that holds it"
    if error.errno in {errno.EACCES, errno.EPERM}:
        return "this user may not; choose a port above 1023"
    return "choose an address of this machine, or 0.0.0.0 for all of them"


def not_a_host(host: str, port: int) -> ConnectFailed:
    """Return the error for a host name that cannot be looked up: too long a label, or no text."""
    return ConnectFailed(
        f"no connection to {format_address(host, port)}: {host!a} is no host name; "
        "write a name or an IP address"
    )


def parse_address(address: str) -> tuple[str, int]:
    """Return ``host:port`` as a pair; an IPv6 host may stand in brackets.

    Raises:
        ConnectFailed: the text has another form.
    """
    host, separator, port = address.strip().rpartition(":")
    if not separator or not host or not port.isascii() or not port.isdigit():
        raise ConnectFailed(f"{address!r} is not an address of the form host:port")
    if int(port) > 65535:
        raise ConnectFailed(f"{address!r}: the port must be at most 65535")
    return host.strip("[]"), int(port)


def format_address(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def local_ip() -> str:
    """Return the IPv4 address of the interface that routes outwards, else 127.0.0.1.

    Connecting a datagram socket only asks the routing table; nothing is sent.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 9))
            address: str = probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"
    return address if not address.startswith("0.") else "127.0.0.1"
