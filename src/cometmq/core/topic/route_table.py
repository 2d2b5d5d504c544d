"""The name server's tables: which broker serves which topic, and which brokers are alive.

Every routing decision of a name server is made here, on plain values and with the time passed in.

Five tables and their invariants
    topic queues    topic -> broker name -> QueueData; a topic without queues is not in it
    brokers         broker name -> cluster and the address of each member (id 0 is the master);
                    a broker name without a member is not in it
    clusters        cluster -> broker names; a cluster without names is not in it
    live            (cluster, address) -> last sign of life, data version, connection
    Every member address of `brokers` is in `live`; an address belongs to one member id.
    Every broker name of the topic queues is in `brokers`.

Only a master, or the lowest member of a group that knows acting masters, writes topic queues,
and only when its data version differs from the one last seen.  Source: `RouteInfoManager` of
RocketMQ 5.4.0.  Left out: filter servers (removed upstream) and static topics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from cometmq.model.flags import PERM_READ, PERM_WRITE
from cometmq.model.topic import BrokerData, DataVersion, QueueData, TopicConfig, TopicRoute

__all__ = [
    "BROKER_TIMEOUT_MS",
    "MASTER_ID",
    "BrokerMember",
    "BrokerRegistration",
    "LiveBroker",
    "RegistrationResult",
    "RouteTable",
]

MASTER_ID: Final = 0
# Routes drop a broker that is silent for longer.  It registers every 30 s, so three registrations
# may get lost.
BROKER_TIMEOUT_MS: Final = 120_000

_PermChange = Callable[[int], int]

_UNIT_FLAG: Final = 1
_UNIT_SUB_FLAG: Final = 2
# The readers of these topics find the members of a broken group themselves; they get true ids.
_SYNC_MEMBER_TOPIC_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"


@dataclass(frozen=True, slots=True)
class BrokerMember:
    """Identity of one broker process: a member `broker_id` of the group `broker_name`."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """One REGISTER_BROKER request; `enable_acting_master` is None from brokers before 5.0."""

    member: BrokerMember
    ha_address: str
    data_version: DataVersion
    topics: tuple[TopicConfig, ...]
    timeout_ms: int = BROKER_TIMEOUT_MS
    enable_acting_master: bool | None = None


@dataclass(frozen=True, slots=True)
class RegistrationResult:
    """The answer to a broker; both addresses are None for a master or without a live master."""

    accepted: bool
    ha_address: str | None = None
    master_address: str | None = None


@dataclass(slots=True)
class LiveBroker:
    """The last sign of life of a broker, and the connection it registered over."""

    member: BrokerMember
    ha_address: str
    data_version: DataVersion
    connection: object
    last_seen_ms: int
    timeout_ms: int


@dataclass(slots=True)
class _Group:
    """A broker name and its members."""

    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    enable_acting_master: bool = False


class RouteTable:
    """The tables above and the decisions on them; answers come in a fixed order."""

    def __init__(
        self, *, support_acting_master: bool = False, delete_missing_topics: bool = False
    ) -> None:
        self.support_acting_master = support_acting_master
        self.delete_missing_topics = delete_missing_topics
        self._queues: dict[str, dict[str, QueueData]] = {}
        self._groups: dict[str, _Group] = {}
        self._clusters: dict[str, set[str]] = {}
        self._live: dict[tuple[str, str], LiveBroker] = {}

    # -- registration -------------------------------------------------------------------------

    def register(
        self, registration: BrokerRegistration, connection: object, now_ms: int
    ) -> RegistrationResult:
        """Apply a broker's registration; a refused one changes no route."""
        member = registration.member
        before = self._live.get((member.cluster, member.address))
        if before is not None and before.member.broker_name != member.broker_name:
            # The process has a new name; the old name shares its address and would never expire.
            self.unregister(before.member)
        group = self._groups.get(member.broker_name)
        addresses = dict(group.addresses) if group is not None else {}
        # A slave that became the master keeps its address and changes its id.
        addresses = {
            broker_id: address
            for broker_id, address in addresses.items()
            if address != member.address or broker_id == member.broker_id
        }
        if self._is_superseded(registration, addresses.get(member.broker_id)):
            # An old master returns after a failover.  As in Java its claim is ignored, and the
            # answer is empty, since the controller tells it its new role.
            if before is not None:
                self.unregister(before.member)
            return RegistrationResult(accepted=True)
        if member.broker_id not in addresses and len(registration.topics) == 1:
            # A single topic is an update; from a new member it would hide all other topics.
            return RegistrationResult(accepted=False)

        is_new = group is None or not addresses.get(member.broker_id)
        if group is not None and group.cluster != member.cluster:
            self._leave_cluster(member.broker_name, group.cluster)
        group = group or _Group(member.cluster)
        group.cluster = member.cluster
        group.enable_acting_master = bool(registration.enable_acting_master)
        replaced = addresses.get(member.broker_id)
        if replaced is not None and replaced != member.address:
            self._live.pop((member.cluster, replaced), None)
        addresses[member.broker_id] = member.address
        group.addresses = addresses
        self._groups[member.broker_name] = group
        self._clusters.setdefault(member.cluster, set()).add(member.broker_name)

        self._take_topics(registration, group, is_new)
        self._live[(member.cluster, member.address)] = LiveBroker(
            member,
            registration.ha_address,
            registration.data_version,
            connection,
            now_ms,
            registration.timeout_ms,
        )
        return self._answer(member, group)

    def _is_superseded(self, registration: BrokerRegistration, old_address: str | None) -> bool:
        """Whether another address has this member id with a newer controller epoch."""
        member = registration.member
        if old_address is None or old_address == member.address:
            return False
        old = self._live.get((member.cluster, old_address))
        return old is not None and (
            old.data_version.state_version > registration.data_version.state_version
        )

    def _take_topics(self, registration: BrokerRegistration, group: _Group, is_new: bool) -> None:
        member = registration.member
        is_lowest_slave = (
            registration.enable_acting_master is not None
            and member.broker_id != MASTER_ID
            and member.broker_id == min(group.addresses)
        )
        if member.broker_id != MASTER_ID and not is_lowest_slave:
            return
        if self.delete_missing_topics:
            registered = {topic.topic for topic in registration.topics}
            self._drop_queues(member.broker_name, except_topics=registered)
        changed = is_new or self.is_changed(
            member.cluster, member.address, registration.data_version
        )
        for topic in registration.topics:
            queues = self._queues.setdefault(topic.topic, {})
            if not changed and member.broker_name in queues:
                continue
            perm = topic.perm
            if is_lowest_slave and group.enable_acting_master:
                perm &= ~PERM_WRITE
            queues[member.broker_name] = QueueData(
                member.broker_name,
                topic.read_queue_count,
                topic.write_queue_count,
                perm,
                topic.topic_sys_flag,
            )

    def _answer(self, member: BrokerMember, group: _Group) -> RegistrationResult:
        master = group.addresses.get(MASTER_ID)
        if member.broker_id == MASTER_ID or master is None:
            return RegistrationResult(accepted=True)
        live = self._live.get((member.cluster, master))
        if live is None:
            return RegistrationResult(accepted=True)
        return RegistrationResult(True, live.ha_address, master)

    def unregister(self, member: BrokerMember) -> None:
        """Drop one broker; with the last member of a name its topics go."""
        live = self._live.get((member.cluster, member.address))
        if live is not None and live.member.broker_name == member.broker_name:
            del self._live[(member.cluster, member.address)]
        group = self._groups.get(member.broker_name)
        if group is None or member.address not in group.addresses.values():
            return
        group.addresses = {
            broker_id: address
            for broker_id, address in group.addresses.items()
            if address != member.address
        }
        if not group.addresses:
            del self._groups[member.broker_name]
            self._leave_cluster(member.broker_name, group.cluster)
            self._drop_queues(member.broker_name)
        elif group.enable_acting_master and MASTER_ID not in group.addresses:
            self._change_perm(member.broker_name, lambda perm: perm & ~PERM_WRITE)

    def disconnect(self, connection: object) -> tuple[BrokerMember, ...]:
        """Drop and return every broker that registered over the closed `connection`."""
        members = [live.member for live in self._live.values() if live.connection is connection]
        for member in members:
            self.unregister(member)
        return tuple(members)

    # -- liveness -----------------------------------------------------------------------------

    def touch(self, cluster: str, address: str, now_ms: int) -> bool:
        """Record a sign of life; False for a broker that is not registered."""
        live = self._live.get((cluster, address))
        if live is None:
            return False
        live.last_seen_ms = now_ms
        return True

    def expired(self, now_ms: int) -> tuple[LiveBroker, ...]:
        """Return the brokers that were silent for longer than their timeout."""
        return tuple(
            live for live in self._live.values() if live.last_seen_ms + live.timeout_ms < now_ms
        )

    def data_version(self, cluster: str, address: str) -> DataVersion | None:
        """Return the version of the topic table last registered from `address`."""
        live = self._live.get((cluster, address))
        return None if live is None else live.data_version

    def is_changed(self, cluster: str, address: str, data_version: DataVersion) -> bool:
        """Whether the broker has another topic table than the one it registered last."""
        return self.data_version(cluster, address) != data_version

    # -- routes -------------------------------------------------------------------------------

    def route(self, topic: str) -> TopicRoute | None:
        """Return queues and brokers of `topic` by broker name; None without a live broker."""
        queues = self._queues.get(topic)
        if not queues:
            return None
        names = sorted(queues)
        brokers = tuple(self._broker_data(name, self._groups[name]) for name in names)
        queue_datas = tuple(queues[name] for name in names)
        if self.support_acting_master and not topic.startswith(_SYNC_MEMBER_TOPIC_PREFIX):
            brokers = tuple(_with_acting_master(broker, queues) for broker in brokers)
        return TopicRoute(queue_datas, brokers)

    def member_group(self, broker_name: str) -> dict[int, str]:
        """Return the address of each member of a broker name; empty for an unknown name."""
        group = self._groups.get(broker_name)
        return {} if group is None else dict(sorted(group.addresses.items()))

    def cluster_info(self) -> tuple[dict[str, BrokerData], dict[str, tuple[str, ...]]]:
        """Return all brokers by name, and the broker names of each cluster."""
        brokers = {
            name: self._broker_data(name, group) for name, group in sorted(self._groups.items())
        }
        clusters = {
            cluster: tuple(sorted(names)) for cluster, names in sorted(self._clusters.items())
        }
        return brokers, clusters

    def _broker_data(self, name: str, group: _Group) -> BrokerData:
        return BrokerData(
            group.cluster, name, dict(sorted(group.addresses.items())), group.enable_acting_master
        )

    # -- topics -------------------------------------------------------------------------------

    def topics(self) -> tuple[str, ...]:
        """Return every topic that has a queue."""
        return tuple(sorted(self._queues))

    def topics_of_cluster(self, cluster: str) -> tuple[str, ...]:
        """Return the topics with a queue on a broker of `cluster`; none for an unknown cluster."""
        names = self._clusters.get(cluster, set())
        return tuple(
            topic for topic, queues in sorted(self._queues.items()) if names & queues.keys()
        )

    def topics_by_unit(
        self, *, unit: bool | None = None, unit_sub: bool | None = None
    ) -> tuple[str, ...]:
        """Return the topics with these unit flags; None matches any flag."""
        matches = []
        for topic, queues in sorted(self._queues.items()):
            flags = queues[min(queues)].topic_sys_flag
            if unit is not None and bool(flags & _UNIT_FLAG) != unit:
                continue
            if unit_sub is not None and bool(flags & _UNIT_SUB_FLAG) != unit_sub:
                continue
            matches.append(topic)
        return tuple(matches)

    def system_topics(self) -> tuple[tuple[str, ...], str | None]:
        """Return the cluster and broker names, which are topics too, and one broker's address."""
        names: list[str] = []
        for cluster, brokers in sorted(self._clusters.items()):
            names.append(cluster)
            names.extend(sorted(brokers))
        for _, group in sorted(self._groups.items()):
            return tuple(dict.fromkeys(names)), group.addresses[min(group.addresses)]
        return tuple(dict.fromkeys(names)), None

    def register_topic(self, topic: str, queue_datas: Iterable[QueueData]) -> bool:
        """Add queues of one topic; False, without a change, when a broker is unknown."""
        queue_datas = tuple(queue_datas)
        if not queue_datas or any(queues.broker_name not in self._groups for queues in queue_datas):
            return False
        table = self._queues.setdefault(topic, {})
        for queues in queue_datas:
            table[queues.broker_name] = queues
        return True

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic, or only its queues on the brokers of one cluster."""
        if not cluster:
            self._queues.pop(topic, None)
            return
        queues = self._queues.get(topic)
        if queues is None:
            return
        for name in self._clusters.get(cluster, ()):
            queues.pop(name, None)
        if not queues:
            del self._queues[topic]

    def wipe_write_perm(self, broker_name: str) -> int:
        """Clear W of all topics of a broker, so that producers leave it; return their number."""
        return self._change_perm(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        """Undo `wipe_write_perm`: make all topics of a broker RW; return their number."""
        return self._change_perm(broker_name, lambda perm: PERM_READ | PERM_WRITE)

    # -- helpers ------------------------------------------------------------------------------

    def _change_perm(self, broker_name: str, change: _PermChange) -> int:
        count = 0
        for queues in self._queues.values():
            data = queues.get(broker_name)
            if data is not None:
                queues[broker_name] = replace(data, perm=change(data.perm))
                count += 1
        return count

    def _drop_queues(self, broker_name: str, except_topics: Iterable[str] = ()) -> None:
        registered = frozenset(except_topics)
        for topic in [topic for topic, queues in self._queues.items() if broker_name in queues]:
            if topic in registered:
                continue
            del self._queues[topic][broker_name]
            if not self._queues[topic]:
                del self._queues[topic]

    def _leave_cluster(self, broker_name: str, cluster: str) -> None:
        names = self._clusters[cluster]
        names.discard(broker_name)
        if not names:
            del self._clusters[cluster]


def _with_acting_master(broker: BrokerData, queues: dict[str, QueueData]) -> BrokerData:
    """Show the lowest slave under id 0 when there is no master and the topic is read-only."""
    data = queues.get(broker.broker_name)
    if (
        MASTER_ID in broker.broker_addrs
        or not broker.enable_acting_master
        or not broker.broker_addrs
        or data is None
        or data.perm & PERM_WRITE
    ):
        return broker
    addresses = dict(broker.broker_addrs)
    addresses[MASTER_ID] = addresses.pop(min(addresses))
    return replace(broker, broker_addrs=dict(sorted(addresses.items())))
