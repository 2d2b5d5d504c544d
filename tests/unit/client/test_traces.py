"""Traces that our clients write, read back by the admin client and by `cometmq message trace`."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import cometmq.sync
from cometmq import Admin, Message, Producer, PullConsumer, PushConsumer, TransactionProducer
from cometmq.cli.main import root
from cometmq.client.base.traces import QUEUED_MAX
from cometmq.errors import ConfigError
from cometmq.testing.cluster import EmbeddedCluster, embedded_cluster, threaded_cluster
from cometmq.wire.body.trace import TraceRecord


async def traces_of(
    cluster: EmbeddedCluster, message_id: str, topic: str = "RMQ_SYS_TRACE_TOPIC"
) -> list[TraceRecord]:
    """What the trace topic says of a message."""
    async with Admin(name_server=cluster.name_server_address) as admin:
        return await admin.message_trace(message_id, topic=topic)


def test_a_message_from_its_send_to_its_second_handling() -> None:
    """A handler that fails once, in two groups of records with ids of their own."""

    async def story() -> None:
        async with embedded_cluster({"messageDelayLevel": "1s"}) as cluster:
            address = cluster.name_server_address
            done = asyncio.Event()
            tries: list[int] = []

            async def handle(message: Any) -> bool:
                tries.append(message.stored.reconsume_times)
                if message.stored.reconsume_times:
                    done.set()
                return bool(message.stored.reconsume_times)

            async with Producer("Shop", name_server=address, trace=True) as producer:
                sent = await producer.send(
                    Message("Orders", b"seven b", tags="A", keys=("k1", "k2"))
                )
            consumer = PushConsumer(
                "Billing",
                {"Orders": "*"},
                handle,
                name_server=address,
                consume_from="first",
                trace=True,
            )
            async with consumer:
                await asyncio.wait_for(done.wait(), 50)
            assert tries == [0, 1]
            records = await traces_of(cluster, sent.message_id)
            (pub,) = [record for record in records if record.kind == "Pub"]
            assert (pub.group, pub.topic, pub.tags, pub.keys) == ("Shop", "Orders", "A", "k1 k2")
            assert pub.store_host == cluster.broker_address
            assert (pub.body_bytes, pub.message_type, pub.success) == (7, "NORMAL", True)
            assert pub.offset_message_id == sent.offset_message_id
            before = [record for record in records if record.kind == "SubBefore"]
            after = [record for record in records if record.kind == "SubAfter"]
            assert [record.retry_times for record in before] == [0, 1]
            assert [(record.success, record.context_code) for record in after] == [
                (False, 4),
                (True, 0),
            ]
            assert [record.request_id for record in before] == [
                record.request_id for record in after
            ]
            assert before[0].request_id != before[1].request_id
            assert {record.group for record in (*before, *after)} == {"Billing"}
            async with Admin(name_server=address) as admin:
                assert await admin.query_message("RMQ_SYS_TRACE_TOPIC", "k1")

    asyncio.run(story())


def test_batches_lists_and_another_topic() -> None:
    """Each message of a batch is found by its id; a list handler's results count one by one."""

    async def story() -> None:
        async with embedded_cluster() as cluster:
            address = cluster.name_server_address
            handled = asyncio.Event()
            count = 0

            async def handle(messages: list[Any]) -> list[bool]:
                nonlocal count
                count += len(messages)
                if count >= 3:
                    handled.set()
                return [message.body != b"1" for message in messages]

            async with (
                Producer("Shop", name_server=address, trace="Steps") as producer,
                PushConsumer(
                    "Billing",
                    {"Orders": "*"},
                    handle,
                    name_server=address,
                    consume_from="first",
                    batch_count_max=8,
                    trace="Steps",
                ),
            ):
                messages = [Message("Orders", str(number).encode()) for number in range(3)]
                results = await producer.send_batch(messages)
                await asyncio.wait_for(handled.wait(), 50)
            for number, result in enumerate(results):
                records = await traces_of(cluster, result.message_id, "Steps")
                assert [record.kind for record in records].count("Pub") == 1
                (after, *_) = [record for record in records if record.kind == "SubAfter"]
                assert after.success is (number != 1)

    asyncio.run(story())


