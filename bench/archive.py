"""Measures how fast the archive pipeline writes all columns, with properties, to Parquet.

    .venv/bin/python -m bench.archive [--live] [--records 2000000] [--rounds 3] [--master local[2]]

Without `--live` from a store directory that it makes; with it from a broker that shares the
machine. Bodies have 100 to 200 bytes, zstd level 1, files on the temporary folder's disk. Every
figure stands beside the processor time of the whole process tree and the load of the machine.
`writer` is the work of one executor, alone on one core, without Spark.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.scan_store import make_store
from bench.spark_sources import TOPIC, conditions, cpu_s, filled, measure
from cometmq.spark import session
from cometmq.spark.pipelines.archive.archive import ArchiveOptions, archive
from cometmq.spark.pipelines.archive.source import ArchiveSource, ClusterSource, DirectorySource
from cometmq.spark.pipelines.archive.verify import verify
from cometmq.spark.pipelines.archive.write import WriteTask, write


def now_ms() -> int:
    """The machine's clock."""
    return time.time_ns() // 1_000_000  # noqa: TID251 - stamps the commits of this run


def writer(source: ArchiveSource, topic: str, records: int, folder: Path) -> None:
    """Measure the work of one task in this process."""
    queues = source.bounds(source.queues(topic))
    spans = tuple((queue, start, end) for queue, (start, end) in queues.items())
    task = WriteTask(str(folder), "bench", source, spans, "FAILFAST", "zstd")
    for _ in range(2):
        begun, begun_s = cpu_s(), time.perf_counter()
        write(task)
        spent_s, took_s = cpu_s() - begun, time.perf_counter() - begun_s
        print(
            f"  writer alone: {records / took_s:>11,.0f} rows/s,"
            f" {records / spent_s:,.0f} rows per second of processor time",
            flush=True,
        )
        shutil.rmtree(folder)


def pipeline(
    spark: Any, source: ArchiveSource, topic: str, records: int, rounds: int, to: Path
) -> None:
    """Measure whole runs into an empty folder, with commits, then verify."""
    options = ArchiveOptions(rows_per_file=max(20_000, records // 8))

    def run() -> None:
        shutil.rmtree(to, ignore_errors=True)
        result = archive(spark, source, to, [topic], options, now_ms=now_ms)
        assert result.rows == records, result

    measure("archive, all columns", records, run, rounds)
    outcome = verify(spark, to, source)
    assert outcome.faults == [], outcome.faults
    size_bytes = sum(path.stat().st_size for path in to.rglob("*.parquet"))
    print(f"verified against its source: {outcome.compared_rows:,} rows, {size_bytes:,} bytes")


def main() -> None:
    """Make the messages, measure, remove the files."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--live", action="store_true")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--without-spark", action="store_true", help="only the writer alone")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cometmq-bench-") as name:
        folder = Path(name)
        if asked.live:
            with filled(folder, asked.records) as name_server:
                everything(asked, ClusterSource(name_server), TOPIC, folder)
        else:
            make_store(folder / "store", asked.records)
            everything(asked, DirectorySource(str(folder / "store"), "broker-a"), TOPIC, folder)


def everything(asked: argparse.Namespace, source: ArchiveSource, topic: str, folder: Path) -> None:
    """Measure the writer alone, then the pipeline."""
    writer(source, topic, asked.records, folder / "alone")
    if asked.without_spark:
        return
    spark = session("bench archive", master=asked.master, **{"spark.driver.memory": "1g"})
    conditions(spark)
    pipeline(spark, source, topic, asked.records, asked.rounds, folder / "archive")
    spark.stop()


if __name__ == "__main__":
    main()
