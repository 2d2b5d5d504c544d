"""TLS of our servers: its settings, a context that follows its files, and a network that listens.

One port serves TLS and plain clients: the first byte decides.  A TLS record of a handshake begins
with 0x16, and no remoting frame does, since such a frame would exceed 16 MiB.
Source: `TlsSystemConfig`, `TlsHelper` and `NettyRemotingServer` of RocketMQ 5.4.0.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec

from cometmq.errors import CometError, ConfigError
from cometmq.net.env import Environment, WorkerPool
from cometmq.net.network import (
    LISTEN_BACKLOG,
    Listener,
    Network,
    TcpNetwork,
    bound_socket,
    format_address,
)
from cometmq.net.tls import Tls, TlsContext, TlsNetwork

__all__ = ["SecuredNetwork", "TlsSettings", "replication_network", "secured", "server_context"]

log = logging.getLogger("cometmq.net")

P = TypeVar("P", bound=asyncio.BaseProtocol)

RELOAD_INTERVAL_S: Final = 1.0
"""How often a server looks whether its certificate files changed; RocketMQ looks twice a second."""
HANDSHAKE_TIMEOUT_S: Final = 10.0
"""A peer that has not finished its handshake by then is cut."""
FIRST_BYTE_TIMEOUT_S: Final = 120.0
"""A peer that has sent nothing by then is cut, as a silent connection is."""
ACCEPT_PAUSE_S: Final = 1.0
"""How long a server that ran out of file descriptors accepts nobody."""
_HANDSHAKE: Final = 0x16


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """RocketMQ's keys of TLS, for broker and name server alike."""

    tls_server_mode: Literal["permissive", "enforcing", "disabled"] = msgspec.field(
        default="permissive", name="tls.server.mode"
    )
    tls_server_cert_path: str = msgspec.field(default="", name="tls.server.certPath")
    tls_server_key_path: str = msgspec.field(default="", name="tls.server.keyPath")
    tls_server_key_password: str = msgspec.field(default="", name="tls.server.keyPassword")
    tls_server_need_client_auth: Literal["none", "optional", "require"] = msgspec.field(
        default="none", name="tls.server.need.client.auth"
    )
    tls_server_auth_client: bool = msgspec.field(default=False, name="tls.server.authClient")
    tls_server_trust_cert_path: str = msgspec.field(default="", name="tls.server.trustCertPath")
    tls_enable: bool = msgspec.field(default=False, name="tls.enable")
    use_tls: bool = msgspec.field(default=False, name="useTLS")
    tls_client_auth_server: bool = msgspec.field(default=True, name="tls.client.authServer")
    tls_client_check_hostname: bool = msgspec.field(default=True, name="tls.client.checkHostname")
    tls_client_trust_cert_path: str = msgspec.field(default="", name="tls.client.trustCertPath")
    tls_client_cert_path: str = msgspec.field(default="", name="tls.client.certPath")
    tls_client_key_path: str = msgspec.field(default="", name="tls.client.keyPath")
    tls_client_key_password: str = msgspec.field(default="", name="tls.client.keyPassword")

    @property
    def serves_tls(self) -> bool:
        """Whether clients may connect with TLS."""
        return self.tls_server_mode != "disabled" and bool(self.tls_server_cert_path)

    @property
    def connects_with_tls(self) -> bool:
        """Whether the server's own connections to other servers are encrypted."""
        return self.tls_enable or self.use_tls

    def check_tls(self) -> None:
        """Refuse settings that are incomplete.

        Raises:
            ConfigError: the text names the keys that are missing.
        """
        if self.tls_server_mode == "enforcing" and not self.tls_server_cert_path:
            raise ConfigError(
                "tls.server.mode=enforcing needs a certificate: set tls.server.certPath and"
                " tls.server.keyPath to PEM files"
            )
        if self.tls_server_key_path and not self.tls_server_cert_path:
            raise ConfigError(
                "tls.server.keyPath needs tls.server.certPath, the certificate the key belongs to"
            )
        asks = self.tls_server_need_client_auth
        if asks != "none" and not (self.tls_server_trust_cert_path and self.tls_server_cert_path):
            raise ConfigError(
                f"tls.server.need.client.auth={asks} needs tls.server.certPath and"
                " tls.server.trustCertPath, a PEM file of the authorities that sign clients"
            )
        if self.tls_server_auth_client and asks == "none":
            raise ConfigError(
                "tls.server.authClient=true verifies nobody with"
                " tls.server.need.client.auth=none: set that to optional or require"
            )

    def client_tls(self) -> Tls:
        """Return what the server's own connections use."""
        return Tls(
            ca_file=self.tls_client_trust_cert_path or None,
            cert_file=self.tls_client_cert_path or None,
            key_file=self.tls_client_key_path or None,
            key_password=self.tls_client_key_password or None,
            verify=self.tls_client_auth_server,
            check_hostname=self.tls_client_check_hostname,
        )


