"""The real disk: locks, reservation, residency; and a store on it that is cut while it runs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.store.stores import InlineWorkers, Rig

from cometmq import native
from cometmq.codec.stored_message import decode_messages
from cometmq.errors import DiskFull, StoreCorrupt, StoreLocked
from cometmq.model.offsets import PhysicalOffset
from cometmq.store.base.disk import MAP_GRANULARITY, RealDisk
from cometmq.store.offline.verify import verify_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOLD_LOCK = """
    import sys
    from cometmq.store.base.disk import RealDisk
    lock = RealDisk().lock(sys.argv[1])
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def disk() -> RealDisk:
    return RealDisk()


def test_lock_names_the_other_process(disk: RealDisk, tmp_path: Path) -> None:
    """A second process is refused with the pid of the first; afterwards the lock is free."""
    path = str(tmp_path / "lock")
    code = [sys.executable, "-c", textwrap.dedent(HOLD_LOCK), path]
    with subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(StoreLocked, match=f"in use by process {other.pid};"):
            disk.lock(path)
        other.communicate("")
    lock = disk.lock(path)
    with pytest.raises(StoreLocked, match=f"in use by process {os.getpid()};"):
        disk.lock(path)
    lock.release()
    lock.release()
    disk.lock(path).release()
    assert Path(path).read_bytes() == b"lock"


def test_log_file_is_reserved_and_mapped(disk: RealDisk, tmp_path: Path) -> None:
    """Blocks exist before anything is stored; windows and pread see the same bytes."""
    path = str(tmp_path / "log")
    file = disk.open_log(path, 10_000, create=True)
    assert Path(path).stat().st_blocks * 512 >= 10_000
    window = file.map(MAP_GRANULARITY, 1 << 20)
    assert len(window) == 10_000 - MAP_GRANULARITY
    window[10:14] = b"abcd"
    assert file.read(MAP_GRANULARITY + 10, 4) == b"abcd"
    file.write(MAP_GRANULARITY + 14, b"efgh")
    view = memoryview(window)
    assert bytes(view[10:18]) == b"abcdefgh"
    assert file.unmap(window) is False
    view.release()
    assert file.unmap(window) is True
    file.sync()
    assert file.read(9_998, 10) == b"\0\0"
    assert file.next_data(0) is not None
    assert disk.open_log(path, 10_000, create=True).size() == 10_000


def test_mapping_a_cut_file_is_an_error(disk: RealDisk, tmp_path: Path) -> None:
    """Not a signal that kills the process."""
    path = str(tmp_path / "log")
    file = disk.open_log(path, 8_192, create=True)
    os.truncate(path, 100)
    with pytest.raises(StoreCorrupt, match="100 bytes long and was 8192"):
        file.map(0, 8_192)


def test_resident_reads(disk: RealDisk, tmp_path: Path) -> None:
    """What was just written is in memory; behind the end nobody knows."""
    path = str(tmp_path / "f")
    file = disk.open_random(path, 100, create=True)
    file.write(5, b"hello")
    assert file.read_resident(5, 5) in (b"hello", None)
    assert file.read_resident(90, 50) is None
    assert file.read(90, 50) == bytes(10)


