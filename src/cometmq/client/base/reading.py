"""Reads queues as an operator: any queue of a topic, between two offsets, without joining a group.

It pulls as RocketMQ's tools do, and commits and changes nothing.  A topic without read permission,
such as a dead-letter topic in a store of RocketMQ 4, refuses pulls.  Its messages are read one by
one through the consume queue (code 321) and the commit log (code 33), which brokers serve to
operators whatever the permission.
"""

from collections.abc import AsyncIterator
from typing import Final

from cometmq.client.base.calls import BrokerCalls
from cometmq.client.base.routes import RouteBook
from cometmq.client.base.transport import Io
from cometmq.client.message.message import ReceivedMessage, split_messages
from cometmq.errors import NoRoute, RemoteError, ResponseCode, remote_error
from cometmq.model import MessageQueue
from cometmq.model.names import TOOLS_GROUP
from cometmq.wire.body.stats import decode_consume_queue_view
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.admin import QueryConsumeQueueHeader
from cometmq.wire.header.headers import PullMessageHeader, PullResponseHeader, ViewMessageHeader

__all__ = ["QueueReader"]

PULL_COUNT: Final = 32
_SUBSCRIPTION_FLAG: Final = 4
_MOVE_ON: Final = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


class QueueReader:
    """Reads queues of one cluster over the connections of its client."""

    def __init__(self, io: Io, calls: BrokerCalls, routes: RouteBook) -> None:
        self.io = io
        self.calls = calls
        self.routes = routes

    async def queues(self, topic: str) -> list[MessageQueue]:
        """All queues of a topic, readable or not, in order; none if the topic does not exist."""
        self.routes.forget(topic)
        try:
            route = await self.routes.find(topic)
        except NoRoute:
            return []
        return sorted(
            MessageQueue(topic, data.broker_name, queue_id)
            for data in route.queue_datas
            for queue_id in range(max(data.read_queue_count, data.write_queue_count))
            if self.routes.any_address(data.broker_name) is not None
        )

    def address(self, queue: MessageQueue) -> str:
        """The address of a queue's broker.

        Raises:
            NoRoute: no address is known.
        """
        address = self.routes.any_address(queue.broker_name)
        if address is None:
            raise NoRoute(f"no address is known for the broker {queue.broker_name} of {queue}")
        return address

    async def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """The first offset that still has its message, and the next one to be written."""
        address = self.address(queue)
        return (
            await self.calls.min_offset(address, queue),
            await self.calls.max_offset(address, queue),
        )

    async def read(
        self, queue: MessageQueue, first_offset: int, end_offset: int
    ) -> AsyncIterator[ReceivedMessage]:
        """Messages from ``first_offset`` up to, not including, ``end_offset``, in order.

        Messages that retention has removed are skipped.

        Raises:
            CometError: the broker does not answer, or refuses.
        """
        queue_offset = first_offset
        try:
            while queue_offset < end_offset:
                messages, queue_offset = await self._pull(queue, queue_offset)
                for message in messages:
                    if first_offset <= message.queue_offset < end_offset:
                        yield message
        except RemoteError as error:
            if error.code != ResponseCode.NO_PERMISSION:
                raise
            async for message in self._view_one_by_one(queue, queue_offset, end_offset):
                yield message

    async def _pull(
        self, queue: MessageQueue, queue_offset: int
    ) -> tuple[list[ReceivedMessage], int]:
        header = PullMessageHeader(
            consumer_group=TOOLS_GROUP,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=queue_offset,
            max_msg_nums=PULL_COUNT,
            sys_flag=_SUBSCRIPTION_FLAG,
            commit_offset=0,
            suspend_timeout_ms=0,
            subscription="*",
            expression_type="TAG",
        )
        command = RemotingCommand.request(RequestCode.PULL_MESSAGE, header.to_ext())
        answer = await self.io.request(self.address(queue), command, self.calls.timeout_ms)
        if answer.code not in (0, *_MOVE_ON):
            raise remote_error(answer.code, answer.remark)
        next_offset = PullResponseHeader.from_command(answer).next_begin_offset
        messages = split_messages(answer.body, queue) if answer.code == 0 else []
        # After retention or a broken record the broker says where to continue.
        return messages, max(queue_offset + 1, next_offset)

    async def _view_one_by_one(
        self, queue: MessageQueue, queue_offset: int, end_offset: int
    ) -> AsyncIterator[ReceivedMessage]:
        address = self.address(queue)
        while queue_offset < end_offset:
            header = QueryConsumeQueueHeader(
                queue.topic,
                queue.queue_id,
                queue_offset,
                min(PULL_COUNT, end_offset - queue_offset),
            )
            command = RemotingCommand.request(RequestCode.QUERY_CONSUME_QUEUE, header.to_ext())
            answer = await self.calls.ask(address, command)
            units = decode_consume_queue_view(answer.body).units if answer.body else None
            for unit in units or ():
                view = ViewMessageHeader(unit.physical_offset)
                command = RemotingCommand.request(RequestCode.VIEW_MESSAGE_BY_ID, view.to_ext())
                answer = await self.calls.ask(address, command)
                yield split_messages(answer.body, queue)[0]
            queue_offset += len(units or ()) or PULL_COUNT
