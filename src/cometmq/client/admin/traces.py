"""The admin client's reading of trace records: what became of a message, from its traces."""

from __future__ import annotations

from typing import Final, Protocol

from cometmq.client.message.message import ReceivedMessage
from cometmq.model.names import TRACE_TOPIC
from cometmq.wire.body.trace import TraceRecord, decode_traces

__all__ = ["TraceCalls"]

PAGE_COUNT: Final = 64
"""A broker answers with so many messages at most, the youngest ones."""


class _QueryingAdmin(Protocol):
    async def query_message(
        self, topic: str, key: str, *, count_max: int = 32, end_ms: int = 0
    ) -> list[ReceivedMessage]: ...


class TraceCalls:
    """The admin client's calls about traces."""

    async def message_trace(
        self: _QueryingAdmin, message_id: str, *, topic: str = TRACE_TOPIC
    ) -> list[TraceRecord]:
        """The trace records of a message, by time, from clients that write traces.

        Args:
            message_id: the id that its producer gave; that of a batch's message too.
            topic: of the traces.
        """
        records: dict[TraceRecord, None] = {}
        seen: set[str] = set()
        end_ms = 2**63 - 1
        while True:
            found = await self.query_message(topic, message_id, count_max=PAGE_COUNT, end_ms=end_ms)
            fresh = [each for each in found if each.stored.offset_message_id not in seen]
            for message in fresh:
                seen.add(message.stored.offset_message_id)
                for record in decode_traces(message.body):
                    if message_id in record.message_id.split(","):
                        records[record] = None
            if len(found) < PAGE_COUNT or not fresh:
                break
            end_ms = min(each.store_timestamp_ms for each in fresh)
        return sorted(records, key=lambda record: record.time_ms)
