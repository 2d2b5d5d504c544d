"""Bodies of administration: groups, topics, connections, progress
(docs/internals/protocol.md#administration).

``encode_*`` returns a body, ``decode_*`` raises CodecError naming body and field.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cometmq.model.group import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from cometmq.model.offsets import ConsumerOffset
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import DataVersion, TopicConfig
from cometmq.wire.body.client import subscription_from_json, subscription_to_json
from cometmq.wire.body.fields import (
    bool_field,
    each_object,
    enum_field,
    float_field,
    int_field,
    int_key,
    object_field,
    optional_int_field,
    str_field,
    str_list_field,
)
from cometmq.wire.body.route import (
    data_version_from_json,
    data_version_to_json,
    topic_config_from_json,
    topic_config_to_json,
)
from cometmq.wire.command.fastjson import dumps, loads_object, queue_from_json

__all__ = [
    "ClientConnection",
    "ConsumeStats",
    "ConsumerConnection",
    "ConsumerOffsets",
    "GroupConfigWrapper",
    "OffsetWrapper",
    "TopicOffset",
    "TopicStats",
    "consume_stats_from_json",
    "consume_stats_to_json",
    "decode_consume_stats",
    "decode_consumer_connection",
    "decode_consumer_offsets",
    "decode_delay_offsets",
    "decode_group_config",
    "decode_group_config_list",
    "decode_group_config_wrapper",
    "decode_group_list",
    "decode_producer_connection",
    "decode_topic_config",
    "decode_topic_config_list",
    "decode_topic_stats",
    "encode_consume_stats",
    "encode_consumer_connection",
    "encode_consumer_offsets",
    "encode_delay_offsets",
    "encode_group_config",
    "encode_group_config_list",
    "encode_group_config_wrapper",
    "encode_group_list",
    "encode_producer_connection",
    "encode_topic_config",
    "encode_topic_config_list",
    "encode_topic_stats",
    "group_config_from_json",
    "group_config_to_json",
]


def group_config_to_json(config: SubscriptionGroupConfig) -> dict[str, Any]:
    """Return the JSON object of a consumer group."""
    data: dict[str, Any] = {
        "attributes": config.attributes,
        "brokerId": config.broker_id,
        "consumeBroadcastEnable": config.consume_broadcast_enable,
        "consumeEnable": config.consume_enable,
        "consumeFromMinEnable": config.consume_from_min_enable,
        "consumeMessageOrderly": config.consume_message_orderly,
        "consumeTimeoutMinute": config.consume_timeout_minute,
        "groupName": config.group_name,
        "groupRetryPolicy": config.group_retry_policy,
        "groupSysFlag": config.group_sys_flag,
        "notifyConsumerIdsChangedEnable": config.notify_consumer_ids_changed_enable,
        "retryMaxTimes": config.retry_max_times,
        "retryQueueNums": config.retry_queue_count,
    }
    if config.subscription_data_set is not None:
        data["subscriptionDataSet"] = list(config.subscription_data_set)
    data["whichBrokerWhenConsumeSlowly"] = config.which_broker_when_consume_slowly
    return data


def group_config_from_json(
    data: Mapping[Any, Any], group_name: str | None = None
) -> SubscriptionGroupConfig:
    """Return the group of a JSON object; what is absent has the default of a new group."""
    body = "SubscriptionGroupConfig"
    policy = object_field(data, body, "groupRetryPolicy")
    subscriptions = data.get("subscriptionDataSet")
    attributes = object_field(data, body, "attributes")
    return SubscriptionGroupConfig(
        group_name=str_field(data, body, "groupName", group_name),
        consume_enable=bool_field(data, body, "consumeEnable", True),
        consume_from_min_enable=bool_field(data, body, "consumeFromMinEnable", True),
        consume_broadcast_enable=bool_field(data, body, "consumeBroadcastEnable", True),
        consume_message_orderly=bool_field(data, body, "consumeMessageOrderly", False),
        retry_queue_count=int_field(data, body, "retryQueueNums", 1),
        retry_max_times=int_field(data, body, "retryMaxTimes", 16),
        group_retry_policy=policy or {"type": "CUSTOMIZED"},
        broker_id=int_field(data, body, "brokerId", 0),
        which_broker_when_consume_slowly=int_field(data, body, "whichBrokerWhenConsumeSlowly", 1),
        notify_consumer_ids_changed_enable=bool_field(
            data, body, "notifyConsumerIdsChangedEnable", True
        ),
        group_sys_flag=int_field(data, body, "groupSysFlag", 0),
        consume_timeout_minute=int_field(data, body, "consumeTimeoutMinute", 15),
        subscription_data_set=(
            None
            if subscriptions is None
            else tuple(each_object(data, body, "subscriptionDataSet", dict))
        ),
        attributes={str(key): str_field(attributes, body, key, "") for key in attributes},
    )


def encode_group_config(config: SubscriptionGroupConfig) -> bytes:
    """Return the body of 200 and the answer to 352."""
    return dumps(group_config_to_json(config))


def decode_group_config(raw: bytes) -> SubscriptionGroupConfig:
    """Return the group of a body."""
    return group_config_from_json(loads_object(raw, "SubscriptionGroupConfig"))


def encode_group_config_list(configs: Iterable[SubscriptionGroupConfig]) -> bytes:
    """Return the body of 225."""
    return dumps({"groupConfigList": [group_config_to_json(config) for config in configs]})


def decode_group_config_list(raw: bytes) -> list[SubscriptionGroupConfig]:
    """Return the groups of a body of 225."""
    body = "SubscriptionGroupList"
    return each_object(loads_object(raw, body), body, "groupConfigList", group_config_from_json)


@dataclass(frozen=True, slots=True)
class GroupConfigWrapper:
    """Answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG 201; ``forbidden`` holds bits by topic."""

    groups: dict[str, SubscriptionGroupConfig]
    data_version: DataVersion = field(default_factory=DataVersion)
    forbidden: dict[str, dict[str, int]] = field(default_factory=dict)


def encode_group_config_wrapper(wrapper: GroupConfigWrapper) -> bytes:
    """Return the body."""
    return dumps(
        {
            "dataVersion": data_version_to_json(wrapper.data_version),
            "forbiddenTable": wrapper.forbidden,
            "subscriptionGroupTable": {
                name: group_config_to_json(config) for name, config in wrapper.groups.items()
            },
        }
    )


def decode_group_config_wrapper(raw: bytes) -> GroupConfigWrapper:
    """Return the groups of a body."""
    body = "SubscriptionGroupWrapper"
    data = loads_object(raw, body)
    groups = object_field(data, body, "subscriptionGroupTable")
    forbidden = object_field(data, body, "forbiddenTable")
    return GroupConfigWrapper(
        {
            str(name): group_config_from_json(object_field(groups, body, name), str(name))
            for name in groups
        },
        data_version_from_json(object_field(data, body, "dataVersion")),
        {str(name): _int_table(forbidden, body, name) for name in forbidden},
    )


def _int_table(data: Mapping[Any, Any], body: str, name: Any) -> dict[str, int]:
    table = object_field(data, body, name)
    return {str(key): int_field(table, body, key) for key in table}


def encode_topic_config(config: TopicConfig) -> bytes:
    """Return the answer to 351."""
    return dumps(topic_config_to_json(config))


def decode_topic_config(raw: bytes) -> TopicConfig:
    """Return the topic of a body."""
    return topic_config_from_json(loads_object(raw, "TopicConfig"))


def encode_topic_config_list(configs: Iterable[TopicConfig]) -> bytes:
    """Return the body of UPDATE_AND_CREATE_TOPIC_LIST 18."""
    return dumps({"topicConfigList": [topic_config_to_json(config) for config in configs]})


def decode_topic_config_list(raw: bytes) -> list[TopicConfig]:
    """Return the topics of a body of 18."""
    body = "CreateTopicListRequestBody"
    return each_object(loads_object(raw, body), body, "topicConfigList", topic_config_from_json)


@dataclass(frozen=True, slots=True)
class ClientConnection:
    """A client of a broker: ``client_addr`` is ``ip:port``."""

    client_id: str
    client_addr: str
    language: str
    version: int

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {
            "clientAddr": self.client_addr,
            "clientId": self.client_id,
            "language": self.language,
            "version": self.version,
        }

    @staticmethod
    def from_json(data: Mapping[Any, Any]) -> "ClientConnection":
        """Return the connection of a JSON object."""
        body = "Connection"
        return ClientConnection(
            str_field(data, body, "clientId", ""),
            str_field(data, body, "clientAddr", ""),
            str_field(data, body, "language", "OTHER"),
            int_field(data, body, "version", 0),
        )


@dataclass(frozen=True, slots=True)
class ConsumerConnection:
    """Answer to GET_CONSUMER_CONNECTION_LIST 203."""

    connections: tuple[ClientConnection, ...]
    consume_type: ConsumeType
    message_model: MessageModel
    consume_from_where: ConsumeFromWhere
    subscriptions: dict[str, SubscriptionData]


def encode_consumer_connection(body: ConsumerConnection) -> bytes:
    """Return the answer to 203."""
    return dumps(
        {
            "connectionSet": [item.to_json() for item in body.connections],
            "consumeFromWhere": body.consume_from_where.name,
            "consumeType": body.consume_type.name,
            "messageModel": body.message_model.name,
            "subscriptionTable": {
                topic: subscription_to_json(item) for topic, item in body.subscriptions.items()
            },
        }
    )


def decode_consumer_connection(raw: bytes) -> ConsumerConnection:
    """Return the connections of a body."""
    body = "ConsumerConnection"
    data = loads_object(raw, body)
    table = object_field(data, body, "subscriptionTable")
    return ConsumerConnection(
        tuple(each_object(data, body, "connectionSet", ClientConnection.from_json)),
        enum_field(data, body, "consumeType", ConsumeType, ConsumeType.CONSUME_PASSIVELY),
        enum_field(data, body, "messageModel", MessageModel, MessageModel.CLUSTERING),
        enum_field(
            data,
            body,
            "consumeFromWhere",
            ConsumeFromWhere,
            ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        ),
        {str(topic): subscription_from_json(object_field(table, body, topic)) for topic in table},
    )


def encode_producer_connection(connections: Iterable[ClientConnection]) -> bytes:
    """Return the answer to GET_PRODUCER_CONNECTION_LIST 204."""
    return dumps({"connectionSet": [connection.to_json() for connection in connections]})


def decode_producer_connection(raw: bytes) -> list[ClientConnection]:
    """Return the connections of a body."""
    body = "ProducerConnection"
    return each_object(loads_object(raw, body), body, "connectionSet", ClientConnection.from_json)


def encode_group_list(groups: Iterable[str]) -> bytes:
    """Return the answer to QUERY_TOPIC_CONSUME_BY_WHO 300."""
    return dumps({"groupList": list(groups)})


def decode_group_list(raw: bytes) -> tuple[str, ...]:
    """Return the groups of a body."""
    return tuple(str_list_field(loads_object(raw, "GroupList"), "GroupList", "groupList"))


@dataclass(frozen=True, slots=True)
class TopicOffset:
    """Range of a queue; ``max_offset`` is the next offset to be written."""

    min_offset: int
    max_offset: int
    last_update_timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class TopicStats:
    """Answer to GET_TOPIC_STATS_INFO 202."""

    offsets: dict[MessageQueue, TopicOffset]
    put_tps: float = 0.0


def encode_topic_stats(stats: TopicStats) -> bytes:
    """Return the answer to 202."""
    return dumps(
        {
            "offsetTable": {
                queue: {
                    "lastUpdateTimestamp": item.last_update_timestamp_ms,
                    "maxOffset": item.max_offset,
                    "minOffset": item.min_offset,
                }
                for queue, item in stats.offsets.items()
            },
            "topicPutTps": stats.put_tps,
        }
    )


def _queue_objects(
    data: Mapping[Any, Any], body: str, name: str
) -> list[tuple[MessageQueue, dict[Any, Any]]]:
    table = object_field(data, body, name)
    return [(queue_from_json(key), object_field(table, body, key)) for key in table]


def decode_topic_stats(raw: bytes) -> TopicStats:
    """Return the statistics of a body."""
    body = "TopicStatsTable"
    data = loads_object(raw, body)
    return TopicStats(
        {
            queue: TopicOffset(
                int_field(item, body, "minOffset", 0),
                int_field(item, body, "maxOffset", 0),
                int_field(item, body, "lastUpdateTimestamp", 0),
            )
            for queue, item in _queue_objects(data, body, "offsetTable")
        },
        float_field(data, "topicPutTps"),
    )


@dataclass(frozen=True, slots=True)
class OffsetWrapper:
    """How far a group is in one queue; ``last_timestamp_ms`` is of the last message it read."""

    broker_offset: int
    consumer_offset: int
    pull_offset: int | None = None
    last_timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class ConsumeStats:
    """Answer to GET_CONSUME_STATS 208."""

    queues: dict[MessageQueue, OffsetWrapper]
    consume_tps: float = 0.0


def consume_stats_to_json(stats: ConsumeStats) -> dict[str, Any]:
    """Return the JSON object of a group's progress; 4.x has no pullOffset."""
    table: dict[MessageQueue, dict[str, int]] = {}
    for queue, item in stats.queues.items():
        entry = table[queue] = {
            "brokerOffset": item.broker_offset,
            "consumerOffset": item.consumer_offset,
            "lastTimestamp": item.last_timestamp_ms,
        }
        if item.pull_offset is not None:
            entry["pullOffset"] = item.pull_offset
    return {"consumeTps": stats.consume_tps, "offsetTable": table}


