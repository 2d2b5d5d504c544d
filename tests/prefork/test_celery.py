"""Celery's prefork pool: tasks send with a producer that the worker made before it forked."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cometmq.testing.cluster import EmbeddedCluster

pytest.importorskip("celery", reason="celery is not installed: part of the group 'test'")
pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform == "win32", reason="nothing forks on this platform"),
]

TASKS = 8
MODULE = """
import json, multiprocessing, os
import cometmq.sync
from celery import Celery, signals
from cometmq import Message

app = Celery("tasks", broker="filesystem://")
app.conf.update(
    broker_transport_options={
        "data_folder_in": "queue", "data_folder_out": "queue", "control_folder": "control",
        "polling_interval": 0.05,
    },
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
    task_ignore_result=True,
)
producer = cometmq.sync.Producer("tasks")
producer.start()
producer.send(Message("Tasks", b"parent before"))
# This starts the background thread, which no child inherits.
producer.send_nowait(Message("Tasks", b"parent in the background")).result(20)
parent = producer.client_id
both = multiprocessing.Barrier(2)


@app.task
def send(number):
    both.wait(20)  # so that two tasks are always run by two processes
    producer.send_nowait(Message("Tasks", b"%d in the background" % number)).result(20)
    text = json.dumps({
        "number": number, "pid": os.getpid(), "parent": parent, "client": producer.client_id,
    })
    result = producer.send(Message("Tasks", text.encode()))
    assert result.status.name == "SEND_OK", result


@signals.worker_ready.connect
def enqueue(**_):
    for number in range(%(tasks)d):
        send.delay(number)


@signals.worker_process_shutdown.connect
def leave(**_):
    producer.shutdown()


@signals.worker_shutdown.connect
def leave_last(**_):
    producer.send(Message("Tasks", b"parent after"))
    producer.shutdown()
"""


def test_tasks_send_with_the_producer_of_the_parent(
    serve: Callable[..., Any],
    bodies_of: Callable[[str, int], list[str]],
    cluster: EmbeddedCluster,
    tmp_path: Path,
) -> None:
    """Each process has its own client id, each task sends once, and the pool ends cleanly."""
    for folder in ("queue", "control"):
        (tmp_path / folder).mkdir()
    (tmp_path / "work.py").write_text(MODULE.replace("%(tasks)d", str(TASKS)))
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "INFO")
    with serve(
        "celery", "-A", "work", "worker", "--pool", "prefork", "--concurrency", "2", *quiet
    ) as server:
        server.wait_for(rf"(?s)(Task work\.send\S+ (succeeded|raised).*){{{TASKS}}}")
        online = cluster.standalone.broker.state.producers.get("tasks")
        assert online is not None
        registered = {member.client_id for member in list(online.values())}
        log = server.end()

    assert "Traceback" not in log
    bodies = bodies_of("Tasks", 2 * TASKS + 3)
    reports = [json.loads(body) for body in bodies if body.startswith("{")]
    assert sorted(report["number"] for report in reports) == list(range(TASKS))
    expected = [f"{number} in the background" for number in range(TASKS)]
    expected += ["parent before", "parent in the background", "parent after"]
    assert [body for body in bodies if not body.startswith("{")] == sorted(expected)

    (parent,) = {report["parent"] for report in reports}
    workers = {(report["pid"], report["client"]) for report in reports}
    assert len(workers) == len({pid for pid, _ in workers}) == 2
    clients = {client for _, client in workers}
    assert parent not in clients
    # Each process has told the broker of itself, under its own id.
    assert registered == {parent} | clients
    # All three have signed off.
    assert cluster.standalone.broker.state.producers.get("tasks") is None
