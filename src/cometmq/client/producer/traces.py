"""The traces of a producer: one record for each message that a broker has answered.

Sends without an answer leave none, as in RocketMQ.  A message of a batch has a record of its own,
so that it is found by its id; Java's client joins the ids of a batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from cometmq.client.base.instance import ClientInstance
from cometmq.client.base.traces import TraceWriter
from cometmq.client.message.message import ReceivedMessage
from cometmq.codec.ids import decode_offset_message_id
from cometmq.errors import CodecError
from cometmq.model import Message, SendResult, SendStatus
from cometmq.model.message_checks import keys_text
from cometmq.wire.body.trace import TraceRecord

__all__ = ["ProducerTraces"]

_STATES: Final = {
    "COMMIT": "COMMIT_MESSAGE",
    "ROLLBACK": "ROLLBACK_MESSAGE",
    "UNKNOWN": "UNKNOW",
}
"""RocketMQ's names of what became of a transaction."""


class _Start(NamedTuple):
    time_ms: int
    monotonic: float


class ProducerTraces:
    """Makes the records of one producer; any thread may call it.

    Args:
        instance: the producer's.
        group: its group.
        topic: of the traces.
    """

    def __init__(self, instance: ClientInstance, group: str, topic: str) -> None:
        self._writer = TraceWriter(instance, topic)
        self._clock = instance.env.clock
        self._group = group
        self._topic = topic

    async def close(self) -> None:
        """Write what is queued."""
        await self._writer.close()

    def now(self) -> _Start:
        """Return when a send begins."""
        return _Start(self._clock.now_ms(), self._clock.monotonic())

    def watch(
        self, message: Message, future: asyncio.Future[SendResult], kind: str | None = None
    ) -> None:
        """Write a record when the broker has answered."""
        started = self.now()

        def answered(done: asyncio.Future[SendResult]) -> None:
            if not done.cancelled() and done.exception() is None:
                self.sent(message, done.result(), started, kind)

        future.add_done_callback(answered)

    def sent_all(
        self, messages: Sequence[Message], results: Sequence[SendResult], started: _Start
    ) -> None:
        """Write the records of a batch."""
        for message, result in zip(messages, results, strict=True):
            self.sent(message, result, started)

    def sent(
        self, message: Message, result: SendResult, started: _Start, kind: str | None = None
    ) -> None:
        """Write the record of a message that was answered."""
        if message.topic == self._topic:
            return
        self._writer.write(
            TraceRecord(
                "Pub",
                result.message_id,
                started.time_ms,
                group=self._group,
                topic=message.topic,
                tags=message.tags or "",
                keys=keys_text(message.topic, message.keys),
                store_host=_store_host(result),
                body_bytes=len(message.body),
                cost_ms=round((self._clock.monotonic() - started.monotonic) * 1000),
                message_type=kind or ("DELAY" if message.is_delayed else "NORMAL"),
                offset_message_id=result.offset_message_id,
                success=result.status is SendStatus.SEND_OK,
            )
        )

    def ended(
        self,
        message: Message | ReceivedMessage,
        transaction_id: str,
        sent: SendResult | None,
        outcome: str,
    ) -> None:
        """Write the record of a transaction's end; without `sent` a check has brought it."""
        self._writer.write(
            TraceRecord(
                "EndTransaction",
                transaction_id,
                self._clock.now_ms(),
                group=self._group,
                topic=message.topic,
                tags=message.tags or "",
                keys=keys_text(message.topic, message.keys),
                store_host="" if sent is None else _store_host(sent),
                message_type="TRANSACTION_COMMIT",
                transaction_id=transaction_id,
                state=_STATES[outcome],
                from_check=sent is None,
            )
        )


def _store_host(result: SendResult) -> str:
    try:
        return decode_offset_message_id(result.offset_message_id)[0]
    except CodecError:
        return ""
