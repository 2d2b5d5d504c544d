"""Questions of admin tools: connections, progress, queues, statistics, cleaning."""

import asyncio
from pathlib import Path

import pytest
from tests.header_registry import REQUEST_HEADERS
from tests.unit.broker.harness import Client, eventually, scenario

from cometmq.broker import Broker
from cometmq.model.group import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from cometmq.model.offsets import ConsumerOffset
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import TopicConfig
from cometmq.wire.body.admin import (
    decode_consume_stats,
    decode_consumer_connection,
    decode_group_list,
    decode_producer_connection,
    decode_topic_stats,
)
from cometmq.wire.body.client import ConsumerData
from cometmq.wire.body.route import decode_kv_table, decode_topic_list
from cometmq.wire.body.stats import (
    decode_consume_queue_view,
    decode_correction_offsets,
    decode_group_forbidden,
    decode_producer_table,
    decode_stats_windows,
    decode_time_spans,
    decode_topic_subscription,
)
from cometmq.wire.command.codes import RequestCode as Code
from cometmq.wire.command.fastjson import loads_object

CONSUMER = ConsumerData(
    "g",
    ConsumeType.CONSUME_PASSIVELY,
    MessageModel.CLUSTERING,
    ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    (SubscriptionData("t", "*", sub_version=1),),
)
ADMIN_CODES = (
    Code.GET_TOPIC_STATS_INFO,
    Code.GET_CONSUMER_CONNECTION_LIST,
    Code.GET_PRODUCER_CONNECTION_LIST,
    Code.GET_CONSUME_STATS,
    Code.QUERY_TOPIC_CONSUME_BY_WHO,
    Code.QUERY_CONSUME_TIME_SPAN,
    Code.QUERY_CORRECTION_OFFSET,
    Code.CLONE_GROUP_OFFSET,
    Code.VIEW_BROKER_STATS_DATA,
    Code.GET_BROKER_CONSUME_STATS,
    Code.QUERY_CONSUME_QUEUE,
    Code.QUERY_TOPICS_BY_CONSUMER,
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER,
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN,
)


async def fill(broker: Broker, client: Client, count: int = 3) -> None:
    """A topic with two queues, `count` messages in queue 0, one in queue 1; a group at offset 1."""
    broker.state.topics.put(TopicConfig("t", 2, 2), 0)
    for _ in range(count):
        assert (await client.send(b"body", i="TAGS\x01a\x02")).code == 0
    assert (await client.send(b"other", e="1")).code == 0
    broker.state.groups.put(SubscriptionGroupConfig("g"), 0)
    broker.state.offsets.commit("g", "t", 0, ConsumerOffset(1), 0)


def queue(number: int) -> MessageQueue:
    return MessageQueue("t", "broker-a", number)


def test_who_is_connected(tmp_path: Path) -> None:
    """203, 204 and 328 name each client; 206 and 1 where nobody is there."""

    async def story(broker: Broker, client: Client) -> None:
        nobody = await client.call(Code.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"})
        assert (nobody.code, nobody.remark) == (206, "the consumer group[g] not online")
        none = await client.call(Code.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "pg"})
        assert (none.code, none.remark) == (1, "the producer group[pg] not exist")
        await client.heartbeat(CONSUMER, producers=("pg",), client_id="me@1")
        found = await client.call(Code.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"})
        shown = decode_consumer_connection(found.body)
        (connection,) = shown.connections
        assert (connection.client_id, connection.language) == ("me@1", "PYTHON")
        assert connection.client_addr.startswith("127.0.0.1:")
        assert list(shown.subscriptions) == ["t"]
        assert shown.consume_from_where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        found = await client.call(Code.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "pg"})
        assert decode_producer_connection(found.body) == [connection]
        table = decode_producer_table((await client.call(Code.GET_ALL_PRODUCER_INFO)).body)
        (producer,) = table["pg"]
        assert producer.remote_ip == "/" + connection.client_addr
        assert producer.last_update_timestamp_ms > 0

    scenario(tmp_path, story)


