"""Forks: the child re-registers under its own id, the parent's connections live on."""

import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator

import pytest

import cometmq.sync
from cometmq.client.base import fork
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.errors import ClientClosed
from cometmq.model import Message, SendStatus
from cometmq.net.loop import run
from cometmq.testing.cluster import EmbeddedCluster, threaded_cluster

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks on this platform"),
    # Python 3.12 and later warn of a fork in a process with threads; that is what is tested.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with threaded_cluster() as running:
        yield running


def in_child(work: Callable[[], str]) -> str:
    """What ``work`` returns in a forked child; its failure is this test's failure."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.write(write_end, work().encode())
            status = 0
        except BaseException:
            traceback.print_exc(file=sys.stderr)
        finally:
            os._exit(status)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        text = pipe.read().decode()
    _, status = os.waitpid(pid, 0)
    assert status == 0, "the child failed; its trace is on stderr"
    return text


def test_a_sync_producer_goes_on_on_both_sides(cluster: EmbeddedCluster) -> None:
    """New client id and new ids in the child; the parent does not notice."""
    with cometmq.sync.Producer("pg", name_server=cluster.name_server_address) as producer:
        first = producer.send(Message("forked", b"before"))
        parent_id = producer.client_id

        def child() -> str:
            result = producer.send(Message("forked", b"in the child"))
            background = producer.send_nowait(Message("forked", b"in the background"))
            assert background.result(20).status is SendStatus.SEND_OK
            producer.shutdown()
            return f"{producer.client_id} {result.message_id} {fork.generation()}"

        child_id, message_id, generation = in_child(child).split()
        assert child_id != parent_id
        assert message_id[:20] != first.message_id[:20]
        assert generation == "1"
        assert fork.generation() == 0
        assert producer.client_id == parent_id
        for _ in range(3):
            assert producer.send(Message("forked", b"after")).status is SendStatus.SEND_OK


def test_an_async_producer_starts_anew_in_a_child(cluster: EmbeddedCluster) -> None:
    """The inherited loop is left alone; on the child's own loop the producer just works."""

    async def parent() -> None:
        async with cometmq.Producer("pg", name_server=cluster.name_server_address) as producer:
            await producer.send(Message("forked", b"before"))
            parent_id = producer.client_id

            def child() -> str:
                import asyncio

                # A fork inside a running loop leaves the thread marked as running it.
                asyncio._set_running_loop(None)

                async def work() -> str:
                    result = await producer.send(Message("forked", b"child"))
                    await producer.shutdown()
                    return f"{producer.client_id} {result.status.name}"

                return run(work())

            child_id, status = in_child(child).split()
            assert status == "SEND_OK"
            assert child_id != parent_id
            assert (await producer.send(Message("forked", b"after"))).status is SendStatus.SEND_OK

    run(parent())


def test_consumers_do_not_consume_twice_by_accident(cluster: EmbeddedCluster) -> None:
    """In the child the consumer is inert until started, then a member of its own."""
    seen: list[bytes] = []

    def handle(message: cometmq.ReceivedMessage) -> None:
        seen.append(message.body)

    with cometmq.sync.Producer("pg", name_server=cluster.name_server_address) as producer:
        producer.create_topic("shared", queue_count=2)
        with cometmq.sync.PushConsumer(
            "g", {"shared": "*"}, handle, name_server=cluster.name_server_address
        ) as consumer:
            parent_id = consumer.client_id

            def child() -> str:
                assert consumer.assignment() == []
                assert consumer.client_id is None
                consumer.start()
                child_id = consumer.client_id or ""
                consumer.shutdown()
                return child_id

            child_id = in_child(child)
            assert child_id
            assert child_id != parent_id
            assert consumer.client_id == parent_id
            producer.send(Message("shared", b"x"))
            deadline = time.monotonic() + 15
            while not seen and time.monotonic() < deadline:
                time.sleep(0.01)
        assert seen == [b"x"]


def test_a_pull_consumer_in_a_child_says_what_to_do(cluster: EmbeddedCluster) -> None:
    """Reading the parent's queues would steal its messages; the text says start()."""
    with cometmq.sync.PullConsumer("g", name_server=cluster.name_server_address) as consumer:

        def child() -> str:
            with pytest.raises(ClientClosed, match="not started in this process"):
                consumer.poll(1)
            consumer.start()
            assert consumer.poll(1) == []
            consumer.shutdown()
            return "ok"

        assert in_child(child) == "ok"


def test_admin_on_both_sides(cluster: EmbeddedCluster) -> None:
    """Requests over fresh connections in the child, over the old ones in the parent."""
    with cometmq.sync.Admin(name_server=cluster.name_server_address) as admin:
        admin.create_topic("seen-by-both")
        assert "seen-by-both" in in_child(lambda: " ".join(admin.topic_list()))
        assert "seen-by-both" in admin.topic_list()


def test_multiprocessing_with_fork(cluster: EmbeddedCluster) -> None:
    """Pool workers inherit a producer and send with it, as prefork servers do."""
    context = multiprocessing.get_context("fork")
    with cometmq.sync.Producer("pg", name_server=cluster.name_server_address) as producer:
        producer.send(Message("pooled", b"parent"))
        global _inherited
        _inherited = producer
        with context.Pool(2) as pool:
            ids = pool.map(_send_in_worker, range(8))
        assert len({message_id for message_id, _ in ids}) == 8
        assert producer.client_id not in {client_id for _, client_id in ids}
        assert producer.send(Message("pooled", b"parent")).status is SendStatus.SEND_OK


_inherited: cometmq.sync.Producer | None = None


def _send_in_worker(number: int) -> tuple[str, str | None]:
    assert _inherited is not None
    result = _inherited.send(Message("pooled", b"%d" % number))
    return result.message_id, _inherited.client_id


def test_descriptors_are_pointed_at_the_null_device() -> None:
    """The number stays taken, the socket behind it is gone from this process only."""
    read_end, write_end = os.pipe()
    try:
        fork.abandon_descriptors([])
        fork.abandon_descriptors([write_end, -1])
        assert os.write(write_end, b"into nothing") == 12
        assert os.read(read_end, 1) == b""
    finally:
        os.close(read_end)
        os.close(write_end)


def test_a_consumer_never_started_does_not_care() -> None:
    """Forks before start need nothing."""
    consumer = PushConsumer("g", name_server="127.0.0.1:9")
    consumer.after_fork()
    assert consumer.client_id is None
