"""How the members of a group read together when they want different messages.

RocketMQ keeps one subscription of a group and topic, the last one that a member sent, and members
divide the queues of a topic among all of them.  So a queue may go to a member that does not want
the topic, and a message is passed over whose tag only another member wants.  Here nothing is lost:

- *Twins* are members with exactly the same subscriptions.  A member divides queues among its twins
  only: a client allocates by itself, and asks for the members of a group, not of a topic.
- A *share* is what one filter of a topic reads, for all members with that filter.  Every share
  reads every queue and has its own offsets; the group's offset in a queue is the least of them.  A
  message goes to the first share that wants it, in the order in which the shares joined.
- Where members with the same filter are not all twins, each set of twins has every queue, and the
  broker gives the messages of a queue to one set (`SharePart.is_owner`).  The others' pulls wait.

As long as all members are twins, a topic has one share, which uses the group's offsets.

When the last member of a share leaves, the shares that may want its messages too go back to its
offset: they had left those to it.  What only the leaving share wants waits for a member with its
filter, until `expire`.  A share ends at once whose members now subscribe otherwise, or all of whose
messages another share wants.

A retry topic has messages of several topics.  There each set of twins is a share, and a message
goes to a share that wants the topic it came from.

This module changes tables; it sends nothing and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from cometmq.core.group.consumer_offsets import ConsumerOffsetTable
from cometmq.model.group import SUBSCRIBE_ALL, SubscriptionData
from cometmq.model.names import RETRY_PREFIX, retry_topic
from cometmq.model.offsets import ConsumerOffset

__all__ = [
    "FilterShare",
    "FilterShares",
    "GroupShares",
    "SharePart",
    "difference_text",
    "filter_text",
    "reader_group",
]

K = TypeVar("K", bound=Hashable)

EXPECTED_MS: Final = 60_000
"""Members connect again within seconds; a heartbeat comes every 30 s."""
_SEPARATOR: Final = "#"
"""Stands between a group and a number in the name of a share; no group has it in its name."""
_NAMED_MAX: Final = 5
"""So many members of one kind a text names; the others it counts."""


def reader_group(reader: str) -> str:
    """Return the group of a share's name."""
    return reader.partition(_SEPARATOR)[0]


@dataclass(slots=True)
class FilterShare:
    """What one filter of a topic reads."""

    number: int
    key: str
    """Equal for members that want the same messages of the topic."""
    wishes: tuple[SubscriptionData, ...]
    """The filter; for a retry topic all subscriptions of the twins."""
    counts: dict[str, int] = field(default_factory=dict)
    """The number of members by their twins' key; empty while nobody is there."""
    absent_since_ms: int | None = None
    """Since when nobody is there while the group has members."""
    expected_until_ms: int | None = None
    """So long after a start of the broker the members are expected back."""
    kept_until_ms: int | None = None
    """So long after a start the only share of a topic is kept beside one with another filter: its
    members may come back later than those of a new release."""

    @property
    def is_there(self) -> bool:
        """Whether other shares leave messages to this one."""
        return bool(self.counts) or self.expected_until_ms is not None


@dataclass(slots=True)
class GroupShares(Generic[K]):
    """The shares of a group by topic, in the order in which they joined."""

    topics: dict[str, list[FilterShare]] = field(default_factory=dict)
    next_number: int = 1
    twins_of: dict[K, str] = field(default_factory=dict)
    wishes_of: dict[str, dict[str, SubscriptionData]] = field(default_factory=dict)
    """By the twins' key: their subscriptions without the retry topic."""

    @property
    def is_split(self) -> bool:
        """Whether some topic or the members need more than the group's own offsets."""
        return len(self.wishes_of) > 1 or any(len(shares) > 1 for shares in self.topics.values())


