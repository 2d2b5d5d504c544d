"""On a small disk, retention removes files of waiting messages or says why it cannot."""

import asyncio
import re
from typing import Any, ClassVar

from tests.sim.retaining import SEND, RetentionCluster

from cometmq.testing.simulation import World, simulate

FORCED = {"clean_file_forcibly_enable": True, "clean_resource_interval": 1000}


class SpaceCluster(RetentionCluster):
    """A cluster with a small disk."""

    settings: ClassVar[dict[str, Any]] = {**RetentionCluster.settings, **FORCED}

    async def fill_until_refused(self, body_bytes: int, tries: int = 200, **ext: str) -> str:
        """Send until the broker refuses; return its remark, or "" when it takes all."""
        for number in range(tries):
            ext = {**SEND, "b": "Plain", "e": "1", "i": "", **ext}
            answer = await self.call(310, ext, b"%d" % number + bytes(body_bytes))
            if answer.code != 0:
                return answer.remark or "?"
            self.seen.plain_count += 1
            await asyncio.sleep(0.05)
        return ""


def test_files_make_room_and_what_waits_in_them_is_appended_again() -> None:
    """Clients send more than the disk holds, and the watermark refuses some sends."""

    async def main(world: World) -> None:
        cluster = SpaceCluster(world, "ASYNC_FLUSH", capacity_bytes=1_000_000)
        await cluster.start()
        operator = asyncio.ensure_future(cluster.operate())
        await cluster.client.run(cluster.connect)
        await cluster.client.run(lambda: cluster.store_pending(10, 5, 3))
        for _ in range(6):
            await cluster.client.run(lambda: cluster.fill_until_refused(8_000, 120))
            await asyncio.sleep(2)
        assert cluster.broker is not None
        store = cluster.broker.state.store
        assert cluster.seen.plain_count * 8_000 > 1_300_000
        assert store.min_physical_offset > 800_000
        assert store.mover.moved_count > 18
        await cluster.client.run(lambda: cluster.end(b"half 1", 8))
        await cluster.settle()
        operator.cancel()

    simulate(11, main)


def test_a_log_of_nothing_but_pending_messages_is_not_written_in_circles() -> None:
    """The broker refuses writes with counts and a remedy, until some messages are delivered."""

    async def main(world: World) -> None:
        cluster = SpaceCluster(world, "ASYNC_FLUSH", capacity_bytes=1_000_000)
        await cluster.start()
        await cluster.client.run(cluster.connect)
        now_ms = cluster.client.environment().clock.now_ms

        def asked() -> str:
            return f"TIMER_DELIVER_MS\x01{now_ms() + 40_000}\x02"

        async def fill() -> str:
            for _ in range(400):
                remark = await cluster.fill_until_refused(8_000, 1, i=asked())
                if remark:
                    return remark
            return ""

        remark = await cluster.client.run(fill)
        assert "is used to" in remark, remark
        assert "writes are refused until it is below 85 %" in remark
        await asyncio.sleep(3)
        remark = await cluster.client.run(fill)
        assert re.search(r"stays: \d timed messages, \d+ of its 32 KiB, wait in it", remark), remark
        assert "would free next to nothing; give the store more space" in remark
        assert cluster.broker is not None
        assert cluster.broker.state.store.mover.moved_count == 0
        # The owner gives more space, then the messages are due and their files may go.
        cluster.node.disk.capacity_bytes = 4_000_000
        await asyncio.sleep(60)
        assert await cluster.client.run(lambda: cluster.fill_until_refused(100, 5)) == ""

    simulate(12, main)


def test_without_a_block_left_the_file_stays_and_the_answer_says_why() -> None:
    """A file stays while no block is free and goes later; no waiting message is lost."""

    async def main(world: World) -> None:
        cluster = SpaceCluster(world, "ASYNC_FLUSH")
        await cluster.start()
        operator = asyncio.ensure_future(cluster.operate())
        await cluster.client.run(cluster.connect)
        await cluster.client.run(lambda: cluster.store_pending(4, 3, 2))
        await cluster.client.run(lambda: cluster.fill(2))
        assert cluster.broker is not None
        store = cluster.broker.state.store

        async def sync() -> None:
            store._writer.sync_round()

        # As the units of old files are: without that no file may go.
        await asyncio.sleep(3)
        await cluster.node.run(sync)
        await asyncio.sleep(1)
        # No file can be made any more, and what is there has no room.
        cluster.node.disk.capacity_bytes = 1
        refused = ""
        while not refused:
            answer = await cluster.call(310, {**SEND, "b": "Plain", "e": "1", "i": ""}, bytes(900))
            refused = answer.remark or "" if answer.code else ""
        await asyncio.sleep(3)
        assert store.min_physical_offset == 0
        answer = await cluster.call(310, {**SEND, "b": "Plain", "e": "1", "i": ""}, bytes(900))
        remark = answer.remark or ""
        assert answer.code == 14, remark
        assert "4 timed messages, 3 delayed messages, 2 half messages cannot be appended" in remark
        assert "no space for the next commit-log file" in remark
        cluster.node.disk.capacity_bytes = 1 << 40
        await asyncio.sleep(1)
        await cluster.drop()
        assert (await cluster.call(310, {**SEND, "e": "1", "b": "Plain", "i": ""}, b"x")).code == 0
        await cluster.client.run(lambda: cluster.end(b"half 0", 8))
        await cluster.settle()
        operator.cancel()

    simulate(13, main)
