"""Parked message groups: which ones are parked, with which messages, folded from the parking topic.

Job: the records of a parking topic, and the state that follows from reading them in order.
Must not: do I/O, run handlers, or know who owns a queue;
`cometmq.client.extensions.parking.parking` does.

After N failed tries of an ordered message it and the later messages of its group are copied to the
topic ``%PARK%<consumer group>``, one queue on the broker of the message's own queue, and the other
groups flow on.  That queue is the only truth about what is parked.  It is a log of records:

    failed   a copy of the message that failed too often; its lane is parked from here on
    behind   a copy of a message that came while its lane was parked
    retry    an operator's order: consume the lane's messages again, in order
    halt     a retried message failed too often again: the lane stands still until the next order
    done     the lane's messages up to an offset were consumed
    skip     the same, but an operator gave them up
    moved    a copy of a copy, further on in the log, where retention does not come so soon
    move     the lane consists of its `moved` copies now, and of what came meanwhile

and `ParkingLog` folds them, the same for every reader.  A lane (a message group of a topic, or one
queue's messages without a group) is

    flowing --failed--> PARKED --retry--> RETRYING --done/skip of the last one--> flowing
                          ^                  |
                          +------- halt -----+

Why order holds.  One member at a time has a queue (the broker's lock), and it

1. reads the log up to its end before it handles the queue's first message, so it knows every lane
   that was parked by whoever had the queue before: a message counts as consumed only when its
   copy was acknowledged *and* read back, so what is committed is in the log;
2. sends what comes for a parked lane to the log's end, each when the one before was read back,
   and never to the handler; so the log holds the lane's messages in their order, also where a
   broker loses what it had acknowledged (a power cut with asynchronous flush);
3. when told to retry, hands the lane's messages to the handler from the log, the first first, each
   when the one before was consumed, and notes that with `done`.  What comes meanwhile goes behind;
4. leaves the parked state only when it has read a `done` or `skip` after which the lane is empty,
   so all its messages were consumed or given up, and none is on its way: a copy that is still on
   its way keeps later messages waiting.  If it comes after that record, the lane is empty and the
   copy is one that was `behind`: it opens the lane again as RETRYING, to be consumed at once.

Records may come twice (a lost acknowledgement, a member that died): a copy of what is already in
the lane is known by its place in the source queue, and is not consumed again.  A `done` may be lost
with its member; then messages are consumed again, as always where delivery is at least once.

A move is one step, though it takes many records: `moved` copies count for nothing before the `move`
that names them and their number, and any other record that ends or changes something of the lane
in between makes it void.  So the member that moves may die, or be overtaken by an operator's order.
It moves lanes that are PARKED, and writes `move` when it has read back all copies and seen that
they fit (`is_ready_to_move`).  A reader that begins at the first `moved` copy takes the copies for
the lane, until `move` has put them before what came meanwhile.

Reading may begin at `commit_offset`, where the first of the lanes that do not flow was opened: of
these every record is read, and of the others what ends a copy is behind it in the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import islice, takewhile
from typing import Final

from cometmq.errors import CodecError
from cometmq.model import MessageQueue
from cometmq.model import properties as prop
from cometmq.model.names import PARK_PREFIX

__all__ = [
    "PARK_KIND",
    "PARK_LANE",
    "PARK_MOVE",
    "PARK_OF",
    "PARK_REASON",
    "PARK_SINCE",
    "PARK_UPTO",
    "HaltedLane",
    "LaneState",
    "ParkKind",
    "ParkRecord",
    "ParkedMessage",
    "ParkingLog",
    "copy_properties",
    "lane_name",
    "move_properties",
    "moved_properties",
    "order_properties",
    "record_of",
]

PARK_KIND: Final = "PARK_KIND"
PARK_LANE: Final = "PARK_LANE"
PARK_OF: Final = "PARK_OF"
"""Place of the message in its own queue: ``topic@broker:queue:offset``."""
PARK_REASON: Final = "PARK_REASON"
PARK_UPTO: Final = "PARK_UPTO"
"""Last offset of the parking queue that `done` or `skip` is about."""
PARK_MOVE: Final = "PARK_MOVE"
"""Which move a `moved` or `move` record belongs to."""
PARK_COUNT: Final = "PARK_COUNT"
"""How many copies a move has."""
PARK_SINCE: Final = "PARK_SINCE"
"""When a moved message was parked first, in ms since 1970."""
REASON_CHARACTERS_MAX: Final = 500


class ParkKind(Enum):
    """What a record is."""

    FAILED = "failed"
    BEHIND = "behind"
    RETRY = "retry"
    HALT = "halt"
    DONE = "done"
    SKIP = "skip"
    MOVED = "moved"
    MOVE = "move"

    @property
    def is_message(self) -> bool:
        """Whether it is a copy of a message rather than an order or a note."""
        return self in (ParkKind.FAILED, ParkKind.BEHIND, ParkKind.MOVED)


class LaneState(Enum):
    """What happens with a lane that is not flowing."""

    PARKED = "parked"
    RETRYING = "retrying"


def lane_name(topic: str, message_group: str | None, queue: MessageQueue) -> str:
    """A lane's name: ``topic/group``, or ``topic@broker:queue`` for messages without a group.

    Neither ``/`` nor ``@`` may stand in a topic's name.  The name is the same in every queue of the
    topic, so that a group that moves to another queue of its broker stays parked.
    """
    if message_group:
        return f"{topic}/{message_group}"
    return f"{topic}@{queue.broker_name}:{queue.queue_id}"


@dataclass(frozen=True, slots=True)
class ParkedMessage:
    """A copy in the parking queue, at ``park_offset``."""

    park_offset: int
    position: str
    message_id: str
    keys: str
    reason: str
    parked_ms: int
    body_bytes: int
    stored_ms: int = 0
    """When this copy was stored: later than ``parked_ms`` once it was moved."""
    is_repeat: bool = False
    """A copy of the same message is in the lane before it; this one need not be consumed."""
    move: str = ""
    """The move that made this copy."""

    @property
    def source(self) -> MessageQueue:
        """The queue the message was pulled from."""
        name, _, _ = self.position.rpartition(":")
        topic, _, rest = name.partition("@")
        broker_name, _, queue_id = rest.rpartition(":")
        return MessageQueue(topic, broker_name, int(queue_id))


@dataclass(frozen=True, slots=True)
class ParkRecord:
    """One record of the log; ``message`` for copies, ``upto_offset`` for done and skip, ``move``
    for those of a move and ``count`` for its last one."""

    kind: ParkKind
    lane: str
    park_offset: int
    message: ParkedMessage | None = None
    upto_offset: int = -1
    move: str = ""
    count: int = 0


@dataclass(slots=True)
class HaltedLane:
    """A lane that is not flowing: its unfinished copies, the first first."""

    state: LaneState
    opened_offset: int
    """The record with which it stopped flowing."""
    messages: deque[ParkedMessage] = field(default_factory=deque)
    positions: set[str] = field(default_factory=set)
    move: str = ""
    moving: list[ParkedMessage] = field(default_factory=list)
    """Copies of a move that has not come to its end."""
    opened_by: str | None = None
    """The move whose copies are all that is known of it."""
    is_moved: bool = False
    """It was moved once: offsets may not ascend any more."""

    @property
    def oldest_ms(self) -> int:
        """When the copy was stored that retention reaches first."""
        return min((one.stored_ms for one in self.messages), default=0)

    def is_ready_to_move(self, move: str, count: int) -> bool:
        """Whether all copies of a move are here and nothing has come between; else it is given up
        by a `move` record with a count of 0."""
        if not (self.move == move and len(self.moving) == count > 0):
            return False
        first, moving_positions = self.moving[0].park_offset, {one.position for one in self.moving}
        are_all = all(
            one.is_repeat or one.position in moving_positions or one.park_offset > first
            for one in self.messages
        )
        return are_all and self.opened_by is None and self.state is LaneState.PARKED

    def holds(self, park_offset: int, count_max: int) -> bool:
        """Whether a copy is among the first ``count_max``."""
        return any(one.park_offset == park_offset for one in islice(self.messages, count_max))

    @property
    def reason(self) -> str:
        """Why it was parked, as far as the handler said."""
        return self.messages[0].reason if self.messages else ""


class ParkingLog:
    """The state of one parking queue up to, not including, ``next_offset``."""

    __slots__ = ("lanes", "next_offset")

    def __init__(self, next_offset: int = 0) -> None:
        self.next_offset = next_offset
        self.lanes: dict[str, HaltedLane] = {}
        """Lanes that are not flowing; none is empty."""

    @property
    def commit_offset(self) -> int:
        """Where another reader may begin and come to the same state."""
        opened = [lane.opened_offset for lane in self.lanes.values()]
        return min(opened, default=self.next_offset)

    def skip_to(self, next_offset: int) -> None:
        """Records up to here are gone or unreadable; what they held of lanes is forgotten."""
        self.next_offset = max(self.next_offset, next_offset)

    def forget_before(self, min_offset: int) -> None:
        """Retention removed records below ``min_offset``: nobody can consume those copies."""
        for name, lane in list(self.lanes.items()):
            if lane.messages[0].park_offset >= min_offset and not lane.is_moved:
                continue
            lane.messages = deque(o for o in lane.messages if o.park_offset >= min_offset)
            lane.positions = {one.position for one in lane.messages}
            if not lane.messages:
                del self.lanes[name]

    def apply(self, record: ParkRecord) -> bool:
        """Take in the next record; False if it changes nothing."""
        if record.park_offset < self.next_offset:
            return False
        self.next_offset = record.park_offset + 1
        lane = self.lanes.get(record.lane)
        if record.kind.is_message:
            return self._add(record, lane)
        if lane is None:
            return False
        if record.kind is ParkKind.MOVE:
            return self._move(lane, record)
        if self._void(record.lane, lane) is None:
            return True
        if record.kind is ParkKind.RETRY:
            lane.state = LaneState.RETRYING
        elif record.kind is ParkKind.HALT:
            lane.state = LaneState.PARKED
        else:
            is_all = record.upto_offset >= record.park_offset
            return self._finish(record.lane, lane, record.upto_offset, is_all=is_all)
        return True

    def _add(self, record: ParkRecord, lane: HaltedLane | None) -> bool:
        assert record.message is not None
        if record.kind is ParkKind.MOVED:
            if lane is not None and lane.move != record.move:
                lane = self._void(record.lane, lane)
                if lane is not None:
                    lane.move = record.move
            if lane is not None:
                lane.moving.append(record.message)
                if lane.opened_by is None:
                    return True
        if lane is None:
            # One that was behind others which are all consumed by now has nothing to wait for.
            is_behind = record.kind is ParkKind.BEHIND
            lane = HaltedLane(
                LaneState.RETRYING if is_behind else LaneState.PARKED, record.park_offset
            )
            self.lanes[record.lane] = lane
            if record.kind is ParkKind.MOVED:
                lane.move = lane.opened_by = record.move
                lane.moving.append(record.message)
        position = record.message.position
        lane.messages.append(replace(record.message, is_repeat=position in lane.positions))
        lane.positions.add(position)
        return True

    def _move(self, lane: HaltedLane, record: ParkRecord) -> bool:
        """Put the moved copies in the place of the old ones, before what came meanwhile."""
        moving = lane.moving
        if not (lane.move == record.move and len(moving) == record.count > 0):
            self._void(record.lane, lane)
            return False
        moved, first = {one.position for one in moving}, moving[0].park_offset
        # What is older and was not moved is a repetition.
        newer = [o for o in lane.messages if o.park_offset > first and o.position not in moved]
        lane.messages = deque([*moving, *newer])
        lane.positions = {one.position for one in lane.messages}
        lane.opened_offset = first
        lane.opened_by = None
        lane.move, lane.moving = "", []
        lane.is_moved = True
        # Who moved saw that it was; a reader that began after the first old copies cannot.
        lane.state = LaneState.PARKED
        return True

    def _void(self, name: str, lane: HaltedLane) -> HaltedLane | None:
        """A move under way counts for nothing; None if the lane was nothing else.

        Of a lane that began with a move we have not seen what it copies: that was ended before.
        """
        if lane.opened_by is not None:
            lane.messages = deque(o for o in lane.messages if o.move != lane.opened_by)
            lane.positions = {one.position for one in lane.messages}
            lane.opened_by = None
        lane.move, lane.moving = "", []
        if not lane.messages:
            del self.lanes[name]
            return None
        return lane

    def _finish(self, name: str, lane: HaltedLane, upto_offset: int, *, is_all: bool) -> bool:
        messages = lane.messages
        before = len(messages)
        if lane.is_moved and not is_all:
            # Order in the lane counts, not in the log; what is not there was finished before.
            count = next((n for n, m in enumerate(messages, 1) if m.park_offset == upto_offset), 0)
        else:
            count = sum(1 for _ in takewhile(lambda m: m.park_offset <= upto_offset, messages))
        for _ in range(count):
            message = messages.popleft()
            if not message.is_repeat:
                lane.positions.discard(message.position)
        if not messages:
            del self.lanes[name]
        return len(messages) != before


def record_of(
    park_offset: int,
    *,
    properties: Mapping[str, str],
    message_id: str,
    store_ms: int,
    body_bytes: int,
) -> ParkRecord:
    """Read a record of a parking queue.

    Raises:
        CodecError: it is none, with the property that is missing or wrong.
    """
    try:
        kind = ParkKind(properties[PARK_KIND])
        lane = properties[PARK_LANE]
        if not kind.is_message:
            return ParkRecord(
                kind,
                lane,
                park_offset,
                upto_offset=int(properties.get(PARK_UPTO, str(park_offset))),
                move=properties.get(PARK_MOVE, ""),
                count=int(properties.get(PARK_COUNT, "0")),
            )
        message = ParkedMessage(
            park_offset,
            properties[PARK_OF],
            message_id,
            properties.get(prop.KEYS, ""),
            properties.get(PARK_REASON, ""),
            int(properties.get(PARK_SINCE, str(store_ms))),
            body_bytes,
            store_ms,
            move=properties.get(PARK_MOVE, "") if kind is ParkKind.MOVED else "",
        )
        # Whoever asks for the source later must not meet a name that is none.
        assert message.source
    except (KeyError, ValueError) as error:
        raise CodecError(
            f"record {park_offset} of a parking topic ({PARK_PREFIX}...): {error!s:.100} is not "
            "what a parked message has"
        ) from None
    return ParkRecord(kind, lane, park_offset, message, move=message.move)


def copy_properties(
    properties: Mapping[str, str],
    *,
    kind: ParkKind,
    lane: str,
    topic: str,
    position: str,
    reason: str = "",
) -> dict[str, str]:
    """Properties of a copy: the user's and those that tell the message, and where it is parked."""
    kept = (prop.KEYS, prop.TAGS, prop.SHARDING_KEY, prop.UNIQ_KEY, prop.ORIGIN_MESSAGE_ID)
    copy = {
        name: value
        for name, value in properties.items()
        if name in kept or name not in prop.RESERVED_PROPERTIES
    }
    copy.pop(PARK_REASON, None)
    copy |= {PARK_KIND: kind.value, PARK_LANE: lane, PARK_OF: position, prop.RETRY_TOPIC: topic}
    if reason:
        copy[PARK_REASON] = " ".join(reason.split())[:REASON_CHARACTERS_MAX]
    return copy


def order_properties(kind: ParkKind, lane: str, upto_offset: int | None = None) -> dict[str, str]:
    """Properties of a record that is no copy."""
    properties = {PARK_KIND: kind.value, PARK_LANE: lane, prop.TAGS: kind.value}
    if upto_offset is not None:
        properties[PARK_UPTO] = str(upto_offset)
    return properties


def moved_properties(
    properties: Mapping[str, str], *, lane: str, topic: str, message: ParkedMessage, move: str
) -> dict[str, str]:
    """Properties of a copy further on of a copy with ``properties``."""
    copy = copy_properties(
        properties,
        kind=ParkKind.MOVED,
        lane=lane,
        topic=topic,
        position=message.position,
        reason=message.reason,
    )
    return copy | {PARK_MOVE: move, PARK_SINCE: str(message.parked_ms)}


def move_properties(lane: str, move: str, count: int) -> dict[str, str]:
    """Properties of the record that ends a move."""
    return order_properties(ParkKind.MOVE, lane) | {PARK_MOVE: move, PARK_COUNT: str(count)}
