"""The offsets of a broadcasting member in its file: over threads, a full disk and power cuts."""

import asyncio
import random
import threading
from pathlib import Path

import pytest

from cometmq.client.base.namespace import Namespace
from cometmq.client.queue.offsets import LocalOffsets
from cometmq.core.consume.offset_file import decode_offset_file
from cometmq.errors import CometError
from cometmq.model import MessageQueue
from cometmq.model.offsets import ConsumerOffset
from cometmq.testing.disk import SimDisk

FIRST, SECOND = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)


def on(disk: SimDisk) -> LocalOffsets:
    """A life of the member on this disk."""
    return LocalOffsets("client", "group", "/some/where/offsets", disk)


def test_the_latest_write_is_what_the_file_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that comes while another is saved in its thread waits for it."""
    begun, go_on = threading.Event(), threading.Event()
    texts: list[bytes] = []
    save = LocalOffsets._save

    def slowly(self: LocalOffsets, text: bytes) -> None:
        texts.append(text)
        begun.set()
        assert go_on.wait(10)
        save(self, text)

    monkeypatch.setattr(LocalOffsets, "_save", slowly)

    async def run() -> None:
        offsets = LocalOffsets("client", "group", str(tmp_path))
        first = asyncio.ensure_future(offsets.write({FIRST: ConsumerOffset(1)}, wait=True))
        assert await asyncio.to_thread(begun.wait, 10)
        second = asyncio.ensure_future(
            offsets.write({FIRST: ConsumerOffset(2), SECOND: ConsumerOffset(7)}, wait=True)
        )
        # Ten turns of the loop are enough for it to go as far as it may.
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(texts) == 1
        go_on.set()
        await asyncio.gather(first, second)
        again = LocalOffsets("client", "group", str(tmp_path))
        assert (await again.read(FIRST), await again.read(SECOND)) == (2, 7)

    asyncio.run(run())
    assert len(texts) == 2


def test_a_power_cut_takes_nothing_that_was_written() -> None:
    """Not the file, nor the new folders it lies in."""

    async def run() -> None:
        disk = SimDisk(random.Random(1), lambda: 0)
        await on(disk).write({FIRST: ConsumerOffset(5)}, wait=True)
        disk.power_cut()
        assert await on(disk).read(FIRST) == 5
        await on(disk).write({SECOND: ConsumerOffset(3)}, wait=True)
        disk.power_cut()
        again = on(disk)
        assert (await again.read(FIRST), await again.read(SECOND)) == (5, 3)

    asyncio.run(run())


def test_a_full_disk_is_told_and_the_offsets_before_stay() -> None:
    """The version before is read; what could not be written goes with the next write."""

    async def run() -> None:
        disk = SimDisk(random.Random(1), lambda: 0)
        offsets = on(disk)
        await offsets.write({FIRST: ConsumerOffset(5)}, wait=True)
        disk.capacity_bytes = disk.allocated_bytes()
        with pytest.raises(CometError, match="was not written"):
            await offsets.write({FIRST: ConsumerOffset(6)}, wait=True)
        await offsets.write({FIRST: ConsumerOffset(7)}, wait=False)
        assert await on(disk).read(FIRST) == 5
        disk.capacity_bytes = 1 << 40
        await offsets.write({SECOND: ConsumerOffset(1)}, wait=True)
        assert await on(disk).read(FIRST) == 7

    asyncio.run(run())


def test_the_file_of_a_member_in_a_namespace_has_the_names_of_the_cluster(tmp_path: Path) -> None:
    """As Java's: the namespace stands before the group in the path and before each topic."""

    async def run() -> None:
        offsets = LocalOffsets("client", "group", str(tmp_path), namespace=Namespace("Space"))
        await offsets.write({FIRST: ConsumerOffset(5)}, wait=True)
        text = (tmp_path / "client" / "Space%group" / "offsets.json").read_bytes()
        assert decode_offset_file(text) == {FIRST._replace(topic="Space%t"): 5}
        again = LocalOffsets("client", "group", str(tmp_path), namespace=Namespace("Space"))
        assert (await again.read(FIRST), await again.read(SECOND)) == (5, None)

    asyncio.run(run())
