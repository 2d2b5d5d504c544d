"""Celery's worker at RocketMQ's broker, which knows nothing of Kombu."""

from pathlib import Path

import pytest

pytest.importorskip("celery", reason="celery is not installed: part of the extra 'celery'")

from celery import group
from tests.interop.stage import Stage
from tests.unit.integrations.kombu.test_celery import Project

WAIT_S = 60.0


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tasks_timers_and_remote_control(stage: Stage, tmp_path: Path) -> None:
    """Tasks run once, a countdown ends, results come back, and the worker answers."""
    if stage.client != "cometmq":
        pytest.skip("Celery uses our client")
    project = Project(tmp_path, stage.cluster.name_server, "rpc://")
    with project.worker("-c", "2") as server:
        adding = project.app.signature("work.add")
        sums = group(adding.clone((number, 1)) for number in range(50)).apply_async().get(WAIT_S)
        assert sums == [number + 1 for number in range(50)]
        assert project.send("work.fragile").get(WAIT_S) == 1
        pings = project.app.control.inspect(timeout=WAIT_S, limit=1).ping()
        assert pings == {"w1@here": {"ok": "pong"}}
        server.end()
    assert len([note for note in project.notes() if note.startswith("add")]) == 50
    project.app.close()
