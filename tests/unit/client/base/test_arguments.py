"""One where several are meant, and texts where none can be: taken as one, or refused in words."""

import asyncio
from typing import Any

import pytest

import cometmq.sync
from cometmq.client import Admin, Producer, PullConsumer, PushConsumer
from cometmq.core.group.allocate import AllocateByConfig
from cometmq.errors import ConfigError
from cometmq.model import Message, MessageQueue, SubscriptionGroupConfig
from cometmq.testing.cluster import embedded_cluster, threaded_cluster

QUEUE = MessageQueue("orders", "broker-a", 0)
KINDS = (PushConsumer, PullConsumer, cometmq.sync.PushConsumer, cometmq.sync.PullConsumer)


def test_a_topic_is_no_list_of_letters() -> None:
    """`group_offsets` takes the name of one topic, or several."""

    async def run() -> None:
        async with embedded_cluster() as cluster:
            address = cluster.name_server_address
            async with Admin(name_server=address) as admin, Producer(name_server=address) as sender:
                await admin.create_topic("orders", queue_count=1)
                await sender.send(Message("orders", b"x"))
                await admin.create_group(SubscriptionGroupConfig("g"))
                await admin.commit_offsets("g", {QUEUE: 0})
                one = await admin.group_offsets("g", "orders")
                assert one == await admin.group_offsets("g", ["orders"])
                assert one[QUEUE].lag == 1

    asyncio.run(run())


def test_a_topic_is_no_list_of_letters_without_asyncio() -> None:
    """The same of the synchronous face."""
    with (
        threaded_cluster() as cluster,
        cometmq.sync.Admin(name_server=cluster.name_server_address) as admin,
    ):
        admin.create_topic("orders", queue_count=1)
        admin.create_group(SubscriptionGroupConfig("g"))
        assert list(admin.group_offsets("g", "orders")) == [QUEUE]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("subscriptions", ["orders", ["orders"], {"orders"}, ("orders", "*")])
def test_subscriptions_are_a_mapping(kind: Any, subscriptions: Any) -> None:
    """The words show how it is written."""
    with pytest.raises(ConfigError, match=r"must map topics to tag expressions, such as {'"):
        kind("g", subscriptions, name_server="127.0.0.1:1")


def test_queues_of_a_pull_consumer() -> None:
    """A single queue is one queue, not its topic, broker and number; a topic is none."""

    async def run() -> None:
        async with (
            embedded_cluster() as cluster,
            PullConsumer("g", name_server=cluster.name_server_address) as consumer,
            Producer(name_server=cluster.name_server_address) as producer,
        ):
            await producer.create_topic("orders", queue_count=2)
            one: Any = QUEUE
            await consumer.assign(one)
            assert consumer.assignment() == [QUEUE]
            assert await consumer.begin_offsets(one) == {QUEUE: 0}
            assert await consumer.end_offsets(one) == {QUEUE: 0}
            consumer.pause(one)
            assert consumer.paused() == [QUEUE]
            consumer.resume(one)
            assert consumer.paused() == []
            for wrong in ("orders", ["orders"], ("orders", "broker-a", 0)):
                queues: Any = wrong
                for method in (consumer.assign, consumer.begin_offsets, consumer.end_offsets):
                    with pytest.raises(ConfigError, match="not a list of MessageQueue"):
                        await method(queues)
                for plain in (consumer.pause, consumer.resume):
                    with pytest.raises(ConfigError, match="is not a list of MessageQueue"):
                        plain(queues)
            assert consumer.assignment() == [QUEUE]
            assert consumer.paused() == []

    asyncio.run(run())


@pytest.mark.parametrize("queues", ["orders", ["orders"], QUEUE])
def test_configured_queues(queues: Any) -> None:
    """A strategy that would hand out letters hands out nothing, so it is refused when made."""
    with pytest.raises(ConfigError, match="is not a list of MessageQueue"):
        AllocateByConfig(queues)


PRODUCERS = (Producer, cometmq.sync.Producer)
NO_NUMBERS = (None, "3000", float("nan"), -5, 10**30, True)


