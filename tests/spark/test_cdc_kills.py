"""A followed binlog whose driver and JVM are killed while a batch is applied."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet
import pytest
from tests.spark.test_cdc_pipeline import bodies, canal, table_rows
from tests.unit.spark.generated_events import canal_binlog

from cometmq.spark.pipelines.cdc.merger import Merger
from cometmq.spark.pipelines.cdc.table import POINTS, ParquetTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 400
FILES = 4
JOB = """
import os, signal, sys
from cometmq.spark import session
from cometmq.spark.pipelines.cdc.merger import Merger
from cometmq.spark.pipelines.cdc.table import ParquetTable
from cometmq.spark.pipelines.base.following import follow

source, to, point, hit = sys.argv[1:]
batches = 0

def at(name):
    global batches
    batches += name == point
    if name == point and batches == 2:
        open(hit, "w").close()
        os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

spark = session("cdc-kills", **{"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": 2})
table = ParquetTable(to, at=at)
reader = spark.readStream.schema("body binary").option("maxFilesPerTrigger", 1)
with table.locked():
    merger = Merger(table)
    follow(reader.parquet(source), merger.take, checkpoint=to + ".checkpoint", once=True)
print("repeated", merger.repeated_batches)
spark.stop()
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that a test started; their groups are ended whatever happens."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.communicate(timeout=WAIT_S)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("point", POINTS)
def test_killed_at(point: str, job: list[subprocess.Popen[str]], tmp_path: Path) -> None:
    """The driver and its JVM die in the second batch; the next run ends with the right table."""
    log = canal_binlog(31, 160)
    events = log.shaken(32, repeats=40)
    source, hit = tmp_path / "events", tmp_path / "hit"
    source.mkdir()
    part = len(events) // FILES
    for number in range(FILES):
        table = pa.table({"body": events[number * part : (number + 1) * part]})
        pyarrow.parquet.write_table(table, source / f"{number}.parquet")

    def run(at: str) -> tuple[int, str]:
        arguments = [str(source), str(tmp_path / "orders"), at, str(hit)]
        process = subprocess.Popen(
            [sys.executable, "-c", JOB, *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        job.append(process)
        out, _ = process.communicate(timeout=WAIT_S)
        return process.returncode, out

    code, _ = run(point)
    assert (code, hit.exists()) == (-signal.SIGKILL, True)
    code, out = run("nowhere")
    assert code == 0
    assert f"repeated {int(point == 'pointed')}" in out
    assert table_rows(tmp_path / "orders") == log.rows


class Ended(Exception):
    """Ends a run at a point."""


def test_ended_at_every_point_of_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    """Ended at every point of a batch: repeated when it was not visible, left out when it was.

    A late update does not bring a deleted row back, and columns get wider as they must.
    """
    first = [
        canal("INSERT", 1, [{"id": "1", "n": "1"}, {"id": "2", "n": "2"}]),
        canal("DELETE", 5, [{"id": "1", "n": "9"}]),
    ]
    late = canal("UPDATE", 3, [{"id": "1", "n": "8"}], old=[{"n": "1"}])
    wide = canal("UPDATE", 6, [{"id": "2", "n": "2.5", "c": "x"}], n="double")
    ddl = json.dumps({"isDdl": True, "type": "ALTER", "sql": "ALTER TABLE t", "es": 6, "id": 1})
    second = bodies(spark, [late, wide, ddl.encode(), b"junk"])
    begun = tmp_path / "begun"
    Merger(ParquetTable(begun)).take(bodies(spark, first), "q", 0)
    assert table_rows(begun) == {2: {"id": 2, "n": 2}}
    for point in POINTS:
        to = tmp_path / point
        shutil.copytree(begun, to)
        hits: list[str] = []

        def end(name: str, point: str = point, hits: list[str] = hits) -> None:
            if name == point:
                hits.append(name)
                raise Ended

        with pytest.raises(Ended):
            Merger(ParquetTable(to, at=end)).take(second, "q", 1)
        assert hits == [point]
        is_visible = point == "pointed"
        assert (table_rows(to)[2]["n"] == 2.5) is is_visible
        again = Merger(ParquetTable(to))
        again.take(second, "q", 1)
        assert again.repeated_batches == int(is_visible)
        assert table_rows(to) == {2: {"id": 2, "n": 2.5, "c": "x"}}
        if not is_visible:
            assert again.shape == [
                "statement: ALTER TABLE t",
                "column c is new (string)",
                "column n was bigint and is double",
            ]
            assert (again.upserts, again.bad) == (2, 1)
            assert "not JSON" in again.bad_reasons[0]["example"]
