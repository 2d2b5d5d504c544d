"""Queries killed at every point: nothing is lost, and nothing is there twice."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.spark.clusters import Cluster
from tests.spark.conftest import quick_settings
from tests.spark.faulty_source import PLACES, arm

from cometmq.spark.live.options import LiveOptions
from cometmq.spark.live.source import LiveReader

pytestmark = [pytest.mark.full, pytest.mark.timeout(1500)]

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 500
ROWS = 24_000
ROWS_PER_BATCH = 2_000
JOB = """
import sys
from cometmq.spark import session
from tests.spark.faulty_source import FaultySource
name_server, source, target, checkpoint, master, settings = sys.argv[1:]
import json
spark = session("kills", master=master, **json.loads(settings))
spark.dataSource.register(FaultySource)
query = (
    spark.readStream.format("cometmq").option("nameServer", name_server)
    .option("subscribe", source).option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", {rows}).load().select("body")
    .writeStream.format("cometmq-faulty").option("nameServer", name_server)
    .option("topic", target).option("sinkId", "kills-" + target).option("retryMs", "60000")
    .option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
)
query.awaitTermination()
spark.stop()
""".replace("{rows}", str(ROWS_PER_BATCH))


class Server:
    """A CometMQ process that can be killed and comes back where it was."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self.arguments = arguments
        self.log = log
        self.ports: list[str] = []
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        with self.log.open("a", encoding="utf-8") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "cometmq", *self.arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={k: v for k, v in os.environ.items() if k != "NAMESRV_ADDR"},
            )
        assert process.stdout is not None
        self.line = process.stdout.readline()
        assert "ready" in self.line or "name server" in self.line, self.log.read_text()
        return process

    def revive(self, job: subprocess.Popen[bytes]) -> bool:
        """Start it again once it was killed; False if the job ended before that."""
        until = time.monotonic() + WAIT_S
        while self.process.poll() is None:
            if job.poll() is not None:
                return False
            assert time.monotonic() < until, "neither the server nor the job ended"
            time.sleep(0.05)
        assert self.process.returncode != 0
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = self._start()
        return True

    def close(self) -> None:
        """Stop it."""
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Two:
    """A name server and two brokers, the second in a process of its own that may die."""

    def __init__(self, folder: Path) -> None:
        self.first = Server(
            [
                "up",
                "--store",
                str(folder / "a"),
                "--name-server-port=0",
                "--broker-port=0",
                "--set",
                "brokerName=broker-a",
            ],
            folder / "a.log",
        )
        found = re.search(r"name server (\S+?),", self.first.line)
        assert found is not None, self.first.line
        self.name_server = found[1]
        self.store = folder / "b"
        command = [
            "broker",
            "-n",
            self.name_server,
            "--store",
            str(self.store),
            "--listen=127.0.0.1",
            "--set",
            "brokerName=broker-b",
            "--set",
            "brokerIP1=127.0.0.1",
        ]
        self.second = Server([*command, "--port=0"], folder / "b.log")
        port = re.search(r":(\d+)", self.second.line)
        assert port is not None, self.second.line
        self.second.arguments = [*command, f"--port={port[1]}"]

    def close(self) -> None:
        """Stop both."""
        self.second.close()
        self.first.close()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    """Fresh brokers."""
    running = Two(tmp_path)
    yield running
    running.close()


class Job:
    """The query as a program of its own, run until it is through."""

    def __init__(self, two: Two, folder: Path, source: str, target: str, master: str) -> None:
        self.folder = folder
        self.faults = folder / "faults"
        self.faults.mkdir()
        self.arguments = [
            two.name_server,
            source,
            target,
            str(folder / "checkpoint"),
            master,
            json.dumps({name: str(item) for name, item in quick_settings(folder).items()}),
        ]

    @contextmanager
    def start(self) -> Iterator[subprocess.Popen[bytes]]:
        """The running program; it does not outlive the block."""
        with (self.folder / "job.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", JOB, *self.arguments],
                env={
                    **os.environ,
                    "COMETMQ_FAULTS": str(self.faults),
                    "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
                },
                stdout=log,
                stderr=log,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait(60)

    def run(self) -> int:
        """Run it to its end, good or bad."""
        with self.start() as process:
            return process.wait(WAIT_S)

    def log(self) -> str:
        """What it printed."""
        return (self.folder / "job.log").read_text(encoding="utf-8", errors="replace")[-4000:]


def filled(two: Two) -> tuple[str, str, Cluster]:
    """A topic with the rows, an empty one, both on both brokers."""
    cluster = Cluster(two.name_server, "", "")
    source, target = cluster.create(queues=2), cluster.create(queues=2)
    cluster.send(source, (b"%d" % n for n in range(ROWS)), queues=2)
    cluster.close()
    return source, target, cluster


def bodies(two: Two, topic: str) -> Counter[int]:
    """How often consumers see each row."""
    given = {"nameServer": two.name_server, "subscribe": topic}
    reader = LiveReader(LiveOptions.parse(given, ("body",), is_stream=False))
    return Counter(
        int(body)
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for body in batch.column("body").to_pylist()
    )


@pytest.mark.parametrize("what", ["worker", "driver"])
def test_killed_query_loses_and_repeats_nothing(what: str, two: Two, tmp_path: Path) -> None:
    """Its Python worker, or the whole driver, at each place of a micro-batch."""
    source, target, _ = filled(two)
    job = Job(two, tmp_path, source, target, "local[2]")
    places = PLACES if what == "driver" else PLACES[:2]
    for number, place in enumerate(places):
        hit = arm(job.faults, place, 2 + 2 * number, what)
        assert job.run() != 0, job.log()
        assert hit.exists(), job.log()
    assert job.run() == 0, job.log()
    assert bodies(two, target) == Counter(range(ROWS))


@pytest.mark.parametrize("place", PLACES)
def test_killed_broker_loses_and_repeats_nothing(place: str, two: Two, tmp_path: Path) -> None:
    """It comes back; the query waits for it, or is started again."""
    source, target, _ = filled(two)
    job = Job(two, tmp_path, source, target, "local[2]")
    hit = arm(job.faults, place, 3, "broker", two.second.process.pid)
    with job.start() as process:
        assert two.second.revive(process), job.log()
        code = process.wait(WAIT_S)
    assert hit.exists(), job.log()
    for _ in range(3):
        if code == 0:
            break
        code = job.run()
    assert code == 0, job.log()
    assert bodies(two, target) == Counter(range(ROWS))


@pytest.mark.parametrize("place", ["before-staging", "after-staging"])
def test_killed_executor_is_replaced(place: str, two: Two, tmp_path: Path) -> None:
    """On a cluster Spark runs the task again; what the dead one staged is never seen."""
    source, target, _ = filled(two)
    job = Job(two, tmp_path, source, target, "local-cluster[2,1,1024]")
    hit = arm(job.faults, place, 3, "executor")
    assert job.run() == 0, job.log()
    assert hit.exists(), job.log()
    assert bodies(two, target) == Counter(range(ROWS))
