"""The checks a send has to pass, in the order of wire.md 3.3.2, and its special properties.

Job: refuse with RocketMQ's code and a remark that names the cause, create topics on demand, and
turn retry, delay, timer and transaction properties into decisions.  It must not put messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from cometmq.broker.base.state import FAQ, BrokerState, Refusal
from cometmq.codec.timer_moved import OWN_NAMES
from cometmq.core.retry import retry
from cometmq.core.retry.dead_letters import REPLAY_OF
from cometmq.errors import ResponseCode
from cometmq.model import properties as prop
from cometmq.model.flags import PERM_WRITE, perm_text
from cometmq.model.names import (
    HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SEND_FORBIDDEN_TOPICS,
    TIMER_TOPIC,
    check_topic,
    dlq_topic,
    group_of_retry_topic,
)
from cometmq.model.topic import TopicConfig
from cometmq.net.server import ServerConnection
from cometmq.store.timer.timer_slots import BadTimer, TimerRules, asked_due_ms, has_timer
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.headers import SendMessageHeader

__all__ = ["Destination", "SendChecks", "topic_text"]

_TIMER_NAMES: Final = (prop.TIMER_DELAY_SEC, prop.TIMER_DELAY_MS, prop.TIMER_DELIVER_MS)
_INT32_MAX: Final = 2**31 - 1


@dataclass(slots=True)
class Destination:
    """Where a message goes; `delay_level` > 0 means through SCHEDULE_TOPIC_XXXX.

    `is_half`: it waits in RMQ_SYS_TRANS_HALF_TOPIC for the end of its transaction.  `out_ms`: it
    waits in rmq_sys_wheel_timer for this slot of the wheel; None for no timer.
    """

    topic: str
    queue_id: int
    properties: dict[str, str] = field(default_factory=dict)
    delay_level: int = 0
    is_half: bool = False
    out_ms: int | None = None


def topic_text(config: TopicConfig) -> str:
    """Describe a topic as Java's TopicConfig.toString does; tools show it in remarks."""
    attributes = ", ".join(f"{key}={value}" for key, value in config.attributes.items())
    return (
        f"TopicConfig [topicName={config.topic}, readQueueNums={config.read_queue_count}, "
        f"writeQueueNums={config.write_queue_count}, perm={perm_text(config.perm)}, "
        f"topicFilterType={config.topic_filter_type}, topicSysFlag={config.topic_sys_flag}, "
        f"order={str(config.order).lower()}, attributes={{{attributes}}}]"
    )


