"""Bodies of the name server: routes, registrations, cluster info, lists
(docs/internals/protocol.md#name-server).

``encode_*`` returns a body, ``decode_*`` raises CodecError naming body and field.  Broker ids are
map keys, bare or quoted; the reader takes both.

Compressed registration, a zlib stream over::

    int n, DataVersion JSON | int topics, each: int n, "name read write perm filterType attrs"
    | int n, filter servers JSON | request version >= 413: int mappings, each: int n, JSON
"""

import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from cometmq.errors import CodecError
from cometmq.model.topic import BrokerData, DataVersion, QueueData, TopicConfig, TopicRoute
from cometmq.wire.body.fields import (
    bool_field,
    each_object,
    int_field,
    int_key,
    list_field,
    object_field,
    optional_str_field,
    str_field,
    str_list_field,
)
from cometmq.wire.command.codes import VERSION
from cometmq.wire.command.fastjson import dumps, loads_lenient, loads_object

__all__ = [
    "TopicConfigWrapper",
    "TopicList",
    "data_version_from_json",
    "data_version_to_json",
    "decode_cluster_info",
    "decode_data_version",
    "decode_kv_table",
    "decode_member_group",
    "decode_register_broker_body",
    "decode_topic_config_wrapper",
    "decode_topic_list",
    "decode_topic_route",
    "encode_cluster_info",
    "encode_data_version",
    "encode_kv_table",
    "encode_member_group",
    "encode_register_broker_body",
    "encode_topic_config_wrapper",
    "encode_topic_list",
    "encode_topic_route",
    "topic_config_from_json",
    "topic_config_to_json",
]

# From this request version on a compressed registration ends with topic queue mappings.
_MAPPING_VERSION_MIN: Final = 413
# Below this version an uncompressed body is the topic wrapper alone (3.0.11).
_BODY_VERSION_MIN: Final = 37
_INT: Final = struct.Struct(">i")
# A broker with 100,000 topics registers some 10 MB; more is taken for an attack.
_REGISTRATION_BYTES_MAX: Final = 256 * 1024 * 1024


def data_version_to_json(version: DataVersion) -> dict[str, Any]:
    """Return the JSON object of a data version."""
    return {
        "counter": version.counter,
        "stateVersion": version.state_version,
        "timestamp": version.timestamp_ms,
    }


def data_version_from_json(data: Mapping[Any, Any]) -> DataVersion:
    """Return the data version of a JSON object; 4.x writes no stateVersion."""
    body = "DataVersion"
    return DataVersion(
        int_field(data, body, "timestamp", 0),
        int_field(data, body, "counter", 0),
        int_field(data, body, "stateVersion", 0),
    )


def encode_data_version(version: DataVersion) -> bytes:
    """Return the body of QUERY_DATA_VERSION 322, both ways."""
    return dumps(data_version_to_json(version))


def decode_data_version(raw: bytes) -> DataVersion:
    """Return the data version of a body."""
    return data_version_from_json(loads_object(raw, "DataVersion"))


def topic_config_to_json(config: TopicConfig) -> dict[str, Any]:
    """Return the JSON object of a topic."""
    return {
        "attributes": config.attributes,
        "order": config.order,
        "perm": config.perm,
        "readQueueNums": config.read_queue_count,
        "topicFilterType": config.topic_filter_type,
        "topicName": config.topic,
        "topicSysFlag": config.topic_sys_flag,
        "writeQueueNums": config.write_queue_count,
    }


def topic_config_from_json(data: Mapping[Any, Any], topic: str | None = None) -> TopicConfig:
    """Return the topic of a JSON object; ``topic`` stands in for a missing topicName."""
    body = "TopicConfig"
    attributes = object_field(data, body, "attributes")
    return TopicConfig(
        str_field(data, body, "topicName", topic),
        int_field(data, body, "readQueueNums", 16),
        int_field(data, body, "writeQueueNums", 16),
        int_field(data, body, "perm", 6),
        str_field(data, body, "topicFilterType", "SINGLE_TAG"),
        int_field(data, body, "topicSysFlag", 0),
        bool_field(data, body, "order", False),
        {str(key): str_field(attributes, body, key, "") for key in attributes},
    )


def _broker_addrs(data: Mapping[Any, Any], body: str) -> dict[int, str]:
    table = object_field(data, body, "brokerAddrs")
    return {int_key(body, key): str_field(table, body, key) for key in table}


