"""A terminal's Ctrl-C, which goes to the command and to every process below it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.spark.clusters import Cluster
from tests.spark.test_cdc_pipeline import table_rows
from tests.unit.spark.generated_events import canal_binlog

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 400
#: The command, and a thread that presses Ctrl-C when the main thread waits for the JVM inside a
#: function, or when tasks of a batch run.
JOB = """
import os, signal, sys, threading, time
where, hit, *arguments = sys.argv[1:]
main_thread = threading.get_ident()

def waits_in():
    frame, names = sys._current_frames().get(main_thread), set()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return {where, "send_command"} <= names

def has_running_tasks():
    from pyspark import SparkContext
    context = SparkContext._active_spark_context
    if context is None or not batch_begun.is_set():
        return False
    tracker = context.statusTracker()
    stages = [tracker.getStageInfo(one) for one in tracker.getActiveStageIds()]
    return any(one is not None and one.numActiveTasks for one in stages)

def strike():
    is_met = has_running_tasks if where == "batch" else waits_in
    while not is_met():
        time.sleep(0.001)
    open(hit, "w").close()
    os.killpg(0, signal.SIGINT)

from cometmq.cli.main import main
from cometmq.spark.pipelines.cdc.merger import Merger
batch_begun = threading.Event()
take = Merger._take

def taken(merger, found, stream, batch_id):
    if batch_id == 1:
        batch_begun.set()
    take(merger, found, stream, batch_id)

Merger._take = taken
threading.Thread(target=strike, daemon=True).start()
main(arguments)
"""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes of the test; they do not outlive it."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)


@pytest.mark.parametrize("where", ["open_session", "take", "batch"])
def test_ctrl_c(
    where: str, cluster: Cluster, started: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    """While Spark starts, and in a job of a run that ends by itself: one line, exit code 130.

    In a batch of a followed stream: that batch is in the table, and the run ends well.
    """
    log = canal_binlog(71, 40)
    topic = cluster.create(2, "Binlog")
    cluster.send(topic, log.shaken(72), queues=2)
    hit, to = tmp_path / "hit", tmp_path / "orders"
    follow = ["--follow", "--every", "1 second"] if where == "batch" else []
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", JOB, where, str(hit)),
            *("pipeline", "cdc", f"topic:{topic}", "-n", cluster.name_server, "--to", str(to)),
            *("--master", "local[2]", *follow),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    started.append(process)
    out, err = process.communicate(timeout=WAIT_S)
    assert hit.exists(), err
    assert "Traceback" not in err
    if where == "batch":
        assert process.returncode == 0, err
        assert "changes" in out
        assert table_rows(to) == log.rows
    else:
        assert (process.returncode, out) == (130, ""), err
        assert err.splitlines()[-1] == "cometmq: interrupted"
        assert "ERROR" not in err
