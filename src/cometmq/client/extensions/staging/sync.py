"""Staged batches without asyncio: stage messages that no consumer sees, then publish them at once.

`Staging` has the methods of `cometmq.Staging`, as blocking calls: each runs the coroutine of
`StagingCalls` to its end, which over `BlockingIo` never suspends.

    with cometmq.sync.Staging("127.0.0.1:9876", "nightly-prices") as staging:
        part = staging.part(batch_id=7, part="0")
        part.add("Prices", b"EUR 1.08")
        staging.publish(7, [part.finish()])

Different threads, processes or machines may write parts of one batch: each makes its own `Staging`
and sends its `StagedPart`, which can be pickled, to the one that publishes.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self, Unpack

from cometmq.client.base import fork
from cometmq.client.base.options import ClientOptions, CommonOptions
from cometmq.client.base.routes import RouteBook
from cometmq.client.base.sync_connection import blocking_io
from cometmq.client.base.transport import run_inline
from cometmq.client.extensions.staging.calls import (
    BLOCK_BYTES,
    PublishResult,
    PublishState,
    StagedPart,
    StagingCalls,
)
from cometmq.client.extensions.staging.part import PartCore
from cometmq.net.env import Environment

__all__ = [
    "BlockingPartWriter",
    "PublishResult",
    "PublishState",
    "StagedPart",
    "Staging",
]


class BlockingPartWriter:
    """One attempt at one part of a batch; made by `Staging.part`, for one thread."""

    def __init__(self, core: PartCore) -> None:
        self._core = core

    def add(
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
        """Add a message to its block; no consumer sees it before the publish.

        Args:
            topic: where it will be published; a topic that does not exist is created as by a send.
            body: with properties at most the broker's ``maxMessageSize``.
            tags: one tag.
            keys: business keys without spaces in them.
            properties: the user's properties.
            message_group: messages of one group go to one queue, chosen as Java's clients do.
            queue_id: the queue, instead of one chosen by group or turn; on the first broker that
                has it.
            deliver_time_ms: the delivery time, ms since 1970; the message waits from the publish
                on, and after that time it is delivered with the batch.

        Raises:
            LocalProtocolError: the message breaks a limit, or the part is finished.
            NoRoute: no broker offers the topic.
            RemoteError: the broker refused a block; the caller must drop the part.
            ClientError: the broker did not answer; the caller must drop the part.
        """
        run_inline(
            self._core.add(
                topic, body, tags, keys, properties, message_group, queue_id, deliver_time_ms
            )
        )

    @property
    def core(self) -> PartCore:
        """The shared part, for callers that encode whole blocks: `PartCore.add_block`."""
        return self._core

    def finish(self) -> StagedPart:
        """Send the waiting messages and return the staged part; raises the errors of `add`."""
        return run_inline(self._core.finish())

    def staged(self) -> StagedPart:
        """The messages sent so far, so that `Staging.drop` can drop an abandoned part."""
        return self._core.staged()


class Staging:
    """A sink: the name under which batches are published, each once.

    Args:
        name_server: as for `Producer`.
        sink: 1 to 120 of letters, digits and ``%|_.-``; brokers remember its last batch
            until `forget`, so two programs must not share it.
        timeout_ms: for each request except a publish.
        publish_timeout_ms: for the publish on one broker; a longer one continues there, and
            publishing again returns its outcome.
        block_bytes: messages are sent in blocks of about this size.
        owner: who publishes under this name; `publish` refuses while the sink's last batch is
            another owner's. By default there is no check.
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
        options = ClientOptions.of(
            name_server, env=env, request_timeout_ms=timeout_ms, **common
        ).of_whole_cluster("Staging")
        self._name_servers = options.name_servers
        self._io = blocking_io(options)
        self._calls = StagingCalls(
            self._io,
            RouteBook(self._io, options.name_servers, timeout_ms),
            options,
            sink,
            publish_timeout_ms=publish_timeout_ms,
            block_bytes=block_bytes,
            owner=owner,
        )
        fork.register(self)

    @property
    def sink(self) -> str:
        """The sink's name."""
        return self._calls.sink

    def part(self, batch_id: int, part: str) -> BlockingPartWriter:
        """Begin an attempt at a part; two attempts at one part do not touch each other.

        Args:
            batch_id: a number from 0, in the order in which batches are published.
            part: any name without a slash; a task number, for example.
        """
        return BlockingPartWriter(PartCore(self._calls, batch_id, part))

    def publish(self, batch_id: int, parts: Iterable[StagedPart | None]) -> PublishResult:
        """Let consumers see the messages of all parts (None is skipped).

        On each broker they appear at once and in full, also after a crash in the middle.  On
        several brokers they appear one broker after the other.  Returns when they are on stable
        storage everywhere, whatever the brokers' flush mode.

        A batch is published once: with an id that is not above the sink's last one the parts are
        dropped and the result is ALREADY.  After any exception the outcome is unknown; publish
        again, with the same parts or with parts staged anew.

        Raises:
            ConfigError: a part belongs to another batch or sink, or the sink to another owner.
            RemoteError: a broker refused: a part is incomplete or gone (`QueryNotFound`), the
                disk is full (`ServiceNotAvailable`), or it is not CometMQ's
                (`RequestNotSupported`).
            ClientError: a broker did not answer.
        """
        return run_inline(self._calls.publish(batch_id, parts))

    def drop(self, parts: Iterable[StagedPart | None]) -> int:
        """Give up staged parts; returns how many tokens were dropped.

        Brokers that cannot be reached collect them after ``stagedTimeoutMinutes``.
        """
        return run_inline(self._calls.drop(parts))

    def last_published(self) -> int | None:
        """The sink's highest batch id on any broker; None when it has never published."""
        return run_inline(self._calls.last_published())

    def is_supported(self) -> bool:
        """Whether every broker can stage batches: False when one is not CometMQ's."""
        return run_inline(self._calls.is_supported())

    def forget(self) -> int:
        """Remove the sink and its staged messages from all brokers; returns the tokens dropped.

        The next batch may have any id, and an earlier batch can be published a second time.
        """
        return run_inline(self._calls.forget())

    def update_name_servers(self, name_server: str | Sequence[str]) -> None:
        """Use other name servers from now on: the next request goes to one of them.

        Takes what ``name_server=`` takes.  May be called before the start and in any thread.

        Raises:
            ConfigError: an entry is neither ``host:port`` nor the URL of an address server.
        """
        self._name_servers.change(name_server)

    def close(self) -> None:
        """Disconnect; staged messages stay on the brokers."""
        self._io.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def after_fork(self) -> None:
        """In a child process: abandon the parent's connections and make new ones."""
        self._io.after_fork()
