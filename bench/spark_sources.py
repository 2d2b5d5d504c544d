"""Measures how fast Spark reads topics and stores, and the delay from message to row.

    .venv/bin/python -m bench.spark_sources store|prepared|live|stream|latency|soak|all

`store` reads a store directory without a broker.  `prepared` counts one batch of such a store that
a source yields again and again: this is the minimum cost of a Python source.  `live` and `stream`
read topics of a broker that shares the machine, in batches and as a stream; `latency` measures from
a message's store time to its row in the driver, at a trigger of 100 ms; `soak` reads a growing
topic and prints the memory of all processes.  Bodies have 100 to 200 bytes.  Every figure stands
beside the processor time of the whole process tree and the load of the machine.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psutil
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from bench.scan_store import BATCH_ROWS, make_store
from cometmq.arrow import COLUMNS, scan
from cometmq.model.message import Message
from cometmq.model.queue import MessageQueue
from cometmq.spark import session
from cometmq.spark.base.columns import schema_text
from cometmq.sync import Admin, Producer

FIVE = "topic string, queueId int, queueOffset bigint, body binary, storeTimestamp timestamp"
QUEUES = 4
TOPIC = "Bench"
WARM_BATCHES = 40
#: A broker that does not end by itself must not delay a result.
END_S = 30


def conditions(spark: Any) -> None:
    """Print the conditions that the figures depend on."""
    import pyarrow as pa

    java = spark._jvm.java.lang.System.getProperty("java.version")
    print(
        f"PySpark {spark.version}, Java {java}, pyarrow {pa.__version__},"
        f" Python {sys.version.split()[0]}, {spark.sparkContext.master},"
        f" {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )


def cpu_s() -> float:
    """Processor time of this process and all below it, so far."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def measure(what: str, rows: int, work: Callable[[], object], rounds: int) -> None:
    """Run `work` once to warm up, then `rounds` times; print rows a second and the median."""
    work()
    rates = []
    for _ in range(rounds):
        begun_s, cpu = time.perf_counter(), cpu_s()
        work()
        took_s = time.perf_counter() - begun_s
        rates.append(rows / took_s)
        print(
            f"  {what}: {rates[-1]:>11,.0f} rows/s, {cpu_s() - cpu:.2f} s of processor time,"
            f" load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
    print(f"{what}: median {median(rates):,.0f} rows/s", flush=True)


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """Run a name server and broker in one process of their own; yield the name server's address."""
    command = [sys.executable, "-m", "cometmq", "up", "--store", str(folder / "store")]
    with subprocess.Popen(
        [*command, "--name-server-port=0", "--broker-port=0", "--set", "brokerName=broker-a"],
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        ready = re.search(r"name server (\S+?),", server.stdout.readline())
        assert ready is not None
        try:
            yield ready[1]
        finally:
            server.terminate()
            try:
                server.wait(END_S)
            except subprocess.TimeoutExpired:
                print(f"the broker did not end within {END_S} s of SIGTERM: killed", flush=True)
                server.kill()


def fill(name_server: str, records: int, *, seed: int = 5) -> None:
    """Send records in batches of a thousand to the queues in turn."""
    chance = random.Random(seed)
    bodies = [chance.randbytes(chance.randint(100, 200)) for _ in range(1000)]
    with Producer("bench", name_server=name_server) as producer:
        for number in range(0, records, 1000):
            queue = MessageQueue(TOPIC, "broker-a", number // 1000 % QUEUES)
            producer.send_batch(
                [
                    Message(TOPIC, body, tags="ABCDE"[place % 5], keys=f"order-{number + place}")
                    for place, body in enumerate(bodies[: records - number])
                ],
                queue=queue,
            )


@contextmanager
def filled(folder: Path, records: int) -> Iterator[str]:
    """Run a broker whose topic holds the records."""
    with broker(folder) as name_server:
        with Admin(name_server=name_server) as admin:
            admin.create_topic(TOPIC, queue_count=QUEUES)
        begun_s = time.perf_counter()
        fill(name_server, records)
        print(f"{records:,} records sent in {time.perf_counter() - begun_s:.1f} s", flush=True)
        yield name_server


def reads(reader: Any, load: Callable[[Any], Any], records: int, rounds: int, folder: Path) -> None:
    """Measure batch reads of one source."""

    def count(narrow: Any) -> None:
        assert load(narrow).count() == records

    narrow = reader().schema(FIVE)
    whole = reader().option("includeProperties", "true")
    measure("count, 5 columns", records, lambda: count(narrow), rounds)
    measure("count, all columns", records, lambda: count(whole), rounds)
    measure(
        "noop, 5 columns",
        records,
        lambda: load(narrow).write.format("noop").mode("overwrite").save(),
        rounds,
    )
    target = str(folder / "parquet")
    measure(
        "Parquet, 5 columns",
        records,
        lambda: load(narrow).write.mode("overwrite").parquet(target),
        rounds,
    )


def run_store(spark: Any, arguments: argparse.Namespace, folder: Path) -> None:
    """Measure reads of a store directory, without a broker."""
    root = folder / "made"
    make_store(root, arguments.records)

    def reader() -> Any:
        options = spark.read.format("cometmq-store").option("topic", TOPIC)
        return options.option("mode", "FAILFAST")

    reads(reader, lambda made: made.load(str(root)), arguments.records, arguments.rounds, folder)


class PreparedReader(DataSourceReader):
    """One batch from a file until there are enough rows, in four parts."""

    def __init__(self, path: str, rows: int) -> None:
        self.path = path
        self.rows = rows

    def partitions(self) -> list[InputPartition]:
        """The number of rows of each part."""
        return [InputPartition(self.rows // 4)] * 4

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the batch again and again, and finally a part of it."""
        import pyarrow as pa

        with pa.OSFile(self.path) as file:
            batch = next(iter(pa.ipc.open_stream(file)))
        for done in range(0, partition.value, len(batch)):
            yield batch.slice(0, partition.value - done)


class PreparedSource(DataSource):
    """`format("prepared")`; options `path` and `rows`."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return "prepared"

    def reader(self, schema: Any) -> PreparedReader:
        """A reader whose columns are those of the file."""
        return PreparedReader(self.options["path"], int(self.options["rows"]))


def run_prepared(spark: Any, arguments: argparse.Namespace, folder: Path) -> None:
    """Count the rows of a source that does nothing."""
    import pyarrow as pa

    rows = arguments.records // 4 * 4
    make_store(folder / "made", BATCH_ROWS * QUEUES)
    spark.dataSource.register(PreparedSource)
    narrow = [column.split()[0] for column in FIVE.split(", ")]
    for what, columns, schema in (
        ("5 columns", narrow, FIVE),
        ("all columns", list(COLUMNS), schema_text()),
    ):
        path = folder / f"{len(columns)}.arrow"
        has_properties = "properties" in columns
        made = scan(
            folder / "made", topic=TOPIC, columns=columns, include_properties=has_properties
        )
        batch = next(iter(made))
        with pa.OSFile(str(path), "w") as file, pa.ipc.new_stream(file, batch.schema) as stream:
            stream.write_batch(batch)
        reader = spark.read.format("prepared").schema(schema).option("rows", str(rows))

        def count(reader: Any = reader, path: Path = path) -> None:
            assert reader.load(str(path)).count() == rows

        measure(f"prepared, count, {what}", rows, count, arguments.rounds)


def run_live(spark: Any, arguments: argparse.Namespace, folder: Path) -> None:
    """Measure batch reads of a running broker."""
    with filled(folder, arguments.records) as name_server:

        def reader() -> Any:
            options = spark.read.format("cometmq").option("nameServer", name_server)
            return options.option("subscribe", TOPIC)

        reads(reader, lambda made: made.load(), arguments.records, arguments.rounds, folder)


def stream_of(spark: Any, name_server: str, **options: str) -> Any:
    """A stream of the topic with five columns."""
    return (
        spark.readStream.format("cometmq")
        .schema(FIVE)
        .option("nameServer", name_server)
        .option("subscribe", TOPIC)
        .options(**options)
        .load()
    )


def run_stream(spark: Any, arguments: argparse.Namespace, folder: Path) -> None:
    """Measure a stream from the topic's beginning to its end, in batches of `--trigger-rows`."""
    with filled(folder, arguments.records) as name_server:
        number = iter(range(1000))

        def run() -> None:
            frame = stream_of(
                spark,
                name_server,
                startingOffsets="earliest",
                maxOffsetsPerTrigger=str(arguments.trigger_rows),
            )
            query = (
                frame.writeStream.format("noop")
                .option("checkpointLocation", str(folder / f"checkpoint{next(number)}"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()

        measure("stream to noop, 5 columns", arguments.records, run, arguments.rounds)


class Latencies:
    """The delays of a stream's rows in ms; the query is stopped between two batches."""

    def __init__(self) -> None:
        self.waited_ms: list[float] = []
        self.batches = 0
        self._lock = threading.Lock()
        self._is_over = False

    def take(self, frame: Any, _: int) -> None:
        """Note the delays of one micro-batch."""
        with self._lock:
            if self._is_over:
                return
            rows = frame.select("storeTimestamp").toPandas()["storeTimestamp"]
            now_ms = datetime.now(UTC).timestamp() * 1000
            self.waited_ms.extend(now_ms - row.timestamp() * 1000 for row in rows)
            self.batches += bool(len(rows))

    def end(self, query: Any) -> None:
        """Stop the query while none of its jobs runs.

        Spark 4.3 looks at the error of a cancelled job with a pattern that overflows the stack of
        the query's thread.
        """
        with self._lock:
            self._is_over = True
        query.stop()


def wait_until(what: str, is_met: Callable[[], bool], query: Any, limit_s: float = 60) -> None:
    """Poll until `is_met`; raise when the limit has passed or the query has ended."""
    deadline_s = time.monotonic() + limit_s
    while not is_met():
        if not query.isActive:
            raise SystemExit(f"{what}: the query ended: {query.exception()}")
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{what}: not within {limit_s:.0f} s; last: {query.lastProgress}")
        time.sleep(0.05)


def run_latency(spark: Any, arguments: argparse.Namespace, folder: Path) -> None:
    """Measure the delay from store time to the driver's row, at twenty messages a second."""
    seen = Latencies()
    with filled(folder, 1000) as name_server:
        query = (
            stream_of(spark, name_server)
            .writeStream.foreachBatch(seen.take)
            .option("checkpointLocation", str(folder / "checkpoint-latency"))
            .trigger(processingTime="100 milliseconds")
            .start()
        )
        # A stream from `latest` begins at the queues' ends when its first, empty batch is planned.
        wait_until("the first batch", lambda: bool(query.recentProgress), query)
        sent = 0
        with Producer("bench", name_server=name_server) as producer:

            def send(count: int) -> int:
                for number in range(count):
                    producer.send(Message(TOPIC, b"%d" % number))
                    time.sleep(0.05)
                return count

            while seen.batches < WARM_BATCHES:
                wait_until("the warm-up", lambda: bool(query.isActive), query)
                sent += send(20)
            wait_until("the warm-up's rows", lambda: len(seen.waited_ms) >= sent, query)
            warm = len(seen.waited_ms)
            print(f"warm after {seen.batches} batches, {warm} messages", flush=True)
            batches = seen.batches
            sent += send(min(arguments.records, 600))
            wait_until("the last rows", lambda: len(seen.waited_ms) >= sent, query)
        seen.end(query)
    measured = seen.waited_ms[warm:]
    cuts = quantiles(measured, n=100)
    print(
        f"stored to row, {len(measured)} messages in {seen.batches - batches} batches after"
        f" warm-up: median {median(measured):.0f} ms, 90% {cuts[89]:.0f} ms, 99% {cuts[98]:.0f} ms,"
        f" load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def run_soak(spark: Any, arguments: argparse.Namespace, folder: Path) -> None:
    """Let a stream follow a producer; print the memory of this process and all its children."""
    with filled(folder, 1000) as name_server:
        sender = threading.Thread(target=fill, args=(name_server, arguments.records), daemon=True)
        query = (
            stream_of(spark, name_server, startingOffsets="earliest", maxOffsetsPerTrigger="250000")
            .writeStream.format("noop")
            .option("checkpointLocation", str(folder / "checkpoint-soak"))
            .trigger(processingTime="1 second")
            .start()
        )
        sender.start()
        done, begun_s, shown = 0, time.perf_counter(), set[int]()
        while done < arguments.records and query.isActive:
            time.sleep(5)
            for progress in query.recentProgress:
                if progress.batchId not in shown:
                    shown.add(progress.batchId)
                    done += progress.numInputRows
            memory = sum(
                process.memory_info().rss
                for process in psutil.Process().children(recursive=True)
                if process.is_running()
            )
            rate = done / (time.perf_counter() - begun_s)
            print(f"  {done:>12,} rows, {rate:>9,.0f} rows/s, {memory >> 20:,} MiB", flush=True)
        query.stop()


RUNS = {
    "store": run_store,
    "prepared": run_prepared,
    "live": run_live,
    "stream": run_stream,
    "latency": run_latency,
    "soak": run_soak,
}


def main() -> None:
    """Parse the options, start Spark, run the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=[*RUNS, "all"])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--trigger-rows", type=int, default=1_000_000, help="rows of a micro-batch")
    arguments = parser.parse_args()
    spark = session("bench", master=arguments.master, **{"spark.driver.memory": "2g"})
    conditions(spark)
    for name in [arguments.what] if arguments.what != "all" else list(RUNS)[:5]:
        print(f"\n{name}")
        with tempfile.TemporaryDirectory(prefix="cometmq-bench-") as folder:
            RUNS[name](spark, arguments, Path(folder))
    spark.stop()


if __name__ == "__main__":
    main()
