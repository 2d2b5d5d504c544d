"""The simulator's network: in-memory TCP that is slow, chopped and sometimes cut, from one seed.

It implements `net.Network` on in-memory transports; each delivery is a timer of the virtual loop.
As with TCP, one direction of a connection loses, doubles and reorders nothing before the connection
ends.

One connection is two pipes, one for each direction.  A pipe delays, splits and joins what is
written to it, counts the bytes that the reader has not read yet, and pauses the writer above its
high-water mark, so a slow reader slows the writer exactly as over a socket.

    writer -> transport.write -> [ chunks due at t1 <= t2 <= ... ] -> data_received -> reader
                     ^ pause_writing / resume_writing                     ^ pause_reading

Every delivery and every end of a connection goes to `trace`, by which two runs of one seed are
compared.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import random
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from cometmq.errors import ConnectFailed
from cometmq.testing.loop import Lifetime, context_of, current_lifetime
from cometmq.testing.markers import override

__all__ = ["NetworkFaults", "SimHost", "SimListener", "SimNetwork", "SimTransport"]

RETRANSMIT_S: Final = 0.4
"""How often what was written to a silent machine is sent again."""
HIGH_WATER_BYTES: Final = 64 * 1024
LOW_WATER_BYTES: Final = 16 * 1024
FIRST_EPHEMERAL_PORT: Final = 40_000

_P = TypeVar("_P", bound=asyncio.BaseProtocol)
_Factory = Callable[[], asyncio.Protocol]
_Trace = Callable[[str, str], None]


@dataclass(slots=True)
class NetworkFaults:
    """The faults of the network; the defaults delay and split but never cut.

    `delay_ms_*`: one-way delay of a chunk.  `split_chance`: that a write is chopped into pieces.
    `cut_chance`: that a delivery is replaced by a reset of the connection.  `answer_cut_chance`:
    the same for a delivery of a server, which has done by then what was asked.  `connect_refused_
    chance`: that a connection is refused although the listener is there.
    """

    delay_ms_min: float = 0.05
    delay_ms_max: float = 2.0
    split_chance: float = 0.2
    cut_chance: float = 0.0
    answer_cut_chance: float = 0.0
    connect_refused_chance: float = 0.0


class SimHost:
    """One address of the simulated network, and the `net.Network` of its node."""

    def __init__(self, network: SimNetwork, address: str) -> None:
        self._network = network
        self.address = address
        self.listeners: dict[int, SimListener] = {}
        self.transports: list[SimTransport] = []
        self.closed: list[SimTransport] = []
        """Ends that are closed while the other end is not yet."""
        self.is_silent = False
        """Whether the machine has vanished: nothing answers until it is there again."""
        self._next_port = FIRST_EPHEMERAL_PORT

    async def listen(self, host: str, port: int, accept: _Factory) -> SimListener:
        """Listen on `port` of this host (0 picks one); the local address `host` is ignored.

        Raises:
            ConnectFailed: the port is in use.
        """
        number = port or self.take_port()
        if number in self.listeners:
            raise ConnectFailed(f"cannot listen on {self.address}:{number}: it is in use")
        listener = SimListener(self, number, accept)
        self.listeners[number] = listener
        return listener

    async def connect(
        self, host: str, port: int, factory: Callable[[], _P], timeout_ms: int = 3000
    ) -> _P:
        """Connect to `host:port`.

        Raises:
            ConnectFailed: nobody listens there, or a partition hides the host.
        """
        return await self._network.connect(self, host, port, factory, timeout_ms)

    async def resolve(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host; one that `SimNetwork.names` lacks is its own address.

        Raises:
            ConnectFailed: the network says that the name has no address.
        """
        addresses = self._network.names.get(host, (host,))
        if not addresses:
            raise ConnectFailed(f"no address of {host} is known")
        return [f"{address}:{port}" for address in addresses]

    def take_port(self) -> int:
        """Return a port that nothing on this host has used before."""
        while self._next_port in self.listeners:
            self._next_port += 1
        self._next_port += 1
        return self._next_port - 1

    def crash(self, *, is_silent: bool = False) -> None:
        """Remove all listeners and end every connection.

        Args:
            is_silent: the other ends hear nothing, as no system is left that resets connections.
                They are reset when they write and the machine is there again.
        """
        self.is_silent = is_silent
        self.listeners.clear()
        for transport in (*self.transports, *self.closed):
            transport.die()
        self.transports.clear()
        self.closed.clear()


