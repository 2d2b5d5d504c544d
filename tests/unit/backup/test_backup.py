"""Backups of the store of a running broker, and the stores that are made of them."""

import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cometmq import Message, sync
from cometmq.backup.check import check_backup
from cometmq.backup.create import create_backup, manifests
from cometmq.backup.manifest import BackupManifest
from cometmq.backup.repository import FolderRepository, Repository, open_repository
from cometmq.backup.restore import Restored, restore_backup
from cometmq.cli.main import root
from cometmq.cli.terminal.exit_codes import STORE
from cometmq.errors import ConfigError, DiskFull, StoreCorrupt, StoreError
from cometmq.store.base.disk import RealDisk
from cometmq.store.offline.inspect import read_records
from cometmq.store.offline.verify import verify_store
from cometmq.testing.cluster import EmbeddedCluster, threaded_cluster
from cometmq.wire.command.fastjson import loads_object

LOG_FILE_BYTES = 64 * 1024
TOPIC = "Kept"
BODY_BYTES = 1_000
SETTINGS: dict[str, Any] = {
    "mappedFileSizeCommitLog": LOG_FILE_BYTES,
    "defaultTopicQueueNums": 2,
    "flushConsumerOffsetInterval": 50,
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    """A broker with small log files."""
    with threaded_cluster(SETTINGS, store_path=str(tmp_path / "store")) as running:
        yield running


@pytest.fixture(params=["folder", "memory"])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Repository:
    """A folder of the store's file system, and an object store in memory."""
    if request.param == "folder":
        return open_repository(str(tmp_path / "repository"))
    return open_repository(f"memory://{uuid.uuid4().hex}/backups")


def send(cluster: EmbeddedCluster, numbers: range) -> None:
    with sync.Producer("keeper", name_server=cluster.name_server_address) as producer:
        for number in numbers:
            producer.send(Message(TOPIC, body_of(number)))


def body_of(number: int) -> bytes:
    return f"{number}/".encode().ljust(BODY_BYTES, b".")


def numbers_in(store: Path | str) -> list[int]:
    """The numbers of the topic's messages, in the order of the log."""
    records = read_records(RealDisk(), str(store), count=1 << 20)
    return [int(record.body.partition(b"/")[0]) for record in records if record.topic == TOPIC]


def consume(name_server: str, count: int, group: str = "readers") -> list[int]:
    """Take `count` messages and commit them."""
    found: list[int] = []
    has_all = threading.Event()

    def take(message: sync.ReceivedMessage) -> None:
        found.append(int(message.body.partition(b"/")[0]))
        if len(found) >= count:
            has_all.set()

    with sync.PushConsumer(
        group, {TOPIC: "*"}, take, name_server=name_server, consume_from="first"
    ):
        assert has_all.wait(60), f"{len(found)} of {count}"
    return found


def wait_for_positions(cluster: EmbeddedCluster, count: int, group: str = "readers") -> None:
    """Wait until the broker has written that the group consumed `count` messages."""
    path = Path(cluster.store_path) / "config" / "consumerOffset.json"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if path.exists():
            table = loads_object(path.read_bytes(), "offsets")["offsetTable"]
            if sum(table.get(f"{TOPIC}@{group}", {}).values()) == count:
                return
        time.sleep(0.01)
    raise AssertionError(f"the broker has not written the positions of {group}")


def restore(
    repository: Repository, manifest: BackupManifest, tmp_path: Path, **options: Any
) -> tuple[Path, Restored]:
    """Make a store of a backup; it must be sound once a broker has opened it."""
    made = tmp_path / f"made-{uuid.uuid4().hex}"
    restored = restore_backup(repository, manifest, str(made), **options)
    return made, restored


def test_the_backup_of_a_busy_broker_has_what_was_acknowledged_before(
    cluster: EmbeddedCluster, repository: Repository, tmp_path: Path
) -> None:
    """Sends go on during the backup; the restored broker serves each message and each offset."""
    send(cluster, range(200))
    assert sorted(consume(cluster.name_server_address, 200)) == list(range(200))
    wait_for_positions(cluster, 200)
    sent = threading.Event()
    may_end = threading.Event()
    count = 200

    def keep_sending() -> None:
        nonlocal count
        with sync.Producer("busy", name_server=cluster.name_server_address) as producer:
            while not may_end.is_set():
                producer.send(Message(TOPIC, body_of(count)))
                count += 1
                sent.set()

    sender = threading.Thread(target=keep_sending)
    sender.start()
    assert sent.wait(30)
    acknowledged = count
    created = create_backup(cluster.store_path, repository, "first", 1)
    may_end.set()
    sender.join()
    manifest = created.manifest
    assert len(manifest.sealed) > 2
    assert check_backup(repository, manifest) == []
    made, restored = restore(repository, manifest, tmp_path)
    assert restored.log_end == manifest.log_end
    found = numbers_in(made)
    assert found[:acknowledged] == list(range(acknowledged))
    with threaded_cluster(SETTINGS, store_path=str(made)) as again:
        send(again, range(count, count + 1))
        # The consumer's offset came too: only what it had not consumed comes.
        rest = sorted({*found, count} - set(range(200)))
        assert sorted(consume(again.name_server_address, len(rest))) == rest
    assert verify_store(RealDisk(), str(made)).is_sound


def test_a_second_backup_shares_the_log_files(
    cluster: EmbeddedCluster, repository: Repository, tmp_path: Path
) -> None:
    """Deleting one backup leaves the other whole; deleting both leaves no log file."""
    send(cluster, range(150))
    first = create_backup(cluster.store_path, repository, "first", 1)
    send(cluster, range(150, 300))
    second = create_backup(cluster.store_path, repository, "second", 2)
    sealed_bytes = len(first.manifest.sealed) * LOG_FILE_BYTES
    is_folder = isinstance(repository, FolderRepository)
    assert (first.linked_bytes if is_folder else first.copied_bytes) == sealed_bytes > 0
    assert second.shared_bytes == sealed_bytes
    assert [manifest.name for manifest in manifests(repository)] == ["first", "second"]
    result = run("delete", repository.location, "first", "--yes")
    if is_folder:
        assert result.exit_code == 0, result.output
        assert check_backup(repository, second.manifest) == []
        assert numbers_in(restore(repository, second.manifest, tmp_path)[0]) == list(range(300))
        run("delete", repository.location, "second", "--yes")
        assert repository.files("log") == []
        assert repository.folders("snapshots") == []


def test_retention_does_not_touch_a_backup(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """A log file that the broker removes stays in the folder that has a second name of it."""
    send(cluster, range(150))
    repository = open_repository(str(tmp_path / "repository"))
    manifest = create_backup(cluster.store_path, repository, "kept", 1).manifest
    for file in manifest.sealed:
        (Path(cluster.store_path) / "commitlog" / f"{file.start:020d}").unlink()
    assert check_backup(repository, manifest) == []
    assert numbers_in(restore(repository, manifest, tmp_path)[0]) == list(range(150))


def test_cutting_a_log_never_touches_a_backup(tmp_path: Path) -> None:
    """A record of a file that a backup shares is torn later: the store cuts a copy of the file."""
    store = tmp_path / "store"
    with threaded_cluster(SETTINGS, store_path=str(store)) as running:
        send(running, range(150))
    repository = open_repository(str(tmp_path / "repository"))
    manifest = create_backup(str(store), repository, "kept", 1).manifest
    shared = store / "commitlog" / f"{manifest.sealed[-1].start:020d}"
    assert shared.stat().st_nlink == 2
    # A power cut took what came behind: the shared file is the last one, and its end is torn.
    (store / "commitlog" / f"{manifest.tail_start:020d}").unlink()
    (store / "cometmq.checkpoint").unlink()
    (store / "abort").touch()
    before = shared.read_bytes()
    torn = bytearray(before)
    torn[-BODY_BYTES:] = bytes(BODY_BYTES)
    shared.unlink()
    shared.write_bytes(torn)
    (tmp_path / "second name").hardlink_to(shared)
    with threaded_cluster(SETTINGS, store_path=str(store)) as running:
        send(running, range(1_000, 1_001))
    assert (tmp_path / "second name").read_bytes() == torn
    assert shared.read_bytes() != torn
    assert shared.stat().st_nlink == 1
    assert numbers_in(store)[-1] == 1_000


def test_a_point_in_time(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """The log ends with the last message of that time; no consumer's position lies behind."""
    repository = open_repository(str(tmp_path / "repository"))
    send(cluster, range(100))
    consume(cluster.name_server_address, 100)
    wait_for_positions(cluster, 100)
    create_backup(cluster.store_path, repository, "early", 1)
    send(cluster, range(100, 200))
    consume(cluster.name_server_address, 100)
    wait_for_positions(cluster, 200)
    manifest = create_backup(cluster.store_path, repository, "late", 2).manifest
    records = read_records(RealDisk(), cluster.store_path, count=1 << 20)
    last = next(r for r in records if r.topic == TOPIC and r.body == body_of(149))
    earlier = tuple(manifests(repository))
    size = next(r.physical_offset for r in records if r.physical_offset > last.physical_offset)

    made, restored = restore(repository, manifest, tmp_path, to_offset=size, earlier=earlier)
    assert numbers_in(made) == list(range(150))
    assert restored.is_cut
    assert restored.positions_of == "early"
    with threaded_cluster(SETTINGS, store_path=str(made)) as again:
        assert sorted(consume(again.name_server_address, 50)) == list(range(100, 150))

    # Without an earlier backup the positions are those of the end of the log.
    made, restored = restore(repository, manifest, tmp_path, to_ms=last.store_timestamp_ms)
    kept = numbers_in(made)
    assert kept[:150] == list(range(150))
    assert restored.positions_of == "late"
    with threaded_cluster(SETTINGS, store_path=str(made)) as again:
        send(again, range(500, 520))
        assert sorted(consume(again.name_server_address, 20)) == list(range(500, 520))

    with pytest.raises(ConfigError, match="choose an earlier backup"):
        restore(repository, manifest, tmp_path, to_ms=1)


def spoil(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize(
    "damage",
    [spoil, Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-1])],
    ids=["flipped", "missing", "short"],
)
@pytest.mark.parametrize("part", ["log", "tail", "topics.json", "manifest"])
def test_damage_is_named_and_never_restored(
    damage: Callable[[Path], Any], part: str, tmp_path: Path
) -> None:
    """Each file has a digest; a store of damaged files is not made, not even in part."""
    store = tmp_path / "store"
    with threaded_cluster(SETTINGS, store_path=str(store)) as running:
        send(running, range(100))
    folder = tmp_path / "repository"
    repository = open_repository(str(folder))
    manifest = create_backup(str(store), repository, "b", 1).manifest
    for path in list(folder.rglob("*")):
        if path.is_file() and part in (path.name, path.parent.name):
            damage(path)
    target = tmp_path / "made"
    if part == "manifest":
        with pytest.raises(StoreError):
            run("restore", str(folder), str(target))
    else:
        result = run("verify", str(folder))
        assert result.return_value == STORE
        assert part in result.stdout
        with pytest.raises(StoreCorrupt, match="backup verify"):
            restore_backup(repository, manifest, str(target))
    assert not target.exists()


def run(*arguments: str) -> Result:
    """`cometmq backup ARGUMENTS`; errors are raised."""
    return CliRunner().invoke(
        root, ["backup", *arguments], standalone_mode=False, catch_exceptions=False
    )


def test_the_commands(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """create, list, verify, restore and delete as a person calls them."""
    folder, made = str(tmp_path / "repository"), str(tmp_path / "made")
    send(cluster, range(100))
    assert "bytes linked" in run("create", cluster.store_path, folder, "--name", "monday").stdout
    assert "monday" in run("list", folder).stdout
    assert "monday: sound" in run("verify", folder).stdout
    with pytest.raises(ConfigError, match="choose another name"):
        run("create", cluster.store_path, folder, "--name", "monday")
    with pytest.raises(StoreError, match="has no folder commitlog"):
        run("create", folder, folder)
    with pytest.raises(StoreError, match="has no backup 'tuesday'"):
        run("restore", folder, made, "--name", "tuesday")
    assert "restored from monday" in run("restore", folder, made).stdout
    assert numbers_in(made) == list(range(100))
    with pytest.raises(ConfigError, match="is not empty"):
        run("restore", folder, made)
    assert "deleted" in run("delete", folder, "monday", "--yes").stdout
    assert manifests(open_repository(folder)) == []


class FullFolder(FolderRepository):
    """A folder that takes so many files, and then none until it is emptied."""

    room = 0

    def write(self, path: str, blocks: Iterable[bytes]) -> None:
        if not self.room:
            raise DiskFull(f"no space for {path}")
        self.room -= 1
        super().write(path, blocks)


@pytest.mark.parametrize("room", [0, 1, 3])
def test_a_backup_that_ends_in_the_middle_is_none(
    room: int, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    """A full disk, or a process that dies there: no such backup, and the next try makes it."""
    send(cluster, range(100))
    repository = FullFolder(tmp_path / "repository")
    repository.room = room
    with pytest.raises(DiskFull):
        create_backup(cluster.store_path, repository, "b", 1)
    assert repository.room == 0
    assert manifests(repository) == []
    repository.room = 1_000
    manifest = create_backup(cluster.store_path, repository, "b", 2).manifest
    assert check_backup(repository, manifest) == []
    assert numbers_in(restore(repository, manifest, tmp_path)[0]) == list(range(100))


def test_a_backup_process_is_killed(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """kill -9 before the manifest: the repository has no backup, and the store is as it was."""
    send(cluster, range(100))
    folder = tmp_path / "repository"
    script = (
        "import os, signal, sys\n"
        "from cometmq.backup import create\n"
        "create.encode = lambda manifest: os.kill(os.getpid(), signal.SIGKILL)\n"
        "from cometmq.backup import repository\n"
        "create.create_backup(sys.argv[1], repository.open_repository(sys.argv[2]), 'b', 1)\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", script, cluster.store_path, str(folder)], check=False, timeout=60
    )
    assert killed.returncode == -signal.SIGKILL, "the step was not reached"
    repository = open_repository(str(folder))
    assert repository.exists("snapshots/b/tail")
    assert manifests(repository) == []
    manifest = create_backup(cluster.store_path, repository, "b", 2).manifest
    assert numbers_in(restore(repository, manifest, tmp_path)[0]) == list(range(100))


def test_a_repository_belongs_to_one_store(tmp_path: Path) -> None:
    """Files of another store at the same offsets are refused."""
    repository = open_repository(str(tmp_path / "repository"))
    for number in range(2):
        store = str(tmp_path / f"store-{number}")
        with threaded_cluster(SETTINGS, store_path=store) as running:
            send(running, range(100))
        if number == 0:
            create_backup(store, repository, "first", 1)
            continue
        with pytest.raises(ConfigError, match="a repository of its own"):
            create_backup(store, repository, "second", 2)
    assert len(manifests(repository)) == 1


def test_the_backup_of_an_empty_store(tmp_path: Path) -> None:
    """A broker that has no message yet: its topics and groups come."""
    store = tmp_path / "store"
    with threaded_cluster(SETTINGS, store_path=str(store)):
        pass
    repository = open_repository(str(tmp_path / "repository"))
    manifest = create_backup(str(store), repository, "b", 1).manifest
    made, restored = restore(repository, manifest, tmp_path)
    assert restored.log_end == 0
    with threaded_cluster(SETTINGS, store_path=str(made)) as again:
        send(again, range(3))
        assert sorted(consume(again.name_server_address, 3)) == [0, 1, 2]
