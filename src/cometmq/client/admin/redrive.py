"""Reads a group's dead letters, and sends selected ones to the group or to their first topics.

A re-drive guarantees:

- A dead-letter queue's messages are sent one after the other, each after the one before was
  acknowledged, so their order is kept.
- Nothing is sent twice while the ledger's folder is kept: a batch is written down before it is
  sent, and when its end is not known (a lost answer, a killed process) the target queue is searched
  from where it ended before, for the `REPLAY_OF` each copy carries.  Two runs at the same time with
  different folders know nothing of each other.
- A copy is as durable as any acknowledged message.

The default target is the group's retry topic on the broker that holds the dead letter: only this
group gets it again, with its tries counted from the start.  A broker of RocketMQ buries what comes
there while members consume in order (``SendMessageProcessor.handleRetryAndDLQ``); the first copy
is therefore looked at where it was stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from cometmq.client.admin.redrive_ledger import RedriveLedger
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
from cometmq.model import MessageQueue, SendStatus
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
"""Messages between two notes in the ledger."""
ATTEMPTS: Final = 5
PAUSE_S: Final = 0.5
_PASSING: Final = (ConnectFailed, RequestTimeout, SendFailed, BrokerBusy, ServiceNotAvailable)
_STORED: Final = frozenset(int(status) for status in SendStatus)


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
        """The queues of its dead-letter topic; none where nothing has died."""
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
    """Groups among a cluster's topics that have dead letters, and how many lie there."""
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
    """What a re-drive is going to do; counted, nothing sent."""

    offsets: dict[MessageQueue, list[int]] = field(default_factory=dict)
    """Dead letters to send, by queue and in order."""
    by_target: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    """(first topic, target topic) to (messages, body bytes, first and last death in ms)."""
    sent_before: int = 0
    """Chosen, but sent by an earlier run."""
    without_origin: int = 0
    """Chosen, but nobody knows their first topic, to which they were to go."""

    @property
    def count(self) -> int:
        """Messages to send."""
        return sum(len(offsets) for offsets in self.offsets.values())

    def add(self, death: Death, target: str) -> None:
        """One more to send."""
        self.offsets.setdefault(death.queue, []).append(death.queue_offset)
        row = self.by_target.setdefault((death.origin_topic, target), [0, 0, death.died_ms, 0])
        row[0] += 1
        row[1] += death.body_bytes
        row[2] = min(row[2], death.died_ms)
        row[3] = max(row[3], death.died_ms)


