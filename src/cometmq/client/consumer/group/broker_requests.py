"""Requests that brokers send to consumers, and the answers.

They are NOTIFY_CONSUMER_IDS_CHANGED 40, RESET_CONSUMER_CLIENT_OFFSET 220,
GET_CONSUMER_STATUS_FROM_CLIENT 221, GET_CONSUMER_RUNNING_INFO 307 and
CONSUME_MESSAGE_DIRECTLY 309.  An unknown request is answered with code 3, so that the broker does
not wait for a timeout.

Source: ``ClientRemotingProcessor`` of RocketMQ 5.4.0.
"""

import asyncio
import sys
import threading
import traceback
from collections.abc import Mapping
from typing import Any, Final, Protocol

from cometmq.client.base.namespace import Namespace
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.queue.assignment import Assignment
from cometmq.codec.stored_message import decode_message
from cometmq.errors import CometError, ResponseCode
from cometmq.model import MessageModel, MessageQueue, SubscriptionData
from cometmq.net.channel import Channel
from cometmq.wire.body.client import (
    ConsumeDirectlyResult,
    ConsumerRunningInfo,
    ConsumerStatusBody,
    ResetOffsetBody,
)
from cometmq.wire.command.codes import VERSION, RequestCode
from cometmq.wire.command.command import RemotingCommand, encode_command
from cometmq.wire.extensions.subscriptions import DIFFERENCE_FIELD
from cometmq.wire.header.headers import (
    ConsumeDirectlyHeader,
    ConsumerGroupHeader,
    ResetOffsetHeader,
    RunningInfoHeader,
    TopicGroupHeader,
)

__all__ = ["BrokerFacing", "serve_broker"]

_CLIENT_VERSION: Final = f"V{VERSION}"


