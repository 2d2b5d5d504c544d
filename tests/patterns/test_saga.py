"""Sagas in real databases: the runner is killed around each call, and the sums are right."""

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from tests.patterns.conftest import Databases

from cometmq.patterns.saga import Saga, Sagas, SagaStep, TccBranch

pytestmark = pytest.mark.full

WORKER = Path(__file__).with_name("saga_worker.py")
FORWARD = [
    f"{moment} begin_try of {name}"
    for name in ("stock", "card", "courier")
    for moment in ("before", "after")
]
BACKWARD = [
    f"{moment} begin_cancel of {name}"
    for name in ("card", "stock")
    for moment in ("before", "after")
]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["postgresql", "mariadb"])
@pytest.mark.parametrize(
    ("kind", "step"),
    [*[("good", step) for step in FORWARD], *[("refused", step) for step in BACKWARD]],
)
def test_kills(databases: Databases, name: str, kind: str, step: str) -> None:
    """Another runner ends the flow: every account is changed once, or not at all."""
    engine = create_engine(databases.url(name))
    sagas = Sagas(engine, [Saga("order", [SagaStep("stock", lambda call: None)])])
    sagas.create()
    TccBranch("stock").create(engine)
    with engine.begin() as connection:
        connection.execute(text("create table if not exists accounts (name text, amount int)"))
        for table in ("accounts", "cometmq_sagas", "cometmq_tcc"):
            connection.execute(text(f"delete from {table}"))
        for account in ("stock", "card", "courier"):
            connection.execute(text("insert into accounts values (:name, 0)"), {"name": account})
    with Session(engine) as session:
        sagas.add(session, "order", "f", kind)
        session.commit()
    base = [sys.executable, str(WORKER), databases.url(name)]
    dead = subprocess.run([*base, step], stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert f"hit {step}" in dead.stdout
    done = subprocess.run([*base, "-"], stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    assert done.stdout == ("ended done\n" if kind == "good" else "ended compensated\n")
    with engine.begin() as connection:
        amounts = set(connection.scalars(text("select amount from accounts")))
    assert amounts == ({1} if kind == "good" else {0})
    engine.dispose()
