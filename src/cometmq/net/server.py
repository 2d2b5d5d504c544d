"""A remoting server: connections, request dispatch, bounded answers, calls to clients.

One read of a socket is parsed whole, every complete request in it is handled by a plain function,
and the answers leave in one write. A handler that returns None has parked the request (long
polling, synchronous flush) and answers later through :meth:`ServerConnection.send`.

Flow control: when a peer reads slower than it asks, the answers it has not taken stay below
``WRITE_BUFFER_BYTES_MAX``; further requests of that connection wait unparsed in the kernel
(reading is paused), and a peer that takes nothing for ``STALLED_MS_MAX`` is cut.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice, takewhile
from typing import Any, TypeAlias, cast

from cometmq.codec.ids import encode_host
from cometmq.errors import CometError, RemoteProtocolError, ResponseCode
from cometmq.net.env import Environment
from cometmq.net.network import Listener, format_address
from cometmq.wire.command.command import RemotingCommand, encode_command, encode_response
from cometmq.wire.frame.framing import FrameReader

__all__ = ["Answer", "Handler", "RemotingServer", "Run", "ServerConnection"]

log = logging.getLogger("cometmq.net")

Answer: TypeAlias = RemotingCommand | bytes | list[Any] | None
"""A response, a whole encoded frame, the buffers of a frame in order, or None: parked."""

Handler: TypeAlias = Callable[[RemotingCommand, "ServerConnection", int], Answer]
"""``(request, connection, now_ms) -> answer``; runs on the event loop and must not block."""

Run: TypeAlias = Callable[[Sequence[Any], int, "ServerConnection", int], tuple[int, bytes]]
"""``(commands, start, connection, now_ms) -> (end, answers)``: serves requests of one type from
``start`` on and gives the place of the first command it did not serve, and the answers in order."""

WRITE_BUFFER_BYTES_HIGH = 2 * 1024 * 1024
"""Above this much unsent, the connection's next requests wait."""
WRITE_BUFFER_BYTES_MAX = 64 * 1024 * 1024
"""Above this much unsent the connection is cut: only pushes and parked answers can get there."""
ANSWER_BATCH_BYTES = 1024 * 1024
"""Answers collected before they are handed to the transport."""
IDLE_MS_MAX = 120_000
"""Java's ``serverChannelMaxIdleTimeSeconds``: neither read nor write for this long."""
STALLED_MS_MAX = 60_000
"""A peer that does not take its answers for this long is cut; it holds our memory meanwhile."""
SWEEP_INTERVAL_S = 5.0