class BrokerFacing(Protocol):
    """A consumer as brokers may question and command it."""

    group: str
    is_orderly: bool

    @property
    def assignments(self) -> Mapping[MessageQueue, Assignment]:
        """The consumer's queues."""
        ...

    @property
    def subscriptions(self) -> Mapping[str, SubscriptionData]:
        """Subscriptions by topic."""
        ...

    @property
    def message_model(self) -> MessageModel:
        """Clustering or broadcasting."""
        ...

    @property
    def started_ms(self) -> int:
        """When the consumer was started."""
        ...

    @property
    def namespace(self) -> Namespace:
        """Translates the names in bodies."""
        ...

    def note_difference(self, address: str, difference: str | None) -> None:
        """Take what a broker says about members that want other messages."""
        ...

    def is_paused(self, queue: MessageQueue) -> bool:
        """Whether the program has paused a queue."""
        ...

    def rebalance_soon(self) -> None:
        """Rebalance in the background as soon as possible."""
        ...

    def apply_offset_reset(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        """Continue these queues at other offsets."""
        ...

    def thread_count(self) -> int:
        """How many handlers may run at a time."""
        ...

    def name_servers(self) -> tuple[str, ...]:
        """Addresses of the name servers."""
        ...

    def locked_ms(self, queue: MessageQueue) -> int:
        """When the queue's lock was last granted; 0 without a lock."""
        ...

    def status_table(self) -> dict[str, dict[str, Any]]:
        """Rates per topic."""
        ...

    def now_ms(self) -> int:
        """The wall clock."""
        ...

    def spawn(self, work: Any, name: str) -> None:
        """Run background work of this consumer."""
        ...

    async def run_directly(self, message: ReceivedMessage) -> Any:
        """Run the handler on a message that an operator sent."""
        ...


def serve_broker(
    consumer: BrokerFacing, channel: Channel, command: RemotingCommand
) -> RemotingCommand | None:
    """Answer a broker's request; None for a one-way request and for one that is answered later."""
    code = command.code
    if code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
        if ConsumerGroupHeader.from_command(command).consumer_group == consumer.group:
            difference = command.ext_fields.get(DIFFERENCE_FIELD)
            if difference:  # the answer to a heartbeat says when it is over
                consumer.note_difference(channel.address, difference)
            consumer.rebalance_soon()
        return None
    if code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
        header = ResetOffsetHeader.from_command(command)
        if header.group == consumer.group and command.body:
            unwrap = consumer.namespace.unwrap_queue
            offsets = ResetOffsetBody.decode(command.body).offsets.items()
            consumer.apply_offset_reset(header.topic, {unwrap(q): n for q, n in offsets})
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


def _status(consumer: BrokerFacing, command: RemotingCommand) -> RemotingCommand:
    header = TopicGroupHeader.from_command(command)
    table: dict[MessageQueue, int] = {}
    if header.group == consumer.group:
        table = {
            consumer.namespace.wrap_queue(queue): assignment.process_queue.commit_offset
            for queue, assignment in consumer.assignments.items()
            if queue.topic == header.topic
        }
    return command.answer(ResponseCode.SUCCESS, None, {}, ConsumerStatusBody(table).encode())


def _unknown_group(command: RemotingCommand, group: str) -> RemotingCommand:
    return command.answer(
        ResponseCode.SYSTEM_ERROR, f"the group {group} is not consumed by this client"
    )


def _running_info(consumer: BrokerFacing, command: RemotingCommand) -> RemotingCommand:
    header = RunningInfoHeader.from_command(command)
    if header.consumer_group != consumer.group:
        return _unknown_group(command, header.consumer_group)
    queue_table = {
        consumer.namespace.wrap_queue(queue): {
            "cachedMsgCount": assignment.process_queue.count,
            "cachedMsgMaxOffset": assignment.process_queue.last_outstanding or 0,
            "cachedMsgMinOffset": assignment.process_queue.first_outstanding or 0,
            "cachedMsgSizeInMiB": assignment.process_queue.size_bytes >> 20,
            "commitOffset": assignment.process_queue.commit_offset,
            "droped": assignment.process_queue.dropped,
            "holdReason": assignment.loop.hold_reason or "",
            "lastConsumeTimestamp": assignment.process_queue.last_consume_ms,
            "lastLockTimestamp": consumer.locked_ms(queue),
            "lastPullTimestamp": assignment.process_queue.last_pull_ms,
            "locked": consumer.locked_ms(queue) > 0,
            "paused": consumer.is_paused(queue),
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
            "PROP_CLIENT_VERSION": _CLIENT_VERSION,
            "PROP_CONSUMEORDERLY": str(consumer.is_orderly).lower(),
            "PROP_CONSUMER_START_TIMESTAMP": str(consumer.started_ms),
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_NAMESERVER_ADDR": ";".join(consumer.name_servers()),
            "PROP_THREADPOOL_CORE_SIZE": str(consumer.thread_count()),
            "messageModel": "CLUSTERING" if is_clustering else "BROADCASTING",
        },
        subscriptions=tuple(
            map(consumer.namespace.wrap_subscription, consumer.subscriptions.values())
        ),
        queue_table=queue_table,
        status_table=consumer.status_table(),
        jstack=_stacks() if header.jstack_enable else None,
    )
    return command.answer(ResponseCode.SUCCESS, None, {}, info.encode())


def _stacks() -> str:
    """The stack of every thread and handler, for an operator who asks why nothing moves."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts: list[str] = []
    for number, frame in sys._current_frames().items():
        title = f"Thread {number} {names.get(number, '')}".rstrip()
        parts.append(f"{title}\n{''.join(traceback.format_stack(frame))}")
    for task in asyncio.all_tasks():
        if "handler" in task.get_name() and not task.done():
            parts.append(f"Coroutine {task.get_name()}\n{''.join(_coroutine_stack(task))}")
    return "\n".join(parts)


def _coroutine_stack(task: "asyncio.Task[Any]") -> list[str]:
    """The frames in which a coroutine waits, the innermost last."""
    lines: list[str] = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            break
        lines += traceback.format_stack(frame, 1)
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return lines


def _consume_directly(
    consumer: BrokerFacing, channel: Channel, command: RemotingCommand
) -> RemotingCommand | None:
    header = ConsumeDirectlyHeader.from_command(command)
    if header.consumer_group != consumer.group:
        return _unknown_group(command, header.consumer_group)
    if not command.body:
        return command.answer(ResponseCode.SYSTEM_ERROR, "the request carries no message")
    consumer.spawn(_run_directly(consumer, channel, command, header), "consume-directly")
    return None


async def _run_directly(
    consumer: BrokerFacing,
    channel: Channel,
    command: RemotingCommand,
    header: ConsumeDirectlyHeader,
) -> None:
    """Run the handler and answer with its outcome; a failure is an outcome too."""
    started = consumer.now_ms()
    remark: str | None = None
    try:
        stored = decode_message(command.body, 0)
        message = ReceivedMessage(
            consumer.namespace.unwrap_queue(
                MessageQueue(stored.topic, header.broker_name or "", stored.queue_id)
            ),
            stored.queue_offset,
            len(command.body),
            command.body,
            0,
            stored,
        ).within(consumer.namespace.name)
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