def server_context(settings: TlsSettings) -> tuple[TlsContext, str]:
    """Read certificate, key and authorities; return the context and the certificate's last moment.

    Raises:
        ConfigError: a file cannot be read, the key belongs to another certificate, or clients would
            refuse the certificate, such as one that has expired.
    """
    cert, key = settings.tls_server_cert_path, settings.tls_server_key_path
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a password OpenSSL would ask on the terminal.
        context.load_cert_chain(cert, key or None, lambda: settings.tls_server_key_password)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"tls.server.certPath={cert}, tls.server.keyPath={key}: {error}; name PEM files of a"
            " certificate and of its own private key, and tls.server.keyPassword if it has one"
        ) from error
    until = _trial(context, cert)
    if settings.tls_server_need_client_auth != "none":
        trust = settings.tls_server_trust_cert_path
        try:
            context.load_verify_locations(trust)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"tls.server.trustCertPath={trust}: {error}; name a PEM file of certificates"
            ) from error
        is_required = settings.tls_server_need_client_auth == "require"
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
    return context, until


def _trial(context: TlsContext, cert_path: str) -> str:
    """Shake hands in memory with a client that trusts this certificate; return its `notAfter`."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        trusting.load_verify_locations(cert_path)
        ends = (
            trusting.wrap_bio(to_client, to_server),
            context.wrap_bio(to_server, to_client, server_side=True),
        )
        waiting = list(ends)
        while waiting:
            for end in tuple(waiting):
                try:
                    end.do_handshake()
                    waiting.remove(end)
                except ssl.SSLWantReadError:
                    continue
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(
            f"tls.server.certPath={cert_path}: {error.verify_message}; clients would refuse this"
            " certificate, so give a new one"
        ) from error
    except ssl.SSLError as error:
        raise ConfigError(f"tls.server.certPath={cert_path}: a trial handshake: {error}") from error
    described = ends[0].getpeercert() or {}
    return str(described.get("notAfter", "?"))


class _FollowedContext:
    """The context for new connections; it is read again when one of its files changes.

    Files that do not fit together, such as a new certificate before its key is there, leave the
    context in force; the log says so once.
    """

    def __init__(self, settings: TlsSettings, workers: WorkerPool) -> None:
        self._settings = settings
        self._workers = workers
        self._timer: asyncio.TimerHandle | None = None
        self._users = 0
        self._seen = self._marks()
        self.current, until = server_context(settings)
        log.info("TLS certificate %s is valid until %s", settings.tls_server_cert_path, until)

    def start(self) -> None:
        self._users += 1
        if self._users == 1:
            self._reload_later()

    def stop(self) -> None:
        self._users -= 1
        if self._users == 0 and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _marks(self) -> list[tuple[int, int, int] | None]:
        """What changes when a file is written or replaced; None for a file that is gone."""
        settings = self._settings
        paths = (
            settings.tls_server_cert_path,
            settings.tls_server_key_path,
            settings.tls_server_trust_cert_path,
        )
        marks: list[tuple[int, int, int] | None] = []
        for path in filter(None, paths):
            try:
                stat = Path(path).stat()
            except OSError:
                marks.append(None)
            else:
                marks.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        return marks

    def _reload_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(
            RELOAD_INTERVAL_S, lambda: self._workers.submit(self._reload, self._install)
        )

    def _reload(self) -> tuple[TlsContext, str] | None:
        # The marks first: a file that changes while it is read differs from them next time.
        marks = self._marks()
        if marks == self._seen:
            return None
        self._seen = marks
        return server_context(self._settings)

    def _install(self, loaded: tuple[TlsContext, str] | BaseException | None) -> None:
        if isinstance(loaded, CometError):
            log.warning("the TLS certificate in force stays: %s", loaded)
        elif isinstance(loaded, BaseException):
            log.error("the TLS certificate in force stays", exc_info=loaded)
        elif loaded is not None:
            self.current, until = loaded
            log.info(
                "TLS certificate %s was read again, new connections use it; it is valid until %s",
                self._settings.tls_server_cert_path,
                until,
            )
        if self._users:
            self._reload_later()


class _SortingListener:
    """Accepts connections and gives each to TLS or not, after its first byte."""

    def __init__(
        self,
        bound: socket.socket,
        accept: Callable[[], asyncio.Protocol],
        context: _FollowedContext,
        *,
        is_plain_allowed: bool,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._bound = bound
        self._accept = accept
        self._context = context
        self._is_plain_allowed = is_plain_allowed
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self.port: int = bound.getsockname()[1]
        context.start()
        self._loop.add_reader(bound, self._accept_all)

    def close(self) -> None:
        """Stop accepting; drop those that have not said yet what they speak."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._bound)
        self._bound.close()
        for peer in list(self._silent):
            self._drop(peer)
        for task in self._opening:
            task.cancel()
        self._context.stop()

    def _accept_all(self) -> None:
        for _ in range(LISTEN_BACKLOG):
            try:
                peer, _address = self._bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Usually no descriptor is left; the kernel keeps the peers in its queue.
                log.error("no connection accepted on port %d: %s", self.port, error)
                self._loop.remove_reader(self._bound)
                self._pause = self._loop.call_later(
                    ACCEPT_PAUSE_S, self._loop.add_reader, self._bound, self._accept_all
                )
                return
            peer.setblocking(False)
            self._silent[peer] = self._loop.call_later(FIRST_BYTE_TIMEOUT_S, self._drop, peer)
            self._loop.add_reader(peer, self._sort, peer)

    def _drop(self, peer: socket.socket) -> None:
        self._silent.pop(peer).cancel()
        self._loop.remove_reader(peer)
        peer.close()

    def _sort(self, peer: socket.socket) -> None:
        try:
            first = peer.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        is_tls = first[:1] == bytes([_HANDSHAKE])
        if not first:
            self._drop(peer)
        elif not is_tls and not self._is_plain_allowed:
            log.warning(
                "connection from %s refused: it does not speak TLS, which this port demands",
                _name(peer),
            )
            self._drop(peer)
        else:
            self._silent.pop(peer).cancel()
            self._loop.remove_reader(peer)
            task = self._loop.create_task(self._open(peer, self._context.current, is_tls=is_tls))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, peer: socket.socket, context: TlsContext, *, is_tls: bool) -> None:
        name = _name(peer)
        try:
            if is_tls:
                await self._loop.connect_accepted_socket(
                    self._accept, peer, ssl=context, ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S
                )
            else:
                await self._loop.connect_accepted_socket(self._accept, peer)
        except (OSError, EOFError) as error:
            reason = getattr(error, "reason", None) or str(error) or type(error).__name__
            log.warning("connection from %s refused: TLS handshake: %s", name, reason)


