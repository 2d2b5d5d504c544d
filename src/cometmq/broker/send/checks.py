"""The checks that a send has to pass, in the order of docs/internals/protocol.md#send-checks.

A check refuses with RocketMQ's code and a remark that names the cause.  The checks create topics on
demand, and turn what the properties ask for into a `Destination`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from cometmq.broker.base.state import FAQ, BrokerState, Refusal
from cometmq.broker.send.kinds import Destination, SendKind
from cometmq.core.retry import retry
from cometmq.core.retry.dead_letters import REPLAY_OF
from cometmq.errors import ResponseCode
from cometmq.model import properties as prop
from cometmq.model.flags import PERM_WRITE, perm_text
from cometmq.model.names import (
    RETRY_PREFIX,
    SEND_FORBIDDEN_TOPICS,
    check_topic,
    dlq_topic,
    group_of_retry_topic,
)
from cometmq.model.topic import TopicConfig
from cometmq.net.server import ServerConnection
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.headers import SendMessageHeader

__all__ = ["CheckedTopics", "SendChecks", "topic_text"]

log = logging.getLogger("cometmq.broker")


def topic_text(config: TopicConfig) -> str:
    """Describe a topic as Java's TopicConfig.toString does; tools show it in remarks."""
    attributes = ", ".join(f"{key}={value}" for key, value in config.attributes.items())
    return (
        f"TopicConfig [topicName={config.topic}, readQueueNums={config.read_queue_count}, "
        f"writeQueueNums={config.write_queue_count}, perm={perm_text(config.perm)}, "
        f"topicFilterType={config.topic_filter_type}, topicSysFlag={config.topic_sys_flag}, "
        f"order={str(config.order).lower()}, attributes={{{attributes}}}]"
    )


class CheckedTopics:
    """The topics that passed every check."""

    def __init__(self) -> None:
        self.queue_counts: dict[str, int] = {}
        """Topic -> its number of queues."""
        self.revision = 1
        """Another number after each `forget`."""

    def forget(self) -> None:
        """Send every topic through the checks again; called whenever a topic changes."""
        self.queue_counts.clear()
        self.revision += 1


class SendChecks:
    """Every check of a send; each raises `Refusal`."""

    def __init__(self, state: BrokerState, kinds: Sequence[SendKind] = ()) -> None:
        self._state = state
        self._kinds = kinds

    def topic(
        self, header: SendMessageHeader, connection: ServerConnection, now_ms: int
    ) -> TopicConfig:
        """Check broker, topic name and queue; create the topic where that is allowed.

        Raises:
            Refusal: the topic does not take the message.
        """
        config = self._state.config
        if now_ms < config.start_accept_send_request_time_stamp:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                "broker unable to service, until "
                f"{config.start_accept_send_request_time_stamp} (ms since 1970, now {now_ms})",
            )
        topic = header.topic
        settings = self._state.topics.get(topic)
        if settings is not None and settings.order and not config.broker_permission & PERM_WRITE:
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
        if settings is None:
            settings = self._create(header, connection, now_ms)
        count = max(settings.write_queue_count, settings.read_queue_count)
        if header.queue_id >= count:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{header.queue_id}] is illegal, {topic_text(settings)} "
                f"Producer: {connection.peer}",
            )
        return settings

    def _create(
        self, header: SendMessageHeader, connection: ServerConnection, now_ms: int
    ) -> TopicConfig:
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
        if not header.topic.startswith(RETRY_PREFIX):
            log.warning(
                "topic %s did not exist and was made with %d queues, because group %s at %s sent "
                "to it. If the name is a typing error: cometmq topic delete %s. "
                "autoCreateTopicEnable=false refuses such sends",
                created.topic,
                created.write_queue_count,
                header.producer_group,
                connection.peer,
                created.topic,
            )
        return created

    def body_size(self, body: bytes) -> None:
        """Check that a body is not too large; an empty one is accepted, unlike in RocketMQ.

        Raises:
            Refusal: it is over maxMessageSize.
        """
        limit = self._state.config.max_message_size
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
        """Decide where a single message goes, with which properties and as which kind.

        Raises:
            Refusal: the message asks for what it cannot have.
        """
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = self._state.random_queue(config.write_queue_count)
        if config.attributes.get("message.type") == "PRIORITY":
            queue_id = _lane(properties.get(prop.PRIORITY, ""), config, queue_id)
        target = Destination(header.topic, queue_id, properties)
        if header.topic.startswith(RETRY_PREFIX) and self._bury(request, header, target, now_ms):
            return target
        self._check_keys(config, properties)
        for kind in self._kinds:
            kind.check(header, target, now_ms)
        return target

    def _bury(
        self,
        request: RemotingCommand,
        header: SendMessageHeader,
        target: Destination,
        now_ms: int,
    ) -> bool:
        """Turn a retry that had all its tries into a dead letter; return whether it is one."""
        group = group_of_retry_topic(header.topic)
        settings = self._state.groups.find(group, now_ms)
        if settings is None:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {group} {FAQ}",
            )
        most = retry.max_reconsume_times(settings, header.max_reconsume_times, request.version)
        is_ordered = not self._state.queue_locks.are_all_expired(group, now_ms)
        # An ordered consumer sends back a message that it gives up, so the message must not come
        # again.  A message that an operator sends again has no tries yet.
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


def _lane(priority: str, config: TopicConfig, queue_id: int) -> int:
    """Return the queue of a priority, the highest one for all above it; else the given queue."""
    if not (priority.isascii() and priority.isdigit()) or len(priority) > 9:
        return queue_id
    return min(int(priority), max(0, config.write_queue_count - 1))