def _broker_addrs_json(broker_addrs: Mapping[int, str], *, quoted_keys: bool) -> dict[Any, str]:
    return {
        str(broker_id) if quoted_keys else broker_id: broker_addrs[broker_id]
        for broker_id in sorted(broker_addrs)
    }


def _broker_data_to_json(broker: BrokerData, *, quoted_keys: bool) -> dict[str, Any]:
    return {
        "brokerAddrs": _broker_addrs_json(broker.broker_addrs, quoted_keys=quoted_keys),
        "brokerName": broker.broker_name,
        "cluster": broker.cluster,
        "enableActingMaster": broker.enable_acting_master,
    }


def _broker_data_from_json(data: Mapping[Any, Any]) -> BrokerData:
    body = "BrokerData"
    return BrokerData(
        str_field(data, body, "cluster", ""),
        str_field(data, body, "brokerName"),
        _broker_addrs(data, body),
        bool_field(data, body, "enableActingMaster", False),
    )


def _queue_data_from_json(data: Mapping[Any, Any]) -> QueueData:
    body = "QueueData"
    return QueueData(
        str_field(data, body, "brokerName"),
        int_field(data, body, "readQueueNums"),
        int_field(data, body, "writeQueueNums"),
        int_field(data, body, "perm"),
        int_field(data, body, "topicSysFlag", 0),
    )


def encode_topic_route(
    route: TopicRoute, order_topic_conf: str | None = None, *, quoted_keys: bool = True
) -> bytes:
    """Return the answer to GET_ROUTEINFO_BY_TOPIC 105.

    ``order_topic_conf`` stands in for the route's own.  Java writes bare broker ids to clients
    below version 401; all clients accept quoted ones.
    """
    data: dict[str, Any] = {
        "brokerDatas": [
            _broker_data_to_json(broker, quoted_keys=quoted_keys) for broker in route.broker_datas
        ],
        "filterServerTable": {},
    }
    conf = route.order_topic_conf if order_topic_conf is None else order_topic_conf
    if conf is not None:
        data["orderTopicConf"] = conf
    data["queueDatas"] = [
        {
            "brokerName": queue.broker_name,
            "perm": queue.perm,
            "readQueueNums": queue.read_queue_count,
            "topicSysFlag": queue.topic_sys_flag,
            "writeQueueNums": queue.write_queue_count,
        }
        for queue in route.queue_datas
    ]
    return dumps(data)


def decode_topic_route(raw: bytes) -> TopicRoute:
    """Return the route of a body; also the body of REGISTER_TOPIC_IN_NAMESRV 217."""
    body = "TopicRouteData"
    data = loads_object(raw, body)
    return TopicRoute(
        tuple(each_object(data, body, "queueDatas", _queue_data_from_json)),
        tuple(each_object(data, body, "brokerDatas", _broker_data_from_json)),
        optional_str_field(data, body, "orderTopicConf"),
    )


def encode_cluster_info(
    brokers: Mapping[str, BrokerData],
    clusters: Mapping[str, Iterable[str]],
    *,
    quoted_keys: bool = False,
) -> bytes:
    """Return the answer to GET_BROKER_CLUSTER_INFO 106: brokers by name, names by cluster."""
    return dumps(
        {
            "brokerAddrTable": {
                name: _broker_data_to_json(broker, quoted_keys=quoted_keys)
                for name, broker in brokers.items()
            },
            "clusterAddrTable": {cluster: list(names) for cluster, names in clusters.items()},
        }
    )


def decode_cluster_info(raw: bytes) -> tuple[dict[str, BrokerData], dict[str, tuple[str, ...]]]:
    """Return brokers by name and broker names by cluster."""
    body = "ClusterInfo"
    data = loads_object(raw, body)
    brokers = object_field(data, body, "brokerAddrTable")
    clusters = object_field(data, body, "clusterAddrTable")
    return (
        {str(name): _broker_data_from_json(object_field(brokers, body, name)) for name in brokers},
        {str(name): tuple(str_list_field(clusters, body, name)) for name in clusters},
    )


def encode_member_group(group: BrokerData, *, quoted_keys: bool = False) -> bytes:
    """Return the answer to GET_BROKER_MEMBER_GROUP 901."""
    return dumps(
        {
            "brokerMemberGroup": {
                "brokerAddrs": _broker_addrs_json(group.broker_addrs, quoted_keys=quoted_keys),
                "brokerName": group.broker_name,
                "cluster": group.cluster,
            }
        }
    )


