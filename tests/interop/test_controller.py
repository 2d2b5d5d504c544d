"""Replica sets of RocketMQ's brokers and ours, under our controller and RocketMQ's: masters are
killed, what was acknowledged stays, and RocketMQ's mqadmin sees and changes the set."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from interop.driver import Peer
from interop.peers import Unavailable, mqadmin_command
from interop.servers import Cluster, JavaCluster, OurCluster, OurController, free_port
from tests.raw_client import RawClient

import cometmq.sync
from cometmq import Message
from cometmq.errors import CometError
from cometmq.wire.body.controller import SetReplicas, decode_replicas_info, encode_broker_names
from cometmq.wire.command.codes import RequestCode

SET = "broker-a"
WAIT_S = 90.0
SETTINGS = {
    "brokerName": SET,
    "enableControllerMode": "true",
    "allAckInSyncStateSet": "true",
    "mappedFileSizeCommitLog": str(1 << 20),
    "slaveReadEnable": "true",
}


@dataclass
class ReplicaStage:
    """Controllers, a name server, and two Java brokers of one set."""

    controllers: list[str]
    names: Cluster
    brokers: list[Cluster]
    mqadmin: Peer
    acknowledged: set[bytes] = field(default_factory=set)

    def state(self) -> SetReplicas | None:
        """The set as the controller that leads shows it; None without one."""
        for controller in self.controllers:
            try:
                with RawClient(controller) as client:
                    answer = client.call(
                        RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=encode_broker_names([SET])
                    )
                if answer.code == 0:
                    return decode_replicas_info(answer.body).get(SET)
            except (OSError, CometError):
                continue
        return None

    def wait_for(self, *in_sync: int, master: int) -> SetReplicas:
        """Wait until the set has this master and these in-sync replicas, and all are alive."""
        deadline = time.monotonic() + WAIT_S
        while True:
            state = self.state()
            if (
                state is not None
                and state.master_id == master
                and tuple(each.broker_id for each in state.in_sync) == in_sync
                and all(each.is_alive for each in state.in_sync)
            ):
                return state
            assert time.monotonic() < deadline, state
            time.sleep(0.1)

    def send(self, count: int, turn: str) -> float:
        """Send so many messages, each until it is acknowledged; return how long the first took."""
        began = time.monotonic()
        first_s = 0.0
        for number in range(count):
            body = f"{turn}-{number}".encode()
            while True:
                try:
                    with cometmq.sync.Producer("p", name_server=self.names.name_server) as producer:
                        producer.send(Message("T", body), timeout_ms=1000)
                    break
                except CometError:
                    assert time.monotonic() - began < WAIT_S
                    time.sleep(0.02)
            self.acknowledged.add(body)
            first_s = first_s or time.monotonic() - began
        return first_s

    def check_ledger(self) -> None:
        """Everything that was acknowledged is there."""
        bodies: set[bytes] = set()
        deadline = time.monotonic() + WAIT_S
        with cometmq.sync.PullConsumer(
            f"g{len(self.acknowledged)}",
            {"T": "*"},
            name_server=self.names.name_server,
            consume_from="first",
        ) as consumer:
            while self.acknowledged - bodies and time.monotonic() < deadline:
                bodies |= {message.body for message in consumer.poll(timeout_ms=1000)}
        assert self.acknowledged - bodies == set()

    def admin(self, *line: str) -> str:
        """Run one line of RocketMQ's mqadmin against the first controller."""
        answer = self.mqadmin.call(
            "mqadmin", line=[*line, "-a", self.controllers[0]], timeout=60_000
        )
        return str(answer["out"]) + str(answer["err"])


