"""What an input holds, seen before Spark starts, which takes seconds.

Job: rows and ranges of queue offsets of an address, or one sentence that says what is wrong with
it.  It must not start Spark or read a message.
"""

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
"""A person waits for the answer."""
_FOOTERS_MAX: Final = 1_000
"""Parquet files whose footers are asked for a row count; with more of them nobody waits for it."""


def check_input(
    address: Address,
    name_server: str,
    security: SecurityOptions | None = None,
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
) -> Extent:
    """What is at an address.

    Args:
        since_ms, until_ms: only what was stored in between, ms since 1970. For other inputs than
            topics nothing is known then but that they are there.

    Raises:
        ConnectFailed, RequestTimeout: no name server answers.
        NoRoute: the cluster has no such topic.
        ConfigError, StoreError: no such file, directory, archive, store or topic in it.
    """
    if address.kind == "topic":
        return _of_ranges(
            topic_ranges(
                [address.place], name_server, security, since_ms=since_ms, until_ms=until_ms
            )
        )
    if address.kind == "jdbc":
        return Extent()
    check_exists(address)
    found = Extent()
    if address.kind == "store":
        found = _of_ranges(_store_ranges(address.place, address.part))
    elif address.kind == "archive":
        from cometmq.spark.pipelines.archive.manifest import Manifest

        state = Manifest(address.place).read()
        found = Extent(state.rows, archive_ranges(state.files.values()))
    elif address.kind == "parquet":
        found = Extent(_footer_rows(address.place))
    return found if since_ms is None and until_ms is None else Extent()


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
    """What topics hold, or what of it was stored in [since, until).  Raises as `check_input`."""
    from cometmq.arrow.live import LiveCluster
    from cometmq.client.base.security import with_environment

    settings = with_environment(security or {})
    found: Ranges = {}
    with LiveCluster(name_server, retry_ms=_RETRY_MS, **settings) as cluster:
        for topic in topics:
            queues = readable_queues(cluster, topic)
            for queue, (low, high) in sorted(cluster.bounds(queues).items()):
                begin, end = low, high
                if since_ms is not None:
                    begin = min(max(begin, cluster.offset_at(queue, since_ms)), high)
                if until_ms is not None:
                    end = max(begin, min(end, cluster.offset_at(queue, until_ms)))
                found[f"{topic} {queue.broker}:{queue.queue_id}"] = (begin, end)
    return found


def _store_ranges(place: str, topic: str) -> Ranges:
    from cometmq.arrow.store_files import LogView, queues_of

    root = LogView(Path(place)).root
    # A store does not know its broker's name.
    return {f"{topic} :{one.queue_id}": (one.start, one.end) for one in queues_of(root, topic)}


def archive_ranges(files: Iterable[ArchiveFile]) -> Ranges:
    """Queue offsets that some files of an archive hold, from the first to the last of a queue."""
    found: Ranges = {}
    for file in files:
        for part in file.ranges:
            name = f"{file.topic} {part.broker}:{part.queue_id}"
            begin, end = found.get(name, (part.start, part.end))
            found[name] = (min(begin, part.start), max(end, part.end))
    return found


def _footer_rows(place: str) -> int | None:
    """Rows of Parquet files by their footers; None where Spark shall say what is wrong."""
    from pyarrow import ArrowException, dataset

    if "://" in place:
        return None
    try:
        found = dataset.dataset(place, format="parquet", exclude_invalid_files=False)
        return int(found.count_rows()) if len(found.files) <= _FOOTERS_MAX else None
    except (OSError, ArrowException, ValueError):
        return None
