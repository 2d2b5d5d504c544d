"""A slave compares the digests of sealed log files with its master's, and repairs what rots."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest
from tests.unit.broker.harness import eventually
from tests.unit.broker.replication.pair import Set, connected, copied, replica_set

from cometmq.broker import Broker
from cometmq.store.base.disk import RealDisk
from cometmq.store.scrub.digests import DIGESTS_NAME, load_digests, save_digests

FILE_BYTES = 1 << 20
BODY = bytes(100_000)
FIRST = "0" * 20


def log_file(folder: Path, member: str) -> Path:
    """The first log file of a member."""
    return folder / member / "commitlog" / FIRST


def rot(path: Path, position: int) -> None:
    """Change a byte as a disk does, without a new modification time."""
    stat = path.stat()
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


async def fill(master: Broker) -> None:
    """Send more than one log file."""
    async with connected(master) as client:
        for _ in range(FILE_BYTES // len(BODY) + 2):
            await client.send(BODY)


def sealed(broker: Broker) -> list[int]:
    """The files that have digests."""
    return broker.services.store.scrubber.sealed


async def stopped_pair(members: Set) -> None:
    """A master and a slave with one sealed file each, which were compared, and then stopped."""
    async with members.master() as master, members.slave() as slave:
        await fill(master)
        await copied(master, slave)
        await eventually(lambda: sealed(master) == sealed(slave) == [0])
        following = slave.services.following
        assert following is not None
        await eventually(lambda: following.seals.compared == {0})
        assert slave.services.store.scrubber.counts.differing_blocks == 0


def test_rotten_bytes_of_a_slave_are_replaced_by_the_masters(tmp_path: Path) -> None:
    """The tour finds them, the master has what was sealed, and the slave's file is whole again."""

    async def main() -> None:
        async with replica_set(tmp_path) as members:
            await stopped_pair(members)
            path = log_file(tmp_path, "slave-1")
            rot(path, 300_000)
            # The file was looked at long ago, so the tour is due.
            root, disk = str(tmp_path / "slave-1"), RealDisk()
            digests = load_digests(disk, root).values()
            save_digests(disk, root, [msgspec.structs.replace(d, looked_ms=0) for d in digests])
            async with members.master(), members.slave() as slave:
                counts = slave.services.store.scrubber.counts
                await eventually(lambda: counts.repaired_blocks == 1)
                assert counts.rotten_blocks == 1
            assert path.read_bytes() == log_file(tmp_path, "master").read_bytes()
            kept = tmp_path / "slave-1" / f"cometmq.rot-{FIRST}"
            assert kept.stat().st_size == FILE_BYTES
            (digest,) = load_digests(disk, root).values()
            assert digest.mtime_ms == disk.mtime_ms(str(path))

    asyncio.run(main())


def test_a_file_that_was_sealed_with_other_bytes_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody knows which copy is right, so nothing is changed."""

    async def main() -> None:
        async with replica_set(tmp_path) as members:
            await stopped_pair(members)
            path = log_file(tmp_path, "slave-1")
            rot(path, 300_000)
            (tmp_path / "slave-1" / DIGESTS_NAME).unlink()
            async with members.master(), members.slave() as slave:
                counts = slave.services.store.scrubber.counts
                await eventually(lambda: counts.differing_blocks == 1)
                assert counts.rotten_blocks == counts.repaired_blocks == 0
            assert path.read_bytes() != log_file(tmp_path, "master").read_bytes()

    asyncio.run(main())
    assert "begins at physical offset 0 was sealed with other bytes here than at" in caplog.text
