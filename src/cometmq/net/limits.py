"""What one connection, one client and one address may take of a server.

A connection that asks too fast, or has too many requests without an answer, is not read for a
while: its requests wait in the kernel and nobody else waits for them.  One that does not read its
answers is cut.  Every such event is counted under the name of its limit, and logged with what was
measured, for each connection once a minute.

A limit of 0 is none.  Frames are counted only where a limit needs it, so that a server without such
limits pays nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from cometmq.net.tls_server import TlsSettings

if TYPE_CHECKING:
    from cometmq.net.server import ServerConnection

__all__ = ["LIMIT_NAMES", "LimitSettings", "Limiter", "count_frames"]

log = logging.getLogger("cometmq.net")

Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
LIMIT_NAMES: Final = (
    "connections_per_address",
    "frames_in_flight",
    "frames_in_flight_per_client",
    "requests_per_second",
    "requests_per_second_per_client",
    "unsent_bytes",
    "unsent_bytes_per_client",
    "slow_reader",
    "silent",
    "protocol",
)
"""Why a connection was refused, cut or made to wait."""
LOG_PAUSE_MS: Final = 60_000
_JSON: Final = 0
_FLAG_NAME: Final = b'"flag":'
_BINARY_FLAG_AT: Final = 9
"""Behind code, language, version and opaque."""
_RESPONSE_OR_ONEWAY: Final = 3


class LimitSettings(TlsSettings, frozen=True, kw_only=True, rename="camel"):
    """Limits of connections; the keys are ours, since RocketMQ has none.

    Of each pair the second one is for all connections of one client id together.
    """

    connections_per_address_max: Count = 0
    frames_in_flight_max: Count = 0
    frames_in_flight_per_client_max: Count = 0
    requests_per_second_max: Count = 0
    requests_per_second_per_client_max: Count = 0
    unsent_bytes_max: Annotated[int, msgspec.Meta(ge=4194304, le=2**31 - 1)] = 67108864
    unsent_bytes_per_client_max: Count = 0
    slow_reader_timeout: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] = 60000

    @property
    def counts_frames(self) -> bool:
        """Whether a limit needs the number of frames."""
        return bool(
            self.frames_in_flight_max
            or self.frames_in_flight_per_client_max
            or self.requests_per_second_max
            or self.requests_per_second_per_client_max
        )


def count_frames(data: bytes | memoryview) -> tuple[int, int]:
    """Count the whole frames at the beginning of `data`, and those that are to be answered."""
    data = bytes(data)
    frames = asking = position = 0
    end = len(data)
    while position + 8 <= end:
        following = position + 4 + int.from_bytes(data[position : position + 4])
        if following > end or following < position + 8:
            break
        frames += 1
        header = position + 8
        if data[position + 4] == _JSON:
            flag = _json_flag(data, header, following)
        else:
            flag = data[header + _BINARY_FLAG_AT + 3] if following > header + 12 else 0
        asking += not flag & _RESPONSE_OR_ONEWAY
        position = following
    return frames, asking


def _json_flag(data: bytes, begin: int, end: int) -> int:
    """Return the flag of a JSON header.

    Java's headers have it behind the ext fields, of which one may have the same name; its value is
    a text.
    """
    at = data.rfind(_FLAG_NAME, begin, end)
    while at >= 0:
        digit = data[at + len(_FLAG_NAME)]
        if 0x30 <= digit <= 0x39:
            return digit & 0x0F
        at = data.rfind(_FLAG_NAME, begin, at)
    return 0


class _Use:
    """What one connection, or one client, takes at present."""

    __slots__ = ("at_ms", "connections", "in_flight", "tokens")

    def __init__(self, tokens: float, now_ms: int) -> None:
        self.in_flight = 0
        self.tokens = tokens
        self.at_ms = now_ms
        self.connections = 0

    def wait_ms(self, rate: int, frames: int, now_ms: int) -> float:
        """Take requests from what a second gives; return how long to wait for the surplus."""
        grown = self.tokens + max(0, now_ms - self.at_ms) * rate / 1000
        self.tokens = min(float(rate), grown) - frames
        self.at_ms = now_ms
        return 0.0 if self.tokens >= 0 else -self.tokens * 1000 / rate


class _ConnectionUse(_Use):
    """With the client behind it, once its heartbeat has named it."""

    __slots__ = ("client",)

    def __init__(self, tokens: float, now_ms: int) -> None:
        super().__init__(tokens, now_ms)
        self.client: _Use | None = None


class Limiter:
    """Counts what connections take, and makes those wait that take too much.

    Args:
        settings: the limits.
    """

    def __init__(self, settings: LimitSettings) -> None:
        self.settings = settings
        self.counts: Counter[str] = Counter()
        """How often each limit was met, by its name."""
        self._addresses: Counter[str] = Counter()
        self._uses: dict[ServerConnection, _ConnectionUse] = {}
        self._clients: dict[str, _Use] = {}
        self._logged_ms: dict[ServerConnection, int] = {}

    # -- coming and going -------------------------------------------------------------------

    def opened(self, connection: ServerConnection) -> bool:
        """Note a connection; say whether its address may have one more."""
        address = connection.peer.rpartition(":")[0]
        self._addresses[address] += 1
        most = self.settings.connections_per_address_max
        if most and self._addresses[address] > most:
            self.met(
                "connections_per_address",
                connection,
                f"{self._addresses[address]} connections come from {address}, {most} are allowed",
            )
            return False
        return True

    def closed(self, connection: ServerConnection) -> None:
        """Forget a connection."""
        address = connection.peer.rpartition(":")[0]
        self._addresses[address] -= 1
        if self._addresses[address] <= 0:
            del self._addresses[address]
        self._logged_ms.pop(connection, None)
        use = self._uses.pop(connection, None)
        if use is None or use.client is None:
            return
        client = use.client
        client.connections -= 1
        client.in_flight -= use.in_flight
        if not client.connections and connection.client_id is not None:
            self._clients.pop(connection.client_id, None)

    def met(self, name: str, connection: ServerConnection, text: str) -> None:
        """Count that a limit was met; log it unless this connection's line is fresh."""
        self.counts[name] += 1
        now_ms = connection.now_ms()
        last_ms = self._logged_ms.get(connection)
        if last_ms is None or now_ms - last_ms >= LOG_PAUSE_MS:
            self._logged_ms[connection] = now_ms
            log.warning(
                "limit %s: connection from %s, client %s: %s",
                name,
                connection.peer,
                connection.client_id or "unknown",
                text,
            )

    # -- frames -----------------------------------------------------------------------------

    def received(self, connection: ServerConnection, data: bytes, now_ms: int) -> None:
        """Count the requests in `data`, and let the connection wait if they are too many."""
        frames, asking = count_frames(data)
        if not frames:
            return
        settings = self.settings
        use = self._use(connection, now_ms)
        use.in_flight += asking
        client = use.client
        if client is not None:
            client.in_flight += asking
        for kind, taken, rate in (
            ("requests_per_second", use, settings.requests_per_second_max),
            (
                "requests_per_second_per_client",
                client,
                settings.requests_per_second_per_client_max,
            ),
        ):
            if taken is not None and rate:
                wait_ms = taken.wait_ms(rate, frames, now_ms)
                if wait_ms > 0:
                    self.met(kind, connection, f"it waits {wait_ms:.0f} ms, {rate} are allowed")
                    connection.wait(wait_ms)
        over = self._over(use)
        if over is not None:
            name, count, most = over
            self.met(name, connection, f"{count} requests wait for answers, {most} are allowed")
            connection.wait(None)

    def sent(self, connection: ServerConnection, data: bytes | memoryview) -> None:
        """Count the answers in `data`, and read the connection again if it has few open ones."""
        use = self._uses.get(connection)
        if use is None:
            return
        answered = min(use.in_flight, count_frames(data)[0])
        use.in_flight -= answered
        if use.client is not None:
            use.client.in_flight -= answered
        if connection.is_awaiting_answers and self._over(use) is None:
            connection.wait_over()

    def _over(self, use: _ConnectionUse) -> tuple[str, int, int] | None:
        settings = self.settings
        most = settings.frames_in_flight_max
        if most and use.in_flight > most:
            return "frames_in_flight", use.in_flight, most
        most = settings.frames_in_flight_per_client_max
        # A connection without open requests is read whatever its siblings do: else nobody reads it.
        if most and use.client is not None and use.in_flight and use.client.in_flight > most:
            return "frames_in_flight_per_client", use.client.in_flight, most
        return None

    def _use(self, connection: ServerConnection, now_ms: int) -> _ConnectionUse:
        use = self._uses.get(connection)
        settings = self.settings
        if use is None:
            use = _ConnectionUse(settings.requests_per_second_max, now_ms)
            self._uses[connection] = use
        if use.client is None and connection.client_id is not None:
            client = self._clients.get(connection.client_id)
            if client is None:
                client = _Use(settings.requests_per_second_per_client_max, now_ms)
                self._clients[connection.client_id] = client
            client.connections += 1
            client.in_flight += use.in_flight
            use.client = client
        return use
