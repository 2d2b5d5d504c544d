"""The asyncio admin client; `AdminCalls` has its operations."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self, Unpack

from cometmq.client.admin.calls import AdminCalls
from cometmq.client.base import fork
from cometmq.client.base.options import ClientOptions
from cometmq.client.base.routes import RouteBook
from cometmq.client.base.security import SecurityOptions
from cometmq.client.base.transport import AsyncIo
from cometmq.net.channel import Channel, ChannelPool
from cometmq.net.env import Environment

__all__ = ["Admin"]


class Admin(AdminCalls):
    """Topics, groups, offsets and messages of a cluster; ``async with Admin(...)``.

    Connections are made on first use; nothing runs in the background.

    Args:
        name_server: as for `Producer`.
        timeout_ms: for each request.
        security: keys and TLS, as for `Producer`.
    """

    def __init__(
        self,
        *,
        name_server: str | Sequence[str] | None = None,
        timeout_ms: int = 5_000,
        env: Environment | None = None,
        **security: Unpack[SecurityOptions],
    ) -> None:
        self._options = ClientOptions.of(
            name_server, env=env, request_timeout_ms=timeout_ms, **security
        )
        self._connect()
        fork.register(self)

    def _connect(self) -> None:
        self._pool = ChannelPool(self._options.env, prepare=self._options.security.prepare)
        io = AsyncIo(self._options.env, self._pool, _no_greeting)
        timeout_ms = self._options.request_timeout_ms
        super().__init__(io, RouteBook(io, self._options.name_servers, timeout_ms), timeout_ms)

    async def start(self) -> None:
        """Do nothing; here for symmetry with the other clients."""

    async def shutdown(self) -> None:
        """Disconnect."""
        await self._pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.shutdown()

    def after_fork(self) -> None:
        """In a child process: leave the parent's connections alone, make new ones."""
        fork.abandon_descriptors([channel.fileno() for channel in self._pool.channels()])
        fork.keep_forever(self._pool)
        self._connect()


def _no_greeting(address: str, channel: Channel) -> None:
    """Send nothing: an admin client does not register."""
