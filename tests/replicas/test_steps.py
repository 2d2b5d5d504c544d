"""Named failures of a replica set, with real processes and links; each ends with the ledger.

The limits are those of the manual ("How long it takes") with room for a busy machine; `SERIES=50`
repeats the killed master so often and prints the figures.
"""

from __future__ import annotations

import asyncio
import ctypes.util
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.replicas.rig import TOPIC, Rig, missing, rig

import cometmq
from cometmq.backup.check import check_backup
from cometmq.backup.create import create_backup
from cometmq.backup.repository import open_repository
from cometmq.backup.restore import restore_backup
from cometmq.client.extensions.staging.batches import Staging
from cometmq.errors import CometError
from cometmq.store.base.disk import RealDisk
from cometmq.store.offline.inspect import read_records

pytestmark = [pytest.mark.full, pytest.mark.processes, pytest.mark.timeout(600)]

SILENT_S = 10.0
"""A silent master is replaced in 3 s; a busy machine may take longer."""


def run(
    folder: Path,
    scenario: Callable[[Rig], Awaitable[None]],
    *,
    environment: Callable[[str], dict[str, str]] = lambda name: {},
    keeps_all: bool = True,
    **settings: str,
) -> None:
    """Run a scenario against a set that is whole, while a producer sends.

    `keeps_all` is false where the brokers remove old messages.
    """
    if fault := missing():
        pytest.skip(fault)

    async def main(stage: Rig) -> None:
        await stage.whole()
        async with stage.producing():
            await stage.first_answer(time.monotonic())
            await scenario(stage)
        if keeps_all:
            await stage.check()
        assert stage.faults == []

    with rig(folder, settings=settings, environment=environment) as stage:
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


def test_client_that_reaches_only_the_deposed_master(tmp_path: Path) -> None:
    """Step 22: it is told of no send that counts, and reads nothing that is not kept."""
    program = Path(__file__).with_name("lonely_client.py")
    flag, report = tmp_path / "cut", tmp_path / "report.json"

    async def scenario(stage: Rig) -> None:
        master = await stage.whole()
        client = await asyncio.to_thread(
            stage.add,
            "l",
            9,
            [sys.executable, str(program), stage.name_server, TOPIC, str(flag), str(report)],
        )
        others = [each for each in stage.brokers if each is not master]
        for other in (*others, stage.controller):
            master.cut(other)
        for other in (*others, stage.controller, stage.names):
            client.cut(other)
        began = time.monotonic()
        flag.touch()
        assert await stage.first_answer(began) < SILENT_S
        while not report.exists():
            assert time.monotonic() < began + 60
            await asyncio.sleep(0.1)
        for other in (*others, stage.controller):
            master.mend(other)
        await stage.whole()
        lonely = json.loads(report.read_text())
        assert lonely["tries"] > 3
        assert lonely["acknowledged"] == 0
        kept: dict[str, str] = {}
        wanted = set(lonely["seen"])
        assert wanted
        async with cometmq.PullConsumer(
            "later", {TOPIC: "*"}, name_server=stage.name_server, consume_from="first"
        ) as consumer:
            deadline = time.monotonic() + 60
            while not wanted <= kept.keys():
                assert time.monotonic() < deadline, sorted(wanted - kept.keys())[:5]
                for message in await consumer.poll(timeout_ms=1000):
                    key = f"{message.queue_id} {message.queue_offset}"
                    kept[key] = message.body[:20].hex()
        assert {key: kept[key] for key in wanted} == lonely["seen"]

    run(tmp_path, scenario)


