"""Bodies of administration: statistics and contents of queues
(docs/internals/protocol.md#administration).

``encode_*`` returns a body, ``decode_*`` raises CodecError naming body and field.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cometmq.model.group import SubscriptionData
from cometmq.model.queue import MessageQueue
from cometmq.wire.body.admin import (
    ConsumeStats,
    consume_stats_from_json,
    consume_stats_to_json,
)
from cometmq.wire.body.client import subscription_from_json, subscription_to_json
from cometmq.wire.body.fields import (
    bool_field,
    each_object,
    float_field,
    int_field,
    int_key,
    list_field,
    object_field,
    optional_str_field,
    str_field,
)
from cometmq.wire.command.fastjson import dumps, loads_object, queue_from_json, queue_to_json

__all__ = [
    "ConsumeQueueView",
    "ProducerInfo",
    "QueueTimeSpan",
    "StatsWindow",
    "StatsWindows",
    "TopicSubscription",
    "UnitView",
    "decode_broker_consume_stats",
    "decode_consume_queue_view",
    "decode_correction_offsets",
    "decode_group_forbidden",
    "decode_producer_table",
    "decode_stats_windows",
    "decode_time_spans",
    "decode_topic_subscription",
    "encode_broker_consume_stats",
    "encode_consume_queue_view",
    "encode_correction_offsets",
    "encode_group_forbidden",
    "encode_producer_table",
    "encode_stats_windows",
    "encode_time_spans",
    "encode_topic_subscription",
]


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ProducerInfo:
    """A member of a producer group; ``remote_ip`` is ``/ip:port``, as Java writes addresses."""

    client_id: str
    remote_ip: str
    language: str
    version: int
    last_update_timestamp_ms: int


def encode_producer_table(table: Mapping[str, Iterable[ProducerInfo]]) -> bytes:
    """Return the answer to GET_ALL_PRODUCER_INFO 328: producers by group."""
    return dumps(
        {
            "data": {
                group: [
                    {
                        "clientId": item.client_id,
                        "language": item.language,
                        "lastUpdateTimestamp": item.last_update_timestamp_ms,
                        "remoteIP": item.remote_ip,
                        "version": item.version,
                    }
                    for item in producers
                ]
                for group, producers in table.items()
            }
        }
    )


def decode_producer_table(raw: bytes) -> dict[str, list[ProducerInfo]]:
    """Return the producers of a body."""
    body = "ProducerTableInfo"
    table = object_field(loads_object(raw, body), body, "data")

    def producer_from_json(item: Mapping[Any, Any]) -> ProducerInfo:
        return ProducerInfo(
            str_field(item, body, "clientId", ""),
            str_field(item, body, "remoteIP", ""),
            str_field(item, body, "language", "OTHER"),
            int_field(item, body, "version", 0),
            int_field(item, body, "lastUpdateTimestamp", 0),
        )

    return {str(group): each_object(table, body, group, producer_from_json) for group in table}


@dataclass(frozen=True, slots=True)
class QueueTimeSpan:
    """When a queue's messages were stored, and how far in time a group is; all in ms."""

    queue: MessageQueue
    min_timestamp_ms: int
    max_timestamp_ms: int
    consume_timestamp_ms: int
    delay_ms: int


def encode_time_spans(spans: Iterable[QueueTimeSpan]) -> bytes:
    """Return the answer to QUERY_CONSUME_TIME_SPAN 303; each time also as text, local time."""
    return dumps(
        {
            "consumeTimeSpanSet": [
                {
                    "consumeTimeStamp": span.consume_timestamp_ms,
                    "consumeTimeStampStr": _local_time(span.consume_timestamp_ms),
                    "delayTime": span.delay_ms,
                    "maxTimeStamp": span.max_timestamp_ms,
                    "maxTimeStampStr": _local_time(span.max_timestamp_ms),
                    "messageQueue": queue_to_json(span.queue),
                    "minTimeStamp": span.min_timestamp_ms,
                    "minTimeStampStr": _local_time(span.min_timestamp_ms),
                }
                for span in spans
            ]
        }
    )