class SimListener:
    """A listening port."""

    def __init__(self, host: SimHost, port: int, accept: _Factory) -> None:
        self._host = host
        self.port = port
        self.accept = accept
        self.context = contextvars.copy_context()

    def close(self) -> None:
        """Stop accepting; open connections stay."""
        if self._host.listeners.get(self.port) is self:
            del self._host.listeners[self.port]

    async def wait_closed(self) -> None:
        """Nothing to wait for: closing is immediate."""


class SimNetwork:
    """All hosts, and the one source of chance for the traffic between them."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        chance: random.Random,
        trace: _Trace,
        faults: NetworkFaults | None = None,
    ) -> None:
        self.loop = loop
        self.chance = chance
        self.trace = trace
        self.faults = faults if faults is not None else NetworkFaults()
        self.hosts: dict[str, SimHost] = {}
        self.names: dict[str, tuple[str, ...]] = {}
        """Addresses of host names, as a DNS server has them."""
        self._parted: set[tuple[str, str]] = set()
        """Pairs of addresses: nothing of the first reaches the second."""
        self._connection_count = 0
        self._made: list[SimTransport] = []

    def host(self, address: str) -> SimHost:
        """Return the host with this address, made on first use."""
        host = self.hosts.get(address)
        if host is None:
            host = self.hosts[address] = SimHost(self, address)
        return host

    def forget(self) -> None:
        """Drop the references between all ends after the simulation, so that they are freed."""
        for transport in self._made:
            transport.detach()
        self._made.clear()
        for host in self.hosts.values():
            host.transports.clear()
            host.closed.clear()
            host.listeners.clear()

    def part(self, first: str, second: str, *, one_way: bool = False) -> None:
        """Delay every delivery between two hosts until `heal`; connections stay open.

        Args:
            one_way: delay only what `first` sends to `second`.
        """
        self._parted.add((first, second))
        if not one_way:
            self._parted.add((second, first))

    def heal(self, *pair: str) -> None:
        """End the partition between two hosts, or every partition, and deliver what it delayed."""
        if pair:
            first, second = pair
            self._parted -= {(first, second), (second, first)}
        else:
            self._parted.clear()
        for host in self.hosts.values():
            for transport in host.transports:
                transport.pump()

    def is_parted(self, first: str, second: str) -> bool:
        """Whether a partition delays what the first host sends to the second."""
        return (first, second) in self._parted

    def delay_s(self) -> float:
        """Draw the next one-way delay."""
        faults = self.faults
        return self.chance.uniform(faults.delay_ms_min, faults.delay_ms_max) / 1000

    async def connect(
        self,
        source: SimHost,
        host: str,
        port: int,
        factory: Callable[[], _P],
        timeout_ms: int,
    ) -> _P:
        """Open a connection from `source`, which takes one round trip of virtual time.

        Raises:
            ConnectFailed: nobody listens there, or a partition hides the host.
        """
        target_address = source.address if host in {"127.0.0.1", "localhost", "::1"} else host
        if self.is_parted(source.address, target_address) or self.is_parted(
            target_address, source.address
        ):
            # The partition delays even a refusal.
            await asyncio.sleep(timeout_ms / 1000)
            raise ConnectFailed(f"no connection to {host}:{port} within {timeout_ms} ms")
        await asyncio.sleep(self.delay_s() + self.delay_s())
        target = self.hosts.get(target_address)
        if target is not None and target.is_silent:
            await asyncio.sleep(timeout_ms / 1000)
            raise ConnectFailed(f"no connection to {host}:{port} within {timeout_ms} ms")
        listener = None if target is None else target.listeners.get(port)
        refused = self.chance.random() < self.faults.connect_refused_chance
        if target is None or listener is None or refused:
            raise ConnectFailed(f"no connection to {host}:{port}: nobody listens there")
        self._connection_count += 1
        name = f"c{self._connection_count}"
        here = (source.address, source.take_port())
        there = (target_address, port)
        client = SimTransport(self, source, name + ">", here, there, contextvars.copy_context())
        server = SimTransport(self, target, name + "<", there, here, listener.context)
        client.join(server)
        self._made += (client, server)
        self.trace("connect", f"{name} {here[0]} -> {there[0]}:{there[1]}")
        server.begin(listener.context.copy().run(listener.accept))
        protocol = factory()
        client.begin(protocol)
        return protocol


class SimTransport(asyncio.Transport):
    """One end of a connection; behaves as asyncio's socket transport does."""

    def __init__(
        self,
        network: SimNetwork,
        host: SimHost,
        name: str,
        sockname: tuple[str, int],
        peername: tuple[str, int],
        context: contextvars.Context,
    ) -> None:
        super().__init__({"peername": peername, "sockname": sockname})
        self.name = name
        self.is_server = name.endswith("<")
        """Whether this end was accepted by a listener."""
        self.peer: SimTransport = self
        self._network = network
        self._host = host
        self._loop = network.loop
        self._sockname = sockname
        self._peername = peername
        self._context = _without_tasks(context)
        self._protocol: asyncio.BaseProtocol = asyncio.Protocol()
        # Chunks that this end wrote and the other has not read, with their due times.
        self._outgoing: deque[tuple[float, bytes]] = deque()
        self._outgoing_bytes = 0
        self._last_due_s = 0.0
        self._pump_timer: asyncio.TimerHandle | None = None
        self._high_bytes = HIGH_WATER_BYTES
        self._low_bytes = LOW_WATER_BYTES
        self._writing_paused = False
        self._reading_paused = False
        self._closing = False
        self._eof_written = False
        self._muted = False
        self._eof_delivered = False
        self._lost = False
        self._dead = False
        self._vanished = False
        """Whether this end died without a word to its peer."""
        host.transports.append(self)

    def join(self, other: SimTransport) -> None:
        """Make the two ends each other's peer."""
        self.peer = other
        other.peer = self

    def detach(self) -> None:
        """Drop the references to peer and protocol."""
        self.peer, self._protocol = self, asyncio.Protocol()

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        """Connect this end to its protocol."""
        self._protocol = protocol
        self._context.run(protocol.connection_made, self)

    # -- asyncio.Transport: reading -----------------------------------------------------------

    @override
    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    @override
    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    @override
    def is_reading(self) -> bool:
        return not self._reading_paused and not self._closing

    @override
    def pause_reading(self) -> None:
        self._reading_paused = True

    @override
    def resume_reading(self) -> None:
        self._reading_paused = False
        self.peer.pump()

    # -- asyncio.Transport: writing -----------------------------------------------------------

    @override
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = HIGH_WATER_BYTES if low is None else 4 * low
        self._high_bytes = high
        self._low_bytes = high // 4 if low is None else low
        self._check_high_water()

    @override
    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_bytes, self._high_bytes

    @override
    def get_write_buffer_size(self) -> int:
        return self._outgoing_bytes

    @override
    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._closing or self._lost or self._dead or self._muted or not data:
            return
        if self._eof_written:
            raise RuntimeError("cannot write after write_eof()")
        for chunk in self._split(bytes(data)):
            self._last_due_s = max(self._last_due_s, self._loop.time() + self._network.delay_s())
            self._outgoing.append((self._last_due_s, chunk))
            self._outgoing_bytes += len(chunk)
        self.pump()
        self._check_high_water()

    @override
    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        self.write(b"".join(list_of_data))

    @override
    def can_write_eof(self) -> bool:
        return True

    @override
    def write_eof(self) -> None:
        if not self._eof_written:
            self._eof_written = True
            self.pump()

    @override
    def is_closing(self) -> bool:
        return self._closing

    @override
    def close(self) -> None:
        """Deliver what was written, then end both directions."""
        if self._closing:
            return
        self._closing = True
        self._eof_written = True
        self.pump()
        if not self._outgoing:
            self._loop.call_soon(self._lose, None, context=self._context)

    @override
    def abort(self) -> None:
        """Reset the connection; written data that is not delivered is lost."""
        self.reset(None)

    def half_close(self) -> None:
        """End the direction to the peer as a middlebox would; the other direction stays open.

        Data that this end writes from now on is lost.
        """
        if not self._closing and not self._eof_written:
            self._network.trace("half-close", self.name)
            self._muted = self._eof_written = True
            self.pump()

    def reset(self, error: Exception | None) -> None:
        """Reset both ends, the peer a delay later."""
        if self._lost:
            return
        self._closing = True
        self._drop_outgoing()
        self._loop.call_soon(self._lose, error, context=self._context)
        peer = self.peer
        if not peer._lost:
            peer._loop.call_later(self._network.delay_s(), peer._peer_reset, context=peer._context)

    def die(self) -> None:
        """Drop this end with its crashed node; the peer gets a reset."""
        self._dead = True
        self._vanished = self._host.is_silent
        self._drop_outgoing()
        peer = self.peer
        if peer._lost or peer._dead:
            return
        if self._vanished:
            # The timer of its next delivery belongs to this end, and never rings.
            peer._stop_timer()
            peer.pump()
        else:
            peer._loop.call_later(self._network.delay_s(), peer._peer_reset, context=peer._context)

    # -- moving bytes -------------------------------------------------------------------------

    def pump(self) -> None:
        """Set the timer of the next delivery to the peer, if one is due."""
        if self._pump_timer is not None or self._lost or self._dead:
            return
        if self._outgoing:
            due_s = self._outgoing[0][0]
        elif self._eof_written and not self._eof_delivered:
            due_s = max(self._last_due_s, self._loop.time())
        else:
            return
        # The peer's code runs in a delivery, unless there is no peer any more.
        context = self._context if self.peer._vanished else self.peer._context
        self._pump_timer = self._loop.call_at(
            max(due_s, self._loop.time()), self._deliver, context=context
        )

    def _deliver(self) -> None:
        self._pump_timer = None
        peer = self.peer
        if self._lost or self._dead:
            return
        if peer._dead:
            if peer._vanished:
                self._send_again()
            return
        if peer._reading_paused:
            return
        if peer._lost:
            # The peer answers a write after its close with a reset.
            self._loop.call_soon(self._peer_reset, context=self._context)
            return
        if self._network.is_parted(self._sockname[0], self._peername[0]):
            return
        if not self._outgoing:
            self._deliver_eof()
            return
        faults = self._network.faults
        cut_chance = faults.cut_chance
        if self.is_server:
            cut_chance = max(cut_chance, faults.answer_cut_chance)
        if self._network.chance.random() < cut_chance:
            self._network.trace("cut", self.name)
            self.reset(ConnectionResetError(104, "the simulated network cut the connection"))
            return
        now_s = self._loop.time()
        parts = []
        # Chunks due together arrive together, as in one read of a socket.
        while self._outgoing and self._outgoing[0][0] <= now_s:
            parts.append(self._outgoing.popleft()[1])
        data = b"".join(parts)
        self._outgoing_bytes -= len(data)
        self._network.trace("data", f"{self.name} {len(data)} {zlib.crc32(data):08x}")
        self._feed(data)
        self._after_delivery()

    def _send_again(self) -> None:
        """Wait for a machine that has vanished; it resets what it does not know."""
        if self.peer._host.is_silent:
            self._last_due_s = self._loop.time() + RETRANSMIT_S
            self._outgoing = deque((self._last_due_s, chunk) for _, chunk in self._outgoing)
            self.pump()
        else:
            self._loop.call_soon(self._peer_reset, context=self._context)

    def _feed(self, data: bytes) -> None:
        """Give `data` to the peer's protocol; runs in the peer's context."""
        peer = self.peer
        if peer._closing:
            return
        protocol = peer._protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            view = memoryview(data)
            while view:
                buffer = memoryview(protocol.get_buffer(len(view))).cast("B")
                count = min(len(buffer), len(view))
                buffer[:count] = view[:count]
                protocol.buffer_updated(count)
                view = view[count:]
        elif isinstance(protocol, asyncio.Protocol):
            protocol.data_received(data)

    def _after_delivery(self) -> None:
        if self._lost or self._dead:
            return
        if self._writing_paused and self._outgoing_bytes <= self._low_bytes:
            self._writing_paused = False
            self._loop.call_soon(self._protocol.resume_writing, context=self._context)
        if self._closing and not self._outgoing:
            self._loop.call_soon(self._lose, None, context=self._context)
        self.pump()

    def _deliver_eof(self) -> None:
        """Deliver the end of the stream; the peer closes too unless its protocol stays open."""
        self._eof_delivered = True
        self._network.trace("eof", self.name)
        peer = self.peer
        protocol = peer._protocol
        keep_open = False
        if isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol):
            keep_open = bool(protocol.eof_received())
        if not keep_open:
            peer.close()

    def _peer_reset(self) -> None:
        if not self._lost and not self._dead:
            self._drop_outgoing()
            self._closing = True
            self._lose(ConnectionResetError(104, "connection reset by peer"))

    def _lose(self, error: Exception | None) -> None:
        if self._lost or self._dead:
            return
        if self._eof_written and not self._eof_delivered and error is None:
            # The end of the stream still has to reach the peer.
            self._deliver_eof_later()
        self._lost = True
        self._network.trace("lost", f"{self.name} {'reset' if error else 'closed'}")
        if self in self._host.transports:
            self._host.transports.remove(self)
            self._host.closed[:] = [end for end in self._host.closed if not end.peer._lost]
            self._host.closed.append(self)
        self._protocol.connection_lost(error)

    def _deliver_eof_later(self) -> None:
        peer = self.peer
        if peer._lost or peer._dead:
            return

        def deliver() -> None:
            if not peer._lost and not peer._dead and not self._eof_delivered:
                self._deliver_eof()

        self._loop.call_later(self._network.delay_s(), deliver, context=peer._context)

    def _split(self, data: bytes) -> list[bytes]:
        if len(data) < 2 or self._network.chance.random() >= self._network.faults.split_chance:
            return [data]
        cuts = sorted(
            {self._network.chance.randrange(1, len(data)) for _ in range(min(3, len(data) - 1))}
        )
        edges = [0, *cuts, len(data)]
        return [data[start:end] for start, end in itertools.pairwise(edges)]

    def _check_high_water(self) -> None:
        if not self._writing_paused and self._outgoing_bytes > self._high_bytes:
            self._writing_paused = True
            self._protocol.pause_writing()

    def _drop_outgoing(self) -> None:
        self._outgoing.clear()
        self._outgoing_bytes = 0
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._pump_timer is not None:
            self._pump_timer.cancel()
            self._pump_timer = None


def _without_tasks(context: contextvars.Context) -> contextvars.Context:
    """Return a context with only the node's lifetime, as a socket callback would have."""
    lifetime: Lifetime | None = context.run(current_lifetime)
    return contextvars.Context() if lifetime is None else context_of(lifetime)
