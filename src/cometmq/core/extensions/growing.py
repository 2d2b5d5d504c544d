"""How an ordered topic gets more queues, or fewer, without breaking the order of a message group.

The module computes the layouts of a topic and reads a change from the topic's attributes.  It takes
two decisions: to which queue a producer sends a message group, and whether a broker may store the
message there.  It does no I/O.

RocketMQ computes ``hash % queues`` over the present route, so every change of the number of queues
breaks order.  CometMQ records such a change as a *growth*: the old layout, the new layout, and an
epoch that counts growths.  The *home* of a group in a layout is the queue that ``hash % queues``
selects there.  The groups of each old queue fall into 256 *buckets* by their hash, and a bucket
moves as a whole.  Only the broker of the old queue decides when a bucket moves.  All messages of
the bucket pass through that broker, so the decision needs no clock and no agreement between
producers.

A growth is stored in the attributes of the topic.  Every broker has the same values, except for
``group.moved``:

- ``group.epoch``: 1 for the first growth;
- ``group.layout.old`` and ``group.layout``: ``broker-a:4;broker-b:4``, in the order in which the
  hash selects;
- ``group.phase``: ``prepared`` (groups use the old layout), ``moving``, ``closing``, or
  ``complete`` (all groups use the new layout);
- ``group.moved``: ``0:*;1:ff00..``, for each of the broker's own queues a bit per moved bucket;
- ``group.away``: what producers do with a group whose home is at a broker that is away: ``wait``
  for it (also without the attribute), or ``move`` to a queue of the others meanwhile, which breaks
  the group's order.  A topic that never grew gets its layout with this choice, as a growth that is
  complete and led nowhere; without a layout nobody knows which queues are away, and ``hash %
  queues`` moves groups as in RocketMQ.

The admin call first sends ``prepared`` and the new number of queues to each broker, in the order of
the brokers' names.  A broker refuses another growth until all its own buckets have moved.  When
every broker is prepared, the admin call writes ``moving`` to all of them.  From then on a broker
marks a bucket as moved when every consumer group has committed past the bucket's last message.  It
makes the mark durable, and then refuses the bucket's groups at the old queue (code GROUP_MOVED).

A producer sends a group to its old home until that broker has answered that the bucket moved, then
to the new home.  Each send carries epoch and hash.  The old home decides by the bucket alone,
whatever the producer believes.  The new home accepts a group only from a producer that knows its
epoch, because such a producer has asked the old home before.  Therefore the new queue gets a
group's first message only after all its messages in the old queue are consumed, and the old queue
gets none after that.

- This holds for producers that learn of the growth late.
- It holds after crashes: a broker uses no mark before it is durable, and after a restart it takes
  the end of the queue as the bucket's last message.
- It holds for consumer groups that are offline, because their stored offset counts.

A bucket that never runs empty moves only in the phase ``closing``: its sends then wait until
consumers have finished the messages that are already stored.

When every broker of the old layout has marked all its buckets, the admin call writes ``complete``
to all brokers.  A producer that reads ``complete`` at any broker needs no marks, so a broker that
is not in the new layout can be removed.

A transactional message gets its queue when its half message is stored, and a bucket with an open
transaction does not move.  Messages without epoch and hash (from Java's producers, and delayed
ones) take no part in this.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from cometmq.codec.java_hash import java_hash
from cometmq.errors import ConfigError

__all__ = [
    "AWAY_MOVES",
    "AWAY_WAITS",
    "BUCKET_COUNT",
    "GROUP_FIELD",
    "Growth",
    "Layout",
    "Phase",
    "QueueDrain",
    "StoreDecision",
    "bucket_of",
    "check_change",
    "consumed_offset",
    "decide_store",
    "group_hash",
    "parse_group_field",
    "takes_mixed_batch",
]

BUCKET_COUNT: Final = 256
"""Enough that few groups share a bucket; the marks of a queue still fit into 64 hex digits."""
ALL_MOVED: Final = (1 << BUCKET_COUNT) - 1
GROUP_FIELD: Final = "cmqGroup"
"""Ext field of a send by message group: ``epoch:hash``; a batch of many groups has no hash."""
EPOCH: Final = "group.epoch"
PHASE: Final = "group.phase"
OLD_LAYOUT: Final = "group.layout.old"
NEW_LAYOUT: Final = "group.layout"
MOVED: Final = "group.moved"
AWAY: Final = "group.away"
AWAY_MOVES: Final = "move"
AWAY_WAITS: Final = "wait"
_MIX: Final = 0x9E3779B1


def group_hash(group: str) -> int:
    """The number that selects a group's queue: Java's hash without its sign."""
    return abs(java_hash(group))


def bucket_of(group_hash: int) -> int:
    """The bucket of a group inside its queue.

    The hash is mixed first, because all hashes of a queue are equal modulo the number of queues.
    """
    return ((group_hash * _MIX) & 0xFFFFFFFF) >> 24


@dataclass(frozen=True, slots=True)
class Layout:
    """The queues that hashes select from: brokers by name, each with its number of queues."""

    brokers: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> "Layout":
        """A layout from the number of queues by broker."""
        return cls(tuple(sorted((name, count) for name, count in counts.items() if count > 0)))

    @classmethod
    def parse(cls, text: str) -> "Layout":
        """Read ``broker-a:4;broker-b:4``.

        Raises:
            ConfigError: the text has another form.
        """
        counts: dict[str, int] = {}
        for item in text.split(";"):
            name, _, count = item.rpartition(":")
            if not name or not count.isdigit() or not int(count) or name in counts:
                raise ConfigError(
                    f"the layout {text!r} is not brokers with their number of queues, as in "
                    "broker-a:4;broker-b:4"
                )
            counts[name] = int(count)
        return cls.of(counts)

    def __str__(self) -> str:
        return ";".join(f"{name}:{count}" for name, count in self.brokers)

    @property
    def queue_count(self) -> int:
        """The number of queues of all brokers."""
        return sum(count for _, count in self.brokers)

    def count_of(self, broker_name: str) -> int:
        """The queues of one broker; 0 for a broker that is not in the layout."""
        return dict(self.brokers).get(broker_name, 0)

    def home(self, group_hash: int) -> tuple[str, int]:
        """Broker name and queue id of a group."""
        index = group_hash % self.queue_count
        for name, count in self.brokers:
            if index < count:
                return name, index
            index -= count
        raise AssertionError("an index below the number of queues is in one of the brokers")


class Phase(Enum):
    """The phase of a growth."""

    PREPARED = "prepared"
    MOVING = "moving"
    CLOSING = "closing"
    COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class Growth:
    """A change of layout, from the attributes of one broker or gathered from several brokers.

    ``moved`` maps queues of the old layout (broker name and queue id) to a bit set of their moved
    buckets.
    """

    epoch: int
    phase: Phase
    old: Layout
    new: Layout
    moved: Mapping[tuple[str, int], int] = field(default_factory=dict)
    away: str = ""
    """What the topic says of brokers that are away: `AWAY_WAITS`, `AWAY_MOVES` or nothing."""

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, str], broker_name: str) -> "Growth | None":
        """The growth in a broker's topic attributes; None for a topic that never grew.

        Raises:
            ConfigError: the attributes do not have the form above.
        """
        if EPOCH not in attributes:
            if AWAY in attributes:
                raise ConfigError(
                    f"{AWAY} has no effect without the layout of the topic's message groups;"
                    " cometmq topic when-away writes both"
                )
            return None
        try:
            growth = cls(
                int(attributes[EPOCH]),
                Phase(attributes[PHASE]),
                Layout.parse(attributes[OLD_LAYOUT]),
                Layout.parse(attributes[NEW_LAYOUT]),
            )
            moved = _parse_marks(attributes.get(MOVED, ""), broker_name)
        except ConfigError:
            raise
        except (KeyError, ValueError) as error:
            raise ConfigError(
                f"the topic's attributes {EPOCH}, {PHASE}, {OLD_LAYOUT}, {NEW_LAYOUT} and {MOVED} "
                f"do not fit together ({error}); cometmq topic grow writes them"
            ) from error
        return replace(growth, moved=moved, away=attributes.get(AWAY, ""))

    def to_attributes(self, broker_name: str) -> dict[str, str]:
        """The attributes of one broker."""
        attributes = {
            EPOCH: str(self.epoch),
            PHASE: self.phase.value,
            OLD_LAYOUT: str(self.old),
            NEW_LAYOUT: str(self.new),
        }
        marks = ";".join(
            f"{queue_id}:{'*' if bits == ALL_MOVED else format(bits, 'x')}"
            for (name, queue_id), bits in sorted(self.moved.items())
            if name == broker_name and bits
        )
        if marks:
            attributes[MOVED] = marks
        if self.away:
            attributes[AWAY] = self.away
        return attributes

    @property
    def moves_when_away(self) -> bool:
        """Whether groups go to another queue while the broker of their home is away."""
        return self.away == AWAY_MOVES

    def is_moved(self, group_hash: int) -> bool:
        """Whether the marks gathered so far include the group's bucket at its old home."""
        if self.phase is Phase.COMPLETE:
            return True
        bits = self.moved.get(self.old.home(group_hash), 0)
        return bool(bits >> bucket_of(group_hash) & 1)

    def home(self, group_hash: int) -> tuple[str, int]:
        """The queue a producer sends a group to: the old home until its bucket has moved."""
        return (self.new if self.is_moved(group_hash) else self.old).home(group_hash)

    def unmoved_queues(self) -> list[tuple[str, int]]:
        """Queues of the old layout with buckets that have not moved."""
        if self.phase is Phase.COMPLETE:
            return []
        return [
            (name, queue_id)
            for name, count in self.old.brokers
            for queue_id in range(count)
            if self.moved.get((name, queue_id), 0) != ALL_MOVED
        ]

    def unmoved_queues_of(self, broker_name: str) -> list[int]:
        """The ids of one broker's queues with buckets that have not moved."""
        return [queue_id for name, queue_id in self.unmoved_queues() if name == broker_name]

    @property
    def is_complete(self) -> bool:
        """Whether all buckets have moved."""
        return not self.unmoved_queues()

    @property
    def brokers(self) -> frozenset[str]:
        """The brokers that a producer asks: all, or those of the new layout once it is complete."""
        old = () if self.phase is Phase.COMPLETE else self.old.brokers
        return frozenset(name for name, _ in (*old, *self.new.brokers))

    def has_come_to(self, epoch: int, phase: Phase) -> bool:
        """Whether this growth has this epoch, and this phase or a later one."""
        order = list(Phase)
        return self.epoch == epoch and order.index(self.phase) >= order.index(phase)

    def marked(self, broker_name: str, queue_id: int, bits: int) -> "Growth":
        """A copy with more buckets of a queue marked as moved."""
        moved = dict(self.moved)
        moved[broker_name, queue_id] = moved.get((broker_name, queue_id), 0) | bits
        return replace(self, moved=moved)

    def merged(self, other: "Growth | None") -> "Growth":
        """Combine what two brokers report: the later epoch, or the marks of both."""
        if other is None or other.epoch < self.epoch:
            return self
        if other.epoch > self.epoch:
            return other
        moved = dict(self.moved)
        for queue, bits in other.moved.items():
            moved[queue] = moved.get(queue, 0) | bits
        order = list(Phase)
        phase = max(self.phase, other.phase, key=order.index)
        # A change that has reached some of the brokers keeps the order.
        away = self.away if self.away == other.away else AWAY_WAITS
        return replace(self, moved=moved, phase=phase, away=away)