def _local_time(time_ms: int) -> str:
    """Return a time as RocketMQ prints it, `2026-11-21#12:41:48:849`."""
    second, millisecond = divmod(time_ms, 1000)
    moment = (_EPOCH + timedelta(seconds=second)).astimezone()
    return f"{moment:%Y-%m-%d#%H:%M:%S}:{millisecond:03}"


def decode_time_spans(raw: bytes) -> list[QueueTimeSpan]:
    """Return the spans of a body."""
    body = "QueryConsumeTimeSpanBody"

    def time_span_from_json(item: Mapping[Any, Any]) -> QueueTimeSpan:
        return QueueTimeSpan(
            queue_from_json(object_field(item, body, "messageQueue")),
            int_field(item, body, "minTimeStamp", 0),
            int_field(item, body, "maxTimeStamp", 0),
            int_field(item, body, "consumeTimeStamp", 0),
            int_field(item, body, "delayTime", 0),
        )

    return each_object(loads_object(raw, body), body, "consumeTimeSpanSet", time_span_from_json)


def encode_correction_offsets(offsets: Mapping[int, int]) -> bytes:
    """Return the answer to QUERY_CORRECTION_OFFSET 308: offset by queue id."""
    return dumps({"correctionOffsets": dict(offsets)})


def decode_correction_offsets(raw: bytes) -> dict[int, int]:
    """Return the offsets of a body."""
    body = "QueryCorrectionOffsetBody"
    table = object_field(loads_object(raw, body), body, "correctionOffsets")
    return {int_key(body, key): int_field(table, body, key) for key in table}


@dataclass(frozen=True, slots=True)
class StatsWindow:
    """Growth of a counter over a span of time: in all, per second and per call."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


@dataclass(frozen=True, slots=True)
class StatsWindows:
    """Answer to VIEW_BROKER_STATS_DATA 315."""

    minute: StatsWindow
    hour: StatsWindow
    day: StatsWindow


def encode_stats_windows(windows: StatsWindows) -> bytes:
    """Return the answer to 315."""
    return dumps(
        {
            name: {"avgpt": window.avgpt, "sum": window.sum, "tps": window.tps}
            for name, window in (
                ("statsDay", windows.day),
                ("statsHour", windows.hour),
                ("statsMinute", windows.minute),
            )
        }
    )


def decode_stats_windows(raw: bytes) -> StatsWindows:
    """Return the numbers of a body."""
    body = "BrokerStatsData"
    data = loads_object(raw, body)

    def window(name: str) -> StatsWindow:
        item = object_field(data, body, name)
        return StatsWindow(
            int_field(item, body, "sum", 0), float_field(item, "tps"), float_field(item, "avgpt")
        )

    return StatsWindows(window("statsMinute"), window("statsHour"), window("statsDay"))


def encode_broker_consume_stats(
    broker_address: str, groups: Mapping[str, Iterable[ConsumeStats]]
) -> bytes:
    """Return the answer to GET_BROKER_CONSUME_STATS 317: progress by group, one item a topic."""
    listed = {group: list(stats) for group, stats in groups.items()}
    queues = [
        queue for stats in listed.values() for item in stats for queue in item.queues.values()
    ]
    return dumps(
        {
            "brokerAddr": broker_address,
            "consumeStatsList": [
                {group: [consume_stats_to_json(item) for item in stats]}
                for group, stats in listed.items()
            ],
            "totalDiff": sum(queue.broker_offset - queue.consumer_offset for queue in queues),
            "totalInflightDiff": sum(
                (queue.pull_offset or 0) - queue.consumer_offset for queue in queues
            ),
        }
    )


def decode_broker_consume_stats(raw: bytes) -> dict[str, list[ConsumeStats]]:
    """Return the progress of each group of a body."""
    body = "ConsumeStatsList"
    groups: dict[str, list[ConsumeStats]] = {}
    for table in list_field(loads_object(raw, body), body, "consumeStatsList"):
        for group in table:
            items = [consume_stats_from_json(item) for item in list_field(table, body, group)]
            groups.setdefault(str(group), []).extend(items)
    return groups


@dataclass(frozen=True, slots=True)
class TopicSubscription:
    """Answer to QUERY_SUBSCRIPTION_BY_CONSUMER 345."""

    group: str
    topic: str
    subscription: SubscriptionData | None


def encode_topic_subscription(item: TopicSubscription) -> bytes:
    """Return the answer to 345."""
    data: dict[str, Any] = {"group": item.group}
    if item.subscription is not None:
        data["subscriptionData"] = subscription_to_json(item.subscription)
    data["topic"] = item.topic
    return dumps(data)


def decode_topic_subscription(raw: bytes) -> TopicSubscription:
    """Return the subscription of a body."""
    body = "QuerySubscriptionResponseBody"
    data = loads_object(raw, body)
    subscription = object_field(data, body, "subscriptionData")
    return TopicSubscription(
        str_field(data, body, "group"),
        str_field(data, body, "topic"),
        subscription_from_json(subscription) if subscription else None,
    )


def encode_group_forbidden(group: str, topic: str, *, readable: bool) -> bytes:
    """Return the answer to UPDATE_AND_GET_GROUP_FORBIDDEN 353."""
    return dumps({"group": group, "readable": readable, "topic": topic})


def decode_group_forbidden(raw: bytes) -> tuple[str, str, bool]:
    """Return group, topic, and whether the group may read it."""
    body = "GroupForbidden"
    data = loads_object(raw, body)
    return (
        str_field(data, body, "group"),
        str_field(data, body, "topic"),
        bool_field(data, body, "readable", True),
    )


@dataclass(frozen=True, slots=True)
class UnitView:
    """A consume-queue unit as tools show it."""

    physical_offset: int
    size: int
    tags_code: int
    message: str | None = None
    bit_map: str | None = None
    """The bits of its extension unit, as digits."""
    ext_json: str | None = None
    """Its extension unit as JSON."""
    is_matched: bool = False
    """Whether the extension unit lets the message match the group's subscription."""


