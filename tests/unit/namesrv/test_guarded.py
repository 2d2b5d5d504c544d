"""A name server that checks who asks: every code, brokers that sign, and accounts of its own."""

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cometmq import Admin, Message, Producer
from cometmq.broker.base.config import load_config
from cometmq.broker.broker import Broker
from cometmq.errors import AccessDenied, CometError, ConfigError
from cometmq.namesrv import NameServer
from cometmq.namesrv.config import load_name_server_config
from cometmq.namesrv.needs import NAME_SERVER_NEEDS
from cometmq.net.env import system_environment
from cometmq.store.base.disk import RealDisk
from cometmq.testing.cluster import SMALL_STORE, EmbeddedCluster, threaded_cluster
from cometmq.wire.command.codes import RequestCode as Code
from cometmq.wire.command.command import RemotingCommand, encode_command
from cometmq.wire.frame.acl import Credentials
from cometmq.wire.frame.framing import FrameReader

ROOT = Credentials("root", "secret-of-root")
WEAK = Credentials("weak", "secret-of-weak")
INNER = Credentials("inner", "secret-of-inner")
SETTINGS: dict[str, Any] = {
    "authenticationEnabled": True,
    "authorizationEnabled": True,
    "initAuthenticationUser": json.dumps({"username": "root", "password": ROOT.secret_key}),
}
INNER_SETTING = {
    "innerClientAuthenticationCredentials": json.dumps(
        {"accessKey": INNER.access_key, "secretKey": INNER.secret_key}
    )
}
STRANGERS = {
    "nobody": (None, "username cannot be null."),
    "a stranger": (Credentials("eve", "secret-of-eve"), "User:eve is not found."),
    "a wrong secret": (Credentials("root", "guessed"), "check signature failed."),
}


def keys(who: Credentials) -> dict[str, Any]:
    """Arguments of a client."""
    return {"access_key": who.access_key, "secret_key": who.secret_key}


def ask(address: str, command: RemotingCommand) -> RemotingCommand:
    """The answer to one request."""
    host, _, port = address.rpartition(":")
    reader = FrameReader()
    with socket.create_connection((host, int(port)), 30) as connection:
        connection.sendall(encode_command(command))
        while True:
            data = connection.recv(65536)
            assert data, "the server closed the connection"
            for answer in reader.receive(data):
                assert isinstance(answer, RemotingCommand)
                return answer


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """Name server and broker of one process, which share their accounts."""
    from cometmq.sync import Admin as SyncAdmin

    with threaded_cluster(SETTINGS) as running:
        with SyncAdmin(name_server=running.name_server_address, **keys(ROOT)) as admin:
            admin.put_user("weak", password=WEAK.secret_key)
            admin.create_topic("Payroll", queue_count=1)
        yield running


def codes(cluster: EmbeddedCluster) -> list[int]:
    """Every code that the name server serves."""
    return sorted(cluster.standalone.name_server._server.handlers)


def test_every_code_has_its_need(cluster: EmbeddedCluster) -> None:
    """A new code without an entry fails here, and so does an entry without a code."""
    assert codes(cluster) == sorted(NAME_SERVER_NEEDS)


@pytest.mark.parametrize("who", STRANGERS)
def test_no_code_is_served_to_strangers(cluster: EmbeddedCluster, who: str) -> None:
    """Whatever they ask."""
    credentials, remark = STRANGERS[who]
    for code in codes(cluster):
        command = RemotingCommand.request(code, {"topic": "Payroll"})
        if credentials is not None:
            credentials.sign_command(command)
        answer = ask(cluster.name_server_address, command)
        assert (answer.code, answer.remark) == (16, remark), code


