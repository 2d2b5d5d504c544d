"""CONSUMER_SEND_MSG_BACK: a consumer gives a message back for another try, or for good.

A worker reads the message, `cometmq.core.retry.retry` decides where it goes, and a copy is stored
there.  The original stays in its queue, and the group's offset does not move.

Source: AbstractSendMessageProcessor.consumerSendMsgBack of RocketMQ 5.4
(docs/internals/delivery.md#send-back).  Beyond it the group's own retry policy applies
(`cometmq.core.retry.retry_policy`).
"""

from __future__ import annotations

from cometmq.broker.base.state import FAQ, BrokerState, Refusal, answer, in_worker
from cometmq.broker.base.store_failure import when_topic_saved
from cometmq.broker.delay.levels.delayed_send import DelayedKind
from cometmq.broker.delay.wheel.timed_send import TimedKind
from cometmq.broker.send.kinds import Destination
from cometmq.broker.send.send import SendProcessor
from cometmq.codec.ids import offset_message_id
from cometmq.codec.stored_message import StoredMessage, decode_message
from cometmq.core.retry import retry
from cometmq.core.retry.consume_retry import TIMER_LEFTOVERS
from cometmq.core.retry.retry_policy import policy_of
from cometmq.errors import CometError, ResponseCode
from cometmq.model import properties as prop
from cometmq.model.flags import PERM_WRITE
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.names import dlq_topic, retry_topic
from cometmq.net.server import ServerConnection
from cometmq.store.base.results import PutResult
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.headers import ConsumerSendMsgBackHeader

__all__ = ["SendBackProcessor"]


class SendBackProcessor:
    """The processor of code 36."""

    def __init__(
        self, state: BrokerState, send: SendProcessor, delayed: DelayedKind, timed: TimedKind
    ) -> None:
        self._state = state
        self._send = send
        self._delayed = delayed
        self._timed = timed

    def send_back(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes | None:
        """Serve CONSUMER_SEND_MSG_BACK (36)."""
        header = ConsumerSendMsgBackHeader.from_command(request)
        state = self._state
        settings = state.groups.find(header.group, now_ms)
        if settings is None:
            return answer(
                request,
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {header.group} {FAQ}",
            )
        if not state.config.broker_permission & PERM_WRITE:
            return answer(
                request,
                ResponseCode.NO_PERMISSION,
                f"the broker[{state.address}] sending message is forbidden",
            )
        if settings.retry_queue_count <= 0:
            return answer(request)
        topic = state.ensure_topic(retry_topic(header.group), settings.retry_queue_count, now_ms)
        if not topic.perm & PERM_WRITE:
            return answer(
                request,
                ResponseCode.NO_PERMISSION,
                f"the topic[{topic.topic}] sending message is forbidden",
            )
        offset = header.physical_offset

        def read() -> StoredMessage | None:
            try:
                record = state.store.message_at(offset)
                return None if record is None else decode_message(record)
            except CometError:
                return None

        def finish(message: StoredMessage | None) -> bytes | None:
            if message is None:
                return answer(
                    request,
                    ResponseCode.SYSTEM_ERROR,
                    f"look message by offset failed, {offset}",
                )
            return self._store(request, header, settings, message, connection)

        in_worker(state, request, connection, read, finish)
        return None

    def _set_pause(
        self, target: Destination, decision: retry.SendBackDecision, now_ms: int
    ) -> None:
        """Delay the copy by a level, or exactly where no level has the time of the policy."""
        state, properties = self._state, target.properties
        delay_ms = decision.delay_ms
        level = state.delay.clamp(decision.delay_level)
        if delay_ms is not None:
            limit_ms = state.config.timer_max_delay_sec * 1000
            is_level = delay_ms <= 0 or delay_ms in state.delay.delays_ms
            if not is_level and self._timed.is_enabled and delay_ms <= limit_ms:
                for name in (prop.DELAY, *TIMER_LEFTOVERS):
                    properties.pop(name, None)  # an earlier delay level would win over the time
                properties[prop.TIMER_DELIVER_MS] = str(now_ms + delay_ms)
                self._timed.delay(target, self._timed.out_ms(now_ms + delay_ms))
                return
            level = retry.level_not_before(delay_ms, state.delay.delays_ms)
        if level > 0:
            self._delayed.delay(target, level)
        else:
            properties[prop.DELAY] = str(level)

    def _store(
        self,
        request: RemotingCommand,
        header: ConsumerSendMsgBackHeader,
        settings: SubscriptionGroupConfig,
        message: StoredMessage,
        connection: ServerConnection,
    ) -> bytes | None:
        now_ms = self._state.env.clock.now_ms()
        most = retry.max_reconsume_times(settings, header.max_reconsume_times, request.version)
        decision = retry.decide_send_back(
            message.reconsume_times,
            most,
            header.delay_level,
            policy_of(settings.group_retry_policy),
        )
        target = self._destination(header.group, settings, message, decision, now_ms)
        topic = target.topic
        try:
            result = self._send.put(
                target,
                message.body,
                flag=message.flag,
                sys_flag=message.sys_flag,
                born_ms=message.born_timestamp_ms,
                born_host=message.born_host,
                reconsume_times=message.reconsume_times + 1,
                now_ms=now_ms,
            )
        except Refusal as refusal:
            return answer(request, ResponseCode.SYSTEM_ERROR, refusal.remark)
        self._state.stats.sent_back(target.properties[prop.RETRY_TOPIC], header.group)
        self._answer_when_durable(request, connection, topic, result)
        return None

    def _destination(
        self,
        group: str,
        settings: SubscriptionGroupConfig,
        message: StoredMessage,
        decision: retry.SendBackDecision,
        now_ms: int,
    ) -> Destination:
        """Return where the copy goes: a delayed retry, or a dead letter."""
        state = self._state
        properties = dict(message.properties)
        properties.setdefault(prop.RETRY_TOPIC, message.topic)
        properties[prop.WAIT] = "false"  # as Java stores every retry, whatever its producer said
        properties.setdefault(
            prop.ORIGIN_MESSAGE_ID, offset_message_id(message.store_host, message.physical_offset)
        )
        if decision.is_dead:
            dead = state.ensure_topic(dlq_topic(group), retry.DLQ_QUEUE_COUNT, now_ms)
            properties[prop.DELAY] = "0"
            return Destination(dead.topic, 0, properties)
        queue_id = state.random_queue(settings.retry_queue_count)
        target = Destination(retry_topic(group), queue_id, properties)
        self._set_pause(target, decision, now_ms)
        return target

    def _answer_when_durable(
        self, request: RemotingCommand, connection: ServerConnection, topic: str, result: PutResult
    ) -> None:
        """Answer when the copy is as durable as a sent message, and so is its topic.

        The consumer drops the message once this is answered.
        """
        state = self._state

        def respond(fault: tuple[int, str] | None) -> None:
            connection.send(answer(request) if fault is None else answer(request, *fault))

        if not state.barrier.is_waiting:
            when_topic_saved(state, topic, respond)
            return

        def settle(code: int) -> None:
            if code == ResponseCode.SUCCESS:
                when_topic_saved(state, topic, respond)
            else:
                respond((ResponseCode.SYSTEM_ERROR, ResponseCode(code).name))

        state.barrier.when_passed(result.end_offset, settle)
