"""Reads a group's dead letters, and sends selected ones to the group or to their first topics.

A re-drive guarantees:

- The messages of a dead-letter queue keep their order: each is sent after the broker has
  acknowledged the one before.
- Nothing is sent twice, whoever runs it and to whichever target: the ledger is in the cluster, and
  one run at a time writes it (`RedriveLedger`).  A batch is recorded before it is sent.  When its
  outcome is not known (a lost answer, a killed process), the target queue is searched from where it
  ended before the batch, for the property `REPLAY_OF` of each copy.
- A copy is as durable as any acknowledged message.

The default target is the group's retry topic on the broker that has the dead letter: only this
group gets the message again, and its tries are counted from the start.  While members of the group
consume in order, RocketMQ's broker makes every message of that topic a dead letter again
(``SendMessageProcessor.handleRetryAndDLQ``).  So a re-drive checks where its first copy was stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cometmq.client.admin.calls import AdminCalls
from cometmq.client.admin.redrive_ledger import RENEW_AFTER_S, Pending, RedriveLedger
from cometmq.client.base.reading import QueueReader
from cometmq.client.message.message import ReceivedMessage, split_messages
from cometmq.codec.ids import decode_offset_message_id
from cometmq.codec.properties import encode_properties_text
from cometmq.core.retry.dead_letters import (
    REASON_PROPERTIES,
    REPLAY_OF,
    Death,
    DeathSelection,
    copy_properties,
    death_of,
)
from cometmq.core.topic.selector import publish_queues, select_by_hash
from cometmq.errors import (
    BrokerBusy,
    CometError,
    ConfigError,
    ConnectFailed,
    NoRoute,
    RequestTimeout,
    SendFailed,
    ServiceNotAvailable,
    remote_error,
)
from cometmq.model import FLUSHED_CODES, MessageQueue
from cometmq.model.flags import COMPRESSED, COMPRESSION_MASK
from cometmq.model.names import (
    CLIENT_INNER_PRODUCER,
    DEFAULT_TOPIC,
    DLQ_PREFIX,
    dlq_topic,
    retry_topic,
)
from cometmq.net.env import Clock
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.headers import SendMessageHeader, SendResponseHeader, ViewMessageHeader

__all__ = ["DeadLetters", "Redrive", "RedrivePlan", "dead_groups"]

BATCH_COUNT: Final = 100
"""Messages of a batch; the ledger gets a line before and after each."""
ATTEMPTS: Final = 5
PAUSE_S: Final = 0.5
_PASSING: Final = (ConnectFailed, RequestTimeout, SendFailed, BrokerBusy, ServiceNotAvailable)


class DeadLetters:
    """The dead letters of one group."""

    def __init__(
        self,
        reader: QueueReader,
        group: str,
        reason_properties: Sequence[str] = REASON_PROPERTIES,
    ) -> None:
        self.group = group
        self.reader = reader
        self._reason_properties = tuple(reason_properties)

    async def queues(self) -> list[MessageQueue]:
        """The queues of the group's dead-letter topic; none if the group has no dead letters."""
        return await self.reader.queues(dlq_topic(self.group))

    async def walk(
        self, selection: DeathSelection, queue: MessageQueue | None = None
    ) -> AsyncIterator[tuple[Death, ReceivedMessage]]:
        """The selected dead letters, queue by queue (or of one queue), oldest first."""
        for dead_queue in [queue] if queue is not None else await self.queues():
            first, end = await self.reader.bounds(dead_queue)
            if selection.since_ms is not None:
                address = self.reader.address(dead_queue)
                first = max(
                    first,
                    await self.reader.calls.search_offset(address, dead_queue, selection.since_ms),
                )
            async for message in self.reader.read(dead_queue, first, end):
                death = self.death(message)
                if selection.until_ms is not None and death.died_ms >= selection.until_ms:
                    break  # a queue is in the order of its store times
                if selection.matches(death):
                    yield death, message

    def death(self, message: ReceivedMessage) -> Death:
        """The death that a message of the dead-letter topic records."""
        return death_of(
            message.message_queue,
            message.queue_offset,
            died_ms=message.store_timestamp_ms,
            message_id=message.message_id,
            reconsume_times=message.reconsume_times,
            body_bytes=len(message.body),
            properties=message.properties,
            reason_properties=self._reason_properties,
        )