def test_a_user_without_policies_sees_the_brokers_alone(cluster: EmbeddedCluster) -> None:
    """And the route of the topic by which producers find brokers that create topics."""
    served = set()
    for code in codes(cluster):
        command = RemotingCommand.request(
            code,
            {"topic": "Payroll", "username": "root", "subject": "User:root", "namespace": "n"},
            body=b"{}",
        )
        WEAK.sign_command(command)
        answer = ask(cluster.name_server_address, command)
        if answer.code != 16:
            served.add(code)
    assert served == {Code.GET_BROKER_CLUSTER_INFO}
    command = RemotingCommand.request(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
    WEAK.sign_command(command)
    assert ask(cluster.name_server_address, command).code == 0


def test_a_super_user_is_refused_nothing(cluster: EmbeddedCluster) -> None:
    """Requests that make no sense are refused for that, and not with code 16."""
    for code in codes(cluster):
        if code in (Code.UPDATE_NAMESRV_CONFIG, Code.AUTH_DELETE_USER):
            continue
        command = RemotingCommand.request(code, {"topic": "Spare", "brokerName": "x"}, body=b"{}")
        ROOT.sign_command(command)
        assert ask(cluster.name_server_address, command).code != 16, code


def test_settings_show_no_secrets(cluster: EmbeddedCluster) -> None:
    """Not even to a super user."""
    command = RemotingCommand.request(Code.GET_NAMESRV_CONFIG)
    ROOT.sign_command(command)
    text = ask(cluster.name_server_address, command).body.decode()
    assert "initAuthenticationUser=***" in text
    assert ROOT.secret_key not in text


def servers(
    folder: Path, broker_settings: dict[str, Any], name_server_settings: dict[str, Any]
) -> tuple[NameServer, Any]:
    """A name server, and what makes a broker once that one listens."""
    env, disk = system_environment(), RealDisk()
    given = {
        "listenPort": 0,
        "bindAddress": "127.0.0.1",
        "kvConfigPath": f"{folder}/namesrv/kv.json",
        **name_server_settings,
    }
    name_server = NameServer(load_name_server_config(overrides=given).config, env, disk)

    def broker() -> Broker:
        settings = {
            **SMALL_STORE,
            "brokerName": "broker-a",
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": 0,
            "namesrvAddr": name_server.address,
            "storePathRootDir": str(folder / "store"),
            **broker_settings,
        }
        return Broker(load_config(overrides=settings, environment={}).config, env, disk)

    return name_server, broker


def test_a_broker_signs_what_it_registers(tmp_path: Path) -> None:
    """With the inner account of both; and changes of accounts go to both servers."""

    async def story() -> None:
        settings = {**SETTINGS, **INNER_SETTING}
        name_server, broker_of = servers(tmp_path, settings, settings)
        await name_server.start()
        broker = broker_of()
        await broker.start()
        try:
            address = name_server.address
            assert name_server.routes.cluster_info()[0].keys() == {"broker-a"}
            async with Admin(name_server=address, **keys(ROOT)) as admin:
                await admin.create_topic("Orders", queue_count=1)
                await admin.put_user("alice", password="secret-of-alice")
                allow = {"resource": "Topic:Orders", "actions": ["Pub"], "decision": "Allow"}
                await admin.put_policies("alice", [{"policyType": "Custom", "entries": [allow]}])
            alice = Credentials("alice", "secret-of-alice")
            async with Producer("p", name_server=address, **keys(alice)) as producer:
                await producer.send(Message("Orders", b"mine"))
                with pytest.raises(AccessDenied, match="Topic:Payroll"):
                    await producer.send(Message("Payroll", b"not mine"))
            async with Admin(name_server=address, **keys(ROOT)) as admin:
                await admin.delete_user("alice")
            async with Producer("p", name_server=address, **keys(alice)) as producer:
                with pytest.raises(AccessDenied, match="User:alice is not found"):
                    await producer.send(Message("Orders", b"no more"))
        finally:
            await broker.stop()
            await name_server.stop()

    asyncio.run(story())
    saved = (tmp_path / "namesrv" / "cometmqAccounts.json").read_text()
    assert (
        json.loads(saved)["users"]
        == json.loads((tmp_path / "store" / "config" / "cometmqAccounts.json").read_text())["users"]
    )


def test_a_broker_that_does_not_sign_is_not_registered(tmp_path: Path) -> None:
    """Nor does anybody take its name from the outside."""

    async def story() -> None:
        name_server, broker_of = servers(tmp_path, {}, SETTINGS)
        await name_server.start()
        broker = broker_of()
        await broker.start()
        try:
            assert name_server.routes.cluster_info() == ({}, {})
            assert name_server.guard is not None
            assert name_server.guard.refused["authentication"] > 0
            async with Admin(name_server=name_server.address) as admin:
                with pytest.raises(CometError, match="username cannot be null"):
                    await admin.cluster_info()
        finally:
            await broker.stop()
            await name_server.stop()

    asyncio.run(story())


def test_settings_that_protect_nobody_stop_the_start(tmp_path: Path) -> None:
    """As at a broker."""
    with pytest.raises(ConfigError, match="without authenticationEnabled"):
        load_name_server_config(overrides={"authorizationEnabled": True})
    name_server, _ = servers(tmp_path, {}, {"authenticationEnabled": True})
    with pytest.raises(ConfigError, match="no super user exists"):
        asyncio.run(name_server.start())