@dataclass(frozen=True, slots=True)
class SharePart:
    """What a member reads of a topic."""

    reader: str
    """Under this name the share's offsets and queue locks are kept."""
    has_own_offsets: bool
    twins: str
    wishes: tuple[SubscriptionData, ...]
    seniors: tuple[tuple[SubscriptionData, ...], ...]
    """What shares want that joined earlier and are there."""
    others: tuple[tuple[SubscriptionData, ...], ...]
    """What all other shares want, also those of absent members."""
    is_first: bool
    owners: tuple[str, ...]
    """The sets of twins with this filter, each as often as it has members."""

    def is_owner(self, queue_id: int) -> bool:
        """Whether the member's twins get the messages of a queue."""
        return self.owners[queue_id % len(self.owners)] == self.twins


class FilterShares(Generic[K]):
    """The shares of all groups of a broker.

    `revision` grows when groups, shares or their order change, `split_revision` when that happens
    in a group that is split.

    Args:
        offsets: the offsets of groups.
        own: the offsets of shares, by their names instead of a group's.
    """

    def __init__(self, offsets: ConsumerOffsetTable, own: ConsumerOffsetTable) -> None:
        self.offsets = offsets
        self.own = own
        self.revision = 0
        self.split_revision = 0
        self._groups: dict[str, GroupShares[K]] = {}
        self._parts: dict[tuple[str, str, str], SharePart | None] = {}
        self._served: dict[tuple[str, str, int], str] = {}

    # -- members ----------------------------------------------------------------------------

    def update(
        self, group: str, members: Mapping[K, Mapping[str, SubscriptionData]], now_ms: int
    ) -> bool:
        """Take the present members of a group; return whether some member reads otherwise now.

        Args:
            members: the subscriptions of each.  A member without any reads queues that it was
                assigned by hand, and counts for nothing.
        """
        entry = self._groups.get(group)
        if entry is None:
            if not any(members.values()):
                return False
            entry = self._groups[group] = GroupShares()
        retry = retry_topic(group)
        twins_of: dict[K, str] = {}
        wishes_of: dict[str, dict[str, SubscriptionData]] = {}
        wanted: dict[str, dict[str, FilterShare]] = {}
        for key, subscriptions in members.items():
            real = {name: item for name, item in subscriptions.items() if name != retry}
            if not real:
                continue
            twins = _twins_key(real.values())
            twins_of[key] = twins
            wishes_of.setdefault(twins, real)
            for topic, item in real.items():
                _count(wanted, topic, filter_text(item), (item,), twins)
            if retry in subscriptions:
                _count(wanted, retry, twins, tuple(real.values()), twins)
        if twins_of == entry.twins_of and (twins_of or not self._has_present(entry)):
            return False
        was_split = entry.is_split
        before, entry.twins_of, entry.wishes_of = entry.twins_of, twins_of, wishes_of
        leavers = {twins for key, twins in before.items() if key not in twins_of}
        for topic in list(dict.fromkeys([*entry.topics, *wanted])):
            self._update_topic(group, entry, topic, wanted.get(topic, {}), leavers, now_ms)
        self._changed(group, is_split=was_split or entry.is_split)
        return was_split or entry.is_split

    @staticmethod
    def _has_present(entry: GroupShares[K]) -> bool:
        return any(share.counts for shares in entry.topics.values() for share in shares)

    def _update_topic(
        self,
        group: str,
        entry: GroupShares[K],
        topic: str,
        wanted: Mapping[str, FilterShare],
        leavers: set[str],
        now_ms: int,
    ) -> None:
        """Bring the shares of a topic up to date; `leavers` are twins of whom a member has left."""
        shares = entry.topics.setdefault(topic, [])
        is_online = bool(entry.twins_of)
        if wanted and len(shares) == 1 and self._was_alone(shares[0], wanted, now_ms):
            self._drop(group, entry, topic, shares[0])
        ended: list[FilterShare] = []
        for share in list(shares):
            present = wanted.get(share.key)
            if present is not None:
                if not share.is_there:
                    shares.remove(share)
                    shares.append(share)
                share.counts, share.absent_since_ms = present.counts, None
                share.expected_until_ms = share.kept_until_ms = None
            elif share.counts:
                has_left = not is_online or bool(leavers.intersection(share.counts))
                if not has_left or (len(shares) > 1 and not self._queues(group, topic, share)):
                    # All of its members subscribe otherwise now, or left before they read.
                    ended.append(share)
                share.counts, share.absent_since_ms = {}, now_ms if is_online else None
                self._hand_over(group, topic, share, shares, now_ms)
            elif is_online and share.absent_since_ms is None:
                share.absent_since_ms = now_ms
        self._add_new(entry, shares, wanted)
        for share in list(shares):
            if share in ended or self._is_covered(share, shares):
                self._drop(group, entry, topic, share)
        self._fold(group, topic, shares, now_ms)

    @staticmethod
    def _was_alone(share: FilterShare, wanted: Mapping[str, FilterShare], now_ms: int) -> bool:
        """Whether the whole group was away and comes back with another filter."""
        if share.kept_until_ms is not None and now_ms < share.kept_until_ms:
            return False
        return not share.counts and share.absent_since_ms is None and share.key not in wanted

    @staticmethod
    def _add_new(
        entry: GroupShares[K], shares: list[FilterShare], wanted: Mapping[str, FilterShare]
    ) -> None:
        known = {share.key for share in shares}
        for key, share in wanted.items():
            if key not in known:
                share.number = entry.next_number
                entry.next_number += 1
                shares.append(share)

    @staticmethod
    def _is_covered(share: FilterShare, shares: list[FilterShare]) -> bool:
        """Whether nobody reads a share all of whose messages another one wants."""
        return not share.is_there and any(
            other.counts and _covers(other.wishes, share.wishes) for other in shares
        )

    def _hand_over(
        self, group: str, topic: str, share: FilterShare, shares: list[FilterShare], now_ms: int
    ) -> None:
        """Send the shares that may want messages of this one back to its offsets."""
        for other in shares:
            if other is share or not _overlaps(other.wishes, share.wishes):
                continue
            own, other_own = self._queues(group, topic, share), self._queues(group, topic, other)
            for queue_id in {*own, *other_own}:
                least = min(
                    (queues[queue_id] for queues in (own, other_own) if queue_id in queues),
                )
                reader = _reader(group, other)
                if other.counts:
                    self.own.reset(reader, topic, queue_id, least, now_ms)
                else:
                    self.own.commit(reader, topic, queue_id, least, now_ms)

    def _queues(self, group: str, topic: str, share: FilterShare) -> dict[int, ConsumerOffset]:
        return {
            **self.offsets.queues(group, topic),
            **self.own.queues(_reader(group, share), topic),
        }

    def _drop(self, group: str, entry: GroupShares[K], topic: str, share: FilterShare) -> None:
        entry.topics[topic].remove(share)
        self.own.remove(_reader(group, share), topic)

    def _fold(self, group: str, topic: str, shares: list[FilterShare], now_ms: int) -> None:
        """Make the offsets of the only share those of the group; else see what is the least."""
        if len(shares) > 1:
            for queue_id in {q for share in shares for q in self._queues(group, topic, share)}:
                self.committed(group, topic, queue_id, now_ms)
        if len(shares) != 1:
            return
        reader = _reader(group, shares[0])
        for queue_id, consumer_offset in dict(self.own.queues(reader, topic)).items():
            if self.own.has_reset(reader, topic, queue_id):
                self.offsets.reset(group, topic, queue_id, consumer_offset, now_ms)
            else:
                self.offsets.commit(group, topic, queue_id, consumer_offset, now_ms)
        self.own.remove(reader, topic)

    def expire(self, now_ms: int, retain_ms: int) -> dict[str, list[str]]:
        """End the shares that nobody reads for longer than `retain_ms` while others are there.

        Return what ended, by group.
        """
        ended: dict[str, list[str]] = {}
        for group, entry in self._groups.items():
            for topic, shares in list(entry.topics.items()):
                for share in list(shares):
                    if share.expected_until_ms is not None and now_ms >= share.expected_until_ms:
                        share.expected_until_ms = None
                        self._hand_over(group, topic, share, shares, now_ms)
                        self._changed(group, is_split=entry.is_split)
                    since_ms = share.absent_since_ms
                    if since_ms is None or now_ms - since_ms <= retain_ms:
                        continue
                    self._drop(group, entry, topic, share)
                    ended.setdefault(group, []).append(f"{topic}: {_wishes_text(share.wishes)}")
                if not shares:
                    del entry.topics[topic]
                self._fold(group, topic, shares, now_ms)
        for group in ended:
            self._changed(group, is_split=True)
        return ended

    def forget(self, group: str) -> None:
        """Forget a deleted group."""
        entry = self._groups.pop(group, None)
        if entry is not None:
            for shares in entry.topics.values():
                for share in shares:
                    self.own.remove_group(_reader(group, share))
            self._changed(group, is_split=entry.is_split)

    def forget_topic(self, topic: str) -> None:
        """Forget a deleted topic."""
        self.own.remove_topic(topic)
        for group, entry in self._groups.items():
            if entry.topics.pop(topic, None):
                self._changed(group, is_split=entry.is_split)

    def _changed(self, group: str, *, is_split: bool) -> None:
        self.revision += 1
        self.split_revision += is_split
        self._parts = {key: part for key, part in self._parts.items() if key[0] != group}

    # -- questions --------------------------------------------------------------------------

    def all(self) -> Mapping[str, GroupShares[K]]:
        """Return the live table; callers only read it."""
        return self._groups

    def wanted_topics(self, group: str) -> list[str]:
        """Return the topics that the group wants, also while its members are away."""
        entry = self._groups.get(group)
        return [] if entry is None else [t for t in entry.topics if not t.startswith(RETRY_PREFIX)]

    def groups_on(self, topic: str) -> list[str]:
        """Return the groups that want the topic, also while their members are away."""
        return [group for group, entry in self._groups.items() if entry.topics.get(topic)]

    def is_split(self, group: str) -> bool:
        """Whether the members of a group do not all read as one."""
        entry = self._groups.get(group)
        return entry is not None and entry.is_split

    def twins(self, group: str, member: K) -> list[K] | None:
        """Return the members among which this one divides queues; None for all."""
        entry = self._groups.get(group)
        if entry is None or len(entry.wishes_of) < 2 or member not in entry.twins_of:
            return None
        twins = entry.twins_of[member]
        return [key for key, other in entry.twins_of.items() if other == twins]

    def absent_filters(
        self,
        group: str,
        topic: str,
        properties: Mapping[str, str],
        wants: Callable[[SubscriptionData], Callable[[Mapping[str, str]], bool]],
    ) -> list[str]:
        """Return the filters that want a message and whose members are away."""
        entry = self._groups.get(group)
        shares = [] if entry is None else entry.topics.get(topic, [])
        if len(shares) < 2 or topic.startswith(RETRY_PREFIX):
            return []
        return [
            _wishes_text(share.wishes)
            for share in shares
            if not share.counts and any(wants(item)(properties) for item in share.wishes)
        ]

    def part(self, group: str, topic: str, member: K, now_ms: int) -> SharePart | None:
        """Return what a member reads of a topic; None where the group's offsets and filter hold.

        They hold too for who is no member, or was assigned the queue by hand.
        """
        entry = self._groups.get(group)
        if entry is None:
            return None
        twins = entry.twins_of.get(member)
        if twins is None:
            return None
        key = (group, topic, twins)
        if key not in self._parts:
            self._parts[key] = self._make_part(group, entry, topic, twins)
        part = self._parts[key]
        if part is not None and part.has_own_offsets:
            self._take_resets(group, topic, entry.topics[topic], now_ms)
        return part

    def _make_part(
        self, group: str, entry: GroupShares[K], topic: str, twins: str
    ) -> SharePart | None:
        shares = entry.topics.get(topic, [])
        seniors: list[tuple[SubscriptionData, ...]] = []
        for share in shares:
            if twins in share.counts:
                break
            if share.is_there:
                seniors.append(share.wishes)
        else:
            return None
        if len(shares) == 1 and len(share.counts) == 1:
            return None
        has_own = len(shares) > 1
        return SharePart(
            _reader(group, share) if has_own else group,
            has_own,
            twins,
            share.wishes,
            tuple(seniors),
            tuple(other.wishes for other in shares if other is not share),
            not seniors,
            tuple(name for name in sorted(share.counts) for _ in range(share.counts[name])),
        )

    def _take_resets(
        self, group: str, topic: str, shares: Iterable[FilterShare], now_ms: int
    ) -> None:
        """Pass the resets of the group on to its shares."""
        for queue_id, consumer_offset in self.offsets.take_resets(group, topic).items():
            for share in shares:
                self.own.reset(_reader(group, share), topic, queue_id, consumer_offset, now_ms)

    # -- offsets ----------------------------------------------------------------------------

    def table_of(self, part: SharePart | None, group: str) -> tuple[ConsumerOffsetTable, str]:
        """Return the table of a member's offsets, and the name under which it has them."""
        if part is None or not part.has_own_offsets:
            return self.offsets, group
        return self.own, part.reader

    def offset_of(
        self, part: SharePart | None, group: str, topic: str, queue_id: int
    ) -> ConsumerOffset | None:
        """Return the offset from which a member's share reads on."""
        table, reader = self.table_of(part, group)
        stored = table.query(reader, topic, queue_id)
        return self.offsets.query(group, topic, queue_id) if stored is None else stored

    def commit(
        self,
        part: SharePart | None,
        group: str,
        topic: str,
        queue_id: int,
        consumer_offset: ConsumerOffset,
        now_ms: int,
    ) -> None:
        """Store the next offset of a member's share, and the least of all shares for the group.

        From a member that does not own the queue, only what its share had not reached counts: it
        may have handled messages that it got before.
        """
        table, reader = self.table_of(part, group)
        if part is not None and not part.is_owner(queue_id):
            present = self.offset_of(part, group, topic, queue_id)
            if present is not None and consumer_offset <= present:
                return
        table.commit(reader, topic, queue_id, consumer_offset, now_ms)
        if table is self.own:
            self.committed(group, topic, queue_id, now_ms)

    def commit_all(
        self, group: str, topic: str, queue_id: int, consumer_offset: ConsumerOffset, now_ms: int
    ) -> None:
        """Move the group and all its shares, for who is no member."""
        self.offsets.commit(group, topic, queue_id, consumer_offset, now_ms)
        entry = self._groups.get(group)
        shares = [] if entry is None else entry.topics.get(topic, [])
        if len(shares) > 1:
            for share in shares:
                self.own.commit(_reader(group, share), topic, queue_id, consumer_offset, now_ms)

    def committed(self, group: str, topic: str, queue_id: int, now_ms: int) -> None:
        """Make the least offset of the shares the group's."""
        present = self.offsets.query(group, topic, queue_id)
        least: ConsumerOffset | None = None
        for share in self._groups[group].topics.get(topic, ()):
            stored = self.own.query(_reader(group, share), topic, queue_id)
            if stored is None:
                stored = present
            if stored is None and not share.counts:
                continue  # it left before it read from this queue
            if stored is None:
                return  # a share has not begun
            least = stored if least is None else min(least, stored)
        if least is not None and least != present:
            self.offsets.commit(group, topic, queue_id, least, now_ms)

    def takes_over(self, part: SharePart, topic: str, queue_id: int) -> bool:
        """Note that a member's twins get a queue's messages; True if others got them before."""
        key = (part.reader, topic, queue_id)
        before = self._served.get(key)
        self._served[key] = part.twins
        return before is not None and before != part.twins

    # -- restart ----------------------------------------------------------------------------

    def restore(self, groups: Mapping[str, GroupShares[K]], now_ms: int) -> None:
        """Take the shares of a broker's life before; nobody is there yet.

        A share has some `expected_until_ms` if its members were there.  They are expected back for
        a while: until then their messages wait for them, and nobody reads anything again.  The only
        share of a topic takes no message from a member with another filter that comes first; what
        that one does not want waits.
        """
        self._groups = dict(groups)
        for entry in self._groups.values():
            for shares in entry.topics.values():
                for share in shares:
                    if share.expected_until_ms is not None:
                        is_alone, until_ms = len(shares) == 1, now_ms + EXPECTED_MS
                        share.expected_until_ms = None if is_alone else until_ms
                        share.kept_until_ms = until_ms if is_alone else None


