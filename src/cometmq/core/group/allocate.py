"""Which queues of a topic each member of a consumer group gets.

The strategies are RocketMQ's, as pure functions of the queues and the members.  Every member
computes the same partition from the same two sorted lists (queues by topic, broker and id; client
ids by text) and takes its own share, so a strategy that kept state would disagree with the other
members.  A client that is not in the list gets nothing, since the others do not count it yet.

The results equal those of ``org.apache.rocketmq.client.consumer.rebalance`` of RocketMQ 5.4.0, so
that a group of Java and Python members divides its queues without overlap.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Sequence
from hashlib import md5
from typing import Final, Protocol, TypeAlias

from cometmq.errors import ConfigError
from cometmq.model import MessageQueue
from cometmq.model.names import RETRY_PREFIX

__all__ = [
    "STRATEGIES",
    "AllocateAveragely",
    "AllocateAveragelyByCircle",
    "AllocateByConfig",
    "AllocateConsistentHash",
    "AllocateMachineRoomNearby",
    "AllocateStrategy",
    "strategy_by_name",
]

Queues: TypeAlias = Sequence[MessageQueue]
Members: TypeAlias = Sequence[str]
VIRTUAL_NODE_COUNT: Final = 10
"""Points of each client on the ring: Java's default; all members must use the same number."""


class AllocateStrategy(Protocol):
    """The interface of a strategy; a program may pass any object with these two members."""

    @property
    def name(self) -> str:
        """Name shown to operators, such as ``AVG``."""
        ...

    def allocate(
        self,
        consumer_group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        client_ids: Sequence[str],
    ) -> list[MessageQueue]:
        """Return the queues of ``client_id``; both sequences are sorted."""
        ...


class _Partition(ABC):
    """A strategy in which every member computes the same partition and takes its share."""

    def allocate(
        self,
        consumer_group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        client_ids: Sequence[str],
    ) -> list[MessageQueue]:
        """Return the queues of ``client_id``; none for a client the others do not count yet.

        Raises:
            ValueError: an argument is empty, or a machine room is unknown.
        """
        if not client_id:
            raise ValueError("client_id is empty: an allocation needs to know for whom it is")
        if not queues:
            raise ValueError("queues is empty: there is nothing to allocate")
        if not client_ids:
            raise ValueError("client_ids is empty: a group without members has no allocation")
        if client_id not in client_ids:
            return []
        return self._share(consumer_group, client_id, queues, client_ids)

    @abstractmethod
    def _share(self, group: str, own: str, queues: Queues, members: Members) -> list[MessageQueue]:
        """Return the share of the member ``own``; no argument is empty."""


class AllocateAveragely(_Partition):
    """Neighbouring queues in runs of equal length; the first members get one more (``AVG``)."""

    name: Final = "AVG"

    def _share(self, group: str, own: str, queues: Queues, members: Members) -> list[MessageQueue]:
        """Return the member's run of queues."""
        index = members.index(own)
        share, remainder = divmod(len(queues), len(members))
        start = index * share + min(index, remainder)
        return list(queues[start : start + share + (index < remainder)])


class AllocateAveragelyByCircle(_Partition):
    """Queues dealt like cards, one to each member in turn (``AVG_BY_CIRCLE``)."""

    name: Final = "AVG_BY_CIRCLE"

    def _share(self, group: str, own: str, queues: Queues, members: Members) -> list[MessageQueue]:
        """Return every n-th queue, beginning at the member's index."""
        return list(queues[members.index(own) :: len(members)])


def _ring_hash(text: str) -> int:
    """Return the first four bytes of the MD5, unsigned (``ConsistentHashRouter.MD5Hash``)."""
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def _java_text(queue: MessageQueue) -> str:
    """Return Java's ``MessageQueue.toString``, the text whose hash puts a queue on the ring."""
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
        f"queueId={queue.queue_id}]"
    )


