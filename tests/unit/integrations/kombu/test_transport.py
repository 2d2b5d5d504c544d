"""Kombu over a real broker: exchanges, queues, outcomes, prefetch, timers, and what is refused."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("kombu", reason="kombu is not installed: part of the extra 'celery'")

from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.exceptions import ChannelError, OperationalError
from tests.unit.integrations.conftest import Serve

import cometmq.sync
from cometmq.errors import ConfigError
from cometmq.integrations.kombu import channel as channel_module
from cometmq.integrations.kombu.names import escaped, unescaped
from cometmq.testing.cluster import EmbeddedCluster, threaded_cluster

WAIT_S = 20.0


@pytest.fixture
def connection(cluster: EmbeddedCluster) -> Iterator[Connection]:
    """A connection to the cluster of this file."""
    with connect(cluster) as opened:
        yield opened


def connect(cluster: EmbeddedCluster, **options: Any) -> Connection:
    """A connection as a program opens it."""
    return Connection(f"cometmq://{cluster.name_server_address}", **options)


class Inbox:
    """The messages of some queues, as one consumer gets them."""

    def __init__(self, connection: Connection, *queues: Queue, prefetch: int = 0) -> None:
        self.connection = connection
        self.messages: list[Any] = []
        channel = connection.channel()
        self.consumer = Consumer(
            channel, list(queues), on_message=self.messages.append, accept=["json", "text/plain"]
        )
        if prefetch:
            self.consumer.qos(prefetch_count=prefetch)
        self.consumer.consume()

    def wait(self, count: int) -> list[Any]:
        """The payloads, once there are so many."""
        while len(self.messages) < count:
            self.connection.drain_events(timeout=WAIT_S)
        return [message.payload for message in self.messages]

    def has_more(self) -> bool:
        """Whether another message comes within a second."""
        try:
            self.connection.drain_events(timeout=1)
        except TimeoutError:
            return False
        return True


def dead_letters(cluster: EmbeddedCluster, group: str) -> list[bytes]:
    """The bodies of a group's dead letters."""
    with cometmq.sync.PullConsumer(
        f"onlooker-{group}",
        {f"%DLQ%{group}": "*"},
        name_server=cluster.name_server_address,
        consume_from="first",
    ) as consumer:
        return [message.body for message in consumer.poll(5_000)]


