"""What brokers ask of consumers: rebalance now, reset offsets, tell your state, run this message.

Job: answer NOTIFY_CONSUMER_IDS_CHANGED 40, RESET_CONSUMER_CLIENT_OFFSET 220,
GET_CONSUMER_STATUS_FROM_CLIENT 221, GET_CONSUMER_RUNNING_INFO 307, CONSUME_MESSAGE_DIRECTLY 309.
Must not: change offsets or assignments itself; the consumer does.

Source: ``ClientRemotingProcessor`` of RocketMQ 5.4.0.  An unknown request is answered with 3, so
that the broker does not wait for a timeout.
"""

import sys
import traceback
from typing import TYPE_CHECKING, Final

from cometmq.client.message.message import ReceivedMessage
from cometmq.errors import CometError, ResponseCode
from cometmq.model import MessageModel, MessageQueue
from cometmq.net.channel import Channel
from cometmq.wire.body.bodies import (
    ConsumeDirectlyResult,
    ConsumerRunningInfo,
    ConsumerStatusBody,
    ResetOffsetBody,
)
from cometmq.wire.command.codes import VERSION, RequestCode
from cometmq.wire.command.command import RemotingCommand, encode_command
from cometmq.wire.header.headers import (
    ConsumeDirectlyHeader,
    ConsumerGroupHeader,
    ResetOffsetHeader,
    RunningInfoHeader,
    TopicGroupHeader,
)

if TYPE_CHECKING:
    from cometmq.client.consumer.group.group_consumer import GroupConsumer

__all__ = ["serve_broker"]

_MS_PER_S: Final = 1000


def serve_broker(
    consumer: "GroupConsumer", channel: Channel, command: RemotingCommand
) -> RemotingCommand | None:
    """The answer to a broker's request; None for one-way requests and for later answers."""
    code = command.code
    if code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
        if ConsumerGroupHeader.from_command(command).consumer_group == consumer.group:
            consumer.rebalance_soon()
        return None
    if code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
        header = ResetOffsetHeader.from_command(command)
        if header.group == consumer.group and command.body:
            consumer.reset_offsets(header.topic, ResetOffsetBody.decode(command.body).offsets)
        return None
    if code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
        return _status(consumer, command)
    if code == RequestCode.GET_CONSUMER_RUNNING_INFO:
        return _running_info(consumer, command)
    if code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
        return _consume_directly(consumer, channel, command)
    if command.is_oneway:
        return None
    return command.answer(
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {code} not supported"
    )


def _status(consumer: "GroupConsumer", command: RemotingCommand) -> RemotingCommand:
    header = TopicGroupHeader.from_command(command)
    table: dict[MessageQueue, int] = {}
    if header.group == consumer.group:
        table = {
            queue: assignment.process_queue.commit_offset
            for queue, assignment in consumer.assignments.items()
            if queue.topic == header.topic
        }
    return command.answer(ResponseCode.SUCCESS, None, {}, ConsumerStatusBody(table).encode())


def _unknown_group(command: RemotingCommand, group: str) -> RemotingCommand:
    return command.answer(
        ResponseCode.SYSTEM_ERROR, f"the group {group} is not consumed by this client"
    )


def _running_info(consumer: "GroupConsumer", command: RemotingCommand) -> RemotingCommand:
    header = RunningInfoHeader.from_command(command)
    if header.consumer_group != consumer.group:
        return _unknown_group(command, header.consumer_group)
    queue_table = {
        queue: {
            "cachedMsgCount": assignment.process_queue.count,
            "cachedMsgMaxOffset": assignment.process_queue.last_outstanding or 0,
            "cachedMsgMinOffset": assignment.process_queue.first_outstanding or 0,
            "cachedMsgSizeInMiB": assignment.process_queue.size_bytes >> 20,
            "commitOffset": assignment.process_queue.commit_offset,
            "droped": assignment.process_queue.dropped,
            "lastConsumeTimestamp": assignment.process_queue.last_consume_ms,
            "lastLockTimestamp": consumer.locked_ms(queue),
            "lastPullTimestamp": assignment.process_queue.last_pull_ms,
            "locked": consumer.locked_ms(queue) > 0,
            "transactionMsgCount": 0,
            "transactionMsgMaxOffset": 0,
            "transactionMsgMinOffset": 0,
            "tryUnlockTimes": 0,
        }
        for queue, assignment in consumer.assignments.items()
    }
    is_clustering = consumer.message_model == MessageModel.CLUSTERING
    info = ConsumerRunningInfo(
        properties={
            "PROP_CLIENT_VERSION": f"V{VERSION}",
            "PROP_CONSUMEORDERLY": str(consumer.is_orderly).lower(),
            "PROP_CONSUMER_START_TIMESTAMP": str(consumer.started_ms),
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_NAMESERVER_ADDR": ";".join(consumer.name_servers()),
            "PROP_THREADPOOL_CORE_SIZE": str(consumer.concurrency()),
            "messageModel": "CLUSTERING" if is_clustering else "BROADCASTING",
        },
        subscriptions=tuple(consumer.subscriptions.values()),
        queue_table=queue_table,
        status_table=consumer.status_table(),
        jstack=_stacks() if header.jstack_enable else None,
    )
    return command.answer(ResponseCode.SUCCESS, None, {}, info.encode())


def _stacks() -> str:
    """What every thread is doing, for an operator who asks why nothing moves."""
    parts: list[str] = []
    for number, frame in sys._current_frames().items():
        parts.append(f"Thread {number}\n{''.join(traceback.format_stack(frame))}")
    return "\n".join(parts)


def _consume_directly(
    consumer: "GroupConsumer", channel: Channel, command: RemotingCommand
) -> RemotingCommand | None:
    header = ConsumeDirectlyHeader.from_command(command)
    if header.consumer_group != consumer.group:
        return _unknown_group(command, header.consumer_group)
    if not command.body:
        return command.answer(ResponseCode.SYSTEM_ERROR, "the request carries no message")
    consumer.spawn(_run_directly(consumer, channel, command, header), "consume-directly")
    return None


async def _run_directly(
    consumer: "GroupConsumer",
    channel: Channel,
    command: RemotingCommand,
    header: ConsumeDirectlyHeader,
) -> None:
    """Run the handler and answer with what it did; a failure is an answer too."""
    started = consumer.now_ms()
    remark: str | None = None
    try:
        probe = ReceivedMessage(
            MessageQueue("", header.broker_name or "", 0), 0, len(command.body), command.body, 0
        )
        stored = probe.stored
        message = ReceivedMessage(
            MessageQueue(stored.topic, header.broker_name or "", stored.queue_id),
            stored.queue_offset,
            len(command.body),
            command.body,
            0,
            stored,
        )
        outcome = await consumer.run_directly(message)
        result = "CR_SUCCESS" if outcome is None else "CR_LATER"
    except CometError as error:
        result, remark = "CR_THROW_EXCEPTION", str(error)
    except Exception as error:
        result, remark = "CR_THROW_EXCEPTION", f"{type(error).__name__}: {error}"
    body = ConsumeDirectlyResult(
        result, remark=remark, spent_time_ms=consumer.now_ms() - started
    ).encode()
    answer = command.answer(ResponseCode.SUCCESS, None, {}, body)
    channel.write(encode_command(answer))
