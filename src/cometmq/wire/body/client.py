"""Bodies that clients and brokers exchange (docs/internals/protocol.md).

Every class has ``encode() -> bytes`` and ``decode(body) -> instance``; decode raises CodecError
naming body and field.  Keys come in fastjson's alphabetical order.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cometmq.codec.java_hash import tags_code
from cometmq.errors import CodecError
from cometmq.model.group import (
    SUBSCRIBE_ALL,
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from cometmq.model.queue import MessageQueue
from cometmq.wire.body.fields import (
    bool_field,
    each_object,
    enum_field,
    int_field,
    list_field,
    object_field,
    optional_str_field,
    str_field,
    str_list_field,
)
from cometmq.wire.command.fastjson import dumps, loads_object, queue_from_json, queue_to_json

__all__ = [
    "CONSUME_DIRECTLY_RESULTS",
    "CheckClientConfigBody",
    "ConsumeDirectlyResult",
    "ConsumerData",
    "ConsumerListBody",
    "ConsumerRunningInfo",
    "ConsumerStatusBody",
    "HeartbeatData",
    "LockBatchRequest",
    "LockBatchResponse",
    "ResetOffsetBody",
    "subscription_from_json",
    "subscription_to_json",
]


def subscription_to_json(subscription: SubscriptionData) -> dict[str, Any]:
    """Return the JSON object of a subscription."""
    return {
        "classFilterMode": subscription.class_filter_mode,
        "codeSet": sorted(subscription.code_set),
        "expressionType": subscription.expression_type,
        "subString": subscription.sub_string,
        "subVersion": subscription.sub_version,
        "tagsSet": sorted(subscription.tags_set),
        "topic": subscription.topic,
    }


def subscription_from_json(data: Mapping[Any, Any]) -> SubscriptionData:
    """Return the subscription of a JSON object.

    The codes are computed again from the tags: Go hashes UTF-8 bytes, which gives other numbers
    for tags outside ASCII (T22).  A missing or empty expression type means TAG.
    """
    body = "SubscriptionData"
    tags = frozenset(str_list_field(data, body, "tagsSet"))
    return SubscriptionData(
        str_field(data, body, "topic"),
        str_field(data, body, "subString", SUBSCRIBE_ALL),
        tags,
        frozenset([tags_code(tag) for tag in tags]),
        int_field(data, body, "subVersion", 0),
        optional_str_field(data, body, "expressionType") or "TAG",
        bool_field(data, body, "classFilterMode", False),
    )


@dataclass(frozen=True, slots=True)
class ConsumerData:
    """One consumer group of a heartbeat."""

    group_name: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscriptions: tuple[SubscriptionData, ...] = ()
    unit_mode: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {
            "consumeFromWhere": self.consume_from_where.name,
            "consumeType": self.consume_type.name,
            "groupName": self.group_name,
            "messageModel": self.message_model.name,
            "subscriptionDataSet": [subscription_to_json(item) for item in self.subscriptions],
            "unitMode": self.unit_mode,
        }

    @staticmethod
    def from_json(data: Mapping[Any, Any]) -> "ConsumerData":
        """Return the consumer of a JSON object; enums may be names or ordinals (T26)."""
        body = "ConsumerData"
        return ConsumerData(
            str_field(data, body, "groupName"),
            enum_field(data, body, "consumeType", ConsumeType, ConsumeType.CONSUME_PASSIVELY),
            enum_field(data, body, "messageModel", MessageModel, MessageModel.CLUSTERING),
            enum_field(
                data,
                body,
                "consumeFromWhere",
                ConsumeFromWhere,
                ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
            ),
            tuple(each_object(data, body, "subscriptionDataSet", subscription_from_json)),
            bool_field(data, body, "unitMode", False),
        )


@dataclass(frozen=True, slots=True)
class HeartbeatData:
    """Body of HEART_BEAT 34; ``without_sub`` means "my subscriptions are as before" (V2)."""

    client_id: str
    producer_groups: tuple[str, ...] = ()
    consumers: tuple[ConsumerData, ...] = ()
    heartbeat_fingerprint: int = 0
    without_sub: bool = False

    def encode(self) -> bytes:
        """Return the body."""
        return dumps(
            {
                "clientID": self.client_id,
                "consumerDataSet": [consumer.to_json() for consumer in self.consumers],
                "heartbeatFingerprint": self.heartbeat_fingerprint,
                "producerDataSet": [{"groupName": group} for group in self.producer_groups],
                "withoutSub": self.without_sub,
            }
        )

    @staticmethod
    def decode(raw: bytes) -> "HeartbeatData":
        """Return the heartbeat of a body; absent sets are empty, as C++ leaves them out."""
        body = "HeartbeatData"
        data = loads_object(raw, body)
        return HeartbeatData(
            str_field(data, body, "clientID"),
            tuple(
                each_object(
                    data,
                    body,
                    "producerDataSet",
                    lambda item: str_field(item, "ProducerData", "groupName"),
                )
            ),
            tuple(each_object(data, body, "consumerDataSet", ConsumerData.from_json)),
            int_field(data, body, "heartbeatFingerprint", 0),
            bool_field(data, body, "withoutSub", False),
        )


@dataclass(frozen=True, slots=True)
class ConsumerListBody:
    """Answer to GET_CONSUMER_LIST_BY_GROUP 38: client ids in any order."""

    client_ids: tuple[str, ...]

    def encode(self) -> bytes:
        """Return the body."""
        return dumps({"consumerIdList": list(self.client_ids)})

    @staticmethod
    def decode(raw: bytes) -> "ConsumerListBody":
        """Return the list of a body."""
        body = "ConsumerListBody"
        return ConsumerListBody(
            tuple(str_list_field(loads_object(raw, body), body, "consumerIdList"))
        )


@dataclass(frozen=True, slots=True)
class CheckClientConfigBody:
    """Body of CHECK_CLIENT_CONFIG 46."""

    client_id: str
    group: str
    subscription: SubscriptionData
    namespace: str | None = None

    def encode(self) -> bytes:
        """Return the body."""
        data: dict[str, Any] = {"clientId": self.client_id, "group": self.group}
        if self.namespace is not None:
            data["namespace"] = self.namespace
        data["subscriptionData"] = subscription_to_json(self.subscription)
        return dumps(data)

    @staticmethod
    def decode(raw: bytes) -> "CheckClientConfigBody":
        """Return the request of a body."""
        body = "CheckClientConfigBody"
        data = loads_object(raw, body)
        return CheckClientConfigBody(
            str_field(data, body, "clientId"),
            str_field(data, body, "group"),
            subscription_from_json(object_field(data, body, "subscriptionData")),
            optional_str_field(data, body, "namespace"),
        )


def _queues(data: Mapping[Any, Any], body: str, name: str) -> tuple[MessageQueue, ...]:
    return tuple([queue_from_json(item) for item in list_field(data, body, name)])


@dataclass(frozen=True, slots=True)
class LockBatchRequest:
    """Body of LOCK_BATCH_MQ 41 and UNLOCK_BATCH_MQ 42."""

    consumer_group: str
    client_id: str
    queues: tuple[MessageQueue, ...]
    only_this_broker: bool = False

    def encode(self) -> bytes:
        """Return the body."""
        return dumps(
            {
                "clientId": self.client_id,
                "consumerGroup": self.consumer_group,
                "mqSet": [queue_to_json(queue) for queue in self.queues],
                "onlyThisBroker": self.only_this_broker,
            }
        )

    @staticmethod
    def decode(raw: bytes) -> "LockBatchRequest":
        """Return the request of a body."""
        body = "LockBatchRequest"
        data = loads_object(raw, body)
        return LockBatchRequest(
            str_field(data, body, "consumerGroup"),
            str_field(data, body, "clientId"),
            _queues(data, body, "mqSet"),
            bool_field(data, body, "onlyThisBroker", False),
        )


@dataclass(frozen=True, slots=True)
class LockBatchResponse:
    """Answer to LOCK_BATCH_MQ 41: the queues this client holds now."""

    queues: tuple[MessageQueue, ...]

    def encode(self) -> bytes:
        """Return the body."""
        return dumps({"lockOKMQSet": [queue_to_json(queue) for queue in self.queues]})

    @staticmethod
    def decode(raw: bytes) -> "LockBatchResponse":
        """Return the answer of a body."""
        body = "LockBatchResponse"
        return LockBatchResponse(_queues(loads_object(raw, body), body, "lockOKMQSet"))


def _offsets_from_json(value: Any, body: str) -> dict[MessageQueue, int]:
    """Return the offsets of a queue-keyed map, of C++'s list, or of [queue, offset] pairs."""
    offsets: dict[MessageQueue, int] = {}
    if isinstance(value, dict):
        for key, queue_offset in value.items():
            offsets[queue_from_json(key)] = int_field({"offset": queue_offset}, body, "offset")
        return offsets
    if isinstance(value, list):
        for item in value:
            if isinstance(item, list) and len(item) == 2:
                offsets[queue_from_json(item[0])] = int_field({"offset": item[1]}, body, "offset")
            elif isinstance(item, dict):
                offsets[queue_from_json(item)] = int_field(item, body, "offset")
            else:
                raise CodecError(f"{body}: {item!r:.100} is no queue with an offset")
        return offsets
    if value is None:
        return offsets
    raise CodecError(f"{body}: {value!r:.100} is no table of offsets")


