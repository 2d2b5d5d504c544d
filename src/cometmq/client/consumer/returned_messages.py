"""Gives messages back whose handler failed, until a broker has accepted each of them.

A message goes back by code 36 to its broker.  Where that fails, a copy is sent to the group's retry
topic; if that fails too, both are tried again after a pause.  The message counts as finished here
when a broker has accepted one of the two.

A dead letter with properties of the handler's choice is a copy too, since code 36 carries none, and
so is a message to be tried again at an exact time.  Where the broker has no timers, or refuses the
time, the message goes back at the shortest delay level that is not earlier.

An ordered consumer counts the tries of a message itself; the broker's record does not contain them.
So the dead letter of an ordered message is a copy with that count, as with Java's orderly
consumers, and code 36, which would count one try, is the second choice.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from cometmq.client.base.calls import BrokerCalls
from cometmq.client.base.instance import ClientInstance
from cometmq.client.handling.handlers import deliver_time_of, is_delay, properties_of
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.queue.assignment import Assignment
from cometmq.codec.properties import encode_properties_text
from cometmq.core.delay.levels import DelayLevels
from cometmq.core.retry.consume_retry import (
    DELAY_LEVEL_BY_BROKER,
    DELAY_LEVEL_DEAD_LETTER,
    fallback_properties,
)
from cometmq.core.retry.retry import level_not_before
from cometmq.errors import CometError, NoRoute, remote_error
from cometmq.model import FLUSHED_CODES
from cometmq.model.flags import BORN_HOST_V6, STORE_HOST_V6
from cometmq.model.names import CLIENT_INNER_PRODUCER, retry_topic
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.headers import SendMessageHeader

__all__ = ["ReturnedMessages"]

log = logging.getLogger("cometmq.client")

CONCURRENCY: Final = 64
PAUSE_S: Final = 5.0
RESEND_TIMEOUT_MS: Final = 5_000
_LEVELS: Final = DelayLevels()


class ReturnedMessages:
    """The messages that one consumer is giving back.

    ``done`` is called for each message that a broker has accepted.
    """

    def __init__(
        self,
        instance: ClientInstance,
        calls: BrokerCalls,
        group: str,
        max_reconsume_times: int | None,
        done: Callable[[Assignment, ReceivedMessage], None],
        *,
        is_orderly: bool,
    ) -> None:
        self._instance = instance
        self._calls = calls
        self._group = group
        self._max_reconsume_times = max_reconsume_times
        self._done = done
        self._is_orderly = is_orderly
        self._slots = asyncio.Semaphore(CONCURRENCY)
        self._all_returned = asyncio.Event()
        self._all_returned.set()
        self._count = 0
        self._is_stopping = False

    @property
    def count(self) -> int:
        """How many messages are on their way back."""
        return self._count

    def start(self, assignment: Assignment, message: ReceivedMessage, delay_level: int) -> None:
        """Begin to give a message back in the background."""
        self._count += 1
        self._all_returned.clear()
        self._instance.spawn(self._return(assignment, message, delay_level), "send-back")

    async def finish(self, timeout_s: float) -> None:
        """Wait for the returns under way; one that fails from now on is not repeated."""
        self._is_stopping = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._all_returned.wait()
        except TimeoutError:
            log.warning("group %s: %d messages were not given back", self._group, self._count)

    async def _return(
        self, assignment: Assignment, message: ReceivedMessage, delay_level: int
    ) -> None:
        failed_ms = self._instance.env.clock.now_ms()
        try:
            while not assignment.process_queue.dropped:
                async with self._slots:
                    is_accepted = await self._try_once(message, delay_level, failed_ms)
                if is_accepted:
                    self._done(assignment, message)
                    return
                if self._is_stopping:
                    return
                await asyncio.sleep(PAUSE_S)
        finally:
            self._count -= 1
            if not self._count:
                self._all_returned.set()

    async def _try_once(self, message: ReceivedMessage, delay_level: int, failed_ms: int) -> bool:
        name = f"{message.message_queue} at {message.queue_offset}"
        outages = self._instance.io.outages
        returning = f"giving messages of {self._group} back to {message.broker_name}"
        copying = f"sending copies to the retry topic of {self._group}"
        try:
            address = self._instance.routes.address(message.broker_name)
            if address is None:
                raise NoRoute(f"the master of {message.broker_name} is not known")
            deliver_time_ms = deliver_time_of(delay_level, failed_ms)
            if deliver_time_ms is not None:
                left_ms = max(0, deliver_time_ms - self._instance.env.clock.now_ms())
                if await self._delay(message, address, delay_level, deliver_time_ms, left_ms):
                    return True
                delay_level = max(1, level_not_before(left_ms, _LEVELS.delays_ms))
            is_dead = delay_level == DELAY_LEVEL_DEAD_LETTER
            added = properties_of(delay_level)
            if (
                is_dead
                and (self._is_orderly or added)
                and await self._bury(message, address, added)
            ):
                return True
            await self._calls.send_back(
                address,
                message.broker_name,
                self._group,
                physical_offset=message.physical_offset,
                delay_level=delay_level,
                message_id=message.message_id,
                topic=message.topic,
                max_reconsume_times=self._max_reconsume_times,
            )
        except CometError as error:
            outages.failed(returning, f"{name} was not accepted ({error}); sending a copy")
        else:
            outages.ended(returning)
            return True
        try:
            await self._resend(message, delay_level)
        except CometError as error:
            outages.failed(copying, f"{name} ({error}); trying again in {PAUSE_S:.0f} s")
            return False
        outages.ended(copying)
        return True

    async def _bury(self, message: ReceivedMessage, address: str, added: Mapping[str, str]) -> bool:
        """Store a dead letter that carries the count of tries; False if that failed.

        ``added`` are further properties of the dead letter.
        """
        tries = message.stored.reconsume_times
        if not self._is_orderly:
            tries += 1  # as code 36 counts it
        # With a maximum below the count, every broker's rule makes this a dead letter.
        command = self._copy(message, DELAY_LEVEL_DEAD_LETTER, tries - 1, added)
        return await self._is_stored(message, address, command)

    async def _delay(
        self,
        message: ReceivedMessage,
        address: str,
        outcome: int,
        deliver_time_ms: int,
        left_ms: int,
    ) -> bool:
        """Store a copy that is delivered at an exact time; False if the broker cannot.

        A delay counts by the broker's clock, since this machine's may be behind it.
        """
        if not self._instance.has_timers(address):
            return False
        command = self._copy(
            message,
            DELAY_LEVEL_BY_BROKER,
            self._max_reconsume_times,
            {},
            delay_ms=left_ms if is_delay(outcome) else None,
            deliver_time_ms=deliver_time_ms,
        )
        return await self._is_stored(message, address, command)

    async def _is_stored(
        self, message: ReceivedMessage, address: str, command: RemotingCommand
    ) -> bool:
        try:
            answer = await self._instance.io.request(address, command, RESEND_TIMEOUT_MS)
        except CometError as error:
            log.info("%s: %s", message.message_queue, error)
            return False
        if answer.code not in FLUSHED_CODES:
            log.info(
                "%s: a copy was refused with code %d %s",
                message.message_queue,
                answer.code,
                answer.remark,
            )
        return answer.code in FLUSHED_CODES

    def _copy(
        self,
        message: ReceivedMessage,
        delay_level: int,
        reconsume_times_max: int | None,
        added: Mapping[str, str],
        *,
        deliver_time_ms: int | None = None,
        delay_ms: int | None = None,
    ) -> RemotingCommand:
        """The request that sends a copy to the retry topic."""
        stored = message.stored
        properties = fallback_properties(
            stored.properties,
            topic=self._instance.options.namespace.wrap(message.topic),
            message_id=message.message_id,
            reconsume_times=stored.reconsume_times,
            max_reconsume_times=reconsume_times_max,
            delay_level=delay_level,
            deliver_time_ms=deliver_time_ms,
            delay_ms=delay_ms,
        )
        properties.update(added)
        allowed = properties.pop("MAX_RECONSUME_TIMES", None)
        header = SendMessageHeader(
            producer_group=CLIENT_INNER_PRODUCER,
            topic=retry_topic(self._group),
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=0,
            sys_flag=stored.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6),
            born_timestamp_ms=self._instance.env.clock.now_ms(),
            flag=stored.flag,
            reconsume_times=int(properties.pop("RECONSUME_TIME")),
            max_reconsume_times=None if allowed is None else int(allowed),
            properties=encode_properties_text(properties),
        )
        return RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header.to_ext(), stored.body)

    async def _resend(self, message: ReceivedMessage, delay_level: int) -> None:
        """Send a copy to the retry topic, as Java does when 36 fails."""
        topic = retry_topic(self._group)
        command = self._copy(
            message, delay_level, self._max_reconsume_times, properties_of(delay_level)
        )
        route = await self._instance.routes.find(topic)
        fault: CometError = NoRoute(f"no broker of {topic} has a master")
        for broker in route.broker_datas:
            if broker.master_address is None:
                continue
            try:
                answer = await self._instance.io.request(
                    broker.master_address, command, RESEND_TIMEOUT_MS
                )
            except CometError as error:
                fault = error
                continue
            if answer.code in FLUSHED_CODES:
                return
            fault = remote_error(answer.code, answer.remark)
        raise fault
