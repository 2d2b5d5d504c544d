"""A remoting server: connections, request dispatch, bounded answers, calls to clients.

One read of a socket is parsed whole, a plain function handles each complete request in it, and the
answers leave in one write. A handler that returns None answers later (long polling, synchronous
flush), through :meth:`ServerConnection.send`.

Flow control: if a peer reads more slowly than it asks, the server stops reading from it, so that
further requests wait in the kernel. Its unread answers stay below ``unsent_bytes_max``, and a peer
that takes nothing for ``slow_reader_timeout`` is cut (`limits`).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice, takewhile
from typing import Any, TypeAlias, cast

from cometmq.codec.ids import encode_host
from cometmq.errors import CometError, ResponseCode
from cometmq.net.env import Environment
from cometmq.net.limits import Limiter, LimitSettings
from cometmq.net.network import Listener, format_address
from cometmq.wire.command.command import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    RemotingCommand,
    encode_command,
    encode_response,
)
from cometmq.wire.frame.connection import IDLE_MS_MAX, Connection
from cometmq.wire.frame.framing import FrameReader, ServerCommand

__all__ = ["Answer", "Front", "Handler", "RemotingServer", "Run", "ServerConnection", "first_of"]

log = logging.getLogger("cometmq.net")

Answer: TypeAlias = RemotingCommand | bytes | list[Any] | None
"""A response, an encoded frame, the buffers of a frame in order, or None: answered later."""

Handler: TypeAlias = Callable[[RemotingCommand, "ServerConnection", int], Answer]
"""``(request, connection, now_ms) -> answer``; runs on the event loop and must not block."""

Run: TypeAlias = Callable[[Sequence[Any], int, "ServerConnection", int], tuple[int, bytes]]
"""``(commands, start, connection, now_ms) -> (end, answers)``: serves requests of one type from
``start`` on and returns the index of the first command it did not serve, and the answers in
order."""

Front: TypeAlias = Callable[[bytes, "ServerConnection", int], tuple[int, bytes]]
"""``(data, connection, now_ms) -> (end, answers)``: serves the frames that ``data`` begins with, as
long as they are plain, and returns where the first frame begins that it did not serve."""

OnAnswer: TypeAlias = Callable[[RemotingCommand | None], None]
"""Called with a client's answer to a request of ours, or with None when none comes."""

WRITE_BUFFER_BYTES_HIGH = 2 * 1024 * 1024
"""Above this much unsent, the connection's next requests wait."""
ANSWER_BATCH_BYTES = 1024 * 1024
"""Answers collected before they are handed to the transport."""
SWEEP_INTERVAL_S = 5.0


