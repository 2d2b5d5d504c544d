"""What the processors of one broker share: its state, and how a request is answered.

`BrokerState` holds the tables, the store, the broker's identity, and the hooks by which a changed
table is written and announced.  It processes no request and owns no timer and no socket.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from cometmq.broker.base.barrier import SendBarrier
from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.base.stats import BrokerStats
from cometmq.codec.ids import UniqIdFactory, encode_host, offset_message_id_prefix
from cometmq.core.delay.levels import DelayLevels
from cometmq.core.group.consumer_group import ConsumerGroups, ProducerGroups
from cometmq.core.group.consumer_offsets import ConsumerOffsetTable
from cometmq.core.group.filter_shares import FilterShares
from cometmq.core.group.group_table import SubscriptionGroupTable
from cometmq.core.group.queue_locks import QueueLocks
from cometmq.core.group.skipped_ranges import SkippedRanges
from cometmq.core.topic.topic_table import TopicTable
from cometmq.errors import CometError, ResponseCode, StoreError
from cometmq.model.topic import TopicConfig
from cometmq.net.env import Environment
from cometmq.net.server import ServerConnection
from cometmq.server.answers import Refusal, answer, refusing
from cometmq.store.message_store import MessageStore
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.fast_decode import EndCommand

__all__ = [
    "FAQ",
    "BrokerState",
    "Refusal",
    "TableFiles",
    "WhenSaved",
    "answer",
    "in_worker",
    "refusing",
]

T = TypeVar("T")

FAQ: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
"""The hint the Java broker appends to some remarks; clients show it to people."""


WhenSaved = Callable[[Callable[[StoreError | None], None]], None]
"""Calls its argument with None when a table is on disk as it is now, or with the error."""


def in_worker(
    state: BrokerState,
    request: RemotingCommand | EndCommand,
    connection: ServerConnection,
    work: Callable[[], T],
    finish: Callable[[T], bytes | None],
) -> None:
    """Run `work` in a worker and answer with what `finish` makes of its result, on the loop."""

    def done(result: T | BaseException) -> None:
        if isinstance(result, BaseException):
            kind = "" if isinstance(result, CometError) else f"{type(result).__name__}: "
            frame: bytes | None = answer(request, ResponseCode.SYSTEM_ERROR, f"{kind}{result}")
        else:
            try:
                frame = finish(result)
            except CometError as error:
                frame = answer(request, ResponseCode.SYSTEM_ERROR, str(error))
        if frame is not None and not request.is_oneway and not connection.is_closed:
            connection.send(frame)

    state.env.workers.submit(work, done)


@dataclass(frozen=True, slots=True)
class TableFiles:
    """What processors ask of the files of topics, groups and consumer offsets."""

    topics_written: Callable[[], int]
    """The revision of the topics that topics.json has."""
    when_topics_saved: WhenSaved
    when_groups_saved: WhenSaved
    when_offsets_saved: WhenSaved
    groups_changed: Callable[[], None]
    """Writes the groups soon."""


class BrokerState:
    """The shared state; every table has exactly one writer per request, on the event loop.

    Args:
        files: where the tables are written.
        disk_usage: gives (total, used) bytes of the store's file system.
        when_registered: calls its argument when the name servers know all topics, or soon.
    """

    def __init__(
        self,
        config: BrokerConfig,
        env: Environment,
        store: MessageStore,
        topics: TopicTable,
        groups: SubscriptionGroupTable,
        offsets: ConsumerOffsetTable,
        shares: FilterShares[ServerConnection],
        address: str,
        *,
        files: TableFiles,
        disk_usage: Callable[[], tuple[int, int]],
        when_registered: Callable[[Callable[[], None]], None],
    ) -> None:
        self.config = config
        self.env = env
        self.store = store
        self.topics = topics
        self.groups = groups
        self.offsets = offsets
        self.shares = shares
        self.delay = DelayLevels(config.message_delay_level)
        self.consumers: ConsumerGroups[ServerConnection] = ConsumerGroups()
        self.producers: ProducerGroups[ServerConnection] = ProducerGroups()
        self.subscription_differences: dict[str, str] = {}
        """What members want differently, for each group whose members differ."""
        self.queue_locks = QueueLocks(config.rebalance_lock_max_live_time)
        self.skipped = SkippedRanges()
        self.when_skipped_saved: WhenSaved = lambda done: done(None)
        self.address = address
        self.host = encode_host(address)
        self.message_id_prefix = offset_message_id_prefix(self.host)
        self.started_ms = env.clock.now_ms()
        self.stats = BrokerStats(store, env.clock.now_ms, config.broker_cluster_name)
        self.uniq_ids = UniqIdFactory(
            address.rpartition(":")[0].strip("[]"),
            env.chance.getrandbits(16),
            env.chance.getrandbits(32),
            env.clock.now_ms,
        )
        self.barrier = SendBarrier(config, env.clock, store)
        self.follows_master: Callable[[], bool] = lambda: False
        """Whether this broker is a slave and connected to its master."""
        self.is_surely_master: Callable[[], bool] = lambda: True
        """Whether no other broker of the set can be the master: then locks are granted."""
        self.disk_usage = disk_usage
        self.when_registered = when_registered
        self.topics_written = files.topics_written
        self.when_topics_saved = files.when_topics_saved
        self.when_groups_saved = files.when_groups_saved
        self.when_offsets_saved = files.when_offsets_saved
        self.groups_changed = files.groups_changed
        self._topic_watchers: list[Callable[[TopicConfig], None]] = []
        self._deletion_watchers: list[Callable[[str], None]] = []

    def watch_topics(
        self,
        *,
        changed: Callable[[TopicConfig], None] | None = None,
        deleted: Callable[[str], None] | None = None,
    ) -> None:
        """Call these with each topic that is created, changed or deleted from now on."""
        if changed is not None:
            self._topic_watchers.append(changed)
        if deleted is not None:
            self._deletion_watchers.append(deleted)

    def topic_changed(self, config: TopicConfig) -> None:
        """Announce a topic that was put into `topics`."""
        for watcher in self._topic_watchers:
            watcher(config)

    def topic_deleted(self, topic: str) -> None:
        """Announce a topic that was deleted from `topics`."""
        self.shares.forget_topic(topic)
        self.skipped.forget_topic(topic)
        for watcher in self._deletion_watchers:
            watcher(topic)

    def would_topic_survive(self, topic: str) -> bool:
        """Say whether a restart would find the topic, perhaps with older settings."""
        return self.topics.made_at(topic) <= self.topics_written()

    def is_topic_saved(self, topic: str) -> bool:
        """Say whether the settings of a topic are on disk as the table has them."""
        return self.topics.changed_at(topic) <= self.topics_written()

    def random_queue(self, count: int) -> int:
        """Choose one of `count` queues; 0 for a topic without queues."""
        return self.env.chance.randrange(count) if count > 1 else 0

    def ensure_topic(self, topic: str, queue_count: int, now_ms: int) -> TopicConfig:
        """Give a retry or dead-letter topic; create and announce it if it is missing."""
        revision = self.topics.revision
        config = self.topics.ensure(topic, queue_count, now_ms)
        if self.topics.revision != revision:
            self.topic_changed(config)
        return config
