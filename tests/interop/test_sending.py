"""A client's messages arrive complete, once and in order, at that client and at ours."""

import random
import sys
from pathlib import Path
from typing import Any

import pytest
from interop.driver import DriverError
from tests.interop.stage import OURS, Stage, check_flow, letter

COUNT = 40
LIMIT_BYTES = 4 * 1024 * 1024


def letters_for(topic: str, count: int = COUNT) -> list[dict[str, Any]]:
    """Messages with bodies around the compression limit, and every kind of property."""
    chance = random.Random(f"letters {topic}")
    sizes = (1, 100, 1024, 1025, 4095, 4096, 4097, 20_000)
    letters = []
    for number in range(count):
        size = sizes[number % len(sizes)]
        body = b"plain " * (size // 6 + 1) if number % 2 else chance.randbytes(size)
        more: dict[str, Any] = {"shard": f"shard {number % 5}", "flag": number * 7}
        if number % 3:
            more["tags"] = ("TagA", "tag-é", "标签")[number % 3]
        if number % 4:
            more["keys"] = f"key{number} schlüssel{number}"
        more["properties"] = {
            "färbe": "grün 🟢",
            "a.b-c_d": "x=y&z;:,|%$",
            "long": "v" * (number * 20 + 1),
        }
        letters.append(letter(topic, body[:size], number, **more))
    return letters


@pytest.mark.parametrize(
    "mode",
    [
        "sync",
        "ordered",
        pytest.param("async", marks=pytest.mark.full),
        pytest.param("oneway", marks=pytest.mark.full),
    ],
)
def test_messages_reach_both_clients(stage: Stage, mode: str) -> None:
    """One consumer of the client under test and one of ours get each message as it was sent."""
    topic = stage.topic()
    theirs = stage.push({topic: "*"})
    ours = stage.push({topic: "*"}, by=stage.ours)
    producer = stage.producer()
    letters = letters_for(topic)
    results = stage.send(producer, letters, mode)
    stage.settle(topic, [(stage.peer, theirs), (stage.ours, ours)])
    answers = None if mode == "oneway" else results
    check_flow(letters, answers, stage.peer.messages(theirs), in_order=stage.keeps_order)
    check_flow(letters, answers, stage.ours.messages(ours))
    if mode == "ordered":
        check_groups(stage.ours.messages(ours), letters)


def check_groups(received: list[dict[str, Any]], letters: list[dict[str, Any]]) -> None:
    """All messages of a shard lie in one queue, in the order they were sent."""
    shard_of = {one["properties"]["n"]: one["shard"] for one in letters}
    places: dict[str, list[tuple[int, int, int]]] = {}
    for message in received:
        number = message["properties"]["n"]
        if number != "-1":
            place = (message["queueId"], message["queueOffset"], int(number))
            places.setdefault(shard_of[number], []).append(place)
    for shard, found in places.items():
        assert len({queue for queue, _, _ in found}) == 1, shard
        numbers = [number for _, _, number in sorted(found)]
        assert numbers == sorted(numbers), shard


def test_our_messages_reach_the_client(stage: Stage) -> None:
    """Our producer, also with batches, and the other client's consumer."""
    topic = stage.topic()
    theirs = stage.push({topic: "*"})
    producer = stage.producer(by=stage.ours)
    letters = letters_for(topic)
    results = stage.send(producer, letters[:20], "async", by=stage.ours)
    results += stage.send(producer, letters[20:], "batch", by=stage.ours)
    stage.settle(topic, [(stage.peer, theirs)])
    check_flow(letters, results, stage.peer.messages(theirs), in_order=stage.keeps_order)


@pytest.mark.needs("batch")
def test_batch(stage: Stage) -> None:
    """A batch arrives as its messages, next to each other in one queue."""
    topic = stage.topic()
    theirs = stage.push({topic: "*"})
    ours = stage.push({topic: "*"}, by=stage.ours)
    producer = stage.producer()
    letters = letters_for(topic)
    if stage.client != OURS:
        for one in letters:
            del one["shard"]  # a batch has one queue; these clients do not look at it
    results = stage.send(producer, letters, "batch")
    stage.settle(topic, [(stage.peer, theirs), (stage.ours, ours)])
    check_flow(letters, None, stage.peer.messages(theirs), in_order=stage.keeps_order)
    received = stage.ours.messages(ours)
    check_flow(letters, None, received)
    numbered = [m for m in received if m["properties"]["n"] != "-1"]
    assert len({m["queueId"] for m in numbered}) == 1
    assert [int(m["properties"]["n"]) for m in numbered] == list(range(COUNT))
    if stage.client != OURS and not stage.client.startswith("go"):
        # One answer for all: ids joined in the order of the messages.
        (result,) = results
        assert result["offsetMsgId"].split(",") == [m["offsetMsgId"] for m in numbered]
        assert result["msgId"].split(",") == [m["msgId"] for m in numbered]


def test_bodies_up_to_the_limit(stage: Stage) -> None:
    """4 MiB that cannot be compressed arrive; a byte more is refused by client or broker."""
    topic = stage.topic(queues=1)
    theirs = stage.push({topic: "*"})
    ours = stage.push({topic: "*"}, by=stage.ours)
    # Java's client keeps the compressed body even if it is larger, which breaks the limit.
    plain = stage.producer(compressAbove=1 << 30)
    producer = stage.producer()
    noise = random.Random(4).randbytes(LIMIT_BYTES + 1)
    letters = [
        letter(topic, noise[:LIMIT_BYTES], 0),
        letter(topic, b"\0" * LIMIT_BYTES, 1),
        letter(topic, b"\0", 2),
    ]
    results = stage.send(plain, letters[:1]) + stage.send(producer, letters[1:])
    stage.settle(topic, [(stage.peer, theirs), (stage.ours, ours)], queues=1)
    check_flow(letters, results, stage.peer.messages(theirs), in_order=stage.keeps_order)
    check_flow(letters, results, stage.ours.messages(ours))
    (refused,) = stage.peer.call(
        "send", name=plain, mode="sync", messages=[letter(topic, noise, 3)]
    )
    assert "error" in refused


def error_of(stage: Stage, producer: str, one: dict[str, Any]) -> dict[str, Any]:
    """The error of a send, which must fail."""
    (result,) = stage.peer.call("send", name=producer, mode="sync", messages=[one])
    assert "error" in result, result
    return dict(result["error"])


def test_illegal_messages_are_refused(stage: Stage) -> None:
    """Names and sizes beyond the limits fail the send, and leave the client usable."""
    topic = stage.topic(queues=1)
    theirs = stage.push({topic: "*"})
    producer = stage.producer()
    wrong = [
        letter("no spaces", b"x", 1),
        letter("T" * 256, b"x", 2),
        letter(topic, b"x", 3, properties={"big": "v" * 40_000}),
        letter("SCHEDULE_TOPIC_XXXX", b"x", 4),
    ]
    if not stage.client.startswith("go"):  # Go's client checks neither
        wrong += [letter(topic, b"", 5), letter(topic, b"x", 6, properties={"KEYS": "reserved"})]
    errors = [error_of(stage, producer, one) for one in wrong]
    assert [error["text"] for error in errors if not error["text"]] == []
    fine = [letter(topic, b"fine", 7, properties={"big": "v" * 30_000})]
    results = stage.send(producer, fine)
    stage.settle(topic, [(stage.peer, theirs)], queues=1)
    check_flow(fine, results, stage.peer.messages(theirs))


@pytest.mark.full
def test_a_topic_is_made_by_its_first_message(stage: Stage) -> None:
    """A send to a topic nobody created makes it, with the client's four queues."""
    topic = stage.unique("Fresh")
    producer = stage.producer()
    letters = [letter(topic, b"first", number) for number in range(8)]
    results = stage.send(producer, letters)
    stage.wait_route(topic)
    theirs = stage.push({topic: "*"})
    stage.settle(topic, [(stage.peer, theirs)])
    check_flow(letters, results, stage.peer.messages(theirs), in_order=stage.keeps_order)
    assert {result["queue"]["id"] for result in results} == {0, 1, 2, 3}


@pytest.mark.full
@pytest.mark.needs("vip")
def test_vip_channel(stage: Stage) -> None:
    """Clients that use the second port two below the broker's are served there too."""
    topic = stage.topic()
    producer = stage.producer(vip=True)
    theirs = stage.push({topic: "*"}, vip=True)
    letters = letters_for(topic, 8)
    results = stage.send(producer, letters)
    stage.settle(topic, [(stage.peer, theirs)])
    check_flow(letters, results, stage.peer.messages(theirs), in_order=stage.keeps_order)
    if sys.platform == "linux" and not stage.client.startswith("go"):
        # Go's client 2.1.2 takes the setting and goes to the ordinary port all the same.
        assert connections_to(stage.cluster.broker_port - 2) > 0


def connections_to(port: int) -> int:
    """How many connections of this machine go to a port of 127.0.0.1."""
    count = 0
    for name in ("tcp", "tcp6"):  # Java dials IPv4 through IPv6 sockets
        for line in Path(f"/proc/net/{name}").read_text("ascii").splitlines()[1:]:
            fields = line.split()
            is_established = fields[3] == "01"
            count += is_established and int(fields[2].rpartition(":")[2], 16) == port
    return count


def without(space: str, received: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages as a client inside a namespace sees them."""
    return [{**one, "topic": one["topic"].removeprefix(f"{space}%")} for one in received]


@pytest.mark.full
@pytest.mark.needs("namespace")
def test_namespace(stage: Stage) -> None:
    """A namespace is a prefix at the broker; the client inside it does not see the prefix."""
    space = stage.unique("Space")
    stage.admin.create_topic(f"{space}%Orders", queue_count=4)
    stage.wait_route(f"{space}%Orders")
    group = stage.unique("G")
    inside = stage.push({"Orders": "*"}, namespace=space, group=group)
    ours = stage.push({f"{space}%Orders": "*"}, by=stage.ours)
    producer = stage.producer(namespace=space)
    letters = letters_for("Orders", 8)
    stage.send(producer, letters)
    stage.settle(f"{space}%Orders", [(stage.peer, inside), (stage.ours, ours)])
    check_flow(letters, None, without(space, stage.ours.messages(ours)))
    received = stage.peer.messages(inside)
    if stage.client.startswith("go"):  # Go's consumer shows the prefix
        received = without(space, received)
    check_flow(letters, None, received, in_order=stage.keeps_order)
    assert f"{space}%{group}" in stage.admin.group_list()


@pytest.mark.full
def test_a_failed_command_says_so(stage: Stage) -> None:
    """The driver answers an unknown command with an error."""
    with pytest.raises(DriverError, match="no command is called"):
        stage.peer.call("dance")