class ServerConnection(asyncio.Protocol):
    """One client's connection, as handlers see it.

    ``peer`` is ``ip:port``; ``peer_host`` is the same as the 8 bytes of a stored message.
    The heartbeat sets ``client_id``, ``language`` and ``version``; ``context`` is free for the
    owner of the server.
    """

    __slots__ = (
        "_backlog",
        "_busy",
        "_call_timer",
        "_connection",
        "_flush_scheduled",
        "_loop",
        "_paused",
        "_server",
        "_stalled_since_ms",
        "_transport",
        "_wait_timer",
        "client_id",
        "context",
        "is_awaiting_answers",
        "language",
        "peer",
        "peer_host",
        "version",
        "when_drained",
    )

    def __init__(self, server: "RemotingServer") -> None:
        self._server = server
        self._connection: Connection[ServerCommand, OnAnswer] = Connection(
            FrameReader(has_fast_commands=bool(server.runs))
        )
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._backlog: deque[ServerCommand] = deque()
        self._busy = False
        self._paused = False
        self._stalled_since_ms = 0
        self._flush_scheduled = False
        self._call_timer: asyncio.TimerHandle | None = None
        self._wait_timer: asyncio.TimerHandle | None = None
        self.is_awaiting_answers = False
        """Whether nothing is read until answers have left."""
        self.peer = "?"
        self.peer_host = b"\0" * 8
        self.client_id: str | None = None
        self.language = ""
        self.version = 0
        self.context: Any = None
        self.when_drained: Callable[[], None] | None = None
        """Called each time the peer has read what was unsent; see `unsent_bytes`."""

    # -- the transport's side ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's, so isinstance would refuse them.
        self._transport = tcp = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        if peer:
            self.peer = format_address(peer[0], peer[1])
            self.peer_host = encode_host(self.peer)
        tcp.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_HIGH)
        self._connection.received_ms = self._server.env.clock.now_ms()
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        waiting = self._connection.close("the transport is gone")
        self._backlog.clear()
        for timer in (self._call_timer, self._wait_timer):
            if timer is not None:
                timer.cancel()
        self._call_timer = self._wait_timer = None
        for on_answer in waiting:
            on_answer(None)
        self._server.closed(self)

    def data_received(self, data: bytes) -> None:
        now_ms = self._server.env.clock.now_ms()
        connection = self._connection
        connection.received_ms = now_ms
        data = connection.join_data(data)
        position = 0
        limiter = self._server.frame_limiter
        if limiter is not None:
            limiter.received(self, data, now_ms)
        front = self._server.front
        if front is not None and data and not self._backlog:
            position, answers = front(data, self, now_ms)
            if answers:
                connection.outgoing.append(answers)
            if position == len(data):
                self._flush()
                return
        commands = connection.parse_data(data, position)
        if connection.fault is not None:
            log.warning("connection from %s closed: %s", self.peer, connection.fault)
            self._server.limiter.counts["protocol"] += 1
            self._answer_all(commands, now_ms)
            self.close()
        elif self._backlog:
            self._backlog.extend(commands)
        else:
            self._answer_all(commands, now_ms)

    def eof_received(self) -> bool:
        # A half-closed peer could still read its answers but sends nothing more. RocketMQ closes
        # such connections, and so do we.
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
        self.read_on()
        if self.when_drained is not None:
            self.when_drained()

    def read_on(self) -> None:
        """Read requests, unless the peer does not take its answers or the server holds them."""
        if self._transport is None or self.is_closed:
            return
        is_waiting = self.is_awaiting_answers or self._wait_timer is not None
        if self._paused or self._server.is_holding or is_waiting:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def now_ms(self) -> int:
        """Return the time of the server's clock."""
        return self._server.env.clock.now_ms()

    def wait(self, delay_ms: float | None) -> None:
        """Read nothing for a while; with None, until `wait_over`."""
        if delay_ms is None:
            self.is_awaiting_answers = True
        elif self._wait_timer is None:
            self._wait_timer = self._loop.call_later(delay_ms / 1000, self._waited)
        self.read_on()

    def wait_over(self) -> None:
        """Read again: enough answers have left."""
        self.is_awaiting_answers = False
        self.read_on()

    def _waited(self) -> None:
        self._wait_timer = None
        self.read_on()

    # -- the handlers' side -----------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended."""
        return self._connection.is_closed

    @property
    def unsent_bytes(self) -> int:
        """How many bytes the transport holds that the peer has not taken yet.

        When they exceed WRITE_BUFFER_BYTES_HIGH and fall again, `when_drained` is called.
        """
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def send(self, frame: bytes | memoryview | list[Any]) -> None:
        """Queue a whole frame (or its buffers); frames of one loop turn leave in one write."""
        connection = self._connection
        if connection.is_closed:
            return
        if type(frame) is list:
            connection.outgoing.extend(frame)
        else:
            connection.outgoing.append(frame)
        if not self._busy and not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def oneway(self, command: RemotingCommand) -> None:
        """Send a one-way request to the client."""
        self.send(self._connection.encode_oneway(command))

    def call(self, command: RemotingCommand, timeout_ms: int, on_answer: OnAnswer) -> None:
        """Send a request to the client; ``on_answer`` gets the answer, or None without one."""
        connection = self._connection
        if connection.is_closed:
            on_answer(None)
            return
        opaque = connection.next_opaque()
        frame = connection.encode_request(command, opaque)
        deadline = self._loop.time() + timeout_ms / 1000
        connection.start_request(opaque, on_answer, deadline)
        timer = self._call_timer
        if timer is None or deadline < timer.when():
            self._arm(deadline)
        self.send(frame)

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
        out = self._connection.outgoing
        out_bytes = 0
        self._busy = True
        index = 0
        count = len(commands)
        while index < count:
            command = commands[index]
            end = index
            answer: bytes | list[Any] | None = None
            if index + 1 < count and type(command) in runs:
                end, answer = self._serve_run(runs[type(command)], commands, index, now_ms)
            if end == index:
                end, answer = index + 1, self._serve(command, now_ms)
            index = end
            if not answer:
                continue
            # One joined buffer costs less on its way than the 33 parts of an answer.
            frame = b"".join(answer) if type(answer) is list else cast("bytes", answer)
            out.append(frame)
            out_bytes += len(frame)
            if out_bytes > ANSWER_BATCH_BYTES:
                self._flush()
                out_bytes = 0
                if self._paused:
                    self._backlog.extend(commands[index:])
                    break
        self._busy = False
        if out:
            self._flush()

    def _serve(self, command: RemotingCommand, now_ms: int) -> bytes | list[Any] | None:
        """Handle one command; None when there is no answer, or not yet."""
        flag = command.flag
        if flag & FLAG_RESPONSE:
            on_answer = self._connection.take_request(command.opaque)
            if on_answer is not None:
                on_answer(command)
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
        return None if flag & FLAG_ONEWAY else cast("bytes | list[Any] | None", answer)

    def _serve_run(
        self, run: Run, commands: list[Any], start: int, now_ms: int
    ) -> tuple[int, bytes]:
        """Serve the requests of one type at the front together; return their end and answers."""
        try:
            return run(commands, start, self, now_ms)
        except Exception as error:
            kind = type(commands[start])
            log.exception("requests %d from %s failed", commands[start].code, self.peer)
            # Some of the messages may be stored already, so none is tried again.
            remark = f"{type(error).__name__}: {error}"
            failures: list[bytes] = []
            for command in takewhile(
                lambda request: type(request) is kind, islice(commands, start, None)
            ):
                start += 1
                if not command.flag & FLAG_ONEWAY:
                    failures.append(_failure(command, remark))
            return start, b"".join(failures)

    def _flush(self) -> None:
        self._flush_scheduled = False
        connection = self._connection
        if not connection.outgoing or self._transport is None or connection.is_closed:
            return
        data = connection.data_to_send()
        self._transport.write(data)
        limiter = self._server.frame_limiter
        if limiter is not None:
            limiter.sent(self, data)
        if self._paused:
            self._server.check_unsent(self)

    def _arm(self, deadline: float) -> None:
        """Let the one timer of this connection's requests run at the earliest deadline."""
        if self._call_timer is not None:
            self._call_timer.cancel()
        self._call_timer = self._loop.call_at(deadline, self._calls_expired, deadline)

    def _calls_expired(self, deadline: float) -> None:
        # The deadline, not the clock: a loop may run a timer a little early.
        self._call_timer = None
        expired = self._connection.take_expired(deadline)
        following = self._connection.next_deadline()
        if following is not None:
            self._arm(following)
        for _, on_answer in expired:
            on_answer(None)

    def sweep(self, now_ms: int) -> None:
        """Cut a connection that is silent, or that does not take its answers."""
        limiter = self._server.limiter
        stalled_ms, silent_ms = now_ms - self._stalled_since_ms, self._connection.silent_ms(now_ms)
        if self._paused and stalled_ms > limiter.settings.slow_reader_timeout:
            limiter.counts["slow_reader"] += 1
            self.abort(f"its answers have waited {stalled_ms} ms unread")
        elif silent_ms > IDLE_MS_MAX:
            limiter.counts["silent"] += 1
            self.abort(f"nothing was received for {silent_ms} ms")


