"""The reading side of a load: one pull in flight per queue, over raw frames.

Three uses share one connection class and differ in the `PullPlan`, which decides the next pull:
`ReadBack` reads queues to their end and hands every body on (verification), `PullLoad` pulls the
same queues round and round against the clock, `Follow` long-polls their ends while a send load
runs. Answers are read into one reused buffer; a body is copied only if the plan wants it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol, cast

import numpy as np
import numpy.typing as npt

from bench.base.headers import pull_request, read_answer
from bench.base.loads import Form
from cometmq.errors import ClientError, RemoteProtocolError
from cometmq.net.network import TcpNetwork, parse_address

__all__ = ["Cursor", "Follow", "PullLoad", "PullPlan", "PullRun", "ReadBack"]

BUFFER_BYTES: Final = 1 << 20
FRAME_BYTES_MAX: Final = 16_777_216
FOUND, NOT_FOUND, RETRY_IMMEDIATELY, OFFSET_MOVED = 0, 19, 20, 21
SUSPEND: Final = 2
SUBSCRIPTION: Final = 4
SUSPEND_MS: Final = 15_000


@dataclass(slots=True)
class Cursor:
    """The reading position in one queue; `index` is the caller's number of the queue."""

    topic: str
    queue_id: int
    index: int
    queue_offset: int = 0
    queue_offset_end: int = 0  # PullLoad: the offset at which reading starts again from 0
    request: Callable[[int, int], bytes] | None = None  # of the queue offset and the opaque
    sent_ns: int = 0


class PullPlan(Protocol):
    """Handles the answers and decides whether a queue is pulled again."""

    suspend: bool

    def found(
        self, cursor: Cursor, next_offset: int, max_offset: int, body: memoryview, now_ns: int
    ) -> bool:
        """Take an answer of code 0; the cursor has the old offset.  True pulls again."""
        ...

    def empty(self, cursor: Cursor, code: int, next_offset: int) -> bool:
        """Take an answer of code 19, 20 or 21; True pulls again from `next_offset`."""
        ...


