"""The broker's queue locks that one ordered consumer owns.

The age of a lock counts from the request that acquired or renewed it, because the broker counts
from some moment between the request and its answer.  The broker drops a lock after 60 s.  A
consumer stops at 30 s (``rocketmq.client.rebalance.lockMaxLiveTime`` of Java), long before the next
owner starts.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from cometmq.client.base.calls import BrokerCalls
from cometmq.client.base.routes import RouteBook
from cometmq.errors import CometError, NoRoute
from cometmq.model import MessageQueue
from cometmq.wire.body.client import LockBatchRequest, LockBatchResponse
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand

__all__ = ["LOCK_INTERVAL_MS", "LOCK_STALE_S", "QueueLockKeeper"]

log = logging.getLogger("cometmq.client")

LOCK_INTERVAL_MS: Final = 20_000
"""``rocketmq.client.rebalance.lockInterval``."""
LOCK_STALE_S: Final = 30.0


class QueueLockKeeper:
    """Locks of one (group, client); ``monotonic`` gives seconds, ``now_ms`` the wall clock."""

    def __init__(
        self,
        group: str,
        client_id: str,
        calls: BrokerCalls,
        routes: RouteBook,
        monotonic: Callable[[], float],
        now_ms: Callable[[], int],
    ) -> None:
        self._group = group
        self._client_id = client_id
        self._calls = calls
        self._routes = routes
        self._monotonic = monotonic
        self._now_ms = now_ms
        self._granted: dict[MessageQueue, tuple[float, int]] = {}

    @property
    def owned(self) -> list[MessageQueue]:
        """Queues whose lock was granted by the latest answer."""
        return list(self._granted)

    def is_fresh(self, queue: MessageQueue) -> bool:
        """Whether the lock is young enough that no other client can own it."""
        grant = self._granted.get(queue)
        return grant is not None and self._monotonic() - grant[0] < LOCK_STALE_S

    def locked_ms(self, queue: MessageQueue) -> int:
        """When a lock was granted or renewed, ms since 1970; 0 without the lock."""
        grant = self._granted.get(queue)
        return grant[1] if grant is not None else 0

    async def acquire(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Ask for locks, and return the queues whose lock was granted."""
        return (await self._ask(queues))[0]

    async def renew(self) -> set[MessageQueue]:
        """Renew all locks, and return the lost ones: refused, or granted again after expiry."""
        before = dict(self._granted)
        stale = {queue for queue in before if not self.is_fresh(queue)}
        granted, refused = await self._ask(before, renews=True)
        # A lock that was released or acquired anew in the meantime is not lost.
        refused = {queue for queue in refused if self._granted.get(queue) == before[queue]}
        return refused | (stale & granted & self._granted.keys())

    async def release(self, queues: Iterable[MessageQueue]) -> None:
        """Release locks; at a broker that is not reached they expire."""
        for broker_name, group in _by_broker(queues).items():
            for queue in group:
                self._granted.pop(queue, None)
            try:
                await self._calls.ask(
                    self._address(broker_name), self._command(RequestCode.UNLOCK_BATCH_MQ, group)
                )
            except CometError as error:
                log.info(
                    "%d queues of %s were not unlocked, their locks expire: %s",
                    len(group),
                    broker_name,
                    error,
                )

    def forget(self, queue: MessageQueue) -> None:
        """Stop renewing a lock that is lost."""
        self._granted.pop(queue, None)

    async def _ask(
        self, queues: Iterable[MessageQueue], *, renews: bool = False
    ) -> tuple[set[MessageQueue], set[MessageQueue]]:
        """Ask each broker once; returns (granted, refused), without queues of unreached brokers."""
        granted: set[MessageQueue] = set()
        refused: set[MessageQueue] = set()

        async def ask(broker_name: str, group: list[MessageQueue]) -> None:
            asked = self._monotonic(), self._now_ms()
            renewal = f"asking {broker_name} for the queue locks of {self._group}"
            try:
                answer = await self._calls.ask(
                    self._address(broker_name), self._command(RequestCode.LOCK_BATCH_MQ, group)
                )
                locked = LockBatchResponse.decode(answer.body).queues
                ours = set(map(self._calls.namespace.unwrap_queue, locked)) & set(group)
            except CometError as error:
                self._routes.outages.failed(renewal, f"{len(group)} queues: {error}")
                return
            self._routes.outages.ended(renewal)
            for queue in ours:
                if not renews or queue in self._granted:  # else it was released in the meantime
                    self._granted[queue] = asked
            granted.update(ours)
            refused.update(queue for queue in group if queue not in ours)

        # In parallel: a broker that does not answer must not make other locks go stale.
        await asyncio.gather(*[ask(*item) for item in _by_broker(queues).items()])
        return granted, refused

    def _address(self, broker_name: str) -> str:
        address = self._routes.address(broker_name)
        if address is None:
            raise NoRoute(f"the master of {broker_name}, which keeps its locks, is not known")
        return address

    def _command(self, code: int, queues: list[MessageQueue]) -> RemotingCommand:
        namespace = self._calls.namespace
        body = LockBatchRequest(
            namespace.wrap(self._group), self._client_id, tuple(map(namespace.wrap_queue, queues))
        ).encode()
        return RemotingCommand.request(code, {}, body)


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    groups: dict[str, list[MessageQueue]] = {}
    for queue in sorted(queues):  # a fixed order makes simulations repeatable
        groups.setdefault(queue.broker_name, []).append(queue)
    return groups
