"""What became of a message, from the traces of its clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cometmq.listings.times import utc
from cometmq.model.names import TRACE_TOPIC

if TYPE_CHECKING:
    from cometmq.client import Admin
    from cometmq.wire.body.trace import TraceRecord

__all__ = ["trace_rows"]

_STEPS: Final = {
    "Pub": "sent",
    "SubBefore": "handling",
    "SubAfter": "handled",
    "EndTransaction": "transaction ended",
}


async def trace_rows(
    admin: Admin, message_id: str, topic: str = TRACE_TOPIC
) -> list[dict[str, Any]]:
    """A row for each step of a message, by time.

    Raises:
        NoRoute: there is no topic of traces.
    """
    return [_row(record) for record in await admin.message_trace(message_id, topic=topic)]


def _row(record: TraceRecord) -> dict[str, Any]:
    result = record.state if record.kind == "EndTransaction" else None
    if record.kind in ("Pub", "SubAfter"):
        result = "ok" if record.success else "failed"
    return {
        "time": utc(record.time_ms) if record.time_ms else None,
        "step": _STEPS[record.kind],
        "group": record.group,
        "topic": record.topic or None,
        "result": result,
        "cost_ms": record.cost_ms if record.kind in ("Pub", "SubAfter") else None,
        "tries_before": record.retry_times if record.kind == "SubBefore" else None,
        "stored_at": record.store_host or None,
        "call": record.request_id or None,
    }
