"""The requests that a client sends to brokers, each as one coroutine over `Io`.

They cover offsets, group membership and send-back, with typed arguments and results.  Asyncio and
synchronous clients share them: over a blocking `Io` none of them ever suspends (see `transport`).
"""

import logging
from typing import Final

from cometmq.client.base.namespace import Namespace
from cometmq.client.base.transport import Io
from cometmq.errors import RemoteError, ResponseCode, TopicNotExist, remote_error
from cometmq.model import MessageQueue, SubscriptionData, TopicConfig
from cometmq.model.offsets import ConsumerOffset
from cometmq.wire.body.admin import decode_consumer_offsets, decode_topic_config
from cometmq.wire.body.client import CheckClientConfigBody, ConsumerListBody
from cometmq.wire.command.codes import RequestCode, version_of
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.admin import TopicHeader
from cometmq.wire.header.header import Header
from cometmq.wire.header.headers import (
    ConsumerGroupHeader,
    ConsumerSendMsgBackHeader,
    GetMaxOffsetHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    TimestampResponseHeader,
    UpdateConsumerOffsetHeader,
)

__all__ = ["BrokerCalls"]

log = logging.getLogger("cometmq.client")
SEND_BACK_TIMEOUT_MS: Final = 5_000
FIRST_STRICT_VERSION: Final = version_of(5, 0, 0)
"""Brokers from this version on honour ``setZeroIfNotFound=false``; older ones ignore it."""


def _command(
    code: int, header: Header, broker_name: str | None = None, *, oneway: bool = False
) -> RemotingCommand:
    ext = header.to_ext()
    if broker_name is not None:
        ext["bname"] = broker_name
    return RemotingCommand.request(code, ext, oneway=oneway)


