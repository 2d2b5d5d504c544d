"""Administration: topics, groups, tables, single messages by id and key."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.unit.broker.harness import Client, scenario

from cometmq.broker import Broker
from cometmq.codec.java_properties import parse_properties
from cometmq.codec.stored_message import decode_messages
from cometmq.model.topic import TopicConfig
from cometmq.wire.body.admin import (
    decode_consumer_offsets,
    decode_delay_offsets,
    decode_group_config,
    decode_group_config_wrapper,
    decode_topic_config,
    encode_topic_config_list,
)
from cometmq.wire.body.route import decode_kv_table, decode_topic_config_wrapper, decode_topic_list
from cometmq.wire.command.codes import RequestCode

TOPIC = {
    "topic": "made",
    "defaultTopic": "TBW102",
    "readQueueNums": "3",
    "writeQueueNums": "2",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "false",
}


def test_topic_is_made_changed_and_shown(tmp_path: Path) -> None:
    """17 creates and updates; 351 and 21 show it; attributes are added and removed."""

    async def story(broker: Broker, client: Client) -> None:
        first = {**TOPIC, "attributes": "+message.type=FIFO,+reserve.time=-1"}
        made = await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, first)
        assert (made.code, made.remark) == (0, "not set any response code")
        shown = await client.call(RequestCode.GET_TOPIC_CONFIG, {"topic": "made"})
        expected = TopicConfig(
            "made", 3, 2, 6, attributes={"message.type": "FIFO", "reserve.time": "-1"}
        )
        assert decode_topic_config(shown.body) == expected
        await client.call(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            {**TOPIC, "perm": "4", "attributes": "-reserve.time"},
        )
        everything = await client.call(RequestCode.GET_ALL_TOPIC_CONFIG, {})
        table = decode_topic_config_wrapper(everything.body).topics
        assert table["made"] == TopicConfig("made", 3, 2, 4, attributes={"message.type": "FIFO"})
        assert "TBW102" in table

    scenario(tmp_path, story)


@pytest.mark.parametrize(
    ("change", "remark"),
    [
        ({"topic": "bad topic"}, "illegal characters"),
        ({"topic": "TBW102"}, "conflict with system topic"),
        ({"topic": "DefaultCluster"}, "conflict with system topic"),
        ({"readQueueNums": "-1"}, "readQueueNums of topic made is -1"),
        ({"writeQueueNums": "100000"}, "expected 0 to 65535"),
        ({"perm": "99"}, "perm of topic made is 99"),
    ],
)
def test_topics_that_are_refused(change: dict[str, str], remark: str, tmp_path: Path) -> None:
    """29 with the cause, and nothing is made."""

    async def story(broker: Broker, client: Client) -> None:
        answer = await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, {**TOPIC, **change})
        assert answer.code == 29
        assert remark in (answer.remark or "")
        assert "made" not in broker.state.topics

    scenario(tmp_path, story)


@pytest.mark.parametrize(
    "attribute", ["cleanup.policy=COMPACTION", "queue.type=BatchCQ", "reserve.time=9"]
)
def test_attributes_without_effect_are_refused(attribute: str, tmp_path: Path) -> None:
    """By 17 and 18, at the creation and later: what is acknowledged holds."""
    key, _, value = attribute.partition("=")

    async def story(broker: Broker, client: Client) -> None:
        for _ in range(2):
            ext = {**TOPIC, "attributes": f"+{attribute}"}
            answer = await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
            body = encode_topic_config_list([TopicConfig("made", attributes={f"+{key}": value})])
            listed = await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body)
            for refused in (answer, listed):
                assert refused.code == 1
                if "unchangeable" not in (refused.remark or ""):
                    assert f"{attribute} cannot be served: " in (refused.remark or "")
            known = broker.state.topics.get("made")
            assert known is None or known.attributes == {}
            assert (await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC)).code == 0

    scenario(tmp_path, story)


def test_a_store_with_attributes_without_effect_opens_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each topic and group is named; `message.type`, which nothing depends on, is not."""
    (tmp_path / "config").mkdir()
    topics = {
        name: {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, **more}
        for name, more in {
            "Compacted": {"attributes": {"cleanup.policy": "COMPACTION", "reserve.time": "9"}},
            "Typed": {"attributes": {"message.type": "FIFO", "cleanup.policy": "DELETE"}},
        }.items()
    }
    groups = {"G": {"groupName": "G", "attributes": {"priority.factor": "50"}}}
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1}
    files = {
        "topics.json": {"topicConfigTable": topics, "dataVersion": version},
        "subscriptionGroup.json": {"subscriptionGroupTable": groups, "dataVersion": version},
    }
    for name, content in files.items():
        (tmp_path / "config" / name).write_text(json.dumps(content))

    async def story(broker: Broker, client: Client) -> None:
        config = broker.state.topics.get("Compacted")
        assert config is not None
        assert config.attributes == topics["Compacted"]["attributes"]
        assert (await client.send(b="Compacted", i="KEYS\x01k\x02")).code == 0

    scenario(tmp_path, story)
    assert [record.message for record in caplog.records if "no effect" in record.message] == [
        "topic Compacted has attributes that have no effect in CometMQ:"
        " cleanup.policy=COMPACTION, reserve.time=9",
        "group G has attributes that have no effect in CometMQ: priority.factor=50",
    ]


def test_several_topics_at_once(tmp_path: Path) -> None:
    """18 makes all or none."""

    async def story(broker: Broker, client: Client) -> None:
        body = encode_topic_config_list([TopicConfig("a"), TopicConfig("b", 1, 1)])
        code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
        assert (await client.call(code, {}, body)).code == 0
        assert "a" in broker.state.topics
        body = encode_topic_config_list([TopicConfig("c"), TopicConfig("bad topic")])
        assert (await client.call(code, {}, body)).code == 29
        assert "c" not in broker.state.topics

    scenario(tmp_path, story)


