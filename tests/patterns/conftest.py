"""The databases of the lane: one fixture a server, and engines for it."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.patterns import servers

URLS = {
    "postgresql": ("postgresql+psycopg://postgres@127.0.0.1:{}/postgres", "postgresql+asyncpg"),
    "mariadb": ("mysql+pymysql://test@127.0.0.1:{}/test", "mysql+aiomysql"),
}
DRIVERS = {"postgresql": ("psycopg", "asyncpg"), "mariadb": ("pymysql", "aiomysql")}


class Databases:
    """Starts each server at its first use."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._ports: dict[str, int] = {}

    def port(self, name: str) -> int:
        if name not in self._ports:
            # Not below pytest's own folder, which each run of pytest closes to other users.
            folder = Path(self._stack.enter_context(TemporaryDirectory())) / name
            start = {
                "postgresql": servers.postgresql,
                "mariadb": servers.mariadb,
                "redis": servers.redis,
            }[name]
            self._ports[name] = self._stack.enter_context(start(folder))
        return self._ports[name]

    def url(self, name: str) -> str:
        """The URL of a plain engine."""
        servers.need(*DRIVERS[name])
        return URLS[name][0].format(self.port(name))

    def async_url(self, name: str) -> str:
        """The URL of an asyncio engine."""
        plain = self.url(name)
        return f"{URLS[name][1]}{plain[plain.index(':') :]}"

    def redis_url(self) -> str:
        servers.need("redis")
        return f"redis://127.0.0.1:{self.port('redis')}"


@pytest.fixture(scope="session")
def databases() -> Iterator[Databases]:
    with ExitStack() as stack:
        yield Databases(stack)