class SendChecks:
    """Every check of a send; each raises `Refusal`."""

    __slots__ = ("_state", "rules", "slot_count")

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self.rules: TimerRules | None = None
        """How timers are placed; None while they are switched off."""
        self.slot_count: Callable[[int], int] = lambda out_ms: 0
        """How many messages a slot of the wheel holds."""

    def topic(
        self, header: SendMessageHeader, connection: ServerConnection, now_ms: int
    ) -> TopicConfig:
        """Check broker, topic name and queue; create the topic where that is allowed."""
        config = self._state.config
        if now_ms < config.start_accept_send_request_time_stamp:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                "broker unable to service, until "
                f"{config.start_accept_send_request_time_stamp} (ms since 1970, now {now_ms})",
            )
        topic = header.topic
        known = self._state.topics.get(topic)
        if known is not None and known.order and not config.broker_permission & PERM_WRITE:
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._state.address}] sending message is forbidden",
            )
        fault = check_topic(topic)
        if fault is not None:
            raise Refusal(ResponseCode.INVALID_PARAMETER, fault)
        if topic in SEND_FORBIDDEN_TOPICS:
            raise Refusal(
                ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden."
            )
        if known is None:
            known = self._create(header, now_ms)
        count = max(known.write_queue_count, known.read_queue_count)
        if header.queue_id >= count:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{header.queue_id}] is illegal, {topic_text(known)} "
                f"Producer: {connection.peer}",
            )
        return known

    def _create(self, header: SendMessageHeader, now_ms: int) -> TopicConfig:
        topics = self._state.topics
        created = topics.create_from_template(
            header.topic, header.default_topic, header.default_topic_queue_nums, now_ms
        )
        if created is None and header.topic.startswith(RETRY_PREFIX):
            created = topics.ensure(header.topic, 1, now_ms)
        if created is None:
            raise Refusal(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{header.topic}] not exist, apply first please!{FAQ}",
            )
        self._state.topic_changed(created)
        return created

    def body(self, body: bytes) -> None:
        """Check that there is a body and that it is not too large."""
        limit = self._state.config.max_message_size
        if not body:
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                "the message is illegal: it has no body; send at least one byte",
            )
        if len(body) > limit:
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message is illegal: its body has {len(body)} bytes, "
                f"maxMessageSize is {limit}; send less or raise the limit",
            )

    def destination(
        self,
        request: RemotingCommand,
        header: SendMessageHeader,
        config: TopicConfig,
        properties: dict[str, str],
        now_ms: int,
    ) -> Destination:
        """Decide where a single message goes, and what its properties then are."""
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = self._state.random_queue(config.write_queue_count)
        target = Destination(header.topic, queue_id, properties)
        if header.topic.startswith(RETRY_PREFIX) and self._bury(request, header, target, now_ms):
            return target
        self._check_keys(config, properties)
        target.delay_level = self._delay_level(properties)
        target.is_half = self._is_half(header, target)
        if target.delay_level == 0 and has_timer(properties):
            target.out_ms = self._timer_slot(target, now_ms)
        return target

    def batch(self, properties: dict[str, str]) -> None:
        """Check the properties of a batch itself, which cannot wait as a whole."""
        if self._delay_level(properties) or has_timer(properties):
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                "the message is illegal: a batch has no time of its own; give the property to "
                "each message in it",
            )

    def wait(self, properties: dict[str, str], now_ms: int) -> tuple[int, int | None]:
        """Level and slot of a message that is part of a batch, 0 and None when it does not wait."""
        level = self._delay_level(properties)
        if level or not has_timer(properties):
            return level, None
        return 0, self._timer_slot(Destination("", 0, properties), now_ms)

    def _bury(
        self,
        request: RemotingCommand,
        header: SendMessageHeader,
        target: Destination,
        now_ms: int,
    ) -> bool:
        """Turn a retry that had its tries into a dead letter; True when it is one."""
        group = group_of_retry_topic(header.topic)
        settings = self._state.groups.find(group, now_ms)
        if settings is None:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {group} {FAQ}",
            )
        most = retry.max_reconsume_times(settings, header.max_reconsume_times, request.version)
        is_ordered = not self._state.queue_locks.are_all_expired(group, now_ms)
        # An ordered consumer sends back what it will not try again, so it must not come again;
        # what an operator sends again has no tries yet.
        is_ordered = is_ordered and not (
            REPLAY_OF in target.properties and not header.reconsume_times
        )
        if not is_ordered and not retry.goes_to_dlq_on_send(header.reconsume_times, most):
            return False
        dead = self._state.ensure_topic(dlq_topic(group), retry.DLQ_QUEUE_COUNT, now_ms)
        target.topic = dead.topic
        target.queue_id = 0
        target.properties[prop.DELAY] = "-1"
        return True

    def _check_keys(self, config: TopicConfig, properties: dict[str, str]) -> None:
        is_compaction = config.attributes.get("cleanup.policy") == "COMPACTION"
        if is_compaction and not properties.get(prop.KEYS, "").strip():
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, "Required message key is missing")

    def _delay_level(self, properties: dict[str, str]) -> int:
        """Give the level a message asks for, 0 for none."""
        text = properties.get(prop.DELAY)
        if text is None:
            return 0
        try:
            level = int(text)
        except ValueError:
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message is illegal: property DELAY is {text!r:.50}, expected a delay level "
                f"from 0 to {self._state.delay.max_level}",
            ) from None
        return self._state.delay.clamp(level) if level > 0 else 0

    def _is_half(self, header: SendMessageHeader, target: Destination) -> bool:
        """Say whether this is a half message; TRAN_MSG on a delayed retry is only a leftover (trap
        T29)."""
        if target.properties.get(prop.TRANSACTION_PREPARED, "").lower() != "true":
            return False
        if header.reconsume_times > 0 and target.delay_level > 0:
            return False
        if self._state.config.reject_transaction_message:
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._state.address}] sending transaction message is forbidden",
            )
        if target.delay_level > 0:
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message is illegal: it is transactional and has delay level "
                f"{target.delay_level}; a message cannot wait for both, leave out one",
            )
        if not target.properties.get(prop.PRODUCER_GROUP):
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                "the message is illegal: it is transactional and has no property PGROUP, which "
                "names the producer group that is asked for the outcome",
            )
        return True

    def _timer_slot(self, target: Destination, now_ms: int) -> int | None:
        """Give the slot of a message with an exact time; None when it is due already."""
        rules = self.rules
        if rules is None:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                "accurate timer message is not enabled, timerWheelEnable is false",
            )
        if target.is_half:
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                "the message is illegal: it is transactional and has an exact time; a message "
                "cannot wait for both, leave out one",
            )
        try:
            due_ms = asked_due_ms(target.properties, now_ms)
        except BadTimer as error:
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, f"timer message illegal: {error}") from None
        limit_ms = self._state.config.timer_max_delay_sec * 1000
        is_recall = prop.TIMER_DEL_UNIQKEY in target.properties
        if due_ms - now_ms > limit_ms or (is_recall and due_ms <= now_ms):
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                "timer message illegal, the delay time should not be bigger than the max delay "
                f"{limit_ms}ms; or if set del msg, the delay time should be bigger than the "
                f"current time (asked for {due_ms - now_ms} ms)",
            )
        if due_ms <= now_ms:
            return None
        out_ms = rules.out_ms(due_ms)
        self._check_congestion(out_ms)
        return out_ms

    def _check_congestion(self, out_ms: int) -> None:
        """Refuse some of the messages for a full slot, all when it is twice full (isReject)."""
        most = self._state.config.timer_congest_num_each_slot
        if most == _INT32_MAX:
            return
        count = self.slot_count(out_ms)
        if count <= most:
            return
        share = (count - most) / (most + 0.1)
        if count >= most * 2 or self._state.env.chance.random() < share:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"timer message is under flow control: its second has {count} messages, "
                f"timerCongestNumEachSlot is {most} and {most * 2} are the most; send for another "
                "second, or raise the limit",
            )


