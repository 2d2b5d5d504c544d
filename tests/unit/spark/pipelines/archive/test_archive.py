"""Archives: exactly once over every crash point, whole or refused, and read by anybody."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import dataset, parquet
from tests.unit.spark.local_spark import LocalSpark
from tests.unit.spark.stores import NEW_YEAR_MS, Put, fill, some_days

from cometmq import arrow
from cometmq.arrow import COLUMNS
from cometmq.errors import ConfigError, NoRoute, StoreCorrupt, StoreError, StoreLocked
from cometmq.spark.base.progress import RunProgress
from cometmq.spark.pipelines.archive.archive import ArchiveOptions, ArchiveResult, archive
from cometmq.spark.pipelines.archive.checksum import CHECKED_COLUMNS, Checksum
from cometmq.spark.pipelines.archive.compact import compact
from cometmq.spark.pipelines.archive.manifest import SNAPSHOT_EVERY, Manifest
from cometmq.spark.pipelines.archive.read import ArchiveSlice, archive_files
from cometmq.spark.pipelines.archive.source import DirectorySource
from cometmq.spark.pipelines.archive.verify import verify

SMALL = ArchiveOptions(rows_per_file=100)
POINTS = (
    "before-tasks",
    "files-written",
    "before-commit",
    "committed",
    "old-files-deleted",
    "one-moved",
    "moved",
)


class Killed(BaseException):
    """What ends a run in a test; nothing catches it."""


def killer(point: str, nth: int) -> tuple[Callable[[str], None], list[str]]:
    """A hook that ends the run the nth time a point is passed, and the points it saw."""
    seen: list[str] = []

    def on_point(name: str) -> None:
        seen.append(name)
        if seen.count(point) == nth and name == point:
            raise Killed(point)

    return on_point, seen


def run(
    store: str,
    root: Path,
    options: ArchiveOptions = SMALL,
    *,
    topics: list[str] | None = None,
    on_point: Callable[[str], None] = lambda name: None,
) -> ArchiveResult:
    """One run of the pipeline without a JVM."""
    clock = itertools.count(1_700_000_000_000)
    return archive(
        LocalSpark(),
        DirectorySource(store, "broker-a"),
        root,
        topics,
        options,
        now_ms=lambda: next(clock),
        on_point=on_point,
    )


def rows_of(root: Path) -> list[tuple[Any, ...]]:
    """(topic, queue, offset, body, tags, keys, stored) of all rows, read by the manifest."""
    return sorted(_rows(archive_files(root)))


def _rows(paths: list[Path]) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for path in paths:
        # A file that was committed and not yet moved lies elsewhere.
        folders = [part for part in path.parts if part.startswith("topic=")]
        topic = folders[0] if folders else "topic=Flights"
        table = parquet.read_table(path, partitioning=None)
        found += _tuples(topic.removeprefix("topic="), table)
    return found


def _tuples(topic: str, table: Any) -> list[tuple[Any, ...]]:
    names = ("queueId", "queueOffset", "body", "tags", "keys", "storeTimestamp")
    columns = [table.column(name).to_pylist() for name in names]
    return [(topic, *row) for row in zip(*columns, strict=True)]


def expected_rows(store: str, topics: tuple[str, ...] = ("Flights",)) -> list[tuple[Any, ...]]:
    """The same of a store."""
    rows: list[tuple[Any, ...]] = []
    for topic in topics:
        rows += _tuples(topic, arrow.scan(store, topic=topic).read_all())
    return sorted(rows, key=str)


def in_folders(root: Path) -> list[Path]:
    """What a reader of the folders sees."""
    return sorted(root.glob("date=*/topic=*/*.parquet"))


def test_all_columns_arrive_by_date_and_topic(tmp_path: Path) -> None:
    """Every column but the topic (a folder's name) is in the files, by date of the store time."""
    store = fill(tmp_path / "store", some_days(400))
    result = run(store, tmp_path / "archive")
    assert (result.rows, result.rows_by_topic) == (400, {"Flights": 400})
    assert result.rows_by_date == {"2013-01-01": 200, "2013-01-02": 200}
    root = tmp_path / "archive"
    assert sorted(rows_of(root), key=str) == expected_rows(store)
    assert in_folders(root) == sorted(archive_files(root))
    assert {path.parent.parent.name for path in in_folders(root)} == {
        "date=2013-01-01",
        "date=2013-01-02",
    }
    whole = arrow.scan(store, topic="Flights", include_properties=True, columns=arrow.COLUMNS)
    wanted = whole.read_all().sort_by([("queueId", "ascending"), ("queueOffset", "ascending")])
    got = pa.concat_tables(
        [parquet.read_table(path, partitioning=None) for path in archive_files(root)]
    ).sort_by([("queueId", "ascending"), ("queueOffset", "ascending")])
    for name in got.column_names:
        if name != "broker":
            assert got.column(name).to_pylist() == wanted.column(name).to_pylist(), name
    assert set(got.column("broker").to_pylist()) == {"broker-a"}


def test_other_readers_read_the_folders(tmp_path: Path) -> None:
    """pyarrow's own dataset finds date and topic in the folder names, percent signs included."""
    store = fill(tmp_path / "store", some_days(20, topic="%RETRY%group"))
    run(store, tmp_path / "archive", topics=["%RETRY%group"])
    table = dataset.dataset(tmp_path / "archive", partitioning="hive").to_table()
    assert set(table.column("topic").to_pylist()) == {"%RETRY%group"}
    assert table.num_rows == 20


def test_the_next_run_goes_on(tmp_path: Path) -> None:
    """A second run archives only what came since; a third without news changes nothing."""
    store = fill(tmp_path / "store", some_days(90))
    root = tmp_path / "archive"
    assert run(store, root).rows == 90
    fill(tmp_path / "store", some_days(60, start=90))
    again = run(store, root)
    assert (again.rows, again.version) == (60, 2)
    assert run(store, root).version == 2
    assert sorted(rows_of(root), key=str) == expected_rows(store)


@pytest.mark.parametrize("point", POINTS)
def test_the_next_run_continues_after_a_run_that_dies(point: str, tmp_path: Path) -> None:
    """Whatever the point: what is visible is a part without repeats, and the next run completes."""
    store = fill(tmp_path / "store", some_days(900))
    root = tmp_path / "archive"
    on_point, seen = killer(point, 2)
    with pytest.raises(Killed):
        run(store, root, on_point=on_point)
    assert seen.count(point) == 2
    everything = expected_rows(store)
    for paths in (archive_files(root), in_folders(root)):
        rows = _rows(paths)
        assert len(rows) == len(set(rows))
        assert set(rows) < set(everything)
    run(store, root)
    assert sorted(rows_of(root), key=str) == everything
    assert in_folders(root) == sorted(archive_files(root))
    assert not (root / "_temporary").exists()
    assert verify(LocalSpark(), root, DirectorySource(store, "broker-a")).faults == []


KILL = """
import os, signal, sys
from tests.unit.spark.pipelines.archive.test_archive import run
from pathlib import Path
point, nth, store, root = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
seen = []
def on_point(name):
    seen.append(name)
    if name == point and seen.count(point) == nth:
        os.kill(os.getpid(), signal.SIGKILL)
run(store, Path(root), on_point=on_point)
"""


@pytest.mark.timeout(240)  # it starts an interpreter
@pytest.mark.parametrize("point", ["files-written", "committed", "one-moved"])
def test_a_killed_process_leaves_what_the_next_completes(point: str, tmp_path: Path) -> None:
    """The same with SIGKILL: the lock goes with the process, and no row is lost or repeated."""
    store = fill(tmp_path / "store", some_days(900))
    root = tmp_path / "archive"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    died = subprocess.run(
        [sys.executable, "-c", KILL, point, "2", store, str(root)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    rows = rows_of(root)
    assert 0 < len(rows) == len(set(rows)) < 900
    run(store, root)
    assert sorted(rows_of(root), key=str) == expected_rows(store)
    assert in_folders(root) == sorted(archive_files(root))


@pytest.mark.parametrize("point", ["before-commit", "committed", "old-files-deleted", "one-moved"])
def test_compaction_that_dies_loses_nothing(point: str, tmp_path: Path) -> None:
    """Small files become one; a reader of manifest or folders never sees a row twice."""
    store = fill(tmp_path / "store", some_days(600))
    root = tmp_path / "archive"
    run(store, root)
    before = rows_of(root)
    assert len(in_folders(root)) > 4
    on_point, seen = killer(point, 1)
    with pytest.raises(Killed):
        compact(LocalSpark(), root, rows_per_file=1_000, now_ms=lambda: 5, on_point=on_point)
    assert point in seen
    assert rows_of(root) == before
    visible = _rows(in_folders(root))
    assert len(visible) == len(set(visible))
    result = compact(LocalSpark(), root, rows_per_file=1_000, now_ms=lambda: 5)
    assert rows_of(root) == before
    assert len(in_folders(root)) == 2
    assert result.files_after == (0 if point != "before-commit" else 2)
    outcome = verify(LocalSpark(), root, DirectorySource(store, "broker-a"))
    assert (outcome.faults, outcome.compared_rows) == ([], 600)


@pytest.mark.parametrize("rows", [1, 3, 7, 64, 1_000])
def test_checksums_do_not_know_batches(rows: int, tmp_path: Path) -> None:
    """However rows are cut, from a store or out of Parquet, the checksum is that of the rows."""
    store = fill(tmp_path / "store", some_days(300, queues=1))
    table = arrow.scan(store, topic="Flights").read_all()
    whole = Checksum()
    whole.add(table)
    cut = Checksum()
    for first in range(0, table.num_rows, rows):
        for batch in table.slice(first, rows).to_batches():
            cut.add(batch)
    assert (cut.text, cut.rows, cut.first_us) == (whole.text, 300, whole.first_us)
    path = tmp_path / "rows.parquet"
    parquet.write_table(table.select(CHECKED_COLUMNS), path, row_group_size=rows)
    read = Checksum()
    read.add(parquet.read_table(path))
    assert read.text == whole.text
    less = Checksum()
    less.add(table.slice(0, 299))
    assert less.text != whole.text


def test_ranges_grow_together_when_files_do(tmp_path: Path) -> None:
    """After a compaction each queue of a date is one range, with a checksum of its own."""
    store = fill(tmp_path / "store", some_days(600, days=1))
    root = tmp_path / "archive"
    run(store, root)
    compact(LocalSpark(), root, rows_per_file=10_000, now_ms=lambda: 5)
    (file,) = Manifest(root).read().files.values()
    assert [(one.queue_id, one.start, one.end, one.rows) for one in file.ranges] == [
        (0, 0, 200, 200),
        (1, 0, 200, 200),
        (2, 0, 200, 200),
    ]


def test_json_bodies_become_columns(tmp_path: Path) -> None:
    """Fields of the schema are columns; what is no such JSON gives nulls and is counted."""
    bodies = [b'{"a": 1, "b": "x", "more": [1]}', b"no json", b'{"b":\n "y"}', b"", b'{"a": "z"}']
    puts = [Put("T", 0, body or b" ", 1_700_000_000_000 + n) for n, body in enumerate(bodies)]
    store = fill(tmp_path / "store", puts)
    from cometmq.spark.pipelines.archive.source import DirectorySource as Source
    from cometmq.spark.pipelines.archive.write import WriteTask, write

    queue = Source(store, "b").queues("T")[0]
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    root = tmp_path / "archive"
    spans = ((queue, 0, len(bodies)),)
    task = WriteTask(str(root), "run", Source(store, "b"), spans, "FAILFAST", "zstd", schema, "j_")
    (file,) = write(task)["files"]
    table = parquet.read_table(root / file["staged"], partitioning=None)
    assert table.column("j_a").to_pylist() == [1, None, None, None, None]
    assert table.column("j_b").to_pylist() == ["x", None, "y", None, None]
    assert file["json_failed"] == 3


def test_what_expired_unarchived_is_an_error_or_a_known_gap(tmp_path: Path) -> None:
    """Nothing is skipped in silence: a refusal first, and with the option a gap in the manifest."""
    store = fill(tmp_path / "store", some_days(30, queues=1))
    root = tmp_path / "archive"
    run(store, root)

    class Expired(DirectorySource):
        """The same store, as if retention had taken what came after the archive."""

        def bounds(self, queues: Any) -> Any:
            """Ten offsets are gone."""
            return {queue: (40, end) for queue, (_, end) in super().bounds(queues).items()}

    fill(tmp_path / "store", some_days(30, queues=1, start=30))
    source = Expired(store, "broker-a")
    with pytest.raises(StoreError, match="10 messages expired before they were archived"):
        archive(LocalSpark(), source, root, None, SMALL, now_ms=lambda: 1)
    options = ArchiveOptions(rows_per_file=100, allow_gaps=True)
    result = archive(LocalSpark(), source, root, None, options, now_ms=lambda: 1)
    assert (result.rows, result.expired) == (20, 10)
    (gap,) = Manifest(root).read().gaps
    assert (gap["queue"], gap["start"], gap["end"]) == ("broker-a:0", 30, 40)
    assert verify(LocalSpark(), root).faults == []


def test_another_cluster_is_noticed(tmp_path: Path) -> None:
    """A topic that is shorter than what is archived of it is not the same topic."""
    root = tmp_path / "archive"
    run(fill(tmp_path / "store", some_days(60)), root)
    other = fill(tmp_path / "other", some_days(30))
    with pytest.raises(StoreError, match="the topic was created again, or this is another cluster"):
        run(other, root)


def damage(path: Path) -> None:
    """Change a byte in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0xFF
    path.write_bytes(data)


def test_verify_finds_what_is_wrong(tmp_path: Path) -> None:
    """A changed file, a missing file, a stray file: each in one sentence naming it."""
    store = fill(tmp_path / "store", some_days(600))
    root = tmp_path / "archive"
    run(store, root)
    source = DirectorySource(store, "broker-a")
    assert verify(LocalSpark(), root, source).faults == []
    changed, missing, *_ = archive_files(root)
    damage(changed)
    missing.unlink()
    (changed.parent / "stray.parquet").write_bytes(b"PAR1")
    faults = verify(LocalSpark(), root, source).faults
    assert any(changed.name in fault and "was changed" in fault for fault in faults)
    assert any(missing.name in fault and "is missing" in fault for fault in faults)
    assert any("stray.parquet is in no commit" in fault for fault in faults)


def test_verify_finds_another_content_at_the_source(tmp_path: Path) -> None:
    """One other body at the broker is found by the checksum of its range."""
    puts = some_days(60, queues=1)
    root = tmp_path / "archive"
    run(fill(tmp_path / "store", puts), root)
    puts[7] = puts[7]._replace(body=puts[7].body.replace(b"7", b"8"))
    other = fill(tmp_path / "other", puts)
    faults = verify(LocalSpark(), root, DirectorySource(other, "broker-a")).faults
    assert len(faults) == 1
    assert "differ from the source: checksum" in faults[0]


@pytest.mark.parametrize("what", ["changed", "missing", "no json"])
def test_a_damaged_manifest_is_refused(what: str, tmp_path: Path) -> None:
    """Reading and writing stop with the file's name; nothing is guessed."""
    store = fill(tmp_path / "store", some_days(30))
    root = tmp_path / "archive"
    run(store, root)
    fill(tmp_path / "store", some_days(30, start=30))
    run(store, root)
    first = root / "_manifest" / f"{1:020}.json"
    if what == "changed":
        document = json.loads(first.read_text())
        document["commit"]["add"][0]["rows"] += 1
        first.write_text(json.dumps(document))
    elif what == "missing":
        first.unlink()
    else:
        first.write_text("{")
    files = in_folders(root)
    for attempt in (lambda: archive_files(root), lambda: run(store, root)):
        with pytest.raises(StoreCorrupt, match=first.name):
            attempt()
    assert in_folders(root) == files


def test_many_commits_are_read_from_the_last_snapshot(tmp_path: Path) -> None:
    """A reader folds a bounded number of commits, and the state is the same."""
    root = tmp_path / "archive"
    puts = some_days(300, queues=1)
    store = ""
    for number in range(SNAPSHOT_EVERY + 6):
        store = fill(tmp_path / "store", puts[number * 2 : number * 2 + 2])
        run(store, root)
    for version in range(1, SNAPSHOT_EVERY):
        (root / "_manifest" / f"{version:020}.json").unlink()
    assert sorted(rows_of(root), key=str) == expected_rows(store)
    assert run(store, root).rows == 0


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    """A second writer is told who holds the archive."""
    store = fill(tmp_path / "store", some_days(30))
    root = tmp_path / "archive"
    run(store, root)
    with Manifest(root), pytest.raises(StoreLocked, match=f"pid {os.getpid()}"):
        run(store, root)
    assert run(store, root).rows == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (ArchiveOptions(compression="zsdt"), "did you mean 'zstd'"),
        (ArchiveOptions(mode="LENIENT"), "FAILFAST or DROPMALFORMED"),
        (ArchiveOptions(rows_per_file=0), "must be positive"),
    ],
)
def test_wrong_options_are_named_before_anything_is_written(
    options: ArchiveOptions, text: str, tmp_path: Path
) -> None:
    """One sentence, and no folder."""
    store = fill(tmp_path / "store", some_days(3))
    with pytest.raises(ConfigError, match=text):
        run(store, tmp_path / "archive", options)
    assert not (tmp_path / "archive").exists()


def test_wrong_places_are_named_before_anything_is_written(tmp_path: Path) -> None:
    """An unknown topic, no store, a folder that is in use, a folder that is no archive."""
    store = fill(tmp_path / "store", some_days(3))
    with pytest.raises(StoreError, match="did you mean 'Flights'"):
        run(store, tmp_path / "archive", topics=["Fligths"])
    with pytest.raises(StoreError, match="is not a directory"):
        run(str(tmp_path / "no"), tmp_path / "archive", topics=["Flights"])
    assert not (tmp_path / "archive").exists()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "letter.txt").write_text("mine")
    with pytest.raises(ConfigError, match="neither an archive nor empty"):
        run(store, tmp_path / "used")
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["letter.txt"]
    with pytest.raises(ConfigError, match="holds no archive"):
        archive_files(tmp_path / "used")