def _parse_marks(text: str, broker_name: str) -> dict[tuple[str, int], int]:
    marks: dict[tuple[str, int], int] = {}
    for item in text.split(";") if text else ():
        queue_id, _, bits = item.partition(":")
        marks[broker_name, int(queue_id)] = ALL_MOVED if bits == "*" else int(bits, 16) & ALL_MOVED
    return marks


def check_change(present: Growth | None, wanted: Growth | None, broker_name: str) -> None:
    """Refuse attributes that would let two growths run at once, turn one back, or end it early.

    Raises:
        ConfigError: the text says which growth is under way.
    """
    if present is None or wanted is None:
        return
    unmoved = present.unmoved_queues_of(broker_name)
    if wanted.epoch == present.epoch and (wanted.old, wanted.new) == (present.old, present.new):
        order = list(Phase)
        if order.index(wanted.phase) < order.index(present.phase):
            raise ConfigError(
                f"growth {present.epoch} is {present.phase.value} and cannot be "
                f"{wanted.phase.value} again"
            )
        if wanted.phase is Phase.COMPLETE and unmoved:
            raise ConfigError(
                f"growth {present.epoch} is not complete: {broker_name} has groups left in "
                f"{len(unmoved)} queues (cometmq topic growth)"
            )
        return
    if wanted.epoch != present.epoch + 1 or wanted.old != present.new or unmoved:
        raise ConfigError(
            f"growth {present.epoch} from {present.old} to {present.new} is "
            f"{present.phase.value}, with groups left in {len(unmoved)} queues of {broker_name}; "
            "the next one starts when it is complete (cometmq topic growth)"
        )