def test_deleted_topic_is_gone_with_queues_and_offsets(tmp_path: Path) -> None:
    """215; a topic made again begins at 0."""

    async def story(broker: Broker, client: Client) -> None:
        for _ in range(3):
            await client.send()
        await client.pull(sysFlag="5", commitOffset="2")
        assert (await client.call(215, {"topic": "t"})).code == 0
        assert (await client.call(351, {"topic": "t"})).code == 17
        assert broker.state.offsets.query("g", "t", 0) is None
        again = await client.send()
        assert again.ext_fields["queueOffset"] == "0"
        assert (await client.call(215, {"topic": "TBW102"})).code == 29
        assert (await client.call(215, {"topic": " "})).code == 29
        assert (await client.call(215, {"topic": "nobody"})).code == 0

    scenario(tmp_path, story)


def test_groups_are_made_shown_and_deleted(tmp_path: Path) -> None:
    """200, 225, 352, 201, 207."""

    async def story(broker: Broker, client: Client) -> None:
        assert (await client.call(200, {}, b'{"groupName":"g","retryMaxTimes":3}')).code == 0
        assert (await client.call(200, {}, b'{"groupName":"bad group"}')).code == 29
        assert (await client.call(200, {}, b"{}")).code == 1
        refused = await client.call(
            200, {}, b'{"groupName":"p","attributes":{"+priority.factor":"50"}}'
        )
        assert refused.code == 1
        assert "priority.factor=50 cannot be served: pop" in (refused.remark or "")
        assert broker.state.groups.get("p") is None
        both = b'{"groupConfigList":[{"groupName":"a"},{"groupName":"b"}]}'
        assert (await client.call(225, {}, both)).code == 0
        shown = await client.call(352, {"group": "g"})
        assert decode_group_config(shown.body).retry_max_times == 3
        wrapper = decode_group_config_wrapper((await client.call(201, {})).body)
        assert {"a", "b", "g", "TOOLS_CONSUMER"} <= set(wrapper.groups)
        await client.send()
        await client.pull(sysFlag="5", commitOffset="1")
        deleted = await client.call(207, {"groupName": "g", "cleanOffset": "true"})
        assert deleted.code == 0
        assert broker.state.groups.get("g") is None
        assert broker.state.offsets.topics_of("g") == []
        assert (await client.call(352, {"group": "nobody"})).code == 26

    scenario(tmp_path, story, autoCreateSubscriptionGroup="false")


def test_tables_and_numbers(tmp_path: Path) -> None:
    """43, 45, 28, 26 and 305 decode as a tool decodes them."""

    async def story(broker: Broker, client: Client) -> None:
        await client.send(i="DELAY\x0118\x02")
        await client.send()
        await client.pull(sysFlag="5", commitOffset="1")
        offsets = decode_consumer_offsets((await client.call(43, {})).body).offsets
        assert offsets == {"t@g": {0: 1}}
        assert decode_delay_offsets((await client.call(45, {})).body)[0] == {}
        numbers = decode_kv_table((await client.call(28, {})).body)
        assert numbers["brokerActive"] == "true"
        assert int(numbers["commitLogMaxOffset"]) > 0
        config = await client.call(26, {})
        assert parse_properties(config.body.decode())["brokerName"] == "broker-a"
        assert "counter" in config.ext_fields["version"]
        own = decode_topic_list((await client.call(305, {})).body).topics
        assert {"TBW102", "DefaultCluster", "broker-a"} <= set(own)

    scenario(tmp_path, story)


def test_message_by_offset(tmp_path: Path) -> None:
    """33 gives the record, 1 where none begins."""

    async def story(broker: Broker, client: Client) -> None:
        await client.send(b"first")
        found = await client.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "0"})
        assert [m.body for m in decode_messages(found.body)] == [b"first"]
        for offset in ("1", "999999999", "-5"):
            answer = await client.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset})
            assert answer.code == 1
            assert answer.remark == f"can not find message by the offset, {offset}"

    scenario(tmp_path, story)


def test_message_by_key_and_unique_id(tmp_path: Path) -> None:
    """12 finds each of the KEYS and the UNIQ_KEY; 22 with both ext fields when there is none."""

    async def query(client: Client, **ext: str) -> tuple[int, list[bytes]]:
        answer = await client.call(
            RequestCode.QUERY_MESSAGE,
            {
                "topic": "t",
                "maxNum": "32",
                "beginTimestamp": "0",
                "endTimestamp": str(2**63 - 1),
                **ext,
            },
        )
        names = {"indexLastUpdatePhyoffset", "indexLastUpdateTimestamp"}
        assert set(answer.ext_fields) == names
        return answer.code, [m.body for m in decode_messages(answer.body)]

    async def story(broker: Broker, client: Client) -> None:
        await client.send(b"one", i="KEYS\x01k1 k2\x02UNIQ_KEY\x01U1\x02")
        await client.send(b"two", i="KEYS\x01k2\x02UNIQ_KEY\x01U2\x02")
        async with asyncio.timeout(30):  # the index is built a moment after the answer
            while (await query(client, key="k2"))[1] != [b"one", b"two"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await query(client, key="k1", indexType="K") == (0, [b"one"])
        found = await query(client, key="U2", _UNIQUE_KEY_QUERY="true", indexType="U")
        assert found == (0, [b"two"])
        assert await query(client, key="nokey") == (22, [])
        assert await query(client, key="k1", topic="other") == (22, [])
        assert await query(client, key="k1", endTimestamp="1") == (22, [])

    scenario(tmp_path, story)
