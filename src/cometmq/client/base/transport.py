"""Runs the same client coroutines over asyncio or over blocking sockets.

Routes, offsets and admin calls are written once, as ``async def`` over `Io`.  With `AsyncIo` their
awaits suspend as usual.  With `BlockingIo` no await ever suspends, because each call blocks the
thread inside, so `run_inline` drives such a coroutine to its end with one ``send(None)``: no event
loop, no thread hop, and one implementation for both kinds of client.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, Protocol, TypeVar

from cometmq.client.base import fork
from cometmq.client.base.namespace import NO_NAMESPACE, Namespace
from cometmq.client.base.outages import Outages
from cometmq.client.base.security import OPEN, Security
from cometmq.errors import ConnectFailed, RequestTimeout
from cometmq.net.blocking import BlockingChannel
from cometmq.net.channel import Channel, ChannelPool
from cometmq.net.env import Environment
from cometmq.net.http import fetch_text
from cometmq.net.network import resolve
from cometmq.wire.command.command import RemotingCommand, encode_command
from cometmq.wire.header.fast_decode import PlainSendAnswer

__all__ = ["AsyncIo", "BlockingIo", "Io", "run_inline"]

T = TypeVar("T")

IDLE_CHANNEL_S = 60.0
"""A pooled blocking connection older than this may have been closed by the broker (120 s)."""
CHECK_IDLE_AFTER_S = 0.02
"""A connection idle for this long is checked before use: a restarted server has closed it."""


TOGETHER_MAX: Final = 64
"""So many requests of `Io.together` are under way at a time."""


class Io(Protocol):
    """The network as client logic uses it."""

    env: Environment
    outages: Outages
    """What this client cannot do at present."""
    namespace: Namespace
    """Translates names in bodies; those in headers are translated on their way."""

    async def request(
        self, address: str, command: RemotingCommand, timeout_ms: int
    ) -> RemotingCommand:
        """The peer's answer, whatever its code.

        Raises:
            RequestTimeout: the peer did not answer in time.
            ConnectFailed: the connection was not made or broke.
        """
        ...

    async def oneway(self, address: str, command: RemotingCommand) -> None:
        """Send without an answer."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        ...

    async def together(self, works: Sequence[Callable[[], Awaitable[None]]]) -> None:
        """Do independent pieces of work, side by side where that is possible."""
        ...

    def drop(self, address: str) -> None:
        """End an unused connection that will not be used again."""
        ...

    async def resolve(self, host: str, port: int) -> list[str]:
        """See `LookUp`."""
        ...

    async def fetch_text(self, url: str, timeout_ms: int) -> str:
        """See `LookUp`."""
        ...


class AsyncIo:
    """`Io` over the channels of an event loop; ``greet`` is called first on each new connection.

    A peer that cannot be reached is logged at ``outage_level``: it is a warning for clients that
    work in the background, and no more than a note for those whose caller gets the error.
    """

    def __init__(
        self,
        env: Environment,
        pool: ChannelPool,
        greet: Callable[[str, Channel], None],
        outage_level: int = logging.INFO,
        namespace: Namespace = NO_NAMESPACE,
    ) -> None:
        self.namespace = namespace
        self._outage_level = outage_level
        self.env = env
        self.outages = Outages(env.clock.monotonic)
        self.pool = pool
        self._greet = greet
        self._greeted: dict[str, Channel] = {}

    async def channel(self, address: str, timeout_ms: int) -> Channel:
        """A connected channel on which the greeting has been sent."""
        channel = self.pool.open_channel(address)
        if channel is None:
            try:
                channel = await self.pool.get(address, timeout_ms)
            except ConnectFailed as error:
                if not self.pool.is_closed:
                    self.outages.failed(f"connection to {address}", error, level=self._outage_level)
                raise
            self.outages.ended(f"connection to {address}")
        if self._greeted.get(address) is not channel:
            self._greeted[address] = channel
            self._greet(address, channel)
        return channel

    async def request(
        self, address: str, command: RemotingCommand, timeout_ms: int
    ) -> RemotingCommand:
        channel = self.pool.open_channel(address)
        if channel is None or self._greeted.get(address) is not channel:
            channel = await self.channel(address, timeout_ms)
        return await channel.request(command, timeout_ms)

    async def oneway(self, address: str, command: RemotingCommand) -> None:
        (await self.channel(address, 3_000)).oneway(command)

    async def together(self, works: Sequence[Callable[[], Awaitable[None]]]) -> None:
        waiting = deque(works)

        async def run() -> None:
            while waiting:
                await waiting.popleft()()

        await asyncio.gather(*[run() for _ in range(min(TOGETHER_MAX, len(works)))])

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def drop(self, address: str) -> None:
        self.pool.drop(address)

    async def resolve(self, host: str, port: int) -> list[str]:
        return await self.env.network.resolve(host, port)

    async def fetch_text(self, url: str, timeout_ms: int) -> str:
        return await asyncio.to_thread(fetch_text, url, timeout_ms)


