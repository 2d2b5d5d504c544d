"""The queues a live read means, and the offsets its options mean, asked of the brokers.

Job: connections shared within a process, subscriptions to queues, words and times to offsets, data
loss told or refused.  It must not import pyspark or read messages.
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
    """The cluster as this process talks to it; workers are forked and reused, sockets are kept."""
    found = _CLUSTERS.get(connection)
    if found is None:
        found = _CLUSTERS[connection] = LiveCluster(
            connection.name_server,
            timeout_ms=connection.timeout_ms,
            retry_ms=connection.retry_ms,
            **connection.security.arguments(),
        )
    return found


def close_clusters() -> None:
    """Close what this process keeps open, at its end or before; the next use connects again."""
    while _CLUSTERS:
        _CLUSTERS.popitem()[1].close()


atexit.register(close_clusters)


def readable_queues(cluster: LiveCluster, topic: str) -> list[QueueId]:
    """The readable queues of a topic; NoRoute names the nearest topic for one nobody knows."""
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
    """The queues subscribed to, sorted.

    Raises:
        NoRoute: a topic or queue that was named is not there; the text names the nearest topic.
    """
    if options.pattern is not None:
        wanted = re.compile(options.pattern)
        topics = tuple(topic for topic in cluster.topics() if wanted.fullmatch(topic))
    else:
        topics = options.topics
    found: list[QueueId] = []
    for topic in topics:
        try:
            found += readable_queues(cluster, topic)
        except NoRoute:
            if options.pattern is None:
                raise
            # Deleted since it was listed.
    if options.assigned:
        there = {tuple(queue) for queue in found}
        missing = [queue for queue in options.assigned if queue not in there]
        if missing:
            topic, broker, queue_id = missing[0]
            names = ", ".join(f"{q.broker}:{q.queue_id}" for q in found if q.topic == topic)
            raise NoRoute(
                f"option assign names {broker}:{queue_id} of topic {topic!r}, which has {names}"
            )
        found = [queue for queue in found if tuple(queue) in set(options.assigned)]
    return sorted(found)


def resolve_start(cluster: LiveCluster, options: LiveOptions, bounds: Bounds) -> dict[QueueId, int]:
    """Where each queue begins; a time wins over offsets.

    Raises:
        OffsetOutOfRange: an offset lies beyond its queue's end, or (where loss is fatal) was
            deleted already.
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
    """Where each queue ends, exclusive.  Raises as `resolve_start`."""
    if options.ending_ms is not None:
        return {queue: cluster.offset_at(queue, options.ending_ms) for queue in bounds}
    return _by_option(options, "endingOffsets", options.ending, bounds)


def _by_option(
    options: LiveOptions, name: str, wanted: int | Offsets, bounds: Bounds
) -> dict[QueueId, int]:
    if isinstance(wanted, int):
        return {queue: low if wanted == EARLIEST else high for queue, (low, high) in bounds.items()}
    named = from_json(wanted)
    there = {(queue.topic, queue.broker, queue.queue_id) for queue in bounds}
    unknown = [queue for queue in named if queue not in there]
    if unknown:
        topic, broker, queue_id = unknown[0]
        raise NoRoute(
            f"option {name} names {broker}:{queue_id} of topic {topic!r}, which is not among the"
            f" {len(there)} queues subscribed to"
        )
    # A queue the user did not name: from its beginning, up to its end.
    default = EARLIEST if name == "startingOffsets" else LATEST
    found = {}
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
        found[queue] = value
    return found


def _clipped(options: LiveOptions, queue: QueueId, stored: int | None, low: int, high: int) -> int:
    """A group's offset, if the queue still holds it."""
    if stored is None:
        return low
    if stored < low:
        report_loss(options, queue, stored, low)
    return min(max(stored, low), high)


def report_loss(options: LiveOptions, queue: QueueId, start: int, first_there: int) -> None:
    """Messages were deleted before they were read: an error, or a line in the log.

    Raises:
        OffsetOutOfRange: unless `failOnDataLoss` is false.
    """
    count = first_there - start
    what = (
        f"{queue}: offsets {start} up to {first_there} ({count} messages) were deleted before"
        " they were read"
        if count >= 0
        else f"{queue} ends at offset {first_there}, but {start} was read already:"
        " the topic was deleted and made anew, or a broker lost messages"
    )
    if options.is_loss_fatal:
        raise OffsetOutOfRange(
            f"{what}; option failOnDataLoss=false goes on behind the gap", start, first_there, 0
        )
    _LOGGER.warning("%s; skipped, as failOnDataLoss is false", what)


def mirror(cluster: LiveCluster, group: str, offsets: Mapping[QueueId, int]) -> None:
    """Show progress to lag tools; a failure is a line in the log, the stream keeps its own."""
    try:
        cluster.commit(group, offsets)
    except Exception as error:
        _LOGGER.warning("group %s was not told of %d queues: %s", group, len(offsets), error)
