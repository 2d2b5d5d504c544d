"""Encrypted connections of a client: settings, a network and a socket wrapper that use them.

Errors name the cause: a wrong authority, a wrong host name, a peer that does not speak TLS.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from cometmq.errors import ConfigError, ConnectFailed, TlsFailed
from cometmq.net.network import Listener, TcpNetwork, format_address, not_a_host

__all__ = ["Tls", "TlsContext", "TlsNetwork", "wrap_socket"]

P = TypeVar("P", bound=asyncio.BaseProtocol)

TlsContext: TypeAlias = ssl.SSLContext


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS settings for connections to name servers and brokers.

    Args:
        ca_file: PEM file of the authorities to trust; the system's if None.
        cert_file: PEM file of our own certificate (and those that signed it), if servers ask.
        key_file: PEM file of its private key, if that is not in ``cert_file``.
        key_password: password of an encrypted key file.
        verify: False accepts any certificate: the connection is encrypted, the peer unverified.
        check_hostname: False accepts a certificate of a trusted authority for any host, as
            RocketMQ's own clients do.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    verify: bool = True
    check_hostname: bool = True

    def context(self) -> TlsContext:
        """Return the context for connections.

        Raises:
            ConfigError: a file cannot be read or does not hold what it should.
        """
        context = ssl.create_default_context()
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif not self.check_hostname:
            context.check_hostname = False
        if self.ca_file is not None:
            try:
                context.load_verify_locations(self.ca_file)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(
                    f"ca_file={self.ca_file!r}: {error}; name a PEM file of certificates"
                ) from error
        if self.cert_file is not None:
            try:
                context.load_cert_chain(self.cert_file, self.key_file, self._password)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(
                    f"cert_file={self.cert_file!r}, key_file={self.key_file!r}: {error}; name PEM "
                    "files of a certificate and of its own private key"
                ) from error
        elif self.key_file is not None:
            raise ConfigError("key_file= needs cert_file=, the certificate the key belongs to")
        return context

    def _password(self) -> str:
        # Without this, OpenSSL would ask on the terminal.
        return self.key_password or ""


def _failure(address: str, error: Exception) -> ConnectFailed:
    """Return the error of a handshake that failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = (
            "the certificate does not name this host: connect by the name it has, or set "
            "check_hostname=False"
            if error.verify_code in (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, _IP_ADDRESS_MISMATCH
            else "give the authority that signed it as tls=Tls(ca_file=...)"
        )
        return TlsFailed(
            f"the certificate of {address} was not accepted: {error.verify_message}; {hint}"
        )
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or str(error)).lower().replace("_", " ")
        return TlsFailed(
            f"no TLS connection to {address}: {reason}; check that this port speaks TLS and "
            "whether it asks for a certificate (cert_file=)"
        )
    if isinstance(error, (ConnectionResetError, ConnectionAbortedError, EOFError)):
        return TlsFailed(
            f"no TLS connection to {address}: the peer ended it during the handshake; check that "
            "this port speaks TLS and whether it asks for a certificate (cert_file=)"
        )
    cause = error.strerror if isinstance(error, OSError) and error.strerror else error
    return ConnectFailed(f"no connection to {address}: {cause}")


class TlsNetwork:
    """TCP whose outgoing connections are encrypted."""

    def __init__(self, context: TlsContext) -> None:
        self._context = context
        self._plain = TcpNetwork()

    async def listen(
        self, host: str, port: int, accept: Callable[[], asyncio.Protocol]
    ) -> Listener:
        """Listen in plain TCP."""
        return await self._plain.listen(host, port, accept)

    async def connect(
        self, host: str, port: int, factory: Callable[[], P], timeout_ms: int = 3000
    ) -> P:
        """Connect and shake hands.

        Raises:
            TlsFailed: the peer does not speak TLS or is not who it should be.
            ConnectFailed: no connection could be made; the text names address and cause.
        """
        address = format_address(host, port)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                _, protocol = await loop.create_connection(
                    factory, host, port, ssl=self._context, server_hostname=host
                )
        except TimeoutError as error:
            raise ConnectFailed(f"no TLS connection to {address} within {timeout_ms} ms") from error
        except OSError as error:
            raise _failure(address, error) from error
        except UnicodeError as error:
            raise not_a_host(host, port) from error
        return protocol

    async def resolve(self, host: str, port: int) -> list[str]:
        """Return every address of a host name.

        Raises:
            ConnectFailed: the name is not known.
        """
        return await self._plain.resolve(host, port)


def wrap_socket(
    plain: socket.socket, context: TlsContext, host: str, address: str
) -> ssl.SSLSocket:
    """Shake hands on a connected blocking socket; closes it when that fails.

    Raises:
        TlsFailed: the peer does not speak TLS or is not who it should be.
        ConnectFailed: the peer went away or did not answer in time.
    """
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except TimeoutError as error:
        plain.close()
        raise ConnectFailed(f"no TLS connection to {address}: no answer in time") from error
    except (OSError, EOFError) as error:
        plain.close()
        raise _failure(address, error) from error
