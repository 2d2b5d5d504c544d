"""The synchronous face: equal names and signatures, threads, life, the background loop."""

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.unit.client.fake import FakeBroker
from tests.unit.client.waiting import until

import cometmq
import cometmq.client
import cometmq.sync
from cometmq.client.base.background import background
from cometmq.errors import ClientClosed, ConfigError, NoRoute, RequestTimeout, TopicNotExist
from cometmq.model import Message, MessageQueue, SendStatus
from cometmq.testing.cluster import EmbeddedCluster, threaded_cluster

NAMES = ("Admin", "Connection", "Producer", "PullConsumer", "PushConsumer", "TransactionProducer")
# What only asyncio or only the inside has: context managers, iteration, the instance's questions.
PRIVATE = {
    "accept",
    "after_fork",
    "assignments",
    "broker_end",
    "client_id",
    "commit_changed",
    "commit_hint",
    "consumer_data",
    "dispatcher_of",
    "expire_now",
    "find_topic",
    "finished",
    "finished_all",
    "forget_topic",
    "give_back",
    "hold",
    "is_astray",
    "is_orderly",
    "is_paused",
    "learn_homes",
    "locked_ms",
    "may_consume",
    "may_start",
    "message_model",
    "name_servers",
    "namespace",
    "next_batch",
    "next_ready",
    "open_io",
    "open_shared",
    "note_difference",
    "now_ms",
    "offset_moved",
    "queue_reader",
    "rebalance_soon",
    "recheck_route",
    "renew_locks",
    "apply_offset_reset",
    "room",
    "routes_changed",
    "run_directly",
    "serve",
    "skipped",
    "spawn",
    "started_ms",
    "status_table",
    "stop_consuming",
    "subscriptions",
    "takes",
    "thread_count",
    "topics",
    "try_again",
    "watch",
}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")} - PRIVATE


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with threaded_cluster() as running:
        yield running


@pytest.mark.parametrize("name", NAMES)
def test_both_faces_have_equal_names_and_signatures(name: str) -> None:
    """Every public method and the constructor: same parameters, same defaults."""
    one, other = getattr(cometmq, name), getattr(cometmq.sync, name)
    assert public(one) == public(other)
    for method in [*public(one), "__init__"]:
        left, right = getattr(one, method), getattr(other, method)
        if not callable(left):
            continue
        ours = inspect.signature(left).parameters
        theirs = inspect.signature(right).parameters
        assert list(ours) == list(theirs), method
        for parameter in ours:
            assert ours[parameter].default == theirs[parameter].default, (method, parameter)
            assert ours[parameter].kind == theirs[parameter].kind, (method, parameter)