def decode_member_group(raw: bytes) -> BrokerData:
    """Return the members of a body; an unknown broker has none."""
    body = "BrokerMemberGroup"
    data = object_field(loads_object(raw, body), body, "brokerMemberGroup")
    return BrokerData(
        str_field(data, body, "cluster", ""),
        str_field(data, body, "brokerName", ""),
        _broker_addrs(data, body),
    )


class TopicList(NamedTuple):
    """Answer to 206, 224, 304, 305, 311 to 313 and 343."""

    topics: tuple[str, ...]
    broker_addr: str | None = None


def encode_topic_list(topics: Iterable[str], broker_addr: str | None = None) -> bytes:
    """Return a list of topics and, for 304 and 343, the address of a broker."""
    data: dict[str, Any] = {} if broker_addr is None else {"brokerAddr": broker_addr}
    data["topicList"] = list(topics)
    return dumps(data)


def decode_topic_list(raw: bytes) -> TopicList:
    """Return the list of a body."""
    body = "TopicList"
    data = loads_object(raw, body)
    return TopicList(
        tuple(str_list_field(data, body, "topicList")),
        optional_str_field(data, body, "brokerAddr"),
    )


def encode_kv_table(table: Mapping[str, str]) -> bytes:
    """Return a KVTable: answer to 219 and 28, body of the answer to 103."""
    return dumps({"table": dict(table)})


def decode_kv_table(raw: bytes) -> dict[str, str]:
    """Return the table of a KVTable body."""
    body = "KVTable"
    table = object_field(loads_object(raw, body), body, "table")
    return {str(key): str_field(table, body, key, "") for key in table}


@dataclass(frozen=True, slots=True)
class TopicConfigWrapper:
    """A broker's topics and their version: answer to 21, and what REGISTER_BROKER 103 carries.

    The parts of static topics are kept as they came.
    """

    topics: dict[str, TopicConfig]
    data_version: DataVersion = field(default_factory=DataVersion)
    mapping_data_version: DataVersion | None = None
    mapping_details: dict[str, Any] = field(default_factory=dict)
    mapping_infos: dict[str, Any] | None = None
    filter_servers: tuple[str, ...] = ()


def _wrapper_to_json(wrapper: TopicConfigWrapper) -> dict[str, Any]:
    mapping_version = wrapper.mapping_data_version or DataVersion()
    data: dict[str, Any] = {
        "dataVersion": data_version_to_json(wrapper.data_version),
        "mappingDataVersion": data_version_to_json(mapping_version),
        "topicConfigTable": {
            name: topic_config_to_json(config) for name, config in wrapper.topics.items()
        },
        "topicQueueMappingDetailMap": wrapper.mapping_details,
    }
    if wrapper.mapping_infos is not None:
        data["topicQueueMappingInfoMap"] = wrapper.mapping_infos
    return data


def _wrapper_from_json(
    data: Mapping[Any, Any], filter_servers: tuple[str, ...] = ()
) -> TopicConfigWrapper:
    body = "TopicConfigSerializeWrapper"
    table = object_field(data, body, "topicConfigTable")
    mapping_version = data.get("mappingDataVersion")
    infos = "topicQueueMappingInfoMap"
    return TopicConfigWrapper(
        {
            str(name): topic_config_from_json(object_field(table, body, name), str(name))
            for name in table
        },
        data_version_from_json(object_field(data, body, "dataVersion")),
        data_version_from_json(mapping_version) if isinstance(mapping_version, dict) else None,
        object_field(data, body, "topicQueueMappingDetailMap"),
        object_field(data, body, infos) if data.get(infos) is not None else None,
        filter_servers,
    )


def encode_topic_config_wrapper(wrapper: TopicConfigWrapper) -> bytes:
    """Return the answer to GET_ALL_TOPIC_CONFIG 21."""
    return dumps(_wrapper_to_json(wrapper))


def decode_topic_config_wrapper(raw: bytes) -> TopicConfigWrapper:
    """Return the topics of an answer to 21, or of a registration of a broker before 3.0.11."""
    return _wrapper_from_json(loads_object(raw, "TopicConfigSerializeWrapper"))


def encode_register_broker_body(wrapper: TopicConfigWrapper, *, compressed: bool = False) -> bytes:
    """Return the body of REGISTER_BROKER 103 as a broker of our version sends it."""
    if compressed:
        return _encode_compressed(wrapper)
    data = _wrapper_to_json(wrapper)
    data.setdefault("topicQueueMappingInfoMap", {})
    return dumps(
        {
            "filterServerList": list(wrapper.filter_servers),
            "topicConfigSerializeWrapper": data,
        }
    )