def test_a_transaction() -> None:
    """The half message, and its end with what was decided."""

    async def story() -> None:
        async with embedded_cluster() as cluster:
            async with TransactionProducer(
                "Deciders",
                name_server=cluster.name_server_address,
                check=lambda message: None,
                trace=True,
            ) as producer:
                ended = await producer.send_in_transaction(
                    Message("Orders", b"x"), lambda transaction: False
                )
            records = await traces_of(cluster, ended.sent.message_id)
            assert [record.kind for record in records] == ["Pub", "EndTransaction"]
            assert records[0].message_type == "TRANSACTION_HALF"
            assert (records[1].state, records[1].from_check) == ("ROLLBACK_MESSAGE", False)

    asyncio.run(story())


def test_the_synchronous_producer_and_the_command() -> None:
    """`send`, `send_nowait` and a batch; the command prints the steps."""
    with threaded_cluster() as cluster:
        address = cluster.name_server_address
        with cometmq.sync.Producer("Shop", name_server=address, trace=True) as producer:
            ids = [
                producer.send(Message("Orders", b"one")).message_id,
                producer.send_nowait(Message("Orders", b"two")).result(30).message_id,
                *(each.message_id for each in producer.send_batch([Message("Orders", b"three")])),
            ]
            producer.send_oneway(Message("Orders", b"no answer, no trace"))
        with cometmq.sync.Admin(name_server=address) as admin:
            for message_id in ids:
                (record,) = admin.message_trace(message_id)
                assert (record.kind, record.group, record.topic) == ("Pub", "Shop", "Orders")
        shown = CliRunner().invoke(root, ["message", "trace", ids[0], "-n", address])
        assert shown.exit_code == 0, shown.output
        for text in ("sent", "Shop", "Orders", "ok", cluster.broker_address):
            assert text in shown.output
        shown = CliRunner().invoke(root, ["message", "trace", "F" * 32, "-n", address])
        assert "no trace of" in shown.output


def test_a_full_queue_drops_traces_and_no_send(caplog: pytest.LogCaptureFixture) -> None:
    """Every message is stored; the log says once that traces are missing."""

    async def story() -> None:
        async with embedded_cluster() as cluster:
            address = cluster.name_server_address
            async with Producer("Shop", name_server=address, trace=True) as producer:
                await producer.send(Message("Orders", b"first"))
                traces = producer.traces
                assert traces is not None
                writer = traces._writer
                record = TraceRecord("Pub", "id")
                for _ in range(QUEUED_MAX + 10):
                    writer.write(record)
                await producer.send(Message("Orders", b"last"))
            assert writer.dropped >= 10
            assert "the queue of traces is full" in caplog.text

    asyncio.run(story())


def test_traces_that_cannot_be_sent_fail_nothing(tmp_path: Path) -> None:
    """The trace topic does not exist and is not made."""

    async def story() -> None:
        settings = {"autoCreateTopicEnable": False}
        async with embedded_cluster(settings) as cluster:
            address = cluster.name_server_address
            async with Admin(name_server=address) as admin:
                await admin.create_topic("Orders", queue_count=1)
            async with Producer("Shop", name_server=address, trace=True) as producer:
                await producer.send(Message("Orders", b"x"))
                traces = producer.traces
            assert traces is not None
            assert traces._writer.dropped == 1

    asyncio.run(story())


def test_clients_that_write_none_say_so() -> None:
    """A setting without effect is refused."""
    with pytest.raises(ConfigError, match="writes no traces"):
        PullConsumer("g", {"T": "*"}, trace=True)
    with pytest.raises(ConfigError, match="Admin writes no traces"):
        Admin(trace=True)
    with pytest.raises(ConfigError):
        Producer("p", trace="no topic")
