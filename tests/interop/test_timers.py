"""Messages with a time of their own, and their recall."""

from typing import Any

import pytest
from interop.driver import DriverError
from tests.interop.kinds import TIMER_MAX_S
from tests.interop.relay import now_ms
from tests.interop.stage import Stage, bodies_of, check_flow, letter

pytestmark = pytest.mark.full

ILLEGAL_OPERATION = 604


def due_ms(sent: dict[str, Any], born_ms: int) -> int:
    """The earliest time a message may be in its queue: the broker counts from its arrival."""
    if "deliverAt" in sent:
        return int(sent["deliverAt"])
    return born_ms + int(sent.get("delayMs", 0)) + int(sent.get("delaySec", 0)) * 1000


@pytest.mark.kind("timed")
def test_each_comes_once_unchanged_and_not_before_its_time(stage: Stage) -> None:
    """A time and a delay in seconds or milliseconds; a time that is over means at once."""
    topic = stage.topic()
    theirs = stage.push({topic: "*"})
    ours = stage.push({topic: "*"}, by=stage.ours)
    begin_ms = now_ms()
    times = (
        {"deliverAt": begin_ms + 4321},
        {"deliverAt": begin_ms // 1000 * 1000 + 5000},  # to the second: Java's slot before it
        {"deliverAt": begin_ms - 3_600_000},
        {"delayMs": 1500},
        {"delayMs": 30},
        {"delaySec": 3},
    )
    letters = [
        letter(topic, f"timed {number} ".encode() * 600, number, tags="T", keys=f"k{number}", **at)
        for number, at in enumerate(times)
    ]
    results = stage.send(stage.producer(), letters)
    for peer, name in ((stage.peer, theirs), (stage.ours, ours)):
        received = peer.wait_messages(name, lambda got: len(got) >= len(times), timeout_s=60.0)
        check_flow(letters, None, received, in_order=False)
        for message in received:
            number = int(message["properties"]["n"])
            assert message["msgId"] == results[number]["msgId"]
            due = due_ms(letters[number], message["bornTime"])
            assert message["storeTime"] >= due, (times[number], message["storeTime"] - due)
    stage.settle(topic, [(stage.peer, theirs), (stage.ours, ours)])
    for received in (stage.peer.messages(theirs), stage.ours.messages(ours)):
        check_flow(letters, None, received, in_order=False)


@pytest.mark.kind("timed")
def test_a_time_too_far_ahead_is_refused(stage: Stage) -> None:
    """Beyond `timerMaxDelaySec` the send fails, and nothing is kept."""
    topic = stage.topic(queues=1)
    producer = stage.producer()
    far = [
        letter(topic, b"far", 0, deliverAt=now_ms() + (TIMER_MAX_S + 3600) * 1000),
        letter(topic, b"far", 1, delaySec=TIMER_MAX_S + 3600),
    ]
    refused = stage.peer.call("send", name=producer, mode="sync", messages=far)
    assert ["error" in result for result in refused] == [True, True], refused
    stage.send(producer, [letter(topic, b"near", 2, delaySec=1)])
    ours = stage.push({topic: "*"}, by=stage.ours)
    received = stage.ours.wait_messages(ours, lambda got: len(got) >= 1)
    assert bodies_of(received) == [b"near"]


@pytest.mark.kind("recall")
@pytest.mark.needs("recall")
def test_recalled_messages_never_come(stage: Stage) -> None:
    """A client recalls its own or another's message; others of the same second come."""
    topic = stage.topic(queues=1)
    consumer = stage.push({topic: "*"})
    theirs, ours = stage.producer(), stage.producer(by=stage.ours)
    at = now_ms() // 1000 * 1000 + 8500
    bodies = (b"theirs by theirs", b"theirs by ours", b"theirs stays",
              b"ours by theirs", b"ours by ours", b"ours stays")  # fmt: skip
    letters = [letter(topic, body, n, deliverAt=at) for n, body in enumerate(bodies)]
    sent = stage.send(theirs, letters[:3])
    sent += stage.send(ours, letters[3:], by=stage.ours)
    assert all(result["recallHandle"] for result in sent)
    recalls = ((0, stage.peer, theirs), (1, stage.ours, ours),
               (3, stage.peer, theirs), (4, stage.ours, ours))  # fmt: skip
    for number, peer, name in recalls:
        handle = sent[number]["recallHandle"]
        told = peer.call("recall", name=name, topic=topic, handle=handle)
        assert told == sent[number]["msgId"]
    received = stage.peer.wait_messages(consumer, lambda got: len(got) >= 2, timeout_s=60.0)
    # The slot was read as a whole; a message of a later one comes when nothing of it is left.
    stage.send(theirs, [letter(topic, b"later", 9, delaySec=2)])
    received = stage.peer.wait_messages(
        consumer, lambda got: b"later" in bodies_of(got), timeout_s=60.0
    )
    assert sorted(bodies_of(received)) == [b"later", b"ours stays", b"theirs stays"]
    # What has been delivered cannot be taken back.
    with pytest.raises(DriverError) as late:
        stage.peer.call("recall", name=theirs, topic=topic, handle=sent[2]["recallHandle"])
    assert late.value.described.get("code") == ILLEGAL_OPERATION, late.value.described


@pytest.mark.kind("recall")
@pytest.mark.needs("recall")
def test_recalls_of_what_is_none_are_refused(stage: Stage) -> None:
    """A wrong handle or another topic's handle is refused, and the message comes."""
    topic, other = stage.topic(queues=1), stage.topic(queues=1)
    consumer = stage.push({topic: "*"})
    producer = stage.producer()
    (sent,) = stage.send(producer, [letter(topic, b"stays", 0, delaySec=3)])
    (at_once,) = stage.send(producer, [letter(topic, b"at once", 1)])
    assert at_once["recallHandle"] is None
    for name, handle in ((topic, "bm8gaGFuZGxl"), (other, sent["recallHandle"])):
        with pytest.raises(DriverError):
            stage.peer.call("recall", name=producer, topic=name, handle=handle)
    received = stage.peer.wait_messages(consumer, lambda got: len(got) >= 2, timeout_s=60.0)
    assert sorted(bodies_of(received)) == [b"at once", b"stays"]
