"""Traces that our clients write, shown by RocketMQ's own mqadmin; and Java's, shown by ours."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from interop.driver import Peer
from interop.peers import Unavailable, mqadmin_command
from interop.servers import OurCluster

import cometmq.sync
from cometmq.model import Message


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurCluster]:
    """A running cluster."""
    with OurCluster(tmp_path_factory.mktemp("tracing")) as made:
        yield made


def test_mqadmin_shows_our_traces(cluster: OurCluster, tmp_path: Path) -> None:
    """`queryMsgTraceById` prints the send and each handling, by our records."""
    try:
        command = mqadmin_command(tmp_path / "home")
    except Unavailable as reason:
        pytest.skip(str(reason))
    address = cluster.name_server
    done = threading.Event()

    def handle(message: Any) -> None:
        done.set()

    with cometmq.sync.Producer("OurShop", name_server=address, trace=True) as producer:
        sent = producer.send(Message("Orders", b"x", tags="A", keys=("k1",)))
        batch = producer.send_batch([Message("Orders", b"1"), Message("Orders", b"2")])
    with cometmq.sync.PushConsumer(
        "OurBilling",
        {"Orders": "*"},
        handle,
        name_server=address,
        consume_from="first",
        trace=True,
    ):
        assert done.wait(60)
    with Peer("mqadmin", command, tmp_path) as peer:
        for message_id in (sent.message_id, batch[1].message_id):
            line = ["queryMsgTraceById", "-i", message_id, "-n", address]
            answer = peer.call("mqadmin", line=line, timeout=60_000)
            shown = str(answer["out"]) + str(answer["err"])
            for text in ("Pub", "OurShop", "Sub", "OurBilling", "success"):
                assert text in shown, shown
