"""The connection that several synchronous clients of one process share.

Their background work runs on the asyncio connection inside; their blocking requests take sockets
from one common pool.
"""

from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from cometmq.client.base.background import background
from cometmq.client.base.instance import Connection as AsyncConnection
from cometmq.client.base.options import ClientOptions
from cometmq.client.base.synchronous import same_arguments
from cometmq.client.base.transport import BlockingIo

__all__ = ["Connection", "blocking_io"]


class Connection:
    """As `cometmq.Connection`, for the clients of `cometmq.sync`; ``with Connection(...)``."""

    @same_arguments(AsyncConnection)
    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._inner = AsyncConnection(*arguments, **options)
        self.options = replace(self._inner.options, connection=self)
        self._io: BlockingIo | None = None
        self._is_held = False

    @property
    def client_id(self) -> str | None:
        """The id of all its clients at the brokers, while one of them runs."""
        return self._inner.client_id

    def update_name_servers(self, name_server: str | Sequence[str]) -> None:
        """Use other name servers from now on, for all clients of this connection.

        Raises:
            ConfigError: an entry is neither ``host:port`` nor the URL of an address server.
        """
        self._inner.update_name_servers(name_server)

    def start(self) -> None:
        """Keep the connection open until `shutdown`, also while it has no client.

        Raises:
            ClientClosed: it was shut down.
        """
        background().run(self._inner.start())
        if not self._is_held:
            self._is_held = True
            self.open_io()

    def shutdown(self) -> None:
        """Shut down the clients that still run, the latest first, and disconnect."""
        background().run(self._inner.shutdown())
        if self._is_held and self._io is not None:
            self._is_held = False
            self._io.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    def open_shared(self) -> object:
        """What the clients share on the background loop."""
        return self._inner.open_shared()

    def open_io(self) -> BlockingIo:
        """The common pool of blocking connections, for one client more."""
        if self._io is None or self._io.is_closed:
            self._io = BlockingIo(self.options.env, security=self.options.security)
            return self._io
        return self._io.share()


def blocking_io(options: ClientOptions) -> BlockingIo:
    """The blocking connections of a client: the common ones of its `Connection`, or its own."""
    if isinstance(options.connection, Connection):
        return options.connection.open_io()
    return BlockingIo(options.env, security=options.security)
