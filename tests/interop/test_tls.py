"""RocketMQ's Java client, mqadmin and broker at our servers that demand TLS."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from interop.driver import Peer
from interop.peers import JAVA_CLIENTS, Unavailable, driver_command
from interop.servers import JavaCluster, OurCluster
from tests.certificates import Authority
from tests.interop.stage import bodies_of, letter

import cometmq.sync
from cometmq import Message, Tls


class TlsCluster(OurCluster):
    """Our servers; the name server gets the settings of TLS too."""

    def name_server_command(self) -> list[str]:
        """`cometmq name-server`."""
        settings = (f"--set={key}={value}" for key, value in self.settings.items())
        return [*super().name_server_command(), *settings]


class Secured:
    """A cluster of ours, and Java's options of a client that it admits."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder)
        server, client = authority.sign("server"), authority.sign("client")
        self.tls = Tls(authority.ca, *client)
        self.settings = {
            "tls.server.mode": "enforcing",
            "tls.server.certPath": server[0],
            "tls.server.keyPath": server[1],
            "tls.server.need.client.auth": "require",
            "tls.server.trustCertPath": authority.ca,
            "tls.enable": "true",
            "tls.client.trustCertPath": authority.ca,
            "tls.client.certPath": client[0],
            "tls.client.keyPath": client[1],
        }
        self.cluster = TlsCluster(folder / "servers", settings=self.settings)
        values = {
            **self.settings,
            "tls.test.mode.enable": "false",
            "tls.server.authClient": "true",
            "tls.client.authServer": "true",
        }
        self.java_options = [f"-D{key}={value}" for key, value in values.items()]

    def java(self, command: list[str]) -> list[str]:
        """A command of Java with these options."""
        return [command[0], *self.java_options, *command[1:]]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A running cluster."""
    made = Secured(tmp_path_factory.mktemp("tls"))
    with made.cluster:
        yield made


def test_a_java_client_sends_and_receives(secured: Secured, tmp_path: Path) -> None:
    """It shows its certificate; our own client reads what it sent."""
    try:
        command = driver_command(f"java-{JAVA_CLIENTS[0]}", tmp_path / "home")
    except Unavailable as reason:
        pytest.skip(str(reason))
    options: dict[str, Any] = {"name_server": secured.cluster.name_server, "tls": secured.tls}
    with cometmq.sync.Admin(**options) as admin:
        admin.create_topic("Secret", queue_count=1)
    bodies = [f"secret {number}".encode() for number in range(20)]
    at: dict[str, Any] = {"nameServer": secured.cluster.name_server}
    with Peer("java", secured.java(command), tmp_path) as peer:
        peer.call("producer", name="p", instance="p", group="writers", **at)
        peer.call("push", name="c", instance="c", group="readers", topics={"Secret": "*"}, **at)
        letters = [letter("Secret", body, number) for number, body in enumerate(bodies)]
        peer.call("send", name="p", mode="sync", messages=letters)
        met = peer.wait_messages("c", lambda got: len(got) >= len(bodies), 60)
        assert sorted(bodies_of(met)) == sorted(bodies)
    with cometmq.sync.PullConsumer("ours", **options) as consumer:
        consumer.assign(consumer.fetch_queues("Secret"))
        for queue in consumer.assignment():
            consumer.seek_to_begin(queue)
        got = [message.body for message in consumer.poll(30_000)]
    assert got == bodies[: len(got)] != []


def wait_for(holds: Callable[[], bool]) -> None:
    """Wait until something holds that other processes bring about."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "waited 60 s"
        time.sleep(0.05)


def test_a_java_broker_registers(secured: Secured, tmp_path: Path) -> None:
    """At our name server, with its certificate; our client sends to it and to our broker."""
    try:
        java = JavaCluster(
            tmp_path / "java",
            joins=secured.cluster,
            settings={"brokerName": "java"},
            options=secured.java_options,
        )
    except Unavailable as reason:
        pytest.skip(str(reason))
    options: dict[str, Any] = {"name_server": secured.cluster.name_server, "tls": secured.tls}
    with java, cometmq.sync.Admin(**options) as admin:
        wait_for(lambda: len(admin.cluster_info().brokers) == 2)
        admin.create_topic("Both", queue_count=1)
        with cometmq.sync.Producer("p", **options) as producer:
            met = {producer.send(Message("Both", b"x")).message_queue.broker_name for _ in range(2)}
    assert "java" in met
    assert len(met) == 2
