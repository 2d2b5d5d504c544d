"""Where a new group begins, over real sockets: each kind of consumer, and brokers of 4.x."""

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.unit.client.fake import FakeBroker
from tests.unit.client.waiting import until

import cometmq.sync
from cometmq.client.base.calls import BrokerCalls
from cometmq.client.base.transport import BlockingIo, run_inline
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.model import Message, MessageModel, MessageQueue
from cometmq.net.env import system_environment
from cometmq.net.server import ServerConnection
from cometmq.testing.cluster import embedded_cluster, threaded_cluster
from cometmq.wire.command.codes import version_of
from cometmq.wire.command.command import RemotingCommand

OLD = [b"old %d" % number for number in range(20)]
NEW = [b"new %d" % number for number in range(8)]


def test_a_broadcasting_group_does_not_get_the_backlog(tmp_path: Path) -> None:
    """Its offsets are in a file of this machine; a second start goes on where the first began."""

    async def run() -> None:
        seen: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            seen.append(message.body)

        def member(name_server: str) -> PushConsumer:
            return PushConsumer(
                "g",
                {"t": "*"},
                handle,
                name_server=name_server,
                message_model=MessageModel.BROADCASTING,
                offset_folder=str(tmp_path),
                instance_name="here",
                client_ip="10.0.0.1",
            )

        async with (
            embedded_cluster() as cluster,
            Producer("pg", name_server=cluster.name_server_address) as producer,
        ):
            for body in OLD:
                await producer.send(Message("t", body))
            async with member(cluster.name_server_address):
                pass
            for body in NEW:
                await producer.send(Message("t", body))
            async with member(cluster.name_server_address):
                await until(lambda: len(seen) >= len(NEW))
        assert sorted(seen) == NEW

    asyncio.run(run())


def test_the_synchronous_consumers_of_a_new_group_do_not_get_the_backlog() -> None:
    """A push and a pull consumer, each of a group of its own."""
    seen: list[bytes] = []
    is_complete = threading.Event()

    def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if len(seen) >= len(NEW):
            is_complete.set()

    with threaded_cluster() as cluster:
        address = cluster.name_server_address
        with cometmq.sync.Producer("pg", name_server=address) as producer:
            for body in OLD:
                producer.send(Message("t", body))
            with (
                cometmq.sync.PushConsumer("push", {"t": "*"}, handle, name_server=address),
                cometmq.sync.PullConsumer("pull", {"t": "*"}, name_server=address) as consumer,
            ):
                for body in NEW:
                    producer.send(Message("t", body))
                polled: list[bytes] = []
                while len(polled) < len(NEW) and (messages := consumer.poll(10_000)):
                    polled += [message.body for message in messages]
                assert is_complete.wait(15.0)
    assert sorted(polled) == NEW
    assert sorted(seen) == NEW


def test_consume_from_last_in_a_new_group_prints_no_backlog() -> None:
    """The command with --group; it ends because nothing comes."""
    with threaded_cluster() as cluster:
        address = cluster.name_server_address
        with cometmq.sync.Producer("pg", name_server=address) as producer:
            for body in OLD:
                producer.send(Message("t", body))
        command = [sys.executable, "-m", "cometmq", "consume", "t", "-n", address]
        options = ["--group", "fresh", "--from", "last", "--wait", "1"]
        done = subprocess.run(
            [*command, *options], capture_output=True, text=True, timeout=60, check=True
        )
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("table", "stored"),
    [
        ({}, None),
        ({"t@g": {1: 0}}, None),
        ({"t@g": {0: 0}}, 0),
        (None, 0),
    ],
    ids=["no offset", "another queue's", "zero is stored", "the table is refused"],
)
def test_the_zero_of_a_4x_broker_is_looked_up(
    table: dict[str, dict[int, int]] | None, stored: int | None
) -> None:
    """It answers 0 for a new group although it is asked not to."""

    async def run() -> None:
        broker = FakeBroker({"t": 1})
        old = version_of(4, 9, 8)

        def zero(command: RemotingCommand, _: ServerConnection) -> RemotingCommand:
            assert command.ext_fields["setZeroIfNotFound"] == "false"
            answer = command.answer(0, None, {"offset": "0"})
            answer.version = old
            return answer

        def offsets(command: RemotingCommand, _: ServerConnection) -> RemotingCommand:
            if table is None:
                return command.answer(16, "no permission")
            return command.answer(0, None, {}, json.dumps({"offsetTable": table}).encode())

        broker.override = {14: zero, 43: offsets}
        await broker.start()
        io = BlockingIo(system_environment())
        calls = BrokerCalls(io, 3_000)
        queue = MessageQueue("t", "broker-a", 0)
        got = await asyncio.to_thread(
            lambda: run_inline(calls.consumer_offset(broker.address, "g", queue))
        )
        assert got == stored
        io.close()
        await broker.stop()

    asyncio.run(run())


def test_the_zero_of_a_5x_broker_is_a_stored_one() -> None:
    """It would answer 22 for a new group, so nothing else is asked."""

    async def run() -> None:
        broker = FakeBroker({"t": 1}, offsets={("g", "t", 0): 0})
        await broker.start()
        io = BlockingIo(system_environment())
        calls = BrokerCalls(io, 3_000)
        queue = MessageQueue("t", "broker-a", 0)
        got = await asyncio.to_thread(
            lambda: run_inline(calls.consumer_offset(broker.address, "g", queue))
        )
        assert got == 0
        assert broker.codes() == [14]
        io.close()
        await broker.stop()

    asyncio.run(run())
