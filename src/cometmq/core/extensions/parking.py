"""Parked message groups: the records of a parking topic, and the state that they add up to.

The module does no I/O, runs no handlers and does not know which member owns a queue; that is the
task of `cometmq.client.extensions.parking.parking`.

When an ordered message has failed N times, a consumer copies it and the later messages of its group
to the topic ``%PARK%<consumer group>``, and the other groups continue.  The topic has one queue on
each broker, for the messages of that broker's queues.  This queue alone defines what is parked.  It
is a log of records:

    failed   a copy of the message that failed too often; its lane is parked from here on
    behind   a copy of a message that arrived while its lane was parked
    retry    an operator's order: consume the lane's messages again, in order
    halt     a retried message failed too often again; the lane waits for the next order
    done     the lane's messages up to an offset were consumed
    skip     the lane's messages up to an offset were given up by an operator
    moved    a copy of a copy nearer to the log's end, where retention arrives later
    move     the lane now consists of its `moved` copies, followed by those that arrived meanwhile

`ParkingLog` applies them in order, so every reader computes the same state.  A *lane* is a message
group of a topic, or all messages of one queue that have no group:

    flowing --failed--> PARKED --retry--> RETRYING --done/skip of the last copy--> flowing
                          ^                  |
                          +------- halt -----+

Why order holds: one member at a time owns a queue (by the broker's lock), and this member follows
four rules.

1. It reads the log to its end before it handles the queue's first message, so it knows every lane
   that the previous owners parked.  A message counts as consumed only when its copy was
   acknowledged *and* read back, so every committed message is in the log.
2. It appends each message of a parked lane to the log, after the copy before was read back, and
   never passes the message to the handler.  So the log has the lane's messages in order, even if a
   broker loses acknowledged records (a power cut with asynchronous flush).
3. After `retry` it passes the lane's messages from the log to the handler, oldest first, each after
   the one before was consumed, and records that with `done`.  Messages that arrive meanwhile are
   appended.
4. It lets the lane flow again only after it has read a `done` or `skip` that empties the lane and
   no copy is on its way.  Later messages wait while a copy is on its way.  A `behind` copy that
   arrives after that record opens the lane again as RETRYING, so it is consumed at once.

A record may appear twice (a lost acknowledgement, a member that died).  A copy is identified by the
position of its message in the source queue, so the second copy is not consumed.  If `done` is lost
with its member, messages are consumed again, as delivery is at least once.

A move takes many records but counts as one step.  `moved` copies have no effect until the `move`
that names them and their number; any other record that changes the lane in between voids the move.
So the moving member may die, or an operator's order may overtake it.  A member moves only lanes
that are PARKED.  It writes `move` after it has read back all copies and `is_ready_to_move` is true.
A reader that begins at the first `moved` copy treats the copies as the lane's messages; the `move`
puts them before the messages that arrived meanwhile.

A reader may begin at `commit_offset`, where the oldest lane that does not flow was opened.  It then
reads every record of these lanes.  Of the other lanes it may see copies, but also the later record
that ends them.
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
"""Position of the message in its own queue: ``topic@broker:queue:offset``."""
PARK_REASON: Final = "PARK_REASON"
PARK_UPTO: Final = "PARK_UPTO"
"""The last offset of the parking queue that `done` or `skip` covers."""
PARK_MOVE: Final = "PARK_MOVE"
"""Which move a `moved` or `move` record belongs to."""
PARK_COUNT: Final = "PARK_COUNT"
"""How many copies a move has."""
PARK_SINCE: Final = "PARK_SINCE"
"""When a moved message was parked first, in ms since 1970."""
REASON_CHARACTERS_MAX: Final = 500


class ParkKind(Enum):
    """The kinds of records; the module's docstring explains each."""

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
        """Whether a record of this kind is a copy of a message."""
        return self in (ParkKind.FAILED, ParkKind.BEHIND, ParkKind.MOVED)


class LaneState(Enum):
    """The states of a lane that is not flowing."""

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
        """The queue that the message was pulled from."""
        return _source_of(self.position)


