"""The synchronous admin client: ``AdminCalls`` driven over blocking sockets.

Job: the names and signatures of ``Admin``, without asyncio.
Must not: contain an operation; every method runs the shared coroutine to its end, which over
`BlockingIo` never suspends.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self, Unpack

from cometmq.client.admin.calls import (
    NEVER_MS,
    QUEUE_COUNT,
    AdminCalls,
    ClusterInfo,
    OffsetRange,
    QueueProgress,
)
from cometmq.client.admin.open_transactions import OpenTransaction
from cometmq.client.base import fork
from cometmq.client.base.options import ClientOptions
from cometmq.client.base.routes import RouteBook
from cometmq.client.base.security import SecurityOptions
from cometmq.client.base.transport import BlockingIo, run_inline
from cometmq.client.extensions.growing_admin import GrowthStatus
from cometmq.client.message.message import ReceivedMessage
from cometmq.model import MessageQueue, SubscriptionGroupConfig, TopicConfig, TopicRoute
from cometmq.model.flags import PERM_READ, PERM_WRITE
from cometmq.net.env import Environment

__all__ = ["Admin"]


class Admin:
    """Topics, groups, offsets and messages of a cluster; ``with Admin(...)``.

    Arguments, names and results as those of `cometmq.Admin`.
    """

    def __init__(
        self,
        *,
        name_server: str | Sequence[str] | None = None,
        timeout_ms: int = 5_000,
        env: Environment | None = None,
        **security: Unpack[SecurityOptions],
    ) -> None:
        options = ClientOptions.of(name_server, env=env, request_timeout_ms=timeout_ms, **security)
        self._io = BlockingIo(options.env, security=options.security)
        self._calls = AdminCalls(
            self._io, RouteBook(self._io, options.name_servers, timeout_ms), timeout_ms
        )
        fork.register(self)

    def start(self) -> None:
        """Nothing to do; here for symmetry with the other clients."""

    def shutdown(self) -> None:
        """Disconnect."""
        self._io.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    def after_fork(self) -> None:
        """In a child process: leave the parent's connections alone, make new ones."""
        self._io.after_fork()

    def cluster_info(self) -> ClusterInfo:
        """All brokers and clusters."""
        return run_inline(self._calls.cluster_info())

    def broker_runtime_info(self, broker_name: str) -> dict[str, str]:
        """A broker's figures by RocketMQ's names (``brokerStatus``)."""
        return run_inline(self._calls.broker_runtime_info(broker_name))

    def broker_config(self, broker_name: str) -> str:
        """A broker's configuration as properties text."""
        return run_inline(self._calls.broker_config(broker_name))

    def open_transactions(self) -> list[OpenTransaction]:
        """Half messages of all brokers that wait for their end, the oldest first."""
        return run_inline(self._calls.open_transactions())

    def create_topic(
        self,
        topic: str,
        *,
        queue_count: int = QUEUE_COUNT,
        read_queue_count: int | None = None,
        write_queue_count: int | None = None,
        perm: int = PERM_READ | PERM_WRITE,
        order: bool = False,
        attributes: str | None = None,
        cluster: str | None = None,
        broker_name: str | None = None,
    ) -> None:
        """Create or change a topic on every master (of a cluster), or on one broker."""
        run_inline(
            self._calls.create_topic(
                topic,
                queue_count=queue_count,
                read_queue_count=read_queue_count,
                write_queue_count=write_queue_count,
                perm=perm,
                order=order,
                attributes=attributes,
                cluster=cluster,
                broker_name=broker_name,
            )
        )

    def grow_topic(
        self,
        topic: str,
        queue_count: int,
        *,
        cluster: str | None = None,
        broker_names: Iterable[str] | None = None,
    ) -> GrowthStatus:
        """Give a topic more queues on each broker, and keep the order of its message groups."""
        return run_inline(
            self._calls.grow_topic(topic, queue_count, cluster=cluster, broker_names=broker_names)
        )

    def shrink_topic(
        self,
        topic: str,
        queue_count: int,
        *,
        cluster: str | None = None,
        without: Iterable[str] = (),
    ) -> GrowthStatus:
        """Leave a topic fewer queues on each broker, and keep the order of its message groups."""
        return run_inline(
            self._calls.shrink_topic(topic, queue_count, cluster=cluster, without=without)
        )

    def close_topic_growth(self, topic: str) -> GrowthStatus:
        """Let message groups that never pause move too: their sends wait for the consumers."""
        return run_inline(self._calls.close_topic_growth(topic))

    def topic_growth(self, topic: str) -> GrowthStatus:
        """How far a topic's growth is, and which consumer groups it waits for."""
        return run_inline(self._calls.topic_growth(topic))

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic with its messages on all brokers and name servers."""
        run_inline(self._calls.delete_topic(topic, cluster=cluster))

    def topic_list(self, *, include_system: bool = False) -> list[str]:
        """Sorted names of all topics; retry, dead-letter and system topics only on request."""
        return run_inline(self._calls.topic_list(include_system=include_system))

    def topic_route(self, topic: str) -> TopicRoute:
        """Which brokers have how many queues of a topic."""
        return run_inline(self._calls.topic_route(topic))

    def topic_config(self, topic: str) -> dict[str, TopicConfig]:
        """The topic's settings by broker name."""
        return run_inline(self._calls.topic_config(topic))

    def topic_offsets(self, topic: str) -> dict[MessageQueue, OffsetRange]:
        """What each queue of a topic holds."""
        return run_inline(self._calls.topic_offsets(topic))

    def max_offset(self, queue: MessageQueue) -> int:
        """The next offset to be written."""
        return run_inline(self._calls.max_offset(queue))

    def min_offset(self, queue: MessageQueue) -> int:
        """The smallest offset that still has its message."""
        return run_inline(self._calls.min_offset(queue))

    def search_offset(
        self, queue: MessageQueue, timestamp_ms: int, *, boundary: str = "LOWER"
    ) -> int:
        """First offset stored at or after a time (LOWER), or the last at it (UPPER)."""
        return run_inline(self._calls.search_offset(queue, timestamp_ms, boundary=boundary))

    def earliest_store_time(self, queue: MessageQueue) -> int:
        """When the oldest message was stored, ms since 1970; -1 for an empty queue."""
        return run_inline(self._calls.earliest_store_time(queue))

    def group_list(self, *, include_system: bool = False) -> list[str]:
        """Sorted names of all consumer groups."""
        return run_inline(self._calls.group_list(include_system=include_system))

    def group_configs(self, group: str) -> dict[str, SubscriptionGroupConfig]:
        """The group's settings by broker name; empty if no broker knows the group."""
        return run_inline(self._calls.group_configs(group))

    def create_group(
        self,
        config: SubscriptionGroupConfig,
        *,
        cluster: str | None = None,
        broker_name: str | None = None,
    ) -> None:
        """Create or change a consumer group on every master, those of a cluster, or one.

        ``config.attributes`` are changes (``{"+name": "value"}``, ``{"-name": ""}``).
        """
        run_inline(self._calls.create_group(config, cluster=cluster, broker_name=broker_name))

    def delete_group(self, group: str, *, clean_offsets: bool = False) -> None:
        """Delete a consumer group on every master."""
        run_inline(self._calls.delete_group(group, clean_offsets=clean_offsets))

    def consumer_list(self, group: str) -> list[str]:
        """Client ids of the group's members that are online."""
        return run_inline(self._calls.consumer_list(group))

    def group_topics(self, group: str) -> list[str]:
        """Topics for which the group has stored offsets, its retry topic left out."""
        return run_inline(self._calls.group_topics(group))

    def group_offsets(
        self, group: str, topics: Iterable[str] | None = None
    ) -> dict[MessageQueue, QueueProgress]:
        """How far the group is, queue by queue, in these topics (or this one, or all it knows)."""
        return run_inline(self._calls.group_offsets(group, topics))

    def commit_offsets(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Store offsets for a group; its members must be offline, or they overwrite them."""
        run_inline(self._calls.commit_offsets(group, offsets))

    def reset_offsets(
        self, group: str, topic: str, *, timestamp_ms: int | None = None
    ) -> dict[MessageQueue, int]:
        """Move a group to a time (None: to the end) in every queue, and return the new offsets."""
        return run_inline(self._calls.reset_offsets(group, topic, timestamp_ms=timestamp_ms))

    def view_message(self, message_id: str, topic: str | None = None) -> ReceivedMessage:
        """A message by its offset message id, or, with ``topic``, by its unique id."""
        return run_inline(self._calls.view_message(message_id, topic))

    def query_message(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = 32,
        begin_ms: int = 0,
        end_ms: int = NEVER_MS,
        is_unique_id: bool = False,
    ) -> list[ReceivedMessage]:
        """Messages of a topic with a key (or unique id), oldest first."""
        return run_inline(
            self._calls.query_message(
                topic,
                key,
                count_max=count_max,
                begin_ms=begin_ms,
                end_ms=end_ms,
                is_unique_id=is_unique_id,
            )
        )
