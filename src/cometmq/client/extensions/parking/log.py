"""The parking topic of a consumer group at one broker: created, appended to and read.

Consumers and an operator's commands share this.  `cometmq.core.extensions.parking` defines what the
records mean.
"""

import logging
from collections.abc import Mapping
from typing import Final

from cometmq.client.base.reading import QueueReader
from cometmq.client.message.message import ReceivedMessage, split_messages
from cometmq.codec.java_properties import parse_properties
from cometmq.codec.properties import encode_properties_text
from cometmq.core.extensions.parking import (
    ParkedMessage,
    ParkingLog,
    ParkKind,
    ParkRecord,
    move_properties,
    moved_properties,
    order_properties,
    record_of,
)
from cometmq.errors import CodecError, NoRoute, RemoteError, ResponseCode, remote_error
from cometmq.model import MessageQueue
from cometmq.model.flags import COMPRESSED, COMPRESSION_MASK, PERM_READ, PERM_WRITE
from cometmq.model.names import CLIENT_INNER_PRODUCER, DEFAULT_TOPIC, park_topic
from cometmq.model.offsets import ConsumerOffset
from cometmq.net.env import Clock
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.admin import TopicHeader
from cometmq.wire.header.headers import (
    CreateTopicHeader,
    PullMessageHeader,
    PullResponseHeader,
    SendMessageHeader,
    SendResponseHeader,
)

__all__ = ["ParkingQueue"]

log = logging.getLogger("cometmq.client")

PULL_COUNT: Final = 32
RETENTION_HOURS: Final = 72
"""The default of ``fileReservedTime``."""
_SUBSCRIBED_AND_SUSPEND: Final = 4 | 2
_MARGIN_MS: Final = 10_000
"""How much later than its time a held pull may be answered."""
_MOVE_ON: Final = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