def test_the_package_names_what_it_exports() -> None:
    """Lazy names resolve, unknown ones are refused in the usual words."""
    for name in cometmq.__all__:
        assert getattr(cometmq, name) is not None
    assert set(cometmq.__all__) <= set(dir(cometmq))
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        cometmq.Nonsense  # type: ignore[attr-defined]  # noqa: B018
    for name in cometmq.client.__all__:
        assert getattr(cometmq.client, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        cometmq.client.Nonsense  # type: ignore[attr-defined]  # noqa: B018
    assert "Admin" in dir(cometmq.client)


def test_sending_in_every_way(cluster: EmbeddedCluster) -> None:
    """send, send_nowait, send_batch, send_oneway, flush, groups and selectors."""
    with cometmq.sync.Producer("pg", name_server=cluster.name_server_address) as producer:
        producer.create_topic("ways", queue_count=4)
        result = producer.send(Message("ways", b"1"))
        assert result.status is SendStatus.SEND_OK
        group = producer.send(Message("ways", b"2"), message_group="TagA")
        assert group.message_queue.queue_id == 3
        message = Message("ways", b"again")
        assert producer.send(message, message_group="TagA").message_queue.queue_id == 3
        producer.send_nowait(message, message_group="TagA").result(10)
        producer.send_oneway(message, message_group="TagA")
        assert message == Message("ways", b"again"), "the next send of it would be grouped"
        chosen = producer.send(Message("ways", b"3"), selector=lambda queues, _: queues[1])
        assert chosen.message_queue.queue_id == 1
        fixed = producer.send(Message("ways", b"4"), queue=MessageQueue("ways", "broker-a", 2))
        assert fixed.message_queue.queue_id == 2
        futures = [producer.send_nowait(Message("ways", b"n")) for _ in range(50)]
        producer.flush()
        assert {future.result().status for future in futures} == {SendStatus.SEND_OK}
        batch = producer.send_batch([Message("ways", b"b", message_group="TagA")] * 3)
        assert [(r.queue_offset or 0) - (batch[0].queue_offset or 0) for r in batch] == [0, 1, 2]
        assert {r.message_queue.queue_id for r in batch} == {3}
        producer.send_oneway(Message("ways", b"o"))
        assert len(producer.fetch_publish_queues("ways")) == 4
        with pytest.raises(ConfigError):
            producer.send(Message("ways", b"x"), selector=lambda *_: MessageQueue("a", "b", 1))
        changed = Message("ways", b"x")
        changed.topic = "bad topic"
        bad = producer.send_nowait(changed)
        assert isinstance(bad.exception(10), Exception)
    with cometmq.sync.Producer(
        "pg", name_server=cluster.name_server_address, linger_ms=1
    ) as lingering:
        assert lingering.send(Message("ways", b"l")).status is SendStatus.SEND_OK


def test_threads_share_a_producer(cluster: EmbeddedCluster) -> None:
    """No lost message, no id twice, each thread its own connection."""
    ids: list[str] = []
    faults: list[BaseException] = []

    with cometmq.sync.Producer("pg", name_server=cluster.name_server_address) as producer:

        def work() -> None:
            try:
                for _ in range(50):
                    ids.append(producer.send(Message("threads", b"x")).message_id)
            except BaseException as error:
                faults.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not faults
    assert len(set(ids)) == 200


def test_consuming_in_every_way(cluster: EmbeddedCluster) -> None:
    """Plain and async handlers, iteration, polling, positions, commits."""
    address = cluster.name_server_address
    with cometmq.sync.Producer("pg", name_server=address) as producer:
        producer.create_topic("read", queue_count=1)
        for number in range(40):
            producer.send(Message("read", b"%d" % number))
    seen: list[bytes] = []
    enough = threading.Event()

    def plain(message: cometmq.ReceivedMessage) -> None:
        seen.append(message.body)
        if len(seen) == 40:
            enough.set()

    with cometmq.sync.PushConsumer(
        "g1", {"read": "*"}, plain, name_server=address, consume_from="first"
    ) as push:
        assert enough.wait(15)
        assert len(push.assignment()) == 1
        assert push.client_id
        push.unsubscribe("read")
        push.subscribe("read")
    assert sorted(seen) == sorted(b"%d" % number for number in range(40))

    with cometmq.sync.PullConsumer("g2", name_server=address, consume_from="first") as pull:
        pull.subscribe("read")
        (queue,) = pull.assignment()
        assert queue == pull.fetch_queues("read")[0]
        bodies = [next(pull).body for _ in range(25)]
        assert bodies == [b"%d" % number for number in range(25)]
        assert pull.position(queue) == 25
        pull.commit()
        assert pull.committed(queue) == 25
        assert len(pull.poll(5_000)) == 15
        assert pull.poll(1) == []
        pull.seek(queue, 39)
        assert [message.body for message in pull.poll(5_000)] == [b"39"]
        pull.seek_to_begin(queue)
        pull.pause([queue])
        assert pull.paused() == [queue]
        pull.resume([queue])
        assert next(pull).body == b"0"
        pull.seek_to_end(queue)
        assert pull.begin_offsets([queue]) == {queue: 0}
        assert pull.end_offsets([queue]) == {queue: 40}
        assert pull.offsets_for_times({queue: 0}) == {queue: 0}
        pull.unsubscribe("read")
    with cometmq.sync.PullConsumer("g3", name_server=address, consume_from="first") as pull:
        pull.assign([queue])
        assert next(iter(pull)).body == b"0"
        assert pull.client_id


def test_iteration_ends_when_another_thread_closes(cluster: EmbeddedCluster) -> None:
    """A waiting ``for`` is let go."""
    consumer = cometmq.sync.PullConsumer("g9", name_server=cluster.name_server_address)
    consumer.start()
    threading.Timer(0.1, consumer.shutdown).start()
    assert list(consumer) == []


def test_a_blocking_call_on_the_background_loop_is_refused() -> None:
    """It would wait for itself; the text says what to do."""

    async def careless() -> Any:
        return background().run(asyncio.sleep(0))

    with pytest.raises(ClientClosed, match="use a plain function as the handler"):
        background().run(careless())


def test_the_synchronous_consumers_do_not_advise_async_with() -> None:
    """A use before the start names `with` and start(), as the synchronous producer does."""
    pull = cometmq.sync.PullConsumer("g")
    producer = cometmq.sync.Producer("g")
    uses: list[Callable[[], object]] = [
        lambda: pull.poll(0),
        lambda: pull.fetch_queues("t"),
        lambda: producer.send(Message("t", b"x")),
    ]
    for use in uses:
        with pytest.raises(ClientClosed, match="use `with` or call start\\(\\)"):
            use()


def test_the_synchronous_clients_are_an_attribute_of_the_package() -> None:
    """`import cometmq; cometmq.sync` raised AttributeError, and `cometmq.errors` too."""
    program = "import cometmq; print(cometmq.sync.Producer, cometmq.errors.CometError)"
    run = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert "sync" in dir(cometmq)


def test_life_cycle_is_checked(cluster: EmbeddedCluster) -> None:
    """Not started, closed, unknown topic."""
    producer = cometmq.sync.Producer("pg", name_server=cluster.name_server_address)
    with pytest.raises(ClientClosed, match="not started"):
        producer.send(Message("t", b"x"))
    producer.start()
    assert producer.client_id
    producer.shutdown()
    producer.shutdown()
    for call in (producer.start, lambda: producer.send(Message("t", b"x"))):
        with pytest.raises(ClientClosed, match="closed"):
            call()
    with (
        cometmq.sync.PullConsumer("g", name_server=cluster.name_server_address) as pull,
        pytest.raises(NoRoute),
    ):
        pull.fetch_queues("nowhere-at-all")


# -- faults, against the scripted broker in this test's own loop --------------------------------


def with_fake(story: Any, **options: Any) -> FakeBroker:
    """Run ``story(broker, producer)`` in a thread while the fake serves on this loop."""

    async def run() -> FakeBroker:
        broker = FakeBroker({"t": 4})
        await broker.start()

        def work() -> None:
            with cometmq.sync.Producer("pg", name_server=broker.name_server, **options) as producer:
                story(broker, producer)

        try:
            await asyncio.to_thread(work)
            await until(lambda: not broker.server.connections)
        finally:
            await broker.stop()
        return broker

    return asyncio.run(run())


def test_retries_and_final_errors() -> None:
    """Busy once is retried, a refusal for good is raised, three refusals are listed."""

    def story(broker: FakeBroker, producer: cometmq.sync.Producer) -> None:
        codes = iter([2, 0])

        def once(command: Any, connection: Any) -> Any:
            code = next(codes)
            return broker.ordinary(command, connection) if not code else command.answer(code, "no")

        broker.override[310] = once
        assert producer.send(Message("t", b"x")).status is SendStatus.SEND_OK
        broker.override[310] = lambda command, connection: command.answer(17, "gone", {})
        with pytest.raises(TopicNotExist, match="3 tries"):
            producer.send(Message("t", b"x"))
        broker.override[310] = lambda command, connection: None
        with pytest.raises(RequestTimeout):
            producer.send(Message("t", b"x"), timeout_ms=100)
        del broker.override[310]
        assert producer.send(Message("t", b"y")).status is SendStatus.SEND_OK

    with_fake(story)


def test_a_cut_connection_is_replaced() -> None:
    """The broker hangs up on an idle connection; the next send gets through all the same."""

    def story(broker: FakeBroker, producer: cometmq.sync.Producer) -> None:
        producer.send(Message("t", b"x"))
        cut = threading.Event()

        def hang_up() -> None:
            for connection in list(broker.server.connections):
                connection.abort("the test says so")
            asyncio.get_running_loop().call_later(0.05, cut.set)

        broker.loop.call_soon_threadsafe(hang_up)
        assert cut.wait(10)
        assert producer.send(Message("t", b"y")).status is SendStatus.SEND_OK

    with_fake(story)


def test_a_cut_connection_is_made_again_until_the_time_is_over() -> None:
    """More often than RocketMQ's two retries, under one unique key, and at a fixed queue too."""
    keys: set[str] = set()

    def story(broker: FakeBroker, producer: cometmq.sync.Producer) -> None:
        fixed = MessageQueue("t", "broker-a", 1)
        options: list[dict[str, Any]] = [{}, {"queue": fixed}, {"message_group": "TagA"}]
        for option in options:
            left = [3]
            keys.clear()

            def cut(command: Any, connection: Any, left: list[int] = left) -> Any:
                keys.add(command.ext_fields["i"].partition("UNIQ_KEY\x01")[2].partition("\x02")[0])
                if not left[0]:
                    return broker.ordinary(command, connection)
                left[0] -= 1
                connection.abort("the test says so")
                return None

            broker.override[310] = cut
            assert producer.send(Message("t", b"x"), **option).status is SendStatus.SEND_OK
            assert len(keys) == 1
        del broker.override[310]

    assert with_fake(story).codes().count(310) == 3 * 4


def test_stored_without_flush_may_be_sent_again() -> None:
    """Only on request, and then to the last try's status."""

    def stored(command: Any, connection: Any) -> Any:
        ext = {"msgId": "A", "queueId": "0", "queueOffset": "0"}
        return command.answer(10, "flush", ext)

    def story(broker: FakeBroker, producer: cometmq.sync.Producer) -> None:
        broker.override[310] = stored
        status = producer.send(Message("t", b"x")).status
        assert status is SendStatus.FLUSH_DISK_TIMEOUT

    assert with_fake(story).codes().count(310) == 1
    assert with_fake(story, retry_when_not_ok=True).codes().count(310) == 3
