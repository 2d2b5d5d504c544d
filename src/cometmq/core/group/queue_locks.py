"""Which client may consume a queue in order: the locks of one broker, by group.

`QueueLocks` grants, renews, releases and expires locks, and remembers the clients that wait for
one, and the last owner of a lock that has ended.  It sends nothing and reads no clock.

A lock belongs to a group and a queue, and names a client.  It lives as long as its owner renews it
in time; nobody takes it away earlier, since the owner's handlers may still run.  A refused client
waits in the lock until the lock ends, so that the broker can notify it at once; otherwise it would
ask again only at its next rebalance (20 s in clients of RocketMQ before 5).

A restarted broker must not grant a queue to another client while the previous owner still relies
on its lock.  So the broker saves the owners whenever they change (`revision` grows), together with
a time up to which locks may have been renewed.  That time lies ahead, so that one write covers many
renewals; `restore` takes it as the last renewal of every lock.  When the broker could not write the
time, an owner may have renewed later, but not after the broker ended.  So unless the broker noted
at its end that the time is exact, each owner keeps its queue after a start for as long as a client
relies on its last renewal.

Source: RebalanceLockManager of RocketMQ 5.4, which has neither waiters nor saved locks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cometmq.model import MessageQueue

__all__ = ["FORMER_MS", "LOCK_LIVE_MS", "RELIED_ON_MS", "LockSnapshot", "QueueLocks"]

LOCK_LIVE_MS: Final = 60_000
"""``rocketmq.broker.rebalance.lockMaxLiveTime``; clients renew every 20 s."""
RELIED_ON_MS: Final = 30_000
"""A client consumes for this long after its last renewal (REBALANCE_LOCK_MAX_LIVE_TIME)."""
AHEAD_MS: Final = 30_000
"""How far the saved time lies ahead; two members that renew every 20 s cost two writes a minute."""
FORMER_MS: Final = 150_000
"""So long after its last renewal an ended lock's owner is known.  A broker forgets a silent client
after 120 s, and until then a network may bring what the client sent long ago."""


@dataclass(frozen=True, slots=True)
class LockSnapshot:
    """The owner of each locked queue by group, and up to when locks may have been renewed.

    ``is_ended`` says that no lock was renewed later, since the broker has stopped.
    """

    owners: Mapping[str, Mapping[MessageQueue, str]]
    renewed_until_ms: int
    is_ended: bool = False


class _Lock:
    """The lock of one queue: its owner, and the clients that wait for it."""

    __slots__ = ("client_id", "granted_at", "renewed_ms", "waiting")

    def __init__(self, client_id: str, now_ms: int) -> None:
        self.client_id = client_id
        self.granted_at = 0
        self.renewed_ms = now_ms
        self.waiting: dict[str, None] = {}


class QueueLocks:
    """All locks of a broker; a lock lives ``live_ms`` after its last renewal."""

    def __init__(self, live_ms: int = LOCK_LIVE_MS) -> None:
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}
        self._former: dict[str, dict[MessageQueue, _Lock]] = {}
        """Locks that have ended, for `FORMER_MS`."""
        self._renewed_until_ms = 0
        self._is_ended = False
        self.live_ms = live_ms
        self.revision = 0
        """Grows whenever `snapshot` would differ from the saved one."""

    # -- restart --------------------------------------------------------------------------

    def snapshot(self) -> LockSnapshot:
        """The locks that a restarted broker needs, as a copy."""
        owners = {
            group: {queue: lock.client_id for queue, lock in locks.items()}
            for group, locks in self._groups.items()
        }
        return LockSnapshot(owners, self._renewed_until_ms, self._is_ended)

    def restore(self, recorded: LockSnapshot, now_ms: int) -> None:
        """Restore the previous run's locks; each lives as long as its owner may rely on it."""
        renewed_ms = min(recorded.renewed_until_ms, now_ms)
        if not recorded.is_ended:
            relied_on_ms = min(RELIED_ON_MS, self.live_ms)
            renewed_ms = max(renewed_ms, now_ms - self.live_ms + relied_on_ms)
        elif now_ms - renewed_ms > self.live_ms:
            return
        else:
            # The file says that no lock was renewed later, so it must change before a renewal.
            self.revision += 1
        for group, owners in recorded.owners.items():
            locks = {queue: _Lock(name, renewed_ms) for queue, name in owners.items()}
            for lock in locks.values():
                lock.granted_at = self.revision
            self._groups[group] = locks
        self._renewed_until_ms = recorded.renewed_until_ms

    def ended(self, now_ms: int) -> None:
        """Note that the broker stops: nothing is renewed from now on."""
        if self._groups:
            self._renewed_until_ms = min(now_ms, self._renewed_until_ms)
            self._is_ended = True
            self.revision += 1

    # -- locks ----------------------------------------------------------------------------

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int
    ) -> list[MessageQueue]:
        """Grant or renew locks; return the queues the client owns now, in the order asked."""
        locks = self._groups.setdefault(group, {})
        granted: list[MessageQueue] = []
        is_changed = False
        for queue in queues:
            lock = locks.get(queue)
            if lock is None:
                lock = locks[queue] = _Lock(client_id, now_ms)
                lock.granted_at = self.revision + 1
                is_changed = True
            elif lock.client_id == client_id:
                lock.renewed_ms = now_ms
            elif self._is_expired(lock, now_ms):
                lock.client_id = client_id
                lock.granted_at = self.revision + 1
                lock.renewed_ms = now_ms
                lock.waiting.pop(client_id, None)
                is_changed = True
            else:
                lock.waiting[client_id] = None
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
        """Release the client's locks on these queues; return the clients that waited for them."""
        locks = self._groups.get(group)
        if locks is None:
            return []
        waiting: dict[str, None] = {}
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                waiting.update(lock.waiting)
                self._end(group, queue)
        if not locks:
            del self._groups[group]
        return list(waiting)

    def are_written(self, group: str, queues: Iterable[MessageQueue], written: int) -> bool:
        """Whether a file of revision ``written`` names the present owners of these queues."""
        locks = self._groups.get(group, {})
        return all(queue in locks and locks[queue].granted_at <= written for queue in queues)

    def owner(self, group: str, queue: MessageQueue, now_ms: int) -> str | None:
        """Return the client that owns the lock of a queue, or None."""
        lock = self._groups.get(group, {}).get(queue)
        return None if lock is None or self._is_expired(lock, now_ms) else lock.client_id

    def has_been_used(self, group: str) -> bool:
        """Whether `last_owner` may know an owner of this group."""
        return group in self._groups or group in self._former

    def last_owner(self, group: str, queue: MessageQueue) -> str | None:
        """Return the client to which the lock was granted last, also if the lock has ended since.

        None without a lock in the last minutes.
        """
        lock = self._groups.get(group, {}).get(queue) or self._former.get(group, {}).get(queue)
        return None if lock is None else lock.client_id

    def are_all_expired(self, group: str, now_ms: int) -> bool:
        """Whether no client of the group owns a lock now."""
        locks = self._groups.get(group, {})
        return all(self._is_expired(lock, now_ms) for lock in locks.values())

    def expire(self, now_ms: int) -> dict[str, list[str]]:
        """Drop the expired locks; return the clients that waited for them, by group."""
        waiting_by_group: dict[str, dict[str, None]] = {}
        for group, locks in list(self._groups.items()):
            for queue, lock in list(locks.items()):
                if self._is_expired(lock, now_ms):
                    self._end(group, queue)
                    if lock.waiting:
                        waiting_by_group.setdefault(group, {}).update(lock.waiting)
            if not locks:
                del self._groups[group]
        for group, ended in list(self._former.items()):
            for queue, lock in list(ended.items()):
                if now_ms - lock.renewed_ms > FORMER_MS:
                    del ended[queue]
            if not ended:
                del self._former[group]
        return {group: list(clients) for group, clients in waiting_by_group.items()}

    def next_expiry_ms(self) -> int | None:
        """Return when to call `expire`: the first time a lock with a waiting client may expire."""
        renewed = [
            lock.renewed_ms
            for locks in self._groups.values()
            for lock in locks.values()
            if lock.waiting
        ]
        return min(renewed) + self.live_ms + 1 if renewed else None

    def _end(self, group: str, queue: MessageQueue) -> None:
        self._former.setdefault(group, {})[queue] = self._groups[group].pop(queue)
        self.revision += 1

    def _is_expired(self, lock: _Lock, now_ms: int) -> bool:
        return now_ms - lock.renewed_ms > self.live_ms
