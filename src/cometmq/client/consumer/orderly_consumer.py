"""A group consumer whose queues are locked at the brokers while it consumes them in order.

Job: lock what the rebalance gives, renew, hand a queue over when its handlers have ended, and let
go of what was lost.
Must not: run handlers or judge their outcomes (``orderly``); a consumer without an order has
neither locks nor a runner, and goes through here untouched.

Theory of handing over: a queue that is given up stays locked until its last handler has ended and
its offset is committed with an answer, so that the next owner begins behind what was done here.
A queue whose lock is lost is dropped without a commit, since its next owner may be further.
"""

import asyncio
import logging
from collections.abc import Iterable

from cometmq.client.consumer.group.group_consumer import GroupConsumer
from cometmq.client.consumer.orderly import OrderlyRunner
from cometmq.client.extensions.parking.parking import Parking
from cometmq.client.queue.assignment import Assignment
from cometmq.client.queue.locks import LOCK_INTERVAL_MS, QueueLockKeeper
from cometmq.errors import CometError
from cometmq.model import MessageModel, MessageQueue

__all__ = ["OrderlyConsumer"]

log = logging.getLogger("cometmq.client")


class OrderlyConsumer(GroupConsumer):
    """Base of consumers that can keep an order."""

    _ordering: OrderlyRunner | None = None
    _parking: Parking | None = None
    _locks: QueueLockKeeper | None = None
    _leaving: dict[MessageQueue, Assignment]
    """Given up, with a message still in the handler: the lock is kept until it has ended."""
    _wanted_again: set[MessageQueue]
    """Queues of `_leaving` that a rebalance gave back to us meanwhile."""

    def _start_ordering(self, ordering: OrderlyRunner) -> None:
        """Consume in order from now on; before the first queue is taken."""
        running = self._ready()
        instance = running.instance
        self._ordering = ordering
        self._leaving = {}
        self._wanted_again = set()
        if self._model == MessageModel.BROADCASTING:
            return  # nobody else gets our messages
        self._locks = QueueLockKeeper(
            self.group,
            instance.client_id,
            running.calls,
            instance.routes,
            asyncio.get_running_loop().time,
            self.now_ms,
        )
        instance.spawn(instance.every(LOCK_INTERVAL_MS, self.renew_locks), "locks")

    def _added(self, assignment: Assignment) -> None:
        if self._ordering is not None:
            self._ordering.added(assignment)

    def _removed(self, assignment: Assignment) -> None:
        if self._ordering is not None:
            self._ordering.drop(assignment)

    async def _acquire(self, queues: list[MessageQueue]) -> list[MessageQueue]:
        if self._locks is None or not queues:
            return queues
        self._wanted_again.update(queue for queue in queues if queue in self._leaving)
        granted = await self._locks.acquire(q for q in queues if q not in self._leaving)
        return [queue for queue in queues if queue in granted]

    async def _start_queue(self, queue: MessageQueue) -> bool:
        taken = await self._is_parking_known(queue) and await super()._start_queue(queue)
        if not taken and self._locks is not None:
            await self._locks.release([queue])
        return taken

    async def _is_parking_known(self, queue: MessageQueue) -> bool:
        """Before a queue's first message: which of its message groups are parked."""
        if self._parking is None:
            return True
        try:
            await self._parking.prepare(queue)
        except CometError as error:
            log.warning("%s is not taken yet: %s", queue, error)
            return False
        return True

    async def _give_up(self, queue: MessageQueue) -> None:
        if self._locks is None:
            await super()._give_up(queue)
            return
        assert self._ordering is not None
        assignment = self._leaving[queue] = self._assignments.pop(queue)
        assignment.loop.stop()
        self._ordering.leave(assignment)
        self.spawn(self._leave(assignment), "leave")

    async def _leave(self, assignment: Assignment) -> None:
        """Hand a queue over: when its handlers have ended, commit, and only then unlock."""
        assert self._locks is not None
        queue = assignment.queue
        try:
            await assignment.state.wait_idle()
            if self._parking is not None:
                await self._parking.leave(assignment)
            await self._commit([assignment], wait=True)
        except CometError as error:
            log.warning("%s goes on from an older offset elsewhere: %s", queue, error)
        assignment.process_queue.dropped = True
        await self._locks.release([queue])
        del self._leaving[queue]
        if queue in self._wanted_again:
            self._wanted_again.discard(queue)
            self.rebalance_soon()

    async def _commit(self, assignments: Iterable[Assignment], *, wait: bool) -> None:
        """Commit, except where the lock may be another's by now: its offset may be further."""
        await super()._commit(
            [one for one in assignments if self.may_consume(one.queue)], wait=wait
        )

    async def renew_locks(self) -> None:
        """Renew the locks at the brokers; a queue whose lock is lost is nobody's of ours."""
        assert self._locks is not None
        lost = await self._locks.renew()
        for queue in sorted(lost):
            self._locks.forget(queue)
            assignment = self._assignments.pop(queue, None) or self._leaving.get(queue)
            if assignment is None:
                continue
            log.warning(
                "the lock of %s was lost by client %s of group %s: %d messages in hand are left "
                "to its next owner",
                queue,
                self.client_id,
                self.group,
                assignment.process_queue.count,
            )
            assignment.loop.stop()
            assignment.process_queue.dropped = True
            self._removed(assignment)
        if lost:
            self.rebalance_soon()
            await self._call_listener([], sorted(lost))

    def _in_hand(self) -> list[Assignment]:
        """Our queues, and those we are about to hand over."""
        leaving = self._leaving.values() if self._locks is not None else ()
        return [*self._assignments.values(), *leaving]

    async def _release_locks(self) -> None:
        """At the end: give back every queue that no handler holds any more."""
        if self._locks is None:
            return
        async with self._ready().rebalance_lock:
            pass  # a round under way may be asking for locks; no other follows
        busy = {one.queue for one in self._in_hand() if one.state.run_count}
        await self._locks.release([queue for queue in self._locks.held if queue not in busy])

    def may_consume(self, queue: MessageQueue) -> bool:
        """Whether a handler may start on a queue: its lock is ours for sure."""
        return self._locks is None or self._locks.is_fresh(queue)

    def locked_ms(self, queue: MessageQueue) -> int:
        return self._locks.locked_ms(queue) if self._locks is not None else 0
