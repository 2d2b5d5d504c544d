"""Gathers sends into batches for a few milliseconds.

A batch costs the broker one request, so a short wait for more messages multiplies the rate.
Messages that must be sent alone (delayed, to a retry topic, or large enough to be compressed) are
not gathered.  One timer runs per open batch, none per message.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from cometmq.client.message.send_codec import SendCodec
from cometmq.core.produce.batching import BATCH_ITEM_OVERHEAD_BYTES
from cometmq.model import Message, MessageQueue, SendResult
from cometmq.model.names import RETRY_PREFIX

__all__ = ["Linger", "LingerBatch"]

COUNT_MAX: Final = 4_096
"""Messages per batch: one header field of the answer holds their ids, 33 bytes each."""

Item = tuple[int, bytes, bytes]


class LingerBatch:
    """An open batch: encoded messages, their ids and futures, in the order of the sends."""

    __slots__ = ("futures", "ids", "items", "key", "size_bytes", "timer")

    def __init__(self, key: tuple[str, MessageQueue | None, bool]) -> None:
        self.key = key
        self.items: list[Item] = []
        self.ids: list[str] = []
        self.futures: list[asyncio.Future[SendResult]] = []
        self.size_bytes = 0
        self.timer: asyncio.TimerHandle | None = None

    @property
    def topic(self) -> str:
        return self.key[0]

    @property
    def queue(self) -> MessageQueue | None:
        return self.key[1]


class Linger:
    """Open batches of one producer; `send` is called with each when it is full or due."""

    def __init__(
        self,
        linger_s: float,
        size_bytes_max: int,
        compress_above_bytes: int,
        codec: SendCodec,
        send: Callable[[LingerBatch], None],
    ) -> None:
        self._codec = codec
        self._linger_s = linger_s
        self._size_bytes_max = size_bytes_max
        self._compress_above_bytes = compress_above_bytes
        self._send = send
        self._open: dict[tuple[str, MessageQueue | None, bool], LingerBatch] = {}

    def takes(self, message: Message) -> bool:
        """Whether the message may share a request with others."""
        try:
            return (
                not message.is_delayed
                and len(message.body) < self._compress_above_bytes
                and not message.topic.startswith(RETRY_PREFIX)
            )
        except (AttributeError, TypeError):
            return False  # not a message, or without a body: the ordinary checks raise the error

    def add(
        self, message: Message, queue: MessageQueue | None, loop: asyncio.AbstractEventLoop
    ) -> "asyncio.Future[SendResult]":
        """Add a message to its batch and return the future of its result; HOT.

        Raises:
            LocalProtocolError: as `SendCodec.batch_item`.
        """
        item, message_id = self._codec.batch_item(message)
        size_bytes = BATCH_ITEM_OVERHEAD_BYTES + len(item[1]) + len(item[2])
        key = (message.topic, queue, message.wait_store_ok)
        batch = self._open.get(key)
        size_bytes_max = self._size_bytes_max
        if batch is None:
            batch = self._begin(key, loop)
        elif batch.size_bytes + size_bytes > size_bytes_max:
            self._close(batch)
            batch = self._begin(key, loop)
        future: asyncio.Future[SendResult] = loop.create_future()
        batch.items.append(item)
        batch.ids.append(message_id)
        batch.futures.append(future)
        batch.size_bytes += size_bytes
        if batch.size_bytes >= size_bytes_max or len(batch.ids) >= COUNT_MAX:
            self._close(batch)
        return future

    def _begin(
        self, key: tuple[str, MessageQueue | None, bool], loop: asyncio.AbstractEventLoop
    ) -> LingerBatch:
        batch = self._open[key] = LingerBatch(key)
        batch.timer = loop.call_later(self._linger_s, self._close, batch)
        return batch

    def _close(self, batch: LingerBatch) -> None:
        if self._open.get(batch.key) is not batch:
            return
        del self._open[batch.key]
        if batch.timer is not None:
            batch.timer.cancel()
        self._send(batch)

    def flush(self) -> None:
        """Send every open batch now."""
        for batch in list(self._open.values()):
            self._close(batch)

    def abandon(self) -> None:
        """In a forked child: drop the batches, which the parent sends."""
        self._open.clear()
