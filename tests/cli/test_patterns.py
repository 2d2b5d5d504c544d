"""`cometmq patterns status` on a database of SQLite, and on a Redis of the test kit."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click import UsageError
from click.testing import CliRunner
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from cometmq import Message
from cometmq.cli.main import root
from cometmq.errors import ConfigError
from cometmq.patterns.idempotent import RedisClaims, SqlClaims
from cometmq.patterns.outbox import Outbox
from cometmq.patterns.saga import Saga, Sagas, SagaStep
from cometmq.testing.sim_redis import SimRedis
from cometmq.testing.simulation import World, simulate


def command(*words: str) -> str:
    result = CliRunner().invoke(root, ("patterns", "status", *words), standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.output.replace(" ", "")


def test_the_tables_that_a_database_has(tmp_path: Path) -> None:
    """Only those; a group's claims alone where it is named."""
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    engine = create_engine(url)
    claims = SqlClaims(engine)
    claims.create()
    assert "claimsprocessing0" in command("--database", url)
    assert "sagas" not in command("--database", url)
    claims.claim("mailing", ["a", "b"], "t", "me", 0, 1, None)
    claims.finish("mailing", ["a"], 0, 2**45)
    outbox, sagas = Outbox(engine), Sagas(engine, [Saga("s", [SagaStep("one", lambda call: None)])])
    outbox.create()
    sagas.create()
    with Session(engine) as session:
        outbox.add(session, Message("t", b""))
        sagas.add(session, "s", "s-1")
        session.commit()
    engine.dispose()
    found = command("--database", url)
    for line in ("claimsexpired1", "claimsdone1", "sagasrunning1", "outboxwaiting1"):
        assert line in found
    assert "claimsdone0" in command("--database", url, "--group", "other")
    assert "cometmq_claims_done1\n" in command("--database", url, "--metrics")
    assert '"pattern":"sagas"' in command("--database", url, "--json")


def test_claims_in_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted over all groups, or of one, whose name may have a pattern's signs."""

    async def main(world: World) -> None:
        redis = SimRedis(world, is_calm=lambda: True)
        claims = RedisClaims(redis.plain_client())
        for group, keys in (("g*", ["a", "b"]), ("gg", ["c"])):
            claims.claim(group, keys, "t", "me", 0, 1_000, None)
        claims.finish("g*", ["a"], 0, 1_000)
        assert (await RedisClaims(redis.client()).status()).done == 1
        module = ModuleType("redis")
        vars(module)["Redis"] = _Server(redis)
        monkeypatch.setitem(sys.modules, "redis", module)
        everything = command("--redis", "redis://there")
        assert "claimsinRedisprocessing2" in everything
        assert "claimsinRedisdone1" in everything
        assert "claimsinRedisprocessing1" in command("--redis", "redis://there", "--group", "g*")

    simulate(1, main)


class _Server:
    """The client's class, whose clients are those of a simulated server."""

    def __init__(self, redis: SimRedis) -> None:
        self._redis = redis

    def from_url(self, url: str) -> Any:
        assert url == "redis://there"
        return self

    def __enter__(self) -> Any:
        return self._redis.plain_client()

    def __exit__(self, *error: object) -> None:
        """Leave the server as it is."""


def test_what_cannot_be_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a database nor a Redis, or no client for it."""
    with pytest.raises(UsageError, match="give --database or --redis"):
        command()
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigError, match="pip install redis"):
        command("--redis", "redis://there")