class Redrive:
    """One run: `plan`, then `send`.

    Args:
        letters: the group's dead letters.
        ledger: what was sent before.
        to_origin: to the topics they were first sent to instead of the group's retry topic.
        rate: messages per second at most; None for as fast as the broker takes them.
        clock: monotonic time, and born times of copies.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        letters: DeadLetters,
        ledger: RedriveLedger,
        *,
        to_origin: bool = False,
        rate: float | None = None,
        clock: Clock,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if rate is not None and rate <= 0:
            raise ConfigError(f"a rate of {rate} messages per second would never end")
        self._letters = letters
        self._reader = letters.reader
        self._ledger = ledger
        self._to_origin = to_origin
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._begin_s = clock.monotonic()
        self._passed = 0
        self._is_looked_at = False

    async def plan(self, selection: DeathSelection) -> RedrivePlan:
        """Count what would be sent.  Settles first what an ended run left open."""
        if self._ledger.pending is not None:
            await self._settle()
        plan = RedrivePlan()
        async for death, _ in self._letters.walk(selection):
            if death in self._ledger:
                plan.sent_before += 1
            elif self._to_origin and not death.origin_topic:
                plan.without_origin += 1
            else:
                plan.add(death, self._target_topic(death))
        return plan

    async def send(
        self, plan: RedrivePlan, on_progress: Callable[[int], None] = lambda count: None
    ) -> int:
        """Send what the plan holds and say how many were sent.

        Raises:
            CometError: a broker refused or did not answer; the ledger knows what was sent.
        """
        self._begin_s = self._clock.monotonic()
        self._passed = 0
        for queue, offsets in plan.offsets.items():
            batch: list[tuple[Death, ReceivedMessage]] = []
            target: MessageQueue | None = None
            async for death, message in self._chosen(queue, offsets):
                here = await self._target(death, message)
                if batch and (here != target or len(batch) >= self._batch_count):
                    assert target is not None
                    await self._send_batch(batch, target)
                    on_progress(self._passed)
                    batch = []
                target = here
                batch.append((death, message))
            if batch and target is not None:
                await self._send_batch(batch, target)
                on_progress(self._passed)
        return self._passed

    @property
    def _batch_count(self) -> int:
        """A tenth of a second's messages, so that what is in doubt after a kill stays small."""
        if self._rate is None:
            return BATCH_COUNT
        return max(1, min(BATCH_COUNT, int(self._rate / 10)))

    async def _chosen(
        self, queue: MessageQueue, offsets: list[int]
    ) -> AsyncIterator[tuple[Death, ReceivedMessage]]:
        """The planned messages of a queue; neighbours are read together."""
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
        """The queue a copy goes to: always the same one for one dead-letter queue, or one group."""
        if not self._to_origin:
            return MessageQueue(retry_topic(self._letters.group), death.queue.broker_name, 0)
        topic = death.origin_topic
        queues = publish_queues(topic, await self._reader.routes.find(topic))
        if not queues:
            raise NoRoute(f"no queue of the topic {topic} may be written to")
        return select_by_hash(queues, message.message_group or str(death.queue))

    # -- sending ----------------------------------------------------------------------------

    async def _send_batch(
        self, batch: list[tuple[Death, ReceivedMessage]], target: MessageQueue
    ) -> None:
        unsent = batch
        for attempt in range(1, ATTEMPTS + 1):
            self._ledger.about([death for death, _ in unsent], target, await self._end(target))
            acknowledged: set[str] = set()
            try:
                for death, message in unsent:
                    await self._wait_for_turn()
                    await self._send_one(death, message, target)
                    acknowledged.add(death.position)
                    self._passed += 1
            except _PASSING:
                if attempt == ATTEMPTS:
                    raise
                await self._sleep(attempt * PAUSE_S)
                # What stays in doubt after the last attempt is settled by the next run.
                self._passed += len(await self._settle() - acknowledged)
                unsent = [item for item in unsent if item[0] not in self._ledger]
                if not unsent:
                    return
            else:
                self._ledger.done()
                return

    async def _end(self, target: MessageQueue) -> int:
        """The end of a queue; 0 for one of a retry topic that is still to be made."""
        try:
            return (await self._reader.bounds(target))[1]
        except CometError:
            if target.topic.startswith("%") and not await self._reader.queues(target.topic):
                return 0
            raise

    async def _wait_for_turn(self) -> None:
        if self._rate is None:
            return
        early_s = self._begin_s + self._passed / self._rate - self._clock.monotonic()
        if early_s > 0:
            await self._sleep(early_s)

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
        if answer.code not in _STORED:
            raise remote_error(answer.code, answer.remark)
        if not self._is_looked_at and not self._to_origin:
            self._is_looked_at = True
            await self._look_at(address, SendResponseHeader.from_command(answer).msg_id)

    async def _look_at(self, address: str, message_id: str) -> None:
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

    # -- what is in doubt -------------------------------------------------------------------

    async def _settle(self) -> set[str]:
        """Find out which of the batch in doubt arrived, write it down, and give their places."""
        pending = self._ledger.pending
        assert pending is not None
        arrived: set[str] = set()
        if await self._reader.queues(pending.target.topic):
            end = (await self._reader.bounds(pending.target))[1]
            async for message in self._reader.read(pending.target, pending.from_offset, end):
                place = message.properties.get(REPLAY_OF)
                if place in pending.places:
                    arrived.add(place)
        self._ledger.found(arrived)
        return arrived
