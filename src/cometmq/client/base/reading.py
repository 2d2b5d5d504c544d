"""Reading queues as an operator: any queue of a topic, between two offsets, without a trace.

Job: pull spans of queues as RocketMQ's tools do, also where the topic's permission forbids reading.
Must not: join a group, commit, or change anything.

A topic without read permission (the dead-letter topics of stores written by RocketMQ 4) refuses
pulls; its messages are then looked up one by one in the consume queue (321) and the log (33), which
brokers answer operators whatever the permission.
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
    """Reads queues of one cluster; ``io``, ``calls`` and ``routes`` are those of its client."""

    def __init__(self, io: Io, calls: BrokerCalls, routes: RouteBook) -> None:
        self.io = io
        self.calls = calls
        self.routes = routes

    async def queues(self, topic: str) -> list[MessageQueue]:
        """All queues of a topic, readable or not, in order; none for a topic nobody knows."""
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
        """The broker to ask about a queue that `queues` gave."""
        address = self.routes.any_address(queue.broker_name)
        if address is None:
            raise NoRoute(f"no address is known for the broker {queue.broker_name} of {queue}")
        return address

    async def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """First offset that still has its message, and the next one to be written."""
        address = self.address(queue)
        return (
            await self.calls.min_offset(address, queue),
            await self.calls.max_offset(address, queue),
        )

    async def read(
        self, queue: MessageQueue, first_offset: int, end_offset: int
    ) -> AsyncIterator[ReceivedMessage]:
        """Messages from ``first_offset`` up to, not including, ``end_offset``, in order.

        Those that retention removed meanwhile are left out.

        Raises:
            CometError: the broker does not answer, or refuses.
        """
        place = first_offset
        try:
            while place < end_offset:
                messages, place = await self._pull(queue, place)
                for message in messages:
                    if first_offset <= message.queue_offset < end_offset:
                        yield message
        except RemoteError as error:
            if error.code != ResponseCode.NO_PERMISSION:
                raise
            async for message in self._look_up(queue, place, end_offset):
                yield message

    async def _pull(self, queue: MessageQueue, place: int) -> tuple[list[ReceivedMessage], int]:
        header = PullMessageHeader(
            consumer_group=TOOLS_GROUP,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=place,
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
        following = PullResponseHeader.from_command(answer).next_begin_offset
        messages = split_messages(answer.body, queue) if answer.code == 0 else []
        # Retention was here, or a record is broken: the broker says where to go on.
        return messages, max(place + 1, following)

    async def _look_up(
        self, queue: MessageQueue, place: int, end_offset: int
    ) -> AsyncIterator[ReceivedMessage]:
        address = self.address(queue)
        while place < end_offset:
            header = QueryConsumeQueueHeader(
                queue.topic, queue.queue_id, place, min(PULL_COUNT, end_offset - place)
            )
            command = RemotingCommand.request(RequestCode.QUERY_CONSUME_QUEUE, header.to_ext())
            answer = await self.calls.ask(address, command)
            units = decode_consume_queue_view(answer.body).units if answer.body else None
            for unit in units or ():
                view = ViewMessageHeader(unit.physical_offset)
                command = RemotingCommand.request(RequestCode.VIEW_MESSAGE_BY_ID, view.to_ext())
                answer = await self.calls.ask(address, command)
                yield split_messages(answer.body, queue)[0]
            place += len(units or ()) or PULL_COUNT
