"""Backlog rescue with members of RocketMQ's clients: newest first, copies to more queues."""

import time
from collections import Counter
from collections.abc import Callable

import pytest
from interop.driver import Peer, mark
from tests.interop.stage import OURS, Stage, letter

TIMEOUT_S = 90.0
OLD, NEW = 1_600, 20
"""RocketMQ's clients take some 1,000 messages of a queue into their memory."""
pytestmark = pytest.mark.at(OURS)


def wait(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


class Trial:
    """A group with a backlog in one queue, and a slow member of the client under test."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.topic, self.group = stage.topic(queues=1), stage.unique("G")
        # Members look for new queues of a topic every half minute only.
        stage.admin.create_topic(f"%RETRY%{self.group}", queue_count=4)
        self.producer = stage.producer(by=stage.ours)
        self.members: list[tuple[Peer, str]] = []
        # Go handles twenty messages at a time.
        slow_ms = 40 if stage.client.startswith("go") else 3
        self.properties = {"slow": str(slow_ms)}
        self.old = self.send("old", OLD)
        name = stage.push({self.topic: "*"}, group=self.group)
        self.members.append((stage.peer, name))
        wait(self.bodies, "the member got nothing")

    def send(self, word: str, count: int) -> set[str]:
        letters = [
            letter(self.topic, f"{word} {n}".encode(), n, properties=self.properties)
            for n in range(count)
        ]
        self.stage.send(self.producer, letters, by=self.stage.ours)
        return {mark(f"{word} {n}".encode()) for n in range(count)}

    def bodies(self) -> list[str]:
        return [m["body"] for peer, name in self.members for m in peer.messages(name)]

    def all_came_once(self, wanted: set[str]) -> None:
        wait(lambda: wanted <= set(self.bodies()), "messages are missing")
        time.sleep(1)  # what would come twice has its copy already
        assert Counter(self.bodies()) == dict.fromkeys(wanted, 1)


@pytest.mark.full
def test_the_newest_go_first(stage: Stage) -> None:
    """New messages come before the last old ones, and each one once."""
    trial = Trial(stage)
    stage.admin.set_backlog_rules(trial.group, fresh_share=0.8, fresh_lag=50)
    wait(
        lambda: any(body.ranges for body in stage.admin.skipped(trial.group).values()),
        "nothing was passed over",
    )
    new = trial.send("new", NEW)
    trial.all_came_once(trial.old | new)
    if not stage.keeps_order:
        return  # Go handles the queues side by side, and what it has in memory first
    order = trial.bodies()
    last_old = max(order.index(body) for body in trial.old)
    assert max(order.index(body) for body in new) < last_old


@pytest.mark.full
def test_a_rescue_shares_the_backlog_with_a_new_member(stage: Stage) -> None:
    """One of ours joins; copies come to both, and the counts are equal."""
    trial = Trial(stage)
    changed = 0
    while not changed:
        changed = sum(b.changed for b in stage.admin.rescue(trial.group, trial.topic, 4).values())
    name = stage.push({trial.topic: "*"}, by=stage.ours, group=trial.group)
    trial.members.append((stage.ours, name))
    wait(lambda: trial.old <= set(trial.bodies()), "messages are missing")
    retries = stage.admin.topic_offsets(f"%RETRY%{trial.group}")
    assert sum(offsets.count for offsets in retries.values()) == changed
    counts = [len(peer.messages(member)) for peer, member in trial.members]
    assert all(counts), counts
    # A queue that goes to the new member has messages that the old one has in hand.
    assert OLD <= sum(counts) <= OLD + 64


def test_messages_have_the_bounds_of_their_queue(stage: Stage) -> None:
    """MIN_OFFSET and MAX_OFFSET are those that Java's client sets."""
    topic = stage.topic(queues=1)
    letters = [letter(topic, f"bound {n}".encode(), n) for n in range(8)]
    stage.send(stage.producer(by=stage.ours), letters, by=stage.ours)
    bounds: list[set[tuple[str | None, str | None]]] = []
    for peer in (stage.peer, stage.ours):
        name = stage.push({topic: "*"}, by=peer, group=stage.unique("G"))
        wait(lambda peer=peer, name=name: len(peer.messages(name)) == 8, "messages are missing")
        found = [message["properties"] for message in peer.messages(name)]
        bounds.append({(one.get("MIN_OFFSET"), one.get("MAX_OFFSET")) for one in found})
    if stage.client.startswith("java"):
        assert bounds == [{("0", "8")}, {("0", "8")}]
    assert bounds[1] == {("0", "8")}
