"""Transactions: those that are open, and those that brokers have given up."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cometmq.client.admin.given_up import given_up_transactions
from cometmq.net.env import SystemClock

if TYPE_CHECKING:
    from cometmq.client import Admin

__all__ = ["given_up_rows", "open_transaction_rows"]


async def open_transaction_rows(admin: Admin, group: str | None = None) -> list[dict[str, Any]]:
    """A row for each half message without a decision, oldest first, with the reason."""
    now_ms = SystemClock().now_ms()
    return [
        {
            "broker": each.broker_name,
            "transaction": each.transaction_id,
            "group": each.group,
            "topic": each.topic,
            "keys": each.keys,
            "age_s": max(0, now_ms - each.born_ms) // 1000,
            "checks": each.checks,
            "next_check": "" if each.next_check_ms is None else _utc(each.next_check_ms),
            "why": each.why,
        }
        for each in await admin.open_transactions()
        if group in (None, each.group)
    ]


async def given_up_rows(admin: Admin, group: str | None = None) -> list[dict[str, Any]]:
    """A row for each transaction that no broker checks any more."""
    return [
        {
            "broker": each.queue.broker_name,
            "transaction": each.transaction_id,
            "group": each.group,
            "topic": each.topic,
            "keys": each.keys,
            "sent": _utc(each.born_ms),
            "given_up": _utc(each.given_up_ms),
        }
        for each in await given_up_transactions(admin.queue_reader())
        if group in (None, each.group)
    ]


def _utc(time_ms: int) -> str:
    """An ISO time in UTC, to the second."""
    return datetime.fromtimestamp(time_ms // 1000, tz=UTC).isoformat()
