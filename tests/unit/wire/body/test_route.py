"""Bodies of the name server: forms of keys, registrations plain and compressed."""

import json
import struct
import zlib

import pytest

from cometmq.errors import CodecError
from cometmq.model.topic import BrokerData, DataVersion, QueueData, TopicConfig, TopicRoute
from cometmq.wire.body.route import (
    TopicConfigWrapper,
    TopicList,
    decode_cluster_info,
    decode_data_version,
    decode_kv_table,
    decode_member_group,
    decode_register_broker_body,
    decode_topic_config_wrapper,
    decode_topic_list,
    decode_topic_route,
    encode_cluster_info,
    encode_data_version,
    encode_kv_table,
    encode_member_group,
    encode_register_broker_body,
    encode_topic_config_wrapper,
    encode_topic_list,
    encode_topic_route,
)

BROKER = BrokerData("DefaultCluster", "broker-a", {1: "10.0.0.3:10911", 0: "10.0.0.2:10911"})
ROUTE = TopicRoute((QueueData("broker-a", 4, 4, 6),), (BROKER,))
TOPIC = TopicConfig("TopicTest", 4, 8, 6, "SINGLE_TAG", 0, True, {"message.type": "FIFO"})
WRAPPER = TopicConfigWrapper(
    {"TopicTest": TOPIC, "键": TopicConfig("键", 1, 1)},
    DataVersion(1700000000000, 3, 1),
    DataVersion(5, 0, 0),
    {},
    {},
)


def test_route_is_as_java_writes_it() -> None:
    """docs/internals/protocol.md#routes, quoted ids in ascending order."""
    assert encode_topic_route(ROUTE) == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.2:10911","1":"10.0.0.3:10911"},'
        b'"brokerName":"broker-a","cluster":"DefaultCluster","enableActingMaster":false}],'
        b'"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,'
        b'"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
    )


@pytest.mark.parametrize("quoted_keys", [True, False])
def test_routes_come_back(quoted_keys: bool) -> None:
    """Bare ids are what clients below version 401 have always got."""
    raw = encode_topic_route(ROUTE, "broker-a:4", quoted_keys=quoted_keys)
    assert (b'{"0":' in raw, b"{0:" in raw) == (quoted_keys, not quoted_keys)
    assert decode_topic_route(raw) == TopicRoute(
        ROUTE.queue_datas, ROUTE.broker_datas, "broker-a:4"
    )


def test_own_order_conf_of_a_route_is_written() -> None:
    """Unless the caller has another."""
    route = TopicRoute((), (), "a:1")
    assert decode_topic_route(encode_topic_route(route)).order_topic_conf == "a:1"
    assert decode_topic_route(encode_topic_route(route, "b:2")).order_topic_conf == "b:2"


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "TopicRouteData"),
        (b'{"queueDatas":[{}]}', "brokerName is missing"),
        (b'{"queueDatas":[{"brokerName":"b","readQueueNums":"x"}]}', "readQueueNums"),
        (b'{"brokerDatas":[{"brokerName":"b","brokerAddrs":{"x":"a"}}]}', "key"),
        (b'{"brokerDatas":[{"brokerName":"b","brokerAddrs":{"0":null}}]}', "0 is missing"),
        (b'{"brokerDatas":5}', "brokerDatas"),
    ],
)
def test_broken_routes_are_refused(raw: bytes, words: str) -> None:
    """The error names body and field."""
    with pytest.raises(CodecError, match=words):
        decode_topic_route(raw)


@pytest.mark.parametrize("quoted_keys", [True, False])
def test_cluster_info_and_members(quoted_keys: bool) -> None:
    """Two maps, and one group of them."""
    brokers, clusters = {"broker-a": BROKER}, {"DefaultCluster": ("broker-a",)}
    raw = encode_cluster_info(brokers, clusters, quoted_keys=quoted_keys)
    assert decode_cluster_info(raw) == (brokers, clusters)
    raw = encode_member_group(BROKER, quoted_keys=quoted_keys)
    assert decode_member_group(raw) == BROKER
    assert decode_member_group(b"{}") == BrokerData("", "", {})


def test_lists_tables_and_versions() -> None:
    """The small bodies."""
    assert encode_topic_list(["a", "b"]) == b'{"topicList":["a","b"]}'
    assert decode_topic_list(encode_topic_list(("a",), "h:1")) == TopicList(("a",), "h:1")
    assert decode_topic_list(b"{}") == TopicList(())
    assert decode_kv_table(encode_kv_table({"k": "v"})) == {"k": "v"}
    version = DataVersion(5, 6, 7)
    assert json.loads(encode_data_version(version)) == {
        "counter": 6,
        "stateVersion": 7,
        "timestamp": 5,
    }
    assert decode_data_version(encode_data_version(version)) == version
    # 4.x writes no stateVersion.
    assert decode_data_version(b'{"counter":1,"timestamp":2}') == DataVersion(2, 1, 0)


def test_topic_tables_come_back() -> None:
    """The answer to 21 has no mapping infos."""
    wrapper = TopicConfigWrapper({"TopicTest": TOPIC}, DataVersion(1, 2, 3), DataVersion())
    raw = encode_topic_config_wrapper(wrapper)
    assert b"topicQueueMappingInfoMap" not in raw
    assert decode_topic_config_wrapper(raw) == wrapper