class _PullConnection(asyncio.BufferedProtocol):
    """One connection for one or more cursors, with one pull in flight for each of `active`."""

    def __init__(self, run: PullRun, cursors: Sequence[Cursor], active: int) -> None:
        self._run = run
        self._plan = run.plan
        self._waiting = list(cursors[active:])
        self._active = list(cursors[:active])
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._opaque = 0
        self._in_flight: dict[int, Cursor] = {}
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's, so isinstance would refuse them.
        self._transport = cast("asyncio.WriteTransport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._in_flight and not self._run.is_closing:
            self._run.fail(
                ClientError(
                    f"the server closed a connection with {len(self._in_flight)} pulls in flight"
                    f" ({exc or 'end of stream'}); look at its log"
                )
            )

    @property
    def is_idle(self) -> bool:
        return not self._in_flight

    def start(self) -> None:
        for cursor in self._active:
            self._pull(cursor)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _pull(self, cursor: Cursor) -> None:
        if self._transport is None:
            return
        self._opaque = opaque = (self._opaque + 1) & 0x7FFFFFFF
        self._in_flight[opaque] = cursor
        assert cursor.request is not None
        frame = cursor.request(cursor.queue_offset, opaque)
        cursor.sent_ns = time.perf_counter_ns()
        self._transport.write(frame)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        now_ns = time.perf_counter_ns()
        self._filled = filled = self._filled + nbytes
        buffer = self._buffer
        position = 0
        while filled - position >= 4:
            length = int.from_bytes(buffer[position : position + 4], "big")
            if not 4 <= length <= FRAME_BYTES_MAX:
                self._run.fail(RemoteProtocolError(f"pull answer with frame length {length}"))
                return
            if filled - position < 4 + length:
                if 4 + length > len(buffer):
                    self._grow(4 + length + BUFFER_BYTES)
                    buffer = self._buffer
                break
            self._answer(position + 4, length, now_ns)
            position += 4 + length
        if position:
            rest = filled - position
            buffer[0:rest] = buffer[position:filled]
            self._filled = rest

    def _grow(self, size_bytes: int) -> None:
        buffer = bytearray(size_bytes)
        buffer[: self._filled] = self._view[: self._filled]
        self._buffer = buffer
        self._view = memoryview(buffer)

    def _answer(self, position: int, length: int, now_ns: int) -> None:
        view = self._view
        word = int.from_bytes(view[position : position + 4], "big")
        header = word & 0xFFFFFF
        answer = read_answer(view[position + 4 : position + 4 + header], word >> 24)
        cursor = self._in_flight.pop(answer.opaque)
        ext = answer.ext
        next_offset = int(ext.next_begin_offset)
        code = answer.code
        if code == FOUND:
            body = view[position + 4 + header : position + length]
            again = self._plan.found(cursor, next_offset, int(ext.max_offset), body, now_ns)
        elif code in {NOT_FOUND, RETRY_IMMEDIATELY, OFFSET_MOVED}:
            again = self._plan.empty(cursor, code, next_offset)
        else:
            self._run.fail(
                ClientError(
                    f"pull of {cursor.topic} queue {cursor.queue_id} at {cursor.queue_offset} "
                    f"answered {code}: {answer.remark}"
                )
            )
            return
        if self._run.is_stopping:
            again = False
        if not again and self._waiting:
            cursor = self._waiting.pop()
            again = True
        if again:
            self._pull(cursor)
        elif not self._in_flight:
            self._run.idle()


def _same(connection: _PullConnection) -> _PullConnection:
    return connection


class PullRun:
    """Pulls `cursors` over `connections` connections under `plan`.

    `active` limits the pulls in flight on one connection; other cursors wait.
    """

    def __init__(
        self,
        plan: PullPlan,
        cursors: Sequence[Cursor],
        *,
        connections: int,
        group: str,
        active: int = 1,
        pull_count: int = 32,
        form: Form = "java",
    ) -> None:
        self.plan = plan
        self.is_stopping = False
        self.is_closing = False
        self._cursors = list(cursors)
        self._connection_count = min(connections, len(self._cursors)) or 1
        self._active = active
        self._connections: list[_PullConnection] = []
        self._finished: asyncio.Future[None] | None = None
        flags = SUBSCRIPTION | (SUSPEND if plan.suspend else 0)
        for cursor in self._cursors:
            cursor.request = pull_request(
                form,
                {
                    "consumerGroup": group,
                    "topic": cursor.topic,
                    "queueId": str(cursor.queue_id),
                    "maxMsgNums": str(pull_count),
                    "sysFlag": str(flags),
                    "commitOffset": "0",
                    "suspendTimeoutMillis": str(SUSPEND_MS),
                    "subscription": "*",
                    "subVersion": "0",
                    "expressionType": "TAG",
                },
            )

    async def open(self, address: str) -> None:
        """Connect without pulling."""
        host, port = parse_address(address)
        network = TcpNetwork()
        count = self._connection_count
        for number in range(count):
            connection = _PullConnection(self, self._cursors[number::count], self._active)
            await network.connect(host, port, partial(_same, connection))
            self._connections.append(connection)
        self._finished = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        """Send the first pulls."""
        for connection in self._connections:
            connection.start()
        self.idle()

    async def finish(self, timeout_s: float) -> None:
        """Wait until the plan wants no more pulls, then close."""
        assert self._finished is not None
        try:
            await asyncio.wait_for(self._finished, timeout_s)
        except TimeoutError:
            raise ClientError(f"pulls did not end within {timeout_s:.0f} s") from None
        finally:
            self.close()

    async def run_for(self, seconds: float) -> None:
        """Let the pulls run for a time; raise at once if a connection breaks."""
        assert self._finished is not None
        await asyncio.wait([self._finished], timeout=seconds)
        if self._finished.done():
            self._finished.result()

    def stop(self) -> None:
        """Stop pulling; `finish` waits for the answers in flight."""
        self.is_stopping = True
        self.idle()

    def close(self) -> None:
        """Close the connections and with them the held pulls."""
        self.is_closing = True
        for connection in self._connections:
            connection.close()

    def idle(self) -> None:
        """Note that a connection has nothing in flight."""
        if self._finished is None or self._finished.done():
            return
        if all(connection.is_idle for connection in self._connections):
            self._finished.set_result(None)

    def fail(self, error: Exception) -> None:
        """End the run with an error."""
        if self._finished is not None and not self._finished.done():
            self._finished.set_exception(error)


class ReadBack:
    """Plan: read every queue from its cursor to its end; `sink(cursor, body)` gets each answer."""

    suspend = False

    def __init__(self, sink: Callable[[Cursor, bytes], object]) -> None:
        self._sink = sink

    def found(
        self, cursor: Cursor, next_offset: int, max_offset: int, body: memoryview, now_ns: int
    ) -> bool:
        self._sink(cursor, bytes(body))
        cursor.queue_offset = next_offset
        return next_offset < max_offset

    def empty(self, cursor: Cursor, code: int, next_offset: int) -> bool:
        # No message is expired or filtered here.  A code 20 or 21 with progress means a hole, which
        # the comparison with the acknowledgements reports; without progress the queue has ended.
        forward = code != NOT_FOUND and next_offset > cursor.queue_offset
        cursor.queue_offset = next_offset
        return forward


@dataclass(slots=True)
class PullLoad:
    """Plan: read filled queues again and again; keep figures and one body in `sample_every`.

    `pulls` has a row (index, offset, next offset, body bytes, sent ns, answered ns) per answer.
    """

    sample_every: int = 64
    suspend: bool = False
    pulls: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    samples: list[bytes] = field(default_factory=list)
    empty_count: int = 0

    def found(
        self, cursor: Cursor, next_offset: int, max_offset: int, body: memoryview, now_ns: int
    ) -> bool:
        pulls = self.pulls
        pulls.append(
            (cursor.index, cursor.queue_offset, next_offset, len(body), cursor.sent_ns, now_ns)
        )
        if len(pulls) % self.sample_every == 0:
            self.samples.append(bytes(body))
        cursor.queue_offset = next_offset if next_offset < cursor.queue_offset_end else 0
        return True

    def empty(self, cursor: Cursor, code: int, next_offset: int) -> bool:
        self.empty_count += 1
        cursor.queue_offset = 0
        return True

    def table(self) -> npt.NDArray[np.int64]:
        """`pulls` as an array of shape (answers, 6)."""
        return np.array(self.pulls, np.int64).reshape(-1, 6)


@dataclass(slots=True)
class Follow:
    """Plan: long-poll the ends; keep (answered ns, cursor index, body) of every answer."""

    suspend: bool = True
    answers: list[tuple[int, int, bytes]] = field(default_factory=list)
    messages: int = 0

    def found(
        self, cursor: Cursor, next_offset: int, max_offset: int, body: memoryview, now_ns: int
    ) -> bool:
        self.answers.append((now_ns, cursor.index, bytes(body)))
        self.messages += next_offset - cursor.queue_offset
        cursor.queue_offset = next_offset
        return True

    def empty(self, cursor: Cursor, code: int, next_offset: int) -> bool:
        cursor.queue_offset = next_offset
        return True
