"""RocketMQ's clients and mqadmin with keys, at our servers that check them, by ACL 2.0 and 1.0."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from interop.driver import Peer
from interop.peers import GO, JAVA_CLIENTS, Unavailable, driver_command, mqadmin_command
from interop.servers import OurCluster
from tests.interop.stage import bodies_of, letter

import cometmq.sync

ROOT = ("root", "secret-of-root")
ALICE = ("alice", "secret-of-alice")
SETTINGS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": ROOT[0], "password": ROOT[1]}),
    "innerClientAuthenticationCredentials": json.dumps(
        {"accessKey": "inner", "secretKey": "secret-of-inner"}
    ),
}
PLAIN_ADMIN = ("administrator", "12345678")
PLAIN_USER = ("user_of_orders", "87654321")
PLAIN = f"""
globalWhiteRemoteAddresses:
accounts:
  - accessKey: {PLAIN_ADMIN[0]}
    secretKey: {PLAIN_ADMIN[1]}
    whiteRemoteAddress:
    admin: true
  - accessKey: {PLAIN_USER[0]}
    secretKey: {PLAIN_USER[1]}
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: DENY
    topicPerms:
      - Orders=PUB|SUB
    groupPerms:
      - readers=SUB
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurCluster]:
    """A running cluster."""
    folder = tmp_path_factory.mktemp("access")
    with OurCluster(folder, settings=SETTINGS, name_server_settings=SETTINGS) as made:
        yield made


@pytest.fixture(scope="module")
def plain_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurCluster]:
    """Servers that live by a plain_acl.yml."""
    folder = tmp_path_factory.mktemp("plain")
    path = folder / "plain_acl.yml"
    path.write_text(PLAIN, "utf-8")
    settings = {
        "aclEnable": "true",
        "plainAclFile": str(path),
        "innerClientAuthenticationCredentials": SETTINGS["innerClientAuthenticationCredentials"],
    }
    with OurCluster(folder, settings=settings, name_server_settings=settings) as made:
        yield made


def signed(command: list[str], keys: tuple[str, str] | None) -> list[str]:
    """A driver's command that signs with these keys: Java's by options, others by variables."""
    if keys is None:
        return command
    if Path(command[0]).name != "java":
        return ["env", f"COMETMQ_ACCESS_KEY={keys[0]}", f"COMETMQ_SECRET_KEY={keys[1]}", *command]
    options = [f"-Dinterop.accessKey={keys[0]}", f"-Dinterop.secretKey={keys[1]}"]
    return [command[0], *options, *command[1:]]


@contextlib.contextmanager
def mqadmin_of(cluster: OurCluster, keys: tuple[str, str], folder: Path) -> Iterator[Any]:
    """Runs a line of mqadmin with these keys; gives what it printed."""
    try:
        command = mqadmin_command(folder / "home")
    except Unavailable as reason:
        pytest.skip(str(reason))
    with Peer("mqadmin", signed(command, keys), folder) as peer:

        def run(*line: str) -> str:
            arguments = [*line, "-n", cluster.name_server]
            answer = peer.call("mqadmin", line=arguments, timeout=60_000)
            return str(answer["out"]) + str(answer["err"])

        yield run


@pytest.fixture
def mqadmin(cluster: OurCluster, tmp_path: Path) -> Iterator[Any]:
    """The tool with the keys of the super user."""
    with mqadmin_of(cluster, ROOT, tmp_path) as run:
        yield run


def test_mqadmin_manages_accounts_and_a_java_client_lives_by_them(
    cluster: OurCluster, mqadmin: Any, tmp_path: Path
) -> None:
    """Users and policies by RocketMQ's own commands; then a Java client with and without keys."""
    at = ("-c", "DefaultCluster")
    mqadmin("updateTopic", *at, "-t", "Orders", "-r", "1", "-w", "1")
    mqadmin("updateTopic", *at, "-t", "Payroll", "-r", "1", "-w", "1")
    grants = ("-s", "User:alice", "-a", "Pub,Sub,Get", "-d", "Allow")
    # A name server has accounts of its own, and takes the tool's requests as a broker does.
    for where in (at, ("-b", cluster.name_server)):
        mqadmin("createUser", *where, "-u", ALICE[0], "-p", ALICE[1])
        mqadmin("createAcl", *where, *grants, "-r", "Topic:Orders,Group:readers")
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
        assert refused["error"], refused
    for keys in (None, ("alice", "guessed")):
        with Peer("java", signed(command, keys), tmp_path) as peer:
            peer.call("producer", name="p", instance="p", group="writers", **names)
            (refused,) = peer.call(
                "send", name="p", mode="sync", messages=[letter("Orders", b"x", 0)]
            )
            assert refused["error"], refused
    with cometmq.sync.Admin(
        name_server=cluster.name_server, access_key=ROOT[0], secret_key=ROOT[1]
    ) as admin:
        assert sum(each.count for each in admin.topic_offsets("Orders").values()) == len(bodies)

    mqadmin("deleteAcl", *at, "-s", "User:alice", "-r", "Topic:Orders")
    assert "Topic:Orders" not in mqadmin("getAcl", *at, "-s", "User:alice")
    mqadmin("deleteUser", *at, "-u", "alice")
    assert "alice" not in mqadmin("listUser", *at)


@pytest.mark.parametrize("name", ["java-5.4.0", "java-4.9.8", f"go-{GO}", "cometmq"])
def test_clients_live_by_a_plain_acl_file(
    plain_cluster: OurCluster, tmp_path: Path, name: str
) -> None:
    """Each sends and consumes what its account may, is refused the rest, and a wrong secret too."""
    with mqadmin_of(plain_cluster, PLAIN_ADMIN, tmp_path / "tool") as mqadmin:
        at = ("-c", "DefaultCluster")
        for topic in ("Orders", "Payroll"):
            mqadmin("updateTopic", *at, "-t", topic, "-r", "1", "-w", "1")
        assert "Orders" in mqadmin("topicList")
    with mqadmin_of(plain_cluster, PLAIN_USER, tmp_path / "weak") as mqadmin:
        assert "Need admin permission" in mqadmin(
            "updateTopic", *at, "-t", "New", "-r", "1", "-w", "1"
        )
    try:
        command = driver_command(name, tmp_path / "peer")
    except Unavailable as reason:
        pytest.skip(str(reason))
    names: dict[str, Any] = {"nameServer": plain_cluster.name_server}
    bodies = [f"{name} {number}".encode() for number in range(10)]
    with Peer(name, signed(command, PLAIN_USER), tmp_path / "driver") as peer:
        peer.call("producer", name="p", instance="p", group="writers", **names)
        peer.call("push", name="c", instance="c", group="readers", topics={"Orders": "*"}, **names)
        letters = [letter("Orders", body, number) for number, body in enumerate(bodies)]
        peer.call("send", name="p", mode="sync", messages=letters)
        met = peer.wait_messages("c", lambda got: set(bodies) <= set(bodies_of(got)), 60)
        assert set(bodies) <= set(bodies_of(met))
        (refused,) = peer.call("send", name="p", mode="sync", messages=[letter("Payroll", b"x", 0)])
        assert refused["error"], refused
    with Peer(name, signed(command, (PLAIN_USER[0], "guessed!")), tmp_path / "other") as peer:
        peer.call("producer", name="p", instance="p", group="writers", **names)
        (refused,) = peer.call("send", name="p", mode="sync", messages=[letter("Orders", b"x", 0)])
        assert refused["error"], refused
