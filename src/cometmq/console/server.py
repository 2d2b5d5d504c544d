"""Serves the console over HTTP or HTTPS."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import uvicorn

from cometmq.console.app import Console
from cometmq.console.settings import ConsoleSettings
from cometmq.errors import ConfigError
from cometmq.net.env import SystemClock
from cometmq.net.network import bound_socket, format_address

if TYPE_CHECKING:
    from socket import socket

__all__ = ["ConsoleServer"]

CONNECTIONS_MAX: Final = 200
HEAD_BYTES_MAX: Final = 32 * 1024
SILENCE_S_MAX: Final = 15
STOP_S: Final = 3


class ConsoleServer:
    """A console at an address; `await start()`, `await stop()`, each once.

    Args:
        port: 0 lets the system choose.
        cert_file: PEM file of the certificate for HTTPS; None serves HTTP.
        key_file: PEM file of its private key.

    Raises:
        ConfigError: the certificate or the key cannot be read.
    """

    def __init__(
        self,
        settings: ConsoleSettings,
        host: str,
        port: int,
        *,
        cert_file: str | None = None,
        key_file: str | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._scheme = "https" if cert_file else "http"
        self._console = Console(settings, SystemClock())
        config = uvicorn.Config(
            self._console.app,
            log_config=None,
            access_log=False,
            lifespan="off",
            http="h11",
            ws="none",
            server_header=False,
            proxy_headers=False,
            limit_concurrency=CONNECTIONS_MAX,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            timeout_keep_alive=SILENCE_S_MAX,
            timeout_graceful_shutdown=STOP_S,
            ssl_certfile=cert_file,
            ssl_keyfile=key_file,
        )
        try:
            config.load()
        except OSError as error:
            raise ConfigError(f"the certificate or key cannot be read: {error}") from error
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """The address for a browser."""
        return f"{self._scheme}://{format_address(self._host, self._port)}/"

    async def start(self) -> None:
        """Listen.

        Raises:
            ConnectFailed: the port cannot be bound.
        """
        listening = bound_socket(self._host, self._port)
        self._port = listening.getsockname()[1]
        self._task = asyncio.create_task(self._server.serve([listening]))
        serving = asyncio.ensure_future(self._server.is_serving.wait())
        await asyncio.wait((self._task, serving), return_when=asyncio.FIRST_COMPLETED)
        serving.cancel()
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        """Answer what is under way, for `STOP_S` at most, and disconnect."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        await self._console.close()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_serving = asyncio.Event()

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_serving.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to whoever runs this server."""
        yield