def scheduled(target: Destination) -> None:
    """Point a delayed message at the queue of its level, as PutMessageHook does in Java."""
    properties = target.properties
    properties[prop.DELAY] = str(target.delay_level)
    properties[prop.REAL_TOPIC] = target.topic
    properties[prop.REAL_QUEUE_ID] = str(target.queue_id)
    for name in _TIMER_NAMES:
        properties.pop(name, None)
    target.topic = SCHEDULE_TOPIC
    target.queue_id = target.delay_level - 1


def timed(target: Destination) -> None:
    """Point a timed message at the timer topic (HookUtils.transformTimerMessage)."""
    properties = target.properties
    for name in OWN_NAMES:
        # Else a client could say that its message replaces another one.
        properties.pop(name, None)
    properties[prop.TIMER_OUT_MS] = str(target.out_ms)
    properties[prop.REAL_TOPIC] = target.topic
    properties[prop.REAL_QUEUE_ID] = str(target.queue_id)
    target.topic = TIMER_TOPIC
    target.queue_id = 0


def prepared(target: Destination) -> None:
    """Point a half message at the half queue, as TransactionalMessageBridge does in Java."""
    properties = target.properties
    properties[prop.TRANSACTION_ID] = properties[prop.UNIQ_KEY]
    properties[prop.REAL_TOPIC] = target.topic
    properties[prop.REAL_QUEUE_ID] = str(target.queue_id)
    for name in (prop.TRANSACTION_CHECK_TIMES, prop.TRAN_PREPARED_QUEUE_OFFSET):
        properties.pop(name, None)
    target.topic = HALF_TOPIC
    target.queue_id = 0