class ServerConnection(asyncio.Protocol):
    """One client's connection, as handlers see it.

    ``peer`` is ``ip:port``; ``peer_host`` the same as 8 bytes of a stored message.
    ``client_id``, ``language`` and ``version`` are set by the heartbeat; ``context`` is free for
    the owner of the server.
    """

    __slots__ = (
        "_backlog",
        "_busy",
        "_calls",
        "_flush_scheduled",
        "_loop",
        "_next_opaque",
        "_out",
        "_out_bytes",
        "_paused",
        "_reader",
        "_server",
        "_stalled_since_ms",
        "_transport",
        "client_id",
        "context",
        "is_closed",
        "language",
        "last_read_ms",
        "peer",
        "peer_host",
        "version",
        "when_drained",
    )

    def __init__(self, server: "RemotingServer") -> None:
        self._server = server
        self._reader = FrameReader(has_fast_commands=bool(server.runs))
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._out: list[Any] = []
        self._out_bytes = 0
        self._backlog: deque[RemotingCommand] = deque()
        self._busy = False
        self._paused = False
        self._stalled_since_ms = 0
        self._flush_scheduled = False
        self._next_opaque = 0
        self._calls: dict[int, tuple[Callable[[RemotingCommand | None], None], Any]] = {}
        self.is_closed = False
        self.peer = "?"
        self.peer_host = b"\0" * 8
        self.client_id: str | None = None
        self.language = ""
        self.version = 0
        self.last_read_ms = 0
        self.context: Any = None
        self.when_drained: Callable[[], None] | None = None
        """Called each time the peer has taken what it had left lying; see `unsent_bytes`."""

    # -- the transport's side ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's, so isinstance would refuse them.
        self._transport = tcp = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if peer:
            self.peer = format_address(peer[0], peer[1])
            self.peer_host = encode_host(self.peer)
        tcp.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_HIGH)
        self.last_read_ms = self._server.env.clock.now_ms()
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self._backlog.clear()
        self._out.clear()
        calls, self._calls = self._calls, {}
        for done, timer in calls.values():
            timer.cancel()
            done(None)
        self._server.closed(self)

    def data_received(self, data: bytes) -> None:
        now_ms = self._server.env.clock.now_ms()
        self.last_read_ms = now_ms
        try:
            commands = self._reader.receive(data)
        except RemoteProtocolError as error:
            log.warning("connection from %s closed: %s", self.peer, error)
            self._answer_all(self._reader.take_complete(), now_ms)
            self.close()
            return
        if self._backlog:
            self._backlog.extend(commands)
        else:
            self._answer_all(commands, now_ms)

    def eof_received(self) -> bool:
        # A half-closed peer can still read what it asked for, but nothing new can come; RocketMQ
        # closes, and so do we: parked requests of a vanished reader are worth nothing.
        return False

    def pause_writing(self) -> None:
        self._paused = True
        self._stalled_since_ms = self._server.env.clock.now_ms()
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        if self._backlog:
            waiting = list(self._backlog)
            self._backlog.clear()
            self._answer_all(waiting, self._server.env.clock.now_ms())
        if not self._paused and self._transport is not None and not self.is_closed:
            self._transport.resume_reading()
        if self.when_drained is not None:
            self.when_drained()

    # -- the handlers' side -----------------------------------------------------------------

    @property
    def unsent_bytes(self) -> int:
        """How much of what was handed over the peer has not taken yet.

        Above WRITE_BUFFER_BYTES_HIGH `when_drained` is called once it has sunk.
        """
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def send(self, frame: bytes | memoryview | list[Any]) -> None:
        """Queue a whole frame (or its buffers); frames of one loop turn leave in one write."""
        if self.is_closed:
            return
        if type(frame) is list:
            self._out.extend(frame)
        else:
            self._out.append(frame)
        if not self._busy and not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def oneway(self, command: RemotingCommand) -> None:
        """Send a one-way request to the client."""
        command.opaque = self._take_opaque()
        command.flag |= 2
        self.send(encode_command(command))

    def call(
        self,
        command: RemotingCommand,
        timeout_ms: int,
        done: Callable[[RemotingCommand | None], None],
    ) -> None:
        """Send a request to the client; ``done`` gets its answer, or None when none came."""
        if self.is_closed:
            done(None)
            return
        opaque = self._take_opaque()
        command.opaque = opaque
        timer = self._loop.call_later(timeout_ms / 1000, self._call_expired, opaque)
        self._calls[opaque] = (done, timer)
        self.send(encode_command(command))

    def close(self) -> None:
        """Send what is queued, then close."""
        if self._transport is not None and not self.is_closed:
            self._flush()
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Cut the connection; what it has not read yet is dropped."""
        if self._transport is not None and not self.is_closed:
            log.warning("connection from %s cut: %s", self.peer, reason)
            self._transport.abort()

    # -- inside -----------------------------------------------------------------------------

    def _answer_all(self, commands: list[Any], now_ms: int) -> None:
        """Handle the requests in order until the peer's unread answers reach their bound."""
        runs = self._server.runs
        out = self._out
        out_bytes = 0
        self._busy = True
        place = 0
        count = len(commands)
        while place < count:
            command = commands[place]
            end = place
            answer: bytes | list[Any] | None = None
            if type(command) is not RemotingCommand and place + 1 < count:
                end, answer = self._serve_run(runs[type(command)], commands, place, now_ms)
            if end == place:
                end, answer = place + 1, self._serve(command, now_ms)
            place = end
            if not answer:
                continue
            # Joined here: one buffer of a whole answer is cheaper to carry than its 33 parts.
            frame = b"".join(answer) if type(answer) is list else cast(bytes, answer)
            out.append(frame)
            out_bytes += len(frame)
            if out_bytes > ANSWER_BATCH_BYTES:
                self._flush()
                out_bytes = 0
                if self._paused:
                    self._backlog.extend(commands[place:])
                    break
        self._busy = False
        if out:
            self._flush()

    def _serve(self, command: RemotingCommand, now_ms: int) -> bytes | list[Any] | None:
        """Handle one command; None when there is no answer, or not yet."""
        flag = command.flag
        if flag & 1:
            self._call_answered(command)
            return None
        handler = self._server.handlers.get(command.code)
        try:
            answer = handler(command, self, now_ms) if handler else _unsupported(command)
            if type(answer) is RemotingCommand:
                # Inside the try: an answer that cannot be encoded is a failed request too.
                answer = encode_command(answer)
        except CometError as error:
            answer = _failure(command, str(error))
        except Exception as error:
            log.exception("request %d from %s failed", command.code, self.peer)
            answer = _failure(command, f"{type(error).__name__}: {error}")
        return None if flag & 2 else cast("bytes | list[Any] | None", answer)

    def _serve_run(
        self, run: Run, commands: list[Any], start: int, now_ms: int
    ) -> tuple[int, bytes]:
        """Handle what is alike at the front together; as far as it was, and the answers."""
        try:
            return run(commands, start, self, now_ms)
        except Exception as error:
            kind = type(commands[start])
            log.exception("requests %d from %s failed", commands[start].code, self.peer)
            # Nobody knows which of them are stored: none may be tried once more here.
            remark = f"{type(error).__name__}: {error}"
            failures: list[bytes] = []
            for command in takewhile(lambda one: type(one) is kind, islice(commands, start, None)):
                start += 1
                if not command.flag & 2:
                    failures.append(_failure(command, remark))
            return start, b"".join(failures)

    def _flush(self) -> None:
        self._flush_scheduled = False
        out = self._out
        if not out or self._transport is None or self.is_closed:
            return
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        self._transport.write(data)
        if self._paused:
            unsent = self._transport.get_write_buffer_size()
            if unsent > WRITE_BUFFER_BYTES_MAX:
                self.abort(
                    f"{unsent} bytes of answers wait unread, {WRITE_BUFFER_BYTES_MAX} are allowed"
                )

    def _take_opaque(self) -> int:
        self._next_opaque = (self._next_opaque + 1) & 0x7FFFFFFF
        return self._next_opaque

    def _call_answered(self, command: RemotingCommand) -> None:
        entry = self._calls.pop(command.opaque, None)
        if entry is not None:
            done, timer = entry
            timer.cancel()
            done(command)

    def _call_expired(self, opaque: int) -> None:
        entry = self._calls.pop(opaque, None)
        if entry is not None:
            entry[0](None)

    def sweep(self, now_ms: int) -> None:
        """Cut a connection that is silent, or that does not take its answers."""
        if self._paused and now_ms - self._stalled_since_ms > STALLED_MS_MAX:
            self.abort(f"its answers have waited {now_ms - self._stalled_since_ms} ms unread")
        elif now_ms - self.last_read_ms > IDLE_MS_MAX:
            self.abort(f"nothing was received for {now_ms - self.last_read_ms} ms")


