"""Which client may consume a queue in order: the locks of one broker, by group.

Job: grant, renew, release and expire locks, and remember who was refused and waits.
It must not send anything, and is told the time.

Theory: a lock belongs to (group, queue) and names a client.  It lives as long as its owner asks
again in time; nobody takes it away before, since the owner's handlers may still run.  Whoever was
refused is remembered until told, so that a release need not wait for the next rebalance of the
others (20 s in clients of RocketMQ before 5).

A broker that starts again must not give a queue to another client while the owner of before still
believes in its lock.  So the owners are written down when they change (`revision` says when), with
a time up to which locks may have been renewed; it is moved on ahead, once for many renewals, and
what is read back counts as renewed then.  Where that time could not be written an owner may have
been renewed later, but not after the broker ended.  So unless the broker said at its end that the
time is exact, each owner keeps its queue after a start for as long as a client relies on its last
renewal.

Source: RebalanceLockManager of RocketMQ 5.4; waiters, and what outlives a restart, are ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cometmq.model import MessageQueue

__all__ = ["LOCK_LIVE_MS", "RELIED_ON_MS", "HeldQueues", "QueueLocks"]

LOCK_LIVE_MS: Final = 60_000
"""``rocketmq.broker.rebalance.lockMaxLiveTime``; clients renew every 20 s."""
RELIED_ON_MS: Final = 30_000
"""A client consumes this long after its last renewal (REBALANCE_LOCK_MAX_LIVE_TIME)."""
AHEAD_MS: Final = 30_000
"""Two members that renew every 20 s cost two writes a minute, not six."""


@dataclass(frozen=True, slots=True)
class HeldQueues:
    """Who holds what, by group, and up to when locks may have been renewed.

    ``is_ended``: none was renewed later, since the broker has stopped.
    """

    owners: Mapping[str, Mapping[MessageQueue, str]]
    renewed_until_ms: int
    is_ended: bool = False


class _Lock:
    """One held queue."""

    __slots__ = ("client_id", "granted_at", "renewed_ms", "waiting")

    def __init__(self, client_id: str, now_ms: int) -> None:
        self.client_id = client_id
        self.granted_at = 0
        self.renewed_ms = now_ms
        self.waiting: dict[str, None] = {}


class QueueLocks:
    """All locks of a broker; a lock lives ``live_ms`` after its last renewal."""

    __slots__ = ("_groups", "_is_ended", "_renewed_until_ms", "live_ms", "revision")

    def __init__(self, live_ms: int = LOCK_LIVE_MS) -> None:
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}
        self._renewed_until_ms = 0
        self._is_ended = False
        self.live_ms = live_ms
        self.revision = 0
        """Moves whenever `held` would tell something new."""

    # -- what outlives a restart ----------------------------------------------------------

    def held(self) -> HeldQueues:
        """A copy of what a broker that starts again has to know."""
        owners = {
            group: {queue: held.client_id for queue, held in locks.items()}
            for group, locks in self._groups.items()
        }
        return HeldQueues(owners, self._renewed_until_ms, self._is_ended)

    def restore(self, recorded: HeldQueues, now_ms: int) -> None:
        """Take up the locks of the run before; each lives as long as its owner may rely on it."""
        renewed_ms = min(recorded.renewed_until_ms, now_ms)
        if not recorded.is_ended:
            relied_on_ms = min(RELIED_ON_MS, self.live_ms)
            renewed_ms = max(renewed_ms, now_ms - self.live_ms + relied_on_ms)
        elif now_ms - renewed_ms > self.live_ms:
            return
        else:
            # Nobody is told of a renewal before the file says no more that there is none.
            self.revision += 1
        for group, owners in recorded.owners.items():
            locks = {queue: _Lock(name, renewed_ms) for queue, name in owners.items()}
            for lock in locks.values():
                lock.granted_at = self.revision
            self._groups[group] = locks
        self._renewed_until_ms = recorded.renewed_until_ms

    def ended(self, now_ms: int) -> None:
        """Nothing is renewed from now on: the broker stops."""
        if self._groups:
            self._renewed_until_ms = min(now_ms, self._renewed_until_ms)
            self._is_ended = True
            self.revision += 1

    # -- locks ----------------------------------------------------------------------------

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int
    ) -> list[MessageQueue]:
        """Grant or renew; the queues that are the client's now, in the order asked."""
        locks = self._groups.setdefault(group, {})
        granted: list[MessageQueue] = []
        is_changed = False
        for queue in queues:
            held = locks.get(queue)
            if held is None:
                held = locks[queue] = _Lock(client_id, now_ms)
                held.granted_at = self.revision + 1
                is_changed = True
            elif held.client_id == client_id:
                held.renewed_ms = now_ms
            elif self._is_expired(held, now_ms):
                held.client_id = client_id
                held.granted_at = self.revision + 1
                held.renewed_ms = now_ms
                held.waiting.pop(client_id, None)
                is_changed = True
            else:
                held.waiting[client_id] = None
                continue
            granted.append(queue)
        if not locks:
            del self._groups[group]
        if granted and now_ms > self._renewed_until_ms:
            self._renewed_until_ms = now_ms + AHEAD_MS
            is_changed = True
        self.revision += is_changed
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
                self.revision += 1
        if not locks:
            del self._groups[group]
        return list(waiting)

    def are_written(self, group: str, queues: Iterable[MessageQueue], written: int) -> bool:
        """Say whether a file of this revision names the owners these queues have now."""
        locks = self._groups.get(group, {})
        return all(queue in locks and locks[queue].granted_at <= written for queue in queues)

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
                    self.revision += 1
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