async def dead_groups(reader: QueueReader, topics: Sequence[str]) -> dict[str, int]:
    """The number of dead letters by group, for each dead-letter topic among a cluster's topics."""
    counts: dict[str, int] = {}
    for topic in sorted(topics):
        if not topic.startswith(DLQ_PREFIX):
            continue
        count = 0
        for queue in await reader.queues(topic):
            first, end = await reader.bounds(queue)
            count += end - first
        counts[topic.removeprefix(DLQ_PREFIX)] = count
    return counts


@dataclass(slots=True)
class RedrivePlan:
    """The dead letters that a re-drive is going to send, and how many it leaves out."""

    offsets: dict[MessageQueue, list[int]] = field(default_factory=dict)
    """Queue offsets of the dead letters to send, by queue, in ascending order."""
    by_target: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    """(first topic, target topic) -> [messages, body bytes, first death ms, last death ms]."""
    sent_before: int = 0
    """Selected messages that an earlier run has sent."""
    without_origin: int = 0
    """Selected messages that should go to their first topic but do not name it."""

    @property
    def count(self) -> int:
        """How many messages are to be sent."""
        return sum(len(offsets) for offsets in self.offsets.values())

    def add(self, death: Death, target: str) -> None:
        """Add a dead letter that goes to the topic ``target``."""
        self.offsets.setdefault(death.queue, []).append(death.queue_offset)
        row = self.by_target.setdefault((death.origin_topic, target), [0, 0, death.died_ms, 0])
        row[0] += 1
        row[1] += death.body_bytes
        row[2] = min(row[2], death.died_ms)
        row[3] = max(row[3], death.died_ms)