def _source_of(position: str) -> MessageQueue:
    queue, _, _ = position.rpartition(":")
    topic, _, broker_and_id = queue.partition("@")
    broker_name, _, queue_id = broker_and_id.rpartition(":")
    return MessageQueue(topic, broker_name, int(queue_id))


@dataclass(frozen=True, slots=True)
class ParkRecord:
    """One record of the log.

    ``message`` is set for copies, ``upto_offset`` for `done` and `skip`, ``move`` for the records
    of a move, and ``count`` for `move` itself.
    """

    kind: ParkKind
    lane: str
    park_offset: int
    message: ParkedMessage | None = None
    upto_offset: int = -1
    move: str = ""
    count: int = 0


@dataclass(slots=True)
class HaltedLane:
    """A lane that is not flowing, with its unfinished copies in the order of consumption."""

    state: LaneState
    opened_offset: int
    """Offset of the record with which the lane stopped flowing."""
    messages: deque[ParkedMessage] = field(default_factory=deque)
    positions: set[str] = field(default_factory=set)
    move: str = ""
    moving: list[ParkedMessage] = field(default_factory=list)
    """The copies of a move that has not ended."""
    opened_by: str | None = None
    """The move that opened the lane, if the reader began after the copies that it moves."""
    is_moved: bool = False
    """Whether the lane was moved, after which the offsets of its copies may not ascend."""

    @property
    def oldest_ms(self) -> int:
        """When the oldest copy was stored; retention deletes this copy first."""
        return min((copy.stored_ms for copy in self.messages), default=0)

    def is_ready_to_move(self, move: str, count: int) -> bool:
        """Whether all copies of a move were read and no other record came between them.

        If not, the member abandons the move by a `move` record with a count of 0.
        """
        if not (self.move == move and len(self.moving) == count > 0):
            return False
        first, positions = self.moving[0].park_offset, {copy.position for copy in self.moving}
        are_all = all(
            copy.is_repeat or copy.position in positions or copy.park_offset > first
            for copy in self.messages
        )
        return are_all and self.opened_by is None and self.state is LaneState.PARKED

    def holds(self, park_offset: int, count_max: int) -> bool:
        """Whether a copy is among the first ``count_max``."""
        return any(copy.park_offset == park_offset for copy in islice(self.messages, count_max))

    @property
    def reason(self) -> str:
        """The handler's reason for the failure that parked the lane; empty without one."""
        return self.messages[0].reason if self.messages else ""