def test_who_consumes_what(tmp_path: Path) -> None:
    """300 joins subscribers and owners of offsets; 343 and 345 ask from the group's side."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(broker, client)
        broker.state.offsets.commit("offline", "t", 0, ConsumerOffset(1), 0)
        await client.heartbeat(CONSUMER)
        groups = await client.call(Code.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "t"})
        assert sorted(decode_group_list(groups.body)) == ["g", "offline"]
        nobody = await client.call(Code.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "unheard"})
        assert decode_group_list(nobody.body) == ()
        topics = decode_topic_list(
            (await client.call(Code.QUERY_TOPICS_BY_CONSUMER, {"group": "g"})).body
        )
        assert (topics.topics, topics.broker_addr) == (("t",), broker.address)
        ext = {"group": "g", "topic": "t"}
        answer = await client.call(Code.QUERY_SUBSCRIPTION_BY_CONSUMER, ext)
        found = decode_topic_subscription(answer.body)
        assert found.subscription is not None
        assert found.subscription.sub_string == "*"
        answer = await client.call(Code.QUERY_SUBSCRIPTION_BY_CONSUMER, {**ext, "topic": "u"})
        assert decode_topic_subscription(answer.body).subscription is None
        refused = await client.call(Code.QUERY_SUBSCRIPTION_BY_CONSUMER, {"group": "g"})
        assert (refused.code, "name one" in (refused.remark or "")) == (1, True)

    scenario(tmp_path, story)


def test_a_topic_can_be_taken_from_a_group(tmp_path: Path) -> None:
    """353 asks and tells, pulls by subscription are refused meanwhile, and the file has it."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(broker, client)
        await client.heartbeat(CONSUMER)
        ext = {"group": "g", "topic": "t"}
        asked = await client.call(Code.UPDATE_AND_GET_GROUP_FORBIDDEN, ext)
        assert decode_group_forbidden(asked.body) == ("g", "t", True)
        for readable in (False, True):
            told = await client.call(
                Code.UPDATE_AND_GET_GROUP_FORBIDDEN, {**ext, "readable": str(readable).lower()}
            )
            assert decode_group_forbidden(told.body) == ("g", "t", readable)
            pulled = await client.pull(sysFlag="0")
            assert pulled.code == (0 if readable else 16)
            if not readable:
                assert broker.state.groups.forbidden == {"g": {"t": 4}}
        assert broker.state.groups.forbidden == {}

    scenario(tmp_path, story)


def test_ranges_and_progress(tmp_path: Path) -> None:
    """202 tells the queues, 208 the group's place in them and what it holds beyond its commit."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(broker, client)
        stats = decode_topic_stats((await client.call(202, {"topic": "t"})).body)
        first, second = stats.offsets[queue(0)], stats.offsets[queue(1)]
        assert (first.min_offset, first.max_offset, second.max_offset) == (0, 3, 1)
        assert first.last_update_timestamp_ms > 0
        unknown = await client.call(202, {"topic": "unheard"})
        assert (unknown.code, unknown.remark) == (17, "topic[unheard] not exist")
        assert (await client.pull(queueOffset="1", maxMsgNums="1")).code == 0
        answer = await client.call(Code.GET_CONSUME_STATS, {"consumerGroup": "g"})
        progress = decode_consume_stats(answer.body).queues
        one = progress[queue(0)]
        assert (one.broker_offset, one.consumer_offset, one.pull_offset) == (3, 1, 2)
        assert one.last_timestamp_ms > 0
        two = progress[queue(1)]
        assert (two.broker_offset, two.consumer_offset, two.last_timestamp_ms) == (1, 0, 0)
        named = await client.call(208, {"consumerGroup": "g", "topic": "TBW102"})
        assert {item.topic for item in decode_consume_stats(named.body).queues} == {"TBW102"}
        listed = await client.call(208, {"consumerGroup": "g", "topicList": "t;unheard;TBW102"})
        names = {item.topic for item in decode_consume_stats(listed.body).queues}
        assert names == {"t", "TBW102"}
        nobody = await client.call(208, {"consumerGroup": "unheard"})
        assert (nobody.code, decode_consume_stats(nobody.body).queues) == (0, {})
        # What the members no longer subscribe to is left out, unless it is listed.
        other = ConsumerData("g", subscriptions=(SubscriptionData("u", "*", sub_version=1),))
        await client.heartbeat(other)
        answer = await client.call(208, {"consumerGroup": "g"})
        assert decode_consume_stats(answer.body).queues == {}

    scenario(tmp_path, story)


def test_progress_of_all_groups(tmp_path: Path) -> None:
    """317: every group, ordered topics only on request, and the sum of what is left."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(broker, client)
        everything = loads_object(
            (await client.call(Code.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})).body, "317"
        )
        assert (everything["totalDiff"], everything["brokerAddr"]) == (3, broker.address)
        by_group = {
            name: stats for item in everything["consumeStatsList"] for name, stats in item.items()
        }
        assert len(by_group["g"]) == 1
        assert by_group["TOOLS_CONSUMER"] == []
        ordered = await client.call(Code.GET_BROKER_CONSUME_STATS, {"isOrder": "true"})
        assert loads_object(ordered.body, "317")["totalDiff"] == 0

    scenario(tmp_path, story)