class Redrive:
    """One run: `plan` or `plan_offsets`, then `send`.

    Args:
        letters: the group's dead letters.
        admin: the calls of the admin client that reads them.
        to_origin: sends each message to its first topic instead of the group's retry topic.
        is_repeated: sends also what an earlier run has sent.
        rate: the most messages per second; None for as fast as the broker accepts them.
        clock: the source of monotonic time and of the copies' born times.
        sleep: waits for a number of seconds.

    Raises:
        ConfigError: the rate is not above 0.
    """

    def __init__(
        self,
        letters: DeadLetters,
        admin: AdminCalls,
        *,
        to_origin: bool = False,
        is_repeated: bool = False,
        rate: float | None = None,
        clock: Clock,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if rate is not None and rate <= 0:
            raise ConfigError(f"a rate of {rate} messages per second would never end")
        self._letters = letters
        self._reader = letters.reader
        self._admin = admin
        self._ledgers: dict[str, RedriveLedger] = {}
        self._to_origin = to_origin
        self._is_repeated = is_repeated
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._begin_s = clock.monotonic()
        self._passed = 0
        self._is_target_checked = False

    def ledger(self, broker_name: str) -> RedriveLedger:
        """The record of what runs have sent of the dead letters at a broker."""
        ledger = self._ledgers.get(broker_name)
        if ledger is None:
            ledger = self._ledgers[broker_name] = RedriveLedger(
                self._admin, self._letters.group, broker_name, self._clock, self._sleep
            )
        return ledger

    async def plan(self, selection: DeathSelection) -> RedrivePlan:
        """The messages of a selection that `send` would send now; nothing is written."""

        async def deaths() -> AsyncIterator[Death]:
            async for death, _ in self._letters.walk(selection):
                yield death

        return await self._plan(deaths())

    async def plan_offsets(self, offsets: Mapping[MessageQueue, Sequence[int]]) -> RedrivePlan:
        """The same for dead letters that are known by their ascending queue offsets."""

        async def deaths() -> AsyncIterator[Death]:
            await self._letters.queues()  # where the brokers are
            for queue in sorted(offsets):
                async for death, _ in self._planned(queue, offsets[queue]):
                    yield death

        return await self._plan(deaths())

    async def _plan(self, deaths: AsyncIterator[Death]) -> RedrivePlan:
        plan = RedrivePlan()
        in_doubt: dict[str, set[str]] = {}
        async for death in deaths:
            broker_name = death.queue.broker_name
            ledger = self.ledger(broker_name)
            if broker_name not in in_doubt:
                await ledger.refresh()
                pending = ledger.pending
                in_doubt[broker_name] = await self._arrived(pending) if pending else set()
            if not self._is_repeated and (
                death in ledger or death.position in in_doubt[broker_name]
            ):
                plan.sent_before += 1
            elif self._to_origin and not death.origin_topic:
                plan.without_origin += 1
            else:
                plan.add(death, self._target_topic(death))
        return plan

    async def send(
        self, plan: RedrivePlan, on_progress: Callable[[int], None] = lambda count: None
    ) -> int:
        """Send the messages of a plan; the result is how many were sent.

        What another run has sent since the plan is left out.

        Raises:
            CometError: a broker refused or did not answer; the ledger records what was sent.
        """
        self._begin_s = self._clock.monotonic()
        self._passed = 0
        for broker_name in sorted({queue.broker_name for queue in plan.offsets}):
            ledger = self.ledger(broker_name)
            await ledger.acquire()
            try:
                if ledger.pending is not None:
                    await ledger.settle(await self._arrived(ledger.pending))
                for queue, offsets in plan.offsets.items():
                    if queue.broker_name != broker_name:
                        continue
                    async for target, batch in self._batches(queue, offsets):
                        await self._send_batch(ledger, batch, target)
                        on_progress(self._passed)
            finally:
                await ledger.release()
        return self._passed

    async def _batches(
        self, queue: MessageQueue, offsets: Sequence[int]
    ) -> AsyncIterator[tuple[MessageQueue, list[tuple[Death, ReceivedMessage]]]]:
        """Successive planned messages of a queue that go to one target queue."""
        batch: list[tuple[Death, ReceivedMessage]] = []
        target = queue
        ledger = self.ledger(queue.broker_name)
        async for death, message in self._planned(queue, offsets):
            if death in ledger and not self._is_repeated:
                continue
            next_target = await self._target(death, message)
            if batch and (next_target != target or len(batch) >= self._batch_count):
                yield target, batch
                batch = []
            target = next_target
            batch.append((death, message))
        if batch:
            yield target, batch

    @property
    def _batch_count(self) -> int:
        """The messages of a tenth of a second, so that a kill leaves few messages in doubt."""
        if self._rate is None:
            return BATCH_COUNT
        return max(1, min(BATCH_COUNT, int(self._rate / 10)))

    async def _planned(
        self, queue: MessageQueue, offsets: Sequence[int]
    ) -> AsyncIterator[tuple[Death, ReceivedMessage]]:
        """The planned messages of a queue; messages with close offsets are read together."""
        wanted = set(offsets)
        begin = offsets[0]
        for index, offset in enumerate(offsets):
            following = offsets[index + 1] if index + 1 < len(offsets) else None
            if following is not None and following - offset < BATCH_COUNT:
                continue
            async for message in self._reader.read(queue, begin, offset + 1):
                if message.queue_offset in wanted:
                    yield self._letters.death(message), message
            if following is not None:
                begin = following

    # -- where to ---------------------------------------------------------------------------

    def _target_topic(self, death: Death) -> str:
        return death.origin_topic if self._to_origin else retry_topic(self._letters.group)

    async def _target(self, death: Death, message: ReceivedMessage) -> MessageQueue:
        """The queue of a copy, the same for a whole message group or dead-letter queue."""
        if not self._to_origin:
            return MessageQueue(retry_topic(self._letters.group), death.queue.broker_name, 0)
        topic = death.origin_topic
        queues = publish_queues(topic, await self._reader.routes.find(topic))
        if not queues:
            raise NoRoute(f"no queue of the topic {topic} may be written to")
        return select_by_hash(queues, message.message_group or str(death.queue))

    # -- sending ----------------------------------------------------------------------------

    async def _send_batch(
        self,
        ledger: RedriveLedger,
        batch: list[tuple[Death, ReceivedMessage]],
        target: MessageQueue,
    ) -> None:
        unsent = batch
        for attempt in range(1, ATTEMPTS + 1):
            from_offset = await self._end(target)
            pending = await ledger.begin([death for death, _ in unsent], target, from_offset)
            acknowledged: set[str] = set()
            try:
                for death, message in unsent:
                    await self._wait_for_turn(ledger)
                    await self._send_one(death, message, target)
                    acknowledged.add(death.position)
                    self._passed += 1
            except _PASSING:
                if attempt == ATTEMPTS:
                    raise
                await self._sleep(attempt * PAUSE_S)
                # After the last attempt the batch stays in doubt until the next run settles it.
                arrived = acknowledged | await self._arrived(pending)
                await ledger.settle(arrived)
                self._passed += len(arrived - acknowledged)
                unsent = [item for item in unsent if item[0].position not in arrived]
                if not unsent:
                    return
            else:
                await ledger.done()
                return

    async def _end(self, target: MessageQueue) -> int:
        """The end of a queue; 0 for a retry topic that does not exist yet."""
        try:
            return (await self._reader.bounds(target))[1]
        except CometError:
            if target.topic.startswith("%") and not await self._reader.queues(target.topic):
                return 0
            raise

    async def _wait_for_turn(self, ledger: RedriveLedger) -> None:
        """Wait for the rate's sake, with the ledger's lock in hand."""
        await ledger.hold()
        while self._rate is not None:
            early_s = self._begin_s + self._passed / self._rate - self._clock.monotonic()
            if early_s <= 0:
                return
            await self._sleep(min(early_s, RENEW_AFTER_S))
            await ledger.hold()

    async def _send_one(self, death: Death, message: ReceivedMessage, target: MessageQueue) -> None:
        stored = message.stored
        header = SendMessageHeader(
            producer_group=CLIENT_INNER_PRODUCER,
            topic=target.topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=4,
            queue_id=target.queue_id,
            sys_flag=stored.sys_flag & (COMPRESSED | COMPRESSION_MASK),
            born_timestamp_ms=self._clock.now_ms(),
            flag=stored.flag,
            properties=encode_properties_text(
                copy_properties(death, message.properties, is_for_group=not self._to_origin)
            ),
        )
        command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header.to_ext(), stored.body)
        address = self._reader.routes.address(target.broker_name)
        if address is None:
            raise NoRoute(f"the master of {target.broker_name} is not known")
        answer = await self._reader.io.request(address, command, self._reader.calls.timeout_ms)
        if answer.code not in FLUSHED_CODES:
            raise remote_error(answer.code, answer.remark)
        if not self._is_target_checked and not self._to_origin:
            self._is_target_checked = True
            await self._check_stored(address, SendResponseHeader.from_command(answer).msg_id)

    async def _check_stored(self, address: str, message_id: str) -> None:
        """Refuse to continue when the broker stored the copy as a dead letter again."""
        header = ViewMessageHeader(decode_offset_message_id(message_id)[1])
        command = RemotingCommand.request(RequestCode.VIEW_MESSAGE_BY_ID, header.to_ext())
        answer = await self._reader.calls.ask(address, command)
        stored = split_messages(answer.body, MessageQueue("", "", 0))[0].stored
        if stored.topic.startswith(DLQ_PREFIX):
            raise CometError(
                f"the broker put the first copy back into {stored.topic}: members of "
                f"{self._letters.group} consume in order, and RocketMQ buries what is sent to "
                "their retry topic. Stop them for the re-drive, or send to the first topics"
            )

    # -- batches in doubt -------------------------------------------------------------------

    async def _arrived(self, pending: Pending) -> set[str]:
        """The positions of a batch whose copies are in the target."""
        arrived: set[str] = set()
        if await self._reader.queues(pending.target.topic):
            end = (await self._reader.bounds(pending.target))[1]
            async for message in self._reader.read(pending.target, pending.from_offset, end):
                position = message.properties.get(REPLAY_OF)
                if position in pending.message_ids:
                    arrived.add(position)
        return arrived
