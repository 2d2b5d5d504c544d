"""Which client may consume a queue in order: the locks of one broker, by group.

Job: grant, renew, release and expire locks, and remember who was refused and waits.
It must not send anything, and is told the time.

Theory: a lock belongs to (group, queue) and names a client.  It lives as long as its owner asks
again in time; nobody takes it away before, since the owner's handlers may still run.  Whoever was
refused is remembered until told, so that a release need not wait for the next rebalance of the
others (20 s in clients of RocketMQ before 5).

Source: RebalanceLockManager of RocketMQ 5.4; waiters are ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cometmq.model import MessageQueue

__all__ = ["LOCK_LIVE_MS", "QueueLocks"]

LOCK_LIVE_MS: Final = 60_000
"""``rocketmq.broker.rebalance.lockMaxLiveTime``; clients renew every 20 s."""


class _Lock:
    """One held queue."""

    __slots__ = ("client_id", "renewed_ms", "waiting")

    def __init__(self, client_id: str, now_ms: int) -> None:
        self.client_id = client_id
        self.renewed_ms = now_ms
        self.waiting: dict[str, None] = {}


class QueueLocks:
    """All locks of a broker; a lock lives ``live_ms`` after its last renewal."""

    __slots__ = ("_groups", "live_ms")

    def __init__(self, live_ms: int = LOCK_LIVE_MS) -> None:
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}
        self.live_ms = live_ms

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int
    ) -> list[MessageQueue]:
        """Grant or renew; the queues that are the client's now, in the order asked."""
        locks = self._groups.setdefault(group, {})
        granted: list[MessageQueue] = []
        for queue in queues:
            held = locks.get(queue)
            if held is None:
                locks[queue] = _Lock(client_id, now_ms)
            elif held.client_id == client_id:
                held.renewed_ms = now_ms
            elif self._is_expired(held, now_ms):
                held.client_id = client_id
                held.renewed_ms = now_ms
                held.waiting.pop(client_id, None)
            else:
                held.waiting[client_id] = None
                continue
            granted.append(queue)
        if not locks:
            del self._groups[group]
        return granted

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> list[str]:
        """Release what the client holds of these; the clients that waited for it."""
        locks = self._groups.get(group)
        if locks is None:
            return []
        waiting: dict[str, None] = {}
        for queue in queues:
            held = locks.get(queue)
            if held is not None and held.client_id == client_id:
                waiting.update(held.waiting)
                del locks[queue]
        if not locks:
            del self._groups[group]
        return list(waiting)

    def owner(self, group: str, queue: MessageQueue, now_ms: int) -> str | None:
        """The client that holds a queue, or None."""
        held = self._groups.get(group, {}).get(queue)
        return None if held is None or self._is_expired(held, now_ms) else held.client_id

    def are_all_expired(self, group: str, now_ms: int) -> bool:
        """Whether nobody of the group consumes in order now."""
        locks = self._groups.get(group, {})
        return all(self._is_expired(held, now_ms) for held in locks.values())

    def expire(self, now_ms: int) -> dict[str, list[str]]:
        """Drop what has expired; the clients that waited for it, by group."""
        told: dict[str, dict[str, None]] = {}
        for group, locks in list(self._groups.items()):
            for queue, held in list(locks.items()):
                if self._is_expired(held, now_ms):
                    del locks[queue]
                    if held.waiting:
                        told.setdefault(group, {}).update(held.waiting)
            if not locks:
                del self._groups[group]
        return {group: list(clients) for group, clients in told.items()}

    def next_expiry_ms(self) -> int | None:
        """When to call `expire`: the first moment at which somebody's waiting may be over."""
        renewed = [
            held.renewed_ms
            for locks in self._groups.values()
            for held in locks.values()
            if held.waiting
        ]
        return min(renewed) + self.live_ms + 1 if renewed else None

    def _is_expired(self, held: _Lock, now_ms: int) -> bool:
        return now_ms - held.renewed_ms > self.live_ms