class BlockingIo:
    """`Io` over blocking sockets; each caller gets a connection of its own."""

    def __init__(
        self,
        env: Environment,
        on_request: Callable[[RemotingCommand], RemotingCommand | None] | None = None,
        security: Security = OPEN,
    ) -> None:
        self.env = env
        self.namespace = NO_NAMESPACE  # clients in a namespace work over asyncio
        self.outages = Outages(env.clock.monotonic)
        self._credentials = security.credentials
        self._tls = security.tls
        self._on_request = on_request
        self._free: dict[str, list[tuple[BlockingChannel, float]]] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._sharers = 1

    @property
    def is_closed(self) -> bool:
        """Whether no client uses it any more."""
        return self._is_closed

    def share(self) -> "BlockingIo":
        """Itself, for one client more, which will call `close` too."""
        self._sharers += 1
        return self

    def take(self, address: str, timeout_ms: int) -> BlockingChannel:
        """A connection that nobody else uses; return it with `give`.

        Raises:
            ConnectFailed: no connection could be made, or this client is closed.
        """
        with self._lock:
            free = self._free.get(address)
            while free:
                channel, used_at = free.pop()
                if channel.is_closed:
                    continue
                idle_s = time.monotonic() - used_at
                if idle_s > IDLE_CHANNEL_S:
                    channel.close()
                    continue
                if idle_s > CHECK_IDLE_AFTER_S and not channel.poll():
                    continue
                return channel
        if self._is_closed:
            raise ConnectFailed(f"no connection to {address}: this client is closed")
        return BlockingChannel(address, timeout_ms, self._on_request, self._tls)

    def give(self, channel: BlockingChannel) -> None:
        """Return a connection; a broken one is dropped."""
        if channel.is_closed:
            return
        with self._lock:
            if not self._is_closed:
                self._free.setdefault(channel.address, []).append((channel, time.monotonic()))
                return
        channel.close()

    def exchange(
        self, address: str, encode: Callable[[int], bytes], timeout_ms: int
    ) -> RemotingCommand:
        """Send what ``encode(opaque)`` gives and wait for its answer."""
        return self._exchange(address, BlockingChannel.exchange, encode, timeout_ms)

    def exchange_send(
        self, address: str, encode: Callable[[int], bytes], timeout_ms: int
    ) -> RemotingCommand | PlainSendAnswer:
        """The same for a send, whose answer may have the short form; HOT."""
        return self._exchange(address, BlockingChannel.exchange_send, encode, timeout_ms)

    def _exchange(
        self,
        address: str,
        exchange: Callable[[BlockingChannel, Callable[[int], bytes], int], T],
        encode: Callable[[int], bytes],
        timeout_ms: int,
    ) -> T:
        channel = self.take(address, timeout_ms)
        try:
            answer = exchange(channel, encode, timeout_ms)
        except ConnectFailed:
            # The peer has ended, so the other free connections to it are broken too.
            self.drop(address)
            raise
        finally:
            self.give(channel)
        return answer

    def drop(self, address: str) -> None:
        with self._lock:
            free = self._free.pop(address, [])
        for channel, _ in free:
            channel.close()

    async def request(
        self, address: str, command: RemotingCommand, timeout_ms: int
    ) -> RemotingCommand:
        if self._credentials is not None:
            self._credentials.sign_command(command)
        return self.exchange(address, lambda opaque: _encode(command, opaque), timeout_ms)

    async def oneway(self, address: str, command: RemotingCommand) -> None:
        if self._credentials is not None:
            self._credentials.sign_command(command)
        channel = self.take(address, 3_000)
        try:
            channel.oneway(command)
        finally:
            self.give(channel)

    async def together(self, works: Sequence[Callable[[], Awaitable[None]]]) -> None:
        for work in works:
            await work()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - blocking is what this face is for

    async def resolve(self, host: str, port: int) -> list[str]:
        return resolve(host, port)

    async def fetch_text(self, url: str, timeout_ms: int) -> str:
        return fetch_text(url, timeout_ms)

    def close(self) -> None:
        """Close every free connection; those in use close when they are given back.

        With several clients the last one does it.
        """
        with self._lock:
            self._sharers -= 1
            if self._sharers > 0:
                return
            self._is_closed = True
            channels = [channel for free in self._free.values() for channel, _ in free]
            self._free.clear()
        for channel in channels:
            channel.close()

    def after_fork(self) -> None:
        """In a child process: forget the parent's connections and locks."""
        channels = [channel for free in self._free.values() for channel, _ in free]
        fork.abandon_descriptors([_descriptor(channel) for channel in channels])
        fork.keep_forever(channels)
        self._free = {}
        self._lock = threading.Lock()


def _encode(command: RemotingCommand, opaque: int) -> bytes:
    command.opaque = opaque
    return encode_command(command)


def _descriptor(channel: BlockingChannel) -> int:
    return -1 if channel.is_closed else channel.fileno()


def run_inline(coroutine: Coroutine[Any, Any, T]) -> T:
    """Drive a coroutine that never suspends (it runs over `BlockingIo`) to its result.

    Raises:
        RequestTimeout: the coroutine suspended, which is a bug of this client.
    """
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RequestTimeout("a blocking call tried to wait for an event loop; this is a bug")
