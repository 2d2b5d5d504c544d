"""RocketMQ's Java client and mqadmin with keys, at our broker that checks them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from interop.driver import Peer
from interop.peers import JAVA_CLIENTS, Unavailable, driver_command, mqadmin_command
from interop.servers import OurCluster
from tests.interop.stage import bodies_of, letter

import cometmq.sync

ROOT = ("root", "secret-of-root")
ALICE = ("alice", "secret-of-alice")
SETTINGS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": ROOT[0], "password": ROOT[1]}),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurCluster]:
    """A running cluster."""
    with OurCluster(tmp_path_factory.mktemp("access"), settings=SETTINGS) as made:
        yield made


def signed(command: list[str], keys: tuple[str, str] | None) -> list[str]:
    """A command of Java that signs with these keys."""
    if keys is None:
        return command
    options = [f"-Dinterop.accessKey={keys[0]}", f"-Dinterop.secretKey={keys[1]}"]
    return [command[0], *options, *command[1:]]


@pytest.fixture
def mqadmin(cluster: OurCluster, tmp_path: Path) -> Iterator[Any]:
    """Runs a line of mqadmin with the keys of the super user; gives what it printed."""
    try:
        command = mqadmin_command(tmp_path / "home")
    except Unavailable as reason:
        pytest.skip(str(reason))
    with Peer("mqadmin", signed(command, ROOT), tmp_path) as peer:

        def run(*line: str) -> str:
            arguments = [*line, "-n", cluster.name_server]
            answer = peer.call("mqadmin", line=arguments, timeout=60_000)
            return str(answer["out"]) + str(answer["err"])

        yield run


def test_mqadmin_manages_accounts_and_a_java_client_lives_by_them(
    cluster: OurCluster, mqadmin: Any, tmp_path: Path
) -> None:
    """Users and policies by RocketMQ's own commands; then a Java client with and without keys."""
    at = ("-c", "DefaultCluster")
    mqadmin("updateTopic", *at, "-t", "Orders", "-r", "1", "-w", "1")
    mqadmin("updateTopic", *at, "-t", "Payroll", "-r", "1", "-w", "1")
    mqadmin("createUser", *at, "-u", ALICE[0], "-p", ALICE[1])
    grants = ("-s", "User:alice", "-a", "Pub,Sub,Get", "-d", "Allow")
    mqadmin("createAcl", *at, *grants, "-r", "Topic:Orders,Group:readers")
    assert "alice" in mqadmin("listUser", *at)
    assert ALICE[1] not in mqadmin("getUser", *at, "-u", "alice")
    shown = mqadmin("getAcl", *at, "-s", "User:alice")
    assert "Topic:Orders" in shown
    assert "Group:readers" in shown

    command = driver_command(f"java-{JAVA_CLIENTS[0]}", tmp_path / "java")
    names: dict[str, Any] = {"nameServer": cluster.name_server}
    bodies = [f"order {number}".encode() for number in range(20)]
    with Peer("java", signed(command, ALICE), tmp_path) as peer:
        peer.call("producer", name="p", instance="p", group="writers", **names)
        peer.call("push", name="c", instance="c", group="readers", topics={"Orders": "*"}, **names)
        letters = [letter("Orders", body, number) for number, body in enumerate(bodies)]
        peer.call("send", name="p", mode="sync", messages=letters)
        met = peer.wait_messages("c", lambda got: len(got) >= len(bodies), 60)
        assert sorted(bodies_of(met)) == sorted(bodies)
        (refused,) = peer.call("send", name="p", mode="sync", messages=[letter("Payroll", b"x", 0)])
        assert refused["error"]["code"] == 16
    for keys in (None, ("alice", "guessed")):
        with Peer("java", signed(command, keys), tmp_path) as peer:
            peer.call("producer", name="p", instance="p", group="writers", **names)
            (refused,) = peer.call(
                "send", name="p", mode="sync", messages=[letter("Orders", b"x", 0)]
            )
            assert refused["error"]["code"] == 16
    with cometmq.sync.Admin(
        name_server=cluster.name_server, access_key=ROOT[0], secret_key=ROOT[1]
    ) as admin:
        assert sum(each.count for each in admin.topic_offsets("Orders").values()) == len(bodies)

    mqadmin("deleteAcl", *at, "-s", "User:alice", "-r", "Topic:Orders")
    assert "Topic:Orders" not in mqadmin("getAcl", *at, "-s", "User:alice")
    mqadmin("deleteUser", *at, "-u", "alice")
    assert "alice" not in mqadmin("listUser", *at)
