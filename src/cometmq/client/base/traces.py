"""Writes a client's trace records to the trace topic, away from its sends and handlers.

A record is put into a queue, which a task empties some times a second: up to 20 records a message,
with the ids and keys of all of them as the message's keys.  When the queue is full, or a trace
message cannot be sent, its records are dropped and counted: traces slow nothing down and fail
nothing.

Source: AsyncTraceDispatcher of RocketMQ 5.4.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final

from cometmq.client.base.instance import ClientInstance, uniq_ids_of
from cometmq.client.base.routes import MASTER_ID
from cometmq.codec.properties import encode_properties_text
from cometmq.core.topic.selector import RoundRobin, publish_queues
from cometmq.errors import CometError, NoRoute, remote_error
from cometmq.model.names import CLIENT_INNER_PRODUCER, DEFAULT_TOPIC
from cometmq.wire.body.trace import TraceRecord, encode_trace, trace_keys
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.headers import SendMessageHeader

__all__ = ["TraceWriter"]

log = logging.getLogger("cometmq.client")

FLUSH_PAUSE_S: Final = 0.5
"""How long a record waits for others; Java's client waits for up to 5 s."""
QUEUED_MAX: Final = 2_048
"""Java's queue; further records are dropped."""
BATCH_COUNT: Final = 20
BATCH_BYTES: Final = 128_000
KEYS_BYTES: Final = 16_000
"""All properties of a message share 32 KiB."""
SEND_TIMEOUT_MS: Final = 5_000
_DEFAULT_QUEUES: Final = 4


class TraceWriter:
    """The traces of one client; `write` from any thread, `close` once.

    Args:
        instance: the client's; messages leave over its connections.
        topic: of the traces.
    """

    def __init__(self, instance: ClientInstance, topic: str) -> None:
        self._instance = instance
        self._topic = topic
        self._loop = asyncio.get_running_loop()
        self._queue: deque[TraceRecord] = deque()
        self._is_scheduled = False
        self._turn = RoundRobin(instance.env.chance.randrange(1 << 16))
        self._new_id = uniq_ids_of(instance.options).next_id
        self._is_failing = False
        self.dropped = 0
        """How many records were not written."""

    def write(self, record: TraceRecord) -> None:
        """Put a record into the queue, or drop it if that is full."""
        if len(self._queue) >= QUEUED_MAX:
            self._drop(1, "the queue of traces is full")
            return
        self._queue.append(record)
        if not self._is_scheduled and not self._instance.is_closed:
            self._is_scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._flush_soon)
            except RuntimeError:  # the loop has ended
                self._drop(1, "the client has ended")

    async def close(self) -> None:
        """Write what is queued."""
        await self._flush()

    def _flush_soon(self) -> None:
        self._loop.call_later(FLUSH_PAUSE_S, self._begin_flush)

    def _begin_flush(self) -> None:
        if not self._instance.is_closed:
            self._instance.spawn(self._flush(), "traces")

    async def _flush(self) -> None:
        # What is written from now on needs a task of its own.
        self._is_scheduled = False
        while self._queue:
            batch = self._take()
            try:
                await self._send(batch)
                self._is_failing = False
            except CometError as error:
                self._drop(len(batch), str(error))

    def _drop(self, count: int, why: str) -> None:
        """Count records that are not written; the log has the first of several in a row."""
        self.dropped += count
        if not self._is_failing:
            self._is_failing = True
            log.warning("%s: traces are not written: %s", self._instance.client_id, why)

    def _take(self) -> list[TraceRecord]:
        batch: list[TraceRecord] = []
        body_bytes = keys_bytes = 0
        while self._queue and len(batch) < BATCH_COUNT:
            record = self._queue[0]
            body_bytes += len(encode_trace(record).encode())
            keys_bytes += sum(len(key.encode()) + 1 for key in trace_keys(record))
            if batch and (body_bytes > BATCH_BYTES or keys_bytes > KEYS_BYTES):
                break
            batch.append(self._queue.popleft())
        return batch

    async def _send(self, batch: list[TraceRecord]) -> None:
        instance, topic = self._instance, self._topic
        route = await instance.routes.find_for_send(topic)
        masters = {
            broker.broker_name: broker.broker_addrs[MASTER_ID]
            for broker in route.broker_datas
            if MASTER_ID in broker.broker_addrs
        }
        queues = [each for each in publish_queues(topic, route) if each.broker_name in masters]
        if not queues:
            raise NoRoute(f"no broker takes messages of {topic}; create the topic")
        queue = queues[self._turn.next % len(queues)]
        self._turn.next += 1
        keys = dict.fromkeys(key for record in batch for key in trace_keys(record))
        header = SendMessageHeader(
            producer_group=CLIENT_INNER_PRODUCER,
            topic=topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=_DEFAULT_QUEUES,
            queue_id=queue.queue_id,
            sys_flag=0,
            born_timestamp_ms=instance.env.clock.now_ms(),
            flag=0,
            properties=encode_properties_text(
                {"KEYS": " ".join(keys), "UNIQ_KEY": self._new_id(), "WAIT": "true"}
            ),
            reconsume_times=0,
        )
        body = "".join(map(encode_trace, batch)).encode("utf-8", "replace")
        command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header.to_ext(), body)
        answer = await instance.io.request(masters[queue.broker_name], command, SEND_TIMEOUT_MS)
        if answer.code != 0:
            instance.routes.forget(topic)
            raise remote_error(answer.code, answer.remark)
