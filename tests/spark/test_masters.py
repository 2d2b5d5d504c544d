"""Source, sink and a pipeline where executors are JVMs of their own: no memory is shared."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from tests.spark.clusters import Cluster, new_topic
from tests.spark.conftest import quick_settings

from cometmq.spark.runtime.java import find_java

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

ROWS = 5_000
WAIT_S = 300
JOB = """
import json, os, sys
from cometmq.spark import session
name_server, source, target, job, checkpoint, master, settings = sys.argv[1:]
spark = session("masters", master=master, **json.loads(settings))
read = spark.read.format("cometmq").option("nameServer", name_server).schema("body binary")
frame = read.option("subscribe", source).load()
write = frame.write.format("cometmq").mode("append").option("nameServer", name_server)
for _ in range(2):
    write.option("topic", target).option("jobId", job).save()
query = (
    spark.readStream.format("cometmq").option("nameServer", name_server)
    .option("subscribe", source).option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", 2000).load().select("body")
    .writeStream.format("cometmq").option("nameServer", name_server)
    .option("topic", target).option("checkpointLocation", checkpoint)
    .trigger(availableNow=True).start()
)
query.awaitTermination()
found = spark.read.format("cometmq").option("nameServer", name_server).option("subscribe", target)
frame = found.load()
executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
print(json.dumps({"rows": frame.count(), "distinct": frame.select("body").distinct().count(),
                  "executors": executors}))
spark.stop()
"""


@contextlib.contextmanager
def standalone_master(folder: Path) -> Iterator[str]:
    """A master and two workers out of the pip package; the master's URL."""
    home = Path(pyspark.__file__).parent
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java().folder),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Its port would be a fixed one.
        "SPARK_DAEMON_JAVA_OPTS": "-Dspark.master.rest.enabled=false",
    }
    running: list[subprocess.Popen[bytes]] = []
    log = folder / "master.log"

    def start(name: str, *arguments: str) -> None:
        with (folder / f"{name}.log").open("wb") as out:
            running.append(
                subprocess.Popen(
                    [str(home / "bin" / "spark-class"), *arguments],
                    env=environment,
                    stdout=out,
                    stderr=out,
                )
            )

    def logged(pattern: str, count: int = 1) -> str:
        deadline_s = time.monotonic() + WAIT_S
        while True:
            found = re.findall(pattern, log.read_text(encoding="utf-8", errors="replace"))
            if len(found) >= count:
                return str(found[0])
            assert time.monotonic() < deadline_s, log.read_text(encoding="utf-8")
            time.sleep(0.2)

    here = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    try:
        start("master", "org.apache.spark.deploy.master.Master", *here)
        url = logged(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
        for number in range(2):
            start(
                f"worker-{number}",
                "org.apache.spark.deploy.worker.Worker",
                url,
                *here,
                *("--cores", "1", "--memory", "1g"),
                *("--work-dir", str(folder / f"work-{number}")),
            )
        logged(r"Registering worker", 2)
        yield url
    finally:
        for process in reversed(running):
            process.terminate()
        for process in running:
            process.wait(60)


def run(command: list[str], folder: Path) -> str:
    """A program's output; it must succeed."""
    result = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        cwd=folder,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout


@pytest.mark.parametrize("kind", ["local-cluster", "standalone"])
def test_everything_works_on(kind: str, cluster: Cluster, tmp_path: Path) -> None:
    """Batch and stream, read and write, and the archive."""
    source, target = cluster.create(queues=4), cluster.create(queues=2)
    cluster.send(source, (b"%d" % n for n in range(ROWS)), queues=4)
    settings = {name: str(value) for name, value in quick_settings(tmp_path).items()}
    settings |= {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "700m",
    }
    with contextlib.ExitStack() as stack:
        master = (
            "local-cluster[2,1,1024]"
            if kind == "local-cluster"
            else stack.enter_context(standalone_master(tmp_path))
        )
        checkpoint = str(tmp_path / "checkpoint")
        out = run(
            [
                *("-c", JOB, cluster.name_server, source, target, new_topic("job-")),
                *(checkpoint, master, json.dumps(settings)),
            ],
            tmp_path,
        )
        assert json.loads(out.splitlines()[-1]) == {
            "rows": 2 * ROWS,
            "distinct": ROWS,
            "executors": 2,
        }
        archive = tmp_path / "archive"
        conf = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        out = run(
            [
                *("-m", "cometmq", "pipeline", "archive", "-n", cluster.name_server),
                *("--topic", source, "--to", str(archive), "--master", master, "--json", *conf),
            ],
            tmp_path,
        )
        assert str(ROWS) in out
        assert list(archive.rglob("*.parquet")) != []
