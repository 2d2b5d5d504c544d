"""A handler with traces: a record before each call, and one with its result after it.

The records of one call share an id, by which readers pair them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from cometmq.client.base.traces import TraceWriter
from cometmq.client.handling.handlers import RetryLater, StopConsuming
from cometmq.client.message.message import ReceivedMessage
from cometmq.model.properties import TRACE_ON
from cometmq.net.env import Clock
from cometmq.wire.body.trace import CONTEXT_FAILED, CONTEXT_SUCCESS, TraceRecord

__all__ = ["HandlerTraces"]


class HandlerTraces:
    """Wraps the handlers of one consumer.

    Args:
        writer: takes the records.
        group: the consumer's.
        topic: of the traces, whose own messages leave none.
        new_id: gives the id of a call.
    """

    def __init__(
        self, writer: TraceWriter, group: str, topic: str, clock: Clock, new_id: Callable[[], str]
    ) -> None:
        self._writer = writer
        self._group = group
        self._topic = topic
        self._clock = clock
        self._new_id = new_id

    def wrapped(self, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the handler with records around it; a coroutine function stays one."""
        call = getattr(handler, "__call__", handler)  # noqa: B004 - the method, to examine its kind
        if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call):

            async def traced(argument: Any) -> Any:
                began = self._begin(argument)
                try:
                    value = await handler(argument)
                except BaseException:
                    self._end(began, False)
                    raise
                self._end(began, value)
                return value

            return traced

        def traced_plainly(argument: Any) -> Any:
            began = self._begin(argument)
            try:
                value = handler(argument)
            except BaseException:
                self._end(began, False)
                raise
            self._end(began, value)
            return value

        return traced_plainly

    def _begin(
        self, argument: ReceivedMessage | Sequence[ReceivedMessage]
    ) -> tuple[list[tuple[TraceRecord, int]], float]:
        """Write the records before a call; return them with their places among its messages."""
        messages = [argument] if isinstance(argument, ReceivedMessage) else argument
        request_id, now_ms = self._new_id(), self._clock.now_ms()
        records = []
        for index, message in enumerate(messages):
            properties = message.properties
            if message.topic == self._topic or properties.get(TRACE_ON) == "false":
                continue
            record = TraceRecord(
                "SubBefore",
                message.message_id,
                now_ms,
                region=properties.get("MSG_REGION", "DefaultRegion"),
                group=self._group,
                request_id=request_id,
                retry_times=message.stored.reconsume_times,
                keys=properties.get("KEYS", ""),
            )
            self._writer.write(record)
            records.append((record, index))
        return records, self._clock.monotonic()

    def _end(self, began: tuple[list[tuple[TraceRecord, int]], float], value: Any) -> None:
        """Write the records after a call with its result."""
        records, started = began
        if not records:
            return
        # Java's records have a batch's time divided by its size; this is how long a message took.
        cost_ms = round((self._clock.monotonic() - started) * 1000 / len(records))
        now_ms = self._clock.now_ms()
        for record, index in records:
            own = value[index] if isinstance(value, list | tuple) and index < len(value) else value
            success = own is not False and not isinstance(own, RetryLater | StopConsuming)
            self._writer.write(
                TraceRecord(
                    "SubAfter",
                    record.message_id,
                    now_ms,
                    group=self._group,
                    request_id=record.request_id,
                    cost_ms=cost_ms,
                    success=success,
                    keys=record.keys,
                    context_code=CONTEXT_SUCCESS if success else CONTEXT_FAILED,
                )
            )
