"""Servers of the test's own: a broker that moves."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL

import pytest
from interop.peers import Unavailable
from tests.interop.stage import SHORT_PAIRS, Stage, check_flow, letter, raised

IDS = [f"{client}@{server}" for client, server in SHORT_PAIRS]


@pytest.fixture(params=SHORT_PAIRS, ids=IDS)
def own_stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    """A client and servers that this test alone uses."""
    client, server = request.param
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(raised(client, server, tmp_path))
        except Unavailable as error:
            pytest.skip(f"{client} against {server}: {error}")


@pytest.mark.full
def test_a_broker_moves_to_another_address_under_traffic(own_stage: Stage) -> None:
    """The broker dies and comes back at another port; every acknowledged message is consumed."""
    stage = own_stage
    topic = stage.topic()
    theirs = stage.push({topic: "*"})
    ours = stage.push({topic: "*"}, by=stage.ours)
    producer, sender = stage.producer(), stage.producer(by=stage.ours)
    letters = [letter(topic, f"body {n}".encode(), n) for n in range(1200)]
    flows = [
        peer.begin("send", name=name, mode="sync", messages=part, untilOk=True, progress=True)
        for peer, name, part in (
            (stage.peer, producer, letters[:600]),
            (stage.ours, sender, letters[600:]),
        )
    ]
    stage.peer.wait_sent(producer, 200)
    stage.ours.wait_sent(sender, 200)
    before = stage.cluster.broker
    stage.cluster.move_broker(SIGKILL)
    assert stage.cluster.broker != before
    results = [result for flow in flows for result in flow.result(150.0)]
    assert [result["status"] for result in results] == ["SEND_OK"] * len(letters)
    members = [(stage.peer, theirs), (stage.ours, ours)]
    stage.settle(topic, members, timeout_s=90.0)  # Go looks for new routes every 30 s
    for peer, name in members:
        received = peer.messages(name)
        check_flow(letters, None, received, in_order=False, repeated=True)
        assert {result["msgId"] for result in results} <= {one["msgId"] for one in received}
