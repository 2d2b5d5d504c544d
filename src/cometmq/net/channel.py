"""A client connection over asyncio: many requests in flight, answers in any order.

A request needs no task and no timer of its own: it is an entry with a deadline in the channel's
`Connection`, and one timer per channel ends the expired requests. Writes of one loop turn leave in
one system call.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias, cast

import msgspec

from cometmq import native
from cometmq.errors import ConnectFailed, RequestTimeout
from cometmq.net.env import Environment
from cometmq.net.network import foreign_protocol, parse_address
from cometmq.wire.command.command import FLAG_RESPONSE, RemotingCommand
from cometmq.wire.frame.connection import Connection
from cometmq.wire.frame.framing import FrameReader
from cometmq.wire.header.fast_decode import PlainSendAnswer

__all__ = ["Channel", "ChannelPool", "OnAnswer", "OnRequest", "SendToken"]

log = logging.getLogger("cometmq.net")

OnAnswer: TypeAlias = Callable[[RemotingCommand | Exception], None]
OnRequest: TypeAlias = Callable[["Channel", RemotingCommand], RemotingCommand | None]
"""Called with a request of the server; returns the answer or None (one-way, or answered later)."""

SWEEP_INTERVAL_S = 0.1
"""How late a timeout may be noticed; a tenth of the shortest timeout anyone sets."""
WRITE_BUFFER_BYTES_HIGH = 1024 * 1024
GOODBYE_TURNS = 50
GOODBYE_PAUSE_S = 0.01
"""How often, and with which pause, a closing pool checks whether its connections are gone."""
WRITE_FRAMES = 16
"""This many frames leave before their loop turn is over: the peer works on them while the client
encodes the next ones."""


_take_natively: Final = native.take_send_answers


class SendToken(msgspec.Struct, weakref=False):
    """An `OnAnswer` of a send, which takes the usual answer in fewer steps."""

    def stored(self, answer: PlainSendAnswer) -> None:
        """Handle an answer with code 0, which comes instead of a call; each kind of send does."""


class Channel(asyncio.Protocol):
    """One connection to a broker or name server; ``address`` is the ``host:port`` dialled."""

    __slots__ = (
        "_connection",
        "_env",
        "_flush_scheduled",
        "_loop",
        "_on_close",
        "_on_request",
        "_prepare",
        "_sweeper",
        "_transport",
        "_writable",
        "address",
        "is_paused",
        "local_ip",
        "next_opaque",
    )

    def __init__(
        self,
        env: Environment,
        address: str,
        on_request: OnRequest | None = None,
        on_close: Callable[["Channel"], None] | None = None,
        prepare: Callable[[RemotingCommand], None] | None = None,
    ) -> None:
        self._prepare = prepare
        self._env = env
        self._loop = asyncio.get_running_loop()
        self._connection: Connection[RemotingCommand, OnAnswer] = Connection(FrameReader())
        self._transport: asyncio.Transport | None = None
        self._flush_scheduled = False
        self._sweeper: asyncio.TimerHandle | None = None
        self._on_request = on_request
        self._on_close = on_close
        self._writable: asyncio.Future[None] | None = None
        self.address = address
        self.is_paused = False
        self.local_ip = "127.0.0.1"
        self.next_opaque: Callable[[], int] = self._connection.next_opaque
        """Returns a number that no outstanding request of this channel has."""

    # -- requests ---------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended."""
        return self._connection.is_closed

    @property
    def in_flight_count(self) -> int:
        """How many requests wait for a response."""
        return self._connection.in_flight_count

    def waiting(self) -> Iterator[OnAnswer]:
        """Yield what is called with the answers that have not come yet, the oldest first."""
        return self._connection.waiting_tokens()

    def deadline_in(self, timeout_ms: float) -> float:
        """Return the deadline of a request that begins now."""
        return self._env.clock.monotonic() + timeout_ms / 1000

    def call(self, opaque: int, frame: bytes, deadline: float, on_answer: OnAnswer) -> None:
        """Send an encoded request; ``on_answer`` gets the response or the exception, once.

        ``deadline`` is a time of the environment's monotonic clock.
        """
        connection = self._connection
        if connection.is_closed:
            on_answer(ConnectFailed(f"the connection to {self.address} is closed"))
            return
        connection.start_request(opaque, on_answer, deadline)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep)
        self.write(frame)

    def request(
        self, command: RemotingCommand, timeout_ms: int = 3000
    ) -> asyncio.Future[RemotingCommand]:
        """Send a request; the future gives the response, RequestTimeout or ConnectFailed."""
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()

        def settle(answer: RemotingCommand | Exception) -> None:
            if future.done():
                return
            if isinstance(answer, RequestTimeout):
                answer = RequestTimeout(f"{self.address} did not answer within {timeout_ms} ms")
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        if self._prepare is not None:
            self._prepare(command)
        opaque = self.next_opaque()
        frame = self._connection.encode_request(command, opaque)
        self.call(opaque, frame, self.deadline_in(timeout_ms), settle)
        return future

    def oneway(self, command: RemotingCommand) -> None:
        """Send a one-way request; the caller does not learn whether it arrives."""
        if self._prepare is not None:
            self._prepare(command)
        self.write(self._connection.encode_oneway(command))

    def write(self, frame: bytes) -> None:
        """Queue an encoded frame for the end of this loop turn.

        A request that is alone in flight leaves at once: no other frame could share its system
        call, and waiting for the end of the turn would lengthen its round trip.
        """
        connection = self._connection
        if connection.is_closed:
            return
        outgoing = connection.outgoing
        if not outgoing and connection.in_flight_count <= 1 and self._transport is not None:
            self._transport.write(frame)
            return
        outgoing.append(frame)
        if len(outgoing) >= WRITE_FRAMES:
            self.flush()
        elif not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_turn)

    async def drain(self) -> None:
        """Wait until the kernel takes what was written."""
        while self.is_paused and not self.is_closed:
            if self._writable is None or self._writable.done():
                self._writable = self._loop.create_future()
            await self._writable

    def close(self) -> None:
        """Send what is queued, then close; requests in flight fail."""
        if self._transport is not None and not self.is_closed:
            self.flush()
            self._transport.close()

    def abort(self) -> None:
        """Drop the connection at once."""
        if self._transport is not None and not self.is_closed:
            self._transport.abort()

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection is TLS."""
        return self._transport is not None and bool(self._transport.get_extra_info("sslcontext"))

    def fileno(self) -> int:
        """The socket's descriptor, or -1; a forked child closes its copy by it."""
        if self._transport is None or self.is_closed:
            return -1
        inherited = self._transport.get_extra_info("socket")
        return inherited.fileno() if inherited is not None else -1

    # -- the transport's side ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's, so isinstance would refuse them.
        self._transport = tcp = cast("asyncio.Transport", transport)
        tcp.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_HIGH)
        name = transport.get_extra_info("sockname")
        if name:
            self.local_ip = name[0]

    def data_received(self, data: bytes) -> None:
        connection = self._connection
        data = connection.join_data(data)
        served = 0 if _take_natively is None else self._take_plain(data)
        commands = connection.parse_data(data, served)
        if connection.fault is not None:
            log.warning("connection to %s closed: %s", self.address, connection.fault)
            self.abort()
        take_request = connection.take_request
        for command in commands:
            if command.flag & FLAG_RESPONSE:
                on_answer = take_request(command.opaque)
                if on_answer is not None:
                    on_answer(command)
            else:
                self._serve(command)

    def _take_plain(self, data: bytes) -> int:
        """Serve the plain answers to sends at the beginning; return where they end.  HOT."""
        served: list[tuple[SendToken, PlainSendAnswer]] = []

        def take(data: bytes, waiting: dict[int, Any]) -> int:
            assert _take_natively is not None
            return _take_natively(data, waiting, served, SendToken, PlainSendAnswer)

        try:
            return self._connection.take_answers(take, data)
        finally:
            for token, answer in served:
                try:
                    token.stored(answer)
                except Exception:
                    # The others have left the connection, so nobody else would answer them.
                    log.exception("an answer of %s could not be handled", self.address)

    def _serve(self, command: RemotingCommand) -> None:
        if self._on_request is None:
            return
        try:
            answer = self._on_request(self, command)
        except Exception:
            # A fault in a push handler must not end the connection that all sends share.
            log.exception("request %d of %s failed", command.code, self.address)
            return
        if answer is not None:
            frame = self._connection.encode_answer(command, answer)
            if frame is not None:
                self.write(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        connection = self._connection
        waiting = connection.close(f"was closed: {exc}" if exc else "was closed by the peer")
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        for on_answer in waiting:
            if connection.fault is not None:
                on_answer(foreign_protocol(self.address, connection.fault))
            else:
                on_answer(
                    ConnectFailed(f"the connection to {self.address} {connection.close_reason}")
                )
        if self._on_close is not None:
            self._on_close(self)

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def _flush_turn(self) -> None:
        self._flush_scheduled = False
        self.flush()

    def flush(self) -> None:
        """Hand what was written to the transport now, not at the end of the loop turn."""
        connection = self._connection
        if connection.outgoing and self._transport is not None and not connection.is_closed:
            self._transport.write(connection.data_to_send())

    def _sweep(self) -> None:
        self._sweeper = None
        now = self._env.clock.monotonic()
        connection = self._connection
        for opaque, on_answer in connection.take_expired(now):
            on_answer(RequestTimeout(f"{self.address} did not answer request {opaque} in time"))
        if connection.in_flight_count and not connection.is_closed:
            self._sweeper = self._loop.call_later(SWEEP_INTERVAL_S, self._sweep)


class ChannelPool:
    """One channel per address, connected on first use and again after a loss.

    ``prepare`` is called with each request before it is encoded, to sign it.
    """

    def __init__(
        self,
        env: Environment,
        on_request: OnRequest | None = None,
        on_close: Callable[[Channel], None] | None = None,
        prepare: Callable[[RemotingCommand], None] | None = None,
    ) -> None:
        self._env = env
        self._prepare = prepare
        self._on_request = on_request
        self._on_close = on_close
        self._channels: dict[str, Channel] = {}
        self._connecting: dict[str, asyncio.Future[Channel]] = {}
        self.is_closed = False

    def open_channel(self, address: str) -> Channel | None:
        """The channel to ``address`` if one is connected now; never waits."""
        channel = self._channels.get(address)
        return channel if channel is not None and not channel.is_closed else None

    def channels(self) -> list[Channel]:
        """Every connected channel."""
        return [channel for channel in self._channels.values() if not channel.is_closed]

    async def get(self, address: str, timeout_ms: int = 3000) -> Channel:
        """Return the channel to ``address``; callers during an attempt to connect share it.

        Raises:
            ConnectFailed: no connection could be made, or the pool is closed.
        """
        channel = self._channels.get(address)
        if channel is not None and not channel.is_closed:
            return channel
        if self.is_closed:
            raise ConnectFailed(f"no connection to {address}: this client is closed")
        attempt = self._connecting.get(address)
        if attempt is None:
            attempt = asyncio.ensure_future(self._connect(address, timeout_ms))
            self._connecting[address] = attempt
            attempt.add_done_callback(lambda ended: self._attempted(address, ended))
        return await asyncio.shield(attempt)

    def _attempted(self, address: str, attempt: asyncio.Future[Channel]) -> None:
        self._connecting.pop(address, None)
        if not attempt.cancelled():
            # Whoever waited may have been cancelled: asyncio would log an error that nobody reads.
            attempt.exception()

    async def _connect(self, address: str, timeout_ms: int) -> Channel:
        host, port = parse_address(address)
        channel = await self._env.network.connect(
            host,
            port,
            lambda: Channel(self._env, address, self._on_request, self._lost, self._prepare),
            timeout_ms,
        )
        if self.is_closed:
            channel.abort()
            raise ConnectFailed(f"no connection to {address}: this client is closed")
        self._channels[address] = channel
        return channel

    def _lost(self, channel: Channel) -> None:
        if self._channels.get(channel.address) is channel:
            del self._channels[channel.address]
        if self._on_close is not None:
            self._on_close(channel)

    def abort(self, address: str) -> None:
        """Break the channel to ``address``, of which nothing is expected any more."""
        channel = self._channels.pop(address, None)
        if channel is not None:
            channel.abort()

    def drop(self, address: str) -> None:
        """Close the channel to ``address``; the next ``get`` dials again."""
        channel = self._channels.pop(address, None)
        if channel is not None:
            channel.close()

    async def close(self) -> None:
        """Close every channel after sending what is queued."""
        self.is_closed = True
        for attempt in list(self._connecting.values()):
            attempt.cancel()
        channels = list(self._channels.values())
        for channel in channels:
            channel.close()
        self._channels.clear()
        await asyncio.sleep(0)
        # TLS sends a closing alert and waits for the peer's; a plain connection needs no wait.
        waiting = [channel for channel in channels if channel.is_encrypted]
        for _ in range(GOODBYE_TURNS):
            if all(channel.is_closed for channel in waiting):
                return
            await asyncio.sleep(GOODBYE_PAUSE_S)
        for channel in waiting:
            channel.abort()
        await asyncio.sleep(0)
