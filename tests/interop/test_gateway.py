"""The delay gateway beside RocketMQ's own brokers, which have delay levels and nothing else."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from interop.driver import Peer
from interop.peers import JAVA_SERVER, Unavailable, driver_command
from interop.servers import JavaCluster
from tests.interop.stage import bodies_of, letter

import cometmq.sync
from cometmq.errors import NoRoute
from cometmq.gateway.gateway import DelayGateway
from cometmq.net.env import system_environment

pytestmark = pytest.mark.full

CLIENT = "4.9.8"
BILLS = {"Bills": "*"}
COUNT = 30
READY_S = 60.0


@contextlib.contextmanager
def gateway(name_server: str, store: Path) -> Iterator[DelayGateway]:
    """A gateway in a thread of its own."""
    running: dict[str, DelayGateway] = {}
    is_ready, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with DelayGateway(name_server, str(store)) as one:
            running["gateway"] = one
            is_ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    try:
        assert is_ready.wait(READY_S), "the gateway did not start"
        yield running["gateway"]
    finally:
        stop.set()
        thread.join(READY_S)


@pytest.mark.parametrize("server", ["4.9.7", JAVA_SERVER])
def test_a_java_client_gets_exact_times_from_a_broker_without_timers(
    server: str, tmp_path: Path
) -> None:
    """RocketMQ's client sends and consumes, its broker stores; none is early, none is lost."""
    try:
        command = driver_command(f"java-{CLIENT}", tmp_path / "home")
        (tmp_path / "servers").mkdir()
        cluster = JavaCluster(
            tmp_path / "servers", settings={"timerWheelEnable": "false"}, version=server
        )
    except Unavailable as error:
        pytest.skip(str(error))
    with (
        cluster,
        Peer(f"java-{CLIENT}", command, tmp_path / "client") as peer,
        cometmq.sync.Admin(name_server=cluster.name_server) as admin,
    ):
        wait_route(admin, "TBW102")
        admin.create_topic("Bills", queue_count=2)
        wait_route(admin, "Bills")
        with gateway(cluster.name_server, tmp_path / "gateway") as running:
            wait_route(admin, "DELAY_GATEWAY")
            at: dict[str, Any] = {"nameServer": cluster.name_server}
            peer.call("push", name="reader", group="readers", instance="r", topics=BILLS, **at)
            peer.call("producer", name="shop", group="shop", instance="p", **at)
            start_ms = system_environment().clock.now_ms()
            dues = {n: start_ms + 3_000 + 137 * n for n in range(COUNT)}
            letters = [
                letter(
                    "DELAY_GATEWAY",
                    f"bill {n}".encode(),
                    n,
                    tags="T",
                    keys=f"k{n}",
                    properties={"GATEWAY_TOPIC": "Bills", "GATEWAY_TIME_MS": str(due_ms)},
                )
                for n, due_ms in dues.items()
            ]
            results = peer.call("send", name="shop", mode="sync", messages=letters)
            assert {result["status"] for result in results} == {"SEND_OK"}
            received = peer.wait_messages("reader", lambda got: len(got) >= COUNT, timeout_s=90.0)
            assert running.status.dead == 0
    assert sorted(bodies_of(received)) == sorted(f"bill {n}".encode() for n in range(COUNT))
    for message in received:
        number = int(message["properties"]["n"])
        assert message["topic"] == "Bills"
        assert (message["tags"], message["keys"]) == ("T", f"k{number}")
        assert message["properties"]["GATEWAY_DUE_MS"] == str(dues[number])
        assert message["storeTime"] >= dues[number], "never early"


def wait_route(admin: cometmq.sync.Admin, topic: str) -> None:
    """Wait until the name server knows a topic."""
    deadline = time.monotonic() + READY_S
    while True:
        try:
            admin.topic_route(topic)
        except NoRoute:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
