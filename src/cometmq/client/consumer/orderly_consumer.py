"""A group consumer that locks its queues at the brokers while it consumes them in order.

A queue that is given up stays locked until its last handler has ended and the broker has confirmed
its offset, so the next owner begins after the messages finished here.  A queue whose lock is lost
is dropped without a commit, because its next owner may be further ahead.  A consumer without an
order has neither locks nor a runner, and this class changes nothing for it.
"""

import asyncio
import logging
from collections.abc import Iterable

from cometmq.client.consumer.group.group_consumer import GroupConsumer
from cometmq.client.consumer.orderly import OrderlyRunner
from cometmq.client.extensions.parking.parking import Parking
from cometmq.client.queue.assignment import Assignment
from cometmq.client.queue.locks import LOCK_INTERVAL_MS, QueueLockKeeper
from cometmq.client.queue.pull_loop import PullLoop
from cometmq.errors import CometError
from cometmq.model import MessageModel, MessageQueue

__all__ = ["OrderlyConsumer"]

log = logging.getLogger("cometmq.client")


class OrderlyConsumer(GroupConsumer):
    """Base of consumers that can consume in order."""

    _ordering: OrderlyRunner | None = None
    _parking: Parking | None = None
    _locks: QueueLockKeeper | None = None
    _leaving: dict[MessageQueue, Assignment]
    """Queues given up while a handler still runs; they stay locked until it ends."""
    _wanted_again: set[MessageQueue]
    """Queues of `_leaving` that a rebalance has assigned to this client again."""

    def _start_ordering(self, ordering: OrderlyRunner) -> None:
        """Consume in order from now on; called before the first queue is started."""
        running = self._ready()
        instance = running.instance
        self._ordering = ordering
        self._leaving = {}
        self._wanted_again = set()
        if self._model == MessageModel.BROADCASTING:
            return  # no other client consumes these messages
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
        if self._locks is None:
            return taken
        if taken and queue not in self._locks.owned:
            # The lock was lost while the offset was read, and nobody would ask for it again.
            if (assignment := self._assignments.pop(queue, None)) is not None:
                self._drop(assignment)
            return False
        if not taken:
            await self._locks.release([queue])
        return taken

    async def _is_parking_known(self, queue: MessageQueue) -> bool:
        """Read which message groups of a queue are parked, before its first message is handled."""
        if self._parking is None:
            return True
        try:
            await self._parking.prepare(queue)
        except CometError as error:
            log.warning("%s is not started yet: %s", queue, error)
            return False
        return True

    async def _give_up(self, queue: MessageQueue) -> None:
        if self._locks is None or self._ordering is None:
            await super()._give_up(queue)
            return
        assignment = self._leaving[queue] = self._assignments.pop(queue)
        assignment.loop.stop()
        self._ordering.leave(assignment)
        self.spawn(self._leave(assignment, self._locks), "leave")

    async def _leave(self, assignment: Assignment, locks: QueueLockKeeper) -> None:
        """Hand a queue over: wait for its handlers, commit, and only then unlock."""
        queue = assignment.queue
        try:
            await assignment.state.wait_idle()
            if self._parking is not None:
                await self._parking.leave(assignment)
            await self._commit([assignment], wait=True)
        except CometError as error:
            log.warning("%s continues at an older offset elsewhere: %s", queue, error)
        assignment.process_queue.dropped = True
        await locks.release([queue])
        del self._leaving[queue]
        if queue in self._wanted_again:
            self._wanted_again.discard(queue)
            self.rebalance_soon()

    def commit_hint(self, loop: PullLoop) -> int:
        """See `PullSink`; as for `_commit`."""
        return super().commit_hint(loop) if self.may_consume(loop.queue) else -1

    async def _commit(self, assignments: Iterable[Assignment], *, wait: bool) -> None:
        """Commit, except where another client may own the lock and be further ahead."""
        await super()._commit(
            [assignment for assignment in assignments if self.may_consume(assignment.queue)],
            wait=wait,
        )

    async def renew_locks(self) -> None:
        """Renew the locks at the brokers, and drop the queues whose lock is lost."""
        if self._locks is None:
            return
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
            self._drop(assignment)
        if lost:
            self.rebalance_soon()
            await self._call_listener([], sorted(lost))

    def _drop(self, assignment: Assignment) -> None:
        """Stop a queue whose lock is lost, and leave what is in hand to its next owner."""
        assignment.loop.stop()
        assignment.process_queue.dropped = True
        self._removed(assignment)

    def _in_hand(self) -> list[Assignment]:
        """The assigned queues, and those that are being handed over."""
        leaving = self._leaving.values() if self._locks is not None else ()
        return [*self._assignments.values(), *leaving]

    async def _release_locks(self) -> None:
        """At shutdown: release every queue without a running handler."""
        if self._locks is None:
            return
        async with self._ready().rebalance_lock:
            pass  # a rebalance under way may be acquiring locks; no other follows
        busy = {busy.queue for busy in self._in_hand() if busy.state.run_count}
        await self._locks.release([queue for queue in self._locks.owned if queue not in busy])

    def may_consume(self, queue: MessageQueue) -> bool:
        """Whether a handler may start on a queue: this client certainly owns its lock."""
        return self._locks is None or self._locks.is_fresh(queue)

    def locked_ms(self, queue: MessageQueue) -> int:
        return self._locks.locked_ms(queue) if self._locks is not None else 0