def encode_consume_stats(stats: ConsumeStats) -> bytes:
    """Return the answer to 208."""
    return dumps(consume_stats_to_json(stats))


def decode_consume_stats(raw: bytes) -> ConsumeStats:
    """Return the progress of a body."""
    return consume_stats_from_json(loads_object(raw, "ConsumeStats"))


def consume_stats_from_json(data: Mapping[Any, Any]) -> ConsumeStats:
    """Return the progress of a JSON object."""
    body = "ConsumeStats"
    return ConsumeStats(
        {
            queue: OffsetWrapper(
                int_field(item, body, "brokerOffset", 0),
                int_field(item, body, "consumerOffset", 0),
                optional_int_field(item, body, "pullOffset"),
                int_field(item, body, "lastTimestamp", 0),
            )
            for queue, item in _queue_objects(data, body, "offsetTable")
        },
        float_field(data, "consumeTps"),
    )


@dataclass(frozen=True, slots=True)
class ConsumerOffsets:
    """Answer to GET_ALL_CONSUMER_OFFSET 43: offsets by ``topic@group`` and queue id."""

    offsets: dict[str, dict[int, ConsumerOffset]]
    data_version: DataVersion = field(default_factory=DataVersion)
    group_topics: dict[str, tuple[str, ...]] = field(default_factory=dict)