class ParkingLog:
    """The state of one parking queue up to, not including, ``next_offset``."""

    __slots__ = ("lanes", "next_offset")

    def __init__(self, next_offset: int = 0) -> None:
        self.next_offset = next_offset
        self.lanes: dict[str, HaltedLane] = {}
        """The lanes that are not flowing, by name; each has at least one copy."""

    @property
    def commit_offset(self) -> int:
        """The offset from which another reader computes the same state."""
        opened = [lane.opened_offset for lane in self.lanes.values()]
        return min(opened, default=self.next_offset)

    def skip_to(self, next_offset: int) -> None:
        """Continue at ``next_offset``, because the records before it are deleted or unreadable."""
        self.next_offset = max(self.next_offset, next_offset)

    def forget_before(self, min_offset: int) -> None:
        """Drop the copies below ``min_offset``, which retention has deleted."""
        for name, lane in list(self.lanes.items()):
            if lane.messages[0].park_offset >= min_offset and not lane.is_moved:
                continue
            lane.messages = deque(copy for copy in lane.messages if copy.park_offset >= min_offset)
            lane.positions = {copy.position for copy in lane.messages}
            if not lane.messages:
                del self.lanes[name]

    def apply(self, record: ParkRecord) -> bool:
        """Apply the next record; False if it changes nothing."""
        if record.park_offset < self.next_offset:
            return False
        self.next_offset = record.park_offset + 1
        lane = self.lanes.get(record.lane)
        if record.message is not None:
            return self._add(record, record.message, lane)
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

    def _add(self, record: ParkRecord, message: ParkedMessage, lane: HaltedLane | None) -> bool:
        if record.kind is ParkKind.MOVED:
            if lane is not None and lane.move != record.move:
                lane = self._void(record.lane, lane)
                if lane is not None:
                    lane.move = record.move
            if lane is not None:
                lane.moving.append(message)
                if lane.opened_by is None:
                    return True
        if lane is None:
            # All copies before a `behind` copy are consumed by now, so it is consumed at once.
            is_behind = record.kind is ParkKind.BEHIND
            lane = HaltedLane(
                LaneState.RETRYING if is_behind else LaneState.PARKED, record.park_offset
            )
            self.lanes[record.lane] = lane
            if record.kind is ParkKind.MOVED:
                lane.move = lane.opened_by = record.move
                lane.moving.append(message)
        is_repeat = message.position in lane.positions
        lane.messages.append(replace(message, is_repeat=is_repeat))
        lane.positions.add(message.position)
        return True

    def _move(self, lane: HaltedLane, record: ParkRecord) -> bool:
        """Replace the old copies by the moved ones, before those that arrived meanwhile."""
        moving = lane.moving
        if not (lane.move == record.move and len(moving) == record.count > 0):
            self._void(record.lane, lane)
            return False
        moved, first = {copy.position for copy in moving}, moving[0].park_offset
        # An older copy that was not moved is a repetition.
        newer = [
            copy
            for copy in lane.messages
            if copy.park_offset > first and copy.position not in moved
        ]
        lane.messages = deque([*moving, *newer])
        lane.positions = {copy.position for copy in lane.messages}
        lane.opened_offset = first
        lane.opened_by = None
        lane.move, lane.moving = "", []
        lane.is_moved = True
        # The moving member saw that the lane was parked; a reader that began later cannot see it.
        lane.state = LaneState.PARKED
        return True

    def _void(self, name: str, lane: HaltedLane) -> HaltedLane | None:
        """Abandon an unfinished move; None if the lane has no other copies.

        The reader has not seen the originals of a lane that a move opened: they ended before.
        """
        if lane.opened_by is not None:
            lane.messages = deque(copy for copy in lane.messages if copy.move != lane.opened_by)
            lane.positions = {copy.position for copy in lane.messages}
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
            # The order of the lane counts here; a copy that is not in it was finished before.
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
        CodecError: the message is not such a record; the text names the wrong property.
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
        position = properties[PARK_OF]
        _source_of(position)  # raises for a text that is no position
        message = ParkedMessage(
            park_offset,
            position,
            message_id,
            properties.get(prop.KEYS, ""),
            properties.get(PARK_REASON, ""),
            int(properties.get(PARK_SINCE, str(store_ms))),
            body_bytes,
            store_ms,
            move=properties.get(PARK_MOVE, "") if kind is ParkKind.MOVED else "",
        )
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
    """Properties of a copy: the user's, the message's identity, and where the message is parked."""
    identity = (prop.KEYS, prop.TAGS, prop.SHARDING_KEY, prop.UNIQ_KEY, prop.ORIGIN_MESSAGE_ID)
    copy = {
        name: value
        for name, value in properties.items()
        if name in identity or name not in prop.RESERVED_PROPERTIES
    }
    copy.pop(PARK_REASON, None)
    copy |= {PARK_KIND: kind.value, PARK_LANE: lane, PARK_OF: position, prop.RETRY_TOPIC: topic}
    if reason:
        copy[PARK_REASON] = " ".join(reason.split())[:REASON_CHARACTERS_MAX]
    return copy


def order_properties(kind: ParkKind, lane: str, upto_offset: int | None = None) -> dict[str, str]:
    """Properties of a record that is not a copy."""
    properties = {PARK_KIND: kind.value, PARK_LANE: lane, prop.TAGS: kind.value}
    if upto_offset is not None:
        properties[PARK_UPTO] = str(upto_offset)
    return properties


def moved_properties(
    properties: Mapping[str, str], *, lane: str, topic: str, message: ParkedMessage, move: str
) -> dict[str, str]:
    """Properties of the `moved` copy of a copy with ``properties``."""
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
