"""Which queues of a topic each member of a consumer group gets.

Job: the allocation strategies of RocketMQ, as pure functions of (queues, members).
Must not: do I/O or keep state between calls; every member of a group computes the same table on
its own, so one that remembered anything would disagree with the others.

Theory: all members see the same two sorted lists (queues by topic, broker and id; client ids by
text) and take their own share of a partition that all of them know.  A client that is not in the
list gets nothing, since the others do not count with it yet.  Semantics follow
``org.apache.rocketmq.client.consumer.rebalance`` of RocketMQ 5.4.0, so that a group of Java and
Python members divides its queues without overlap.
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
"""Ring places of each client; Java's default, and part of what the members must agree on."""


class AllocateStrategy(Protocol):
    """What a consumer needs of a strategy; a user's own may be any object with these two."""

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
        """The share of ``client_id``; both sequences come sorted."""
        ...


class _Partition(ABC):
    """A strategy in which every member takes its share of a partition they all know."""

    def allocate(
        self,
        consumer_group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        client_ids: Sequence[str],
    ) -> list[MessageQueue]:
        """The share of ``client_id``; nothing for one the others do not count with yet."""
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
        """What the member ``own`` gets of some queues; nothing is empty."""


class AllocateAveragely(_Partition):
    """Neighbouring queues in runs of equal length; the first members get one more (``AVG``)."""

    name: Final = "AVG"

    def _share(self, group: str, own: str, queues: Queues, members: Members) -> list[MessageQueue]:
        """The run of queues that belongs to the member."""
        index = members.index(own)
        share, rest = divmod(len(queues), len(members))
        start = index * share + min(index, rest)
        return list(queues[start : start + share + (index < rest)])


class AllocateAveragelyByCircle(_Partition):
    """Queues dealt like cards, one to each member in turn (``AVG_BY_CIRCLE``)."""

    name: Final = "AVG_BY_CIRCLE"

    def _share(self, group: str, own: str, queues: Queues, members: Members) -> list[MessageQueue]:
        """Every n-th queue, beginning at the member's own place."""
        return list(queues[members.index(own) :: len(members)])


def _ring_hash(text: str) -> int:
    """First four bytes of the MD5, unsigned: ``ConsistentHashRouter.MD5Hash``."""
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def _java_text(queue: MessageQueue) -> str:
    """Java's ``MessageQueue.toString``: the ring places queues by exactly this text."""
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
        """The queues whose next place on the ring, going up, belongs to the member."""
        ring: dict[int, str] = {}
        replicas: dict[str, int] = {}
        for member in members:
            # A client listed twice continues its numbering, as Java's router does.
            first = replicas.get(member, 0)
            for replica in range(first, first + self._virtual_node_count):
                ring[self._hash(f"{member}-{replica}")] = member
            replicas[member] = first + self._virtual_node_count
        places = sorted(ring)
        mine: list[MessageQueue] = []
        for queue in queues:
            place = bisect_left(places, self._hash(_java_text(queue)))
            if ring[places[place % len(places)]] == own:
                mine.append(queue)
        return mine


class AllocateByConfig:
    """A fixed list per client, whoever else is there (``CONFIG``).

    Unlike Java's, queues that the topic does not have (now) are left out: pulling from them
    could only fail; and retry queues that nobody configured are shared averagely, since messages
    to be tried again would wait there for ever.
    """

    name: Final = "CONFIG"

    def __init__(self, message_queues: Sequence[MessageQueue]) -> None:
        self.message_queues = list(message_queues)
        if not all(isinstance(queue, MessageQueue) for queue in self.message_queues):
            raise ConfigError(f"{message_queues!r} is no list of MessageQueue")

    def allocate(
        self,
        consumer_group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        client_ids: Sequence[str],
    ) -> list[MessageQueue]:
        """The configured queues that exist; of an unconfigured retry topic the usual share."""
        existing = set(queues)
        mine = [queue for queue in self.message_queues if queue in existing]
        if mine or not queues or not queues[0].topic.startswith(RETRY_PREFIX):
            return mine
        if any(queue.topic == queues[0].topic for queue in self.message_queues):
            return mine
        return AllocateAveragely().allocate(consumer_group, client_id, queues, client_ids)


class AllocateMachineRoomNearby(_Partition):
    """Queues of a machine room go to its own members; orphaned rooms are shared by all.

    ``broker_room`` and ``consumer_room`` name the room of a queue and of a client id; an empty
    answer is refused, since the members could then disagree.
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
        """The share in the own room, then the share of every room without a living member."""
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
    """The strategy that operators call ``name``.

    Raises:
        ConfigError: there is none; the text lists those there are.
    """
    try:
        return STRATEGIES[name.upper()]()
    except KeyError:
        raise ConfigError(
            f"no allocation strategy is called {name!r}; there are {', '.join(STRATEGIES)}, or "
            "pass an object with `name` and `allocate`"
        ) from None
