"""Bodies of administration, and signatures."""

import pytest

from cometmq.errors import CodecError
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
from cometmq.wire.body import admin
from cometmq.wire.body.admin import (
    ClientConnection,
    ConsumerConnection,
    ConsumerOffsets,
    ConsumeStats,
    GroupConfigWrapper,
    OffsetWrapper,
    TopicOffset,
    TopicStats,
)
from cometmq.wire.frame.acl import is_signature_right, sign

GROUP = SubscriptionGroupConfig(
    "g", retry_max_times=3, attributes={"a": "b"}, subscription_data_set=({"topic": "t"},)
)
QUEUE = MessageQueue("t", "b", 0)
CONNECTION = ClientConnection("c", "1.2.3.4:5", "JAVA", 493)


def test_default_group_is_javas() -> None:
    """The object of docs/internals/protocol.md#administration, byte by byte."""
    assert admin.encode_group_config(SubscriptionGroupConfig("g")) == (
        b'{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
        b'"consumeFromMinEnable":true,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,'
        b'"groupName":"g","groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,'
        b'"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,'
        b'"whichBrokerWhenConsumeSlowly":1}'
    )


def test_groups_come_back() -> None:
    """Alone, in a list and in a table."""
    assert admin.decode_group_config(admin.encode_group_config(GROUP)) == GROUP
    assert admin.decode_group_config_list(admin.encode_group_config_list([GROUP])) == [GROUP]
    wrapper = GroupConfigWrapper({"g": GROUP}, DataVersion(1, 2, 3), {"g": {"t": 1}})
    raw = admin.encode_group_config_wrapper(wrapper)
    assert admin.decode_group_config_wrapper(raw) == wrapper
    with pytest.raises(CodecError, match="groupName is missing"):
        admin.decode_group_config(b"{}")


def test_topics_come_back() -> None:
    """Alone and in a list."""
    topic = TopicConfig("t", 1, 2, 4, attributes={"message.type": "DELAY"})
    assert admin.decode_topic_config(admin.encode_topic_config(topic)) == topic
    assert admin.decode_topic_config_list(admin.encode_topic_config_list([topic])) == [topic]


def test_connections_come_back() -> None:
    """Of consumers and of producers."""
    connection = ConsumerConnection(
        (CONNECTION,),
        ConsumeType.CONSUME_ACTIVELY,
        MessageModel.BROADCASTING,
        ConsumeFromWhere.CONSUME_FROM_TIMESTAMP,
        {"t": SubscriptionData("t")},
    )
    raw = admin.encode_consumer_connection(connection)
    assert admin.decode_consumer_connection(raw) == connection
    raw = admin.encode_producer_connection([CONNECTION])
    assert admin.decode_producer_connection(raw) == [CONNECTION]


def test_progress_comes_back() -> None:
    """Maps keyed by queues; 4.x has no pull offset."""
    stats = TopicStats({QUEUE: TopicOffset(1, 5, 1700000000000)}, 0.5)
    assert admin.decode_topic_stats(admin.encode_topic_stats(stats)) == stats
    progress = ConsumeStats(
        {QUEUE: OffsetWrapper(9, 5, 6, 7), MessageQueue("t", "b", 1): OffsetWrapper(1, 0)}, 1.5
    )
    assert admin.decode_consume_stats(admin.encode_consume_stats(progress)) == progress
    assert admin.decode_consume_stats(b'{"consumeTps":"x"}') == ConsumeStats({}, 0.0)


def test_offsets_come_back() -> None:
    """Queue ids and levels are bare integer keys."""
    offsets = ConsumerOffsets(
        {"t@g": {0: ConsumerOffset(3), 1: ConsumerOffset(4)}},
        DataVersion(1),
        {"g": ("t",)},
    )
    raw = admin.encode_consumer_offsets(offsets)
    assert b'"t@g":{0:3,1:4}' in raw
    assert admin.decode_consumer_offsets(raw) == offsets
    raw = admin.encode_delay_offsets({1: 100}, DataVersion(9))
    assert admin.decode_delay_offsets(raw) == ({1: 100}, DataVersion(9))
    assert admin.decode_delay_offsets(admin.encode_delay_offsets({})) == (
        {},
        DataVersion(),
    )
    with pytest.raises(CodecError, match="key"):
        admin.decode_delay_offsets(b'{"offsetTable":{"x":1}}')
    assert admin.decode_group_list(admin.encode_group_list(["g"])) == ("g",)


def test_signature_vector() -> None:
    """docs/internals/protocol.md#test-vectors, vector 6."""
    ext = {"topic": "TopicTest", "AccessKey": "rocketmq2"}
    signature = sign(ext, b"", "12345678")
    assert signature == "GeeGoP9mRvDhoVp4PD5omX0prgE="
    ext["Signature"] = signature
    assert sign(ext, b"", "12345678") == signature
    assert is_signature_right(ext, b"", "12345678")
    assert not is_signature_right(ext, b"body", "12345678")
    assert not is_signature_right({"topic": "t", "Signature": "é"}, b"", "12345678")


def test_old_clients_do_not_sign_the_unique_key_switch() -> None:
    """Java up to 4.9.3; both ways are accepted."""
    ext = {"topic": "t", "_UNIQUE_KEY_QUERY": "true"}
    old = sign({"topic": "t"}, b"", "s")
    assert old != sign(ext, b"", "s")
    assert is_signature_right({**ext, "Signature": old}, b"", "s")
    assert is_signature_right({**ext, "Signature": sign(ext, b"", "s")}, b"", "s")