@dataclass(frozen=True, slots=True)
class ResetOffsetBody:
    """Table of offsets per queue: answer to 222, body of RESET_CONSUMER_CLIENT_OFFSET 220.

    Java and Go read the queue-keyed map, C++ and Python clients a list (T21).
    """

    offsets: dict[MessageQueue, int]

    def encode(self) -> bytes:
        """Return the body for Java and Go."""
        return dumps({"offsetTable": self.offsets})

    def encode_for_cpp(self) -> bytes:
        """Return the body for C++ and Python clients."""
        table = [
            {
                "brokerName": queue.broker_name,
                "offset": queue_offset,
                "queueId": queue.queue_id,
                "topic": queue.topic,
            }
            for queue, queue_offset in self.offsets.items()
        ]
        return dumps({"offsetTable": table})

    @staticmethod
    def decode(raw: bytes) -> "ResetOffsetBody":
        """Return the table of a body in any of its forms."""
        body = "ResetOffsetBody"
        return ResetOffsetBody(_offsets_from_json(loads_object(raw, body).get("offsetTable"), body))


@dataclass(frozen=True, slots=True)
class ConsumerStatusBody:
    """Answer to 221 (offsets of this client) and to 223 (offsets per client id)."""

    queue_table: dict[MessageQueue, int] = field(default_factory=dict)
    consumer_table: dict[str, dict[MessageQueue, int]] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the body; Java fills one of the two tables and writes the other empty."""
        return dumps({"consumerTable": self.consumer_table, "messageQueueTable": self.queue_table})

    @staticmethod
    def decode(raw: bytes) -> "ConsumerStatusBody":
        """Return the tables of a body."""
        body = "GetConsumerStatusBody"
        data = loads_object(raw, body)
        return ConsumerStatusBody(
            _offsets_from_json(data.get("messageQueueTable"), body),
            {
                str(client_id): _offsets_from_json(table, body)
                for client_id, table in object_field(data, body, "consumerTable").items()
            },
        )


# Go sends the ordinal.
CONSUME_DIRECTLY_RESULTS = (
    "CR_SUCCESS",
    "CR_LATER",
    "CR_ROLLBACK",
    "CR_COMMIT",
    "CR_THROW_EXCEPTION",
    "CR_RETURN_NULL",
)


@dataclass(frozen=True, slots=True)
class ConsumeDirectlyResult:
    """Answer to CONSUME_MESSAGE_DIRECTLY 309; ``result`` is one of CONSUME_DIRECTLY_RESULTS."""

    result: str
    order: bool = False
    auto_commit: bool = True
    remark: str | None = None
    spent_time_ms: int = 0

    def encode(self) -> bytes:
        """Return the body."""
        data: dict[str, Any] = {
            "autoCommit": self.auto_commit,
            "consumeResult": self.result,
            "order": self.order,
        }
        if self.remark is not None:
            data["remark"] = self.remark
        data["spentTimeMills"] = self.spent_time_ms
        return dumps(data)

    @staticmethod
    def decode(raw: bytes) -> "ConsumeDirectlyResult":
        """Return the result of a body, its kind by name or ordinal.

        Raises:
            CodecError: the body is no such result.
        """
        body = "ConsumeMessageDirectlyResult"
        data = loads_object(raw, body)
        result = data.get("consumeResult")
        if isinstance(result, int) and 0 <= result < len(CONSUME_DIRECTLY_RESULTS):
            result = CONSUME_DIRECTLY_RESULTS[result]
        if result not in CONSUME_DIRECTLY_RESULTS:
            raise CodecError(
                f"{body}: field consumeResult is {result!r:.100}, expected one of"
                f" {', '.join(CONSUME_DIRECTLY_RESULTS)}"
            )
        return ConsumeDirectlyResult(
            result,
            bool_field(data, body, "order", False),
            bool_field(data, body, "autoCommit", True),
            optional_str_field(data, body, "remark"),
            int_field(data, body, "spentTimeMills", 0),
        )


@dataclass(frozen=True, slots=True)
class ConsumerRunningInfo:
    """Answer to GET_CONSUMER_RUNNING_INFO 307, shown by tools.

    ``queue_table`` and ``pop_table`` hold what Java calls ProcessQueueInfo and
    PopProcessQueueInfo as JSON objects (``droped`` is spelled so), ``status_table`` the rates per
    topic.
    """

    properties: dict[str, str] = field(default_factory=dict)
    subscriptions: tuple[SubscriptionData, ...] = ()
    queue_table: dict[MessageQueue, dict[str, Any]] = field(default_factory=dict)
    pop_table: dict[MessageQueue, dict[str, Any]] = field(default_factory=dict)
    status_table: dict[str, dict[str, Any]] = field(default_factory=dict)
    user_consumer_info: dict[str, str] = field(default_factory=dict)
    jstack: str | None = None

    def encode(self) -> bytes:
        """Return the body."""
        data: dict[str, Any] = {} if self.jstack is None else {"jstack": self.jstack}
        data.update(
            mqPopTable=self.pop_table,
            mqTable=self.queue_table,
            properties=self.properties,
            statusTable=self.status_table,
            subscriptionSet=[subscription_to_json(item) for item in self.subscriptions],
            userConsumerInfo=self.user_consumer_info,
        )
        return dumps(data)

    @staticmethod
    def decode(raw: bytes) -> "ConsumerRunningInfo":
        """Return the info of a body."""
        body = "ConsumerRunningInfo"
        data = loads_object(raw, body)
        return ConsumerRunningInfo(
            _texts(data, body, "properties"),
            tuple(each_object(data, body, "subscriptionSet", subscription_from_json)),
            _queue_table(data, body, "mqTable"),
            _queue_table(data, body, "mqPopTable"),
            {str(key): dict(value) for key, value in _objects(data, body, "statusTable").items()},
            _texts(data, body, "userConsumerInfo"),
            optional_str_field(data, body, "jstack"),
        )


def _texts(data: Mapping[Any, Any], body: str, name: str) -> dict[str, str]:
    table = object_field(data, body, name)
    return {str(key): str_field(table, body, key, "") for key in table}


def _objects(data: Mapping[Any, Any], body: str, name: str) -> dict[Any, dict[Any, Any]]:
    table = object_field(data, body, name)
    return {key: object_field(table, body, key) for key in table}


def _queue_table(
    data: Mapping[Any, Any], body: str, name: str
) -> dict[MessageQueue, dict[str, Any]]:
    return {queue_from_json(key): value for key, value in _objects(data, body, name).items()}
