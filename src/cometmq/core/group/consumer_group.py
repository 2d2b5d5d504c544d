"""Who is online: producers and consumers by group, and what each group subscribes to.

Job: apply heartbeats, leaves and losses, and say which groups' members must be told to rebalance.
It must not send anything; callers pass an opaque, hashable member key (the connection).

All members of a consumer group share one subscription table (ConsumerGroupInfo of RocketMQ 5.4):
a topic is replaced when its `sub_version` grows, added when new, dropped when a full heartbeat no
longer lists it.  A group exists while it has members.
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
    """One client as a group sees it."""

    client_id: str
    language: str
    version: int
    last_update_ms: int


@dataclass(slots=True)
class ConsumerGroup(Generic[K]):
    """The online side of a consumer group; `fingerprint` is of the last V2 heartbeat."""

    name: str
    consume_type: ConsumeType
    message_model: MessageModel
    consume_from_where: ConsumeFromWhere
    members: dict[K, GroupMember] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    fingerprint: int = 0

    @property
    def is_broadcast(self) -> bool:
        """Say whether each member gets all messages."""
        return self.message_model is MessageModel.BROADCASTING

    def client_ids(self) -> list[str]:
        """List the members' client ids, each once."""
        return list(dict.fromkeys(member.client_id for member in self.members.values()))

    def find_client(self, client_id: str) -> K | None:
        """Give the member key of a client id."""
        for key, member in self.members.items():
            if member.client_id == client_id:
                return key
        return None


@dataclass(frozen=True, slots=True)
class HeartbeatOutcome:
    """What a consumer heartbeat did.

    `is_changed`: membership or topics changed, so the members must rebalance.
    `needs_subscription`: the peer left its subscription out, but none is stored.
    `is_fingerprint_new`: the group's last V2 heartbeat had another fingerprint.
    """

    is_changed: bool
    needs_subscription: bool
    is_fingerprint_new: bool


class ConsumerGroups(Generic[K]):
    """Every consumer group with a member, and which groups there were."""

    __slots__ = ("_groups", "_joined", "_seen")

    def __init__(self) -> None:
        self._groups: dict[str, ConsumerGroup[K]] = {}
        self._joined: dict[K, dict[str, None]] = {}
        self._seen: dict[str, dict[str, None]] = {}

    def get(self, group: str) -> ConsumerGroup[K] | None:
        """Give the group, or None when nobody is online."""
        return self._groups.get(group)

    def all(self) -> Mapping[str, ConsumerGroup[K]]:
        """Give the live table, to read only."""
        return self._groups

    def subscribers_of(self, topic: str) -> list[str]:
        """List the online groups that subscribe to the topic."""
        return [name for name, group in self._groups.items() if topic in group.subscriptions]

    def seen_on(self, topic: str) -> list[str]:
        """List the groups that share the topic's messages out, online or not any more."""
        return list(self._seen.get(topic, ()))

    def forget(self, group: str) -> None:
        """Forget that a group was there; it is deleted."""
        for groups in self._seen.values():
            groups.pop(group, None)

    def forget_topic(self, topic: str) -> None:
        """Forget who was there for a topic; it is deleted."""
        self._seen.pop(topic, None)

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
        """Apply one group of a heartbeat; `subscriptions` None keeps what is stored."""
        known = self._groups.get(group)
        is_new_group = known is None
        if known is None:
            known = ConsumerGroup(group, consume_type, message_model, consume_from_where)
            self._groups[group] = known
        known.consume_type = consume_type
        known.message_model = message_model
        known.consume_from_where = consume_from_where
        is_fingerprint_new = not is_new_group and known.fingerprint != fingerprint
        known.fingerprint = fingerprint
        joined = self._join(known, key, member)
        if subscriptions is None:
            return HeartbeatOutcome(joined, not known.subscriptions, is_fingerprint_new)
        topics_changed = _replace_subscriptions(known.subscriptions, subscriptions)
        if (joined or topics_changed) and not known.is_broadcast:
            for topic in known.subscriptions:
                self._seen.setdefault(topic, {})[group] = None
        return HeartbeatOutcome(joined or topics_changed, False, is_fingerprint_new)

    def _join(self, group: ConsumerGroup[K], key: K, member: GroupMember) -> bool:
        self._joined.setdefault(key, {})[group.name] = None
        present = group.members.get(key)
        group.members[key] = member
        return present is None or present.client_id != member.client_id

    def leave(self, key: K, group: str) -> bool:
        """Remove a member; True when it was one, so that the others must rebalance."""
        self._joined.get(key, {}).pop(group, None)
        known = self._groups.get(group)
        if known is None or known.members.pop(key, None) is None:
            return False
        if not known.members:
            del self._groups[group]
        return True

    def leave_all(self, key: K) -> list[str]:
        """Remove a lost connection from every group; give the groups it was in."""
        groups = list(self._joined.pop(key, {}))
        for group in groups:
            self.leave(key, group)
        return groups

    def expired(self, now_ms: int, timeout_ms: int) -> list[K]:
        """List the members without a heartbeat for longer than `timeout_ms`."""
        keys: dict[K, None] = {}
        for group in self._groups.values():
            for key, member in group.members.items():
                if now_ms - member.last_update_ms > timeout_ms:
                    keys[key] = None
        return list(keys)


def _replace_subscriptions(
    table: dict[str, SubscriptionData], subscriptions: Iterable[SubscriptionData]
) -> bool:
    """Take over a full subscription list; True when the set of topics changed."""
    changed = False
    listed = set()
    for subscription in subscriptions:
        listed.add(subscription.topic)
        known = table.get(subscription.topic)
        if known is None:
            changed = True
        elif subscription.sub_version <= known.sub_version:
            continue
        table[subscription.topic] = subscription
    for topic in [topic for topic in table if topic not in listed]:
        del table[topic]
        changed = True
    return changed


class ProducerGroups(Generic[K]):
    """Every producer group with a member, and the connection of each producing client."""

    __slots__ = ("_by_client", "_groups")

    def __init__(self) -> None:
        self._groups: dict[str, dict[K, GroupMember]] = {}
        self._by_client: dict[str, K] = {}

    def all(self) -> Mapping[str, Mapping[K, GroupMember]]:
        """Give the live table, to read only."""
        return self._groups

    def get(self, group: str) -> Mapping[K, GroupMember] | None:
        """Give the members of a group, or None when nobody is online."""
        return self._groups.get(group)

    def find_client(self, client_id: str) -> K | None:
        """Give the connection of a client id that produces in any group."""
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
        if member is not None and self._by_client.get(member.client_id) == key:
            still = any(key in others for others in self._groups.values())
            if not still:
                del self._by_client[member.client_id]

    def leave_all(self, key: K) -> None:
        """Remove a lost connection from every group."""
        for group in [name for name, members in self._groups.items() if key in members]:
            self.leave(key, group)

    def expired(self, now_ms: int, timeout_ms: int) -> list[K]:
        """List the members without a heartbeat for longer than `timeout_ms`."""
        keys: dict[K, None] = {}
        for members in self._groups.values():
            for key, member in members.items():
                if now_ms - member.last_update_ms > timeout_ms:
                    keys[key] = None
        return list(keys)