def test_places_in_time(tmp_path: Path) -> None:
    """303: oldest, newest, consumed, and how late the group is; -1 where nothing is."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(broker, client)
        broker.state.topics.put(TopicConfig("t", 3, 3), 0)
        answer = await client.call(303, {"topic": "t", "group": "g"})
        one, two, three = decode_time_spans(answer.body)
        assert 0 < one.min_timestamp_ms <= one.consume_timestamp_ms <= one.max_timestamp_ms
        assert one.delay_ms >= 0
        assert two.consume_timestamp_ms == two.min_timestamp_ms
        assert (three.min_timestamp_ms, three.max_timestamp_ms, three.delay_ms) == (-1, -1, 0)
        unknown = await client.call(303, {"topic": "unheard", "group": "g"})
        assert (unknown.code, unknown.remark) == (17, "topic[unheard] not exist")

    scenario(tmp_path, story)


def test_offsets_are_compared_and_copied(tmp_path: Path) -> None:
    """308 gives the least offset of any group; 314 copies what is subscribed, or all if offline."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(broker, client)
        offsets = broker.state.offsets
        for group, place in (("h", 2), ("i", 3)):
            offsets.commit(group, "t", 0, ConsumerOffset(place), 0)
            offsets.commit(group, "t", 1, ConsumerOffset(place), 0)
        ext = {"compareGroup": "h", "topic": "t"}
        answer = await client.call(Code.QUERY_CORRECTION_OFFSET, ext)
        assert decode_correction_offsets(answer.body) == {0: 1, 1: 2}
        answer = await client.call(308, {**ext, "filterGroups": "g,h"})
        assert decode_correction_offsets(answer.body) == {0: 2**63 - 1, 1: 2**63 - 1}
        assert offsets.query("g", "t", 0) == 1, "left out of the comparison, not forgotten"
        clone = {"srcGroup": "h", "destGroup": "copy", "topic": "t", "offline": "false"}
        assert (await client.call(Code.CLONE_GROUP_OFFSET, clone)).code == 0
        assert offsets.queues("copy", "t") == {0: 2, 1: 2}
        del clone["topic"]
        assert (await client.call(314, {**clone, "destGroup": "all"})).code == 0
        assert offsets.queues("all", "t") == {0: 2, 1: 2}
        await client.heartbeat(ConsumerData("h", subscriptions=(SubscriptionData("u", "*"),)))
        for offline, expected in (("false", {}), ("true", {0: 2, 1: 2})):
            name = f"to-{offline}"
            await client.call(314, {**clone, "destGroup": name, "offline": offline})
            assert offsets.queues(name, "t") == expected

    scenario(tmp_path, story)