# -- names -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["celery", "a.b", "a%2Eb", "celery@host.celery.pidbox", "über|~ x", "%RETRY%x", "a_b-c"]
)
def test_names_are_legal_and_can_be_read_back(name: str) -> None:
    """Every name of a queue gives a legal topic, and two names never give the same."""
    assert set(escaped(name)) <= set(
        "%_-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    )
    assert unescaped(escaped(name)) == name
    assert "%-" not in escaped(name)


# -- exchanges -------------------------------------------------------------------------------


def test_a_direct_exchange_delivers_by_key(connection: Connection) -> None:
    """Each queue gets the messages of its key, from another connection too."""
    orders = Exchange("orders", type="direct")
    red, blue = (Queue(name, orders, routing_key=name) for name in ("red", "blue"))
    with connection.clone() as other:
        reds, blues = Inbox(connection, red), Inbox(other, blue)
        producer = Producer(connection.channel(), exchange=orders)
        for number, key in enumerate(("red", "blue", "red")):
            producer.publish({"number": number}, routing_key=key)
        assert sorted(payload["number"] for payload in reds.wait(2)) == [0, 2]
        assert blues.wait(1) == [{"number": 1}]


def test_a_topic_exchange_delivers_by_pattern(connection: Connection) -> None:
    """`*` stands for a word and `#` for any number of them."""
    exchange = Exchange("weather", type="topic")
    rain = Inbox(connection, Queue("rain", exchange, routing_key="*.rain"))
    with connection.clone() as other:
        every = Inbox(other, Queue("every", exchange, routing_key="#"))
        producer = Producer(connection.channel(), exchange=exchange)
        for key in ("oslo.rain", "oslo.snow", "rome.rain"):
            producer.publish(key, routing_key=key)
        assert sorted(rain.wait(2)) == ["oslo.rain", "rome.rain"]
        assert sorted(every.wait(3)) == ["oslo.rain", "oslo.snow", "rome.rain"]


def test_a_fanout_exchange_delivers_to_every_temporary_queue(connection: Connection) -> None:
    """Each gets what was sent since its declaration, and nothing from before."""
    news = Exchange("news", type="fanout")
    producer = Producer(connection.channel(), exchange=news)
    producer.publish("old", declare=[news])
    with connection.clone() as other:
        first = Inbox(connection, Queue("first", news, durable=False, auto_delete=True))
        second = Inbox(other, Queue("second", news, durable=False, exclusive=True))
        producer.publish("new")
        assert first.wait(1) == second.wait(1) == ["new"]


def test_a_reply_queue_needs_no_topic(
    connection: Connection, cluster: EmbeddedCluster, admin: cometmq.sync.Admin
) -> None:
    """A temporary queue without exchange gets what is sent to its name, also before it is read."""
    queue = Queue("reply-7", durable=False, auto_delete=True)
    queue(connection.channel()).declare()
    with connect(cluster) as other:
        Producer(other.channel()).publish("done", routing_key="reply-7")
        Producer(other.channel()).publish("not for us", routing_key="reply-8")
    assert Inbox(connection, queue).wait(1) == ["done"]
    assert not {"reply-7", "reply-8"} & set(admin.topic_list())


def test_a_virtual_host_has_topics_of_its_own(
    cluster: EmbeddedCluster, admin: cometmq.sync.Admin
) -> None:
    """Two apps on one cluster use equal names without meeting."""
    with connect(cluster, virtual_host="shop") as shop, connect(cluster) as other:
        Inbox(other, Queue("tenants"))
        theirs = Inbox(shop, Queue("tenants"))
        Producer(shop.channel()).publish("hello", routing_key="tenants")
        assert theirs.wait(1) == ["hello"]
    assert {"shop%-tenants", "tenants"} <= set(admin.topic_list())


# -- outcomes --------------------------------------------------------------------------------


def test_a_requeued_message_comes_again(connection: Connection) -> None:
    """`requeue` sends it to the end of the queue, marked as redelivered; `ack` ends it."""
    inbox = Inbox(connection, Queue("requeued"))
    Producer(connection.channel()).publish("again", routing_key="requeued")
    inbox.wait(1)
    inbox.messages[0].requeue()
    inbox.wait(2)
    assert inbox.messages[1].payload == "again"
    assert inbox.messages[1].delivery_info["redelivered"]
    inbox.messages[1].ack()
    assert not inbox.has_more()


def test_a_rejected_message_is_a_dead_letter_that_can_be_sent_again(
    serve: Serve, connection: Connection, cluster: EmbeddedCluster
) -> None:
    """RocketMQ's tools find it, and bring it back to the queue."""
    inbox = Inbox(connection, Queue("rejected"))
    Producer(connection.channel()).publish({"task": 1}, routing_key="rejected")
    inbox.wait(1)
    inbox.messages[0].reject()
    (letter,) = dead_letters(cluster, "rejected")
    assert json.loads(letter)["headers"] == {}
    with serve("cometmq", "dead-letters", "redrive", "rejected", "--yes") as command:
        assert command.process.wait(WAIT_S) == 0, command.log
    assert inbox.wait(2) == [{"task": 1}, {"task": 1}]


def test_prefetch_limits_what_is_delivered(connection: Connection) -> None:
    """The third message is delivered when one of two is acknowledged, and not before."""
    inbox = Inbox(connection, Queue("narrow"), prefetch=2)
    producer = Producer(connection.channel())
    for number in range(3):
        producer.publish(number, routing_key="narrow")
    inbox.wait(2)
    assert not inbox.has_more()
    inbox.messages[0].ack()
    assert sorted(inbox.wait(3)) == [0, 1, 2]


def test_what_has_no_outcome_comes_again_and_nothing_else(cluster: EmbeddedCluster) -> None:
    """A closed connection repeats no acknowledged message, in whatever order they were."""
    queue = Queue("unsettled")
    with connect(cluster, transport_options={"queue_count": 1}) as first:
        inbox = Inbox(first, queue)
        producer = Producer(first.channel())
        for number in range(4):
            producer.publish(number, routing_key="unsettled")
        inbox.wait(4)
        inbox.messages[1].ack()
        inbox.messages[3].ack()
    with connect(cluster) as second:
        inbox = Inbox(second, queue)
        assert sorted(inbox.wait(2)) == [0, 2]
        for message in inbox.messages:
            message.ack()
        assert not inbox.has_more()
    with connect(cluster) as third:
        assert not Inbox(third, queue).has_more()


def test_a_foreign_message_is_skipped(
    connection: Connection, cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Bytes that Kombu did not write neither stop the queue nor are read for ever."""
    inbox = Inbox(connection, Queue("mixed"))
    with cometmq.sync.Producer("p", name_server=cluster.name_server_address) as producer:
        producer.send(cometmq.Message("mixed", b"\x00 not Kombu's", tags="mixed"))
    Producer(connection.channel()).publish("ours", routing_key="mixed")
    assert inbox.wait(1) == ["ours"]
    inbox.messages[0].ack()
    assert not inbox.has_more()
    assert "is not one of Kombu's and is skipped" in caplog.text


def test_a_lease_frees_the_queue_and_lasts_as_long_as_the_task(cluster: EmbeddedCluster) -> None:
    """The offset goes on while a message is unsettled, and no other copy of it is delivered."""
    options = {"lease_after": 0.2, "visibility_timeout": 5, "queue_count": 1}
    with connect(cluster, transport_options=options) as connection:
        channel = connection.channel()
        inbox = Inbox(connection, Queue("long"))
        Producer(channel).publish("hours", routing_key="long")
        inbox.wait(1)
        while Queue("long")(channel).queue_declare(passive=True).message_count:
            pass
        for _ in range(7):  # longer than a lease
            assert not inbox.has_more()
        inbox.messages[0].ack()
    with connect(cluster) as connection:
        inbox = Inbox(connection, Queue("long"))
        for _ in range(6):
            assert not inbox.has_more()


def test_a_broker_that_recalls_nothing_gives_no_leases(caplog: pytest.LogCaptureFixture) -> None:
    """As RocketMQ's, where `recallMessageEnable` is off by default: the log says what follows."""
    caplog.set_level("INFO", "cometmq.kombu")
    with (
        threaded_cluster({"recallMessageEnable": "false"}) as cluster,
        connect(cluster, transport_options={"lease_after": 0.01}) as connection,
    ):
        inbox = Inbox(connection, Queue("short"))
        Producer(connection.channel()).publish("x", routing_key="short")
        assert inbox.wait(1) == ["x"]
        assert not inbox.has_more()
        queue = Queue("short")(connection.channel())
        assert queue.queue_declare(passive=True).message_count == 1
    assert "long tasks have no leases" in caplog.text


# -- counts ----------------------------------------------------------------------------------


def test_counts_purge_and_delete(connection: Connection) -> None:
    """A declaration tells how many messages wait; a purge leaves none, for ever."""
    queue = Queue("counted")(connection.channel())
    queue.declare()
    producer = Producer(connection.channel())
    for number in range(3):
        producer.publish(number, routing_key="counted")
    assert queue.queue_declare(passive=True).message_count == 3
    queue.get().ack()
    assert queue.purge() in {2, 3}  # the acknowledgement is committed in the background
    while queue.queue_declare(passive=True).message_count:
        pass
    assert queue.get() is None
    producer.publish("late", routing_key="counted")
    queue.delete()
    queue.declare()
    assert queue.get() is None


def test_a_passive_declaration_of_a_missing_queue_is_refused(connection: Connection) -> None:
    """It names the queue, and creates none."""
    queue = Queue("nowhere")(connection.channel())
    with pytest.raises(ChannelError, match="no queue 'nowhere'"):
        queue.queue_declare(passive=True)


# -- timers ----------------------------------------------------------------------------------


def test_an_eta_beyond_the_timers_reach_is_held_in_steps(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, admin: cometmq.sync.Admin
) -> None:
    """A broker holds three days at most; what is due later is sent on, and comes once."""
    monkeypatch.setattr(channel_module, "TIMER_MAX", timedelta(seconds=2))
    inbox = Inbox(connection, Queue("late"))
    eta = datetime.now(UTC) + timedelta(seconds=5)
    Producer(connection.channel()).publish(
        "later", routing_key="late", headers={"eta": eta.isoformat()}
    )
    assert inbox.wait(1) == ["later"]
    assert datetime.now(UTC) > eta - timedelta(seconds=2)
    inbox.messages[0].ack()
    assert not inbox.has_more()
    assert sum(span.count for span in admin.topic_offsets("late").values()) > 1


def test_a_broker_without_timers_leaves_the_waiting_to_the_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A task with an eta is sent all the same, and the log says who holds such tasks."""
    eta = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    with threaded_cluster({"timerWheelEnable": "false"}) as cluster, connect(cluster) as connection:
        inbox = Inbox(connection, Queue("timeless"))
        for number in range(2):
            Producer(connection.channel()).publish(
                number, routing_key="timeless", headers={"eta": eta}
            )
        assert sorted(inbox.wait(2)) == [0, 1]
    assert caplog.text.count("workers hold tasks with an eta") == 1


# -- refusals --------------------------------------------------------------------------------


def test_queue_arguments_without_effect_are_refused(connection: Connection) -> None:
    """The error names the argument."""
    queue = Queue("classes", max_priority=10)(connection.channel())
    with pytest.raises(ChannelError, match="x-max-priority"):
        queue.declare()


def test_unknown_options_are_refused(cluster: EmbeddedCluster) -> None:
    """The error lists the options that there are."""
    with pytest.raises(ConfigError, match="polling_interval have no meaning here; there are "):
        connect(cluster, transport_options={"polling_interval": 1}).connect()


def test_a_priority_is_reported_once(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """The message is sent, and the log says that its priority has no effect."""
    inbox = Inbox(connection, Queue("urgent"))
    for number in range(2):
        Producer(connection.channel()).publish(number, routing_key="urgent", priority=9)
    assert sorted(inbox.wait(2)) == [0, 1]
    assert caplog.text.count("has a priority, which RocketMQ does not have") == 1


def test_a_missing_cluster_is_a_connection_error() -> None:
    """Kombu and Celery try again by their own policy."""
    with pytest.raises(OperationalError, match=r"127\.0\.0\.1:1"):
        Connection("cometmq://127.0.0.1:1").ensure_connection(max_retries=1, interval_start=0)