def test_registrations_come_back() -> None:
    """Plain, and under the version that decides about the shape."""
    raw = encode_register_broker_body(WRAPPER)
    assert json.loads(raw).keys() == {"filterServerList", "topicConfigSerializeWrapper"}
    assert decode_register_broker_body(raw) == WRAPPER


def test_registration_of_an_old_broker() -> None:
    """Before 3.0.11 the body was the topic table alone; 4.x leaves out what 5.x added."""
    raw = b'{"dataVersion":{"counter":1,"timestamp":2},"topicConfigTable":{"t":{"perm":4}}}'
    wrapper = decode_register_broker_body(raw, version=30)
    assert wrapper.topics == {"t": TopicConfig("t", 16, 16, 4)}
    assert wrapper.data_version == DataVersion(2, 1, 0)
    assert wrapper.mapping_data_version is None
    raw = b'{"filterServerList":["f"],"topicConfigSerializeWrapper":' + raw + b"}"
    assert decode_register_broker_body(raw, version=401).filter_servers == ("f",)


def test_compressed_registrations_come_back() -> None:
    """The same topics; the version of mappings does not travel."""
    raw = encode_register_broker_body(WRAPPER, compressed=True)
    wrapper = decode_register_broker_body(raw, compressed=True)
    expected = {name: (config.perm, config.attributes) for name, config in WRAPPER.topics.items()}
    assert {
        name: (config.perm, config.attributes) for name, config in wrapper.topics.items()
    } == expected
    assert wrapper.data_version == WRAPPER.data_version


def counted(raw: bytes) -> bytes:
    """A length and its bytes."""
    return struct.pack(">i", len(raw)) + raw


VERSION_JSON = b'{"counter":1,"timestamp":2}'


def test_compressed_registration_of_4x() -> None:
    """Five items a topic, and no mappings at the end."""
    plain = (
        counted(VERSION_JSON)
        + struct.pack(">i", 1)
        + counted(b"TopicTest 4 8 6 SINGLE_TAG")
        + counted(b'["f:1"]')
    )
    wrapper = decode_register_broker_body(zlib.compress(plain), compressed=True, version=401)
    assert wrapper.topics == {"TopicTest": TopicConfig("TopicTest", 4, 8, 6)}
    assert wrapper.filter_servers == ("f:1",)


def test_compressed_registration_with_mappings() -> None:
    """From version 413 on they follow."""
    info = b'{"topic":"static","bname":"b","epoch":1,"totalQueues":2}'
    plain = (
        counted(VERSION_JSON)
        + struct.pack(">i", 0)
        + counted(b"[]")
        + struct.pack(">i", 1)
        + counted(info)
    )
    raw = zlib.compress(plain)
    wrapper = decode_register_broker_body(raw, compressed=True, version=413)
    assert wrapper.mapping_infos == {"static": json.loads(info)}
    again = encode_register_broker_body(wrapper, compressed=True)
    assert decode_register_broker_body(again, compressed=True) == wrapper


@pytest.mark.parametrize(
    ("plain", "words"),
    [
        (b"", "DataVersion at byte 0"),
        (b"\xff\xff\xff\xff", "DataVersion at byte 0"),
        (b"\x00\x00\x00\x08xx", "DataVersion at byte 0 is 8"),
        (b"\x00\x00\x00\x06xxx", "DataVersion of 6 bytes"),
        (counted(b"[]"), "DataVersion"),
        (counted(b"{}"), "topic count"),
        (counted(b"{}") + b"\x00\x00\x00\x01", "a topic"),
        (counted(b"{}") + b"\x00\x00\x00\x01" + counted(b"t 1 2"), "is no topic"),
        (counted(b"{}") + b"\x00\x00\x00\x01" + counted(b"t 1 2 x S"), "is no topic"),
        (counted(b"{}") + b"\x00\x00\x00\x01" + counted(b"t 1 2 6 S ["), "topic attributes"),
        (counted(b"{}") + b"\x00\x00\x00\x00" + counted(b"{}"), "filter servers"),
        (counted(b"{}") + b"\x00\x00\x00\x00" + counted(b"[]"), "mapping count"),
        (
            counted(b"{}")
            + b"\x00\x00\x00\x00"
            + counted(b"[]")
            + b"\x00\x00\x00\x01"
            + counted(b"{}"),
            "topic is missing",
        ),
    ],
)
def test_broken_compressed_registrations_are_refused(plain: bytes, words: str) -> None:
    """The error names the part and the byte."""
    with pytest.raises(CodecError, match=words):
        decode_register_broker_body(zlib.compress(plain), compressed=True)


def test_compression_itself_may_be_broken() -> None:
    """No stream at all, or one that was cut."""
    with pytest.raises(CodecError, match="no zlib stream"):
        decode_register_broker_body(b"{}", compressed=True)
    raw = encode_register_broker_body(WRAPPER, compressed=True)
    with pytest.raises(CodecError, match="cut short"):
        decode_register_broker_body(raw[:-5], compressed=True)