def test_units_of_a_queue(tmp_path: Path) -> None:
    """321 shows units as stored; what is not there is said in words."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(broker, client)
        ext = {"topic": "t", "queueId": "0", "index": "1", "count": "9"}
        view = decode_consume_queue_view((await client.call(321, ext)).body)
        assert (view.min_queue_offset, view.max_queue_offset) == (0, 3)
        assert view.units is not None
        assert [unit.tags_code for unit in view.units] == [97, 97]
        assert view.units[0].physical_offset > 0
        assert view.filter_data is None
        few = await client.call(321, {**ext, "index": "0", "count": "1"})
        assert len(decode_consume_queue_view(few.body).units or ()) == 1
        offline = await client.call(321, {**ext, "consumerGroup": "g"})
        assert decode_consume_queue_view(offline.body).filter_data == "g@t is not online!"
        await client.heartbeat(CONSUMER)
        online = decode_consume_queue_view(
            (await client.call(321, {**ext, "consumerGroup": "g"})).body
        )
        assert online.subscription is not None
        beyond = await client.call(321, {**ext, "index": "99"})
        assert (beyond.code, beyond.remark) == (0, "Index 99 of 0@t is not exist!")
        unknown = await client.call(321, {**ext, "queueId": "7"})
        assert (unknown.code, unknown.remark) == (1, "7@t is not exist!")

    scenario(tmp_path, story)


def test_statistics(tmp_path: Path) -> None:
    """315 tells counters by name and key, 28 the whole broker."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(broker, client)
        assert (await client.pull()).code == 0
        broker.state.stats.sample(1_795_262_400_000)
        for name, key, expected in (
            ("TOPIC_PUT_NUMS", "t", 0),  # read off the queues after the sample
            ("GROUP_GET_NUMS", "t@g", 3),
            ("BROKER_GET_NUMS", "DefaultCluster", 3),
        ):
            answer = await client.call(315, {"statsName": name, "statsKey": key})
            assert decode_stats_windows(answer.body).minute.sum == expected, name
        unknown = await client.call(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "unheard"})
        assert (unknown.code, unknown.remark) == (
            1,
            "The stats <TOPIC_PUT_NUMS> <unheard> not exist",
        )
        table = decode_kv_table((await client.call(28)).body)
        assert (table["msgPutTotalTodayNow"], table["msgGetTotalTodayNow"]) == ("4", "3")
        assert (table["brokerVersionDesc"], table["brokerActive"]) == ("V5_4_0", "true")
        assert int(table["earliestMessageTimeStamp"]) > 1_700_000_000_000
        assert 0 < float(table["commitLogDiskRatio"]) <= 1
        assert table["runtime"].startswith("[ 0 days, 0 hours, 0 minutes, ")
        assert table["commitLogDirCapacity"].startswith("Total : ")
        assert len(table["putTps"].split()) == 3
        assert table["sendThreadPoolQueueSize"] == "0"

    scenario(tmp_path, story)


def test_samples_are_taken_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer counts and samples, a few topics in each turn of the loop."""
    monkeypatch.setattr("cometmq.broker.base.stats.SAMPLE_INTERVAL_MS", 5)
    monkeypatch.setattr("cometmq.broker.base.stats._TOPICS_AT_ONCE", 1)
    monkeypatch.setattr("cometmq.broker.base.stats._COUNTERS_AT_ONCE", 1)

    async def story(broker: Broker, client: Client) -> None:
        await fill(broker, client)
        stats = broker.state.stats
        async with asyncio.timeout(30):
            # With samples this close together a single message is soon out of their window.
            while stats.put_tps("another") == 0:
                assert (await client.send(b="another")).code == 0
        await eventually(lambda: stats.put_messages > 4)
        table = decode_kv_table((await client.call(28)).body)
        assert len(table["putTps"].split()) == 3

    scenario(tmp_path, story)


def test_an_empty_store_has_no_oldest_message(tmp_path: Path) -> None:
    """28 on a fresh broker."""

    async def story(broker: Broker, client: Client) -> None:
        table = decode_kv_table((await client.call(28)).body)
        assert table["earliestMessageTimeStamp"] == "-1"
        assert table["putMessageTimesTotal"] == "0"

    scenario(tmp_path, story)


def test_cleaning_by_order(tmp_path: Path) -> None:
    """316 deletes queues nobody configured, and only those; 306 and 329 are answered."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(broker, client)
        state = broker.state
        state.store.put("gone", 0, b"x", b"")
        state.store.put("%LMQ%kept", 0, b"x", b"")
        assert (await client.call(Code.CLEAN_UNUSED_TOPIC)).code == 0
        await eventually(lambda: "gone" not in state.store.topics())
        assert {"t", "%LMQ%kept"} <= set(state.store.topics())
        assert (await client.call(Code.CLEAN_EXPIRED_CONSUMEQUEUE)).code == 0
        assert (await client.call(Code.DELETE_EXPIRED_COMMITLOG)).code == 0
        assert len(await client.messages()) == 3

    scenario(tmp_path, story)


