"""The sources of an archive: a running cluster or a store directory.

Both give queues, their bounds and the record batches of a span, and both travel to executors by
pickle.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cometmq.arrow.live import LiveCluster, QueueId
from cometmq.arrow.live_span import read_span
from cometmq.arrow.options import BATCH_ROWS_DEFAULT, ScanReport, parse_options
from cometmq.spark.live.queues import readable_queues

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["ArchiveSource", "ClusterSource", "DirectorySource"]

_CLUSTERS: dict[tuple[int, Any], LiveCluster] = {}


def _options(source: str, topic: str, columns: Iterable[str], mode: str, **limits: Any) -> Any:
    return parse_options(
        topic=topic,
        broker=source,
        queues=limits.get("queues"),
        starting_offsets=limits.get("start", "earliest"),
        ending_offsets=limits.get("end", "latest"),
        starting_timestamp=None,
        ending_timestamp=None,
        tags=None,
        columns=columns,
        include_properties=True,
        mode=mode,
        batch_rows=BATCH_ROWS_DEFAULT,
        check_crc=bool(limits.get("check_crc", False)),
    )


@dataclass(frozen=True)
class ClusterSource:
    """A running cluster.

    ``settings`` are keyword arguments of `LiveCluster`.  A secret among them travels to executors
    inside the task, and into no file.
    """

    name_server: str
    settings: tuple[tuple[str, Any], ...] = field(default=(), repr=False)

    @property
    def text(self) -> str:
        """The source in texts for people."""
        return self.name_server

    def _cluster(self) -> LiveCluster:
        """The process's client for these settings, which keeps its connections."""
        key = (os.getpid(), (self.name_server, repr(self.settings)))
        if key not in _CLUSTERS:
            _CLUSTERS[key] = LiveCluster(self.name_server, **dict(self.settings))
        return _CLUSTERS[key]

    def queues(self, topic: str) -> list[QueueId]:
        """The readable queues of a topic.

        Raises:
            NoRoute: the topic is unknown.
        """
        return sorted(readable_queues(self._cluster(), topic))

    def topics(self) -> list[str]:
        """All topics except the system's."""
        return self._cluster().topics()

    def bounds(self, queues: Iterable[QueueId]) -> dict[QueueId, tuple[int, int]]:
        """The first queue offset of each queue, and the offset after its last."""
        return self._cluster().bounds(queues)

    def batches(
        self, queue: QueueId, start: int, end: int, columns: Iterable[str], mode: str
    ) -> tuple[Iterator[Any], ScanReport]:
        """The record batches of a span, and the report that they fill."""
        report = ScanReport()
        options = _options(queue.broker, queue.topic, columns, mode)
        cluster = self._cluster()
        return read_span(cluster, queue, start, end, options, report, skip_expired=True), report


@dataclass(frozen=True)
class DirectorySource:
    """A store directory that every executor sees under the same path.

    ``broker`` is the broker's name in the archive, since a store does not know it.
    """

    path: str
    broker: str

    @property
    def text(self) -> str:
        """The source in texts for people."""
        return self.path

    def queues(self, topic: str) -> list[QueueId]:
        """The queues of a topic.

        Raises:
            StoreError: there is no store, or no such topic.
        """
        return [QueueId(topic, self.broker, queue.queue_id) for queue in self._files(topic)]

    def topics(self) -> list[str]:
        """All topics except the system's."""
        from cometmq.arrow.store_files import LogView
        from cometmq.model.names import is_system_topic

        folder = LogView(Path(self.path)).root / "consumequeue"
        names = [path.name for path in folder.iterdir() if path.is_dir()]
        # Retry and dead-letter topics begin with %, as those of light queues do.
        return sorted(name for name in names if not is_system_topic(name) and name[0] != "%")

    def bounds(self, queues: Iterable[QueueId]) -> dict[QueueId, tuple[int, int]]:
        """The first queue offset of each queue, and the offset after its last."""
        wanted = list(queues)
        bounds = {}
        for topic in {queue.topic for queue in wanted}:
            for files in self._files(topic):
                key = QueueId(topic, self.broker, files.queue_id)
                bounds[key] = (files.start, files.end)
        return {queue: bounds[queue] for queue in wanted}

    def _files(self, topic: str) -> list[Any]:
        from cometmq.arrow.store_files import LogView, queues_of

        return queues_of(LogView(Path(self.path)).root, topic)

    def batches(
        self, queue: QueueId, start: int, end: int, columns: Iterable[str], mode: str
    ) -> tuple[Iterator[Any], ScanReport]:
        """The record batches of a span, and the report that they fill."""
        from cometmq.arrow.store_scan import scan_store

        report = ScanReport()
        number = queue.queue_id
        options = _options(
            queue.broker,
            queue.topic,
            columns,
            mode,
            queues=[number],
            start={number: start},
            end={number: end},
        )
        return iter(scan_store(self.path, options, report)), report


ArchiveSource = ClusterSource | DirectorySource