class RemotingServer:
    """Listens on one or more ports and dispatches requests to ``handlers`` by code.

    ``on_open`` and ``on_close`` are told of every connection.
    """

    __slots__ = (
        "_listeners",
        "_on_close",
        "_on_open",
        "_sweeper",
        "connections",
        "env",
        "handlers",
        "runs",
    )

    def __init__(
        self,
        env: Environment,
        handlers: dict[int, Handler],
        *,
        on_open: Callable[[ServerConnection], None] | None = None,
        on_close: Callable[[ServerConnection], None] | None = None,
    ) -> None:
        self.env = env
        self.handlers = handlers
        self.runs: Mapping[type, Run] = {}
        """Set by an owner whose handlers take what is decoded in one pass too: who serves several
        of a type that arrive together.  All types or none."""
        # Insertion-ordered, since a set of objects iterates differently in every process and a
        # simulation has to repeat itself.
        self.connections: dict[ServerConnection, None] = {}
        self._on_open = on_open
        self._on_close = on_close
        self._listeners: list[Listener] = []
        self._sweeper: asyncio.TimerHandle | None = None

    async def listen(self, host: str, port: int) -> int:
        """Listen on ``host:port`` (0: any free port) and return the bound port."""
        listener = await self.env.network.listen(host, port, lambda: ServerConnection(self))
        self._listeners.append(listener)
        if self._sweeper is None:
            self._sweep()
        return listener.port

    def stop_listening(self) -> None:
        """Accept no further connection; those that are open live on."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    async def stop(self) -> None:
        """Stop listening and close every connection after sending what is queued."""
        self.stop_listening()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in list(self.connections):
            connection.close()
        # One turn for the transports to flush and report the loss.
        for _ in range(20):
            if not self.connections:
                return
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.abort("the server is stopping")

    def opened(self, connection: ServerConnection) -> None:
        """Called by a connection when its transport is up."""
        self.connections[connection] = None
        if self._on_open is not None:
            self._on_open(connection)

    def closed(self, connection: ServerConnection) -> None:
        """Called by a connection when its transport is gone."""
        self.connections.pop(connection, None)
        if self._on_close is not None:
            self._on_close(connection)

    def _sweep(self) -> None:
        now_ms = self.env.clock.now_ms()
        for connection in list(self.connections):
            connection.sweep(now_ms)
        loop = asyncio.get_running_loop()
        self._sweeper = loop.call_later(SWEEP_INTERVAL_S, self._sweep)


def _unsupported(command: RemotingCommand) -> bytes:
    return encode_response(
        command.opaque,
        command.serialize_type,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        f" request type {command.code} not supported",
    )


def _failure(command: RemotingCommand, remark: str) -> bytes:
    return encode_response(
        command.opaque, command.serialize_type, ResponseCode.SYSTEM_ERROR, remark[:1000]
    )
