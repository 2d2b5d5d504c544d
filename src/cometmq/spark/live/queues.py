"""The queues of a live read, and its offsets as the brokers have them; without pyspark.

`cluster_of` shares connections within a process, `find_queues` resolves a subscription,
`resolve_start` and `resolve_end` turn words and times into offsets.
"""

from __future__ import annotations

import atexit
import logging
import re
from typing import TYPE_CHECKING, Final

from cometmq.arrow.live import LiveCluster, QueueId
from cometmq.arrow.options import nearest
from cometmq.errors import NoRoute, OffsetOutOfRange
from cometmq.spark.live.queue_offsets import EARLIEST, GROUP, LATEST, Offsets, from_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.spark.live.options import ConnectionOptions, LiveOptions

__all__ = [
    "Bounds",
    "close_clusters",
    "cluster_of",
    "find_queues",
    "mirror",
    "readable_queues",
    "report_loss",
    "resolve_end",
    "resolve_start",
]

_LOGGER: Final = logging.getLogger(__name__)
_CLUSTERS: Final[dict[ConnectionOptions, LiveCluster]] = {}
Bounds = dict[QueueId, tuple[int, int]]


def cluster_of(connection: ConnectionOptions) -> LiveCluster:
    """This process's client of the cluster; workers are reused, so connections stay open."""
    cluster = _CLUSTERS.get(connection)
    if cluster is None:
        cluster = _CLUSTERS[connection] = LiveCluster(
            connection.name_server,
            timeout_ms=connection.timeout_ms,
            retry_ms=connection.retry_ms,
            **connection.security.arguments(),
        )
    return cluster


def close_clusters() -> None:
    """Close this process's connections; the next use connects again."""
    while _CLUSTERS:
        _CLUSTERS.popitem()[1].close()


atexit.register(close_clusters)


def readable_queues(cluster: LiveCluster, topic: str) -> list[QueueId]:
    """The readable queues of a topic.

    Raises:
        NoRoute: the topic is unknown; the text names the nearest one.
    """
    try:
        return cluster.queues(topic)
    except NoRoute as error:
        others = cluster.topics()
        if topic in others:
            raise
        raise NoRoute(
            f"topic {topic!r} is not at {cluster.name_server}{nearest(topic, others) or '.'}"
            f" It knows {len(others)} topics"
        ) from error


def find_queues(cluster: LiveCluster, options: LiveOptions) -> list[QueueId]:
    """The subscribed queues, sorted.

    Raises:
        NoRoute: a named topic or queue does not exist; the text names the nearest topic.
    """
    if options.pattern is not None:
        wanted = re.compile(options.pattern)
        topics = tuple(topic for topic in cluster.topics() if wanted.fullmatch(topic))
    else:
        topics = options.topics
    queues: list[QueueId] = []
    for topic in topics:
        try:
            queues += readable_queues(cluster, topic)
        except NoRoute:
            if options.pattern is None:
                raise
            # The topic was deleted after it was listed.
    if options.assigned:
        existing = {tuple(queue) for queue in queues}
        missing = [queue for queue in options.assigned if queue not in existing]
        if missing:
            topic, broker, queue_id = missing[0]
            names = ", ".join(f"{q.broker}:{q.queue_id}" for q in queues if q.topic == topic)
            raise NoRoute(
                f"option assign names {broker}:{queue_id} of topic {topic!r}, which has {names}"
            )
        queues = [queue for queue in queues if tuple(queue) in set(options.assigned)]
    return sorted(queues)


def resolve_start(cluster: LiveCluster, options: LiveOptions, bounds: Bounds) -> dict[QueueId, int]:
    """The first offset of each queue; a time overrides offsets.

    Raises:
        NoRoute: an option names a queue that is not subscribed.
        OffsetOutOfRange: an offset is beyond its queue's end, or (if loss is fatal) deleted.
    """
    if options.starting_ms is not None:
        return {queue: cluster.offset_at(queue, options.starting_ms) for queue in bounds}
    if options.starting == GROUP:
        stored = cluster.committed(options.group or "", bounds)
        return {
            queue: _clipped(options, queue, stored[queue], low, high)
            for queue, (low, high) in bounds.items()
        }
    return _by_option(options, "startingOffsets", options.starting, bounds)


def resolve_end(cluster: LiveCluster, options: LiveOptions, bounds: Bounds) -> dict[QueueId, int]:
    """The end of each queue, exclusive.  Raises as `resolve_start`."""
    if options.ending_ms is not None:
        return {queue: cluster.offset_at(queue, options.ending_ms) for queue in bounds}
    return _by_option(options, "endingOffsets", options.ending, bounds)


def _by_option(
    options: LiveOptions, name: str, wanted: int | Offsets, bounds: Bounds
) -> dict[QueueId, int]:
    if isinstance(wanted, int):
        return {queue: low if wanted == EARLIEST else high for queue, (low, high) in bounds.items()}
    named = from_json(wanted)
    subscribed = {(queue.topic, queue.broker, queue.queue_id) for queue in bounds}
    unknown = [queue for queue in named if queue not in subscribed]
    if unknown:
        topic, broker, queue_id = unknown[0]
        raise NoRoute(
            f"option {name} names {broker}:{queue_id} of topic {topic!r}, which is not among the"
            f" {len(subscribed)} subscribed queues"
        )
    # A queue that the user did not name is read from its beginning, up to its end.
    default = EARLIEST if name == "startingOffsets" else LATEST
    offsets = {}
    for queue, (low, high) in bounds.items():
        value = named.get((queue.topic, queue.broker, queue.queue_id), default)
        if value == EARLIEST:
            value = low
        elif value == LATEST:
            value = high
        elif value > high:
            raise OffsetOutOfRange(
                f"option {name}: {queue} holds offsets {low} up to {high}, {value} is beyond",
                value,
                low,
                high,
            )
        elif value < low:
            report_loss(options, queue, value, low)
            value = low
        offsets[queue] = value
    return offsets


def _clipped(options: LiveOptions, queue: QueueId, stored: int | None, low: int, high: int) -> int:
    """A group's stored offset, limited to what the queue holds."""
    if stored is None:
        return low
    if stored < low:
        report_loss(options, queue, stored, low)
    return min(max(stored, low), high)


def report_loss(options: LiveOptions, queue: QueueId, start: int, first_offset: int) -> None:
    """Report messages that were deleted before they were read.

    With `failOnDataLoss=false` the report is a warning in the log.

    Raises:
        OffsetOutOfRange: `failOnDataLoss` is true.
    """
    count = first_offset - start
    loss = (
        f"{queue}: offsets {start} up to {first_offset} ({count} messages) were deleted before"
        " they were read"
        if count >= 0
        else f"{queue} ends at offset {first_offset}, but {start} was read already:"
        " the topic was deleted and created again, or a broker lost messages"
    )
    if options.is_loss_fatal:
        raise OffsetOutOfRange(
            f"{loss}; option failOnDataLoss=false continues after the gap", start, first_offset, 0
        )
    _LOGGER.warning("%s; skipped, as failOnDataLoss is false", loss)


def mirror(cluster: LiveCluster, group: str, offsets: Mapping[QueueId, int]) -> None:
    """Commit offsets to a group for lag tools; a failure is only logged.

    The stream itself relies on its checkpoint.
    """
    try:
        cluster.commit(group, offsets)
    except Exception as error:
        _LOGGER.warning(
            "group %s: the offsets of %d queues were not committed: %s", group, len(offsets), error
        )
