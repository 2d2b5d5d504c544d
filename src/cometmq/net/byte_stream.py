"""A connection that carries bytes without frames of ours, such as RocketMQ's replication."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from cometmq.net.network import format_address

__all__ = ["ByteStream"]

WRITE_BUFFER_BYTES_HIGH = 1 << 20
"""More unsent bytes than this pause the writer; they are memory until the peer reads."""


class ByteStream(asyncio.Protocol):
    """One connection; its owner sets the callbacks before the first byte can arrive.

    Args:
        on_open: called once, when the connection is there.
    """

    def __init__(self, on_open: Callable[[ByteStream], None] | None = None) -> None:
        self._on_open = on_open
        self._transport: asyncio.Transport | None = None
        self.peer = "?"
        """``ip:port`` of the other end."""
        self.is_paused = False
        """Whether the peer reads too slowly for more to be written now."""
        self.is_closed = False
        self.on_data: Callable[[bytes], None] = lambda data: None
        self.on_drained: Callable[[], None] = lambda: None
        """Called when writing may go on after a pause."""
        self.on_lost: Callable[[], None] = lambda: None

    def write(self, buffers: list[bytes | memoryview[Any]]) -> None:
        """Send buffers, which must not change until they are sent."""
        if self._transport is not None and not self.is_closed:
            self._transport.writelines(buffers)

    def close(self) -> None:
        """Drop the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    # -- the transport's side ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's, so isinstance would refuse them.
        self._transport = tcp = cast("asyncio.Transport", transport)
        tcp.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_HIGH)
        peer = transport.get_extra_info("peername")
        if peer:
            self.peer = format_address(peer[0], peer[1])
        if self._on_open is not None:
            self._on_open(self)

    def data_received(self, data: bytes) -> None:
        self.on_data(data)

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        self.on_drained()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self.on_lost()
