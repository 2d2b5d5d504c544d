"""Reads the messages of one queue of Kombu in a thread, and commits what was acknowledged.

A pull consumer of the client reads; this module keeps, for each message queue of RocketMQ, which of
the messages that were handed out are not settled.  RocketMQ stores one offset for a queue, so the
offset of the oldest unsettled message is what can be committed.  It is committed as soon as it
moves, by a second thread, so that an acknowledgement never waits for a broker.  That thread keeps
the leases of long tasks too.
"""

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any, Final

from kombu.utils.json import dumps

from cometmq import MessageQueue
from cometmq.errors import ClientClosed, CometError, RemoteError
from cometmq.integrations.kombu.leases import Leases
from cometmq.sync import PullConsumer, ReceivedMessage

__all__ = ["Delivery", "Reader"]

log = logging.getLogger("cometmq.kombu")

WAITING_MAX: Final = 64
"""Messages that wait in a reader for a free place in the channel's prefetch."""
POLL_MS: Final = 1_000
PAUSE_S: Final = 1.0


class Delivery:
    """A message of a queue, on its way to Kombu's callback and back to an outcome."""

    __slots__ = (
        "handed_out_at",
        "is_settled",
        "lease",
        "lease_ends",
        "payload",
        "progress",
        "queue_offset",
        "reader",
    )

    def __init__(
        self,
        reader: "Reader",
        progress: "UnsettledOffsets | None",
        queue_offset: int,
        payload: dict[str, Any],
    ) -> None:
        self.reader = reader
        self.progress = progress
        self.queue_offset = queue_offset
        self.payload = payload
        self.is_settled = False
        self.handed_out_at: float | None = None
        self.lease: str | None = None
        self.lease_ends = 0.0

    @property
    def copy(self) -> dict[str, Any]:
        """The payload of a copy that takes its place."""
        properties = self.payload["properties"]
        info = {**properties["delivery_info"], "redelivered": True}
        return {**self.payload, "properties": {**properties, "delivery_info": info}}

    def settle(self) -> None:
        """Count the message as consumed."""
        self.reader.settle(self)

    @property
    def is_overtaken(self) -> bool:
        """Whether a later message of its message queue is settled already."""
        progress = self.progress
        return (
            progress is not None
            and self.queue_offset in progress.offsets
            and progress.settled_max > self.queue_offset
        )


class UnsettledOffsets:
    """The unsettled offsets of one message queue, the oldest first."""

    __slots__ = ("committed", "end", "offsets", "settled_max")

    def __init__(self) -> None:
        self.offsets: OrderedDict[int, Delivery | None] = OrderedDict()
        self.end = -1
        self.settled_max = -1
        self.committed = -1

    def add(self, queue_offset: int) -> None:
        """Note a message that was pulled."""
        self.offsets[queue_offset] = None
        self.end = queue_offset + 1

    def settle(self, queue_offset: int) -> None:
        """Note that a message is consumed."""
        if queue_offset in self.offsets:
            del self.offsets[queue_offset]
            self.settled_max = max(self.settled_max, queue_offset)

    @property
    def commit_offset(self) -> int:
        """The offset from which another consumer should continue."""
        return next(iter(self.offsets), self.end)


