"""Message ids and host fields.

Host field: 4 (IPv4) or 16 (IPv6) address bytes, then the port as a 32-bit integer.

Offset message id: upper-case hex of store host and physical offset, 16 bytes or 28 with IPv6
(``MessageDecoder.createMessageId``; docs/internals/protocol.md#message-ids).  Clients parse it and
dial the host in it.

Unique id, made by the client (``MessageClientIDSetter``)::

    0        4    6         10        14   16
    |ip      |pid |seed     |ms       |n   |   as upper-case hex, 32 characters

``ms`` counts from the start of the month; an IPv6 address makes it 28 bytes.
"""

import struct
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from cometmq.errors import CodecError, LocalProtocolError

__all__ = [
    "HOST_V4_BYTES",
    "HOST_V6_BYTES",
    "UniqIdFactory",
    "decode_host",
    "decode_offset_message_id",
    "encode_host",
    "offset_message_id",
    "offset_message_id_prefix",
    "offset_message_ids",
]

HOST_V4_BYTES: Final = 8
HOST_V6_BYTES: Final = 20
_PORT: Final = struct.Struct(">i")
_PORT_MAX: Final = 65535
_UNSIGNED_INT_MASK: Final = 0xFFFFFFFF
_SHORT_MASK: Final = 0xFFFF


def encode_host(address: str) -> bytes:
    """Return the host field of ``1.2.3.4:10911`` (8 bytes) or ``[::1]:10911`` (20 bytes).

    Raises:
        LocalProtocolError: it is no IP address with a port.
    """
    host, _, port_text = address.rpartition(":")
    try:
        ip = ip_address(host.strip("[]"))
        port = int(port_text)
    except ValueError:
        raise LocalProtocolError(
            f"host {address!r} is not IP:PORT; names must be resolved before they are stored"
        ) from None
    if not 0 <= port <= _PORT_MAX:
        raise LocalProtocolError(f"port {port} of host {address!r} is not in 0..{_PORT_MAX}")
    return ip.packed + _PORT.pack(port)


def decode_host(raw: bytes) -> str:
    """Return ``ip:port`` of a host field; IPv6 addresses come in brackets.

    Raises:
        CodecError: the field has another length.
    """
    if len(raw) == HOST_V4_BYTES:
        port = int.from_bytes(raw[4:], "big", signed=True)
        return f"{raw[0]}.{raw[1]}.{raw[2]}.{raw[3]}:{port}"
    if len(raw) == HOST_V6_BYTES:
        port = int.from_bytes(raw[16:], "big", signed=True)
        return f"[{IPv6Address(raw[:16])}]:{port}"
    raise CodecError(f"a host field has 8 or 20 bytes, got {len(raw)}")


def offset_message_id_prefix(host: bytes) -> str:
    """Return the host part of offset message ids; append ``f"{physical_offset:016X}"``."""
    return host.hex().upper()


def offset_message_id(host: bytes, physical_offset: int) -> str:
    """Return the offset message id of a record stored by the broker with this host field."""
    return f"{host.hex().upper()}{physical_offset:016X}"


def offset_message_ids(host: bytes, physical_offsets: Sequence[int]) -> str:
    """Return the ids of many messages joined by commas, as a batch is answered."""
    count = len(physical_offsets)
    fields: list[bytes | int] = [host] * (2 * count)
    fields[1::2] = physical_offsets
    raw = struct.pack(">" + f"{len(host)}sq" * count, *fields)
    return raw.hex(",", len(host) + 8).upper()


def decode_offset_message_id(message_id: str) -> tuple[str, int]:
    """Return ``ip:port`` and physical offset of an offset message id.

    Raises:
        CodecError: the text is no offset message id.
    """
    try:
        raw = bytes.fromhex(message_id)
    except ValueError:
        raw = b""
    if len(raw) not in (HOST_V4_BYTES + 8, HOST_V6_BYTES + 8) or len(message_id) != 2 * len(raw):
        raise CodecError(
            f"{message_id[:80]!r} is no offset message id: expected 32 or 56 hex digits,"
            f" got {len(message_id)} characters"
        )
    return decode_host(raw[:-8]), int.from_bytes(raw[-8:], "big", signed=True)


def _month_bounds_ms(now_ms: int) -> tuple[int, int]:
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    start = datetime(now.year, now.month, 1, tzinfo=UTC)
    year, month = (now.year + 1, 1) if now.month == 12 else (now.year, now.month + 1)
    end = datetime(year, month, 1, tzinfo=UTC)
    return int(start.timestamp() * 1000), int(end.timestamp() * 1000)


class UniqIdFactory:
    """Makes the UNIQ_KEY of messages: unique per address, process, seed, time and counter.

    ``seed`` is any 32-bit number that tells two factories of one process apart (Java takes a
    class-loader hash).  ``clock`` returns ms since 1970; ``utc_offset_ms`` shifts the month's
    start to local time, which matters only to tools that read the time back out of the id.
    """

    def __init__(
        self, ip: str, pid: int, seed: int, clock: Callable[[], int], *, utc_offset_ms: int = 0
    ) -> None:
        """Prepare the constant part of the ids.

        Raises:
            LocalProtocolError: ``ip`` is no IP address.
        """
        try:
            address: IPv4Address | IPv6Address = ip_address(ip)
        except ValueError:
            raise LocalProtocolError(f"unique ids need an IP address, got {ip!r}") from None
        fixed = address.packed + struct.pack(">HI", pid & _SHORT_MASK, seed & _UNSIGNED_INT_MASK)
        self._prefix = fixed.hex().upper()
        self._clock = clock
        self._shift_ms = utc_offset_ms
        self._counter = 0
        self._month_start_ms = 0
        self._month_end_ms = 0
        # Address, process, seed and time: the same for all ids of a millisecond.
        self._stem = ""
        self._stem_ms = -1

    def next_id(self) -> str:
        """Return a new id of 32 (IPv6: 56) upper-case hex digits."""
        now_ms = self._clock()
        if now_ms != self._stem_ms:
            self._set_stem(now_ms)
        counter = self._counter
        self._counter = (counter + 1) & _SHORT_MASK
        return f"{self._stem}{counter:04X}"

    def _set_stem(self, now_ms: int) -> None:
        if not self._month_start_ms <= now_ms < self._month_end_ms:
            start, end = _month_bounds_ms(now_ms + self._shift_ms)
            self._month_start_ms = start - self._shift_ms
            self._month_end_ms = end - self._shift_ms
        self._stem = f"{self._prefix}{now_ms - self._month_start_ms:08X}"
        self._stem_ms = now_ms
