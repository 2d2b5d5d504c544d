"""Ordered consumers of every kind in one group: locks, order per queue, failures, hand-over."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from interop.driver import Message, Peer, mark
from interop.peers import Unavailable
from tests.interop.conftest import IS_FULL
from tests.interop.stage import OURS, Stage, features_of, letter, pairs, raised

QUEUES = 8
PATIENCE_S = 100.0
"""Go's client gives no lock back in a rebalance: they expire (`kinds.LOCK_LIFE_MS`)."""


def numbered(
    topic: str, begin: int, end: int, *, by: str = "", **properties: str
) -> list[dict[str, Any]]:
    """Ordered messages; every third one names its queue."""
    more = {"by": by, **properties} if by else properties
    return [
        letter(
            topic, b"%d" % number, number, shard=f"shard{by} {number % 24}", properties=dict(more)
        )
        for number in range(begin, end)
    ]


def wait_numbers(members: list[tuple[Peer, str]], count: int) -> None:
    """Wait until the members together have received ``count`` of the messages."""
    deadline = time.monotonic() + PATIENCE_S
    numbers: set[str] = set()
    while len(numbers) < count:
        got = [one for peer, name in members for one in peer.messages(name)]
        numbers = {n for one in got if not (n := one["properties"]["n"]).startswith("-")}
        assert time.monotonic() < deadline, f"only {len(numbers)} of {count} came"
        time.sleep(0.05)


def check_order(
    members: list[tuple[Peer, str]], results: Sequence[dict[str, Any]]
) -> list[Message]:
    """Check that everything came; each queue kept its order and had one handler at a time.

    Args:
        results: answers to the sends of numbers from 0 on: each came from the queue and with the
            id of its answer, and the number is also its body.
    """
    got = [one for peer, name in members for one in peer.messages(name)]
    numbers = {int(one["properties"]["n"]) for one in got}
    assert sorted(set(range(len(results))) - numbers) == [], "lost"
    for one in got:
        number = int(one["properties"]["n"])
        if number >= 0:
            assert one["body"] == mark(b"%d" % number)
            assert one["msgId"] == results[number]["msgId"]
            queue = results[number]["queue"]["id"], results[number]["queueOffset"]
            assert (one["queueId"], one["queueOffset"]) == queue
    by_queue: dict[tuple[str, int], list[Message]] = {}
    for one in got:
        by_queue.setdefault((one["topic"], one["queueId"]), []).append(one)
    for queue, messages in by_queue.items():
        messages.sort(key=lambda one: (one["begun"], one["ended"]))
        highest = -1
        busy_until = 0
        for one in messages:
            assert one["queueOffset"] <= highest + 1, f"{queue}: {highest + 1} was passed"
            assert one["begun"] >= busy_until, f"{queue}: two handlers at {one['queueOffset']}"
            highest = max(highest, one["queueOffset"])
            busy_until = one["ended"]
    return got


@pytest.mark.kind("ordered")
@pytest.mark.parametrize("joins", [pytest.param("theirs", marks=pytest.mark.full), "ours"])
def test_order_holds_when_members_join_and_leave(stage: Stage, joins: str) -> None:
    """A second member takes half of the queues, then all, and no queue has two handlers."""
    if stage.client.startswith("go") and not IS_FULL:
        pytest.skip(
            "Go's client unlocks nothing in a rebalance; the long lane waits for the expiry"
        )
    topic = stage.topic(queues=QUEUES)
    group = stage.unique("G")
    stage.retry_topic(group)
    second_peer = stage.peer if joins == "theirs" else stage.ours
    first = stage.ordered({topic: "*"}, group=group)
    producer = stage.producer(by=stage.ours)
    flow = stage.ours.begin(
        "send", name=producer, mode="ordered", messages=numbered(topic, 0, 400, slow="5")
    )
    stage.peer.wait_messages(first, lambda got: len(got) >= 40, timeout_s=60.0)
    second = stage.ordered({topic: "*"}, by=second_peer, group=group)
    members = [(stage.peer, first), (second_peer, second)]
    results = flow.result()
    wait_numbers(members, 400)
    stage.wait_shared(topic, members, QUEUES, PATIENCE_S)
    letters = numbered(topic, 400, 600, slow="5")
    results += stage.send(producer, letters, "ordered", by=stage.ours)
    if stage.client.startswith("go"):
        # Its Shutdown gives the locks back while handlers run (push_consumer.go of 2.1.2).
        wait_numbers(members, len(results))
    stage.peer.call("closeOrdered", name=first)
    results += stage.send(producer, numbered(topic, 600, 700), "ordered", by=stage.ours)
    stage.settle(topic, [(second_peer, second)], queues=QUEUES, timeout_s=PATIENCE_S)
    check_order(members, results)
    at_last = {int(one["properties"]["n"]) for one in second_peer.messages(second)}
    assert set(range(600, 700)) <= at_last
    second_peer.call("closeOrdered", name=second)