def decode_register_broker_body(
    raw: bytes, *, compressed: bool = False, version: int = VERSION
) -> TopicConfigWrapper:
    """Return the topics of a registration; version is that of the request's header."""
    if compressed:
        return _decode_compressed(raw, version)
    body = "RegisterBrokerBody"
    data = loads_object(raw, body)
    if version < _BODY_VERSION_MIN:
        return _wrapper_from_json(data)
    return _wrapper_from_json(
        object_field(data, body, "topicConfigSerializeWrapper"),
        tuple(str_list_field(data, body, "filterServerList")),
    )


def _encode_compressed(wrapper: TopicConfigWrapper) -> bytes:
    parts = [_counted(encode_data_version(wrapper.data_version)), _INT.pack(len(wrapper.topics))]
    for config in wrapper.topics.values():
        text = (
            f"{config.topic} {config.read_queue_count} {config.write_queue_count}"
            f" {config.perm} {config.topic_filter_type} "
        )
        parts.append(_counted(text.encode() + dumps(config.attributes)))
    parts.append(_counted(dumps(list(wrapper.filter_servers))))
    infos = wrapper.mapping_infos or {}
    parts.append(_INT.pack(len(infos)))
    for info in infos.values():
        parts.append(_counted(dumps(info)))
    return zlib.compress(b"".join(parts))


def _counted(raw: bytes) -> bytes:
    return _INT.pack(len(raw)) + raw


class _Cursor:
    """Reads counted fields of an inflated registration."""

    __slots__ = ("_position", "_raw")

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._position = 0

    def count(self, field: str) -> int:
        """Return the length that stands next.

        Raises:
            CodecError: it leaves the registration; the text names the field.
        """
        end = self._position + 4
        number = int.from_bytes(self._raw[self._position : end], "big", signed=True)
        if end > len(self._raw) or not 0 <= number <= len(self._raw):
            raise CodecError(
                f"compressed RegisterBrokerBody: the length of {field} at byte"
                f" {self._position} is {number}, the body has {len(self._raw)} bytes"
            )
        self._position = end
        return number

    def take(self, field: str) -> bytes:
        """Return the field that stands next, without its length.

        Raises:
            CodecError: it leaves the registration.
        """
        size = self.count(field)
        start, end = self._position, self._position + size
        if end > len(self._raw):
            raise CodecError(
                f"compressed RegisterBrokerBody: {field} of {size} bytes at byte {start} does not"
                f" fit {len(self._raw)} bytes"
            )
        self._position = end
        return self._raw[start:end]


def _decode_compressed(raw: bytes, version: int) -> TopicConfigWrapper:
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(raw, _REGISTRATION_BYTES_MAX)
    except zlib.error as error:
        raise CodecError(f"compressed RegisterBrokerBody is no zlib stream: {error}") from None
    if not stream.eof:
        raise CodecError("compressed RegisterBrokerBody is cut short or expands without end")
    cursor = _Cursor(plain)
    data_version = decode_data_version(cursor.take("DataVersion"))
    topics: dict[str, TopicConfig] = {}
    for _ in range(cursor.count("topic count")):
        config = _parse_topic_text(cursor.take("a topic"))
        topics[config.topic] = config
    servers = list_field({"s": loads_lenient(cursor.take("filter servers"))}, "filter servers", "s")
    infos: dict[str, Any] = {}
    if version >= _MAPPING_VERSION_MIN:
        for _ in range(cursor.count("mapping count")):
            info = loads_object(cursor.take("a mapping"), "TopicQueueMappingInfo")
            infos[str_field(info, "TopicQueueMappingInfo", "topic")] = info
    return TopicConfigWrapper(
        topics, data_version, None, {}, infos, tuple([str(server) for server in servers])
    )


def _parse_topic_text(raw: bytes) -> TopicConfig:
    items = raw.decode("utf-8", "replace").split(" ", 5)
    try:
        name, read, write, perm, filter_type = items[:5]
        config = TopicConfig(name, int(read), int(write), int(perm), filter_type)
    except ValueError:
        raise CodecError(
            f"compressed RegisterBrokerBody: {raw[:100]!r} is no topic; expected"
            " 'name readQueues writeQueues perm filterType attributes'"
        ) from None
    if len(items) == 6 and items[5]:
        attributes = loads_object(items[5].encode(), "topic attributes")
        config.attributes.update({str(key): str(value) for key, value in attributes.items()})
    return config
