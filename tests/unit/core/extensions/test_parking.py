"""What is parked, folded from the records of a parking queue."""

import random
from collections import deque
from typing import Any

import pytest

from cometmq.core.extensions.parking import (
    LaneState,
    ParkedMessage,
    ParkingLog,
    ParkKind,
    ParkRecord,
    copy_properties,
    lane_name,
    move_properties,
    moved_properties,
    order_properties,
    record_of,
)
from cometmq.errors import CodecError
from cometmq.model import MessageQueue

QUEUE = MessageQueue("Orders", "broker-a", 3)


class Topic:
    """A parking queue in the making."""

    def __init__(self) -> None:
        self.records: list[ParkRecord] = []

    def copy(self, kind: ParkKind, group: str, source_offset: int, reason: str = "") -> None:
        lane = lane_name("Orders", group, QUEUE)
        properties = copy_properties(
            {"KEYS": "k", "UNIQ_KEY": "AB", "DELAY": "3", "shop": "7"},
            kind=kind,
            lane=lane,
            topic="Orders",
            position=f"{QUEUE}:{source_offset}",
            reason=reason,
        )
        self._put(properties)

    def moved(self, group: str, message: ParkedMessage, move: str) -> None:
        lane = lane_name("Orders", group, QUEUE)
        self._put(moved_properties({}, lane=lane, topic="Orders", message=message, move=move))

    def move(self, group: str, move: str, count: int) -> None:
        self._put(move_properties(lane_name("Orders", group, QUEUE), move, count))

    def order(self, kind: ParkKind, group: str, upto_offset: int | None = None) -> None:
        self._put(order_properties(kind, lane_name("Orders", group, QUEUE), upto_offset))

    def _put(self, properties: dict[str, str]) -> None:
        offset = len(self.records)
        self.records.append(
            record_of(offset, properties=properties, message_id="AB", store_ms=5, body_bytes=9)
        )

    def read(self, first: int = 0) -> ParkingLog:
        log = ParkingLog(first)
        for record in self.records[first:]:
            log.apply(record)
        return log


def places(log: ParkingLog, lane: str) -> list[int]:
    """Source offsets of a lane's copies."""
    return [int(message.position.rpartition(":")[2]) for message in log.lanes[lane].messages]


def test_a_lane_is_parked_retried_and_flows_again() -> None:
    """The way through the states, and what a reader knows at each step."""
    topic = Topic()
    topic.copy(ParkKind.FAILED, "a", 10, "no such\naccount")
    topic.copy(ParkKind.BEHIND, "a", 12)
    log = topic.read()
    lane = log.lanes["Orders/a"]
    assert (lane.state, lane.reason) == (LaneState.PARKED, "no such account")
    assert places(log, "Orders/a") == [10, 12]
    assert lane.messages[0].source == QUEUE
    assert log.commit_offset == 0
    topic.order(ParkKind.RETRY, "a")
    assert topic.read().lanes["Orders/a"].state is LaneState.RETRYING
    topic.order(ParkKind.DONE, "a", 0)
    topic.copy(ParkKind.BEHIND, "a", 15)
    topic.order(ParkKind.HALT, "a")
    log = topic.read()
    assert (log.lanes["Orders/a"].state, places(log, "Orders/a")) == (LaneState.PARKED, [12, 15])
    assert log.commit_offset == 0
    topic.order(ParkKind.SKIP, "a", 1)
    topic.order(ParkKind.RETRY, "a")
    topic.order(ParkKind.DONE, "a", 4)
    log = topic.read()
    assert log.lanes == {}
    assert log.commit_offset == log.next_offset == 9


def test_one_that_comes_late_opens_its_lane_to_be_consumed_at_once() -> None:
    """It was on its way when the last one before it was done."""
    topic = Topic()
    topic.copy(ParkKind.FAILED, "a", 1)
    topic.order(ParkKind.RETRY, "a")
    topic.order(ParkKind.DONE, "a", 0)
    topic.copy(ParkKind.BEHIND, "a", 2)
    assert topic.read().lanes["Orders/a"].state is LaneState.RETRYING


