"""Messages that fail: again after their level, and to the dead letters of their group."""

import pytest
from tests.interop.stage import Stage, bodies_of, check_flow, letter

pytestmark = pytest.mark.kind("retry")


def test_retry_with_level(stage: Stage) -> None:
    """A message that fails comes again after its level's delay, and says how often it failed."""
    topic = stage.topic(queues=1)
    group = stage.unique("G")
    stage.retry_topic(group)
    theirs = stage.push({topic: "*"}, group=group, failTimes=2, failLevel=1)
    producer = stage.producer()
    letters = [letter(topic, f"body {n}".encode(), n, keys=f"k{n}", tags="T") for n in range(3)]
    results = stage.send(producer, letters)
    received = stage.peer.wait_messages(theirs, lambda got: len(got) >= 9)
    first = [m for m in received if m["reconsumeTimes"] == 0]
    check_flow(letters, results, first)
    for round_number in (1, 2):
        again = [m for m in received if m["reconsumeTimes"] == round_number]
        assert sorted(bodies_of(again)) == sorted(bodies_of(first))
        for message in again:
            number = int(message["properties"]["n"])
            assert message["topic"] == topic
            assert (message["tags"], message["keys"]) == ("T", f"k{number}")
            assert bodies_of([message]) == [b"body %d" % number]
            assert message["properties"]["ORIGIN_MESSAGE_ID"] == results[number]["offsetMsgId"]
            assert message["msgId"] == results[number]["msgId"]
            assert message["storeTime"] - message["bornTime"] >= 1000 * round_number
    assert len(received) == 9


@pytest.mark.parametrize("by", ["theirs", pytest.param("ours", marks=pytest.mark.full)])
def test_dead_letters(stage: Stage, by: str) -> None:
    """After its last try a message is a dead letter of its group, unchanged."""
    peer = stage.peer if by == "theirs" else stage.ours
    topic = stage.topic(queues=1)
    group = stage.unique("G")
    stage.retry_topic(group)
    name = stage.push({topic: "*"}, by=peer, group=group, failTimes=99, failLevel=1, maxReconsume=1)
    producer = stage.producer()
    letters = [letter(topic, f"body {n}".encode(), n, keys=f"k{n}", tags="dead") for n in range(2)]
    results = stage.send(producer, letters)
    peer.wait_messages(name, lambda got: len(got) >= 4)
    dead_topic = f"%DLQ%{group}"
    stage.wait_route(dead_topic)
    reader = stage.push({dead_topic: "*"}, by=stage.ours)
    dead = stage.ours.wait_messages(reader, lambda got: len(got) >= 2)
    assert sorted(bodies_of(dead)) == [b"body 0", b"body 1"]
    for message in dead:
        number = int(message["properties"]["n"])
        assert bodies_of([message]) == [b"body %d" % number]
        assert (message["tags"], message["keys"]) == ("dead", f"k{number}")
        assert message["properties"]["RETRY_TOPIC"] == topic
        assert message["properties"]["ORIGIN_MESSAGE_ID"] == results[number]["offsetMsgId"]
    tries = sorted((m["properties"]["n"], m["reconsumeTimes"]) for m in peer.messages(name))
    assert tries == [("0", 0), ("0", 1), ("1", 0), ("1", 1)]