class RemotingServer:
    """Listens on one or more ports and dispatches requests to ``handlers`` by code.

    ``on_open`` and ``on_close`` are called with every connection that ``limits`` let in.
    """

    def __init__(
        self,
        env: Environment,
        handlers: dict[int, Handler],
        *,
        on_open: Callable[[ServerConnection], None] | None = None,
        on_close: Callable[[ServerConnection], None] | None = None,
        limits: LimitSettings | None = None,
    ) -> None:
        self.env = env
        self.handlers = handlers
        self.limiter = Limiter(LimitSettings() if limits is None else limits)
        self.frame_limiter = self.limiter if self.limiter.settings.counts_frames else None
        """The same where frames are counted; None elsewhere, which costs a connection nothing."""
        self.runs: Mapping[type, Run] = {}
        """Who serves several requests of one fast-decoded type that arrive together.

        The owner sets all of them or none before the first connection."""
        self.front: Front | None = None
        """Who serves the plain requests at the beginning of what a read brought."""
        # A dictionary keeps the order of insertion. A set of objects iterates differently in every
        # process, and a simulation has to repeat itself.
        self.connections: dict[ServerConnection, None] = {}
        self._on_open = on_open
        self._on_close = on_close
        self._listeners: list[Listener] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self.is_holding = False
        """Whether requests wait in the connections instead of being read."""

    def hold(self, *, is_holding: bool) -> None:
        """Read no requests for a while, and read them again; answers leave as always."""
        self.is_holding = is_holding
        for connection in list(self.connections):
            connection.read_on()

    async def listen(self, host: str, port: int) -> int:
        """Listen on ``host:port`` (0: any free port) and return the bound port."""
        listener = await self.env.network.listen(host, port, lambda: ServerConnection(self))
        self._listeners.append(listener)
        if self._sweeper is None:
            self._sweep()
        return listener.port

    def stop_listening(self) -> None:
        """Accept no further connection; open connections stay open."""
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
        """Called by a connection when its transport is connected."""
        if not self.limiter.opened(connection):
            connection.abort("too many connections come from its address")
            return
        self.connections[connection] = None
        if self.is_holding:
            connection.read_on()
        if self._on_open is not None:
            self._on_open(connection)

    def closed(self, connection: ServerConnection) -> None:
        """Called by a connection when its transport is closed."""
        self.limiter.closed(connection)
        if connection not in self.connections:
            return
        del self.connections[connection]
        if self._on_close is not None:
            self._on_close(connection)

    def check_unsent(self, connection: ServerConnection) -> None:
        """Cut a connection whose peer leaves too many answers unread."""
        settings = self.limiter.settings
        unsent, most, name = connection.unsent_bytes, settings.unsent_bytes_max, "unsent_bytes"
        if unsent <= most and settings.unsent_bytes_per_client_max and connection.client_id:
            most, name = settings.unsent_bytes_per_client_max, "unsent_bytes_per_client"
            unsent = sum(
                each.unsent_bytes
                for each in self.connections
                if each.client_id == connection.client_id
            )
        if unsent > most:
            self.limiter.counts[name] += 1
            connection.abort(f"{unsent} bytes of answers wait unread, {most} are allowed ({name})")

    def _sweep(self) -> None:
        now_ms = self.env.clock.now_ms()
        for connection in list(self.connections):
            connection.sweep(now_ms)
        loop = asyncio.get_running_loop()
        self._sweeper = loop.call_later(SWEEP_INTERVAL_S, self._sweep)


def first_of(*fronts: Front | None) -> Front | None:
    """Return a front that asks others in turn, until one of them serves a frame."""
    present = [front for front in fronts if front is not None]

    def serve(data: bytes, connection: ServerConnection, now_ms: int) -> tuple[int, bytes]:
        for front in present:
            end, answers = front(data, connection, now_ms)
            if end:
                return end, answers
        return 0, b""

    return serve if present else None


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