def test_repeated_records_change_nothing() -> None:
    """A copy whose acknowledgement was lost, an order for a lane that flows."""
    topic = Topic()
    topic.copy(ParkKind.FAILED, "a", 1)
    topic.copy(ParkKind.FAILED, "a", 1)
    topic.copy(ParkKind.BEHIND, "a", 2)
    topic.copy(ParkKind.BEHIND, "a", 2)
    topic.order(ParkKind.RETRY, "b")
    topic.order(ParkKind.DONE, "b", 99)
    log = topic.read()
    assert places(log, "Orders/a") == [1, 1, 2, 2]
    assert [one.is_repeat for one in log.lanes["Orders/a"].messages] == [False, True] * 2
    assert list(log.lanes) == ["Orders/a"]
    assert not log.apply(topic.records[0])


def test_lanes_have_names_of_their_own() -> None:
    """Groups by topic, messages without one by queue."""
    other = MessageQueue("Orders", "broker-a", 4)
    assert lane_name("Orders", "a", QUEUE) == lane_name("Orders", "a", other) == "Orders/a"
    assert lane_name("Orders", None, QUEUE) == "Orders@broker-a:3"
    assert lane_name("Orders", "", other) == "Orders@broker-a:4"


def test_what_retention_removed_is_forgotten() -> None:
    """Nobody can consume it any more; the lane goes on with the rest."""
    topic = Topic()
    topic.copy(ParkKind.FAILED, "a", 1)
    topic.copy(ParkKind.FAILED, "b", 2)
    topic.copy(ParkKind.BEHIND, "a", 3)
    log = topic.read()
    log.forget_before(2)
    assert places(log, "Orders/a") == [3]
    assert "Orders/b" not in log.lanes


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"PARK_KIND": "what"},
        {"PARK_KIND": "failed", "PARK_LANE": "x"},
        {"PARK_KIND": "failed", "PARK_LANE": "x", "PARK_OF": "nowhere"},
        {"PARK_KIND": "done", "PARK_LANE": "x", "PARK_UPTO": "y"},
    ],
)
def test_records_that_are_none(properties: dict[str, str]) -> None:
    """Anybody may write into a topic; what was not written by us is told by its place."""
    with pytest.raises(CodecError, match="record 7"):
        record_of(7, properties=properties, message_id="", store_ms=0, body_bytes=0)


def test_copies_keep_what_is_the_users() -> None:
    """Keys, tag, group and own properties; not what brokers said of its way so far."""
    properties = copy_properties(
        {"KEYS": "k", "TAGS": "t", "__SHARDINGKEY": "g", "UNIQ_KEY": "AB", "shop": "7"}
        | {"DELAY": "3", "REAL_TOPIC": "x", "TRAN_MSG": "true", "PARK_REASON": "old"},
        kind=ParkKind.BEHIND,
        lane="Orders/g",
        topic="Orders",
        position="Orders@broker-a:3:1",
    )
    assert properties == {
        "KEYS": "k",
        "TAGS": "t",
        "__SHARDINGKEY": "g",
        "UNIQ_KEY": "AB",
        "shop": "7",
        "PARK_KIND": "behind",
        "PARK_LANE": "Orders/g",
        "PARK_OF": "Orders@broker-a:3:1",
        "RETRY_TOPIC": "Orders",
    }