class Reader:
    """The messages of one queue of Kombu.

    Args:
        name: the queue, for the log.
        consumer: makes the consumer; it gets the rebalance listener.
        start: starts that consumer.
        decode: the payload of a message, or None for a message that is not for this queue.
        wake: called when a message has arrived.
        commits: whether offsets are committed.
        leases: the leases of long tasks; None for none.
    """

    def __init__(
        self,
        name: str,
        consumer: Callable[[Callable[..., None]], PullConsumer],
        start: Callable[[PullConsumer], None],
        decode: Callable[[ReceivedMessage], dict[str, Any] | None],
        wake: Callable[[], None],
        *,
        commits: bool,
        leases: Leases | None = None,
    ) -> None:
        self.name = name
        self._decode = decode
        self._wake = wake
        self._commits = commits
        self._leases = leases
        self._leased: list[Delivery] = []
        self._turn_s = None if leases is None else min(leases.after_s, leases.for_s) / 4
        self._lock = threading.Lock()
        self._has_room = threading.Condition(self._lock)
        self._waiting: deque[Delivery] = deque()
        self._progress: dict[MessageQueue, UnsettledOffsets] = {}
        self._is_paused = False
        self._is_closed = threading.Event()
        self._has_settled = threading.Event()
        self._consumer = consumer(self._rebalanced)
        try:
            start(self._consumer)
        except BaseException:
            self._consumer.shutdown(commit=False)
            raise
        work = (self._read, self._commit_settled) if commits else (self._read,)
        self._threads = [
            threading.Thread(target=target, name=f"cometmq-kombu-{name}", daemon=True)
            for target in work
        ]
        for thread in self._threads:
            thread.start()

    # -- from the broker ---------------------------------------------------------------------

    def _read(self) -> None:
        while not self._is_closed.is_set():
            with self._has_room:
                self._has_room.wait_for(self._may_read)
                room = WAITING_MAX - len(self._waiting)
            if self._is_closed.is_set():
                return
            try:
                messages = self._consumer.poll(POLL_MS, max(1, room))
            except ClientClosed:
                return
            except CometError as error:
                log.warning("queue %s is not read: %s", self.name, error)
                self._is_closed.wait(PAUSE_S)
                continue
            # A rebalance may have given the queue of a pulled message to another member.
            mine = set(self._consumer.assignment()) if messages else set()
            for message in messages:
                if message.message_queue in mine:
                    self._take(message)
            if messages:
                self._wake()

    def _may_read(self) -> bool:
        if self._is_closed.is_set():
            return True
        return not self._is_paused and len(self._waiting) < WAITING_MAX

    def _take(self, message: ReceivedMessage) -> None:
        try:
            payload = self._decode(message)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.error(
                "message %s of %s is not one of Kombu's and is skipped: %s",
                message.message_id,
                message.message_queue,
                error,
            )
            payload = None
        progress = None
        with self._lock:
            if self._commits:
                progress = self._progress.setdefault(message.message_queue, UnsettledOffsets())
                progress.add(message.queue_offset)
            delivery = Delivery(self, progress, message.queue_offset, payload or {})
            if progress is not None:
                progress.offsets[message.queue_offset] = delivery
            if payload is not None:
                self._waiting.append(delivery)
        if payload is None:
            delivery.settle()

    def _rebalanced(self, added: Sequence[MessageQueue], removed: Sequence[MessageQueue]) -> None:
        """Forget what belongs to another member now; it gets the unsettled messages again."""
        with self._lock:
            gone = {id(self._progress.pop(queue, None)) for queue in (*added, *removed)}
            self._waiting = deque(
                delivery for delivery in self._waiting if id(delivery.progress) not in gone
            )

    # -- to Kombu ----------------------------------------------------------------------------

    def take(self) -> Delivery | None:
        """The next message; None while there is none."""
        with self._lock:
            if not self._waiting or self._is_paused:
                return None
            delivery = self._waiting.popleft()
            delivery.handed_out_at = monotonic()
            self._has_room.notify()
            return delivery

    def put_back(self, delivery: Delivery) -> None:
        """Hand the message out once more."""
        with self._lock:
            self._waiting.append(delivery)

    def skip_to(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Forget the messages that wait, because the group was moved to these offsets."""
        with self._lock:
            for delivery in self._waiting:
                if delivery.progress is not None:
                    delivery.progress.settle(delivery.queue_offset)
            self._waiting.clear()
            for queue, queue_offset in offsets.items():
                if queue in self._progress:
                    self._progress[queue].end = queue_offset
            self._has_room.notify()
        self._has_settled.set()

    def pause(self) -> None:
        """Hand out no more messages; those that were handed out can still be settled."""
        with self._lock:
            self._is_paused = True

    def resume(self) -> None:
        """Hand out messages again."""
        with self._lock:
            self._is_paused = False
            self._has_room.notify()

    # -- outcomes ----------------------------------------------------------------------------

    def settle(self, delivery: Delivery) -> None:
        """Count a message as consumed."""
        if delivery.progress is None:
            return
        with self._lock:
            delivery.is_settled = True
            delivery.progress.settle(delivery.queue_offset)
        self._has_settled.set()

    def _commit_settled(self) -> None:
        while not self._is_closed.is_set():
            self._has_settled.wait(self._turn_s)
            self._has_settled.clear()
            try:
                self._commit()
                if self._leases is not None:
                    self._keep_leases(self._leases)
            except CometError as error:
                log.warning("queue %s: outcomes are not committed yet: %s", self.name, error)
                self._has_settled.set()
                self._is_closed.wait(PAUSE_S)

    def _commit(self) -> None:
        with self._lock:
            changed: Mapping[MessageQueue, UnsettledOffsets] = {
                queue: progress
                for queue, progress in self._progress.items()
                if progress.commit_offset != progress.committed
            }
            offsets = {queue: progress.commit_offset for queue, progress in changed.items()}
        if offsets:
            self._consumer.commit(offsets)
        for queue, progress in changed.items():
            progress.committed = offsets[queue]

    # -- leases ------------------------------------------------------------------------------

    def _keep_leases(self, leases: Leases, *, is_last: bool = False) -> None:
        """End the leases of settled messages, extend those of others, and begin new ones.

        The last time, the leases of unsettled messages are released.
        """
        now = monotonic()
        for delivery in self._leased.copy():
            assert delivery.lease is not None
            try:
                if delivery.is_settled:
                    leases.end(delivery.lease)
                elif is_last:
                    leases.release(delivery.lease, _body(delivery))
                elif delivery.lease_ends - now < leases.for_s / 2:
                    delivery.lease = leases.extend(delivery.lease, _body(delivery))
                    delivery.lease_ends = now + leases.for_s
                    continue
                else:
                    continue
            except RemoteError as error:  # it was due already
                log.warning("queue %s: a task that is still here runs twice: %s", self.name, error)
            self._leased.remove(delivery)
        with self._lock:
            old = [
                delivery
                for progress in self._progress.values()
                for delivery in progress.offsets.values()
                if delivery is not None
                and delivery.handed_out_at is not None
                and now - delivery.handed_out_at >= leases.after_s
            ]
        for delivery in () if is_last else old:
            delivery.lease = leases.begin(_body(delivery))
            delivery.lease_ends = now + leases.for_s
            self._leased.append(delivery)
            with self._lock:
                # What was settled in the meantime ends with the next turn.
                if delivery.progress is not None:
                    delivery.progress.settle(delivery.queue_offset)
            self._has_settled.set()

    def close(self) -> None:
        """Commit what is settled, and leave the group."""
        self._is_closed.set()
        self._has_settled.set()
        with self._lock:
            self._waiting.clear()
            self._has_room.notify()
        for thread in self._threads[1:]:
            thread.join()
        try:
            if self._commits:
                self._commit()
            if self._leases is not None:
                self._keep_leases(self._leases, is_last=True)
        except CometError as error:
            log.error(
                "queue %s: the last offsets were not committed, so messages are repeated: %s",
                self.name,
                error,
            )
        self._consumer.shutdown(commit=False)
        self._threads[0].join()


def _body(delivery: Delivery) -> bytes:
    """The body of the message that is a delivery's lease."""
    body: bytes = dumps(delivery.copy).encode()
    return body
