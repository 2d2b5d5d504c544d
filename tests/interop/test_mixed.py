"""Java's broker at our name server, ours at Java's: one cluster, one topic over both."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from interop.driver import Peer
from interop.peers import JAVA_CLIENTS, Unavailable, driver_command
from interop.servers import Cluster, JavaCluster, OurCluster
from tests.interop.stage import OURS, Stage, check_flow, letter

import cometmq.sync

QUEUES = 4
ROUTE_TIMEOUT_S = 45.0


@pytest.fixture(params=["our name server", "Java's name server"])
def mixed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Stage, Cluster]]:
    """A name server of one kind with a broker of each kind, and both clients."""
    client = f"java-{JAVA_CLIENTS[0]}"
    try:
        command = driver_command(client, tmp_path / "home")
        if request.param == "our name server":
            first: Cluster = OurCluster(tmp_path / "first")
            second: Cluster = JavaCluster(tmp_path / "second", first)
        else:
            first = JavaCluster(tmp_path / "first")
            second = OurCluster(tmp_path / "second", first)
    except Unavailable as error:
        pytest.skip(str(error))
    with (
        first,
        second,
        Peer(client, command, tmp_path / "client") as peer,
        Peer(OURS, driver_command(OURS, tmp_path), tmp_path / "ours") as ours,
        cometmq.sync.Admin(name_server=first.name_server) as admin,
    ):
        stage = Stage(client, request.param, peer, ours, first, admin)
        stage.wait_route("TBW102")
        yield stage, second


@pytest.mark.full
def test_a_topic_over_brokers_of_both_kinds(mixed: tuple[Stage, Cluster]) -> None:
    """Both clients send to both brokers, and both groups get everything once."""
    stage, second = mixed
    wait_brokers(stage, {stage.cluster.broker_name, second.broker_name})
    topic = stage.topic(queues=QUEUES)
    wait_brokers(stage, {stage.cluster.broker_name, second.broker_name}, topic)
    theirs = stage.push({topic: "*"})
    ours = stage.push({topic: "*"}, by=stage.ours)
    letters = [letter(topic, f"body {n}".encode(), n, tags="T") for n in range(200)]
    results = stage.send(stage.producer(), letters[:100])
    results += stage.send(stage.producer(by=stage.ours), letters[100:], by=stage.ours)
    assert {result["queue"]["broker"] for result in results} == {"broker-a", "broker-b"}
    for peer, name in ((stage.peer, theirs), (stage.ours, ours)):
        received = peer.wait_messages(name, lambda got: len(got) >= len(letters))
        check_flow(letters, results, received, in_order=False)


def wait_brokers(stage: Stage, names: set[str], topic: str = "TBW102") -> None:
    """Wait until a topic's route names both brokers; a registration may lag by a moment."""
    deadline = time.monotonic() + ROUTE_TIMEOUT_S
    found: set[str] = set()
    while time.monotonic() < deadline:
        found = {data.broker_name for data in stage.admin.topic_route(topic).broker_datas}
        if found >= names:
            return
        time.sleep(0.02)
    raise AssertionError(f"the route of {topic} names {found} only")
