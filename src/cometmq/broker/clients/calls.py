"""Calls to consumers on behalf of an operator: show their state, consume one message, move offsets.

The named consumer answers GET_CONSUMER_RUNNING_INFO (307) and CONSUME_MESSAGE_DIRECTLY (309); all
members of a group answer INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223).
INVOKE_BROKER_TO_RESET_OFFSET (222) moves a group's offsets.  The operator gets an answer when all
consumers have answered or the timeout is over: C++ clients know few of these codes and stay silent.

Source: AdminBrokerProcessor and Broker2Client of RocketMQ 5.4, captures of mqadmin.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from cometmq.broker.base.state import BrokerState, Refusal, answer, in_worker, refusing
from cometmq.codec.ids import decode_offset_message_id
from cometmq.core.group.consumer_group import ConsumerGroup
from cometmq.errors import CodecError, CometError, ResponseCode
from cometmq.model import MessageQueue
from cometmq.model.offsets import ConsumerOffset
from cometmq.model.topic import TopicConfig
from cometmq.net.server import Handler, ServerConnection
from cometmq.store.message_store import MessageStore
from cometmq.wire.body.client import ConsumerStatusBody, ResetOffsetBody
from cometmq.wire.command.codes import RequestCode as Code
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.headers import (
    ConsumeDirectlyHeader,
    ResetOffsetHeader,
    RunningInfoHeader,
    TopicGroupHeader,
)

__all__ = ["ClientCallProcessor"]

log = logging.getLogger("cometmq.broker")

CALL_TIMEOUT_MS: Final = 10_000
STATUS_TIMEOUT_MS: Final = 5_000
_LIST_READERS: Final = frozenset({"CPP", "PYTHON"})
"""Clients that read the offsets of a reset from a list."""
_QUEUE_END: Final = -1
"""The timestamp that stands for the end of each queue."""


class ClientCallProcessor:
    """The processors of codes 222, 223, 307 and 309.

    Args:
        offset_moved: called with group, topic and queue id after an offset was moved here.
    """

    def __init__(self, state: BrokerState, offset_moved: Callable[[str, str, int], None]) -> None:
        self._state = state
        self._offset_moved = offset_moved

    def handlers(self) -> dict[int, Handler]:
        """Map each code to its processor."""
        return {
            Code.GET_CONSUMER_RUNNING_INFO: refusing(self.running_info),
            Code.CONSUME_MESSAGE_DIRECTLY: refusing(self.consume_directly),
            Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: refusing(self.status),
            Code.INVOKE_BROKER_TO_RESET_OFFSET: refusing(self.reset),
        }

    # -- calls to one consumer --------------------------------------------------------------

    def running_info(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> None:
        """Serve GET_CONSUMER_RUNNING_INFO (307): relay the consumer's answer.

        Raises:
            Refusal: the consumer is not online.
        """
        header = RunningInfoHeader.from_command(request)
        consumer = self._consumer(header.consumer_group, header.client_id)
        command = RemotingCommand.request(request.code, dict(request.ext_fields), request.body)
        self._relay(request, connection, consumer, command, header.consumer_group, header.client_id)

    def consume_directly(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> None:
        """Serve CONSUME_MESSAGE_DIRECTLY (309): send the message, relay the consumer's answer.

        Raises:
            Refusal: the message id is malformed, or the consumer is not online.
        """
        header = ConsumeDirectlyHeader.from_command(request)
        group, client_id = header.consumer_group, header.client_id
        try:
            physical_offset = decode_offset_message_id(header.msg_id or "")[1]
        except CodecError as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"msgId: {error}") from error
        self._consumer(group, client_id)
        store = self._state.store

        def read() -> bytes | None:
            record = store.message_at(physical_offset)
            return None if record is None else bytes(record)

        def finish(message: bytes | None) -> bytes | None:
            if message is None:
                return answer(
                    request,
                    ResponseCode.SYSTEM_ERROR,
                    f"can not find message by the offset, {physical_offset}",
                )
            try:
                # The consumer may have left while the message was read.
                consumer = self._consumer(group, client_id)
            except Refusal as refusal:
                return answer(request, refusal.code, refusal.remark)
            ext = {**request.ext_fields, **self._flags(group, header.topic)}
            command = RemotingCommand.request(request.code, ext, message)
            self._relay(request, connection, consumer, command, group, client_id)
            return None

        in_worker(self._state, request, connection, read, finish)

    def _flags(self, group: str, topic: str | None) -> dict[str, str]:
        """Give the fields that the broker adds to a 309."""
        flags = {"brokerName": self._state.config.broker_name}
        config = self._state.topics.get(topic) if topic else None
        if config is not None:
            flags["topicSysFlag"] = str(config.topic_sys_flag)
        settings = self._state.groups.get(group)
        if settings is not None:
            flags["groupSysFlag"] = str(settings.group_sys_flag)
        return flags

    def _consumer(self, group: str, client_id: str | None) -> ServerConnection:
        online = self._state.consumers.get(group)
        consumer = online.find_client(client_id) if online is not None and client_id else None
        if consumer is None:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online"
            )
        return consumer

    def _relay(
        self,
        request: RemotingCommand,
        connection: ServerConnection,
        consumer: ServerConnection,
        command: RemotingCommand,
        group: str,
        client_id: str | None,
    ) -> None:
        def answered(response: RemotingCommand | None) -> None:
            if request.is_oneway:
                return
            if response is not None:
                frame = answer(
                    request, response.code, response.remark, response.ext_fields, response.body
                )
            elif consumer.is_closed:
                frame = answer(
                    request,
                    ResponseCode.SYSTEM_ERROR,
                    f"invoke consumer <{group}> <{client_id}> Exception: it has disconnected",
                )
            else:
                frame = answer(
                    request,
                    ResponseCode.CONSUME_MSG_TIMEOUT,
                    f"consumer <{group}> <{client_id}> Timeout: no answer within "
                    f"{CALL_TIMEOUT_MS} ms",
                )
            connection.send(frame)

        consumer.call(command, CALL_TIMEOUT_MS, answered)

    # -- calls to a whole group -------------------------------------------------------------

    def status(self, request: RemotingCommand, connection: ServerConnection, now_ms: int) -> None:
        """Serve INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223): the offsets that each member has.

        Raises:
            Refusal: no consumer of the group is online.
        """
        header = TopicGroupHeader.from_command(request)
        online = self._state.consumers.get(header.group)
        if online is None:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"No Any Consumer online in the consumer group: [{header.group}]",
            )
        asked = {
            member.client_id: key
            for key, member in online.members.items()
            if not header.client_addr or member.client_id == header.client_addr
        }
        tables: dict[str, dict[MessageQueue, int]] = {}
        waiting = set(asked)

        def finish() -> None:
            if not request.is_oneway:
                body = ConsumerStatusBody(consumer_table=tables).encode()
                connection.send(answer(request, body=body))

        def answered(client_id: str, response: RemotingCommand | None) -> None:
            waiting.discard(client_id)
            table = _table_of(client_id, response)
            if table is not None:
                tables[client_id] = table
            if not waiting:
                finish()

        if not asked:
            finish()
        for client_id, member in asked.items():
            ext = {"topic": header.topic, "group": header.group}
            member.call(
                RemotingCommand.request(Code.GET_CONSUMER_STATUS_FROM_CLIENT, ext),
                STATUS_TIMEOUT_MS,
                partial(answered, client_id),
            )

    # -- reset of offsets -------------------------------------------------------------------

    def reset(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes | None:
        """Serve INVOKE_BROKER_TO_RESET_OFFSET (222), as 5.x or as 4.x does it.

        Raises:
            Refusal: the topic, the group or the queue does not exist, or has no such offset.
        """
        state = self._state
        header = ResetOffsetHeader.from_command(request)
        topic = state.topics.get(header.topic)
        if topic is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} does not exist")
        is_server_side = state.config.use_server_side_reset_offset
        queue_ids = (
            self._queues_here(header, topic)
            if is_server_side
            else self._consumed_queues(header, topic)
        )

        def finish(targets: dict[int, int]) -> bytes:
            """Move the group, on the loop."""
            if is_server_side:
                for queue_id, target in targets.items():
                    consumer_offset = ConsumerOffset(target)
                    state.offsets.reset(
                        header.group, topic.topic, queue_id, consumer_offset, now_ms
                    )
                    state.skipped.forget_from(header.group, topic.topic, queue_id, target)
                    self._offset_moved(header.group, topic.topic, queue_id)
            else:
                targets = self._tell_consumers(header, topic, targets)
            log.info("group %s in %s is reset to %s", header.group, header.topic, targets)
            return answer(request, body=self._table(header.topic, targets).encode())

        names_queue = is_server_side and header.queue_id is not None and header.queue_id >= 0
        if names_queue and header.queue_offset is not None and header.queue_offset != -1:
            return finish(self._checked(topic, queue_ids[0], header.queue_offset))
        in_worker(
            state,
            request,
            connection,
            partial(_by_time, state.store, topic.topic, queue_ids, header.timestamp_ms),
            _refusing_late(request, finish),
        )
        return None

    def _queues_here(self, header: ResetOffsetHeader, topic: TopicConfig) -> list[int]:
        """List the queues whose stored offsets are to move."""
        if header.group not in self._state.groups:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.group} does not exist"
            )
        queue_ids = list(range(topic.read_queue_count))
        if header.queue_id is not None and header.queue_id >= 0:
            if header.queue_id not in queue_ids:
                raise Refusal(
                    ResponseCode.SYSTEM_ERROR,
                    f"topic {topic.topic} has {topic.read_queue_count} queues to read, "
                    f"queueId {header.queue_id} is none of them",
                )
            queue_ids = [header.queue_id]
        if not queue_ids:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
        return queue_ids

    def _checked(self, topic: TopicConfig, queue_id: int, target: int) -> dict[int, int]:
        """Give one queue's new offset if it lies in the queue."""
        least = self._state.store.min_queue_offset(topic.topic, queue_id)
        most = self._state.store.max_queue_offset(topic.topic, queue_id)
        if not least <= target <= most + 1:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"Target offset {target} not in consume queue range [{least}-{most}]",
            )
        return {queue_id: target}

    def _consumed_queues(self, header: ResetOffsetHeader, topic: TopicConfig) -> list[int]:
        """List the topic's queues if the group has an offset in each, and members."""
        queue_ids = list(range(topic.write_queue_count))
        for queue_id in queue_ids:
            if self._state.offsets.query(header.group, topic.topic, queue_id) is None:
                raise Refusal(
                    ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist"
                )
        self._members(header)
        return queue_ids

    def _members(self, header: ResetOffsetHeader) -> ConsumerGroup[ServerConnection]:
        online = self._state.consumers.get(header.group)
        if online is None:
            raise Refusal(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {header.group} "
                f"Topic: {header.topic} Timestamp: {header.timestamp_ms}",
            )
        return online

    def _table(self, topic: str, targets: Mapping[int, int]) -> ResetOffsetBody:
        broker_name = self._state.config.broker_name
        return ResetOffsetBody(
            {MessageQueue(topic, broker_name, number): target for number, target in targets.items()}
        )

    def _tell_consumers(
        self, header: ResetOffsetHeader, topic: TopicConfig, by_time: Mapping[int, int]
    ) -> dict[int, int]:
        """Push RESET_CONSUMER_CLIENT_OFFSET (220), its body in the form each member reads.

        The members move and commit their new offsets; the broker moves none itself.
        """
        online = self._members(header)
        targets = dict(by_time)
        if not header.is_force:
            for queue_id, target in by_time.items():
                stored = self._state.offsets.query(header.group, topic.topic, queue_id)
                targets[queue_id] = target if stored is None else min(target, stored)
        body = self._table(header.topic, targets)
        # `isForce` was applied above; a client takes the offsets as they are.
        ext = {
            "topic": header.topic,
            "group": header.group,
            "timestamp": str(header.timestamp_ms),
            "isForce": "false",
            "queueId": "-1",
        }
        for connection, member in online.members.items():
            reads_list = member.language.upper() in _LIST_READERS
            text = body.encode_for_cpp() if reads_list else body.encode()
            connection.oneway(
                RemotingCommand.request(Code.RESET_CONSUMER_CLIENT_OFFSET, dict(ext), text)
            )
        return targets