def test_wall_clocks_are_set(tmp_path: Path) -> None:
    """Step 30: an hour forth and back at each machine: no other master, nothing is lost."""
    library = next(
        (str(path) for path in Path("/usr/lib").glob("*/faketime/libfaketime.so.1")),
        ctypes.util.find_library("faketime"),
    )
    if library is None:
        pytest.skip("libfaketime is not installed: apt-get install libfaketime")
    clocks = {name: tmp_path / f"{name}.clock" for name in ("b0", "b1", "b2", "c")}
    for path in clocks.values():
        path.write_text("+0s\n")

    def environment(name: str) -> dict[str, str]:
        if name not in clocks:
            return {}
        return {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(clocks[name]),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    async def scenario(stage: Rig) -> None:
        master = await stage.whole()
        state = await stage.state()
        assert state is not None
        for path in clocks.values():
            for jump in ("+1h", "-1h", "+0s"):
                path.write_text(f"{jump}\n")
                await asyncio.sleep(2)
                assert await stage.first_answer(time.monotonic()) < 1
        after = await stage.until(lambda state: len(state.in_sync) == 3)
        assert after.master_epoch == state.master_epoch
        assert stage.master_of(after) is master

    run(tmp_path, scenario, environment=environment)


def test_masters_die_while_batches_are_published(tmp_path: Path) -> None:
    """Step 42: the next one ends what it finds begun; each batch is there once and whole."""
    rows, batches = 3_000, 3

    async def scenario(stage: Rig) -> None:
        async def publish(batch_id: int) -> None:
            while True:
                try:
                    async with Staging(stage.name_server, "sink") as staging:
                        part = staging.part(batch_id, "0")
                        for row in range(rows):
                            await part.add("Batches", b"%d/%d" % (batch_id, row))
                        await staging.publish(batch_id, [await part.finish()])
                        return
                except CometError:
                    await asyncio.sleep(0.1)

        async with cometmq.Admin(name_server=stage.name_server) as admin:
            await admin.create_topic("Batches", queue_count=4)
        for batch_id in range(batches):
            master = await stage.whole()
            publishing = asyncio.create_task(publish(batch_id))
            await asyncio.sleep(0.05 + 0.05 * batch_id)
            master.end()
            await publishing
            await asyncio.to_thread(master.start)
        await stage.whole()
        bodies: Counter[bytes] = Counter()
        deadline = time.monotonic() + 60
        async with cometmq.PullConsumer(
            "batches", {"Batches": "*"}, name_server=stage.name_server, consume_from="first"
        ) as consumer:
            while len(bodies) < batches * rows:
                assert time.monotonic() < deadline, len(bodies)
                bodies.update(message.body for message in await consumer.poll(timeout_ms=1000))
        assert set(bodies.values()) == {1}

    run(tmp_path, scenario)


def test_backups_under_load_while_old_files_go(tmp_path: Path) -> None:
    """Step 47: each backup verifies; restored, it has all that was acknowledged before it began
    and that its log still had, and positions of consumers that lead nowhere beyond its end."""
    repository = open_repository(str(tmp_path / "repository"))
    begins: list[int] = []

    def back_up(store: Path, number: int, before: dict[bytes, int]) -> None:
        """Make a backup and a store of it; check that store."""
        created = create_backup(str(store), repository, f"backup-{number}", number)
        assert check_backup(repository, created.manifest) == []
        made = tmp_path / f"restored-{number}"
        restored = restore_backup(repository, created.manifest, str(made))
        assert restored.log_end == created.manifest.log_end
        begins.append(created.manifest.log_begin)
        records = read_records(RealDisk(), str(made), count=1 << 30)
        bodies = {record.body for record in records}
        lost = [body for body, at in before.items() if at >= begins[-1] and body not in bodies]
        assert lost == []
        ends: dict[tuple[str, int], int] = {}
        for record in records:
            ends[record.topic, record.queue_id] = record.queue_offset + 1
        table = json.loads((made / "config" / "consumerOffset.json").read_text())["offsetTable"]
        positions = table.get(f"{TOPIC}@reader", {})
        assert positions or not number
        for queue_id, position in positions.items():
            assert position <= ends[TOPIC, int(queue_id)]

    async def scenario(stage: Rig) -> None:
        async with cometmq.PullConsumer(
            "reader", {TOPIC: "*"}, name_server=stage.name_server, consume_from="first"
        ) as consumer:
            for number in range(4):
                until = time.monotonic() + 3
                while time.monotonic() < until:
                    await consumer.poll(timeout_ms=500)
                    await consumer.commit()
                master = await stage.whole()
                store = stage.folder / f"b{stage.brokers.index(master)}"
                for path in sorted((store / "commitlog").iterdir())[:-2]:
                    os.utime(path, (0, 0))  # retention takes them for old
                await asyncio.to_thread(back_up, store, number, dict(stage.ends))
        assert begins[-1] > begins[0], "no old file has gone"

    run(
        tmp_path,
        scenario,
        keeps_all=False,
        mappedFileSizeCommitLog=str(1 << 20),
        fileReservedTime="1",
        deleteWhen=";".join(f"{hour:02}" for hour in range(24)),
        cleanResourceInterval="1000",
    )
