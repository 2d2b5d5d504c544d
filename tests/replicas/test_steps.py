"""Named failures of a replica set, with real processes and links; each ends with the ledger.

The limits are those of the manual ("How long it takes") with room for a busy machine; `SERIES=50`
repeats the killed master so often and prints the figures.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.replicas.rig import Rig, missing, rig

pytestmark = [pytest.mark.full, pytest.mark.processes, pytest.mark.timeout(600)]

SILENT_S = 10.0
"""A silent master is replaced in 3 s; a busy machine may take longer."""


def run(folder: Path, scenario: Callable[[Rig], Awaitable[None]], **settings: str) -> None:
    """Run a scenario against a set that is whole, while a producer sends."""
    if fault := missing():
        pytest.skip(fault)

    async def main(stage: Rig) -> None:
        await stage.whole()
        async with stage.producing():
            await stage.first_answer(time.monotonic())
            await scenario(stage)
        await stage.check()
        assert stage.faults == []

    with rig(folder, settings=settings) as stage:
        asyncio.run(main(stage))


def test_master_killed(tmp_path: Path) -> None:
    """Another one takes sends; the old one comes back as a slave."""
    took: list[float] = []

    async def scenario(stage: Rig) -> None:
        for _ in range(int(os.environ.get("SERIES", "3"))):
            master = await stage.whole()
            await asyncio.sleep(0.5)
            began = time.monotonic()
            master.end()
            took.append(await stage.first_answer(began))
            await asyncio.sleep(1)
            await asyncio.to_thread(master.start)
        took.sort()
        print(
            f"first acknowledged send after kill -9, {len(took)} times: median"
            f" {statistics.median(took):.2f} s, slowest {took[-1]:.2f} s"
        )
        assert took[-1] < SILENT_S

    run(tmp_path, scenario)


def test_master_stands_still(tmp_path: Path) -> None:
    """SIGSTOP: another one leads; woken, the first acknowledges nothing and follows."""

    async def scenario(stage: Rig) -> None:
        master = await stage.whole()
        began = time.monotonic()
        master.send_signal(signal.SIGSTOP)
        assert await stage.first_answer(began) < SILENT_S
        await asyncio.sleep(6)
        master.send_signal(signal.SIGCONT)
        await stage.whole()

    run(tmp_path, scenario)


def test_master_loses_the_controller_only(tmp_path: Path) -> None:
    """Another one may be elected, and nothing is lost; sends go on within seconds."""

    async def scenario(stage: Rig) -> None:
        master = await stage.whole()
        master.cut(stage.controller)
        await asyncio.sleep(6)
        assert await stage.first_answer(time.monotonic()) < SILENT_S
        master.mend(stage.controller)
        await stage.whole()

    run(tmp_path, scenario)


def test_a_slave_cannot_be_reached_by_its_master(tmp_path: Path) -> None:
    """It leaves the set, sends go on with the other one, and it comes back."""

    async def scenario(stage: Rig) -> None:
        master = await stage.whole()
        slave = next(each for each in stage.brokers if each is not master)
        master.cut(slave)
        await stage.until(lambda state: len(state.in_sync) == 2)
        assert await stage.first_answer(time.monotonic()) < SILENT_S
        master.mend(slave)
        await stage.whole()

    run(tmp_path, scenario)


def test_machine_of_the_master_is_silent(tmp_path: Path) -> None:
    """Its cable is pulled: another one leads; plugged in again it follows."""

    async def scenario(stage: Rig) -> None:
        master = await stage.whole()
        began = time.monotonic()
        master.unplug()
        assert await stage.first_answer(began) < SILENT_S
        await asyncio.sleep(3)
        master.unplug(is_out=False)
        await stage.whole()

    run(tmp_path, scenario)


def test_link_of_a_slave_is_slow(tmp_path: Path) -> None:
    """It leaves the set instead of holding sends up, and comes back when the link is quick."""

    async def scenario(stage: Rig) -> None:
        master = await stage.whole()
        slave = next(each for each in stage.brokers if each is not master)
        if fault := slave.slow("8kbit"):
            pytest.skip(f"links cannot be slowed down here: {fault}")
        await stage.until(lambda state: len(state.in_sync) == 2)
        assert await stage.first_answer(time.monotonic()) < SILENT_S
        assert not slave.slow("")
        await stage.whole()

    run(tmp_path, scenario)


def test_disk_of_a_slave_is_full(tmp_path: Path) -> None:
    """Sends go on; it has everything when there is room again."""
    if fault := missing():
        pytest.skip(fault)
    disk = tmp_path / "b2"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(disk)]
    if (made := subprocess.run(mount, capture_output=True, text=True, check=False)).returncode:
        pytest.skip(f"a small disk cannot be mounted: {made.stderr.strip()}")

    async def scenario(stage: Rig) -> None:
        first, last = stage.brokers[0], stage.brokers[2]
        if await stage.whole() is last:
            last.end(signal.SIGTERM)
            await asyncio.to_thread(last.start)
            await stage.whole()
        assert await stage.whole() is not last
        await stage.until(lambda state: len(state.in_sync) == 2)
        assert await stage.first_answer(time.monotonic()) < SILENT_S
        grow = ["mount", "-o", "remount,size=400m", str(disk)]
        await asyncio.to_thread(subprocess.run, grow, check=True)
        if not first.is_running:
            first.start()
        await stage.whole()

    try:
        run(
            tmp_path,
            scenario,
            mappedFileSizeCommitLog=str(4 << 20),
            maxIndexNum="1000",
            maxHashSlotNum="500",
        )
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_controller_killed(tmp_path: Path) -> None:
    """Sends do not notice; a master that dies meanwhile is replaced when it is back."""

    async def scenario(stage: Rig) -> None:
        master = await stage.whole()
        stage.controller.end()
        began = time.monotonic()
        assert await stage.first_answer(began) < 1
        master.end()
        await asyncio.sleep(2)
        began = time.monotonic()
        await asyncio.to_thread(stage.controller.start)
        assert await stage.first_answer(began) < 2 * SILENT_S
        await asyncio.to_thread(master.start)
        await stage.whole()

    run(tmp_path, scenario)
