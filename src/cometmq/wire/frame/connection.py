"""One connection of the remoting protocol without I/O: bytes in, commands out, bytes to send.

The four transports of ``net`` (`ServerConnection`, `Channel`, `BlockingChannel` and
`PipelinedChannel`) move bytes between a socket and a `Connection`. So does any other transport::

    connection = Connection(FrameReader())

    # A request. The token is whatever the caller wants to get back with the response.
    opaque = connection.next_opaque()
    connection.start_request(opaque, token, deadline)
    connection.outgoing.append(connection.encode_request(command, opaque))
    write(connection.data_to_send())

    # Bytes from the socket. Both kinds of commands come in the order of arrival.
    for command in connection.receive_data(read()):
        if command.is_response:
            token = connection.take_request(command.opaque)    # None: nobody waits for it
        elif (answer := serve(command)) is not None:           # a push, or a client's request
            frame = connection.encode_answer(command, answer)  # None: the request is one-way
            if frame is not None:
                connection.outgoing.append(frame)
    if connection.fault is not None:                           # the peer speaks something else
        close_the_socket()

    # A timer, as often as timeouts shall be noticed.
    for opaque, token in connection.take_expired(now):
        ...

    # The end of the socket, expected or not. What waits gets no response any more.
    for token in connection.close("the peer closed it"):
        ...

**Requests and responses.** The requester chooses ``opaque``, a 32-bit number unique among its
outstanding requests; responses come in any order. Both sides may send requests, and flag bit 0
tells a response from a request, so that the two directions do not share numbers
(docs/internals/protocol.md#flags-and-opaque).

**Clocks.** Deadlines and ``now`` are numbers of the caller's clock.

**Heartbeats.** The protocol has no ping. A client sends the request HEART_BEAT, and a server closes
a connection from which nothing came for `IDLE_MS_MAX`. The caller sets ``received_ms`` when it
reads, and `silent_ms` gives the time since.

**Faults.** Bytes that are no frame, an impossible length among them, end the connection: the stream
has no known position any more. `receive_data` returns the commands before them and sets ``fault``;
every later call returns nothing.

**Limits.** `FrameReader` bounds a frame. Nothing bounds ``outgoing`` and the outstanding requests:
the transport knows how fast its peer reads.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Generic, TypeVar

from cometmq.errors import LocalProtocolError, RemoteProtocolError
from cometmq.wire.command.command import FLAG_ONEWAY, RemotingCommand, encode_command
from cometmq.wire.frame.framing import FrameReader

__all__ = ["IDLE_MS_MAX", "Connection"]

C = TypeVar("C")
T = TypeVar("T")

IDLE_MS_MAX: Final = 120_000
"""How long a server lets a connection be silent: Java's ``serverChannelMaxIdleTimeSeconds``."""
_OPAQUE_MAX: Final = 2**31 - 1
_NEVER: Final = float("inf")


