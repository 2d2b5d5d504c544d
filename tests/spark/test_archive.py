"""Archives on real Spark from a real broker: written, resumed, verified, read, replayed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from tests.interop.waiting import wait_until
from tests.spark.clusters import Cluster, new_topic

from cometmq.arrow import scan
from cometmq.cli.demo.flights import read_flights
from cometmq.cli.main import root
from cometmq.errors import ConfigError, ConnectFailed, NoRoute, StoreCorrupt, StoreError
from cometmq.model.message import Message
from cometmq.model.queue import MessageQueue
from cometmq.spark.pipelines.archive.archive import ArchiveOptions, archive
from cometmq.spark.pipelines.archive.compact import compact
from cometmq.spark.pipelines.archive.read import ArchiveSlice, archive_files, read_archive
from cometmq.spark.pipelines.archive.source import ClusterSource, DirectorySource
from cometmq.spark.pipelines.archive.verify import verify
from cometmq.spark.pipelines.replay import replay, replay_preview

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLIGHTS = 20_000
QUEUES = 4
DDL = "carrier string, origin string, distance bigint, dep_delay double"


@pytest.fixture(scope="module")
def flights(cluster: Cluster) -> str:
    """A topic with the first 20,000 of the demo's flights; tagged, keyed, some with a group."""
    topic = cluster.create(QUEUES, prefix="Flights")
    by_queue: dict[int, list[Message]] = {}
    for number, flight in enumerate(read_flights(limit=FLIGHTS)):
        message = Message(
            topic,
            flight.body,
            tags=flight.carrier,
            keys=flight.key,
            properties={"number": str(number)},
            message_group=f"plane{number % QUEUES}",
        )
        by_queue.setdefault(number % QUEUES, []).append(message)
    for queue_id, messages in by_queue.items():
        queue = MessageQueue(topic, cluster.broker_name, queue_id)
        for first in range(0, len(messages), 1_000):
            cluster.producer.send_batch(messages[first : first + 1_000], queue=queue)
    return topic


def wait_for_files(cluster: Cluster, topic: str) -> None:
    """A running broker writes its queue files about a second behind its log."""

    def rows() -> int:
        try:
            return sum(
                batch.num_rows
                for batch in scan(cluster.store_path, topic=topic, columns=["queueOffset"])
            )
        except StoreError:
            return 0

    wait_until(lambda: rows() == FLIGHTS, lambda: f"the queue files hold {rows()} of {FLIGHTS}")


def run(spark: SparkSession, cluster: Cluster, folder: Path, topic: str, **options: Any) -> Any:
    """One run from the running broker."""
    return archive(
        spark,
        ClusterSource(cluster.name_server),
        folder,
        [topic],
        ArchiveOptions(**options),
        now_ms=lambda: 1,
    )


def test_a_live_topic_is_archived_and_verified(
    spark: SparkSession, cluster: Cluster, flights: str, tmp_path: Path
) -> None:
    """All rows, JSON columns, no rest; a second run finds nothing; the broker says the same."""
    folder = tmp_path / "archive"
    result = run(spark, cluster, folder, flights, json_schema=DDL, rows_per_file=6_000)
    assert (result.rows, result.files, result.json_failed) == (FLIGHTS, 4, 0)
    assert run(spark, cluster, folder, flights, json_schema=DDL).rows == 0
    frame = read_archive(spark, folder)
    expected: dict[str, int] = {}
    distance = 0
    for flight in read_flights(limit=FLIGHTS):
        expected[flight.carrier] = expected.get(flight.carrier, 0) + 1
        distance += json.loads(flight.body)["distance"]
    counts = {row["carrier"]: row["count"] for row in frame.groupBy("carrier").count().collect()}
    assert counts == expected
    assert frame.selectExpr("sum(distance)").first()[0] == distance
    assert {row["topic"] for row in frame.select("topic").distinct().collect()} == {flights}
    outcome = verify(spark, folder, ClusterSource(cluster.name_server))
    assert outcome.faults == []
    assert (outcome.rows, outcome.compared_rows) == (FLIGHTS, FLIGHTS)


