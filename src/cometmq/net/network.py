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
    "bound_socket",
    "foreign_protocol",
    "format_address",
    "local_ip",
    "not_a_host",
    "parse_address",
    "resolve",
]

P = TypeVar("P", bound=asyncio.BaseProtocol)

LISTEN_BACKLOG = 1024
"""Connections the kernel queues while the loop is busy; Java has the same default."""


def foreign_protocol(address: str, fault: RemoteProtocolError) -> ConnectFailed:
    """Return the error for a peer whose bytes are not frames, such as a server of another kind."""
    return ConnectFailed(
        f"the server at {address} does not speak the remoting protocol: {fault}; check that the "
        "port is that of a RocketMQ broker or name server"
    )


class Listener(Protocol):
    """A listening endpoint."""

    @property
    def port(self) -> int:
        """The bound port, also after a request for port 0."""
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

    async def resolve(self, host: str, port: int) -> list[str]:
        """Return every address, ``ip:port``, of a host name.

        Raises:
            ConnectFailed: the name is not known.
        """
        ...


class _TcpListener:
    def __init__(self, server: asyncio.Server, port: int) -> None:
        self._server = server
        self.port = port

    def close(self) -> None:
        self._server.close()


class TcpNetwork:
    """Plain TCP on the running event loop."""

    async def listen(
        self, host: str, port: int, accept: Callable[[], asyncio.Protocol]
    ) -> Listener:
        """Listen on an address.

        Raises:
            ConnectFailed: the address cannot be bound; the text says what to change.
        """
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(
                accept, host, port, backlog=LISTEN_BACKLOG, reuse_address=True
            )
        except OSError as error:
            raise _cannot_listen(host, port, error) from error
        return _TcpListener(server, server.sockets[0].getsockname()[1])

    async def connect(
        self, host: str, port: int, factory: Callable[[], P], timeout_ms: int = 3000
    ) -> P:
        """Connect to an address.

        Raises:
            ConnectFailed: no connection could be made in time; the text names the cause.
        """
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

    async def resolve(self, host: str, port: int) -> list[str]:
        """Return every address of a host name, as the machine's resolver has them.

        Raises:
            ConnectFailed: the name is not known.
        """
        return await asyncio.to_thread(resolve, host, port)


def resolve(host: str, port: int) -> list[str]:
    """Return every ``ip:port`` of a host name; blocks the calling thread.

    Raises:
        ConnectFailed: the name is not known.
    """
    try:
        answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConnectFailed(f"no address of {host} is known: {error.strerror or error}") from error
    except UnicodeError as error:
        raise not_a_host(host, port) from error
    return [format_address(str(address[0]), port) for *_, address in dict.fromkeys(answers)]


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket that does not block.

    Raises:
        ConnectFailed: the address cannot be bound; the text says what to change.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, port), family=family, backlog=LISTEN_BACKLOG)
    except OSError as error:
        raise _cannot_listen(host, port, error) from error
    bound.setblocking(False)
    return bound


def _cannot_listen(host: str, port: int, error: OSError) -> ConnectFailed:
    return ConnectFailed(
        f"cannot listen on {format_address(host, port)}: {error.strerror or error}; "
        f"{_listen_hint(error)}"
    )


def _listen_hint(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "choose another port or stop the process that holds it"
    if error.errno in {errno.EACCES, errno.EPERM}:
        return "this user may not; choose a port above 1023"
    return "choose an address of this machine, or 0.0.0.0 for all of them"


def not_a_host(host: str, port: int) -> ConnectFailed:
    """Return the error for a host name that cannot be looked up, such as one with a long label."""
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