class ParkingQueue:
    """The one queue of a group's parking topic at one broker."""

    def __init__(self, reader: QueueReader, group: str, broker_name: str, clock: Clock) -> None:
        self.reader = reader
        self.group = group
        self.queue = MessageQueue(park_topic(group), broker_name, 0)
        self._clock = clock

    def _address(self) -> str:
        address = self.reader.routes.address(self.queue.broker_name)
        if address is None:
            raise NoRoute(f"the master of {self.queue.broker_name} is not known")
        return address

    async def make(self) -> None:
        """Create the topic at the broker, unless it exists."""
        topic = self.queue.topic
        asked = RemotingCommand.request(RequestCode.GET_TOPIC_CONFIG, TopicHeader(topic).to_ext())
        try:
            await self.reader.calls.ask(self._address(), asked)
        except RemoteError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
        else:
            return
        header = CreateTopicHeader(
            topic, DEFAULT_TOPIC, 1, 1, PERM_READ | PERM_WRITE, order=False, topic_sys_flag=0
        )
        made = RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())
        await self.reader.calls.ask(self._address(), made)

    async def start_offset(self) -> int:
        """The offset at which reading may begin; see `ParkingLog.commit_offset`."""
        calls, address = self.reader.calls, self._address()
        stored = await calls.consumer_offset(address, self.group, self.queue)
        return max(stored or 0, await calls.min_offset(address, self.queue))

    async def retention_ms(self) -> int:
        """How long the broker keeps messages, unless its disk fills up earlier."""
        command = RemotingCommand.request(RequestCode.GET_BROKER_CONFIG)
        try:
            answer = await self.reader.calls.ask(self._address(), command)
            hours = int(parse_properties(answer.body.decode()).get("fileReservedTime", ""))
        except (RemoteError, UnicodeDecodeError, ValueError):
            hours = RETENTION_HOURS  # this client may not read the configuration
        return max(1, hours) * 3_600_000

    async def end_offset(self) -> int:
        """The next offset to be written."""
        return await self.reader.calls.max_offset(self._address(), self.queue)

    async def commit(self, park_offset: int) -> None:
        """Store the offset at which other readers may begin."""
        await self.reader.calls.commit(
            self._address(), self.group, self.queue, ConsumerOffset(park_offset), wait=False
        )

    # -- reading ----------------------------------------------------------------------------

    async def state(self) -> ParkingLog:
        """Read the whole log, and return its state."""
        parking_log = ParkingLog(await self.start_offset())
        end = await self.end_offset()
        async for message in self.reader.read(self.queue, parking_log.next_offset, end):
            record = read_record(message)
            if record is not None:
                parking_log.apply(record)
        parking_log.skip_to(end)
        return parking_log

    async def pull(
        self, park_offset: int, suspend_ms: int
    ) -> tuple[list[ReceivedMessage], int, bool]:
        """Wait for records; returns messages, next offset, whether the broker moved the offset."""
        header = PullMessageHeader(
            consumer_group=self.group,
            topic=self.queue.topic,
            queue_id=self.queue.queue_id,
            queue_offset=park_offset,
            max_msg_nums=PULL_COUNT,
            sys_flag=_SUBSCRIBED_AND_SUSPEND,
            commit_offset=0,
            suspend_timeout_ms=suspend_ms,
            subscription="*",
            expression_type="TAG",
        )
        command = RemotingCommand.request(RequestCode.PULL_MESSAGE, header.to_ext())
        answer = await self.reader.io.request(self._address(), command, suspend_ms + _MARGIN_MS)
        if answer.code not in (0, *_MOVE_ON):
            raise remote_error(answer.code, answer.remark)
        following = PullResponseHeader.from_command(answer).next_begin_offset
        if answer.code != 0:
            return [], following, answer.code == ResponseCode.PULL_OFFSET_MOVED
        return split_messages(answer.body, self.queue), following, False

    # -- writing ----------------------------------------------------------------------------

    async def append_copy(self, message: ReceivedMessage, properties: Mapping[str, str]) -> int:
        """Append a copy of a message as durably as a send, and return its offset.

        Raises:
            CometError: the copy was not stored, or the outcome is unknown.
        """
        stored = message.stored
        sys_flag = stored.sys_flag & (COMPRESSED | COMPRESSION_MASK)
        return await self._append(
            stored.body, properties, sys_flag, stored.flag, stored.reconsume_times
        )

    async def append_order(self, kind: ParkKind, lane: str, upto_offset: int | None = None) -> int:
        """Append an order, and return its offset."""
        properties = order_properties(kind, lane, upto_offset)
        return await self._append(f"{kind.value} {lane}".encode(), properties, 0, 0, 0)

    async def append_moved(
        self, lane: str, parked: ParkedMessage, message: ReceivedMessage, move: str
    ) -> int:
        """Append a `moved` copy of a parked copy, and return its offset."""
        properties = moved_properties(
            message.properties, lane=lane, topic=message.topic, message=parked, move=move
        )
        return await self.append_copy(message, properties)

    async def append_move(self, lane: str, move: str, count: int) -> int:
        """End a move of ``count`` copies; a count of 0 abandons the move."""
        properties = move_properties(lane, move, count)
        return await self._append(f"move {lane}".encode(), properties, 0, 0, 0)

    async def _append(
        self, body: bytes, properties: Mapping[str, str], sys_flag: int, flag: int, tries: int
    ) -> int:
        header = SendMessageHeader(
            producer_group=CLIENT_INNER_PRODUCER,
            topic=self.queue.topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=1,
            queue_id=self.queue.queue_id,
            sys_flag=sys_flag,
            born_timestamp_ms=self._clock.now_ms(),
            flag=flag,
            properties=encode_properties_text(dict(properties)),
            reconsume_times=tries,
        )
        command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header.to_ext(), body)
        answer = await self.reader.io.request(
            self._address(), command, self.reader.calls.timeout_ms
        )
        if answer.code != 0:
            # This includes "stored, but not flushed": a copy counts only when it is durable.
            raise remote_error(answer.code, answer.remark)
        return SendResponseHeader.from_command(answer).queue_offset


def read_record(message: ReceivedMessage) -> ParkRecord | None:
    """The record of a message in a parking topic; None, with a log line, if it is not one."""
    try:
        return record_of(
            message.queue_offset,
            properties=message.properties,
            message_id=message.message_id,
            store_ms=message.store_timestamp_ms,
            body_bytes=len(message.body),
        )
    except CodecError as error:
        log.warning("a record of %s is skipped: %s", message.message_queue, error)
        return None