class AllocateConsistentHash(_Partition):
    """Queues and members on one hash ring, so that few queues move when members come and go."""

    name: Final = "CONSISTENT_HASH"

    def __init__(
        self,
        virtual_node_count: int = VIRTUAL_NODE_COUNT,
        hash_function: Callable[[str], int] = _ring_hash,
    ) -> None:
        if virtual_node_count < 1:
            raise ValueError(
                f"virtual_node_count is {virtual_node_count}; with fewer than 1 the ring is empty "
                "and no member would get a queue"
            )
        self._virtual_node_count = virtual_node_count
        self._hash = hash_function

    def _share(self, group: str, own: str, queues: Queues, members: Members) -> list[MessageQueue]:
        """Return the queues whose next point up the ring is the member's."""
        ring: dict[int, str] = {}
        replicas: dict[str, int] = {}
        for member in members:
            # A client listed twice continues its numbering, as Java's router does.
            first = replicas.get(member, 0)
            for replica in range(first, first + self._virtual_node_count):
                ring[self._hash(f"{member}-{replica}")] = member
            replicas[member] = first + self._virtual_node_count
        points = sorted(ring)
        mine: list[MessageQueue] = []
        for queue in queues:
            index = bisect_left(points, self._hash(_java_text(queue)))
            if ring[points[index % len(points)]] == own:
                mine.append(queue)
        return mine


class AllocateByConfig:
    """A fixed list of queues, whoever the other members are (``CONFIG``).

    Unlike Java's, it omits queues that the topic does not have now, since a pull from them can only
    fail.  It also divides retry queues that nobody configured as ``AVG`` does; otherwise messages
    to be retried would wait there for ever.

    Raises:
        ConfigError: an item is not a `MessageQueue`.
    """

    name: Final = "CONFIG"

    def __init__(self, message_queues: Sequence[MessageQueue]) -> None:
        self.message_queues = list(message_queues)
        if not all(isinstance(queue, MessageQueue) for queue in self.message_queues):
            raise ConfigError(f"{message_queues!r} is not a list of MessageQueue")

    def allocate(
        self,
        consumer_group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        client_ids: Sequence[str],
    ) -> list[MessageQueue]:
        """Return the configured queues that exist; of an unconfigured retry topic the AVG share."""
        existing = set(queues)
        mine = [queue for queue in self.message_queues if queue in existing]
        if mine or not queues or not queues[0].topic.startswith(RETRY_PREFIX):
            return mine
        if any(queue.topic == queues[0].topic for queue in self.message_queues):
            return mine
        return AllocateAveragely().allocate(consumer_group, client_id, queues, client_ids)


class AllocateMachineRoomNearby(_Partition):
    """Members take the queues of their own machine room; all share the rooms without a member.

    ``broker_room`` and ``consumer_room`` name the room of a queue and of a client id.  An empty
    name is refused, since the members could then disagree.
    """

    def __init__(
        self,
        strategy: AllocateStrategy,
        broker_room: Callable[[MessageQueue], str],
        consumer_room: Callable[[str], str],
    ) -> None:
        self._strategy = strategy
        self._broker_room = broker_room
        self._consumer_room = consumer_room

    @property
    def name(self) -> str:
        """``MACHINE_ROOM_NEARBY-`` and the name of the strategy used inside a room."""
        return f"MACHINE_ROOM_NEARBY-{self._strategy.name}"

    def _share(self, group: str, own: str, queues: Queues, members: Members) -> list[MessageQueue]:
        """Return the share in the member's room, then in every room without a member."""
        queues_of_room: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            room = self._broker_room(queue)
            if not room:
                raise ValueError(f"no machine room is known for the queue {queue}")
            queues_of_room.setdefault(room, []).append(queue)
        members_of_room: dict[str, list[str]] = {}
        for member in members:
            room = self._consumer_room(member)
            if not room:
                raise ValueError(f"no machine room is known for the client {member!r}")
            members_of_room.setdefault(room, []).append(member)
        own_room = self._consumer_room(own)
        mine: list[MessageQueue] = []
        own_queues = queues_of_room.pop(own_room, None)
        if own_queues:
            mine += self._strategy.allocate(group, own, own_queues, members_of_room[own_room])
        for room in sorted(queues_of_room):
            if room not in members_of_room:
                mine += self._strategy.allocate(group, own, queues_of_room[room], members)
        return mine


STRATEGIES: Final[dict[str, Callable[[], AllocateStrategy]]] = {
    "AVG": AllocateAveragely,
    "AVG_BY_CIRCLE": AllocateAveragelyByCircle,
    "CONSISTENT_HASH": AllocateConsistentHash,
}
"""Strategies that need no argument, by the names that RocketMQ's tools show."""


def strategy_by_name(name: str) -> AllocateStrategy:
    """Return the strategy called ``name``, in upper or lower case.

    Raises:
        ConfigError: no strategy has this name; the text lists the names.
    """
    try:
        return STRATEGIES[name.upper()]()
    except KeyError:
        raise ConfigError(
            f"no allocation strategy is called {name!r}; there are {', '.join(STRATEGIES)}, or "
            "pass an object with `name` and `allocate`"
        ) from None
