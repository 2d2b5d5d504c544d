"""A running Java cluster moves to ours and back, with Java's and our clients at work.

The steps are those of docs/how-to/migrate-from-rocketmq.md.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from interop.driver import Peer
from interop.peers import Unavailable, driver_command
from interop.servers import Cluster, JavaCluster, OurCluster
from tests.interop.stage import NEWEST, OURS, check_flow, letter
from tests.interop.test_replication import eventually, is_routed

import cometmq.sync

NAME = "broker-a"
TOPIC = "Orders"
SHARDS = 5
MASTER = {"brokerRole": "ASYNC_MASTER", "brokerId": "0"}
SLAVE = {"brokerRole": "SLAVE", "brokerId": "1"}
SETTINGS = {"brokerName": NAME, "slaveReadEnable": "true"}
PAUSE_S_MAX = 150.0


def client_name(kind: str, peer: Peer) -> str:
    """A group name; RocketMQ allows no dot in it."""
    return f"{kind}_{peer.name}".replace(".", "-")


class Traffic:
    """A producer that sends one message after the other, each again until it is stored."""

    def __init__(self, peer: Peer, name_server: str, first: int) -> None:
        self.letters: list[dict[str, Any]] = []
        self.stored_at: list[float] = []
        self._peer = peer
        self._name = client_name("P", peer)
        self._first = first
        self._stop = threading.Event()
        self._error: Exception | None = None
        peer.call(
            "producer",
            name=self._name,
            group=self._name,
            instance=self._name,
            nameServer=name_server,
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.01):
                number = self._first + len(self.letters)
                shard = f"{self._name}-{number % SHARDS}"
                one = letter(TOPIC, b"body %d" % number, number, properties={"shard": shard})
                self.letters.append(one)
                self._peer.call(
                    "send",
                    timeout_s=PAUSE_S_MAX,
                    name=self._name,
                    mode="ordered",
                    untilOk=True,
                    messages=[{**one, "shard": shard}],
                )
                self.stored_at.append(time.monotonic())
        except Exception as error:
            self._error = error

    def wait_more(self, count: int) -> None:
        """Wait until so many more messages are stored."""
        wanted = len(self.stored_at) + count
        eventually(lambda: self._error is not None or len(self.stored_at) >= wanted)
        assert self._error is None, self._error

    def longest_pause(self, since: float) -> float:
        """The longest time between two stored messages of which the second came after `since`."""
        times = list(self.stored_at)
        return max(b - a for a, b in itertools.pairwise(times) if b > since)

    def stop(self) -> None:
        """Send no more."""
        self._stop.set()
        self._thread.join()
        assert self._error is None, self._error


@contextlib.contextmanager
def working(name_server: str, folder: Path) -> Iterator[tuple[list[Traffic], list[Peer]]]:
    """A producer and a consumer group in order, of Java and of ours each."""
    with contextlib.ExitStack() as stack:
        peers = [
            stack.enter_context(Peer(kind, driver_command(kind, folder / kind), folder / kind))
            for kind in (NEWEST, OURS)
        ]
        for peer in peers:
            group = client_name("C", peer)
            peer.call(
                "ordered",
                name=group,
                group=group,
                instance=group,
                nameServer=name_server,
                topics={TOPIC: "*"},
            )
        flows = [Traffic(peer, name_server, 1_000_000 * n) for n, peer in enumerate(peers)]
        try:
            yield flows, peers
        finally:
            for flow in flows:
                flow.stop()


def state_of(admin: cometmq.sync.Admin, broker_id: int) -> str:
    """What `cometmq replica status` says of a member."""
    rows = [row for row in admin.replicas(NAME) if row.broker_id == broker_id]
    return rows[0].state if rows else "not registered"


def hand_over(admin: cometmq.sync.Admin, old: Cluster, new: Cluster, flows: list[Traffic]) -> None:
    """The steps: wait for the slave, end writes, wait for equal ends, switch."""
    eventually(lambda: state_of(admin, 1) == "following")
    for flow in flows:
        flow.wait_more(200)
    begin = time.monotonic()
    rows = admin.end_writes(NAME)
    assert len({row.log_end for row in rows}) == 1
    equal = time.monotonic()
    old.stop_broker()
    new.stop_broker()
    new.settings |= MASTER
    new.start_broker()
    eventually(lambda: is_routed(new))
    admin.allow_writes(NAME)
    served = time.monotonic()
    for flow in flows:
        flow.wait_more(200)
    pauses = ", ".join(f"{flow.longest_pause(begin):.1f} s" for flow in flows)
    print(
        f"{old.kind} to {new.kind}: equal ends after {equal - begin:.1f} s, the new master is"
        f" routed after {served - begin:.1f} s; longest pauses of Java's and our producer: {pauses}"
    )


@pytest.mark.full
def test_clients_work_while_a_java_master_is_replaced_and_returns(tmp_path: Path) -> None:
    """Nothing acknowledged is lost, and each message group comes in order, to both kinds."""
    try:
        java = JavaCluster(tmp_path / "java", settings={**SETTINGS, **MASTER})
        for kind in (NEWEST, OURS):
            driver_command(kind, tmp_path / kind)
    except Unavailable as error:
        pytest.skip(str(error))
    ours = OurCluster(tmp_path / "our", java, settings={**SETTINGS, **SLAVE})
    with contextlib.ExitStack() as stack:
        stack.callback(ours.close)
        stack.enter_context(java)
        admin = stack.enter_context(cometmq.sync.Admin(name_server=java.name_server))
        eventually(lambda: is_routed(java))
        admin.create_topic(TOPIC, queue_count=4)
        flows, peers = stack.enter_context(working(java.name_server, tmp_path))
        for flow in flows:
            flow.wait_more(100)
        ours.start_broker()
        hand_over(admin, java, ours, flows)
        java.settings |= SLAVE
        java.start_broker()
        hand_over(admin, ours, java, flows)
        for flow in flows:
            flow.stop()
        letters = [one for flow in flows for one in flow.letters]
        for peer in peers:
            wanted = {one["properties"]["n"] for one in letters}
            received = peer.wait_messages(
                client_name("C", peer),
                lambda got: wanted <= {message["properties"]["n"] for message in got},  # noqa: B023
                timeout_s=120.0,
            )
            check_flow(letters, None, received, repeated=True)
            assert first_come_in_order(received)


def first_come_in_order(received: list[dict[str, Any]]) -> bool:
    """Whether the first deliveries of each message group are in the order of its sends."""
    last: dict[str, int] = {}
    seen: set[int] = set()
    for message in received:
        number, shard = int(message["properties"]["n"]), message["properties"]["shard"]
        if number in seen:
            continue
        seen.add(number)
        if number < last.get(shard, -1):
            return False
        last[shard] = number
    return True
