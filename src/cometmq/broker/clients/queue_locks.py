"""Queue locks of ordered consumers: lock, unlock, and a notice to clients that wait.

Serves LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42), and writes the owners of queues into
``config/cometmqQueueLocks.json``.  `cometmq.core.group.queue_locks` decides who owns a queue.

A client that was refused a queue gets a notice (NOTIFY_CONSUMER_IDS_CHANGED, 40) when the queue is
free.  Every client answers this notice with a rebalance, so it asks again within milliseconds;
RocketMQ's waits for its next rebalance.  A client gets one notice for each refusal, and one for all
queues that are given back within `NOTICE_PAUSE_S`.

A lock is answered when its owner is on disk: a broker that is killed and started again gives the
queue to nobody else before the lock expires, while RocketMQ's forgets all locks.  As long as the
file cannot be written, no queue gets a new owner: the client is refused and asks again.  Owners
that the file names renew their locks as usual.

Source: AdminBrokerProcessor.lockBatchMQ of RocketMQ 5.4; the notices and the file are ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from cometmq.broker.base.state import BrokerState, WhenSaved, answer
from cometmq.core.group.filter_shares import reader_group
from cometmq.core.group.queue_locks import LockSnapshot, QueueLocks
from cometmq.errors import CodecError, ResponseCode, StoreError
from cometmq.model import MessageQueue
from cometmq.net.server import Handler, ServerConnection
from cometmq.wire.body.client import LockBatchRequest, LockBatchResponse
from cometmq.wire.command.codes import RequestCode as Code
from cometmq.wire.command.command import RemotingCommand

__all__ = ["QueueLockFile", "QueueLockProcessor", "queue_lock_snapshot"]

NOTICE_PAUSE_S: Final = 0.05
"""Java unlocks queue by queue, and at shutdown commits its offsets only after that."""


class _Owner(msgspec.Struct, rename="camel"):
    """The owner of a queue; ``broker_name`` is as the client wrote it."""

    topic: str
    broker_name: str
    queue_id: int
    client_id: str


class QueueLockFile(msgspec.Struct, rename="camel"):
    """What ``config/cometmqQueueLocks.json`` holds; owners by consumer group."""

    renewed_until: int
    locks: dict[str, list[_Owner]]
    is_ended: bool = False

    @classmethod
    def of(cls, owners: LockSnapshot) -> QueueLockFile:
        """Make the file of these owners."""
        return cls(
            owners.renewed_until_ms,
            {
                group: [
                    _Owner(queue.topic, queue.broker_name, queue.queue_id, client_id)
                    for queue, client_id in queues.items()
                ]
                for group, queues in owners.owners.items()
            },
            owners.is_ended,
        )

    @classmethod
    def decode(cls, raw: bytes) -> LockSnapshot:
        """Read the file's bytes.

        Raises:
            CodecError: they are something else.
        """
        try:
            file = msgspec.json.decode(raw, type=cls)
        except msgspec.DecodeError as error:
            raise CodecError(f"no file of queue locks: {error}") from error
        owners = {
            group: {MessageQueue(o.topic, o.broker_name, o.queue_id): o.client_id for o in queues}
            for group, queues in file.locks.items()
        }
        return LockSnapshot(owners, file.renewed_until, file.is_ended)


def queue_lock_snapshot(locks: QueueLocks) -> Callable[[], bytes]:
    """Copy the owners; the result encodes the copy."""
    owners = locks.snapshot()
    return lambda: msgspec.json.encode(QueueLockFile.of(owners))


class QueueLockProcessor:
    """The processors of codes 41 and 42; `stop` ends its timers.

    Args:
        written: gives the revision of the locks that the file has.
        when_saved: writes the file if it is behind, and calls its argument when it is not.
    """

    def __init__(
        self, state: BrokerState, written: Callable[[], int], when_saved: WhenSaved
    ) -> None:
        self._state = state
        self._written = written
        self._when_saved = when_saved
        self._to_notify: dict[str, dict[str, None]] = {}
        self._notice: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._expiry_ms = 0
        self.notice_pause_s = NOTICE_PAUSE_S

    def handlers(self) -> dict[int, Handler]:
        """Map each code to its processor."""
        return {Code.LOCK_BATCH_MQ: self.lock, Code.UNLOCK_BATCH_MQ: self.unlock}

    def stop(self) -> None:
        """Send no more notices."""
        for timer in (self._notice, self._expiry):
            if timer is not None:
                timer.cancel()
        self._state.queue_locks.ended(self._state.env.clock.now_ms())

    def lock(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes | None:
        """Serve LOCK_BATCH_MQ (41): the answer lists the queues that the client owns now."""
        if not self._state.is_surely_master():
            # Another broker may be the master by now, and grants the same queues.
            return answer(
                request,
                ResponseCode.SYSTEM_BUSY,
                "in-sync replicas are silent, so this broker may be the master no more: it grants"
                " no queues until they are back; ask again",
            )
        asked = LockBatchRequest.decode(request.body)
        granted: dict[MessageQueue, str] = {}
        queues_of = self._by_reader(asked, connection, now_ms)
        for reader, queues in queues_of.items():
            owned = self._state.queue_locks.lock(reader, asked.client_id, queues, now_ms)
            granted.update(dict.fromkeys(owned, reader))
        if len(granted) < sum(map(len, queues_of.values())):
            self._watch_expiry(now_ms)
        in_order = [queue for queue in asked.queues if queue in granted]
        if request.is_oneway or all(self._is_written(granted[queue], queue) for queue in in_order):
            self._when_saved(_nothing)
            return _granted(request, in_order)

        def settle(_: StoreError | None) -> None:
            # The client owns all granted queues, and hears of those that the file has.
            written = [queue for queue in in_order if self._is_written(granted[queue], queue)]
            connection.send(_granted(request, written))

        self._when_saved(settle)
        return None

    def _by_reader(
        self, asked: LockBatchRequest, connection: ServerConnection, now_ms: int
    ) -> dict[str, list[MessageQueue]]:
        """Sort queues by the name under which the client's share has locks.

        Queues are left out whose messages other members with the client's filter get.
        """
        shares, group = self._state.shares, asked.consumer_group
        if not shares.is_split(group):
            return {group: list(asked.queues)}
        table: dict[str, list[MessageQueue]] = {}
        for queue in asked.queues:
            part = shares.part(group, queue.topic, connection, now_ms)
            if part is None or part.is_owner(queue.queue_id):
                table.setdefault(group if part is None else part.reader, []).append(queue)
        return table

    def _is_written(self, reader: str, queue: MessageQueue) -> bool:
        return self._state.queue_locks.are_written(reader, [queue], self._written())

    def unlock(self, request: RemotingCommand, connection: ServerConnection, now_ms: int) -> bytes:
        """Serve UNLOCK_BATCH_MQ (42); queues of another owner stay locked."""
        asked = LockBatchRequest.decode(request.body)
        for reader, queues in self._by_reader(asked, connection, now_ms).items():
            waiting = self._state.queue_locks.unlock(reader, asked.client_id, queues)
            self._notify_soon(asked.consumer_group, waiting)
        self._when_saved(_nothing)
        return answer(request)

    def drop_expired(self, now_ms: int) -> None:
        """Drop locks that were not renewed, and notify the clients that wait for them."""
        for reader, clients in self._state.queue_locks.expire(now_ms).items():
            self._notify_soon(reader_group(reader), clients)

    # -- notices --------------------------------------------------------------------------

    def _watch_expiry(self, now_ms: int) -> None:
        """Set the timer to the expiry of the first lock that a client waits for."""
        expiry_ms = self._state.queue_locks.next_expiry_ms()
        if self._expiry is not None:
            if expiry_ms is not None and expiry_ms >= self._expiry_ms:
                return
            self._expiry.cancel()
            self._expiry = None
        if expiry_ms is not None:
            self._expiry_ms = expiry_ms
            self._expiry = asyncio.get_running_loop().call_later(
                max(1, expiry_ms - now_ms) / 1000, self._expire
            )

    def _expire(self) -> None:
        self._expiry = None
        now_ms = self._state.env.clock.now_ms()
        self.drop_expired(now_ms)
        self._watch_expiry(now_ms)

    def _notify_soon(self, group: str, clients: list[str]) -> None:
        settings = self._state.groups.get(group)
        if (
            not clients
            or not self._state.config.notify_consumer_ids_changed_enable
            or (settings is not None and not settings.notify_consumer_ids_changed_enable)
        ):
            return
        self._to_notify.setdefault(group, {}).update(dict.fromkeys(clients))
        if self._notice is None:
            self._notice = asyncio.get_running_loop().call_later(self.notice_pause_s, self._notify)

    def _notify(self) -> None:
        """Have each waiting client rebalance, if it is still connected."""
        self._notice = None
        to_notify, self._to_notify = self._to_notify, {}
        for group, clients in to_notify.items():
            online = self._state.consumers.get(group)
            if online is None:
                continue
            for client_id in clients:
                member = online.find_client(client_id)
                if member is not None:
                    member.oneway(
                        RemotingCommand.request(
                            Code.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group}
                        )
                    )


def _granted(request: RemotingCommand, queues: Sequence[MessageQueue]) -> bytes:
    return answer(request, body=LockBatchResponse(tuple(queues)).encode())


def _nothing(_: StoreError | None) -> None:
    """Nobody waits for this write: until it is done, the next owner of the queue waits."""
