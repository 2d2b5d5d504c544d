"""What an input holds: rows and ranges of queue offsets, without Spark and without messages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from cometmq.spark.base.reach import Extent
from cometmq.spark.live.queues import readable_queues
from cometmq.spark.pipelines.inputs.address import check_exists

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cometmq.client.base.security import SecurityOptions
    from cometmq.spark.base.reach import Ranges
    from cometmq.spark.pipelines.archive.manifest import ArchiveFile
    from cometmq.spark.pipelines.inputs.address import Address

__all__ = ["Extent", "archive_ranges", "check_exists", "check_input", "topic_ranges"]

_RETRY_MS: Final = 5_000
"""A person waits for this answer."""
_FOOTERS_MAX: Final = 1_000
"""The most Parquet files whose footers are read for a row count."""


def check_input(
    address: Address,
    name_server: str,
    security: SecurityOptions | None = None,
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
) -> Extent:
    """What an address holds.

    Args:
        since_ms, until_ms: count only messages stored in between, ms since 1970.  This works for
            topics; the extent of another input is then unknown.

    Raises:
        ConnectFailed, RequestTimeout: no name server answers.
        NoRoute: the cluster has no such topic.
        ConfigError, StoreError: no such file, directory, archive, store or topic in it.
    """
    if address.kind == "topic":
        return _of_ranges(
            topic_ranges(
                [address.location], name_server, security, since_ms=since_ms, until_ms=until_ms
            )
        )
    if address.kind == "jdbc":
        return Extent()
    check_exists(address)
    extent = Extent()
    if address.kind == "store":
        extent = _of_ranges(_store_ranges(address.location, address.part))
    elif address.kind == "archive":
        from cometmq.spark.pipelines.archive.manifest import Manifest

        state = Manifest(address.location).read()
        extent = Extent(state.rows, archive_ranges(state.files.values()))
    elif address.kind == "parquet":
        extent = Extent(_footer_rows(address.location))
    return extent if since_ms is None and until_ms is None else Extent()


def _of_ranges(ranges: Ranges) -> Extent:
    return Extent(sum(end - begin for begin, end in ranges.values()), ranges)


def topic_ranges(
    topics: Iterable[str],
    name_server: str,
    security: SecurityOptions | None = None,
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
) -> Ranges:
    """The ranges of topics, or of their messages stored in [since, until).

    Raises:
        ConnectFailed, RequestTimeout, NoRoute: as `check_input`.
    """
    from cometmq.arrow.live import LiveCluster
    from cometmq.client.base.security import with_environment

    settings = with_environment(security or {})
    ranges: Ranges = {}
    with LiveCluster(name_server, retry_ms=_RETRY_MS, **settings) as cluster:
        for topic in topics:
            queues = readable_queues(cluster, topic)
            for queue, (low, high) in sorted(cluster.bounds(queues).items()):
                begin, end = low, high
                if since_ms is not None:
                    begin = min(max(begin, cluster.offset_at(queue, since_ms)), high)
                if until_ms is not None:
                    end = max(begin, min(end, cluster.offset_at(queue, until_ms)))
                ranges[f"{topic} {queue.broker}:{queue.queue_id}"] = (begin, end)
    return ranges


def _store_ranges(root: str, topic: str) -> Ranges:
    from cometmq.arrow.store_files import LogView, queues_of

    view = LogView(Path(root))
    # A store does not know its broker's name.
    return {
        f"{topic} :{queue.queue_id}": (queue.start, queue.end)
        for queue in queues_of(view.root, topic)
    }


def archive_ranges(files: Iterable[ArchiveFile]) -> Ranges:
    """The queue offsets in these files of an archive, from the first to the last of each queue."""
    ranges: Ranges = {}
    for file in files:
        for part in file.ranges:
            name = f"{file.topic} {part.broker}:{part.queue_id}"
            begin, end = ranges.get(name, (part.start, part.end))
            ranges[name] = (min(begin, part.start), max(end, part.end))
    return ranges


def _footer_rows(path: str) -> int | None:
    """Rows of Parquet files by their footers; None if Spark must report what is wrong."""
    from pyarrow import ArrowException, dataset

    if "://" in path:
        return None
    try:
        parquet = dataset.dataset(path, format="parquet", exclude_invalid_files=False)
        return int(parquet.count_rows()) if len(parquet.files) <= _FOOTERS_MAX else None
    except (OSError, ArrowException, ValueError):
        return None
