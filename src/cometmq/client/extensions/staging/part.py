"""Gathers the messages of one part of a staged batch into blocks, and stages the blocks."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from cometmq.client.extensions.staging.calls import (
    OpenToken,
    StagedPart,
    StagingCalls,
    StagingQueues,
)
from cometmq.codec.batch import encode_batch
from cometmq.core.produce.batching import BATCH_ITEM_OVERHEAD_BYTES
from cometmq.core.topic.selector import select_by_hash
from cometmq.errors import ConfigError, LocalProtocolError
from cometmq.model import Message, MessageQueue
from cometmq.model import properties as prop
from cometmq.wire.extensions.staging import TokenClaim

__all__ = ["PartCore"]

BUFFERED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Above this, a part that writes to very many queues sends blocks that are not full."""
PART_CHARS_MAX: Final = 200


@dataclass(slots=True)
class _Block:
    """Messages of one queue that wait to be sent."""

    items: list[tuple[int, bytes, bytes]] = field(default_factory=list)
    size_bytes: int = 0


class PartCore:
    """One attempt at one part of a batch.

    Raises:
        ConfigError: the batch id is negative, or the part's name is not accepted.
    """

    def __init__(self, calls: StagingCalls, batch_id: int, part: str) -> None:
        if batch_id < 0:
            raise ConfigError(f"batch id {batch_id} is negative; batches count from 0")
        if not part.isprintable() or not 0 < len(part) <= PART_CHARS_MAX or "/" in part:
            raise ConfigError(
                f"part {part!r:.60} is not accepted: 1 to {PART_CHARS_MAX} printable characters "
                "without a slash"
            )
        self._calls = calls
        self._batch_id = batch_id
        self._part = part
        self.block_bytes = calls.block_bytes
        self.message_bytes_max = calls.codec.message_bytes_max
        attempt = calls.options.env.chance.getrandbits(64)
        self._attempt = f"{calls.options.env.clock.now_ms():x}/{attempt:016x}"
        self._topics: dict[str, StagingQueues] = {}
        self._tokens: dict[str, OpenToken] = {}
        self._blocks: dict[MessageQueue, _Block] = {}
        self._buffered_bytes = 0
        self._rows = 0
        self._is_finished = False

    async def add(
        self,
        topic: str,
        body: bytes,
        tags: str | None,
        keys: tuple[str, ...] | str | None,
        properties: Mapping[str, str] | None,
        message_group: str | None,
        queue_id: int | None,
        deliver_time_ms: int | None,
    ) -> None:
        """Add a message to its queue's block, and send the block when it is full.

        Raises:
            LocalProtocolError: the message breaks a limit, or the part is finished.
            NoRoute: no broker offers the topic.
        """
        if self._is_finished:
            raise LocalProtocolError(
                f"part {self._part!r} of batch {self._batch_id} is finished; open a new part"
            )
        calls = self._calls
        topic_queues = self._topics.get(topic)
        if topic_queues is None:
            topic_queues = self._topics[topic] = await calls.topic(topic)
        message = Message(topic, body, tags, keys or (), properties or {}, 0, 0, message_group)
        item, _ = calls.codec.batch_item(message)
        if deliver_time_ms is not None:
            timer = f"{prop.TIMER_DELIVER_MS}\x01{deliver_time_ms}\x02".encode()
            item = (item[0], item[1], item[2] + timer)
        queue = self._queue_of(topic_queues, topic, message_group, queue_id)
        block = self._blocks.get(queue)
        if block is None:
            block = self._blocks[queue] = _Block()
        size_bytes = BATCH_ITEM_OVERHEAD_BYTES + len(item[1]) + len(item[2])
        if block.items and block.size_bytes + size_bytes > calls.block_bytes:
            await self._send(queue, block)
        block.items.append(item)
        block.size_bytes += size_bytes
        self._buffered_bytes += size_bytes
        self._rows += 1
        if block.size_bytes >= calls.block_bytes:
            await self._send(queue, block)
        elif self._buffered_bytes > BUFFERED_BYTES_MAX:
            await self._send_all()

    def new_ids(self, count: int) -> list[str]:
        """Unique ids for rows of `add_block`."""
        new_id = self._calls.codec.new_id
        return [new_id() for _ in range(count)]

    async def add_block(self, topic: str, data: bytes, rows: int) -> None:
        """Send rows that the caller has encoded as a batch to the topic's next queue.

        Raises:
            LocalProtocolError: the part is finished.
        """
        if self._is_finished:
            raise LocalProtocolError(
                f"part {self._part!r} of batch {self._batch_id} is finished; open a new part"
            )
        topic_queues = self._topics.get(topic)
        if topic_queues is None:
            topic_queues = self._topics[topic] = await self._calls.topic(topic)
        self._rows += rows
        await self._stage(self._queue_of(topic_queues, topic, None, None), data, rows)

    def _queue_of(
        self,
        topic_queues: StagingQueues,
        topic: str,
        message_group: str | None,
        queue_id: int | None,
    ) -> MessageQueue:
        queues = topic_queues.queues
        if queue_id is not None:
            for queue in queues:
                if queue.queue_id == queue_id:
                    return queue
            raise LocalProtocolError(
                f"the topic {topic} has no queue {queue_id}; its {len(queues)} queues are "
                f"numbered from 0 to {max(queue.queue_id for queue in queues)}"
            )
        if message_group:
            return select_by_hash(queues, message_group)
        turn = topic_queues.turn
        index = turn.next
        turn.next = index + 1
        return queues[index % len(queues)]

    async def _send(self, queue: MessageQueue, block: _Block) -> None:
        items, size_bytes = block.items, block.size_bytes
        block.items, block.size_bytes = [], 0
        self._buffered_bytes -= size_bytes
        await self._stage(queue, encode_batch(items), len(items))

    async def _stage(self, queue: MessageQueue, data: bytes, rows: int) -> None:
        token = self._token_of(queue)
        if token.is_refused:
            return
        await self._calls.stage(token, self._batch_id, self._part, queue, data)
        token.rows += rows
        token.crc = zlib.crc32(data, token.crc)

    def _token_of(self, queue: MessageQueue) -> OpenToken:
        token = self._tokens.get(queue.broker_name)
        if token is None:
            calls = self._calls
            name = calls.token_name(self._batch_id, self._part, self._attempt)
            address = self._topics[queue.topic].addresses[queue.broker_name]
            token = self._tokens[queue.broker_name] = OpenToken(name, address)
        return token

    async def _send_all(self) -> None:
        for queue, block in self._blocks.items():
            if block.items:
                await self._send(queue, block)

    async def finish(self) -> StagedPart:
        """Send the waiting messages; the part may then be published."""
        await self._send_all()
        self._is_finished = True
        return StagedPart(
            self._calls.sink,
            self._batch_id,
            self._part,
            {
                name: TokenClaim(token.token, token.rows, token.crc)
                for name, token in self._tokens.items()
                if token.rows and not token.is_refused
            },
            self._rows,
        )

    def staged(self) -> StagedPart:
        """The messages staged so far, so that an abandoned part can be dropped."""
        tokens = {
            name: TokenClaim(token.token, token.rows, token.crc)
            for name, token in self._tokens.items()
        }
        return StagedPart(self._calls.sink, self._batch_id, self._part, tokens, self._rows)