@dataclass(frozen=True, slots=True)
class ConsumeQueueView:
    """Answer to QUERY_CONSUME_QUEUE 321; ``filter_data`` is a remark on the group's filter."""

    min_queue_offset: int
    max_queue_offset: int
    units: tuple[UnitView, ...] | None
    subscription: SubscriptionData | None = None
    filter_data: str | None = None


def encode_consume_queue_view(view: ConsumeQueueView) -> bytes:
    """Return the answer to 321."""
    data: dict[str, Any] = {}
    if view.filter_data is not None:
        data["filterData"] = view.filter_data
    data["maxQueueIndex"] = view.max_queue_offset
    data["minQueueIndex"] = view.min_queue_offset
    if view.units is not None:
        data["queueData"] = [_unit_to_json(unit) for unit in view.units]
    if view.subscription is not None:
        data["subscriptionData"] = subscription_to_json(view.subscription)
    return dumps(data)


def _unit_to_json(unit: UnitView) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if unit.bit_map is not None:
        data["bitMap"] = unit.bit_map
    data["eval"] = unit.is_matched
    if unit.ext_json is not None:
        data["extendDataJson"] = unit.ext_json
    if unit.message is not None:
        data["msg"] = unit.message
    data["physicOffset"] = unit.physical_offset
    data["physicSize"] = unit.size
    data["tagsCode"] = unit.tags_code
    return data


def decode_consume_queue_view(raw: bytes) -> ConsumeQueueView:
    """Return the queue of a body."""
    body = "QueryConsumeQueueResponseBody"
    data = loads_object(raw, body)
    subscription = object_field(data, body, "subscriptionData")

    def unit_from_json(item: Mapping[Any, Any]) -> UnitView:
        return UnitView(
            int_field(item, body, "physicOffset", 0),
            int_field(item, body, "physicSize", 0),
            int_field(item, body, "tagsCode", 0),
            optional_str_field(item, body, "msg"),
            optional_str_field(item, body, "bitMap"),
            optional_str_field(item, body, "extendDataJson"),
            item.get("eval") is True,
        )

    has_units = bool(list_field(data, body, "queueData"))
    return ConsumeQueueView(
        int_field(data, body, "minQueueIndex", 0),
        int_field(data, body, "maxQueueIndex", 0),
        tuple(each_object(data, body, "queueData", unit_from_json)) if has_units else None,
        subscription_from_json(subscription) if subscription else None,
        optional_str_field(data, body, "filterData"),
    )
