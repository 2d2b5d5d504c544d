"""A replica set over real sockets and files: its master changes by the commands, and no send fails.

Each server has an address of 127.0.0.0/8 of its own, since a replica keeps its port.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.unit.broker.harness import SMALL

import cometmq
from cometmq import Admin, Message
from cometmq.broker.base.config import load_config
from cometmq.broker.replica_broker import ReplicaBroker
from cometmq.cli.main import root
from cometmq.controller.config import load_controller_config
from cometmq.controller.opening import open_controller
from cometmq.namesrv import NameServer, load_name_server_config
from cometmq.net.env import system_environment
from cometmq.store.base.disk import RealDisk
from cometmq.wire.frame.acl import Credentials

OWN_NETWORK = f"127.{1 + (os.getpid() >> 8) % 250}.{os.getpid() % 256}"
SET = "broker-a"


@dataclass
class RealSet:
    """Three brokers of a set, with the addresses of its controller and name server."""

    controller: str
    name_server: str
    brokers: list[ReplicaBroker]
    environment: dict[str, str]
    """The keys of commands."""

    async def run(self, *line: str) -> str:
        """Run a command of ours; return its output."""
        invoke = partial(CliRunner(env=self.environment).invoke, root)
        result = await asyncio.to_thread(invoke, list(line))
        assert result.exit_code == 0, (result.output, result.exception)
        return result.output

    async def status(self) -> list[dict[str, Any]]:
        """What `cometmq controller status` says."""
        rows: list[dict[str, Any]] = json.loads(
            await self.run("controller", "status", SET, "-a", self.controller, "--json")
        )
        return rows

    async def whole(self) -> dict[str, Any]:
        """Wait until all are in sync; return the master's row."""
        async with asyncio.timeout(60):
            while True:
                rows = await self.status()
                masters = [row for row in rows if row["role"] == "master"]
                if masters and all(row["in_sync"] and row["alive"] for row in rows):
                    return masters[0]


@contextlib.asynccontextmanager
async def replica_set(
    folder: Path, access: Mapping[str, Any] | None = None, keys: Credentials | None = None
) -> AsyncIterator[RealSet]:
    """Run a set until all of it is in sync; `access` are settings of all servers."""
    access = access or {}
    env, disk = system_environment(), RealDisk()
    host = f"{OWN_NETWORK}.1"
    settings: dict[str, Any] = {
        "controllerPort": 0,
        "bindAddress": host,
        "controllerStorePath": str(folder / "controller"),
        **access,
    }
    controller = open_controller(load_controller_config(overrides=settings).config, env, disk)
    settings = {
        "listenPort": 0,
        "bindAddress": host,
        "kvConfigPath": str(folder / "kv.json"),
        "configStorePath": str(folder / "namesrv.conf"),
        **access,
    }
    names = NameServer(load_name_server_config(overrides=settings).config, env, disk)
    async with contextlib.AsyncExitStack() as stack:
        await controller.start()
        stack.push_async_callback(controller.stop)
        await names.start()
        stack.push_async_callback(names.stop)
        environment = {}
        if keys is not None:
            environment = {
                "COMETMQ_ACCESS_KEY": keys.access_key,
                "COMETMQ_SECRET_KEY": keys.secret_key,
            }
        servers = RealSet(controller.address, f"{host}:{names.port}", [], environment)
        for number in (2, 3, 4):
            address = f"{OWN_NETWORK}.{number}"
            settings = {
                **SMALL,
                "brokerName": SET,
                "brokerIP1": address,
                "bindAddress": address,
                "listenPort": "10911",
                "storePathRootDir": str(folder / str(number)),
                "namesrvAddr": servers.name_server,
                "controllerAddr": servers.controller,
                "enableControllerMode": "true",
                "minInSyncReplicas": "2",
                **access,
            }
            broker = ReplicaBroker(
                load_config(overrides=settings, environment={}).config, env, disk
            )
            await broker.start()
            stack.push_async_callback(broker.stop)
            servers.brokers.append(broker)
        await servers.whole()
        yield servers


def test_the_master_changes_by_commands_and_no_send_fails(tmp_path: Path) -> None:
    """`step-down` and `elect` of `cometmq replica`, while a producer sends; `status` shows them."""

    async def main() -> None:
        async with (
            replica_set(tmp_path) as servers,
            cometmq.Producer("p", name_server=servers.name_server, timeout_ms=60_000) as producer,
        ):
            first = await servers.whole()
            sent = [await producer.send(Message("T", b"first"))]
            assert sent[0].barrier == "replicas=in-sync"
            is_over = asyncio.Event()

            async def send() -> None:
                while not is_over.is_set():
                    sent.append(await producer.send(Message("T", b"more")))

            sending = asyncio.create_task(send())
            await servers.run("replica", "step-down", SET, "-n", servers.name_server)
            second = await servers.whole()
            assert second["id"] != first["id"]
            assert {result.status.name for result in sent} == {"SEND_OK"}
            controller = ["-a", servers.controller]
            await servers.run("replica", "elect", SET, str(first["id"]), *controller)
            third = await servers.whole()
            assert third["id"] == first["id"]
            assert third["master_epoch"] == first["master_epoch"] + 2
            is_over.set()
            # None fails; those that waited at the old master may have to be sent again.
            await sending
            rows = json.loads(
                await servers.run("replica", "status", SET, "-n", servers.name_server, "--json")
            )
            assert [row["state"] for row in rows] == ["master", "following", "following"]

    asyncio.run(main())


def test_a_set_whose_servers_check_requests(tmp_path: Path) -> None:
    """Replicas and controller sign with the inner account; users are at every replica."""
    root_keys = Credentials("root", "secret-of-root")
    inner = {"accessKey": "inner", "secretKey": "secret-of-inner"}
    access = {
        "authenticationEnabled": True,
        "authorizationEnabled": True,
        "initAuthenticationUser": json.dumps(
            {"username": root_keys.access_key, "password": root_keys.secret_key}
        ),
        "innerClientAuthenticationCredentials": json.dumps(inner),
    }
    alice: dict[str, Any] = {"access_key": "alice", "secret_key": "secret-of-alice"}

    async def main() -> None:
        async with replica_set(tmp_path, access, root_keys) as servers:
            address = servers.name_server
            async with Admin(
                name_server=address, access_key="root", secret_key="secret-of-root"
            ) as admin:
                await admin.create_topic("T", queue_count=1)
                await admin.put_user("alice", password="secret-of-alice")
                allow = {"resource": "Topic:T", "actions": ["Pub"], "decision": "Allow"}
                await admin.put_policies("alice", [{"policyType": "Custom", "entries": [allow]}])
            async with cometmq.Producer(
                "p", name_server=address, timeout_ms=60_000, **alice
            ) as producer:
                await producer.send(Message("T", b"before"))
                first = await servers.whole()
                await servers.run("replica", "step-down", SET, "-n", address)
                second = await servers.whole()
                assert second["id"] != first["id"]
                await producer.send(Message("T", b"after"))
            nobody = RealSet(servers.controller, address, [], {})
            with pytest.raises(AssertionError, match="username cannot be null"):
                await nobody.status()

    asyncio.run(main())
