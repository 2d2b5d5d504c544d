"""How an ordered topic gets more queues, or fewer, without breaking the order of a message group.

Job: the layouts of a topic, what its attributes say of a change, and the two decisions: where a
producer sends a group, and whether a broker may store it there.  It must not do I/O.

RocketMQ takes ``hash % queues`` of the present route, so every change of the number breaks order.
Here a change has a *growth*: the old layout, the new one, and an epoch that counts them.  A group
is at home in the queue that ``hash % queues`` gives for a layout.  It moves when its *bucket* does:
each queue's groups fall into 256 buckets by their hash, and *the broker of the old queue alone*
decides when a bucket moves.  That queue is the one place where all its messages pass, so no clock
and no agreement between producers is needed.

Attributes of the topic, the same on every broker but for the last:

- ``group.epoch``: 1 for the first growth; ``group.layout.old`` and ``group.layout``:
  ``broker-a:4;broker-b:4``, in the order in which the hash selects;
- ``group.phase``: ``prepared`` (the old layout holds for groups), ``moving``, ``closing``, or
  ``complete`` (the new layout holds for all groups);
- ``group.moved``: the broker's own queues, ``0:*;1:ff00..`` with a bit for each moved bucket.

The admin call writes ``prepared`` with the new number of queues in one request to each broker, in
the order of their names; a broker refuses another growth until all its own buckets have moved.
Only when every broker is prepared does it write ``moving`` to all.  From then on a broker marks a
bucket as moved when every consumer group has committed past the bucket's last message, makes that
durable, and only then refuses the bucket's groups at the old queue (code GROUP_MOVED).

A producer sends a group to its old home until it has seen there that the bucket moved, then to the
new one.  Each such send carries epoch and hash.  The old home decides by the bucket alone, so what
a producer believes does not matter there.  The new home takes a group only from a producer of its
own epoch: that one has asked the old home.  So no message of a group is stored in the new queue
before all those in the old one are consumed, and none in the old one after that; it holds for
producers that learn late, for crashes (no mark is used before it is durable; what a broker has
forgotten counts as the end of the queue), and for consumer groups that are offline, since a stored
offset counts.  A bucket that always has something under way moves in ``closing`` only: then its
sends wait, at most as long as consumers need for what they have.

When every broker of the old layout has marked all its buckets, the admin call writes ``complete``
to all brokers.  A producer that reads it at any one of them needs no marks, so a broker that is not
in the new layout may go for good.

A transactional message is placed when its half message is stored, and a bucket with an open
transaction stays where it is.  Messages without epoch and hash (Java's producers, delays) are left
alone.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from cometmq.codec.java_hash import java_hash
from cometmq.errors import ConfigError

__all__ = [
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
]

BUCKET_COUNT: Final = 256
"""A multiple keeps few groups together; the marks of a queue still are 64 hex digits."""
ALL_MOVED: Final = (1 << BUCKET_COUNT) - 1
GROUP_FIELD: Final = "cmqGroup"
"""Ext field of a send by message group: ``epoch:hash``; a batch of many groups has no hash."""
EPOCH: Final = "group.epoch"
PHASE: Final = "group.phase"
OLD_LAYOUT: Final = "group.layout.old"
NEW_LAYOUT: Final = "group.layout"
MOVED: Final = "group.moved"
_MIX: Final = 0x9E3779B1


def group_hash(group: str) -> int:
    """The number that selects a group's queue: Java's hash without its sign."""
    return abs(java_hash(group))


def bucket_of(group_hash: int) -> int:
    """The bucket of a group inside its queue; mixed, since all hashes there are equal mod count."""
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
            ConfigError: another form.
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
    """A change of layout as one broker's attributes have it, or as a producer gathered it.

    ``moved`` has the marks by queue of the old layout: broker name and queue id to a bit set.
    """

    epoch: int
    phase: Phase
    old: Layout
    new: Layout
    moved: Mapping[tuple[str, int], int] = field(default_factory=dict)

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, str], broker_name: str) -> "Growth | None":
        """What a broker's topic attributes say; None for a topic that never grew.

        Raises:
            ConfigError: attributes of another form.
        """
        if EPOCH not in attributes:
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
        return replace(growth, moved=moved)

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
        return attributes

    def is_moved(self, group_hash: int) -> bool:
        """Whether the group's old home has marked its bucket as moved, as far as we know."""
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
        """The ids of those queues at one broker."""
        return [queue_id for name, queue_id in self.unmoved_queues() if name == broker_name]

    @property
    def is_complete(self) -> bool:
        """Whether all buckets have moved."""
        return not self.unmoved_queues()

    @property
    def brokers(self) -> frozenset[str]:
        """Names of the brokers a producer has to ask: once complete, those of the new layout."""
        old = () if self.phase is Phase.COMPLETE else self.old.brokers
        return frozenset(name for name, _ in (*old, *self.new.brokers))

    def has_come_to(self, epoch: int, phase: Phase) -> bool:
        """Whether this growth is the one of ``epoch`` and in this phase or a later one."""
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
        return replace(self, moved=moved, phase=phase)


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
    left = present.unmoved_queues_of(broker_name)
    if wanted.epoch == present.epoch and (wanted.old, wanted.new) == (present.old, present.new):
        order = list(Phase)
        if order.index(wanted.phase) < order.index(present.phase):
            raise ConfigError(
                f"growth {present.epoch} is {present.phase.value} and cannot be "
                f"{wanted.phase.value} again"
            )
        if wanted.phase is Phase.COMPLETE and left:
            raise ConfigError(
                f"growth {present.epoch} is not complete: {broker_name} has groups left in "
                f"{len(left)} queues (cometmq topic growth)"
            )
        return
    if wanted.epoch != present.epoch + 1 or wanted.old != present.new or left:
        raise ConfigError(
            f"growth {present.epoch} from {present.old} to {present.new} is "
            f"{present.phase.value}, with groups left in {len(left)} queues of {broker_name}; the "
            "next one starts when it is complete (cometmq topic growth)"
        )


