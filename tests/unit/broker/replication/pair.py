"""A name server, a master and slaves in one process, over real sockets and files."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.unit.broker.harness import Client, eventually, running

from cometmq.broker import Broker
from cometmq.namesrv import NameServer, NameServerConfig
from cometmq.net.env import system_environment
from cometmq.store.base.disk import RealDisk

__all__ = ["Set", "connected", "copied", "ends", "log_bytes", "replica_set"]


class Set:
    """The servers of one broker name; `master` and `slave` start members on directories."""

    def __init__(self, folder: Path, name_server: str) -> None:
        self._folder = folder
        self.name_server = name_server

    def master(self, **settings: Any) -> contextlib.AbstractAsyncContextManager[Broker]:
        """Run the master."""
        return self._member("master", **{"brokerRole": "ASYNC_MASTER", **settings})

    def slave(
        self, member_id: int = 1, **settings: Any
    ) -> contextlib.AbstractAsyncContextManager[Broker]:
        """Run a slave."""
        role = {"brokerRole": "SLAVE", "brokerId": member_id, "slaveReadEnable": True}
        return self._member(f"slave-{member_id}", **{**role, **settings})

    def _member(
        self, directory: str, **settings: Any
    ) -> contextlib.AbstractAsyncContextManager[Broker]:
        return running(self._folder / directory, namesrvAddr=self.name_server, **settings)


@contextlib.asynccontextmanager
async def replica_set(folder: Path) -> AsyncIterator[Set]:
    """Run a name server for a set."""
    config = NameServerConfig(
        listen_port=0,
        bind_address="127.0.0.1",
        kv_config_path=str(folder / "kv.json"),
        config_store_path=str(folder / "namesrv.conf"),
    )
    server = NameServer(config, system_environment(), RealDisk())
    await server.start()
    try:
        yield Set(folder, f"127.0.0.1:{server.port}")
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def connected(broker: Broker) -> AsyncIterator[Client]:
    """A client of one broker."""
    client = await Client(broker.env, broker.address).open()
    try:
        yield client
    finally:
        await client.close()


def ends(broker: Broker) -> int:
    """Physical offset at which a broker's log ends."""
    return broker.services.store.max_physical_offset


async def copied(master: Broker, slave: Broker) -> None:
    """Wait until readers of the slave see the log up to the master's end."""
    await eventually(lambda: slave.services.store.confirmed_offset == ends(master) > 0)


def log_bytes(broker: Broker) -> bytes:
    """The bytes of the whole log."""
    store = broker.services.store
    parts, at = [], store.min_physical_offset
    while at < store.max_physical_offset:
        part = store.log_bytes(at, store.max_physical_offset - at)
        assert part
        parts.append(part)
        at += len(part)
    return b"".join(parts)