class Connection(Generic[C, T]):
    """The state of one connection; ``C`` is what its reader gives, ``T`` the caller's token.

    ``outgoing`` collects the frames to be sent, or their parts, in order. ``fault`` is the protocol
    error that ended the stream, ``close_reason`` what `close` was told.
    """

    __slots__ = (
        "_last_opaque",
        "_reader",
        "_waiting",
        "close_reason",
        "fault",
        "is_closed",
        "outgoing",
        "received_ms",
    )

    def __init__(self, reader: FrameReader[C], last_opaque: int = 0) -> None:
        self._reader = reader
        self._last_opaque = last_opaque
        self._waiting: dict[int, tuple[T, float]] = {}
        self.outgoing: list[Any] = []
        self.fault: RemoteProtocolError | None = None
        self.is_closed = False
        self.close_reason = ""
        self.received_ms = 0

    # -- bytes in ---------------------------------------------------------------------------

    def receive_data(self, data: bytes) -> list[C]:
        """Return the commands that these bytes complete, in order; none asks for more bytes."""
        return self.parse_data(self._reader.join(data), 0)

    def join_data(self, data: bytes) -> bytes:
        """Return these bytes behind the unfinished frame before them; empty while it is unfinished.

        With `parse_data` it is `receive_data` in two steps, for a caller that serves the first
        frames itself.
        """
        return self._reader.join(data)

    def parse_data(self, data: bytes, position: int) -> list[C]:
        """Return the commands of what `join_data` gave, from a position between two frames on."""
        try:
            return self._reader.parse(data, position)
        except RemoteProtocolError as error:
            self.fault = error
            return self._reader.take_complete()

    def take_answers(
        self, take: Callable[[bytes, dict[int, tuple[T, float]]], int], data: bytes
    ) -> int:
        """Return the position up to which ``take`` has served what `join_data` gave.

        ``take`` gets (token, deadline) of the outstanding requests by opaque, and removes those
        whose answers it takes over.
        """
        return take(data, self._waiting)

    def silent_ms(self, now_ms: int) -> int:
        """Return for how long nothing was received."""
        return now_ms - self.received_ms

    # -- requests ---------------------------------------------------------------------------

    @property
    def in_flight_count(self) -> int:
        """How many requests wait for a response."""
        return len(self._waiting)

    def waiting_tokens(self) -> Iterator[T]:
        """Yield the tokens of the requests that wait for a response, the oldest first."""
        for token, _ in self._waiting.values():
            yield token

    def next_opaque(self) -> int:
        """Return an opaque that no outstanding request uses; after 2**31 - 1 comes 0."""
        opaque = (self._last_opaque + 1) & _OPAQUE_MAX
        while opaque in self._waiting:
            opaque = (opaque + 1) & _OPAQUE_MAX
        self._last_opaque = opaque
        return opaque

    def start_request(self, opaque: int, token: T, deadline: float = _NEVER) -> None:
        """Expect the response with this opaque.

        Raises:
            LocalProtocolError: an outstanding request has the opaque.
        """
        if opaque in self._waiting:
            raise LocalProtocolError(f"opaque {opaque} is in use by an outstanding request")
        self._waiting[opaque] = (token, deadline)

    def take_request(self, opaque: int) -> T | None:
        """Return the token of the request that a response answers, once; None if there is none."""
        waiting = self._waiting.pop(opaque, None)
        return None if waiting is None else waiting[0]

    def take_expired(self, now: float) -> list[tuple[int, T]]:
        """Return opaque and token of the requests whose deadline is reached, and forget them."""
        expired = [
            (opaque, token)
            for opaque, (token, deadline) in self._waiting.items()
            if deadline <= now
        ]
        for opaque, _ in expired:
            del self._waiting[opaque]
        return expired

    def next_deadline(self) -> float | None:
        """Return the earliest deadline of the outstanding requests; None without any."""
        return min((deadline for _, deadline in self._waiting.values()), default=None)

    # -- bytes to send ----------------------------------------------------------------------

    def encode_request(self, command: RemotingCommand, opaque: int) -> bytes:
        """Return the frame of a request.

        Raises:
            LocalProtocolError: the protocol cannot carry it.
        """
        command.opaque = opaque
        return encode_command(command)

    def encode_oneway(self, command: RemotingCommand) -> bytes:
        """Return the frame of a request that asks for no response.

        Raises:
            LocalProtocolError: the protocol cannot carry it.
        """
        command.flag |= FLAG_ONEWAY
        return self.encode_request(command, self.next_opaque())

    def encode_answer(self, request: RemotingCommand, answer: RemotingCommand) -> bytes | None:
        """Return the frame of the response to a request; None if the request is one-way.

        Raises:
            LocalProtocolError: the protocol cannot carry it.
        """
        if request.flag & FLAG_ONEWAY:
            return None
        answer.opaque = request.opaque
        return encode_command(answer)

    def data_to_send(self) -> bytes | memoryview:
        """Return what ``outgoing`` holds as one buffer, and empty it."""
        outgoing = self.outgoing
        data: bytes | memoryview = outgoing[0] if len(outgoing) == 1 else b"".join(outgoing)
        outgoing.clear()
        return data

    # -- the end ----------------------------------------------------------------------------

    def close(self, reason: str) -> Iterable[T]:
        """End the connection; return the tokens of the requests that get no response any more.

        A second call changes nothing.
        """
        if self.is_closed:
            return ()
        self.is_closed = True
        self.close_reason = reason
        self.outgoing.clear()
        waiting, self._waiting = self._waiting, {}
        return [token for token, _ in waiting.values()]