def _refused(kinds: Any, name: str, value: object, *positional: Any) -> bool:
    """Whether each kind says the argument's name and the value."""
    texts: list[str] = []
    for kind in kinds:
        with pytest.raises(ConfigError) as refused:
            kind(*positional, name_server="127.0.0.1:1", **{name: value})
        texts.append(str(refused.value))
    return all(text.startswith(f"{name} ") and repr(value)[:100] in text for text in texts)


@pytest.mark.parametrize("value", NO_NUMBERS)
@pytest.mark.parametrize(
    "name", ["timeout_ms", "retries", "batch_bytes_max", "compress_above_bytes"]
)
def test_numbers_of_a_producer(name: str, value: object) -> None:
    """None, texts and what is no number are told where they are given."""
    if (name, value) == ("retries", None):
        # The default: as many as the timeout has room for.
        assert all(kind("g", name_server="127.0.0.1:1", retries=None) for kind in PRODUCERS)
        return
    assert _refused(PRODUCERS, name, value, "g")


@pytest.mark.parametrize("value", NO_NUMBERS)
@pytest.mark.parametrize(
    "name", ["concurrency", "suspend_ms", "drain_timeout_ms", "consume_timeout_ms"]
)
def test_numbers_of_a_push_consumer(name: str, value: object) -> None:
    """Before threads are made of them, or a shutdown waits for them."""
    assert _refused((PushConsumer, cometmq.sync.PushConsumer), name, value, "g", {"t": "*"}, print)


@pytest.mark.parametrize("value", NO_NUMBERS)
@pytest.mark.parametrize("name", ["pull_count_max", "buffer_count_max"])
def test_numbers_of_a_pull_consumer(name: str, value: object) -> None:
    """One that holds nothing would wait for ever."""
    assert _refused((PullConsumer, cometmq.sync.PullConsumer), name, value, "g", {"t": "*"})


@pytest.mark.parametrize("value", NO_NUMBERS)
def test_the_timeout_of_an_admin(value: object) -> None:
    """By the name it has there."""
    assert _refused((Admin, cometmq.sync.Admin), "timeout_ms", value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("message_model", "BROADCASTING"),
        ("message_model", None),
        ("message_model", 5),
        ("strategy", None),
        ("strategy", object),
        ("flow_limits", 5),
        ("rebalance_listener", 5),
        ("on_parked", 5),
        ("instance_name", 5),
        ("client_ip", "999.1.1.1"),
        ("consume_from", None),
        ("consume_from", 1.5),
        ("consume_from", -1),
        ("tls", "yes"),
        ("env", 5),
    ],
)
def test_choices_of_a_consumer(name: str, value: object) -> None:
    """What is none of those there are would be taken for one of them, or fail far away."""
    with pytest.raises(ConfigError, match=f"^{name}") as refused:
        PushConsumer("g", {"t": "*"}, print, name_server="127.0.0.1:1", **{name: value})  # type: ignore[arg-type]
    assert f"{value!r}"[:100] in str(refused.value)


@pytest.mark.parametrize("kind", [*PRODUCERS, *KINDS])
@pytest.mark.parametrize("group", [None, "", "a b", 5, b"g"])
def test_groups_are_named_by_a_text(kind: Any, group: object) -> None:
    """Of legal characters."""
    with pytest.raises(ConfigError, match="group"):
        kind(group, name_server="127.0.0.1:1")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "subscriptions", [{"t": 5}, {"t": b"*"}, {"t": ["a"]}, {"t": print}, {5: "*"}, {None: "*"}]
)
def test_subscriptions_are_texts(kind: Any, subscriptions: Any) -> None:
    """Topics and their expressions."""
    with pytest.raises(ConfigError, match=r"topic|subscription of t"):
        kind("g", subscriptions, name_server="127.0.0.1:1")


@pytest.mark.parametrize("address", [5, b"a:1", ["a:1", 5], "a:0", ["a:1;b"]])
def test_name_servers_are_texts(address: Any) -> None:
    """Bytes are a sequence of numbers to Python."""
    with pytest.raises(ConfigError, match=r"name.server"):
        Producer(name_server=address)


def test_name_servers_joined_in_a_list() -> None:
    """An entry of a list may be what a variable holds."""
    producer = Producer(name_server=["a:1;b:2", "c:3"])
    assert producer.core.options.name_servers.entries == ("a:1", "b:2", "c:3")
