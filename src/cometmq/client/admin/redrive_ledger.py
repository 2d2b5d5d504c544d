"""The ledger of re-drives: which dead letters of a group at one broker were sent again.

It belongs to the cluster: a topic ``%SENT%group`` beside the dead letters, with one queue, which
works at brokers of every version.  So runs on several machines use the same one.  Commit logs drop
their oldest files first, so a record outlives the dead letters that it is about.

A batch has a record before it is sent and one when its outcome is known.  The body of a record is
a JSON object:

    {"about": [[offset, id], ...], "queue": text, "target": [topic, broker, queue], "from": offset}
    {"done": true}                     every message of the batch above was sent
    {"found": [position, ...]}         a search of the target has shown that only these were sent

A dead letter is identified by its position ("queue:offset") and its message id together, so a
record matches no other message when the topic is made anew.

One run at a time may write: it owns the broker's lock of the ledger's queue, as an ordered consumer
owns a queue.  A run that was killed owns it for up to 60 s more.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from cometmq.client.admin.calls import AdminCalls
from cometmq.client.queue.locks import QueueLockKeeper
from cometmq.core.retry.dead_letters import Death
from cometmq.errors import CometError, ConnectFailed, NoRoute, RequestTimeout, remote_error
from cometmq.model import FLUSHED_CODES, MessageQueue
from cometmq.model.names import CLIENT_INNER_PRODUCER, DEFAULT_TOPIC, dlq_topic, sent_topic
from cometmq.net.env import Clock
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.headers import SendMessageHeader

__all__ = ["RENEW_AFTER_S", "Pending", "RedriveLedger"]

log = logging.getLogger("cometmq.client")

LOCK_WAIT_S: Final = 65.0
"""A little longer than a broker keeps the lock of a run that was killed."""
RENEW_AFTER_S: Final = 10.0
_ATTEMPTS: Final = 3
_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Pending:
    """A batch that was begun; how much of it was sent is not known yet."""

    message_ids: dict[str, str]
    """Message id by position."""
    target: MessageQueue
    """The queue that the batch goes to."""
    from_offset: int
    """Where the target ended before the batch."""


class RedriveLedger:
    """The ledger of one group at one broker: `refresh` reads it, `acquire` lets a run write.

    Args:
        admin: a started admin client's calls.
        clock: the source of monotonic time and of the records' born times.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        admin: AdminCalls,
        group: str,
        broker_name: str,
        clock: Clock,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.queue = MessageQueue(sent_topic(group), broker_name, 0)
        self.pending: Pending | None = None
        self._dead_topic = dlq_topic(group)
        self._admin = admin
        self._reader = admin.queue_reader()
        self._clock = clock
        self._sleep = sleep
        self._sent: set[tuple[str, str]] = set()
        self._next_offset = 0
        self._locked_s = 0.0
        self._lock = QueueLockKeeper(
            self.queue.topic,
            f"redrive-{secrets.token_hex(8)}",
            self._reader.calls,
            self._reader.routes,
            clock.monotonic,
            clock.now_ms,
        )

    # -- who may write ----------------------------------------------------------------------

    async def acquire(self) -> None:
        """Get the lock, make the topic where it is missing, and read what other runs wrote.

        Raises:
            CometError: another run has the lock, or the broker does not answer.
        """
        await self._reader.queues(self._dead_topic)  # where its broker is
        deadline_s = self._clock.monotonic() + LOCK_WAIT_S
        is_told = False
        while self.queue not in await self._lock.acquire([self.queue]):
            if self._clock.monotonic() >= deadline_s:
                raise CometError(
                    f"another run sends the dead letters of {self.queue} again, or the broker "
                    f"gives no lock; nothing was sent for {LOCK_WAIT_S:.0f} s. Try again later"
                )
            if not is_told:
                is_told = True
                log.warning(
                    "waiting for up to %.0f s: another run writes into the ledger %s, or was "
                    "killed less than a minute ago",
                    LOCK_WAIT_S,
                    self.queue,
                )
            await self._sleep(_PAUSE_S)
        self._locked_s = self._clock.monotonic()
        if self.queue not in await self._reader.queues(self.queue.topic):
            await self._admin.create_topic(
                self.queue.topic, queue_count=1, broker_name=self.queue.broker_name
            )
        await self.refresh()

    async def hold(self) -> None:
        """Renew the lock in time, so that the next send is certainly this run's.

        Raises:
            CometError: the lock is lost, or its broker does not answer for too long.
        """
        if self._clock.monotonic() - self._locked_s < RENEW_AFTER_S:
            return
        asked_s = self._clock.monotonic()
        lost = await self._lock.renew()
        if lost or not self._lock.is_fresh(self.queue):
            raise CometError(
                f"this run has lost the ledger {self.queue} to another one, or was stopped for "
                "too long; the same command sends what is left"
            )
        self._locked_s = asked_s

    async def release(self) -> None:
        """Give the lock back."""
        await self._lock.release([self.queue])

    # -- what was sent ----------------------------------------------------------------------

    async def refresh(self) -> None:
        """Read the records since the last refresh.

        Raises:
            CometError: the broker does not answer, or a record is not one of a ledger.
        """
        if self.queue not in await self._reader.queues(self.queue.topic):
            return
        first, end = await self._reader.bounds(self.queue)
        async for message in self._reader.read(self.queue, max(first, self._next_offset), end):
            self._take(message.body, message.queue_offset)
            self._next_offset = message.queue_offset + 1

    def _take(self, body: bytes, queue_offset: int) -> None:
        try:
            self._apply(json.loads(body))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CometError(
                f"message {queue_offset} of {self.queue} is no record of a ledger: {error}. Look "
                f"into the topic {self.queue.topic}; deleting it forgets what was sent again"
            ) from None

    def _apply(self, record: dict[str, Any]) -> None:
        if not isinstance(record, dict) or record.keys().isdisjoint(("about", "done", "found")):
            raise ValueError("it neither begins nor ends a batch")
        if "about" in record:
            ids = {f"{record['queue']}:{offset}": str(name) for offset, name in record["about"]}
            topic, broker_name, queue_id = record["target"]
            target = MessageQueue(topic, broker_name, int(queue_id))
            self.pending = Pending(ids, target, int(record["from"]))
            return
        pending = self.pending
        if pending is None:
            return  # the end of a batch came twice: an answer was lost
        sent = pending.message_ids if "done" in record else record["found"]
        self._sent |= {(position, pending.message_ids[position]) for position in sent}
        self.pending = None

    def __contains__(self, death: object) -> bool:
        """Whether this dead letter was sent again."""
        return isinstance(death, Death) and (death.position, death.message_id) in self._sent

    @property
    def count(self) -> int:
        """How many dead letters were sent again, as far as their records exist."""
        return len(self._sent)

    # -- writing ----------------------------------------------------------------------------

    async def begin(self, deaths: list[Death], target: MessageQueue, from_offset: int) -> Pending:
        """Record the batch that is sent next; all its dead letters are of one queue."""
        await self._append(
            {
                "about": [[death.queue_offset, death.message_id] for death in deaths],
                "queue": str(deaths[0].queue),
                "target": [target.topic, target.broker_name, target.queue_id],
                "from": from_offset,
            }
        )
        assert self.pending is not None
        return self.pending

    async def done(self) -> None:
        """End the batch: every message of it was sent and acknowledged."""
        await self._append({"done": True})

    async def settle(self, arrived: Iterable[str]) -> None:
        """End the batch: only the messages of these positions were sent."""
        await self._append({"found": sorted(arrived)})

    async def _append(self, record: dict[str, Any]) -> None:
        """Append a record; one that is stored twice means the same as once.

        Raises:
            CometError: the record was not stored, or the broker did not answer.
        """
        header = SendMessageHeader(
            producer_group=CLIENT_INNER_PRODUCER,
            topic=self.queue.topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=1,
            queue_id=0,
            sys_flag=0,
            born_timestamp_ms=self._clock.now_ms(),
            flag=0,
            properties="WAIT\x01true\x02",
        )
        body = json.dumps(record, ensure_ascii=False).encode()
        command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header.to_ext(), body)
        answer = await self._ask(command)
        if answer.code not in FLUSHED_CODES:
            raise remote_error(answer.code, answer.remark)
        self._apply(record)

    async def _ask(self, command: RemotingCommand) -> RemotingCommand:
        """Send a request to the ledger's broker, again after a lost answer."""
        attempt = 0
        while True:
            await self.hold()
            address = self._reader.routes.address(self.queue.broker_name)
            if address is None:
                raise NoRoute(f"the master of {self.queue.broker_name} is not known")
            attempt += 1
            try:
                return await self._reader.io.request(
                    address, command, self._reader.calls.timeout_ms
                )
            except (ConnectFailed, RequestTimeout):
                if attempt == _ATTEMPTS:
                    raise
            await self._sleep(attempt * _PAUSE_S)