def parse_group_field(text: str) -> tuple[int, int | None]:
    """Epoch and hash of a send; the hash is None for a batch of many groups.

    Raises:
        ConfigError: the text is not ``epoch:hash``.
    """
    epoch, separator, number = text.partition(":")
    if not separator or not epoch.isdigit() or not (number.isdigit() or not number):
        raise ConfigError(f"{GROUP_FIELD} is {text!r:.50}, expected epoch:hash")
    return int(epoch), int(number) if number else None


class StoreDecision(Enum):
    """What a broker does with a send by message group."""

    STORE = "store"
    STORE_AND_NOTE = "store, and note its offset: the bucket moves after it is consumed"
    MOVED = "refuse: another queue is its home, or the producer must ask the old home first"
    WAIT = "refuse for now: the bucket is closing"


def decide_store(
    growth: Growth, queue: tuple[str, int], epoch: int, group_hash: int
) -> StoreDecision:
    """Decide whether the broker of a queue stores a message of a group there.

    | queue is the group's     | bucket moved | phase    | epoch    | decision       |
    |--------------------------|--------------|----------|----------|----------------|
    | old home and new home    | any          | any      | any      | STORE          |
    | old home                 | no           | closing  | any      | WAIT           |
    | old home                 | no           | else     | any      | STORE_AND_NOTE |
    | old home                 | yes          | any      | any      | MOVED          |
    | new home                 | unknown here | any      | >= own   | STORE          |
    | new home                 | unknown here | any      | older    | MOVED          |
    | neither of its homes     | any          | any      | any      | MOVED          |
    """
    is_old_home = growth.old.home(group_hash) == queue
    is_new_home = growth.new.home(group_hash) == queue
    if is_old_home and is_new_home:
        return StoreDecision.STORE
    if is_old_home:
        if growth.is_moved(group_hash):
            return StoreDecision.MOVED
        return StoreDecision.WAIT if growth.phase is Phase.CLOSING else StoreDecision.STORE_AND_NOTE
    return StoreDecision.STORE if is_new_home and epoch >= growth.epoch else StoreDecision.MOVED