def _reader(group: str, share: FilterShare) -> str:
    return f"{group}{_SEPARATOR}{share.number}"


def _count(
    wanted: dict[str, dict[str, FilterShare]],
    topic: str,
    key: str,
    wishes: tuple[SubscriptionData, ...],
    twins: str,
) -> None:
    share = wanted.setdefault(topic, {}).setdefault(key, FilterShare(0, key, wishes))
    share.counts[twins] = share.counts.get(twins, 0) + 1


def filter_text(subscription: SubscriptionData) -> str:
    """Return the filter as text; it is equal for filters that want the same."""
    if subscription.expression_type != "TAG":
        return f"{subscription.expression_type} {subscription.sub_string}"
    return f"TAG {' || '.join(sorted(subscription.tags_set)) or SUBSCRIBE_ALL}"


def _twins_key(subscriptions: Iterable[SubscriptionData]) -> str:
    return "\n".join(sorted(f"{item.topic} {filter_text(item)}" for item in subscriptions))


def _wishes_text(wishes: Iterable[SubscriptionData]) -> str:
    return ", ".join(filter_text(item) for item in wishes)


def _tags(subscription: SubscriptionData) -> frozenset[str] | None:
    """Return the wanted tags; None for all messages."""
    tags = subscription.tags_set
    return None if not tags or SUBSCRIBE_ALL in tags else tags


