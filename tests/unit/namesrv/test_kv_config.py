"""The KV table: answered when durable, and still there after crashes and cut files."""

import asyncio
import random

import pytest

from cometmq.errors import StoreCorrupt
from cometmq.namesrv.kv_config import KvConfig
from cometmq.testing.disk import SimDisk
from cometmq.testing.loop import SimLoop
from cometmq.testing.workers import SimWorkers

PATH = "/home/namesrv/kvConfig.json"


def make(disk: SimDisk) -> KvConfig:
    """A table on `disk`, loaded."""
    table = KvConfig(PATH, disk, SimWorkers(random.Random(1)))
    table.load()
    return table


def new_disk() -> SimDisk:
    """An empty disk."""
    return SimDisk(random.Random(1), lambda: 0)


def put_all(disk: SimDisk, values: dict[str, str]) -> list[Exception | None]:
    """Put values into namespace N at the same moment and wait until all are answered."""
    loop = SimLoop()
    results: list[Exception | None] = []

    async def main() -> None:
        table = make(disk)
        for key, value in values.items():
            table.put("N", key, value, results.append)
        assert results == []
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    loop.close()
    return results


def test_what_was_answered_survives_a_power_cut() -> None:
    """Changes of one moment share a write."""
    disk = new_disk()
    assert put_all(disk, {f"k{number}": "v" for number in range(10)}) == [None] * 10
    assert disk.counts["write_atomic"] == 3  # the first, then the .bak and the other nine
    disk.power_cut()
    table = make(disk)
    assert table.table("N") == {f"k{number}": "v" for number in range(10)}
    assert table.get("N", "k3") == "v"
    assert table.get("N", "nothing") is None
    assert table.table("nothing") is None


def test_a_file_cut_in_half_falls_back_to_the_one_before() -> None:
    """And both cut refuses to start, naming the file."""
    disk = new_disk()
    put_all(disk, {"k": "old"})
    put_all(disk, {"k": "new"})
    assert make(disk).get("N", "k") == "new"
    disk.cut(PATH, 20)
    assert make(disk).get("N", "k") == "old"
    disk.cut(PATH + ".bak", 20)
    with pytest.raises(StoreCorrupt, match=r"kvConfig\.json \(20 bytes\) .*repair it"):
        make(disk)


def test_a_failed_write_is_reported_and_the_next_one_may_work() -> None:
    """The change itself stays in memory, as in Java."""
    disk = new_disk()
    disk.at("write_atomic", action=disk.fail_with(OSError(5, "bad sector")))
    (error,) = put_all(disk, {"k": "v"})
    assert error is not None
    assert "kvConfig.json could not be written" in str(error)
    assert put_all(disk, {"k": "v"}) == [None]


def test_delete_is_durable_and_forgives() -> None:
    """Deleting what is not there is fine."""
    disk = new_disk()
    put_all(disk, {"k": "v"})
    loop = SimLoop()
    results: list[Exception | None] = []

    async def main() -> None:
        table = make(disk)
        table.delete("N", "k", results.append)
        table.delete("M", "k", results.append)
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    loop.close()
    assert results == [None, None]
    assert make(disk).table("N") == {}
