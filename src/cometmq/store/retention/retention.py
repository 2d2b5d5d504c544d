"""Retention: which files go, when, and when the disk is too full to write.

Job: decide by age, hour and watermarks (``CleanCommitLogService``; store.md 2.12) which log files
expire, and have what points only at them deleted too.  It must not delete the last file of
anything, nor a file somebody holds, nor touch the log's content.

What still waits in the oldest file, for a time of delivery or for the end of a transaction, is
appended again before the file goes (`moving`).  When that cannot be done the file stays and writes
are refused, with the reason.  Some hold their files instead (`holds`).

=================  =============================================================================
used share         what happens
=================  =============================================================================
> warning (90)     writes are refused; oldest files go whatever their age
> forcibly (85)    oldest files go whatever their age; refusal stays as it is
> max used (75)    expired files go now
else               expired files go at the hours of `deleteWhen`; refusal ends at <= forcibly
=================  =============================================================================

The share is rounded up to whole percents, as upstream does.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from cometmq.codec.consume_queue import CQ_UNIT_BYTES, PRE_BLANK_SIZE
from cometmq.errors import StoreError
from cometmq.model.names import is_system_topic
from cometmq.store.log.commit_log import log_file_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.store.base.config import StoreConfig
    from cometmq.store.base.disk import Disk, Workers
    from cometmq.store.index.service import IndexService
    from cometmq.store.log.commit_log import CommitLog
    from cometmq.store.queue.consume_queue import ConsumeQueue, ConsumeQueues
    from cometmq.store.queue.writer import QueueWriter
    from cometmq.store.retention.moving import Mover, MoveResult

__all__ = ["DiskUse", "Retention", "RetentionDecision", "decide_retention"]

_LOG: Final = logging.getLogger("cometmq.store")
_HOUR_MS: Final = 3_600_000
# While writes are refused, space is looked at this often.
_FULL_INTERVAL_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class DiskUse:
    """What a worker found out: used share in percent, age of the oldest files in ms."""

    used_percent: int
    ages_ms: Sequence[int]


@dataclass(frozen=True, slots=True)
class RetentionDecision:
    """How many of the oldest log files go, and whether writes are refused."""

    file_count: int
    is_full: bool
    is_forced: bool = False
    """Files go for want of space, whatever their age."""


def used_percent(total: int, used: int) -> int:
    """Used share in percent, rounded up; 0 for a file system without size."""
    return -(-used * 100 // total) if total > 0 else 0


def decide_retention(
    config: StoreConfig, use: DiskUse, *, hour: int, was_full: bool, is_manual: bool = False
) -> RetentionDecision:
    """See the table above; `ages_ms` must not include the last file."""
    is_full = use.used_percent > config.disk_warning_percent or (
        was_full and use.used_percent > config.disk_clean_forcibly_percent
    )
    is_forced = use.used_percent > config.disk_clean_forcibly_percent and config.is_clean_forced
    is_time = hour in config.delete_when or is_manual
    if not (is_time or is_forced or use.used_percent > config.disk_used_percent_max):
        return RetentionDecision(0, is_full, is_forced)
    reserved_ms = config.file_reserved_hours * _HOUR_MS
    count = 0
    for age_ms in use.ages_ms[: config.delete_batch_max]:
        if not is_forced and age_ms <= reserved_ms:
            break
        count += 1
    return RetentionDecision(count, is_full, is_forced)


class Retention:
    """Carries the decisions out."""

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        workers: Workers,
        log: CommitLog,
        queues: ConsumeQueues,
        writer: QueueWriter,
        index: IndexService,
        min_of: Callable[[ConsumeQueue], int],
        expire_ext: Callable[[list[ConsumeQueue]], None],
        mover: Mover,
    ) -> None:
        self._config = config
        self._disk = disk
        self._workers = workers
        self._log = log
        self._queues = queues
        self._writer = writer
        self._index = index
        self._min_of = min_of
        self._expire_ext = expire_ext
        self._mover = mover
        self._left = 0
        self._is_for_space = False
        self._next_ms = 0
        self._is_looking = False
        self._is_finding = False
        self._is_manual = False
        self._is_removing = False
        self._leaving: list[str] = []
        self._cleaned_min = -1
        self._told_held: tuple[str, str] | None = None
        self.kept = ""
        """Why the oldest log file stays although it is to go; "" when none does."""
        self.is_stuck = False
        """Whether it stays because what waits in it could not be appended again."""
        self.holds: dict[str, Callable[[], int | None]] = {}
        """By what needs it: the oldest physical offset that must stay, None for nothing."""
        self.is_full = False
        """Whether the disk is above its watermark: writes are refused."""
        self.used_percent = 0

    def delete_expired_now(self) -> None:
        """Let expired files go at the next turn, whatever the hour (an operator asked)."""
        self._is_manual = True
        self._next_ms = 0

    def change(self, config: StoreConfig) -> None:
        """Decide by other settings from now on."""
        self._config = config
        self._next_ms = 0

    def tick(self, now_ms: int) -> None:
        """Look at the disk when it is time."""
        if self._is_looking or now_ms < self._next_ms:
            return
        is_urgent = self.is_full or self.is_stuck
        interval_ms = _FULL_INTERVAL_MS if is_urgent else self._config.clean_interval_ms
        self._next_ms = now_ms + interval_ms
        self._is_looking = True
        paths = [file.path for file in self._log.files[:-1]][: self._config.delete_batch_max]

        def done(result: DiskUse | BaseException) -> None:
            self._is_looking = False
            if isinstance(result, BaseException):
                _LOG.error("looking at the disk of %s failed: %s", self._config.root, result)
            else:
                self._apply(result, now_ms)

        self._workers.submit(lambda: self._look(paths, now_ms), done)

    def _look(self, paths: list[str], now_ms: int) -> DiskUse:
        percents = [
            used_percent(*self._disk.usage(path)) for path in (self._log.path, self._config.root)
        ]
        return DiskUse(max(percents), [now_ms - self._disk.mtime_ms(path) for path in paths])

    def _apply(self, use: DiskUse, now_ms: int) -> None:
        hour = datetime.fromtimestamp(now_ms / 1000, tz=UTC).astimezone().hour
        decision = decide_retention(
            self._config, use, hour=hour, was_full=self.is_full, is_manual=self._is_manual
        )
        self._is_manual = False
        self.used_percent = use.used_percent
        if decision.is_full != self.is_full:
            self.is_full = decision.is_full
            _LOG.warning(
                "disk of %s is used to %d %%: writes are %s",
                self._config.root,
                use.used_percent,
                "refused" if decision.is_full else "accepted again",
            )
        count = self.synced_count(decision.file_count)
        if count < decision.file_count:
            # Earlier than its time, so that a full disk need not wait for it.
            self._writer.sync_round()
        self.drop_files(count, is_for_space=decision.is_forced)

    def synced_count(self, count: int) -> int:
        """How many of so many oldest files may go: those whose units are on stable storage.

        Units that a power cut takes are made again from the log; without it a queue would end where
        it was synced last, and give its next message a number that readers know already.  So it
        would with a side file that does not know the queue's end yet.
        """
        synced = self._writer.recorded_position
        return sum(mapped.end <= synced for mapped in self._log.files[:count])

    def drop_files(self, count: int, *, is_for_space: bool = False) -> None:
        """Delete the oldest log files, then what pointed only at them.

        At once where nothing ever waits for its time, else file by file as each becomes free.
        """
        wanted = min(count, len(self._log.files) - 1)
        if self._mover.is_busy:
            # What was decided before is still being done.
            self._left = max(self._left, wanted)
            return
        self._left = wanted
        self._is_for_space = is_for_space
        if not self._left:
            self._keep("", is_stuck=False)
        self._drop()

    def _drop(self) -> None:
        paths: list[str] = []
        while self._left > 0 and not self._mover.is_busy and not self._is_first_held():
            if not self._mover.is_needless():
                self._free_first()
                break
            paths.append(self._drop_first())
        self._dropped(paths)

    def _drop_first(self) -> str:
        mapped = self._log.drop_first_file()
        self._left -= 1
        self._keep("", is_stuck=False)
        _LOG.info("log file %s expired", mapped.path)
        return mapped.path

    def _free_first(self) -> None:
        """Have what waits in the oldest file appended again; then it goes, and the next one."""
        first = self._log.files[0]

        def done(result: MoveResult) -> None:
            is_first = self._log.files[0] is first and len(self._log.files) > 1
            if result.is_free and is_first and self._left > 0 and not self._is_first_held():
                self._dropped([self._drop_first()])
                self._mover.at("retention.dropped")
                self._drop()
            elif not result.is_free:
                text = f"log file {first.path} is to go and stays: {result.reason}"
                self._keep(text, is_stuck=result.is_failure)

        size = first.end - first.start
        self._mover.free(first.end, size, done, is_for_space=self._is_for_space)

    def _keep(self, text: str, *, is_stuck: bool) -> None:
        if is_stuck != self.is_stuck:
            if is_stuck:
                _LOG.error("%s; writes are refused until it can go", text)
            else:
                _LOG.warning("the oldest log file holds up writes no more")
            self._next_ms = 0
        self.kept, self.is_stuck = text, is_stuck

    def _dropped(self, paths: list[str]) -> None:
        """Remove log files and what points only at them."""
        is_moved = self._cleaned_min != self._log.min_offset
        if is_moved:
            self._cleaned_min = self._log.min_offset
            paths += self._index.expire(self._log.min_offset)
        self._remove_later(paths)
        if is_moved:
            self.find_minima()

    def find_minima(self) -> None:
        """Let a worker find where queues begin now, then delete files in front of that."""
        if self._is_finding:
            return
        self._is_finding = True
        queues = list(self._queues)

        def work() -> None:
            for queue in queues:
                if not queue.is_gone:
                    self._min_of(queue)
            self._expire_ext(queues)

        def done(result: object) -> None:
            self._is_finding = False
            if isinstance(result, BaseException):
                _LOG.error("finding the queues' first offsets failed: %s; tried again", result)
                self._cleaned_min = -1
            else:
                self._remove_later(self._expired_queue_files())

        self._workers.submit(work, done)

    def _remove_later(self, paths: list[str]) -> None:
        """Have files removed, in this order and after those of earlier calls."""
        self._leaving += paths
        if not self._leaving or self._is_removing:
            return
        self._is_removing = True
        leaving, self._leaving = self._leaving, []

        def done(result: list[str] | BaseException) -> None:
            self._is_removing = False
            is_new = bool(self._leaving)
            self._leaving[:0] = leaving if isinstance(result, BaseException) else result
            if is_new:
                self._remove_later([])

        self._workers.submit(lambda: self._remove(leaving), done)

    def clean_queues(self, forget: Callable[[ConsumeQueue], None]) -> None:
        """Remove the queues all of whose messages are gone (``cleanExpired``); system topics stay.

        A worker looks; `forget` is called on the loop for each, before its directory goes.  The
        next message of such a queue begins at offset 0 again, so a queue somebody waits at stays.
        """
        queues = [
            queue
            for queue in self._queues
            if queue.max and not (queue.tail or queue.is_watched or is_system_topic(queue.topic))
        ]
        min_physical = self._log.min_offset

        def work() -> list[tuple[ConsumeQueue, int]]:
            found: list[tuple[ConsumeQueue, int]] = []
            for queue in queues:
                end = queue.max
                unit = self._queues.unit(queue, end - 1)
                is_read = unit is not None and unit.is_valid and unit.size != PRE_BLANK_SIZE
                if unit and is_read and unit.physical_offset + unit.size <= min_physical:
                    found.append((queue, end))
            return found

        def done(result: list[tuple[ConsumeQueue, int]] | BaseException) -> None:
            if isinstance(result, BaseException):
                _LOG.error("looking for queues without messages failed: %s", result)
                return
            for queue, end in result:
                if queue.max == end and not (queue.is_gone or queue.is_watched):
                    self._remove_queue(queue, forget)

        self._workers.submit(work, done)

    def _remove_queue(self, queue: ConsumeQueue, forget: Callable[[ConsumeQueue], None]) -> None:
        _LOG.info("%s: all its messages are gone; removed", queue.path)
        forget(queue)
        queue.is_gone = True
        queues = self._queues.topics[queue.topic]
        del queues[queue.queue_id]
        self._queues.forget_files(queue.path)
        self._writer.remove(queue.path)
        if not queues:
            del self._queues.topics[queue.topic]
            self._writer.remove(queue.path.rpartition("/")[0])

    def _is_first_held(self) -> bool:
        """Whether somebody still needs the oldest log file; says so once for each file."""
        first = self._log.files[0]
        for what, oldest in self.holds.items():
            place = oldest()
            if place is not None and place < first.end:
                if self._told_held != (first.path, what):
                    self._told_held = (first.path, what)
                    _LOG.warning(
                        "log file %s has expired and is kept: %s need it from physical offset %d"
                        " on",
                        first.path,
                        what,
                        place,
                    )
                return True
        return False

    def _remove(self, paths: list[str]) -> list[str]:
        """Remove files; those that are left, since one of their folder cannot be removed.

        A log with a gap does not open, so the name of a log file is gone for good before the next
        one goes: a power cut may bring back what was removed first and not what followed.
        """
        left: list[str] = []
        for path in paths:
            folder = path.rpartition("/")[0]
            if any(other.startswith(f"{folder}/") for other in left):
                left.append(path)
                continue
            try:
                self._disk.remove(path)
                if folder == self._log.path:
                    self._disk.sync_dir(folder)
            except (OSError, StoreError) as error:
                left.append(path)
                _LOG.error("deleting %s failed: %s; tried again with the next files", path, error)
        return left

    def _expired_queue_files(self) -> list[str]:
        """Queue files in front of the one that holds the queue's first message."""
        file_bytes = self._queues.file_bytes
        paths: list[str] = []
        for queue in self._queues:
            if queue.written * CQ_UNIT_BYTES - queue.first_start <= file_bytes:
                continue
            last_start = (queue.written - 1) * CQ_UNIT_BYTES // file_bytes * file_bytes
            first_needed = queue.min * CQ_UNIT_BYTES // file_bytes * file_bytes
            while queue.first_start < min(first_needed, last_start):
                paths.append(f"{queue.path}/{log_file_name(queue.first_start)}")
                queue.first_start += file_bytes
        for path in paths:
            self._queues.forget_files(path.rpartition("/")[0])
        return paths