@pytest.mark.parametrize("seed", range(40))
def test_reading_may_begin_at_the_commit_offset(seed: int) -> None:
    """Every reader comes to the same state, wherever an earlier reader let it begin."""
    chance = random.Random(seed)
    topic = Topic()
    source = 0
    moves: dict[str, tuple[str, list[ParkedMessage], int]] = {}
    whole = ParkingLog()
    for step in range(120):
        group = chance.choice("abc")
        committed = whole.commit_offset
        lane = whole.lanes.get(f"Orders/{group}")
        kind = chance.choice([*ParkKind, *[ParkKind.MOVED] * 6])
        if kind is ParkKind.MOVED:
            if group not in moves and lane is not None:
                copies = [one for one in lane.messages if not one.is_repeat]
                moves[group] = f"move {step}", copies, len(copies)
            if group in moves:
                name, copies, count = moves[group]
                if copies:
                    topic.moved(group, copies.pop(0), name)
                    moves[group] = name, copies, count
                    if not copies:
                        # Whoever moves looks at what was read back, and not at what comes after.
                        seen = topic.read().lanes.get(f"Orders/{group}")
                        is_fit = seen is not None and seen.is_ready_to_move(name, count)
                        moves[group] = name, copies, count if is_fit else 0
                else:
                    topic.move(group, name, count)
                    del moves[group]
        elif kind is ParkKind.MOVE:
            moves.pop(group, None)
        elif kind.is_message:
            source += 1
            again = chance.random() < 0.2
            topic.copy(kind, group, max(1, source - 1 if again else source))
        elif kind in (ParkKind.DONE, ParkKind.SKIP) and lane is not None:
            topic.order(kind, group, chance.choice(list(lane.messages)).park_offset)
        else:
            topic.order(kind, group, -1 if kind in (ParkKind.DONE, ParkKind.SKIP) else None)
        for record in topic.records[whole.next_offset :]:
            whole.apply(record)
        late = topic.read(whole.commit_offset)
        assert describe(late) == describe(whole)
        assert whole.commit_offset >= committed


def describe(log: ParkingLog) -> dict[str, Any]:
    """The state as plain values."""
    return {name: (lane.state, deque(lane.messages)) for name, lane in log.lanes.items()}


def test_a_move_keeps_order_and_lets_the_old_copies_go() -> None:
    """What comes meanwhile is behind the moved ones, for every reader; `done` means the lane."""
    topic = Topic()
    topic.copy(ParkKind.FAILED, "a", 1, "why")
    topic.copy(ParkKind.BEHIND, "a", 2)
    before = topic.read().lanes["Orders/a"]
    topic.moved("a", before.messages[0], "m")
    topic.copy(ParkKind.BEHIND, "a", 3)
    topic.moved("a", before.messages[1], "m")
    assert topic.read().commit_offset == 0
    assert places(topic.read(), "Orders/a") == [1, 2, 3]
    topic.move("a", "m", 2)
    log = topic.read()
    assert log.commit_offset == 2, "the first two may go"
    lane = log.lanes["Orders/a"]
    assert places(log, "Orders/a") == [1, 2, 3]
    assert [one.park_offset for one in lane.messages] == [2, 4, 3]
    assert (lane.state, lane.reason) == (LaneState.PARKED, "why")
    assert describe(topic.read(2)) == describe(log)
    topic.order(ParkKind.RETRY, "a")
    topic.order(ParkKind.DONE, "a", 4)
    assert places(topic.read(), "Orders/a") == [3]
    topic.order(ParkKind.DONE, "a", 4)
    assert places(topic.read(), "Orders/a") == [3], "a repeated note ends nothing more"
    topic.order(ParkKind.DONE, "a", 3)
    assert topic.read().lanes == {}


@pytest.mark.parametrize("kind", [ParkKind.RETRY, ParkKind.SKIP, ParkKind.HALT])
def test_an_order_in_the_middle_makes_a_move_void(kind: ParkKind) -> None:
    """So does a copy that is missing; the old copies count on."""
    topic = Topic()
    topic.copy(ParkKind.FAILED, "a", 1)
    topic.copy(ParkKind.BEHIND, "a", 2)
    copies = list(topic.read().lanes["Orders/a"].messages)
    topic.moved("a", copies[0], "m")
    topic.order(kind, "a", 0 if kind is ParkKind.SKIP else None)
    topic.moved("a", copies[1], "m")
    topic.move("a", "m", 2)
    log = topic.read()
    assert places(log, "Orders/a") == ([2] if kind is ParkKind.SKIP else [1, 2])
    assert [one.park_offset for one in log.lanes["Orders/a"].messages][-1] == 1
    assert log.commit_offset == 0


def test_retention_below_every_lane_changes_nothing() -> None:
    """The copies of a lane are all there."""
    topic = Topic()
    topic.copy(ParkKind.FAILED, "a", 0)
    topic.copy(ParkKind.BEHIND, "a", 1)
    log = ParkingLog()
    for record in topic.records:
        log.apply(record)
    log.forget_before(0)
    assert places(log, "Orders/a") == [0, 1]
