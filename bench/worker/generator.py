"""The sending side of a load: it keeps W requests in flight on each of C connections.

While the clock runs, the generator does four things per wake-up: it notes the time, counts the
complete answers among the new bytes, takes as many new frames from the ring, and writes them.  It
keeps the raw bytes and the two times.  Opaques, codes, queue offsets and latencies are decoded
later (`settle`), so that the server is measured and not our parser.  The generator checks only an
answer's code; `verify` reads the messages back.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, cast

import numpy as np
import numpy.typing as npt

from bench.base.frames import FrameRing
from bench.base.headers import OPAQUE_BASE, read_answer
from cometmq.errors import ClientError, RemoteProtocolError
from cometmq.net.env import Clock
from cometmq.net.network import TcpNetwork, parse_address

__all__ = ["SendRun", "Sent"]

Ints = npt.NDArray[np.int64]
DRAIN_S_MAX: Final = 30.0
FRAME_BYTES_MAX: Final = 16_777_216


@dataclass(slots=True)
class Sent:
    """The acknowledgements of the server: one entry per request with answer code 0.

    `frame_number`, `queue_id`, `queue_offset` (of the first message), `sent_ns` and `answered_ns`
    are equally long int64 arrays. `refused` counts the other answers by (code, remark).
    """

    frame_number: Ints
    queue_id: Ints
    queue_offset: Ints
    sent_ns: Ints
    answered_ns: Ints
    refused: Counter[tuple[int, str]] = field(default_factory=Counter)

    def latency_ns(self, begin_ns: int, end_ns: int) -> Ints:
        """Durations of the requests whose answers came in [begin_ns, end_ns)."""
        return (self.answered_ns - self.sent_ns)[self._inside(begin_ns, end_ns)]

    def answered_between(self, begin_ns: int, end_ns: int) -> int:
        """The number of answers in [begin_ns, end_ns)."""
        return int(self._inside(begin_ns, end_ns).sum())

    def _inside(self, begin_ns: int, end_ns: int) -> npt.NDArray[np.bool_]:
        return (self.answered_ns >= begin_ns) & (self.answered_ns < end_ns)


class _SendConnection(asyncio.Protocol):
    """One connection; it keeps `window` requests in flight while the run is sending."""

    def __init__(self, run: SendRun, window: int) -> None:
        self._run = run
        self._window = window
        self._transport: asyncio.WriteTransport | None = None
        self._missing = 0  # bytes of a started frame that have not arrived
        self._stub = b""  # fewer than four bytes of a length
        self.in_flight = 0
        self.arrivals: list[tuple[int, bytes]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's, so isinstance would refuse them.
        self._transport = cast("asyncio.WriteTransport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self.in_flight:
            self._run.fail(
                ClientError(
                    f"the server closed a connection with {self.in_flight} requests in flight"
                    f" ({exc or 'end of stream'}); look at its log"
                )
            )

    def start(self) -> None:
        self._send(self._window)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _send(self, count: int) -> None:
        run = self._run
        transport = self._transport
        if transport is None:
            return
        ring = run.ring
        first = ring.sent
        frames = ring.burst(count, run.now_ms())
        run.bursts.append((time.perf_counter_ns(), first, count))
        transport.write(frames)
        self.in_flight += count
        ring.prepare()

    def data_received(self, data: bytes) -> None:
        self.arrivals.append((time.perf_counter_ns(), data))
        answered = self._count(data)
        if answered:
            self.in_flight -= answered
            if self._run.sending:
                self._send(answered)
            elif not self.in_flight:
                self._run.settled()

    def _count(self, data: bytes) -> int:
        """The number of frames that end in `data`."""
        if self._stub:
            data = self._stub + data
            self._stub = b""
        end = len(data)
        position = self._missing
        if position > end:
            self._missing = position - end
            return 0
        answered = 1 if position else 0
        while True:
            if end - position < 4:
                self._missing = 0
                self._stub = data[position:]
                return answered
            position += 4 + int.from_bytes(data[position : position + 4], "big")
            if position > end:
                self._missing = position - end
                return answered
            answered += 1


class SendRun:
    """One timed sending run over `connections` x `window` requests in flight."""

    def __init__(self, ring: FrameRing, connections: int, window: int, clock: Clock) -> None:
        if connections * window > ring.window_max:
            raise ClientError(
                f"{connections} x {window} requests in flight exceed the {ring.window_max} "
                "that a frame ring of this body size can keep apart; use a smaller window"
            )
        self.ring = ring
        self.now_ms = clock.now_ms
        self.sending = False
        self.bursts: list[tuple[int, int, int]] = []
        self._window = window
        self._connection_count = connections
        self._connections: list[_SendConnection] = []
        self._finished: asyncio.Future[None] | None = None

    async def open(self, address: str) -> None:
        """Connect without sending."""
        host, port = parse_address(address)
        network = TcpNetwork()
        for _ in range(self._connection_count):
            self._connections.append(
                await network.connect(host, port, lambda: _SendConnection(self, self._window))
            )
        self._finished = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        """Fill every window; from then on each answer triggers the next send."""
        self.sending = True
        for connection in self._connections:
            connection.start()

    async def run_for(self, seconds: float) -> None:
        """Let the load run for a time; raise at once if a connection breaks."""
        assert self._finished is not None
        await asyncio.wait([self._finished], timeout=seconds)
        if self._finished.done():
            self._finished.result()

    async def stop(self) -> None:
        """Stop sending and wait for the answers to all requests in flight."""
        assert self._finished is not None
        self.sending = False
        self.settled()
        try:
            await asyncio.wait_for(self._finished, DRAIN_S_MAX)
        except TimeoutError:
            missing = sum(connection.in_flight for connection in self._connections)
            raise ClientError(
                f"{missing} requests were not answered within {DRAIN_S_MAX:.0f} s after the "
                "last send; the server hangs or dropped them"
            ) from None
        finally:
            for connection in self._connections:
                connection.close()

    def settled(self) -> None:
        """Note that a connection has nothing in flight."""
        if self.sending or any(connection.in_flight for connection in self._connections):
            return
        if self._finished is not None and not self._finished.done():
            self._finished.set_result(None)

    def fail(self, error: Exception) -> None:
        """End the run with an error."""
        if self._finished is not None and not self._finished.done():
            self._finished.set_exception(error)

    def settle(self) -> Sent:
        """Decode the stored bytes: the acknowledged requests, their queues and their times."""
        numbers: list[int] = []
        queue_ids: list[int] = []
        offsets: list[int] = []
        arrived: list[Ints] = []
        refused: Counter[tuple[int, str]] = Counter()
        for connection in self._connections:
            ends = _read_answers(connection.arrivals, numbers, queue_ids, offsets, refused)
            arrived.append(ends)
            connection.arrivals = []
        sent_ns = np.zeros(self.ring.sent, np.int64)
        if self.bursts:
            table = np.array(self.bursts, np.int64)
            sent_ns[:] = np.repeat(table[:, 0], table[:, 2])
        frame_number = np.array(numbers, np.int64)
        return Sent(
            frame_number,
            np.array(queue_ids, np.int64),
            np.array(offsets, np.int64),
            sent_ns[frame_number],
            np.concatenate(arrived) if arrived else np.empty(0, np.int64),
            refused,
        )


def _read_answers(
    arrivals: list[tuple[int, bytes]],
    numbers: list[int],
    queue_ids: list[int],
    offsets: list[int],
    refused: Counter[tuple[int, str]],
) -> Ints:
    """Append the fields of each answer of code 0; return the arrival time of each."""
    data = b"".join(chunk for _, chunk in arrivals)
    view = memoryview(data)
    ends: list[int] = []
    position = 0
    end = len(data)
    while position < end:
        length = int.from_bytes(data[position : position + 4], "big")
        word = int.from_bytes(data[position + 4 : position + 8], "big")
        serialize_type, header = word >> 24, word & 0xFFFFFF
        position += 4
        if not 4 <= length <= FRAME_BYTES_MAX or serialize_type > 1 or header + 4 > length:
            raise RemoteProtocolError(
                f"answer frame with length {length} and header length word {word:#x}; "
                "expected a JSON or binary header inside the frame"
            )
        answer = read_answer(view[position + 4 : position + 4 + header], serialize_type)
        position += length
        if answer.code:
            refused[answer.code, answer.remark or ""] += 1
            continue
        ext = answer.ext
        numbers.append(answer.opaque - OPAQUE_BASE)
        queue_ids.append(int(ext.queue_id))
        offsets.append(int(ext.queue_offset))
        ends.append(position)
    limits = np.cumsum([len(chunk) for _, chunk in arrivals], dtype=np.int64)
    times = np.array([moment for moment, _ in arrivals], np.int64)
    places = np.searchsorted(limits, np.array(ends, np.int64), side="left")
    return times[places] if len(times) else np.empty(0, np.int64)
