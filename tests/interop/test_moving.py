"""Clusters with settings of their own: a broker that moves, and the 18 levels of delay."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL

import pytest
from interop.peers import Unavailable
from tests.interop.stage import SHORT_PAIRS, Stage, check_flow, letter, raised

LEVELS = " ".join(f"{seconds}s" for seconds in range(1, 19))
"""A table of delays that a test can sit through; RocketMQ's own ends at two hours."""
IDS = [f"{client}@{server}" for client, server in SHORT_PAIRS]


@pytest.fixture(params=SHORT_PAIRS, ids=IDS)
def own_stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    """A client and servers that this test alone uses, with a shorter table of delays."""
    client, server = request.param
    settings = {"messageDelayLevel": LEVELS}
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(raised(client, server, tmp_path, settings))
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


@pytest.mark.full
def test_each_of_the_18_levels_is_delivered(own_stage: Stage) -> None:
    """Each level delivers the message unchanged, once, after its own delay and not before."""
    stage = own_stage
    topic = stage.topic()
    theirs = stage.push({topic: "*"})
    ours = stage.push({topic: "*"}, by=stage.ours)
    letters = [
        letter(topic, f"level {n + 1}".encode() * 50, n, delay=n + 1, tags="T", keys=f"k{n}")
        for n in range(18)
    ]
    stage.send(stage.producer(), letters)
    for peer, name in ((stage.peer, theirs), (stage.ours, ours)):
        received = peer.wait_messages(name, lambda got: len(got) >= 18, timeout_s=60.0)
        check_flow(letters, None, received, in_order=False)
        for message in received:
            level = int(message["properties"]["n"]) + 1
            # Either clock may have been read just before its millisecond ended.
            assert message["storeTime"] - message["bornTime"] >= level * 1000 - 50
