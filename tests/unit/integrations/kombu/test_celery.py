"""Celery's worker as a process: tasks run once, survive every kind of end, and obey remote control.

A team that uses Celery with Django or FastAPI changes the address of its broker, and nothing else.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("celery", reason="celery is not installed: part of the extra 'celery'")

from celery import Celery, chord, group
from tests.prefork.forking_server import WAIT_S, ForkingServer
from tests.unit.integrations.conftest import serving

import cometmq.integrations.kombu
import cometmq.sync
from cometmq.testing.cluster import EmbeddedCluster

pytestmark = [
    pytest.mark.timeout(240),  # a worker of Celery starts for half a minute on a machine at load 10
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.skipif(sys.platform == "win32", reason="Celery's workers do not run there"),
]

MODULE = """
import json, os, time
from pathlib import Path
from celery import Celery
import cometmq.integrations.kombu

app = Celery("work", broker=os.environ["BROKER"], backend=os.environ["BACKEND"])
app.conf.update(broker_connection_retry_on_startup=True, worker_send_task_events=True)
app.conf.broker_transport_options = json.loads(os.environ.get("OPTIONS", "{}"))


def note(line):
    with open("notes", "a") as file:
        file.write(f"{line}\\n")


@app.task
def add(left, right):
    note(f"add {left} {right}")
    return left + right


@app.task
def total(numbers):
    return sum(numbers)


@app.task(bind=True)
def fragile(self):
    note(f"try {self.request.retries}")
    if not self.request.retries:
        raise self.retry(countdown=1)
    return self.request.retries


def run(number):
    note(f"begin {number}")
    print(f"begin {number}")
    while not Path(f"go-{number}").exists():
        time.sleep(0.01)
    note(f"end {number}")


early = app.task(run, name="early")
late = app.task(run, name="late", acks_late=True)
"""
QUIET = ("--without-mingle", "--without-gossip")


class Project:
    """A folder with tasks, a virtual host of its own, and what the tasks have noted."""

    def __init__(self, folder: Path, name_server: str, backend: str = "disabled://") -> None:
        self.folder = folder
        self.name_server = name_server
        self.host = re.sub(r"\W", "", folder.name)
        self.settings = {"BROKER": f"cometmq://{name_server}/{self.host}", "BACKEND": backend}
        (folder / "work.py").write_text(MODULE)
        self.app = Celery("work", broker=self.settings["BROKER"], backend=backend)

    @contextmanager
    def worker(self, *arguments: str, name: str = "w1") -> Iterator[ForkingServer]:
        """A worker that is ready."""
        with serving(
            self.folder,
            self.name_server,
            *("celery", "-A", "work", "worker", "-l", "INFO", "-n", f"{name}@here", *arguments),
            **self.settings,
        ) as server:
            server.wait_for(rf"{name}@here ready")
            yield server

    def send(self, task: str, *arguments: Any, **options: Any) -> Any:
        """Send a task and return its result."""
        return self.app.send_task(task, arguments, **options)

    def go(self, *numbers: int) -> None:
        """Let these tasks end."""
        for number in numbers:
            (self.folder / f"go-{number}").touch()

    def notes(self) -> list[str]:
        """What tasks have noted."""
        path = self.folder / "notes"
        return path.read_text().splitlines() if path.exists() else []

    def settled(self) -> int:
        """How many messages the group of the queue `celery` has consumed."""
        queue = f"{self.host}%-celery"
        with cometmq.sync.Admin(name_server=self.name_server) as admin:
            progress = admin.group_offsets(queue, [queue])
        return sum(each.consumer_offset or 0 for each in progress.values())


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.02)


@pytest.fixture
def project(cluster: EmbeddedCluster, tmp_path: Path) -> Iterator[Project]:
    """A project whose tasks have no results."""
    made = Project(tmp_path, cluster.name_server_address)
    yield made
    made.app.close()


@pytest.fixture(scope="module")
def calm(
    cluster: EmbeddedCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Project, ForkingServer]]:
    """A project with results by `rpc`, and a prefork worker of two processes."""
    project = Project(tmp_path_factory.mktemp("calm"), cluster.name_server_address, "rpc://")
    with project.worker("-c", "2", "-l", "DEBUG") as server:
        yield project, server
        log = server.end()  # SIGTERM ends it with exit code 0
        assert "Traceback" not in log
    project.app.close()


# -- a calm worker ---------------------------------------------------------------------------


def test_two_hundred_tasks_run_once(calm: tuple[Project, ForkingServer]) -> None:
    """Results come back over the broker, and no task runs twice."""
    project, _ = calm
    adding = project.app.signature("work.add")
    sums = group(adding.clone((number, 1)) for number in range(200)).apply_async().get(WAIT_S)
    assert sums == [number + 1 for number in range(200)]
    added = [note for note in project.notes() if note.startswith("add") and note.endswith(" 1")]
    assert Counter(added) == {f"add {number} 1": 1 for number in range(200)}


def test_a_countdown_waits_at_the_broker(calm: tuple[Project, ForkingServer]) -> None:
    """The worker holds no task with an `eta`: the broker delivers it when it is due."""
    project, server = calm
    due = datetime.now(UTC) + timedelta(seconds=2)
    result = project.send("work.add", 2, 2, eta=due)
    assert result.get(WAIT_S) == 4
    assert datetime.now(UTC) >= due
    received = re.search(rf"\[(\S+ \S+): INFO/MainProcess\] Task work.add\[{result.id}", server.log)
    assert received is not None
    assert datetime.strptime(received[1], "%Y-%m-%d %H:%M:%S,%f").astimezone() > due - timedelta(
        seconds=1
    )


def test_a_retry_with_a_countdown_comes_again(calm: tuple[Project, ForkingServer]) -> None:
    """`retry(countdown=1)` sends the task again, by the broker's timer."""
    project, _ = calm
    assert project.send("work.fragile").get(WAIT_S) == 1
    assert [note for note in project.notes() if note.startswith("try")] == ["try 0", "try 1"]


