"""Who is online: producers and consumers by group, and what each group subscribes to.

The tables apply heartbeats, leaves and lost connections, and say which groups must rebalance.  They
send nothing; a member's key is any hashable value, such as its connection.

Each member has its own subscriptions, as its last full heartbeat listed them.  `filter_shares`
decides how members read together whose subscriptions differ.  RocketMQ (ConsumerGroupInfo of 5.4)
keeps one table for all members, in which the last heartbeat wins; `ConsumerGroup.subscriptions` is
that table for those who ask about the whole group: all topics, each with the newest version.  A
group exists while it has members.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from cometmq.model.group import ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData

__all__ = ["ConsumerGroup", "ConsumerGroups", "GroupMember", "HeartbeatOutcome", "ProducerGroups"]

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class GroupMember:
    """A client that is a member of a group."""

    client_id: str
    language: str
    version: int
    last_update_ms: int


@dataclass(slots=True)
class ConsumerGroup(Generic[K]):
    """The online members of a consumer group."""

    name: str
    consume_type: ConsumeType
    message_model: MessageModel
    consume_from_where: ConsumeFromWhere
    members: dict[K, GroupMember] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    wishes: dict[K, dict[str, SubscriptionData]] = field(default_factory=dict)
    """The subscriptions of each member that has sent them."""
    fingerprints: dict[K, int] = field(default_factory=dict)
    """That of each member's last V2 heartbeat."""

    @property
    def is_broadcast(self) -> bool:
        """Whether each member gets all messages."""
        return self.message_model is MessageModel.BROADCASTING

    def client_ids(self) -> list[str]:
        """Return the members' client ids, each once."""
        return list(dict.fromkeys(member.client_id for member in self.members.values()))

    def find_client(self, client_id: str) -> K | None:
        """Return the key of the member with this client id, or None."""
        for key, member in self.members.items():
            if member.client_id == client_id:
                return key
        return None

    def wishes_by_client(self) -> dict[str, Mapping[str, SubscriptionData]]:
        """Return the subscriptions of each member that subscribes to something."""
        return {
            self.members[key].client_id: wishes for key, wishes in self.wishes.items() if wishes
        }

    def subscription_of(self, key: K, topic: str) -> SubscriptionData | None:
        """Return a member's own subscription; for anybody else the group's."""
        own = self.wishes.get(key)
        return (self.subscriptions if own is None else own).get(topic)


@dataclass(frozen=True, slots=True)
class HeartbeatOutcome:
    """What a consumer heartbeat changed.

    `is_changed`: members or topics changed, so the group must rebalance.
    `needs_subscription`: the heartbeat has no subscriptions, and the member sent none before.
    `is_fingerprint_new`: the member's last V2 heartbeat had another fingerprint.
    """

    is_changed: bool
    needs_subscription: bool
    is_fingerprint_new: bool


