"""Staged batches with asyncio: stage messages that no consumer sees, then publish them at once.

`Staging` has the methods of `cometmq.sync.Staging`, as coroutines over `StagingCalls`.

    async with cometmq.Staging("127.0.0.1:9876", "nightly-prices") as staging:
        part = staging.part(batch_id=7, part="0")
        await part.add("Prices", b"EUR 1.08")
        await staging.publish(7, [await part.finish()])
"""

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self, Unpack

from cometmq.client.base import fork
from cometmq.client.base.instance import Bystander, ClientInstance
from cometmq.client.base.options import ClientOptions, CommonOptions
from cometmq.client.base.routes import RouteBook
from cometmq.client.base.transport import AsyncIo
from cometmq.client.extensions.staging.calls import (
    BLOCK_BYTES,
    PublishResult,
    StagedPart,
    StagingCalls,
)
from cometmq.client.extensions.staging.part import PartCore
from cometmq.errors import RequestNotSupported
from cometmq.net.channel import Channel, ChannelPool
from cometmq.net.env import Environment
from cometmq.wire.extensions.staging import StagedListing

__all__ = ["PartWriter", "Staging", "list_staged"]


class PartWriter:
    """One attempt at one part of a batch; made by `Staging.part`, for one task at a time."""

    def __init__(self, core: PartCore) -> None:
        self._core = core

    async def add(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str | None = None,
        keys: tuple[str, ...] | str | None = None,
        properties: Mapping[str, str] | None = None,
        message_group: str | None = None,
        queue_id: int | None = None,
        deliver_time_ms: int | None = None,
    ) -> None:
        """Add a message; arguments and errors are those of a part of `cometmq.sync.Staging`."""
        await self._core.add(
            topic, body, tags, keys, properties, message_group, queue_id, deliver_time_ms
        )

    async def finish(self) -> StagedPart:
        """Send the waiting messages and return the staged part; raises the errors of `add`."""
        return await self._core.finish()

    def staged(self) -> StagedPart:
        """The messages sent so far, so that `Staging.drop` can drop an abandoned part."""
        return self._core.staged()


class Staging:
    """A sink: the name under which batches are published, each once.

    Arguments, results and errors are those of `cometmq.sync.Staging`.
    """

    def __init__(
        self,
        name_server: str | Sequence[str] | None,
        sink: str,
        *,
        timeout_ms: int = 10_000,
        publish_timeout_ms: int = 100_000,
        block_bytes: int = BLOCK_BYTES,
        owner: str = "",
        env: Environment | None = None,
        **common: Unpack[CommonOptions],
    ) -> None:
        self._options = ClientOptions.of(
            name_server, env=env, request_timeout_ms=timeout_ms, **common
        ).of_whole_cluster("Staging")
        self._sink = sink
        self._publish_timeout_ms = publish_timeout_ms
        self._block_bytes = block_bytes
        self._owner = owner
        self._connect()
        fork.register(self)

    def _connect(self) -> None:
        options = self._options
        self._instance: ClientInstance | None = None
        if options.connection is not None:
            self._instance = ClientInstance(options, Bystander(self.close), None)
            self._pool = self._instance.pool
            io, routes = self._instance.io, self._instance.routes
        else:
            self._pool = ChannelPool(options.env, prepare=options.security.prepare)
            io = AsyncIo(options.env, self._pool, _no_greeting)
            routes = RouteBook(io, options.name_servers, options.request_timeout_ms)
        self._calls = StagingCalls(
            io,
            routes,
            options,
            self._sink,
            publish_timeout_ms=self._publish_timeout_ms,
            block_bytes=self._block_bytes,
            owner=self._owner,
        )

    @property
    def sink(self) -> str:
        """The sink's name."""
        return self._sink

    def part(self, batch_id: int, part: str) -> PartWriter:
        """Begin an attempt at a part."""
        return PartWriter(PartCore(self._calls, batch_id, part))

    async def publish(self, batch_id: int, parts: Iterable[StagedPart | None]) -> PublishResult:
        """Let consumers see the messages of all parts, once."""
        return await self._calls.publish(batch_id, parts)

    async def drop(self, parts: Iterable[StagedPart | None]) -> int:
        """Give up staged parts; returns how many tokens were dropped."""
        return await self._calls.drop(parts)

    async def last_published(self) -> int | None:
        """The sink's highest batch id on any broker; None when it has never published."""
        return await self._calls.last_published()

    async def is_supported(self) -> bool:
        """Whether every broker can stage batches."""
        return await self._calls.is_supported()

    async def forget(self) -> int:
        """Remove the sink and its staged messages from all brokers; returns the tokens dropped."""
        return await self._calls.forget()

    def update_name_servers(self, name_server: str | Sequence[str]) -> None:
        """Use other name servers from now on: the next request goes to one of them.

        Takes what ``name_server=`` takes.  May be called before the start and in any thread.

        Raises:
            ConfigError: an entry is neither ``host:port`` nor the URL of an address server.
        """
        self._options.name_servers.change(name_server)

    async def close(self) -> None:
        """Disconnect; staged messages stay on the brokers."""
        if self._instance is not None:
            await self._instance.close({})
        else:
            await self._pool.close()

    async def __aenter__(self) -> Self:
        if self._instance is not None:
            self._instance.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def after_fork(self) -> None:
        """In a child process: abandon the parent's connections and make new ones."""
        if self._instance is not None:
            self._instance.abandon()
        else:
            fork.abandon_descriptors([channel.fileno() for channel in self._pool.channels()])
            fork.keep_forever(self._pool)
        self._connect()


async def list_staged(
    name_server: str | Sequence[str] | None,
    sink: str | None = None,
    *,
    timeout_ms: int = 10_000,
    **common: Unpack[CommonOptions],
) -> dict[str, StagedListing]:
    """The ledger and staged tokens of one sink, or of all, at each broker that can stage.

    Raises:
        CometError: no master is registered, or a broker refused or did not answer.
    """
    staging = Staging(name_server, sink or "any", timeout_ms=timeout_ms, **common)
    async with staging:
        calls = staging._calls
        listings: dict[str, StagedListing] = {}
        for name, address in (await calls.masters()).items():
            try:
                listings[name] = await calls.listing(address, all_sinks=sink is None)
            except RequestNotSupported:
                continue
        return listings


def _no_greeting(address: str, channel: Channel) -> None:
    """A staging producer does not register."""