def test_remote_control_and_revoke(calm: tuple[Project, ForkingServer]) -> None:
    """`inspect ping`, `inspect active_queues` and `revoke` reach the worker."""
    project, server = calm
    inspect = project.app.control.inspect(["w1@here"], timeout=WAIT_S, limit=1)
    assert inspect.ping() == {"w1@here": {"ok": "pong"}}
    (queue,) = inspect.active_queues()["w1@here"]
    assert queue["name"] == "celery"
    result = project.send("work.add", 3, 3, countdown=2)
    project.app.control.revoke(result.id)
    server.wait_for(f"Tasks flagged as revoked: {result.id}")
    server.wait_for(rf"Discarding revoked task: work\.add\[{result.id}")
    assert "add 3 3" not in project.notes()


def test_an_expired_task_does_not_run(calm: tuple[Project, ForkingServer]) -> None:
    """`expires` is kept: a task that is delivered too late is discarded."""
    project, server = calm
    result = project.send("work.add", 4, 4, countdown=2, expires=1)
    server.wait_for(rf"Discarding revoked task: work\.add\[{result.id}")
    assert "add 4 4" not in project.notes()


def test_workers_find_each_other_and_events_arrive(calm: tuple[Project, ForkingServer]) -> None:
    """Mingle and gossip work, and a monitor such as Flower sees what happens."""
    project, server = calm
    with project.app.connection_for_read() as connection:
        events: list[str] = []
        receiver = project.app.events.Receiver(
            connection, handlers={"*": lambda event: events.append(event["type"])}
        )
        with receiver.consumer_context() as (live, _, _):
            with project.worker("-c", "1", name="w2") as second:
                second.wait_for("mingle: sync with 1 nodes")
                pings = project.app.control.inspect(timeout=WAIT_S, limit=2).ping()
                assert set(pings) == {"w1@here", "w2@here"}
                server.wait_for("w2@here joined the party")
                second.end()
            server.wait_for("w2@here left")
            project.send("work.add", 5, 5).get(WAIT_S)
            while "task-succeeded" not in events:
                live.drain_events(timeout=WAIT_S)
    assert {"worker-online", "task-received", "task-started"} <= set(events)


# -- ends ------------------------------------------------------------------------------------


def test_a_killed_worker_loses_no_task_that_is_acknowledged_late(project: Project) -> None:
    """`acks_late` and kill -9: the running task comes again, what was done does not."""
    with project.worker("-P", "solo", *QUIET) as server:
        project.go(1)
        project.send("late", 1)
        until(lambda: project.settled() == 1)
        project.send("late", 2)
        server.wait_for("begin 2")
        server.process.kill()
        server.process.wait(WAIT_S)
    project.go(2)
    with project.worker("-P", "solo", *QUIET) as server:
        server.wait_for("begin 2")
        until(lambda: project.settled() == 2)
        server.end()
    assert project.notes() == ["begin 1", "end 1", "begin 2", "begin 2", "end 2"]