@pytest.mark.kind("ordered")
def test_a_failing_message_holds_its_queue(stage: Stage) -> None:
    """The message is tried again with a count, and later messages of its queue wait."""
    topic = stage.topic(queues=2)
    group = stage.unique("G")
    stage.retry_topic(group)
    producer = stage.producer(by=stage.ours)
    queues = stage.queues(topic, 2)
    letters = [letter(topic, b"%d" % place, place, queue=queues[place % 2]) for place in range(10)]
    letters[4]["properties"]["fail"] = "3"
    results = stage.send(producer, letters, "queue", by=stage.ours)
    member = stage.ordered({topic: "*"}, group=group)
    stage.settle(topic, [(stage.peer, member)], queues=2, timeout_s=60.0)
    got = check_order([(stage.peer, member)], results)
    tries = [one["reconsumeTimes"] for one in got if one["properties"]["n"] == "4"]
    assert tries == [0, 1, 2, 3]
    assert len([one for one in got if int(one["properties"]["n"]) >= 0]) == 13
    stage.peer.call("closeOrdered", name=member)


@pytest.mark.kind("ordered")
def test_the_limit_makes_a_dead_letter(stage: Stage) -> None:
    """After its tries the message becomes a dead letter at once, and the queue continues."""
    topic = stage.topic(queues=1)
    group = stage.unique("G")
    stage.retry_topic(group)
    producer = stage.producer(by=stage.ours)
    letters = [letter(topic, b"%d" % place, place) for place in range(4)]
    letters[1]["properties"]["fail"] = "99"
    results = stage.send(producer, letters, by=stage.ours)
    member = stage.ordered({topic: "*"}, group=group, maxReconsume=2)
    stage.settle(topic, [(stage.peer, member)], queues=1, timeout_s=60.0)
    got = check_order([(stage.peer, member)], results)
    tries = [one["reconsumeTimes"] for one in got if one["properties"]["n"] == "1"]
    assert tries[:3] == [0, 1, 2]
    assert len(tries) <= 4  # Go's client counts once more
    (dead,) = dead_letters(stage, group)
    assert dead["body"] == mark(b"1")
    assert dead["properties"]["RETRY_TOPIC"] == topic
    stage.peer.call("closeOrdered", name=member)


def dead_letters(stage: Stage, group: str) -> list[Message]:
    """All dead letters of a group, after an operator has made their topic readable."""
    topic = f"%DLQ%{group}"
    stage.wait_route(topic)
    stage.admin.create_topic(topic, queue_count=1)
    reader = stage.push({topic: "*"}, by=stage.ours)
    (found,) = stage.admin.topic_offsets(topic).values()
    return stage.ours.wait_messages(reader, lambda got: len(got) >= found.max_offset)