def _by_time(
    store: MessageStore, topic: str, queue_ids: Sequence[int], timestamp_ms: int
) -> dict[int, int]:
    """Give each queue's first offset at or after a time, or its end; reads the disk."""
    if timestamp_ms <= _QUEUE_END:
        return {queue_id: store.max_queue_offset(topic, queue_id) for queue_id in queue_ids}
    return {
        queue_id: max(0, store.queue_offset_by_time(topic, queue_id, timestamp_ms))
        for queue_id in queue_ids
    }


def _refusing_late(
    request: RemotingCommand, finish: Callable[[dict[int, int]], bytes]
) -> Callable[[dict[int, int]], bytes]:
    """Turn a `Refusal` into its answer after the handler has returned."""

    def serve(targets: dict[int, int]) -> bytes:
        try:
            return finish(targets)
        except Refusal as refusal:
            return answer(request, refusal.code, refusal.remark)

    return serve


def _table_of(client_id: str, response: RemotingCommand | None) -> dict[MessageQueue, int] | None:
    """Give the offsets in a consumer's answer; None, with a log line, if there are none."""
    if response is None or response.code != ResponseCode.SUCCESS:
        outcome = "did not answer" if response is None else f"answered {response.code}"
        log.warning("the consumer %s was asked for its offsets and %s", client_id, outcome)
        return None
    try:
        return ConsumerStatusBody.decode(response.body).queue_table
    except CometError as error:
        log.warning(
            "the offsets in the answer of the consumer %s are unreadable: %s", client_id, error
        )
        return None