def test_residency_unknown(disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system without RWF_NOWAIT answers "not known", and is asked once only."""
    monkeypatch.setattr("cometmq.store.base.disk._RWF_NOWAIT", 8)
    asked: list[int] = []

    def refuse(*_: Any) -> int:
        asked.append(1)
        raise OSError(95, "not supported")

    monkeypatch.setattr(os, "preadv", refuse, raising=False)
    file = disk.open_random(str(tmp_path / "f"), 100, create=True)
    assert [file.read_resident(0, 5) for _ in range(3)] == [None] * 3
    assert asked == [1]


def test_memory_is_resident(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """On tmpfs, which refuses RWF_NOWAIT, pulls of older messages take five times as long."""
    shared = Path("/dev/shm")
    if not shared.is_mount():
        pytest.skip("this machine has no tmpfs at /dev/shm")
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        file = disk.open_random(f"{folder}/f", 100, create=True)
        file.write(5, b"hello")
        assert [file.read_resident(5, 5) for _ in range(2)] == [b"hello"] * 2
        assert file.read_resident(90, 50) is None
        # Some kernel may not refuse it.
        monkeypatch.setattr("cometmq.store.base.disk._RWF_NOWAIT", 1 << 30)
        file = disk.open_random(f"{folder}/f", 100, create=False)
        assert file.read_resident(5, 5) == b"hello"


@pytest.mark.skipif(native.is_resident is None, reason=native.describe())
def test_resident_windows(disk: RealDisk, tmp_path: Path) -> None:
    """A window shows what is in memory, and nothing of a file that was cut: that would kill."""
    size = 4 * MAP_GRANULARITY
    path = tmp_path / "log"
    file = disk.open_log(str(path), size, create=True)
    file.write(0, bytes(range(256)) * (size // 256))
    window = file.map_resident(MAP_GRANULARITY, size)
    assert window is not None
    last = size - MAP_GRANULARITY
    for position, length in ((MAP_GRANULARITY, 5), (last - 3, 9), (size - 5, 5), (last, 4096)):
        # All of it was just written.
        assert window.view(position, length) == file.read(position, length)
    for position, length in (
        (0, 5),
        (MAP_GRANULARITY - 1, 5),
        (size - 4, 5),
        (size, 1),
        (last, -1),
    ):
        assert window.view(position, length) is None
    view = window.view(last - 8, 8)
    assert view is not None
    path.unlink()
    assert window.view(last - 8, 8) == view == bytes(range(248, 256))
    file.resize(last)
    assert window.view(last, 5) is None
    assert window.view(last - 8, 8) is None
    assert file.map_resident(0, size) is None


@pytest.mark.skipif(native.is_resident is None, reason=native.describe())
def test_no_resident_window_without_an_answer(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A descriptor for reading only, or no core: nothing says what is in memory."""
    path = tmp_path / "log"
    disk.open_log(str(path), MAP_GRANULARITY, create=True).close()
    whole = disk.open_log(str(path), MAP_GRANULARITY, create=False)
    assert whole.map_resident(0, MAP_GRANULARITY) is not None
    opened = os.open
    monkeypatch.setattr(os, "open", lambda name, flags: opened(name, flags & ~os.O_RDWR))
    read_only = disk.open_log(str(path), MAP_GRANULARITY, create=False)
    assert read_only.map_resident(0, MAP_GRANULARITY) is None
    monkeypatch.setattr(native, "is_resident", None)
    assert whole.map_resident(0, MAP_GRANULARITY) is None


@pytest.mark.skipif(native.is_resident is None, reason=native.describe())
def test_pulls_read_windows_that_expire_with_their_file(disk: RealDisk, tmp_path: Path) -> None:
    """Old records are read through windows; retention and idle time drop them."""
    rig = Rig(disk, root=str(tmp_path / "store"), windows_kept=0)
    for number in range(400):
        rig.put("T", 0, b"%0200d" % number)
    rig.tick(1000)
    rig.reopen()
    log = rig.store._log
    maps: list[int] = []
    for mapped in log.files:
        map_resident = mapped.file.map_resident

        def counted(position: int, length: int, file_map: Any = map_resident) -> Any:
            maps.append(length)
            return file_map(position, length)

        mapped.file = Counted(mapped.file, counted)  # type: ignore[assignment]
    first = log.files[0]
    for queue_offset in (0, 5):
        records = decode_messages(b"".join(rig.get("T", 0, queue_offset).chunks))
        bodies = [b"%0200d" % number for number in range(queue_offset, queue_offset + 32)]
        assert [record.body for record in records] == bodies
    assert maps == [first.size]
    window = log._read_windows[0].resident
    assert window is not None
    rig.store._retention.drop_files(1)
    assert 0 not in log._read_windows
    assert log.view_resident(PhysicalOffset(0), 8) is None
    # A reader that still has the window reads the deleted file.
    assert window.view(4, 4) == b"\xda\xa3\x20\xa7"
    start = log.files[0].start
    assert log.view_resident(PhysicalOffset(start), 8) is not None
    log.unmap_retired()
    assert start in log._read_windows
    log.unmap_retired()
    assert start not in log._read_windows
    rig.store.close()


class Counted:
    """A file whose read windows are counted."""

    def __init__(self, file: Any, map_resident: Any) -> None:
        self._file = file
        self.map_resident = map_resident

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_names(disk: RealDisk, tmp_path: Path) -> None:
    """Lists, removals and replacements; missing things are fine to remove."""
    root = str(tmp_path)
    assert disk.listdir(f"{root}/none") == []
    disk.makedirs(f"{root}/a/b")
    disk.write_atomic(f"{root}/a/x", b"1")
    disk.write_atomic(f"{root}/a/x", b"22")
    assert disk.read_bytes(f"{root}/a/x") == b"22"
    assert disk.listdir(f"{root}/a") == ["b", "x"]
    assert (disk.exists(f"{root}/a"), disk.is_dir(f"{root}/a/x")) == (True, False)
    assert disk.size(f"{root}/a/x") == 2
    assert disk.mtime_ms(f"{root}/a/x") > 10**12
    disk.rename(f"{root}/a/x", f"{root}/y")
    disk.remove(f"{root}/y")
    disk.remove(f"{root}/y")
    disk.remove_tree(f"{root}/a")
    disk.remove_tree(f"{root}/a")
    assert disk.listdir(root) == []
    total, used = disk.usage(root)
    assert 0 < used < total
    assert disk.boot_id() == disk.boot_id()


@contextlib.contextmanager
def small_tmpfs(path: Path, size: str) -> Iterator[Path]:
    """A file system that fills up quickly; skips where mounting is not allowed."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no mount command here")
    if done.returncode:
        pytest.skip(f"mounting a tmpfs is not allowed here: {done.stderr.decode().strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False)


def test_full_file_system(disk: RealDisk, tmp_path: Path) -> None:
    """Without blocks puts are refused, reads go on, and space lets writing go on by itself."""
    with small_tmpfs(tmp_path / "small", "3m") as root:
        ballast = root / "ballast"
        ballast.write_bytes(bytes(2_000_000))
        rig = Rig(
            disk,
            root=str(root / "store"),
            commit_log_file_bytes=262_144,
            disk_warning_percent=1000,
            disk_clean_forcibly_percent=1000,
        )
        with pytest.raises(DiskFull, match="free space on this file system"):
            for _ in range(100_000):
                rig.put(body=bytes(1_000))
        count = rig.store.max_queue_offset("T", 0)
        assert count > 100
        for _ in range(10):
            rig.tick(600)
            with pytest.raises(DiskFull):
                rig.put(body=bytes(1_000))
        assert len(rig.bodies()) == count
        ballast.unlink()
        for _ in range(5):
            rig.tick(600)
        rig.put(body=b"again")
        assert rig.bodies()[-1] == b"again"
        rig.store.close()
        assert verify_store(disk, str(root / "store")).findings == []


CUT_LIVE = """
    import os, sys
    sys.path.insert(0, sys.argv[2])
    from cometmq.store.base.disk import RealDisk
    from tests.unit.store.stores import Rig
    rig = Rig(RealDisk(), root=sys.argv[1], window_bytes=16_384)
    log = sys.argv[1] + "/commitlog/" + "0" * 20
    for n in range(150):
        rig.put(body=b"%03d" % n + bytes(300))
        if n % 20 == 0:
            rig.tick(200)
    size = int(sys.argv[3])
    os.truncate(log, size)
    rig.now_ms += 1
    read = 0
    offset = 0
    while offset < 150:
        found = rig.get("T", 0, offset, 7)
        read += found.count
        offset = found.next_queue_offset
    for n in range(150, 400):
        rig.now_ms += 1
        rig.put(body=b"%03d" % n + bytes(300))
    rig.tick(2_000)
    after = [m.body[:3] for m in rig.read("T", 0)]
    assert after[-250:] == [b"%03d" % n for n in range(150, 400)], after
    assert after[:5] == [b"000", b"001", b"002", b"003", b"004"]
    os.truncate(sys.argv[1] + "/consumequeue/T/0/" + "0" * 20, 77)
    assert rig.get("T", 0, 2, 1).count == 1
    units = sys.argv[1] + "/consumequeue/T/0/" + "0" * 20
    found = rig.get("T", 0, 50, 32)
    assert found.next_queue_offset > 50
    assert os.path.getsize(units) == 2000
    os.unlink(units)
    rig.store._queues.forget_files(rig.store._queues.path + "/T/0")
    assert [m.body[:3] for m in rig.read("T", 0)] == after, "the file was removed"
    rig.store.close()
    rig.open()
    assert [m.body[:3] for m in rig.read("T", 0)] == after, "after the restart"
    print("alive", read, len(after))
"""


@pytest.mark.parametrize("size", [5_000, 30_000, 49_152])
def test_files_cut_under_a_live_store(tmp_path: Path, size: int) -> None:
    """No SIGBUS: what is left is read, new messages go into a new file, a restart agrees."""
    repository = Path(__file__).parents[3]
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            textwrap.dedent(CUT_LIVE),
            str(tmp_path / "store"),
            str(repository),
            str(size),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=repository,
    )
    assert done.returncode == 0, done.stderr
    alive, read, after = done.stdout.split()
    assert alive == "alive"
    assert int(read) == int(after) - 250
    assert 0 < int(read) < 150
    assert "was cut from outside" in done.stderr


class ThreadWorkers:
    """Real threads, results handed over by `poll`."""

    def __init__(self) -> None:
        self.executor = ThreadPoolExecutor(4)
        self.results: SimpleQueue[tuple[Callable[[Any], None], Any]] = SimpleQueue()

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None] | None = None) -> None:
        def run() -> None:
            box = InlineWorkers()
            box.submit(work, (lambda result: self.results.put((done, result))) if done else None)

        self.executor.submit(run)

    def poll(self) -> None:
        while not self.results.empty():
            done, result = self.results.get()
            done(result)


@pytest.mark.parametrize("is_sync", [False, True])
def test_with_real_threads(disk: RealDisk, tmp_path: Path, is_sync: bool) -> None:
    """Flushing, writing, indexing, rolling and unmapping in threads beside puts and reads."""
    workers = ThreadWorkers()
    rig = Rig(
        disk,
        workers=workers,
        root=str(tmp_path / "store"),
        commit_log_file_bytes=262_144,
        is_sync_flush=is_sync,
        # The store's clock runs faster here than the disk.
        sync_flush_timeout_ms=10**15,
        consume_queue_flush_interval_ms=500,
    )
    answers: list[bool] = []
    held = []
    for n in range(6_000):
        queue_id = n % 5
        result = rig.put(
            queue_id=queue_id,
            body=b"%05d" % n + bytes(n % 300),
            properties=b"UNIQ_KEY\x01u%d\x02" % n,
            index_keys=(f"u{n}", None, None),
        )
        if is_sync:
            rig.store.when_durable(result.end_offset, answers.append)
        if n % 50 == 0:
            rig.tick(60)
            workers.poll()
            end = rig.store.max_queue_offset("T", queue_id)
            if end:
                found = rig.get("T", queue_id, max(0, end - 40))
                # Views that outlive their window must keep it mapped.
                held.append((found.chunks, b"".join(found.chunks)))
                held = held[-20:]
                assert all(b"".join(chunks) == copy for chunks, copy in held)
    while rig.store.confirmed_offset < rig.store.max_physical_offset or len(answers) % 6_000:
        rig.tick(20)
        workers.poll()
        time.sleep(0.001)  # the threads need the interpreter
    bodies = [rig.bodies("T", queue_id) for queue_id in range(5)]
    assert [len(each) for each in bodies] == [1_200] * 5
    assert answers == ([True] * 6_000 if is_sync else [])
    assert len(rig.store.prepare_query_index("T", "u5999", 5)().physical_offsets) == 1
    del held
    rig.store.close()
    workers.executor.shutdown()
    assert verify_store(disk, str(tmp_path / "store")).findings == []
