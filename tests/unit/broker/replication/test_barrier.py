"""Sends that wait for slaves: SYNC_MASTER, inSyncReplicas, minInSyncReplicas."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.harness import eventually
from tests.unit.broker.replication.pair import connected, copied, log_bytes, replica_set

from cometmq import Message, Producer
from cometmq.broker.base.barrier import SendBarrier
from cometmq.broker.base.config import load_config
from cometmq.errors import ConfigError, ResponseCode

SYNC = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2}
PATIENT = {"slaveTimeout": 60_000, "syncFlushTimeout": 60_000}
"""So that a busy machine loses no race."""


@pytest.mark.parametrize(
    ("flush", "level"), [("ASYNC_FLUSH", "replicas=2"), ("SYNC_FLUSH", "flushed,replicas=2")]
)
def test_answered_send_is_at_the_slave(tmp_path: Path, flush: str, level: str) -> None:
    """When SEND_OK arrives, the slave has the message; the answer says so, for one and for a batch,
    by the native core, by the checks and to our client."""

    async def main() -> None:
        async with (
            replica_set(tmp_path) as members,
            members.master(**SYNC, **PATIENT, flushDiskType=flush) as master,
            members.slave(flushDiskType=flush) as slave,
        ):
            replicas = master.replicas
            assert replicas is not None
            await eventually(lambda: len(replicas.links()) == 1)
            async with connected(master) as client:
                for number in range(30):
                    answer = await client.send(b"%d" % number)
                    assert answer.code == ResponseCode.SUCCESS
                    assert answer.ext_fields["cmqBarrier"] == level
                    assert slave.services.store.max_physical_offset == (
                        master.services.store.max_physical_offset
                    )
                careless = await client.send(b"x", i="WAIT\x01false\x02")
                assert "cmqBarrier" not in careless.ext_fields
            async with Producer("p", name_server=members.name_server) as producer:
                assert (await producer.send(Message("t", b"one"))).barrier == level
                batch = await producer.send_batch([Message("t", b"two"), Message("t", b"three")])
                results = batch if isinstance(batch, list) else [batch]
                assert {result.barrier for result in results} == {level}
            await copied(master, slave)
            assert log_bytes(master) == log_bytes(slave)

    asyncio.run(main())


def test_send_without_its_slave_says_that_it_is_stored_and_not_copied(tmp_path: Path) -> None:
    """After slaveTimeout: 12, with the place of the message; the slave gets it when it comes."""

    async def main() -> None:
        async with (
            replica_set(tmp_path) as members,
            members.master(**SYNC, slaveTimeout=50) as master,
            connected(master) as client,
        ):
            for _ in range(2):
                answer = await client.send(b"x")
                assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
                assert "cmqBarrier" not in answer.ext_fields
            assert answer.ext_fields["queueOffset"] == "1"
            async with members.slave() as slave:
                await copied(master, slave)

    asyncio.run(main())


def test_too_few_replicas_refuse_before_anything_is_stored(tmp_path: Path) -> None:
    """minInSyncReplicas counts this broker; a slave that comes lets sends in, one that goes ends
    that."""

    async def main() -> None:
        async with (
            replica_set(tmp_path) as members,
            members.master(**SYNC, **PATIENT, minInSyncReplicas=2) as master,
            connected(master) as client,
        ):
            refused = await client.send(b"x")
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert (refused.remark or "").startswith("in-sync replicas not enough: 1 of")
            assert master.services.store.max_physical_offset == 0
            replicas = master.replicas
            assert replicas is not None
            async with members.slave():
                await eventually(lambda: replicas.in_sync_count() == 2)
                assert (await client.send(b"x")).code == ResponseCode.SUCCESS
            await eventually(lambda: replicas.in_sync_count() == 1)
            assert (await client.send(b"x")).code == ResponseCode.SYSTEM_ERROR

    asyncio.run(main())


@pytest.mark.parametrize("setting", ["inSyncReplicas=2", "minInSyncReplicas=2"])
def test_demand_for_copies_needs_a_role_that_waits(setting: str) -> None:
    """RocketMQ's ASYNC_MASTER ignores both."""
    with pytest.raises(ConfigError, match="set brokerRole=SYNC_MASTER"):
        load_config(overrides=[setting], environment={})


class Flushes:
    """A store whose flushes the test ends."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[bool], None]] = []

    def when_durable(self, end_offset: int, callback: Callable[[bool], None]) -> None:
        self.waiting.append(callback)


class Ticking:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.ms = 0

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


def barrier(**settings: Any) -> tuple[SendBarrier, list[Callable[[bool], None]]]:
    """A barrier, and the flushes that wait."""
    flushes = Flushes()
    config = load_config(overrides={**SYNC, **settings}, environment={}).config
    return SendBarrier(config, Ticking(), flushes), flushes.waiting


def test_flush_and_slaves_must_both_come_and_the_slaves_status_wins() -> None:
    """Whichever comes first; with both late the answer is 12, as RocketMQ's."""

    async def main() -> None:
        for flush_first in (True, False):
            for is_durable, end, expected in (
                (True, 100, ResponseCode.SUCCESS),
                (False, 100, ResponseCode.FLUSH_DISK_TIMEOUT),
                (True, -1, ResponseCode.FLUSH_SLAVE_TIMEOUT),
                (False, -1, ResponseCode.FLUSH_SLAVE_TIMEOUT),
            ):
                made, flushes = barrier(flushDiskType="SYNC_FLUSH")
                codes: list[int] = []
                made.when_passed(100, codes.append)
                if flush_first:
                    flushes.pop()(is_durable)
                    assert codes == []
                made.acknowledged(end)
                if end < 0:
                    made.stop()
                if not flush_first:
                    assert codes == []
                    flushes.pop()(is_durable)
                assert codes == [expected]

    asyncio.run(main())


def test_waits_pass_in_the_order_of_the_log() -> None:
    """One acknowledgement lets through all that it covers, and nothing behind."""

    async def main() -> None:
        made, _ = barrier()
        passed: list[int] = []
        kicks: list[int] = []
        made.kick = lambda: kicks.append(1)
        for end in (10, 30, 20, 40):
            made.when_passed(end, lambda code, end=end: passed.append(end))
        made.acknowledged(9)
        assert passed == []
        made.acknowledged(30)
        assert passed == [10, 30, 20]
        made.when_passed(30, lambda code: passed.append(0))
        assert passed[-1] == 0
        assert len(kicks) == 4
        made.stop()
        assert passed[-1] == 40

    asyncio.run(main())