def _name(peer: socket.socket) -> str:
    try:
        host, port = peer.getpeername()[:2]
    except OSError:
        return "a peer that left"
    return format_address(host, port)


class SecuredNetwork:
    """TCP that serves TLS, connects with it, or both.

    Args:
        settings: complete ones.
        workers: they look after the files.

    Raises:
        ConfigError: a file cannot be used; the text names its key.
    """

    def __init__(self, settings: TlsSettings, workers: WorkerPool) -> None:
        self._settings = settings
        self._context = _FollowedContext(settings, workers) if settings.serves_tls else None
        self._is_plain_allowed = settings.tls_server_mode != "enforcing"
        self._plain = TcpNetwork()
        self._outgoing: Network = self._plain
        if settings.connects_with_tls:
            self._outgoing = TlsNetwork(settings.client_tls().context())

    def for_replication(self, *, is_encrypted: bool) -> Network:
        """Return the network that masters and slaves use: plain as RocketMQ's, or TLS only."""
        if not is_encrypted:
            return self._plain
        encrypted = copy(self)
        encrypted._is_plain_allowed = False
        encrypted._outgoing = TlsNetwork(self._settings.client_tls().context())
        return encrypted

    async def listen(
        self, host: str, port: int, accept: Callable[[], asyncio.Protocol]
    ) -> Listener:
        """Listen for TLS, and for plain clients unless the mode is enforcing.

        Raises:
            ConnectFailed: the address cannot be bound; the text says what to change.
        """
        if self._context is None:
            return await self._plain.listen(host, port, accept)
        return _SortingListener(
            bound_socket(host, port),
            accept,
            self._context,
            is_plain_allowed=self._is_plain_allowed,
        )

    async def connect(
        self, host: str, port: int, factory: Callable[[], P], timeout_ms: int = 3000
    ) -> P:
        """Connect, with TLS if the settings say so.

        Raises:
            TlsFailed: the peer does not speak TLS or is not who it should be.
            ConnectFailed: no connection could be made; the text names address and cause.
        """
        return await self._outgoing.connect(host, port, factory, timeout_ms)

    async def resolve(self, host: str, port: int) -> list[str]:
        """Return every address of a host name.

        Raises:
            ConnectFailed: the name is not known.
        """
        return await self._plain.resolve(host, port)


def secured(env: Environment, settings: TlsSettings) -> Environment:
    """Return the surroundings with the encryption that the settings ask for.

    Raises:
        ConfigError: the settings are incomplete, a file cannot be used, or the surroundings are
            simulated and cannot encrypt.
    """
    settings.check_tls()
    if not settings.serves_tls and not settings.connects_with_tls:
        return env
    if not isinstance(env.network, TcpNetwork):
        raise ConfigError(
            f"TLS needs real sockets, and {type(env.network).__name__} has none: leave tls.* out"
        )
    return replace(env, network=SecuredNetwork(settings, env.workers))


def replication_network(network: Network, *, is_encrypted: bool) -> Network:
    """Return what masters and slaves use between them, beside the network of a broker.

    Raises:
        ConfigError: encryption is asked for and no certificate is there.
    """
    if isinstance(network, SecuredNetwork):
        return network.for_replication(is_encrypted=is_encrypted)
    if is_encrypted:
        raise ConfigError("haTls=true needs TLS: set tls.server.certPath, or tls.enable on a slave")
    return network