def encode_consumer_offsets(body: ConsumerOffsets) -> bytes:
    """Return the answer to 43."""
    return dumps(
        {
            "dataVersion": data_version_to_json(body.data_version),
            "groupTopicMap": {group: list(names) for group, names in body.group_topics.items()},
            "offsetTable": body.offsets,
        }
    )


def decode_consumer_offsets(raw: bytes) -> ConsumerOffsets:
    """Return the offsets of a body."""
    body = "ConsumerOffsetSerializeWrapper"
    data = loads_object(raw, body)
    table = object_field(data, body, "offsetTable")
    topics = object_field(data, body, "groupTopicMap")
    return ConsumerOffsets(
        {str(key): _offset_table(table, body, key) for key in table},
        data_version_from_json(object_field(data, body, "dataVersion")),
        {str(group): tuple(str_list_field(topics, body, group)) for group in topics},
    )


def _offset_table(data: Mapping[Any, Any], body: str, name: Any) -> dict[int, ConsumerOffset]:
    table = object_field(data, body, name)
    return {int_key(body, key): ConsumerOffset(int_field(table, body, key)) for key in table}


def encode_delay_offsets(
    offsets: Mapping[int, int], data_version: DataVersion | None = None
) -> bytes:
    """Return the answer to GET_ALL_DELAY_OFFSET 45: consumed offset by delay level."""
    version = data_version_to_json(data_version or DataVersion())
    return dumps({"dataVersion": version, "offsetTable": dict(offsets)})


def decode_delay_offsets(raw: bytes) -> tuple[Mapping[int, int], DataVersion]:
    """Return offsets by level and their version."""
    body = "DelayOffsetSerializeWrapper"
    data = loads_object(raw, body)
    version = data_version_from_json(object_field(data, body, "dataVersion"))
    return _offset_table(data, body, "offsetTable"), version
