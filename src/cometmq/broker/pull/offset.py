"""Offsets: the consumer offsets of groups, and the bounds of queues.

Serves QUERY/UPDATE_CONSUMER_OFFSET, GET_MAX/MIN_OFFSET, SEARCH_OFFSET_BY_TIMESTAMP and
GET_EARLIEST_MSG_STORETIME.  The last two read old messages, which may be cold, so a worker does it.

QUERY_CONSUMER_OFFSET answers 0 or 22 and nothing else: clients of 4.x take any other code as "no
offset" and may jump to the end of the queue.
"""

from __future__ import annotations

import os
from typing import Final

from cometmq.broker.base.state import BrokerState, answer, in_worker
from cometmq.broker.pull.acknowledged import Acknowledgements
from cometmq.broker.pull.late_commits import is_late
from cometmq.errors import CometError, ResponseCode
from cometmq.model.names import LMQ_PREFIX
from cometmq.model.offsets import ConsumerOffset
from cometmq.net.server import ServerConnection
from cometmq.store.base.results import GetResult, GetStatus, TimeBoundary
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.headers import (
    GetMaxOffsetHeader,
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)

__all__ = ["OffsetProcessor"]

_IN_MEMORY_PERCENT: Final = 40
"""RocketMQ's accessMessageInMemoryMaxRatio."""


class OffsetProcessor:
    """The processors of codes 14, 15, 29, 30, 31 and 32."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self.acknowledgements = Acknowledgements()

    def query(self, request: RemotingCommand, connection: ServerConnection, now_ms: int) -> bytes:
        """Serve QUERY_CONSUMER_OFFSET (14); a member is answered its share's offset."""
        header = QueryConsumerOffsetHeader.from_command(request)
        shares, group = self._state.shares, header.consumer_group
        part = shares.part(group, header.topic, connection, now_ms)
        offset = shares.offset_of(part, group, header.topic, header.queue_id)
        if offset is not None and offset >= 0:
            return answer(request, ext={"offset": str(offset)})
        if header.set_zero_if_not_found is False:
            return answer(
                request,
                ResponseCode.QUERY_NOT_FOUND,
                "Not found, do not set to zero, maybe this group boot first",
            )
        if self._starts_at_zero(header.topic, header.queue_id):
            return answer(request, ext={"offset": "0"})
        return answer(
            request,
            ResponseCode.QUERY_NOT_FOUND,
            "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
        )

    def _starts_at_zero(self, topic: str, queue_id: int) -> bool:
        """Say whether a new group begins a young queue at 0, whatever its ConsumeFromWhere.

        A queue is young while offset 0 is still there and in memory: clients rely on seeing all
        messages with a group that starts soon after the first of them.  An empty queue is young
        too.  Otherwise a client would ask for its end next, and skip a message that is stored in
        between.
        """
        config = self._state.topics.get(topic)
        if config is None:
            return False
        store = self._state.store
        if 0 <= queue_id < config.read_queue_count and not store.max_queue_offset(topic, queue_id):
            return True
        try:
            first = store.get(topic, queue_id, 0, 1)
        except CometError:
            return False
        if isinstance(first, GetResult):
            return first.status is GetStatus.FOUND
        # Offset 0 is there, but reading it could block. Java assumes that this share of the
        # machine's memory holds the newest messages; so do we where we cannot tell.
        span_bytes = store.max_physical_offset - store.min_physical_offset
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return span_bytes * 100 <= memory_bytes * _IN_MEMORY_PERCENT

    def update(self, request: RemotingCommand, connection: ServerConnection, now_ms: int) -> bytes:
        """Serve UPDATE_CONSUMER_OFFSET (15)."""
        header = UpdateConsumerOffsetHeader.from_command(request)
        state = self._state
        group = header.consumer_group
        if group not in state.groups:  # unlike a pull, a commit creates no group
            return answer(
                request,
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"Group {group} not exist!",
            )
        if header.topic not in state.topics and not header.topic.startswith(LMQ_PREFIX):
            return answer(request, ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} not exist!")
        if header.queue_id < 0:
            return answer(
                request,
                ResponseCode.INVALID_PARAMETER,
                f"queueId {header.queue_id} must not be negative",
            )
        if header.commit_offset < 0:
            # Go commits -1 for a queue it has read nothing from. Java stores it and then treats
            # it as "no offset"; keeping the offset that is there loses nothing.
            return answer(request)
        key, consumer_offset = (header.topic, header.queue_id), ConsumerOffset(header.commit_offset)
        part = state.shares.part(group, header.topic, connection, now_ms)
        table, reader = state.shares.table_of(part, group)
        if not table.may_commit(reader, *key, consumer_offset, connection.peer, now_ms):
            return answer(request, remark="Offset has been previously reset")
        if is_late(state, part, group, *key, consumer_offset, connection, now_ms):
            return answer(request, remark="The queue has another owner since")
        online = state.consumers.get(group)
        member = None if online is None else online.members.get(connection)
        if member is not None:
            self.acknowledgements.note(reader, *key, consumer_offset, member.client_id, now_ms)
        if part is None:
            state.shares.commit_all(group, *key, consumer_offset, now_ms)
        else:
            state.shares.commit(part, group, *key, consumer_offset, now_ms)
        return answer(request)

    def max_offset(self, request: RemotingCommand, _: ServerConnection, now_ms: int) -> bytes:
        """Serve GET_MAX_OFFSET (30): the next offset a reader will see."""
        header = GetMaxOffsetHeader.from_command(request)
        offset = self._state.store.max_queue_offset(header.topic, header.queue_id)
        return answer(request, ext={"offset": str(offset)})

    def min_offset(self, request: RemotingCommand, _: ServerConnection, now_ms: int) -> bytes:
        """Serve GET_MIN_OFFSET (31)."""
        header = QueueHeader.from_command(request)
        offset = self._state.store.min_queue_offset(header.topic, header.queue_id)
        return answer(request, ext={"offset": str(offset)})

    def earliest_time(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> None:
        """Serve GET_EARLIEST_MSG_STORETIME (32); -1 for an empty queue."""
        header = QueueHeader.from_command(request)
        store = self._state.store
        in_worker(
            self._state,
            request,
            connection,
            lambda: store.earliest_store_time(header.topic, header.queue_id),
            lambda timestamp: answer(request, ext={"timestamp": str(timestamp)}),
        )

    def search(self, request: RemotingCommand, connection: ServerConnection, now_ms: int) -> None:
        """Serve SEARCH_OFFSET_BY_TIMESTAMP (29)."""
        header = SearchOffsetHeader.from_command(request)
        is_upper = header.boundary_type.upper() == "UPPER"
        boundary = TimeBoundary.UPPER if is_upper else TimeBoundary.LOWER
        store = self._state.store
        in_worker(
            self._state,
            request,
            connection,
            lambda: store.queue_offset_by_time(
                header.topic, header.queue_id, header.timestamp_ms, boundary
            ),
            lambda offset: answer(request, ext={"offset": str(offset)}),
        )
