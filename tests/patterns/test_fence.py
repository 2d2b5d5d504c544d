"""Fences in real databases: a member that is killed or stopped at each step, and its successor."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text
from tests.patterns.conftest import Databases

import cometmq.sync
from cometmq import Message
from cometmq.patterns.idempotent import Fence, SqlClaims
from cometmq.testing.cluster import threaded_cluster
from cometmq.testing.simulate.lives import lock_life_ms

pytestmark = pytest.mark.full

SQL = ["postgresql", "mariadb"]
WORKER = Path(__file__).with_name("fence_worker.py")
KILLS = [
    "before raise_all",
    "after raise_all",
    "before check",
    "after check",
    "before effect",
    "before commit",
]
LIVES = 30
"""A lock lives for two seconds, and its member relies on it for one."""


@contextmanager
def running(
    name: str, how: str, step: str, addresses: list[str]
) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(WORKER), *addresses, name, how, step]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        try:
            yield worker
        finally:
            worker.kill()


def wait_for(worker: subprocess.Popen[str], line: str) -> list[str]:
    """Read the lines of a worker up to this one; returns those before it."""
    assert worker.stdout is not None
    lines: list[str] = []
    while (found := worker.stdout.readline()) != f"{line}\n":
        assert found, f"the worker ended after {lines} without {line!r}"
        lines.append(found.strip())
    return lines


@contextmanager
def stage(databases: Databases, name: str) -> Iterator[tuple[Engine, list[str]]]:
    """Tables, and a cluster with two messages in one queue; yields what a worker is told."""
    url = databases.url(name)
    engine = create_engine(url)
    SqlClaims(engine).create()
    Fence(engine, "g").create()
    with engine.begin() as connection:
        connection.execute(text("drop table if exists effects"))
        connection.execute(text("create table effects (worker text, name text)"))
        connection.execute(text("delete from cometmq_fences"))
    with threaded_cluster({"rebalanceLockMaxLiveTime": lock_life_ms(LIVES)}) as cluster:
        with cometmq.sync.Producer("pg", name_server=cluster.name_server_address) as producer:
            producer.create_topic("t", queue_count=1)
            for body in (b"m0", b"m1"):
                producer.send(Message("t", body))
        yield engine, [cluster.name_server_address, url, str(LIVES)]
    engine.dispose()


def effects(engine: Engine) -> list[tuple[str, str]]:
    with engine.begin() as connection:
        rows = connection.execute(text("select worker, name from effects order by name, worker"))
        return [(row[0], row[1]) for row in rows]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("step", KILLS)
@pytest.mark.parametrize("name", SQL)
def test_a_killed_member_shuts_nobody_out(databases: Databases, name: str, step: str) -> None:
    """Its successor raises the epoch again, and each message has its effect once."""
    with stage(databases, name) as (engine, addresses):
        with running("b", "killed", step, addresses) as dead:
            wait_for(dead, f"hit {step}")
            assert dead.wait(60) == -signal.SIGKILL
        assert effects(engine) == []
        with running("a", "killed", "-", addresses) as worker:
            wait_for(worker, "handled m1")
        assert effects(engine) == [("a", "m0"), ("a", "m1")]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("how", ["stopped", "unfenced"])
@pytest.mark.parametrize("name", SQL)
def test_a_stopped_member_commits_nothing_afterwards(
    databases: Databases, name: str, how: str
) -> None:
    """It stops before its transaction, its lock ends, another one handles the queue, it wakes up.

    Without the fence its late commit repeats the effect, so the trial reaches what fences are for.
    """
    step = "before check" if how == "stopped" else "before effect"
    with (
        stage(databases, name) as (engine, addresses),
        running("b", how, step, addresses) as stale,
    ):
        wait_for(stale, f"hit {step}")
        # The name of this one sorts before the other's, so the allocation gives it the queue.
        with running("a", "stopped", "-", addresses) as owner:
            wait_for(owner, "handled m1")
            os.kill(stale.pid, signal.SIGCONT)
            if how == "stopped":
                wait_for(stale, "stale m0")
                expected = [("a", "m0"), ("a", "m1")]
            else:
                wait_for(stale, "handled m0")
                expected = [("a", "m0"), ("b", "m0"), ("a", "m1")]
            assert effects(engine) == expected