class ConsumerGroups(Generic[K]):
    """Every consumer group with a member.

    Every change of a group, of its settings or of its subscriptions moves `revision`.
    """

    def __init__(self) -> None:
        self.revision = 0
        self._groups: dict[str, ConsumerGroup[K]] = {}
        self._joined: dict[K, dict[str, None]] = {}

    def get(self, group: str) -> ConsumerGroup[K] | None:
        """Return the group, or None when it has no member."""
        return self._groups.get(group)

    def all(self) -> Mapping[str, ConsumerGroup[K]]:
        """Return the live table; callers only read it."""
        return self._groups

    def subscribers_of(self, topic: str) -> list[str]:
        """Return the online groups that subscribe to the topic."""
        return [name for name, group in self._groups.items() if topic in group.subscriptions]

    def heartbeat(
        self,
        key: K,
        group: str,
        member: GroupMember,
        consume_type: ConsumeType,
        message_model: MessageModel,
        consume_from_where: ConsumeFromWhere,
        subscriptions: Iterable[SubscriptionData] | None,
        fingerprint: int = 0,
    ) -> HeartbeatOutcome:
        """Apply one group of a heartbeat; `subscriptions` None keeps the stored ones."""
        entry = self._groups.get(group)
        if entry is None:
            entry = ConsumerGroup(group, consume_type, message_model, consume_from_where)
            self._groups[group] = entry
            self.revision += 1
        self.revision += entry.message_model is not message_model
        entry.consume_type = consume_type
        entry.message_model = message_model
        entry.consume_from_where = consume_from_where
        is_fingerprint_new = entry.fingerprints.get(key, fingerprint) != fingerprint
        entry.fingerprints[key] = fingerprint
        joined = self._join(entry, key, member)
        if subscriptions is None:
            return HeartbeatOutcome(joined, key not in entry.wishes, is_fingerprint_new)
        wishes = {item.topic: item for item in subscriptions}
        topics_changed = False
        if entry.wishes.get(key) != wishes:
            topics_changed = set(entry.wishes.get(key, ())) != set(wishes)
            entry.wishes[key] = wishes
            self._collect(entry)
            self.revision += 1
        return HeartbeatOutcome(joined or topics_changed, False, is_fingerprint_new)

    def _join(self, group: ConsumerGroup[K], key: K, member: GroupMember) -> bool:
        self._joined.setdefault(key, {})[group.name] = None
        present = group.members.get(key)
        group.members[key] = member
        return present is None or present.client_id != member.client_id

    def _collect(self, entry: ConsumerGroup[K]) -> None:
        """Make the group's subscriptions from those of its members."""
        table: dict[str, SubscriptionData] = {}
        for wishes in entry.wishes.values():
            for topic, item in wishes.items():
                stored = table.get(topic)
                if stored is None or item.sub_version > stored.sub_version:
                    table[topic] = item
        entry.subscriptions = table

    def leave(self, key: K, group: str) -> bool:
        """Remove a member; True when it was one, so the others must rebalance."""
        self._joined.get(key, {}).pop(group, None)
        entry = self._groups.get(group)
        if entry is None or entry.members.pop(key, None) is None:
            return False
        entry.fingerprints.pop(key, None)
        if entry.wishes.pop(key, None):
            self._collect(entry)
            self.revision += 1
        if not entry.members:
            del self._groups[group]
            self.revision += 1
        return True

    def leave_all(self, key: K) -> list[str]:
        """Remove a lost connection from every group; return the groups it was in."""
        groups = list(self._joined.pop(key, {}))
        for group in groups:
            self.leave(key, group)
        return groups

    def expired(self, now_ms: int, timeout_ms: int) -> list[K]:
        """Return the members without a heartbeat for longer than `timeout_ms`."""
        keys: dict[K, None] = {}
        for group in self._groups.values():
            for key, member in group.members.items():
                if now_ms - member.last_update_ms > timeout_ms:
                    keys[key] = None
        return list(keys)


class ProducerGroups(Generic[K]):
    """Every producer group with a member, and the connection of each producing client."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[K, GroupMember]] = {}
        self._by_client: dict[str, K] = {}

    def all(self) -> Mapping[str, Mapping[K, GroupMember]]:
        """Return the live table; callers only read it."""
        return self._groups

    def get(self, group: str) -> Mapping[K, GroupMember] | None:
        """Return the members of a group, or None when it has none."""
        return self._groups.get(group)

    def find_client(self, client_id: str) -> K | None:
        """Return the connection of a client that is a member of any producer group."""
        return self._by_client.get(client_id)

    def heartbeat(self, key: K, group: str, member: GroupMember) -> None:
        """Apply one group of a heartbeat."""
        self._groups.setdefault(group, {})[key] = member
        self._by_client[member.client_id] = key

    def leave(self, key: K, group: str) -> None:
        """Remove a member from a group."""
        members = self._groups.get(group)
        if members is None:
            return
        member = members.pop(key, None)
        if not members:
            del self._groups[group]
        if (
            member is not None
            and self._by_client.get(member.client_id) == key
            and not any(key in others for others in self._groups.values())
        ):
            del self._by_client[member.client_id]

    def leave_all(self, key: K) -> None:
        """Remove a lost connection from every group."""
        for group in [name for name, members in self._groups.items() if key in members]:
            self.leave(key, group)

    def expired(self, now_ms: int, timeout_ms: int) -> list[K]:
        """Return the members without a heartbeat for longer than `timeout_ms`."""
        keys: dict[K, None] = {}
        for members in self._groups.values():
            for key, member in members.items():
                if now_ms - member.last_update_ms > timeout_ms:
                    keys[key] = None
        return list(keys)
