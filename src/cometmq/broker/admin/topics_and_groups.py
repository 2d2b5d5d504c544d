"""Administration: topics, groups, and whole tables for tools and slaves.

Serves UPDATE_AND_CREATE_TOPIC and the like, DELETE_TOPIC_IN_BROKER, GET_*_CONFIG, and the tables of
codes 21, 43, 45 and 201.

A change is answered when it is on disk, and with an error when it cannot be written: no restart
forgets an acknowledged change.  A new topic is also routable when its creation is answered: the
answer waits for the name servers, at most a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from cometmq.broker.base.state import BrokerState, Refusal, WhenSaved, answer, refusing
from cometmq.broker.base.store_failure import answer_saved
from cometmq.broker.delay.levels.schedule import ScheduleService
from cometmq.broker.files.persistence import group_snapshot
from cometmq.core.extensions.growing import Growth, check_change
from cometmq.core.retry.retry_policy import check_policy
from cometmq.core.topic.attributes import (
    GROUP_ATTRIBUTES,
    TOPIC_ATTRIBUTES,
    Attribute,
    altered_attributes,
    parse_attribute_changes,
)
from cometmq.errors import ConfigError, ResponseCode, StoreError
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.names import check_group, check_topic, is_system_topic
from cometmq.model.topic import DataVersion, TopicConfig
from cometmq.net.server import Handler, ServerConnection
from cometmq.wire.body.admin import (
    ConsumerOffsets,
    decode_group_config,
    decode_group_config_list,
    decode_topic_config_list,
    encode_consumer_offsets,
    encode_delay_offsets,
    encode_group_config,
    encode_topic_config,
)
from cometmq.wire.body.route import (
    TopicConfigWrapper,
    encode_topic_config_wrapper,
    encode_topic_list,
)
from cometmq.wire.command.codes import RequestCode as Code
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.admin import DeleteGroupHeader, GroupHeader, TopicHeader
from cometmq.wire.header.headers import CreateTopicHeader

__all__ = ["AdminProcessor"]

C = TypeVar("C", TopicConfig, SubscriptionGroupConfig)
_UNSET: Final = "not set any response code"
"""The remark of a Java broker beside code 0 here; tools show it."""
QUEUE_COUNT_MAX: Final = 65_535
"""Each queue is a directory; a larger number is a typing error."""
_PERM_MAX: Final = 15


class AdminProcessor:
    """The processors of administrative codes."""

    def __init__(self, state: BrokerState, schedule: ScheduleService) -> None:
        self._state = state
        self._schedule = schedule

    def handlers(self) -> dict[int, Handler]:
        """Map each code to its processor, with refusals turned into answers."""
        table: dict[int, Handler] = {
            Code.UPDATE_AND_CREATE_TOPIC: self.create_topic,
            Code.UPDATE_AND_CREATE_TOPIC_LIST: self.create_topics,
            Code.DELETE_TOPIC_IN_BROKER: self.delete_topic,
            Code.GET_TOPIC_CONFIG: self.get_topic,
            Code.GET_ALL_TOPIC_CONFIG: self.all_topics,
            Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
            Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.create_group,
            Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.create_groups,
            Code.DELETE_SUBSCRIPTIONGROUP: self.delete_group,
            Code.GET_SUBSCRIPTIONGROUP_CONFIG: self.get_group,
            Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_groups,
            Code.GET_ALL_CONSUMER_OFFSET: self.all_consumer_offsets,
            Code.GET_ALL_DELAY_OFFSET: self.all_delay_offsets,
        }
        return {code: refusing(handler) for code, handler in table.items()}

    # -- topics ---------------------------------------------------------------------------

    def create_topic(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes | None:
        """Serve UPDATE_AND_CREATE_TOPIC (17).

        Raises:
            Refusal: a name, a number or an attribute is refused.
        """
        header = CreateTopicHeader.from_command(request)
        try:
            changes = parse_attribute_changes(header.attributes)
        except ConfigError as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, str(error)) from error
        config = TopicConfig(
            header.topic,
            header.read_queue_nums,
            header.write_queue_nums,
            header.perm,
            header.topic_filter_type,
            header.topic_sys_flag or 0,
            header.order,
            changes,
        )
        return self._put_topics(request, connection, [config], now_ms)

    def create_topics(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes | None:
        """Serve UPDATE_AND_CREATE_TOPIC_LIST (18).

        Raises:
            Refusal: a name, a number or an attribute is refused; none is created.
        """
        configs = decode_topic_config_list(request.body)
        return self._put_topics(request, connection, configs, now_ms)

    def _put_topics(
        self,
        request: RemotingCommand,
        connection: ServerConnection,
        configs: list[TopicConfig],
        now_ms: int,
    ) -> bytes | None:
        for config in configs:
            self._check_topic(config)
        configs = [self._with_attributes(config) for config in configs]
        for config in configs:
            if self._state.topics.get(config.topic) != config:
                self._state.topics.put(config, now_ms)
                self._state.topic_changed(config)
        frame = answer(request, remark=_UNSET)
        if request.is_oneway:
            return frame
        state = self._state

        def saved(failure: StoreError | None) -> None:
            state.when_registered(lambda: answer_saved(state, request, connection, frame, failure))

        state.when_topics_saved(saved)
        return None

    def _with_attributes(self, config: TopicConfig) -> TopicConfig:
        """Apply the changes that a request carries in the attributes."""
        present = self._state.topics.get(config.topic)
        if config.attributes.get("+message.type") == "MIXED":
            raise Refusal(ResponseCode.INVALID_PARAMETER, "MIXED message type is not supported.")
        changed = _altered(config, present, TOPIC_ATTRIBUTES)
        name = self._state.config.broker_name
        try:
            growth = None if present is None else Growth.from_attributes(present.attributes, name)
            check_change(growth, Growth.from_attributes(changed.attributes, name), name)
        except ConfigError as error:
            raise Refusal(ResponseCode.INVALID_PARAMETER, str(error)) from error
        return changed

    def _check_topic(self, config: TopicConfig) -> None:
        fault = check_topic(config.topic)
        if fault is not None:
            raise Refusal(ResponseCode.INVALID_PARAMETER, fault)
        self._refuse_system_topic(config.topic)
        for name, count in (
            ("readQueueNums", config.read_queue_count),
            ("writeQueueNums", config.write_queue_count),
        ):
            if not 0 <= count <= QUEUE_COUNT_MAX:
                raise Refusal(
                    ResponseCode.INVALID_PARAMETER,
                    f"{name} of topic {config.topic} is {count}, expected 0 to {QUEUE_COUNT_MAX}",
                )
        if not 0 <= config.perm <= _PERM_MAX:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"perm of topic {config.topic} is {config.perm}, expected 0 to {_PERM_MAX}",
            )

    def _refuse_system_topic(self, topic: str) -> None:
        if is_system_topic(topic) or self._state.topics.is_reserved(topic):
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"The topic[{topic}] is conflict with system topic.",
            )

    def delete_topic(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes | None:
        """Serve DELETE_TOPIC_IN_BROKER (215): delete a topic, its queues and all offsets in it.

        Raises:
            Refusal: the topic is blank, or a system topic.
        """
        topic = TopicHeader.from_command(request).topic
        if not topic.strip():
            raise Refusal(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
        self._refuse_system_topic(topic)
        state = self._state
        if state.topics.delete(topic, now_ms):
            state.offsets.remove_topic(topic)
            state.store.delete_topic(topic)
            state.stats.forget_topic(topic)
            state.topic_deleted(topic)
        return self._when_saved(state.when_topics_saved, request, connection)

    def _when_saved(
        self,
        when_saved: WhenSaved,
        request: RemotingCommand,
        connection: ServerConnection,
    ) -> bytes | None:
        """Answer when a table is on disk, or with the error of its write."""
        frame = answer(request)
        if request.is_oneway:
            return frame
        when_saved(partial(answer_saved, self._state, request, connection, frame))
        return None

    def get_topic(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes | None:
        """Serve GET_TOPIC_CONFIG (351); 17 for a missing topic, never 3.

        The answer is on disk: producers act on the marks of a growing topic.

        Raises:
            Refusal: the topic does not exist.
        """
        topic = TopicHeader.from_command(request).topic
        config = self._state.topics.get(topic)
        if config is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic}")
        frame = answer(request, body=encode_topic_config(config))
        if self._state.is_topic_saved(topic) or request.is_oneway:
            return frame
        self._state.when_topics_saved(
            partial(answer_saved, self._state, request, connection, frame)
        )
        return None

    def all_topics(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve GET_ALL_TOPIC_CONFIG (21), all in one page."""
        topics = self._state.topics
        wrapper = TopicConfigWrapper(dict(topics.all()), topics.version, DataVersion(now_ms), {})
        return answer(request, body=encode_topic_config_wrapper(wrapper))

    def system_topics(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve GET_SYSTEM_TOPIC_LIST_FROM_BROKER (305)."""
        topics = self._state.topics
        own = [name for name in topics.all() if is_system_topic(name) or topics.is_reserved(name)]
        return answer(request, body=encode_topic_list(own))

    # -- groups ---------------------------------------------------------------------------

    def create_group(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes | None:
        """Serve UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200).

        Raises:
            Refusal: a name, the retry policy or an attribute is refused.
        """
        config = self._checked_group(decode_group_config(request.body))
        self._state.groups.put(config, now_ms)
        self._state.groups_changed()
        return self._when_saved(self._state.when_groups_saved, request, connection)

    def create_groups(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes | None:
        """Serve UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225).

        Raises:
            Refusal: a name, a retry policy or an attribute is refused; none is created.
        """
        configs = decode_group_config_list(request.body)
        for config in [self._checked_group(config) for config in configs]:
            self._state.groups.put(config, now_ms)
        self._state.groups_changed()
        return self._when_saved(self._state.when_groups_saved, request, connection)

    def _checked_group(self, config: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        """Check a group and apply the changes that it carries in the attributes."""
        fault = check_group(config.group_name)
        if fault is not None:
            raise Refusal(ResponseCode.INVALID_PARAMETER, fault)
        try:
            check_policy(config.group_retry_policy)
        except ConfigError as error:
            raise Refusal(ResponseCode.INVALID_PARAMETER, str(error)) from error
        present = self._state.groups.get(config.group_name)
        return _altered(config, present, GROUP_ATTRIBUTES)

    def delete_group(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes | None:
        """Serve DELETE_SUBSCRIPTIONGROUP (207)."""
        header = DeleteGroupHeader.from_command(request)
        self._state.groups.delete(header.group_name, now_ms)
        if header.clean_offset:
            self._state.offsets.remove_group(header.group_name)
            self._state.shares.forget(header.group_name)
            self._state.skipped.forget(header.group_name)
        self._state.stats.forget_group(header.group_name)
        self._state.groups_changed()
        return self._when_saved(self._state.when_groups_saved, request, connection)

    def get_group(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve GET_SUBSCRIPTIONGROUP_CONFIG (352); creates the group if that is allowed.

        Raises:
            Refusal: the group does not exist and may not be created.
        """
        group = GroupHeader.from_command(request).group
        config = self._state.groups.find(group, now_ms)
        if config is None:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"No group in this broker. group: {group}",
            )
        return answer(request, body=encode_group_config(config))

    def all_groups(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201), all in one page."""
        return answer(request, body=group_snapshot(self._state.groups)())

    # -- tables -------------------------------------------------------------------------

    def all_consumer_offsets(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve GET_ALL_CONSUMER_OFFSET (43)."""
        offsets = self._state.offsets
        table = {key: dict(queues) for key, queues in offsets.all().items()}
        return answer(
            request, body=encode_consumer_offsets(ConsumerOffsets(table, offsets.version))
        )

    def all_delay_offsets(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve GET_ALL_DELAY_OFFSET (45)."""
        body = encode_delay_offsets(self._schedule.offsets(), self._schedule.version)
        return answer(request, body=body)


def _altered(config: C, present: C | None, rules: Mapping[str, Attribute]) -> C:
    """Apply the changes that `config` carries in its attributes to those of `present`."""
    try:
        attributes = altered_attributes(
            rules,
            present.attributes if present is not None else {},
            config.attributes,
            is_new=present is None,
        )
    except ConfigError as error:
        raise Refusal(ResponseCode.SYSTEM_ERROR, str(error)) from error
    return replace(config, attributes=attributes)