def takes_mixed_batch(growth: Growth, queue: tuple[str, int], epoch: int) -> bool:
    """Whether a broker stores a batch of many groups: in a queue of the new layout whose own
    buckets have all moved."""
    name, queue_id = queue
    is_new = queue_id < growth.new.count_of(name)
    return is_new and epoch >= growth.epoch and queue not in growth.unmoved_queues()


class QueueDrain:
    """For each bucket of an old queue, the offset up to which consumers must be before it moves.

    ``floor`` is the queue's end when the broker began to note messages.  The buckets of the
    messages before it are not known, so every bucket waits at least for ``floor``.
    """

    __slots__ = ("_needed", "floor")

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self._needed: dict[int, int] = {}

    def note(self, bucket: int, end_offset: int) -> None:
        """Note a stored message of the bucket; the queue now ends at ``end_offset``."""
        self._needed[bucket] = end_offset

    def drained(self, consumed_offset: int, moved: int) -> int:
        """The bit set of buckets outside ``moved`` whose messages are all consumed."""
        bits = 0
        for bucket in range(BUCKET_COUNT):
            if not moved >> bucket & 1:
                needed = self._needed.get(bucket, self.floor)
                if needed <= consumed_offset:
                    bits |= 1 << bucket
        return bits


def consumed_offset(offsets: Iterable[int | None], first_offset: int, end_offset: int) -> int:
    """The offset that *all* groups have reached: the smallest of theirs, ``end_offset`` for none.

    An offset of None belongs to a group that has not committed yet.  It counts as
    ``first_offset``, as does every offset that retention has passed.
    """
    least = end_offset
    for group_offset in offsets:
        reached = first_offset if group_offset is None else max(group_offset, first_offset)
        least = min(least, reached)
    return least