def test_queues_without_messages_are_cleaned(tmp_path: Path) -> None:
    """306: a queue whose messages expired with their log file goes, the others stay."""

    async def story(broker: Broker, client: Client) -> None:
        store = broker.state.store
        assert (await client.send(b="old")).code == 0
        while len(store._log.files) < 3:
            assert (await client.send(bytes(100_000), b="new")).code == 0
        await eventually(lambda: not store._topics["old"][0].tail)
        files = len(store._log.files)

        def is_dropped() -> bool:
            # The timers say what they need once a worker has looked; until then, everything.
            store._retention.drop_files(1)
            return len(store._log.files) < files

        await eventually(is_dropped)
        assert (await client.call(Code.CLEAN_EXPIRED_CONSUMEQUEUE)).code == 0
        await eventually(lambda: "old" not in store.topics())
        assert store.queues("new") == [0]
        assert (await client.send(b="old")).ext_fields["queueOffset"] == "0"

    scenario(tmp_path, story, flushIntervalConsumeQueue=10)


def test_deleted_things_have_no_statistics(tmp_path: Path) -> None:
    """215 and 207 take the counters along."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(broker, client)
        assert (await client.pull()).code == 0
        stats = broker.state.stats
        assert stats.windows("GROUP_GET_NUMS", "t@g") is not None
        await client.call(Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g", "cleanOffset": "true"})
        assert stats.windows("GROUP_GET_NUMS", "t@g") is None
        assert stats.windows("TOPIC_PUT_NUMS", "t") is not None
        await client.call(Code.DELETE_TOPIC_IN_BROKER, {"topic": "t"})
        assert stats.windows("TOPIC_PUT_NUMS", "t") is None
        assert stats.pulled_offset("t", "g", 0) == 0

    scenario(tmp_path, story)


def _wrong_values() -> list[tuple[int, str, str | None]]:
    """Every field of every admin header: left out where required, of another kind where typed."""
    cases: list[tuple[int, str, str | None]] = []
    for code in ADMIN_CODES:
        header = REQUEST_HEADERS[code]
        for field, name, kind in zip(
            header.__struct_fields__,
            header.__struct_encode_fields__,
            header.__annotations__.values(),
            strict=True,
        ):
            text = str(kind)
            is_required = field not in dict(
                zip(
                    reversed(header.__struct_fields__),
                    reversed(header.__struct_defaults__),
                    strict=False,
                )
            )
            if is_required:
                cases.append((code, name, None))
            if "str" not in text:
                cases.append((code, name, "maybe"))
    return cases


def test_wrong_values_are_answered_clearly(tmp_path: Path) -> None:
    """No field of any kind can end the connection; the answer names the field."""
    cases = _wrong_values()
    assert len(cases) >= 25

    async def story(broker: Broker, client: Client) -> None:
        for code, name, value in cases:
            header = REQUEST_HEADERS[code]
            good = {
                wire_name: "1" if "str" in str(kind) or "bool" not in str(kind) else "true"
                for wire_name, kind in zip(
                    header.__struct_encode_fields__, header.__annotations__.values(), strict=True
                )
            }
            ext = {key: text for key, text in good.items() if key != name}
            if value is not None:
                ext[name] = value
            answer = await client.call(code, ext)
            assert answer.code != 0, (code, name)
            assert name in (answer.remark or ""), (code, name, answer.remark)
        assert (await client.call(28)).code == 0

    scenario(tmp_path, story)


@pytest.mark.parametrize("number", ["-1", "-9223372036854775808", "9223372036854775807"])
def test_odd_numbers_are_served(number: str, tmp_path: Path) -> None:
    """Numbers far outside of any queue find nothing, and break nothing."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(broker, client)
        ext = {"topic": "t", "queueId": "0", "index": number, "count": "9"}
        answer = await client.call(321, ext)
        assert (answer.code, answer.body) == (0, b"")
        many = await client.call(321, {**ext, "index": "0", "count": "2147483647"})
        assert len(decode_consume_queue_view(many.body).units or ()) == 3
        none = await client.call(321, {**ext, "index": "0", "count": "-5"})
        assert decode_consume_queue_view(none.body).units is None

    scenario(tmp_path, story)