def test_a_long_task_does_not_run_twice_while_its_worker_lives(project: Project) -> None:
    """It stays where it is when another worker joins; when its worker dies it comes again."""
    project.settings["OPTIONS"] = '{"lease_after": 0.5, "visibility_timeout": 600}'
    with project.worker("-c", "1", *QUIET) as first:
        project.send("late", 1)
        first.wait_for("begin 1")
        until(lambda: project.settled() == 1)  # the lease has freed the message queue
        with project.worker("-P", "solo", *QUIET, name="w2") as second:
            project.go(1)
            first.wait_for(r"late\S+ succeeded")
            first.end()
            assert project.notes() == ["begin 1", "end 1"]
            second.end()
    project.settings["OPTIONS"] = '{"lease_after": 0.5, "visibility_timeout": 2}'
    with project.worker("-P", "solo", *QUIET) as third:
        project.send("late", 2)
        third.wait_for("begin 2")
        until(lambda: project.settled() == 2)
        third.process.kill()
        third.process.wait(WAIT_S)
    project.go(2)
    with project.worker("-P", "solo", *QUIET) as fourth:
        fourth.wait_for("begin 2")
        fourth.wait_for(r"late\S+ succeeded")
        fourth.end()
    assert project.notes() == ["begin 1", "end 1", "begin 2", "begin 2", "end 2"]


def test_a_warm_shutdown_loses_and_repeats_nothing(project: Project) -> None:
    """SIGTERM: the running task ends, the prefetched ones are for the next worker."""
    with project.worker("-c", "1", *QUIET) as server:
        for number in range(1, 6):
            project.send("early", number)
        (first,) = server.wait_for(r"begin (\d)").groups()
        # Celery's main process has to know that its child runs the task: after a signal before that
        # it may wait for the child for ever (its stacks, two of 27 runs on a busy machine).
        inspect = project.app.control.inspect(["w1@here"], timeout=WAIT_S, limit=1)
        until(lambda: any((inspect.active() or {}).values()))
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("Warm shutdown")
        project.go(int(first))
        log = server.ended()
        assert "Traceback" not in log
    project.go(*range(1, 6))
    with project.worker("-c", "1", *QUIET) as server:
        until(lambda: sum(note.startswith("end") for note in project.notes()) == 5)
        server.end()
    assert Counter(project.notes()) == {
        f"{step} {number}": 1 for step in ("begin", "end") for number in range(1, 6)
    }


def test_a_worker_rides_out_a_restart_of_the_broker(tmp_path: Path) -> None:
    """The cluster is killed while a task runs: the task is not repeated, and new ones come."""

    def cluster(name_server_port: str, broker_port: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "cometmq", "-q", "up", "--store", str(tmp_path / "store")),
                *("--name-server-port", name_server_port, "--broker-port", broker_port),
                "--set=mappedFileSizeCommitLog=2097152",
            ],
            stdout=subprocess.PIPE,
            text=True,
            env={key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"},
        )

    with cluster("0", "0") as first:
        assert first.stdout is not None
        line = first.stdout.readline()
        ports = re.search(r"name server \S+:(\d+), broker \S+:(\d+)", line)
        assert ports is not None, line
        project = Project(tmp_path, f"127.0.0.1:{ports[1]}")
        try:
            with project.worker("-c", "1", *QUIET) as server:
                project.send("late", 1)
                server.wait_for("begin 1")
                first.kill()
                first.wait(WAIT_S)
                project.go(1, 2)
                until(lambda: "end 1" in project.notes())
                with cluster(*ports.groups()) as second:
                    assert second.stdout is not None
                    second.stdout.readline()
                    project.send("late", 2)
                    until(lambda: "end 2" in project.notes())
                    until(lambda: project.settled() == 2)
                    log = server.end()
                    second.terminate()
        finally:
            first.kill()
    assert "Traceback" not in log
    assert project.notes() == ["begin 1", "end 1", "begin 2", "end 2"]


def test_a_chord_with_results_in_files(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """Threads as a pool, and a backend that counts for the chord."""
    (tmp_path / "results").mkdir()
    project = Project(tmp_path, cluster.name_server_address, f"file://{tmp_path}/results")
    adding, adding_up = (project.app.signature(f"work.{name}") for name in ("add", "total"))
    with project.worker("-P", "threads", "-c", "2", *QUIET) as server:
        result = chord(adding.clone((number, 1)) for number in range(3))(adding_up)
        assert result.get(WAIT_S) == 6
        server.end()
    project.app.close()
