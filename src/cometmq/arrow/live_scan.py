"""A topic of a running cluster as one RecordBatchReader: chooses queues and offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from cometmq.arrow.columns import schema_of
from cometmq.arrow.live import LiveCluster, QueueId
from cometmq.arrow.live_span import read_span
from cometmq.arrow.options import EARLIEST, LATEST, ScanOptions, ScanReport, nearest
from cometmq.errors import ConfigError, NoRoute, OffsetOutOfRange

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["scan_live"]

Spans = list[tuple[QueueId, int, int]]
_NAMES_MAX: Final = 5


def scan_live(
    name_server: str, options: ScanOptions, report: ScanReport, settings: dict[str, Any]
) -> Any:
    """A RecordBatchReader over a topic; see `cometmq.arrow.scan`.

    Args:
        settings: keyword arguments of LiveCluster.

    Raises:
        ConfigError, NoRoute, OffsetOutOfRange, ConnectFailed: see `cometmq.arrow.scan`.
    """
    if options.topic is None:
        raise ConfigError("a scan of a cluster needs a topic: topic='Orders'")
    schema = schema_of(options.columns)
    live = LiveCluster(name_server, **settings)
    try:
        spans = _spans(live, options.topic, options)
    except BaseException:
        live.close()
        raise
    return pa.RecordBatchReader.from_batches(schema, _batches(live, spans, options, report))


def _batches(
    live: LiveCluster, spans: Spans, options: ScanOptions, report: ScanReport
) -> Iterator[Any]:
    with live:
        for queue, start, end in spans:
            # Retention may delete messages after the bounds were read.
            yield from read_span(live, queue, start, end, options, report, skip_expired=True)


def _spans(live: LiveCluster, topic: str, options: ScanOptions) -> Spans:
    """The chosen queues, each with its first offset and the offset after its last."""
    queues = _chosen(_queues(live, topic), topic, options)
    spans: Spans = []
    for queue, (first, end_there) in live.bounds(queues).items():
        key = queue.broker, queue.queue_id
        start = _offset_of(
            key, options.starting_offset, options.starting_offsets, options.starting_by_broker
        )
        end = _offset_of(
            key, options.ending_offset, options.ending_offsets, options.ending_by_broker
        )
        names = {EARLIEST: first, LATEST: end_there}
        start, end = names.get(start, start), names.get(end, end)
        if start > end_there or end > end_there:
            raise OffsetOutOfRange(
                f"{queue} ends at offset {end_there}: starting offset {start}, ending offset {end}",
                max(start, end),
                first,
                end_there,
            )
        start = max(start, first)
        if options.starting_ms is not None:
            start = max(start, live.offset_at(queue, options.starting_ms))
        if options.ending_ms is not None:
            end = min(end, live.offset_at(queue, options.ending_ms))
        if start < end:
            spans.append((queue, start, end))
    return spans


def _queues(live: LiveCluster, topic: str) -> list[QueueId]:
    try:
        return live.queues(topic)
    except NoRoute as error:
        hint = nearest(topic, live.topics())
        raise NoRoute(f"{error}{hint}") from None


def _chosen(queues: list[QueueId], topic: str, options: ScanOptions) -> list[QueueId]:
    """The queues that the options choose; NoRoute for a named queue or broker that is missing."""
    brokers = sorted({queue.broker for queue in queues})
    wanted_brokers = {broker for broker, _ in options.starting_by_broker}
    wanted_brokers |= {broker for broker, _ in options.ending_by_broker}
    if options.broker is not None:
        wanted_brokers.add(options.broker)
    unknown = sorted(wanted_brokers.difference(brokers))
    if unknown:
        raise NoRoute(
            f"topic {topic!r} is not on a broker {unknown[0]!r}, only on"
            f" {', '.join(brokers[:_NAMES_MAX])}{nearest(unknown[0], brokers)}"
        )
    queue_ids = {queue.queue_id for queue in queues}
    named = {*(options.queues or ()), *options.starting_offsets, *options.ending_offsets}
    missing = sorted(named - queue_ids)
    if missing:
        raise NoRoute(f"topic {topic!r} has no queue {missing[0]}, only {sorted(queue_ids)}")
    return [
        queue
        for queue in queues
        if (options.queues is None or queue.queue_id in options.queues)
        and (options.broker is None or queue.broker == options.broker)
    ]


def _offset_of(
    key: tuple[str, int],
    default: int,
    by_id: dict[int, int],
    by_broker: dict[tuple[str, int], int],
) -> int:
    """The option's offset for this queue: by broker and id, else by id, else the default."""
    if key in by_broker:
        return by_broker[key]
    if any(queue_id == key[1] for _, queue_id in by_broker):
        return default
    return by_id.get(key[1], default)
