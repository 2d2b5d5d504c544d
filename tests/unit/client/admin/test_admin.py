"""The admin client against the real broker, and the settings all clients share."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import pytest
from tests.unit.client.fake import FakeBroker

import cometmq
from cometmq.client.admin.admin import Admin
from cometmq.client.base.name_servers import name_server_entries
from cometmq.client.base.options import ClientOptions
from cometmq.client.consumer.group.first_offset import parse_start
from cometmq.client.producer.producer import Producer
from cometmq.errors import ConfigError, NoRoute, QueryNotFound, RemoteError, TopicNotExist
from cometmq.model import (
    BrokerData,
    ConsumeFromWhere,
    Message,
    MessageQueue,
    SubscriptionGroupConfig,
)
from cometmq.model.names import HALF_TOPIC
from cometmq.testing.cluster import EmbeddedCluster, embedded_cluster
from cometmq.wire.body.route import encode_cluster_info

Story = Callable[[Admin, Producer, EmbeddedCluster], Awaitable[None]]


def scenario(story: Story) -> None:
    async def run() -> None:
        async with (
            embedded_cluster() as cluster,
            Admin(name_server=cluster.name_server_address) as admin,
            Producer("pg", name_server=cluster.name_server_address) as producer,
        ):
            await story(admin, producer, cluster)

    asyncio.run(run())


def test_topics() -> None:
    """Create, change, list, look at, delete."""

    async def story(admin: Admin, producer: Producer, cluster: EmbeddedCluster) -> None:
        await admin.create_topic("one", queue_count=2, attributes="+message.type=NORMAL")
        await admin.create_topic("two", read_queue_count=4, write_queue_count=3, perm=4)
        assert await admin.topic_list() == ["one", "two"]
        assert "TBW102" in await admin.topic_list(include_system=True)
        route = await admin.topic_route("two")
        assert [(q.read_queue_count, q.write_queue_count, q.perm) for q in route.queue_datas] == [
            (4, 3, 4)
        ]
        config = (await admin.topic_config("one"))["broker-a"]
        assert (config.write_queue_count, config.attributes) == (2, {"message.type": "NORMAL"})
        await producer.send(Message("one", b"x"))
        offsets = await admin.topic_offsets("one")
        assert sum(range_.count for range_ in offsets.values()) == 1
        await admin.delete_topic("one")
        assert await admin.topic_list() == ["two"]
        with pytest.raises(NoRoute, match="one"):
            await admin.topic_route("one")
        with pytest.raises(TopicNotExist):
            await admin.delete_topic("one")
        for name, options, fault in (
            ("bad topic", {}, "illegal"),
            ("none", {"queue_count": 0}, "at least one queue"),
            ("x", {"cluster": "nowhere"}, "no cluster is called nowhere"),
            ("x", {"broker_name": "nobody"}, "no broker is called nobody"),
        ):
            with pytest.raises(ConfigError, match=fault):
                await admin.create_topic(name, **options)  # type: ignore[arg-type]
        with pytest.raises(RemoteError):
            await admin.create_topic("SCHEDULE_TOPIC_XXXX")

    scenario(story)


def test_the_cluster() -> None:
    """Brokers, clusters, runtime figures and configuration."""

    async def story(admin: Admin, producer: Producer, cluster: EmbeddedCluster) -> None:
        info = await admin.cluster_info()
        assert info.brokers["broker-a"].master_address == cluster.broker_address
        assert info.clusters == {"DefaultCluster": ("broker-a",)}
        assert await admin.broker_runtime_info("broker-a")
        assert "brokerName" in await admin.broker_config("broker-a")

    scenario(story)


@pytest.mark.parametrize(
    ("code", "is_said"), [(1, True), (16, True), (19, False), (20, False), (21, False)]
)
def test_a_broker_that_refuses_a_pull_is_no_broker_without_open_transactions(
    code: int, is_said: bool
) -> None:
    """The list ended silently when a broker refused a pull, so I saw "no open transactions"."""

    async def run() -> None:
        broker = FakeBroker({HALF_TOPIC: 1})
        await broker.start()
        brokers = {broker.name: BrokerData("c", broker.name, {0: broker.address})}
        info = encode_cluster_info(brokers, {"c": [broker.name]})
        broker.override[106] = lambda command, _: command.answer(0, None, {}, info)
        broker.override[26] = lambda command, _: command.answer(0, None, {}, b"")
        ext = dict.fromkeys(("suggestWhichBrokerId", "minOffset", "maxOffset"), "1")
        ext["nextBeginOffset"] = "1"
        broker.override[11] = lambda command, _: command.answer(code, "told to", ext)
        broker.override[321] = lambda command, _: command.answer(code, "told to")
        broker.store(HALF_TOPIC, 0, b"half", b"UNIQ_KEY\x01id\x02PGROUP\x01orders\x02")
        try:
            async with Admin(name_server=broker.name_server) as admin:
                if is_said:
                    with pytest.raises(RemoteError, match="told to"):
                        await admin.open_transactions()
                else:
                    # Retention has removed the message: the broker says where to go on.
                    assert await admin.open_transactions() == []
                del broker.override[11]
                (one,) = await admin.open_transactions()
                assert (one.transaction_id, one.group) == ("id", "orders")
                broker.override[204] = lambda command, _: command.answer(16, "told to")
                with pytest.raises(RemoteError, match="told to"):
                    await admin.open_transactions()
        finally:
            await broker.stop()

    asyncio.run(run())


def test_open_transactions_are_listed_although_the_broker_may_not_be_read() -> None:
    """A broker that was set to take writes only refused the pulls, and the list was empty."""

    async def run() -> None:
        async with (
            embedded_cluster({"brokerPermission": "2"}) as cluster,
            Admin(name_server=cluster.name_server_address) as admin,
            cometmq.TransactionProducer(
                "orders", check=lambda _: None, name_server=cluster.name_server_address
            ) as producer,
        ):
            kept = await producer.begin(Message("Orders", b"half"))
            (one,) = await admin.open_transactions()
            assert one.transaction_id == kept.id

    asyncio.run(run())


def test_groups_and_offsets() -> None:
    """Make a group, move it by time and to the end, see what it has to do, delete it."""

    async def story(admin: Admin, producer: Producer, cluster: EmbeddedCluster) -> None:
        await admin.create_topic("t", queue_count=1)
        queue = MessageQueue("t", "broker-a", 0)
        for number in range(5):
            await producer.send(Message("t", b"%d" % number))
        await admin.create_group(SubscriptionGroupConfig("g", retry_max_times=3))
        assert "g" in await admin.group_list()
        assert len(await admin.group_list(include_system=True)) > len(await admin.group_list())
        assert (await admin.group_configs("g"))["broker-a"].retry_max_times == 3
        assert await admin.group_configs("unknown") == {}
        assert await admin.consumer_list("g") == []
        assert await admin.group_topics("g") == []
        assert await admin.reset_offsets("g", "t", timestamp_ms=0) == {queue: 0}
        assert await admin.group_topics("g") == ["t"]
        progress = (await admin.group_offsets("g"))[queue]
        assert (progress.broker_offset, progress.consumer_offset, progress.lag) == (5, 0, 5)
        assert await admin.reset_offsets("g", "t") == {queue: 5}
        assert (await admin.group_offsets("g", ["t"]))[queue].lag == 0
        assert await admin.search_offset(queue, 0) == 0
        assert await admin.earliest_store_time(queue) > 0
        await admin.delete_group("g", clean_offsets=True)
        assert "g" not in await admin.group_list()

    scenario(story)


def test_messages_by_id_and_key() -> None:
    """By the broker's id, by the producer's, by key; what is not there says so."""

    async def story(admin: Admin, producer: Producer, cluster: EmbeddedCluster) -> None:
        await admin.create_topic("t", queue_count=2)
        sent = await producer.send(Message("t", b"one", keys=("k1", "k2")))
        await producer.send(Message("t", b"two", keys="k1"))
        found = await admin.view_message(sent.offset_message_id)
        assert (found.body, found.queue_offset, found.message_queue) == (
            b"one",
            sent.queue_offset,
            sent.message_queue,
        )
        async with asyncio.timeout(15):
            while len(await admin.query_message("t", "k1")) < 2:  # noqa: ASYNC110 - index is late
                await asyncio.sleep(0.02)
        assert [m.body for m in await admin.query_message("t", "k1")] == [b"one", b"two"]
        assert len(await admin.query_message("t", "k1", count_max=1)) == 1
        assert [m.body for m in await admin.query_message("t", "k2")] == [b"one"]
        assert await admin.query_message("t", "nokey") == []
        assert (await admin.view_message(sent.message_id, "t")).body == b"one"
        with pytest.raises(QueryNotFound):
            await admin.view_message("0" * 32, "t")
        with pytest.raises(QueryNotFound):
            await admin.view_message(sent.offset_message_id[:-4] + "FFFF")

    scenario(story)


def test_members_are_listed() -> None:
    """A consumer that is online shows up with its client id."""

    async def story(admin: Admin, producer: Producer, cluster: EmbeddedCluster) -> None:
        from cometmq.client.consumer.pull_consumer import PullConsumer

        await admin.create_topic("t")
        async with PullConsumer(
            "g", {"t": "*"}, name_server=cluster.name_server_address
        ) as consumer:
            assert await admin.consumer_list("g") == [consumer.client_id]
        assert await admin.consumer_list("g") == []

    scenario(story)


# -- settings ---------------------------------------------------------------------------------


def test_name_servers_come_from_argument_variable_or_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In this order; several are separated by semicolons."""
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    assert name_server_entries(None) == ("127.0.0.1:9876",)
    monkeypatch.setenv("NAMESRV_ADDR", "a:1; b:2 ;")
    assert name_server_entries(None) == ("a:1", "b:2")
    assert name_server_entries("http://c:3") == ("c:3",)
    assert name_server_entries(["d:4", "e:5"]) == ("d:4", "e:5")
    for wrong in ("nonsense", "host:port", "a:99999", "", ";"):
        with pytest.raises(ConfigError, match=r"127\.0\.0\.1:9876"):
            name_server_entries(wrong)
    with pytest.raises(ConfigError, match="timeout_ms is 0"):
        ClientOptions.of("a:1", request_timeout_ms=0)


def test_where_to_begin_as_users_write_it() -> None:
    """Words, enum, milliseconds, aware datetimes."""
    assert parse_start("FIRST") == (ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, None)
    assert parse_start(ConsumeFromWhere.CONSUME_FROM_MAX_OFFSET)[0] == 3
    assert parse_start(5) == (ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, 5)
    moment = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert parse_start(moment)[1] == 1_700_000_000_000
    with pytest.raises(ConfigError, match="time zone"):
        parse_start(datetime(2023, 11, 14))  # noqa: DTZ001
    with pytest.raises(ConfigError, match="unknown"):
        parse_start("middle")