@pytest.mark.full
def test_archives_of_topic_and_store_are_equal(
    spark: SparkSession, cluster: Cluster, flights: str, tmp_path: Path
) -> None:
    """What the broker sends is what its store directory holds: each verifies against the other."""
    live, stored = tmp_path / "live", tmp_path / "stored"
    store = DirectorySource(cluster.store_path, cluster.broker_name)
    wait_for_files(cluster, flights)
    run(spark, cluster, live, flights, rows_per_file=2_000)
    archive(spark, store, stored, [flights], now_ms=lambda: 1)
    assert verify(spark, live, store).faults == []
    assert verify(spark, stored, ClusterSource(cluster.name_server)).faults == []
    small = len(archive_files(live))
    merged = compact(spark, live, rows_per_file=FLIGHTS, now_ms=lambda: 2)
    assert (merged.files_before, merged.files_after) == (small, 1)
    left, right = (read_archive(spark, folder).drop("date") for folder in (live, stored))
    names = [name for name in left.columns if name != "properties"]
    assert left.select(names).exceptAll(right.select(names)).count() == 0
    assert left.count() == right.count() == FLIGHTS


@pytest.mark.full
def test_a_slice_is_counted_and_replayed_in_order(
    spark: SparkSession, cluster: Cluster, flights: str, tmp_path: Path
) -> None:
    """Key, tag and predicate choose; each source queue keeps its order; twice sends once."""
    folder = tmp_path / "archive"
    run(spark, cluster, folder, flights)
    target = cluster.create(2, prefix="Again")
    chosen = ArchiveSlice(tags=("UA", "AA"), where="CAST(properties['number'] AS int) < 4000")
    wanted = [
        number
        for number, flight in enumerate(read_flights(limit=4_000))
        if flight.carrier in {"UA", "AA"}
    ]
    rows = replay_preview(spark, folder, chosen, target)
    assert sum(row["messages"] for row in rows) == len(wanted)
    assert len(rows) == QUEUES
    settings: dict[str, Any] = {"name_server": cluster.name_server, "target": target}
    result = replay(spark, folder, chosen, **settings)
    assert (result.sent, result.skipped) == (len(wanted), 0)
    again = replay(spark, folder, chosen, **settings)
    assert (again.sent, again.skipped) == (0, len(wanted))
    got = (
        spark.read.format("cometmq")
        .option("nameServer", cluster.name_server)
        .option("subscribe", target)
        .option("includeProperties", "true")
        .load()
        .orderBy("queueId", "queueOffset")
        .collect()
    )
    numbers = [int(row["properties"]["number"]) for row in got]
    assert sorted(numbers) == wanted
    for queue_id in range(2):
        for source in range(QUEUES):
            part = [
                int(row["properties"]["number"])
                for row in got
                if row["queueId"] == queue_id
                and int(row["properties"]["number"]) % QUEUES == source
            ]
            assert part == sorted(part)
    assert {row["properties"]["__SHARDINGKEY"] for row in got} == {
        f"plane{n}" for n in range(QUEUES)
    }