def test_another_json_schema_is_refused(tmp_path: Path) -> None:
    """An archive's columns stay as they were."""
    store = fill(tmp_path / "store", some_days(3))
    run(store, tmp_path / "archive")
    with pytest.raises(ConfigError, match="its columns stay as they are"):
        run(store, tmp_path / "archive", ArchiveOptions(json_prefix="x"))


def test_corrupt_records_stop_a_run_or_are_counted(tmp_path: Path) -> None:
    """FAILFAST names file and position and archives nothing; DROPMALFORMED counts."""
    store = fill(tmp_path / "store", some_days(60, queues=1))
    log = next((tmp_path / "store" / "commitlog").iterdir())
    data = bytearray(log.read_bytes())
    place = data.index(b'"number": 30')
    # The body's length, before it, says more than the record holds.
    data[place - 4 : place - 2] = b"\x7f\xff"
    log.write_bytes(data)
    root = tmp_path / "archive"
    with pytest.raises(StoreCorrupt, match="position"):
        run(store, root)
    assert archive_files(root) == []
    result = run(store, root, ArchiveOptions(mode="DROPMALFORMED"))
    assert (result.rows, result.corrupt) == (59, 1)
    assert verify(LocalSpark(), root).faults == []


def test_slices_choose_files_by_topic_and_time(tmp_path: Path) -> None:
    """What cannot hold the slice's messages is not read; an unknown topic is named."""
    store = fill(tmp_path / "store", [*some_days(40), *some_days(40, topic="Bills", days=1)])
    root = tmp_path / "archive"
    run(store, root, ArchiveOptions(rows_per_file=40))
    first_day = archive_files(root, ArchiveSlice(ending_ms=1_356_998_400_000 + 86_400_000))
    assert {path.parent.parent.name for path in first_day} == {"date=2013-01-01"}
    bills = archive_files(root, ArchiveSlice(topics=("Bills",)))
    assert {path.parent.name for path in bills} == {"topic=Bills"}
    with pytest.raises(ConfigError, match="did you mean 'Bills'"):
        archive_files(root, ArchiveSlice(topics=("Bill",)))


