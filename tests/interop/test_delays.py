"""The 18 levels of delay."""

import time

import pytest
from tests.interop.stage import Stage, check_flow, letter

from cometmq import MessageQueue

pytestmark = [pytest.mark.full, pytest.mark.kind("delay")]


def test_each_of_the_18_levels_is_delivered(stage: Stage) -> None:
    """Each level delivers the message unchanged, once, after its own delay and not before."""
    topic = stage.topic()
    theirs = stage.push({topic: "*"})
    ours = stage.push({topic: "*"}, by=stage.ours)
    letters = [
        letter(topic, f"level {n + 1}".encode() * 50, n, delay=n + 1, tags="T", keys=f"k{n}")
        for n in range(18)
    ]
    results = stage.send(stage.producer(), letters)
    readers = [(stage.peer, theirs), (stage.ours, ours)]
    for peer, name in readers:
        peer.wait_messages(name, lambda got: len(got) >= 18, timeout_s=60.0)
    # Level 6 is the last to come: what a level would deliver again has come before this.
    stage.settle(topic, readers)
    for peer, name in readers:
        received = peer.messages(name)
        check_flow(letters, None, received, in_order=False)
        for message in received:
            number = int(message["properties"]["n"])
            if number < 0:
                continue
            level = number % 6 + 1  # see `kinds.SETTINGS`
            # Either clock may have been read just before its millisecond ended.
            assert message["storeTime"] - message["bornTime"] >= level * 1000 - 50
            assert message["msgId"] == results[number]["msgId"]


def test_every_delay_level_has_its_queue(stage: Stage) -> None:
    """Levels 1 to 18 wait in their own queues; a higher level is the highest."""
    topic = stage.topic()
    producer = stage.producer()
    before = waiting_by_level(stage)
    letters = [letter(topic, f"body {n}".encode(), n) for n in range(20)]
    for one, level in zip(letters, (*range(1, 19), 19, 100), strict=True):
        one["delay"] = level
    stage.send(producer, letters)
    # Java's broker makes the units of its queues a moment after it has answered.
    deadline = time.monotonic() + 10
    while sum(after := waiting_by_level(stage)) < sum(before) + 20:
        assert time.monotonic() < deadline, f"{before} became only {after}"
        time.sleep(0.05)
    added = [late - early for late, early in zip(after, before, strict=True)]
    assert added == [1] * 17 + [3]


def waiting_by_level(stage: Stage) -> list[int]:
    """How many messages were ever stored to wait at each level."""
    return [
        stage.admin.max_offset(
            MessageQueue("SCHEDULE_TOPIC_XXXX", stage.cluster.broker_name, level - 1)
        )
        for level in range(1, 19)
    ]