def test_what_is_wrong_is_told_before_anything_is_written(
    spark: SparkSession, cluster: Cluster, flights: str, tmp_path: Path
) -> None:
    """Unreachable name server, unknown topic, schema and predicate that are none, a lost file."""
    folder = tmp_path / "archive"
    with pytest.raises(ConnectFailed):
        archive(spark, ClusterSource("127.0.0.1:1"), folder, [flights], now_ms=lambda: 1)
    with pytest.raises(NoRoute):
        run(spark, cluster, folder, new_topic("Unknown"))
    with pytest.raises(ConfigError, match="JSON schema 'carrier strnig' is not one"):
        run(spark, cluster, folder, flights, json_schema="carrier strnig")
    with pytest.raises(ConfigError, match="also a column of the message"):
        run(spark, cluster, folder, flights, json_schema="tags string")
    assert not folder.exists()
    run(spark, cluster, folder, flights)
    with pytest.raises(ConfigError, match="predicate 'no_such_column = 1' is refused"):
        read_archive(spark, folder, ArchiveSlice(where="no_such_column = 1"))
    target = new_topic("Unknown")
    with pytest.raises(NoRoute):
        replay(spark, folder, ArchiveSlice(), name_server=cluster.name_server, target=target)
    archive_files(folder)[0].unlink()
    with pytest.raises(StoreCorrupt, match="files of the archive"):
        read_archive(spark, folder)


def test_the_commands_tell_the_same(
    spark: SparkSession, cluster: Cluster, flights: str, tmp_path: Path
) -> None:
    """archive, verify, compact, files, replay and their reports, from the command line."""
    assert spark is not None
    folder = str(tmp_path / "archive")
    page = tmp_path / "report.html"
    at = ["-n", cluster.name_server, "--topic", flights]

    def call(*words: str, code: int = 0) -> Any:
        result = CliRunner().invoke(
            root, ["pipeline", *words], catch_exceptions=False, standalone_mode=False
        )
        assert (result.return_value or 0) == code, result.output
        return result.stdout

    words = ["--to", folder, "--rows-per-file", "7000", "--json", "--report", str(page)]
    told = json.loads(call("archive", *at, *words))
    assert (told["rows"], told["is_good"], told["report"]) == (FLIGHTS, True, str(page))
    assert "class='plot'" in page.read_text(encoding="utf-8")
    told = json.loads(call("archive", "verify", folder, *at, "--json"))
    assert (told["compared_rows"], told["faults"]) == (FLIGHTS, [])
    assert call("archive", "files", folder).splitlines() == [str(p) for p in archive_files(folder)]
    told = json.loads(call("archive", "compact", folder, "--json"))
    assert told["files_after"] == 1
    text = call("replay", folder, "-n", cluster.name_server, "--tag", "UA", "--dry-run")
    assert "MESSAGES" in text
    assert "sent" not in text
    Path(archive_files(folder)[0]).write_bytes(b"PAR1")
    told = json.loads(call("archive", "verify", folder, "--offline", "--json", code=1))
    assert "was changed" in told["faults"][0]


KILL = """
import os, signal, sys
from cometmq.spark import session
from cometmq.spark.pipelines.archive.archive import ArchiveOptions, archive
from cometmq.spark.pipelines.archive.source import ClusterSource
point, name_server, topic, folder = sys.argv[1:5]
seen = []
def on_point(name):
    seen.append(name)
    if name == point and seen.count(point) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
spark = session("killed", **{"spark.driver.memory": "512m"})
options = ArchiveOptions(rows_per_file=1_000)
source = ClusterSource(name_server)
archive(spark, source, folder, [topic], options, now_ms=lambda: 1, on_point=on_point)
"""


@pytest.mark.full
@pytest.mark.parametrize("point", ["before-tasks", "files-written", "committed", "one-moved"])
def test_the_next_run_continues_after_a_killed_driver(
    spark: SparkSession, cluster: Cluster, flights: str, tmp_path: Path, point: str
) -> None:
    """After SIGKILL of the driver at a named point the next run completes without repetition."""
    folder = tmp_path / "archive"
    died = subprocess.run(
        [sys.executable, "-c", KILL, point, cluster.name_server, flights, str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    before = read_archive(spark, folder)
    assert 0 < before.count() == before.select("queueId", "queueOffset").distinct().count()
    run(spark, cluster, folder, flights)
    outcome = verify(spark, folder, ClusterSource(cluster.name_server))
    assert (outcome.faults, outcome.rows, outcome.compared_rows) == ([], FLIGHTS, FLIGHTS)
