"""The lines of a file, a pipe or a terminal, as they arrive.

A slow source (`tail -f log | cometmq produce ...`) does not block the event loop, which meanwhile
sends the earlier lines and handles signals.
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
"""Far above any body a broker accepts. Without the limit a device without line ends, such as
/dev/zero, would fill the memory."""


async def line_batches(stream: BinaryIO) -> AsyncIterator[list[bytes]]:
    """Yield the lines of ``stream``, a list per read, without line ends and empty lines.

    Raises:
        click.UsageError: a line is longer than LINE_BYTES_MAX.
        OSError: the stream cannot be read.
    """
    parts: list[bytes] = []
    line_bytes = 0
    async for chunk in _chunks(stream):
        head, end, tail = chunk.partition(b"\n")
        parts.append(head)
        line_bytes += len(head)
        if line_bytes > LINE_BYTES_MAX:
            raise click.UsageError(
                f"a line is longer than {LINE_BYTES_MAX:,} bytes; each line of --file is one body"
            )
        if not end:
            continue
        *whole, unfinished = tail.split(b"\n")
        yield [line for text in (b"".join(parts), *whole) if (line := text.rstrip(b"\r"))]
        parts, line_bytes = [unfinished], len(unfinished)
    last = b"".join(parts).rstrip(b"\r")
    if last:
        yield [last]


async def _chunks(stream: BinaryIO) -> AsyncIterator[bytes]:
    descriptor = _waiting_descriptor(stream)
    if descriptor is None:
        for chunk in _read(stream):
            yield chunk
        return
    # A thread, because a loop that watches a descriptor makes it non-blocking for every process
    # that shares the terminal. The thread is a daemon, because nothing can interrupt its read.
    requests: SimpleQueue[asyncio.Future[bytes] | None] = SimpleQueue()
    loop = asyncio.get_running_loop()
    threading.Thread(target=_serve, args=(descriptor, requests, loop), daemon=True).start()
    try:
        while True:
            future: asyncio.Future[bytes] = loop.create_future()
            requests.put(future)
            chunk = await future
            if not chunk:
                return
            yield chunk
    finally:
        requests.put(None)


def _read(stream: BinaryIO) -> Iterator[bytes]:
    while chunk := stream.read(READ_BYTES):
        yield chunk


def _waiting_descriptor(stream: BinaryIO) -> int | None:
    """The descriptor of a pipe, a socket or a terminal; None for a file, or for no descriptor."""
    try:
        descriptor = stream.fileno()
        mode = os.fstat(descriptor).st_mode
    except OSError:  # io.UnsupportedOperation is an OSError
        return None
    waits = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)
    return descriptor if waits else None


def _serve(
    descriptor: int,
    requests: "SimpleQueue[asyncio.Future[bytes] | None]",
    loop: asyncio.AbstractEventLoop,
) -> None:
    """Read once for each future in ``requests``."""

    def settle(future: "asyncio.Future[bytes]", act: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            act(value)

    while (future := requests.get()) is not None:
        act: Callable[[Any], None]
        try:
            value: bytes | OSError = os.read(descriptor, READ_BYTES)
            act = future.set_result
        except OSError as error:
            value, act = error, future.set_exception
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(settle, future, act, value)
