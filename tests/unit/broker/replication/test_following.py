"""A slave of ours behind a master of ours: bytes, queues, index, restarts, and logs that differ."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from tests.unit.broker.harness import eventually
from tests.unit.broker.replication.pair import connected, copied, log_bytes, replica_set

from cometmq.broker import Broker
from cometmq.broker.replication.frames import REPORT
from cometmq.errors import ResponseCode
from cometmq.net.byte_stream import ByteStream
from cometmq.wire.command.codes import RequestCode

SENDS = 200


def test_slave_has_the_bytes_queues_and_keys_of_its_master(tmp_path: Path) -> None:
    """What was sent before the slave came and afterwards is read from the slave by queue and key,
    over the ends of log files."""

    async def main() -> None:
        async with replica_set(tmp_path) as members, members.master() as master:  # noqa: SIM117
            async with connected(master) as client:
                for number in range(SENDS):
                    body = b"%d " % number + bytes(8000)
                    await client.send(body, e=str(number % 2), i=f"KEYS\x01k{number}\x02")
                async with members.slave() as slave:
                    await copied(master, slave)
                    await client.send(b"later", e="0", i="KEYS\x01later\x02")
                    await copied(master, slave)
                    assert log_bytes(slave) == log_bytes(master)
                    assert master.services.store.max_physical_offset > 1 << 20
                    for queue_id in (0, 1):
                        assert slave.services.store.max_queue_offset("t", queue_id) == (
                            master.services.store.max_queue_offset("t", queue_id)
                        )
                    async with connected(slave) as reader:
                        fields = {"topic": "t", "maxNum": "9", "beginTimestamp": "0"}
                        fields |= {"endTimestamp": str(2**62)}
                        found = await reader.call(
                            RequestCode.QUERY_MESSAGE, {**fields, "key": "k77"}
                        )
                        assert found.code == ResponseCode.SUCCESS
                        assert b"77 " in found.body

    asyncio.run(main())


def test_both_go_on_after_restarts(tmp_path: Path) -> None:
    """A slave that was away gets what it missed, and finds a master that comes back elsewhere."""

    async def main() -> None:
        async with replica_set(tmp_path) as members:
            async with members.master() as master, connected(master) as client:
                async with members.slave() as slave:
                    await client.send(b"first")
                    await copied(master, slave)
                for number in range(20):
                    await client.send(b"missed %d" % number)
                async with members.slave(flushDiskType="SYNC_FLUSH") as slave:
                    await copied(master, slave)
            async with members.slave(flushDiskType="SYNC_FLUSH") as slave:
                assert slave.services.store.max_queue_offset("t", 0) == 21
                async with members.master() as master, connected(master) as client:
                    await client.send(b"from a new port")
                    await copied(master, slave)
                    assert log_bytes(slave) == log_bytes(master)
                    assert (await messages(slave))[-1] == b"from a new port"

    asyncio.run(main())


def test_slave_that_becomes_the_master_goes_on_with_the_queues(tmp_path: Path) -> None:
    """Another role in the configuration is all: queue offsets continue, nothing is lost."""

    async def main() -> None:
        async with replica_set(tmp_path) as members:
            async with (
                members.master() as master,
                connected(master) as client,
                members.slave() as slave,
            ):
                for number in range(5):
                    await client.send(b"%d" % number)
                await copied(master, slave)
            async with members.slave(brokerRole="ASYNC_MASTER", brokerId=0) as promoted:
                async with connected(promoted) as client:
                    answer = await client.send(b"5")
                    assert answer.ext_fields["queueOffset"] == "5"
                assert await messages(promoted) == [b"%d" % number for number in range(6)]

    asyncio.run(main())


@pytest.mark.parametrize("is_shorter", [True, False], ids=["longer", "different"])
def test_slave_with_another_log_says_so_and_stops(
    tmp_path: Path, is_shorter: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """After the master has lost its end, or written another one, the slave keeps its bytes."""

    async def main() -> None:
        async with replica_set(tmp_path) as members:
            async with members.master() as master, connected(master) as client:
                await client.send(b"kept")
            shutil.copytree(tmp_path / "master", tmp_path / "before")
            async with (
                members.master() as master,
                connected(master) as client,
                members.slave() as slave,
            ):
                await client.send(b"lost")
                await copied(master, slave)
                bytes_before = log_bytes(slave)
            shutil.rmtree(tmp_path / "master")
            (tmp_path / "before").rename(tmp_path / "master")
            async with members.master() as master, connected(master) as client:
                if not is_shorter:
                    await client.send(b"else")
                async with members.slave() as slave:
                    following = slave.services.following
                    assert following is not None
                    await eventually(lambda: following.log.stopped is not None)
                    assert "nothing is cut" in (following.log.stopped or "")
                    await client.send(b"more")
                    assert log_bytes(slave) == bytes_before
                    assert following.log.link is None

    asyncio.run(main())
    assert "this slave follows no more" in caplog.text


def test_slave_with_log_files_of_another_size_does_not_follow(tmp_path: Path) -> None:
    """Frames of the protocol do not say the size, so the slave asks first."""

    async def main() -> None:
        async with replica_set(tmp_path) as members, members.master() as master:
            async with members.slave(mappedFileSizeCommitLog=1 << 21) as slave:
                following = slave.services.following
                assert following is not None
                await eventually(lambda: following.log.stopped is not None)
                assert "set mappedFileSizeCommitLog=1048576" in (following.log.stopped or "")
            assert master.replicas is not None
            assert master.replicas.links() == []

    asyncio.run(main())


def test_master_refuses_a_report_that_it_cannot_have_caused(tmp_path: Path) -> None:
    """Eight random bytes on the HA port are no slave, and count for nothing."""

    async def main() -> None:
        async with replica_set(tmp_path) as members, members.master() as master:
            async with connected(master) as client:
                await client.send(b"x")
            replicas = master.replicas
            assert replicas is not None
            for reports in ((1 << 40,), (-1,), (0, 1 << 40)):
                ended = asyncio.Event()
                stream = ByteStream()
                stream.on_lost = ended.set
                await master.env.network.connect("127.0.0.1", replicas.port, lambda s=stream: s)
                stream.write([REPORT.pack(end) for end in reports])
                await asyncio.wait_for(ended.wait(), 30)
            await eventually(lambda: replicas.links() == [])
            assert replicas.acknowledged(1) == -1

    asyncio.run(main())


def test_slave_refuses_what_only_a_master_may_do(tmp_path: Path) -> None:
    """Sends, topic changes and transactions are refused with RocketMQ's codes; reads are served."""

    async def main() -> None:
        async with replica_set(tmp_path) as members, members.master() as master:
            async with connected(master) as client:
                await client.send(b"x")
            async with members.slave() as slave, connected(slave) as client:
                await copied(master, slave)
                assert (await client.send(b"y")).code == ResponseCode.SYSTEM_BUSY
                fields = {"topic": "n", "defaultTopic": "TBW102", "readQueueNums": "1"}
                fields |= {"writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG"}
                made = await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
                assert (made.code, made.remark) == (
                    ResponseCode.SYSTEM_ERROR,
                    "Can't modify topic or subscription group from slave broker, please execute it"
                    " from master broker.",
                )
                ended = await client.call(RequestCode.END_TRANSACTION, {})
                assert ended.code == ResponseCode.SLAVE_NOT_AVAILABLE
            async with (
                members.slave(slaveReadEnable=False) as slave,
                connected(slave) as client,
            ):
                assert (await client.pull()).code == ResponseCode.SYSTEM_BUSY

    asyncio.run(main())


async def messages(broker: Broker) -> list[bytes]:
    """The bodies of queue 0 of topic t."""
    broker.state.topics.ensure("t", 4, 0)
    async with connected(broker) as client:
        return [message.body for message in await client.messages(queueId="0", queueOffset="0")]