@pytest.fixture
def etcd_url(tmp_path: Path) -> Iterator[str]:
    """A real etcd of one member."""
    program = shutil.which("etcd")
    if program is None:
        pytest.skip("etcd is not installed: apt-get install etcd-server")
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    with subprocess.Popen(
        [
            *(program, "--data-dir", str(tmp_path / "etcd"), "--name", "n"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"n={peer}"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        yield client
        process.kill()


class JavaNames(JavaCluster):
    """RocketMQ's name server with a controller inside, at `controller`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.controller = f"127.0.0.1:{free_port()}"

    def name_server_command(self) -> list[str]:
        """`NamesrvStartup -c` with the settings of a controller in the file."""
        command = super().name_server_command()
        with (self.folder / "namesrv.conf").open("a", encoding="utf-8") as file:
            file.write("enableControllerInNamesrv=true\ncontrollerDLegerGroup=g\n")
            file.write(f"controllerDLegerPeers=n0-{self.controller}\ncontrollerDLegerSelfId=n0\n")
            file.write(f"controllerStorePath={self.folder}/controller\n")
        return command


def start(
    stack: ExitStack,
    folder: Path,
    controllers: list[OurController],
    kinds: tuple[type[JavaCluster | OurCluster], ...] = (JavaCluster, JavaCluster),
) -> ReplicaStage:
    """Start everything; broker 1 is the master, and both are in sync.

    Without a controller of ours RocketMQ's name server runs one.
    """
    try:
        command = mqadmin_command(folder / "home")
        names = OurCluster(folder / "names") if controllers else JavaNames(folder / "names")
        addresses = [controller.address for controller in controllers]
        if isinstance(names, JavaNames):
            addresses.append(names.controller)
        settings = {**SETTINGS, "controllerAddr": ";".join(addresses)}
        brokers: list[Cluster] = [
            kind(folder / name, names, settings=settings)
            for kind, name in zip(kinds, ("one", "two"), strict=True)
        ]
    except Unavailable as error:
        pytest.skip(str(error))
    stack.callback(names.close)
    names.start_name_server()
    for controller in controllers:
        stack.callback(controller.stop, signal.SIGKILL)
        controller.start()
    mqadmin = stack.enter_context(Peer("mqadmin", command, folder / "mqadmin"))
    stage = ReplicaStage(addresses, names, brokers, mqadmin)
    for number, broker in enumerate(brokers, start=1):
        stack.callback(broker.close)
        broker.start_broker()
        stage.wait_for(*range(1, number + 1), master=1)
    return stage


@pytest.mark.full
def test_a_killed_java_master_is_replaced_and_comes_back(tmp_path: Path) -> None:
    """Twice, the second time by hand with electMaster; the controller is restarted in between."""
    with ExitStack() as stack:
        controller = OurController(tmp_path / "controller")
        stage = start(stack, tmp_path, [controller])
        first, second = stage.brokers
        stage.send(20, "before")
        first.stop_broker(signal.SIGKILL)
        took_s = stage.send(20, "switched")
        print(f"first acknowledged send after kill -9 of the master: {took_s:.3f} s")
        assert stage.wait_for(2, master=2).master_epoch == 2
        first.start_broker()
        stage.wait_for(1, 2, master=2)
        controller.stop(signal.SIGKILL)
        stage.send(5, "without")
        controller.start()
        stage.wait_for(1, 2, master=2)
        shown = stage.admin("getSyncStateSet", "-b", SET)
        assert "#MasterBrokerId\t2" in shown, shown
        assert "#SyncStateSetNums\t2" in shown, shown
        assert f"#ControllerLeaderAddress\t{controller.address}" in stage.admin(
            "getControllerMetaData"
        )
        assert "enableElectUncleanMaster" in stage.admin("getControllerConfig")
        updated = stage.admin(
            "updateControllerConfig", "-k", "enableElectUncleanMaster", "-v", "false"
        )
        assert "success" in updated, updated
        elected = stage.admin("electMaster", "-bn", SET, "-c", "DefaultCluster", "-b", "1")
        print(elected)
        state = stage.wait_for(1, 2, master=1)
        assert state.master_epoch == 3
        stage.send(20, "by hand")
        stage.check_ledger()
        second.stop_broker(signal.SIGKILL)
        stage.wait_for(1, master=1)
        cleaned = stage.admin("cleanBrokerMetadata", "-bn", SET, "-c", "DefaultCluster", "-b", "2")
        assert "success" in cleaned, cleaned
        state = stage.wait_for(1, master=1)
        assert state.not_in_sync == ()
        stage.send(5, "alone")
        stage.check_ledger()


@pytest.mark.full
def test_a_master_and_the_leading_controller_die_together(tmp_path: Path, etcd_url: str) -> None:
    """The second controller leads when etcd ends the first one's lease, and then elects."""
    with ExitStack() as stack:
        controllers = [
            OurController(tmp_path / f"controller-{number}", etcd=etcd_url) for number in (1, 2)
        ]
        stage = start(stack, tmp_path, controllers)
        stage.send(20, "before")
        controllers[0].stop(signal.SIGKILL)
        stage.brokers[0].stop_broker(signal.SIGKILL)
        took_s = stage.send(20, "switched")
        print(f"first acknowledged send after both were killed: {took_s:.3f} s")
        assert stage.wait_for(2, master=2).master_epoch == 2
        controllers[0].start()
        stage.brokers[0].start_broker()
        stage.wait_for(1, 2, master=2)
        stage.check_ledger()


@pytest.mark.full
@pytest.mark.parametrize("is_java_controller", [False, True], ids=["our controller", "Java's"])
@pytest.mark.parametrize(
    "kinds",
    [(OurCluster, OurCluster), (OurCluster, JavaCluster), (JavaCluster, OurCluster)],
    ids=["ours", "ours and Java's", "Java's and ours"],
)
def test_masters_of_a_mixed_set_are_killed_in_turn(
    tmp_path: Path, kinds: tuple[type[JavaCluster | OurCluster], ...], is_java_controller: bool
) -> None:
    """Each broker leads, is killed, comes back as a slave and is in sync again."""
    with ExitStack() as stack:
        controllers = [] if is_java_controller else [OurController(tmp_path / "controller")]
        stage = start(stack, tmp_path, controllers, kinds)
        stage.send(20, "before")
        for turn, (master, other) in enumerate([(1, 2), (2, 1), (1, 2)], start=1):
            stage.brokers[master - 1].stop_broker(signal.SIGKILL)
            took_s = stage.send(20, f"turn {turn}")
            print(f"first acknowledged send after kill -9 of the master: {took_s:.3f} s")
            assert stage.wait_for(other, master=other).master_epoch == turn + 1
            stage.brokers[master - 1].start_broker()
            stage.wait_for(1, 2, master=other)
        stage.check_ledger()
        epochs = stage.mqadmin.call(
            "mqadmin",
            line=["getBrokerEpoch", "-n", stage.names.name_server, "-b", SET],
            timeout=60_000,
        )["out"]
        assert epochs.count("EpochEntry{epoch=4") == 2, epochs