@pytest.mark.full
@pytest.mark.kind("ordered")
@pytest.mark.at(OURS)
def test_a_grown_topic_is_an_ordinary_one(stage: Stage) -> None:
    """A client's ordered producer and consumer go on over `cometmq topic grow`, with all queues.

    Order per queue holds for both producers; order per message group, over its move to another
    queue, for ours.
    """
    topic = stage.topic(queues=4)
    group = stage.unique("G")
    stage.retry_topic(group)
    member = stage.ordered({topic: "*"}, group=group)
    ours, theirs = stage.producer(by=stage.ours), stage.producer()
    answers = stage.send(ours, numbered(topic, 0, 120), "ordered", by=stage.ours)
    answers += stage.send(theirs, numbered(topic, 120, 240, by="them"), "ordered")
    subprocess.run(
        [*(sys.executable, "-m", "cometmq", "topic", "grow", topic, "--queues", "8"),
         *("-n", stage.cluster.name_server)],
        check=True, capture_output=True,
    )  # fmt: skip
    sent = 240
    deadline = time.monotonic() + PATIENCE_S
    has_new: set[str] = set()
    while has_new != {ours, theirs}:  # Go looks for new routes every 30 s
        assert time.monotonic() < deadline, f"only {has_new} of {ours}, {theirs} use new queues"
        for peer, name, by in ((stage.ours, ours, ""), (stage.peer, theirs, "them")):
            letters = numbered(topic, sent, sent + 24, by=by)
            results = stage.send(name, letters, "ordered", by=peer)
            sent += len(letters)
            answers += results
            if any(result["queue"]["id"] >= 4 for result in results):
                has_new.add(name)
        wait_numbers([(stage.peer, member)], sent)  # our groups move when they are consumed
    stage.settle(topic, [(stage.peer, member)], queues=8, timeout_s=PATIENCE_S)
    got = check_order([(stage.peer, member)], answers)
    assert {one["queueId"] for one in got} == set(range(8))
    by_group: dict[int, list[int]] = {}
    for one in sorted(got, key=lambda one: (one["begun"], one["ended"])):
        number = int(one["properties"]["n"])
        if number >= 0 and "by" not in one["properties"]:
            by_group.setdefault(number % 24, []).append(number)
    assert len(by_group) == 24
    for numbers in by_group.values():
        assert list(dict.fromkeys(numbers)) == sorted(set(numbers))
    if "query" in features_of(stage.client):
        assert len(stage.peer.call("queues", name=theirs, topic=topic)) == 8


@pytest.fixture
def own_stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    """Servers of the scenario's own, whose locks live for five seconds."""
    client, server = request.param
    with contextlib.ExitStack() as stack:
        try:
            settings = {"rebalanceLockMaxLiveTime": "5000"}
            yield stack.enter_context(raised(client, server, tmp_path, settings))
        except Unavailable as error:
            pytest.skip(f"{client} against {server}: {error}")


OF_OURS = [pair for pair in pairs(full=IS_FULL) if pair[1] == OURS]


@pytest.mark.full
@pytest.mark.parametrize(
    "own_stage", OF_OURS, ids=["@".join(pair) for pair in OF_OURS], indirect=True
)
def test_a_killed_member_hands_over_when_its_locks_expire(own_stage: Stage) -> None:
    """The remaining member is notified at once and continues at the other's offsets."""
    stage = own_stage
    topic = stage.topic(queues=QUEUES)
    group = stage.unique("G")
    stage.retry_topic(group)
    killed = stage.ordered({topic: "*"}, group=group)
    left = stage.ordered({topic: "*"}, by=stage.ours, group=group)
    members = [(stage.peer, killed), (stage.ours, left)]
    stage.wait_shared(topic, members, QUEUES)
    producer = stage.producer(by=stage.ours)
    flow = stage.ours.begin(
        "send", name=producer, mode="ordered", messages=numbered(topic, 0, 400, slow="10")
    )
    stage.peer.wait_messages(killed, lambda got: len(got) >= 40)
    stage.peer.close()
    results = flow.result()
    stage.settle(topic, [(stage.ours, left)], queues=QUEUES)
    check_order(members, results)