def test_progress_counts_offsets_and_ends_at_the_total(tmp_path: Path) -> None:
    """What the caller sees while it runs."""
    store = fill(tmp_path / "store", some_days(900))
    with RunProgress("archive", quiet=True) as progress:
        archive(
            LocalSpark(),
            DirectorySource(store, "broker-a"),
            tmp_path / "archive",
            None,
            SMALL,
            now_ms=lambda: 1,
            progress=progress,
        )
    assert (progress.rows, progress.total) == (900, 900)
    assert set(progress.offsets.values()) == {300}


def test_no_route_is_passed_on_as_it_is() -> None:
    """What a task meets arrives with its kind and its sentence."""
    from cometmq.spark.pipelines.archive.tasks import run_tasks

    def fail(item: int) -> int:
        if item == 1:
            raise NoRoute("no route for Flights")
        if item == 2:
            raise OSError("disk")
        return item

    assert run_tasks(LocalSpark(), fail, [3, 4]) == [3, 4]
    with pytest.raises(NoRoute, match="no route for Flights"):
        run_tasks(LocalSpark(), fail, [0, 1])
    with pytest.raises(StoreError, match="disk"):
        run_tasks(LocalSpark(), fail, [2])


@pytest.mark.parametrize("compression", ["zstd", "snappy", "lz4", "gzip", "none"])
@pytest.mark.parametrize("is_text", [True, False])
def test_bodies_that_do_not_shrink_are_not_squeezed(
    tmp_path: Path, compression: str, is_text: bool
) -> None:
    """Packed bodies are written as they are, all else as asked; both are read by anybody."""
    chance = random.Random(3)
    body = b"order " * 30
    puts = [
        Put("Packed", 0, body if is_text else chance.randbytes(180), NEW_YEAR_MS + number, "A", "k")
        for number in range(400)
    ]
    store = fill(tmp_path / "store", puts)
    root = tmp_path / "archive"
    run(store, root, ArchiveOptions(compression=compression))
    (path,) = archive_files(root)
    group = parquet.ParquetFile(path).metadata.row_group(0)
    codecs = {
        group.column(place).path_in_schema: group.column(place).compression
        for place in range(group.num_columns)
    }
    plain = "UNCOMPRESSED"
    asked = {"none": plain}.get(compression, compression.upper())
    assert codecs.pop("body") == (asked if is_text else plain)
    assert set(codecs.values()) == {asked}
    # Without topic and body; the map has two.
    assert len(codecs) == len(COLUMNS) - 1
    assert {row[3] for row in rows_of(root)} == {put.body for put in puts}
