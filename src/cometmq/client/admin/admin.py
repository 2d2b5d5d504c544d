"""The asyncio admin client; `AdminCalls` has its operations."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self, Unpack

from cometmq.client.admin.calls import AdminCalls
from cometmq.client.base import fork
from cometmq.client.base.instance import Bystander, ClientInstance
from cometmq.client.base.options import ClientOptions, CommonOptions
from cometmq.client.base.routes import RouteBook
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
        common: ``connection``, and keys and TLS as for `Producer`.
    """

    def __init__(
        self,
        *,
        name_server: str | Sequence[str] | None = None,
        timeout_ms: int = 5_000,
        env: Environment | None = None,
        **common: Unpack[CommonOptions],
    ) -> None:
        self._options = ClientOptions.of(
            name_server, env=env, request_timeout_ms=timeout_ms, **common
        ).of_whole_cluster("Admin")
        self._connect()
        fork.register(self)

    def _connect(self) -> None:
        options = self._options
        self._instance: ClientInstance | None = None
        if options.connection is not None:
            self._instance = ClientInstance(options, Bystander(self.shutdown), None)
            self._pool = self._instance.pool
            io, routes = self._instance.io, self._instance.routes
        else:
            self._pool = ChannelPool(options.env, prepare=options.security.prepare)
            io = AsyncIo(options.env, self._pool, _no_greeting)
            routes = RouteBook(io, options.name_servers, options.request_timeout_ms)
        super().__init__(io, routes, options.request_timeout_ms)

    async def start(self) -> None:
        """Do nothing, unless a connection is shared; here for symmetry with the other clients."""
        if self._instance is not None:
            self._instance.start()

    async def shutdown(self) -> None:
        """Disconnect."""
        if self._instance is not None:
            await self._instance.close({})
        else:
            await self._pool.close()

    def update_name_servers(self, name_server: str | Sequence[str]) -> None:
        """Use other name servers from now on: the next request goes to one of them.

        Takes what ``name_server=`` takes.  May be called before the start and in any thread.

        Raises:
            ConfigError: an entry is neither ``host:port`` nor the URL of an address server.
        """
        self._options.name_servers.change(name_server)

    async def __aenter__(self) -> Self:
        await self.start()
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
        if self._instance is not None:
            self._instance.abandon()
        else:
            fork.abandon_descriptors([channel.fileno() for channel in self._pool.channels()])
            fork.keep_forever(self._pool)
        self._connect()


def _no_greeting(address: str, channel: Channel) -> None:
    """Send nothing: an admin client does not register."""