class BrokerCalls:
    """Sends requests to brokers; ``address`` is the ``host:port`` of the broker."""

    def __init__(self, io: Io, timeout_ms: int) -> None:
        self._io = io
        self._timeout_ms = timeout_ms

    @property
    def namespace(self) -> Namespace:
        """Translates the names in bodies."""
        return self._io.namespace

    @property
    def timeout_ms(self) -> int:
        """The time limit of one request."""
        return self._timeout_ms

    async def ask(self, address: str, command: RemotingCommand) -> RemotingCommand:
        """Send a request and return its answer.

        Raises:
            RemoteError: the answer's code is not 0.
        """
        answer = await self._io.request(address, command, self._timeout_ms)
        if answer.code != 0:
            raise remote_error(answer.code, answer.remark)
        return answer

    # -- offsets ----------------------------------------------------------------------------

    async def consumer_offset(
        self, address: str, group: str, queue: MessageQueue
    ) -> ConsumerOffset | None:
        """The group's stored offset, or None if the broker has none."""
        # Without the last field a broker answers 0 for a new group while offset 0 is in memory.
        header = QueryConsumerOffsetHeader(group, queue.topic, queue.queue_id, False)
        command = _command(RequestCode.QUERY_CONSUMER_OFFSET, header, queue.broker_name)
        answer = await self._io.request(address, command, self._timeout_ms)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        if answer.code != 0:
            raise remote_error(answer.code, answer.remark)
        consumer_offset = ConsumerOffset(OffsetResponseHeader.from_command(answer).queue_offset)
        if consumer_offset == 0 and 0 < answer.version < FIRST_STRICT_VERSION:
            return await self._stored_zero(address, group, queue)
        return consumer_offset

    async def _stored_zero(
        self, address: str, group: str, queue: MessageQueue
    ) -> ConsumerOffset | None:
        """What the answer 0 of a 4.x broker means: 0 if the group has stored it, else None.

        Only the table of all offsets tells the two apart.  Where the broker refuses to show it,
        the answer is 0: the group then repeats messages and skips none.
        """
        try:
            answer = await self.ask(
                address, RemotingCommand.request(RequestCode.GET_ALL_CONSUMER_OFFSET)
            )
        except RemoteError as error:
            log.warning("%s does not say whether %s has stored offsets: %s", address, group, error)
            return ConsumerOffset(0)
        table = decode_consumer_offsets(answer.body).offsets
        wrap = self.namespace.wrap
        return table.get(f"{wrap(queue.topic)}@{wrap(group)}", {}).get(queue.queue_id)

    async def commit(
        self,
        address: str,
        group: str,
        queue: MessageQueue,
        consumer_offset: ConsumerOffset,
        *,
        wait: bool,
    ) -> None:
        """Store the group's offset; with ``wait`` the broker's answer is awaited and checked."""
        header = UpdateConsumerOffsetHeader(group, queue.topic, queue.queue_id, consumer_offset)
        command = _command(
            RequestCode.UPDATE_CONSUMER_OFFSET, header, queue.broker_name, oneway=not wait
        )
        if wait:
            await self.ask(address, command)
        else:
            await self._io.oneway(address, command)

    async def topic_config(self, address: str, topic: str) -> TopicConfig | None:
        """The topic's settings, or None if the broker does not have the topic."""
        ext = TopicHeader(topic).to_ext()
        command = RemotingCommand.request(RequestCode.GET_TOPIC_CONFIG, ext)
        try:
            return decode_topic_config((await self.ask(address, command)).body)
        except TopicNotExist:
            return None

    async def max_offset(self, address: str, queue: MessageQueue) -> int:
        """The next offset to be written."""
        header = GetMaxOffsetHeader(queue.topic, queue.queue_id)
        command = _command(RequestCode.GET_MAX_OFFSET, header, queue.broker_name)
        return OffsetResponseHeader.from_command(await self.ask(address, command)).queue_offset

    async def min_offset(self, address: str, queue: MessageQueue) -> int:
        """The smallest offset that still has its message."""
        header = QueueHeader(queue.topic, queue.queue_id)
        command = _command(RequestCode.GET_MIN_OFFSET, header, queue.broker_name)
        return OffsetResponseHeader.from_command(await self.ask(address, command)).queue_offset

    async def search_offset(
        self, address: str, queue: MessageQueue, timestamp_ms: int, boundary: str = "LOWER"
    ) -> int:
        """The first offset stored at or after a time (LOWER), or the last at it (UPPER)."""
        header = SearchOffsetHeader(queue.topic, queue.queue_id, timestamp_ms, boundary)
        command = _command(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header, queue.broker_name)
        return OffsetResponseHeader.from_command(await self.ask(address, command)).queue_offset

    async def earliest_store_time(self, address: str, queue: MessageQueue) -> int:
        """When the oldest message of the queue was stored, ms; -1 for an empty queue."""
        header = QueueHeader(queue.topic, queue.queue_id)
        command = _command(RequestCode.GET_EARLIEST_MSG_STORETIME, header, queue.broker_name)
        answer = await self.ask(address, command)
        return TimestampResponseHeader.from_command(answer).timestamp_ms

    # -- groups -----------------------------------------------------------------------------

    async def consumer_ids(self, address: str, group: str) -> list[str]:
        """Sorted client ids of a group's members; empty when the broker knows none."""
        command = _command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroupHeader(group))
        answer = await self._io.request(address, command, self._timeout_ms)
        if answer.code == ResponseCode.SYSTEM_ERROR:
            return []
        if answer.code != 0:
            raise remote_error(answer.code, answer.remark)
        return sorted(ConsumerListBody.decode(answer.body).client_ids) if answer.body else []

    async def check_subscription(
        self, address: str, client_id: str, group: str, subscription: SubscriptionData
    ) -> None:
        """Have the broker compile an SQL92 expression.

        Raises:
            RemoteError: the expression is wrong; the text says where.
        """
        body = CheckClientConfigBody(
            client_id, self.namespace.wrap(group), self.namespace.wrap_subscription(subscription)
        ).encode()
        await self.ask(address, RemotingCommand.request(RequestCode.CHECK_CLIENT_CONFIG, {}, body))

    async def send_back(
        self,
        address: str,
        broker_name: str,
        group: str,
        *,
        physical_offset: int,
        delay_level: int,
        message_id: str,
        topic: str,
        max_reconsume_times: int | None,
    ) -> None:
        """Give a message back for another try; level -1 makes it a dead letter.

        With ``max_reconsume_times`` None the group's setting at the broker applies.
        """
        header = ConsumerSendMsgBackHeader(
            physical_offset, group, delay_level, message_id, topic, False, max_reconsume_times
        )
        command = _command(RequestCode.CONSUMER_SEND_MSG_BACK, header, broker_name)
        answer = await self._io.request(address, command, SEND_BACK_TIMEOUT_MS)
        if answer.code != 0:
            raise remote_error(answer.code, answer.remark)