def parse_group_field(text: str) -> tuple[int, int | None]:
    """Epoch and hash of a send; a hash of None means many groups.

    Raises:
        ConfigError: another form.
    """
    epoch, separator, number = text.partition(":")
    if not separator or not epoch.isdigit() or not (number.isdigit() or not number):
        raise ConfigError(f"{GROUP_FIELD} is {text!r:.50}, expected epoch:hash")
    return int(epoch), int(number) if number else None


class StoreDecision(Enum):
    """What a broker does with a send by message group."""

    STORE = "store"
    STORE_AND_NOTE = "store, and note its place: the bucket waits for it"
    MOVED = "refuse: it is at home elsewhere, or the producer must look first"
    WAIT = "refuse for now: its bucket is being closed"


def decide_store(
    growth: Growth, queue: tuple[str, int], epoch: int, group_hash: int | None
) -> StoreDecision:
    """Whether the broker of a queue may store a message of a group there.

    | queue is the group's     | bucket moved | phase    | epoch    | verdict        |
    |--------------------------|--------------|----------|----------|----------------|
    | old home and new home    | any          | any      | any      | STORE          |
    | old home                 | no           | closing  | any      | WAIT           |
    | old home                 | no           | else     | any      | STORE_AND_NOTE |
    | old home                 | yes          | any      | any      | MOVED          |
    | new home                 | unknown here | any      | >= own   | STORE          |
    | new home                 | unknown here | any      | older    | MOVED          |
    | none of them             | any          | any      | any      | MOVED          |

    A batch of many groups is stored in the new layout only, when this queue has nothing to move.
    """
    name, queue_id = queue
    if group_hash is None:
        is_new = queue_id < growth.new.count_of(name)
        is_settled = epoch >= growth.epoch and queue not in growth.unmoved_queues()
        return StoreDecision.STORE if is_new and is_settled else StoreDecision.MOVED
    is_old_home = growth.old.home(group_hash) == queue
    is_new_home = growth.new.home(group_hash) == queue
    if is_old_home and is_new_home:
        return StoreDecision.STORE
    if is_old_home:
        if growth.is_moved(group_hash):
            return StoreDecision.MOVED
        return StoreDecision.WAIT if growth.phase is Phase.CLOSING else StoreDecision.STORE_AND_NOTE
    return StoreDecision.STORE if is_new_home and epoch >= growth.epoch else StoreDecision.MOVED


class QueueDrain:
    """What a broker remembers of one old queue: up to where each bucket has to be consumed.

    ``floor`` is the queue's end when the broker began to look: nothing is known about what lies
    before it, so every bucket waits for that at least.
    """

    __slots__ = ("_needed", "floor")

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self._needed: dict[int, int] = {}

    def note(self, bucket: int, end_offset: int) -> None:
        """A message of the bucket was stored; the queue now ends at ``end_offset``."""
        self._needed[bucket] = end_offset

    def drained(self, consumed_offset: int, moved: int) -> int:
        """The buckets, not yet in ``moved``, of which all messages are consumed."""
        bits = 0
        for bucket in range(BUCKET_COUNT):
            if not moved >> bucket & 1:
                needed = self._needed.get(bucket, self.floor)
                if needed <= consumed_offset:
                    bits |= 1 << bucket
        return bits


def consumed_offset(offsets: Iterable[int | None], first_offset: int, end_offset: int) -> int:
    """How far *all* groups are: the smallest of their offsets, None for one that has none yet.

    What retention has deleted (before ``first_offset``) can no longer be consumed; without any
    group there is nobody to wait for.
    """
    least = end_offset
    for own in offsets:
        least = min(least, first_offset if own is None else max(own, first_offset))
    return least
