"""Topics and routes: a topic as its broker stores it, and as name servers publish it."""

from dataclasses import dataclass, field

from cometmq.model.flags import PERM_READ, PERM_WRITE

__all__ = [
    "BrokerData",
    "DataVersion",
    "QueueData",
    "TopicConfig",
    "TopicRoute",
]


@dataclass(frozen=True, slots=True)
class DataVersion:
    """Version of a configuration table; a larger ``counter`` or ``state_version`` is newer."""

    timestamp_ms: int = 0
    counter: int = 0
    state_version: int = 0

    def next(self, now_ms: int, state_version: int = 0) -> "DataVersion":
        """The version after a change at ``now_ms``."""
        return DataVersion(now_ms, self.counter + 1, state_version)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic as its broker stores it in ``topics.json``; ``perm`` holds the PERM_ bits."""

    topic: str
    read_queue_count: int = 16
    write_queue_count: int = 16
    perm: int = PERM_READ | PERM_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)

    @property
    def is_writable(self) -> bool:
        return bool(self.perm & PERM_WRITE)


@dataclass(frozen=True, slots=True)
class QueueData:
    """How many queues of a topic one broker offers, and with which permission."""

    broker_name: str
    read_queue_count: int
    write_queue_count: int
    perm: int
    topic_sys_flag: int = 0


@dataclass(frozen=True, slots=True)
class BrokerData:
    """A broker name and the ``host:port`` of each of its members; id 0 is the master."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str]
    enable_acting_master: bool = False

    @property
    def master_address(self) -> str | None:
        return self.broker_addrs.get(0)


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """What a name server answers for a topic."""

    queue_datas: tuple[QueueData, ...]
    broker_datas: tuple[BrokerData, ...]
    order_topic_conf: str | None = None
