"""The lines of a file, a pipe or a terminal, as they come.

Job: give an event loop the lines of what may take its time (`tail -f log | cometmq produce ...`),
so that what came before is sent meanwhile, and a signal is heard.  It must not know messages.
"""

import asyncio
import contextlib
import os
import stat
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from queue import SimpleQueue
from typing import Any, BinaryIO, Final

import click

__all__ = ["LINE_BYTES_MAX", "line_batches"]

READ_BYTES: Final = 256 * 1024
LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Far above any body a broker takes, compressed or not; without it a device without line ends,
/dev/zero, would fill the memory."""


async def line_batches(stream: BinaryIO) -> AsyncIterator[list[bytes]]:
    """The lines of ``stream`` without their ends, those that are there together; no empty ones.

    Raises:
        click.UsageError: a line is longer than LINE_BYTES_MAX.
        OSError: the system could not read.
    """
    parts: list[bytes] = []
    held_bytes = 0
    async for chunk in _chunks(stream):
        head, end, tail = chunk.partition(b"\n")
        parts.append(head)
        held_bytes += len(head)
        if held_bytes > LINE_BYTES_MAX:
            raise click.UsageError(
                f"a line is longer than {LINE_BYTES_MAX:,} bytes; each line of --file is one body"
            )
        if not end:
            continue
        *whole, rest = tail.split(b"\n")
        yield [line for text in (b"".join(parts), *whole) if (line := text.rstrip(b"\r"))]
        parts, held_bytes = [rest], len(rest)
    last = b"".join(parts).rstrip(b"\r")
    if last:
        yield [last]


async def _chunks(stream: BinaryIO) -> AsyncIterator[bytes]:
    descriptor = _descriptor_that_waits(stream)
    if descriptor is None:
        for chunk in _read(stream):
            yield chunk
        return
    # A thread, since a loop that watches a descriptor makes it non-blocking, for everybody who
    # shares the terminal.  It ends with the process, as nothing can call it back from its read.
    asked: SimpleQueue[asyncio.Future[bytes] | None] = SimpleQueue()
    loop = asyncio.get_running_loop()
    threading.Thread(target=_serve, args=(descriptor, asked, loop), daemon=True).start()
    try:
        while True:
            future: asyncio.Future[bytes] = loop.create_future()
            asked.put(future)
            chunk = await future
            if not chunk:
                return
            yield chunk
    finally:
        asked.put(None)


def _read(stream: BinaryIO) -> Iterator[bytes]:
    while chunk := stream.read(READ_BYTES):
        yield chunk


def _descriptor_that_waits(stream: BinaryIO) -> int | None:
    """The descriptor of a pipe, a socket or a terminal; None for a file, or for no descriptor."""
    try:
        descriptor = stream.fileno()
        mode = os.fstat(descriptor).st_mode
    except OSError:  # io.UnsupportedOperation is one
        return None
    waits = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)
    return descriptor if waits else None


def _serve(
    descriptor: int,
    asked: "SimpleQueue[asyncio.Future[bytes] | None]",
    loop: asyncio.AbstractEventLoop,
) -> None:
    """Read once for each future that is asked for."""

    def settle(future: "asyncio.Future[bytes]", act: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            act(value)

    while (future := asked.get()) is not None:
        act: Callable[[Any], None]
        try:
            value: bytes | OSError = os.read(descriptor, READ_BYTES)
            act = future.set_result
        except OSError as error:
            value, act = error, future.set_exception
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, future, act, value)