def _covers(first: Iterable[SubscriptionData], second: Iterable[SubscriptionData]) -> bool:
    """Whether the first surely want each message that the second want."""
    by_topic = {item.topic: item for item in first}
    return all(
        item.topic in by_topic and _covers_one(by_topic[item.topic], item) for item in second
    )


def _covers_one(first: SubscriptionData, second: SubscriptionData) -> bool:
    if filter_text(first) == filter_text(second):
        return True
    if first.expression_type != "TAG":
        return False
    tags = _tags(first)
    if tags is None:
        return True
    if second.expression_type != "TAG":
        return False
    others = _tags(second)
    return others is not None and others <= tags


def _overlaps(first: Iterable[SubscriptionData], second: Iterable[SubscriptionData]) -> bool:
    """Whether there may be a message that both want."""
    by_topic = {item.topic: item for item in first}
    for item in second:
        other = by_topic.get(item.topic)
        if other is None:
            continue
        if "TAG" == item.expression_type == other.expression_type:
            tags, others = _tags(item), _tags(other)
            if tags is not None and others is not None and not tags & others:
                continue
        return True
    return False


def difference_text(members: Mapping[str, Mapping[str, SubscriptionData]]) -> str | None:
    """Return in which topics the members of a group differ, and how; None if they do not.

    Args:
        members: the subscriptions by topic of each client id.
    """
    topics = {
        topic
        for subscriptions in members.values()
        for topic in subscriptions
        if not topic.startswith(RETRY_PREFIX)
    }
    parts: list[str] = []
    for topic in sorted(topics):
        kinds: dict[str, list[tuple[str, int | None]]] = {}
        for client_id, subscriptions in members.items():
            item = subscriptions.get(topic)
            text = "nothing" if item is None else filter_text(item)
            version = None if item is None else item.sub_version
            kinds.setdefault(text, []).append((client_id, version))
        if len(kinds) > 1:
            wishes = "; ".join(_kind_text(text, names) for text, names in sorted(kinds.items()))
            parts.append(f"topic {topic}: {wishes}")
    return " | ".join(parts) or None


def _kind_text(text: str, members: list[tuple[str, int | None]]) -> str:
    shown = [
        name if version is None else f"{name} (version {version})"
        for name, version in sorted(members)[:_NAMED_MAX]
    ]
    more = f" and {len(members) - len(shown)} more" if len(members) > len(shown) else ""
    return f"{text} wanted by {', '.join(shown)}{more}"
