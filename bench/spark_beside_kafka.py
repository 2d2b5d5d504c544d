"""Measures Spark's live source beside Spark's own Kafka source, in turn, on one machine.

    .venv/bin/python -m bench.spark_beside_kafka --kafka DIR --connector DIR

`--kafka` is a folder with the jars of `org.apache.kafka:kafka_2.13`, `--connector` one with those
of `org.apache.spark:spark-sql-kafka-0-10_2.13`, both as `mvn dependency:copy-dependencies` writes
them.  Both brokers run at the same time, each in a process of its own, and hold the same bodies in
four queues or partitions.  Each pair of rounds reads one and then the other; the printed ratio is
the median over the pairs with its 95 % interval.  The columns are topic, queue, offset, body and
time on both sides.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from bench.base.measure import interval_of_median
from bench.spark_sources import FIVE, QUEUES, TOPIC, conditions, filled
from cometmq.spark import session

READY_S = 60
WHAT = ("count", "noop", "Parquet")


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def kafka(jars: Path, folder: Path) -> Iterator[str]:
    """Run Kafka as one process that is broker and controller; yield its address."""
    client, quorum = free_port(), free_port()
    settings = folder / "server.properties"
    settings.write_text(
        f"process.roles=broker,controller\nnode.id=1\nlog.dirs={folder}/log\n"
        f"listeners=PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{quorum}\n"
        f"advertised.listeners=PLAINTEXT://127.0.0.1:{client}\n"
        "controller.listener.names=CONTROLLER\ninter.broker.listener.name=PLAINTEXT\n"
        f"controller.quorum.voters=1@127.0.0.1:{quorum}\nnum.partitions={QUEUES}\n"
        "offsets.topic.replication.factor=1\n"
    )
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    java = ["java", "-Xmx1g", quiet, "-cp", f"{jars}/*"]
    subprocess.run(
        [
            *java,
            "kafka.tools.StorageTool",
            "format",
            "-t",
            "MkU3OEVBNTcwNTJENDM2Qk",
            "-c",
            settings,
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    with (folder / "kafka.log").open("w") as log:
        server = subprocess.Popen([*java, "kafka.Kafka", settings], stdout=log, stderr=log)
        try:
            deadline_s = time.monotonic() + READY_S
            while True:
                try:
                    socket.create_connection(("127.0.0.1", client), 1).close()
                    break
                except OSError:
                    if server.poll() is not None or time.monotonic() > deadline_s:
                        raise SystemExit(f"Kafka does not answer: {folder}/kafka.log") from None
                    time.sleep(0.1)
            yield f"127.0.0.1:{client}"
        finally:
            server.kill()
            server.wait()


def fill_kafka(spark: Any, address: str, records: int, *, seed: int = 5) -> None:
    """Send as many records with bodies, keys and tags as `bench.spark_sources.fill` does."""
    chance = random.Random(seed)
    bodies = [(place, chance.randbytes(chance.randint(100, 200))) for place in range(1000)]
    made = spark.createDataFrame(bodies, "place bigint, value binary").hint("broadcast")
    (
        spark.range(records)
        .selectExpr("id", "id % 1000 as place", f"cast(id div 1000 % {QUEUES} as int) as partition")
        .join(made, "place")
        .selectExpr(
            "value",
            "partition",
            "cast(concat('order-', id) as binary) as key",
            "array(struct('TAGS' as key, cast('A' as binary) as value)) as headers",
        )
        .write.format("kafka")
        .option("kafka.bootstrap.servers", address)
        .option("topic", TOPIC)
        .save()
    )


def work(load: Callable[[], Any], what: str, records: int, folder: Path) -> float:
    """Read once; the rows a second."""
    begun_s = time.perf_counter()
    frame = load()
    if what == "count":
        assert frame.count() == records
    elif what == "noop":
        frame.write.format("noop").mode("overwrite").save()
    else:
        frame.write.mode("overwrite").parquet(str(folder / "parquet"))
    return records / (time.perf_counter() - begun_s)


def main() -> None:
    """Parse the options, start everything, print the pairs and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kafka", type=Path, required=True)
    parser.add_argument("--connector", type=Path, required=True)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--only", choices=WHAT, action="append")
    arguments = parser.parse_args()
    jars = ",".join(str(jar) for jar in sorted(arguments.connector.glob("*.jar")))
    conf = {"spark.driver.memory": "3g", "spark.jars": jars}
    spark = session("bench", master=arguments.master, **conf)
    conditions(spark)
    records = arguments.records
    with (
        tempfile.TemporaryDirectory(prefix="cometmq-bench-") as folder,
        filled(Path(folder), records) as name_server,
        kafka(arguments.kafka, Path(folder)) as address,
    ):
        fill_kafka(spark, address, records)

        def ours() -> Any:
            reader = spark.read.format("cometmq").schema(FIVE).option("nameServer", name_server)
            return reader.option("subscribe", TOPIC).load()

        def theirs() -> Any:
            reader = spark.read.format("kafka").option("kafka.bootstrap.servers", address)
            columns = ("topic", "partition", "offset", "value", "timestamp")
            return reader.option("subscribe", TOPIC).load().select(*columns)

        for what in arguments.only or WHAT:
            pairs = []
            for number in range(-2, arguments.rounds):
                pair = [work(load, what, records, Path(folder)) for load in (ours, theirs)]
                if number >= 0:  # the first two pairs warm up
                    pairs.append(pair)
            ratios = sorted(mine / other for mine, other in pairs)
            interval = interval_of_median(ratios)
            bounds = "too few pairs" if interval is None else "{:.2f} to {:.2f}".format(*interval)
            print(
                f"{what}, 5 columns: {median(mine for mine, _ in pairs):,.0f} rows/s, Kafka's"
                f" {median(other for _, other in pairs):,.0f}, ratio {median(ratios):.2f}"
                f" ({bounds}), load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
        spark.stop()  # its producer would look for a broker that has ended


if __name__ == "__main__":
    main()
