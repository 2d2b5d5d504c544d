"""Prepared messages in real databases: the program is killed around each call."""

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from tests.patterns.conftest import Databases

import cometmq.sync
from cometmq.patterns.outbox import Outbox
from cometmq.testing.cluster import threaded_cluster

pytestmark = pytest.mark.full

WORKER = Path(__file__).with_name("reliable_worker.py")
BEFORE = ["before prepare", "after prepare", "before the operation"]
AFTER = [
    "after the operation",
    "before confirm",
    "after confirm",
    "in the check",
    "before _confirm",
    "after _confirm",
    "before drop",
    "after drop",
]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["postgresql", "mariadb"])
@pytest.mark.parametrize("step", [*BEFORE, *AFTER])
def test_kills(databases: Databases, name: str, step: str) -> None:
    """A message is sent once if the operation has happened, and never otherwise."""
    engine = create_engine(databases.url(name))
    outbox = Outbox(engine)
    outbox.create()
    with engine.begin() as connection:
        connection.execute(text("create table if not exists charged (name varchar(80))"))
        connection.execute(text("delete from cometmq_outbox"))
        connection.execute(text("delete from charged"))
    with threaded_cluster() as cluster:
        address = cluster.name_server_address
        with cometmq.sync.Producer("pg", name_server=address) as producer:
            producer.create_topic("Charged", queue_count=1)
        base = [sys.executable, str(WORKER), databases.url(name), address]
        dead = subprocess.run(
            [*base, step], stdout=subprocess.PIPE, text=True, timeout=60, check=False
        )
        assert f"hit {step}" in dead.stdout
        subprocess.run([*base, "-"], stdout=subprocess.DEVNULL, timeout=60, check=True)
    with engine.begin() as connection:
        states = text("select state from cometmq_outbox where topic = 'Charged' order by id")
        found = [state for state in connection.scalars(states) if state != "dropped"]
        happened = list(connection.scalars(text("select name from charged")))
    assert happened == ([] if step in BEFORE else ["charged"])
    assert found == ["sent"] * len(happened)
    engine.dispose()
