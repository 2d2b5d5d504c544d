"""RocketMQ's brokers as masters and slaves of ours: the same bytes, the same queues, both ways."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from interop.driver import Peer
from interop.peers import Unavailable, mqadmin_command
from interop.servers import Cluster, JavaCluster, OurCluster
from tests.raw_client import RawClient

import cometmq.sync
from cometmq import Message
from cometmq.errors import CometError
from cometmq.wire.body.route import decode_kv_table
from cometmq.wire.command.codes import RequestCode

FILE_BYTES = 1 << 20
BODIES = 400
BODY_BYTES = 4000
WAIT_S = 60.0
SMALL = {"mappedFileSizeCommitLog": str(FILE_BYTES), "slaveReadEnable": "true"}


def member(
    kind: type[JavaCluster | OurCluster], folder: Path, first: Cluster | None, role: str
) -> JavaCluster | OurCluster:
    """A broker of the set: the master, or a slave with id 1."""
    member_id = "1" if role == "SLAVE" else "0"
    settings = {**SMALL, "brokerName": "broker-a", "brokerRole": role, "brokerId": member_id}
    return kind(folder, first, settings=settings)


@pytest.fixture(params=["ours behind Java's", "Java's behind ours"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Cluster, Cluster]]:
    """A master of one kind with its name server, and a slave of the other kind, which waits."""
    master_kind, slave_kind = (
        (JavaCluster, OurCluster) if request.param.startswith("ours") else (OurCluster, JavaCluster)
    )
    try:
        master = member(master_kind, tmp_path / "master", None, "ASYNC_MASTER")
        slave = member(slave_kind, tmp_path / "slave", master, "SLAVE")
    except Unavailable as error:
        pytest.skip(str(error))
    with ExitStack() as stack:
        stack.enter_context(master)
        stack.callback(slave.close)
        yield master, slave


def eventually(holds: Callable[[], bool]) -> None:
    """Wait until something holds at a foreign process."""
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def log_files(cluster: Cluster) -> dict[str, bytes]:
    """The log files by name; Java makes the next one early, without bytes."""
    files = {path.name: path.read_bytes() for path in (cluster.store_path / "commitlog").iterdir()}
    return {name: data for name, data in files.items() if data.strip(b"\0")}


def log_end(cluster: Cluster) -> int:
    """Physical offset at which a broker's log ends; -1 while it does not answer."""
    try:
        with RawClient(cluster.broker) as client:
            answer = client.call(RequestCode.GET_BROKER_RUNTIME_INFO)
        return int(decode_kv_table(answer.body)["commitLogMaxOffset"])
    except (OSError, CometError):
        return -1


def is_routed(master: Cluster) -> bool:
    """Whether the name server has the master, which registers a while after its start."""
    with cometmq.sync.Admin(name_server=master.name_server) as admin:
        brokers = admin.cluster_info().brokers
    return "broker-a" in brokers and brokers["broker-a"].master_address is not None


def send(master: Cluster, turn: int) -> None:
    """Send some messages to both queues, about two log files of them."""
    with cometmq.sync.Producer("p", name_server=master.name_server) as producer:
        for number in range(BODIES):
            body = b"%d/%d " % (turn, number) + bytes(BODY_BYTES)
            producer.send(Message("T", body, tags="A", keys=f"{turn}-{number}"))


def read_all(name_server: str, count: int) -> set[bytes]:
    """The beginnings of all bodies, read from whoever is there."""
    bodies: set[bytes] = set()
    deadline = time.monotonic() + WAIT_S
    with cometmq.sync.PullConsumer(
        "readers", {"T": "*"}, name_server=name_server, consume_from="first"
    ) as consumer:
        while len(bodies) < count and time.monotonic() < deadline:
            bodies |= {message.body.split()[0] for message in consumer.poll(timeout_ms=1000)}
    return bodies


@pytest.mark.full
def test_slave_has_the_masters_log_byte_for_byte(pair: tuple[Cluster, Cluster]) -> None:
    """What was there before and what comes later, over ends of files, a restart of the slave and
    one of the master; then a consumer reads everything from the slave alone."""
    master, slave = pair

    def is_equal() -> bool:
        return log_end(slave) == log_end(master) > 0

    with cometmq.sync.Admin(name_server=master.name_server) as admin:
        admin.create_topic("T", read_queue_count=2, write_queue_count=2)
    is_ours = isinstance(slave, OurCluster)
    send(master, 0)
    slave.start_broker()
    eventually(is_equal)
    send(master, 1)
    slave.stop_broker()
    send(master, 2)
    slave.start_broker()
    eventually(is_equal)
    master.stop_broker()
    master.start_broker()
    eventually(lambda: is_routed(master))
    send(master, 3)
    eventually(is_equal)
    whole, copied = log_files(master), log_files(slave)
    assert len(whole) > 3
    if is_ours:
        assert copied == whole
    # A Java slave without a log has got the log from the begin of a file on.
    assert copied == {name: whole[name] for name in copied}
    assert len(copied) > 3
    if not is_ours:
        return
    # The slave has the topic by now, or gets it with its next copy of the tables.
    eventually(lambda: has_topic(slave))
    master.stop_broker(signal.SIGKILL)
    bodies = read_all(master.name_server, 4 * BODIES)
    assert bodies == {b"%d/%d" % (turn, number) for turn in range(4) for number in range(BODIES)}


@pytest.mark.full
def test_mqadmin_shows_both_ends(pair: tuple[Cluster, Cluster], tmp_path: Path) -> None:
    """`haStatus` of a master names its slave and that it has everything, that of a slave its
    master, whichever of the two is ours."""
    master, slave = pair
    eventually(lambda: is_routed(master))
    send(master, 0)
    slave.start_broker()
    eventually(lambda: log_end(slave) == log_end(master) > 0)
    end = str(log_end(master))
    try:
        command = mqadmin_command(tmp_path / "mqadmin")
    except Unavailable as error:
        pytest.skip(str(error))
    with Peer("mqadmin", command, tmp_path / "mqadmin") as peer:

        def shown(cluster: Cluster) -> str:
            line = ["haStatus", "-n", master.name_server, "-b", cluster.broker]
            text: str = peer.call("mqadmin", line=line)["out"]
            return text

        # A Java slave acknowledges with its next heartbeat.
        row = [end, "0"]
        eventually(lambda: shown(master).splitlines()[-1].split()[1:3] == row)
        at_master, at_slave = shown(master), shown(slave)
    assert f"#MasterCommitLogMaxOffset\t{end}" in at_master
    assert "#SlaveNum\t1" in at_master
    assert at_master.splitlines()[-1].split()[4] == "OK"
    assert f"#CommitLogMaxOffset\t{end}" in at_slave
    assert "#MasterAddr\t" in at_slave


def has_topic(cluster: Cluster) -> bool:
    """Whether a broker has topic T."""
    with RawClient(cluster.broker) as client:
        return client.call(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"}).code == 0
