"""Recovery: bring log, queues and index of a store directory into agreement at load.

Job: find where the log ends, derive the units and index entries that are missing, cut what
points beyond the end.  It must not invent records, and loses none that is provably sound.

Java's way (``CommitLog.recoverNormally``/``recoverAbnormally``; store.md 2.11), used when our side
file is absent or does not fit::

    clean stop   begin at the last file whose first record the queues know
    crash        begin at the last file stored 3 s before the checkpoint's times

Ours does better where Java loses: units that are missing in the scanned part are rebuilt after a
clean stop too; a gap in a queue makes the scan begin earlier; a damaged record that is followed
by sound ones that were provably part of the log is stepped over, not the end of everything.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from cometmq.codec.consume_queue import CQ_UNIT
from cometmq.store.dispatch import queue_tags_code
from cometmq.store.log_reader import LogReader, ScannedRecord
from cometmq.store.queue_loader import QueueLoader
from cometmq.store.results import RecoveryReport

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.store.commit_log import CommitLog
    from cometmq.store.config import StoreConfig
    from cometmq.store.consume_queue import ConsumeQueues
    from cometmq.store.disk import Disk
    from cometmq.store.queue_writer import QueueWriter

__all__ = ["Recovery"]

_LOG: Final = logging.getLogger("cometmq.store")
Progress = "Callable[[str, int, int], None] | None"


class Recovery:
    """One run over one store directory."""

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        log: CommitLog,
        queues: ConsumeQueues,
        writer: QueueWriter,
        clock: Callable[[], int],
    ) -> None:
        self._config = config
        self._disk = disk
        self._log = log
        self._queues = queues
        self._writer = writer
        self._clock = clock
        self.report = RecoveryReport(mode="empty")
        self._loader = QueueLoader(disk, queues, self.report.damages)

    def run(self, progress: Callable[[str, int, int], None] | None = None) -> RecoveryReport:
        started_ms = self._clock()
        report = self.report
        self._open_log()
        self._loader.load_all(progress)
        report.mode = "normal"
        end = self._scan(self._log.min_offset)
        report.scan_end = end
        self._log.seek(end)
        for queue in self._queues:
            queue.visible = queue.max
        self._writer.write_all()
        report.elapsed_ms = self._clock() - started_ms
        return report

    def _open_log(self) -> None:
        names = [n for n in self._disk.listdir(self._log.path) if len(n) == 20 and n.isdigit()]
        for name in names:
            self._log.open_existing(int(name))

    def _scan(self, start: int) -> int:
        log = self._log
        end = log.files[-1].end if log.files else 0
        reader = LogReader(log, start, end)
        while (record := reader.next_record()) is not None:
            self._dispatch(record)
        return reader.position if log.files else start

    def _dispatch(self, record: ScannedRecord) -> None:
        topic = record.topic.decode()
        queue = self._queues.find(topic, record.queue_id)
        if queue is None:
            queue = self._queues.add(topic, record.queue_id)
        if not record.is_queued or record.queue_offset < queue.max:
            return
        code = queue_tags_code(
            record.topic, record.properties, record.store_ms, self._config.delays_ms
        )
        queue.tail += CQ_UNIT.pack(record.physical_offset, record.size, code)
        queue.max += 1
        if not queue.is_dirty:
            self._writer.mark(queue, record.physical_offset, 0)
