"""Retention: decides which files are deleted, and when the disk is too full to write.

Age, hour and watermarks (``CleanCommitLogService``; docs/internals/store.md#retention) decide which
log files are deleted.  The queue and index files that lead only to them are deleted too.  The last
file of the log, of a queue and of the index always stays, and so does a file that is held.

A message in the oldest file may still wait for its time of delivery, or for the end of its
transaction.  It is appended again before the file is deleted (moving.py).  When that fails, the
file stays and writes are refused, with the reason.  Other users of old records hold their files
(`holds`).

=================  =============================================================================
used share         result
=================  =============================================================================
> warning (90)     writes are refused; the oldest files are deleted whatever their age
> forcibly (85)    the oldest files are deleted whatever their age; a refusal stays
> max used (75)    expired files are deleted now; a refusal ends
else               expired files are deleted at the hours of `deleteWhen`; a refusal ends
=================  =============================================================================

The share is rounded up to whole percents, as in RocketMQ.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.codec.consume_queue import CQ_UNIT_BYTES, PRE_BLANK_SIZE
from cometmq.errors import StoreError
from cometmq.model.names import is_system_topic
from cometmq.model.offsets import QueueOffset
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

__all__ = [
    "MOVES",
    "DiskUse",
    "Retention",
    "RetentionDecision",
    "RetentionEvent",
    "RetentionState",
    "decide_retention",
    "move",
]

_LOG: Final = logging.getLogger("cometmq.store")
_HOUR_MS: Final = 3_600_000
# While writes are refused, the disk is checked this often.
_FULL_INTERVAL_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class DiskUse:
    """The result of a check of the disk."""

    used_percent: int
    ages_ms: Sequence[int]
    """Ages of the oldest log files, oldest first; without the last file of the log."""


@dataclass(frozen=True, slots=True)
class RetentionDecision:
    """How many of the oldest log files are to be deleted, and whether writes are refused."""

    file_count: int
    is_full: bool
    """Whether the disk is too full to write."""
    is_forced: bool = False
    """Whether files are deleted to win space, whatever their age."""


class _Goal(NamedTuple):
    """How many log files are still to be deleted, and whether that is to win space."""

    file_count: int
    is_for_space: bool


def used_percent(total: int, used: int) -> int:
    """Return the used share in percent, rounded up; 0 for a file system without size."""
    return -(-used * 100 // total) if total > 0 else 0


def decide_retention(
    config: StoreConfig, use: DiskUse, *, hour: int, was_full: bool, is_manual: bool = False
) -> RetentionDecision:
    """Decide by the table above.

    Args:
        hour: the hour of the local day.
        was_full: whether the disk was too full to write before.
        is_manual: whether an operator asked for expired files to be deleted now.
    """
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


class RetentionState(IntFlag):
    """What retention is doing: regions that are on or off independently."""

    CHECKING = 1
    """A worker measures the disk and the files' ages."""
    FINDING = 2
    """A worker finds the first message of each queue."""
    REMOVING = 4
    """A worker removes files."""
    FULL = 8
    """The disk is above its watermark: writes are refused."""
    STUCK = 16
    """The oldest log file cannot be deleted: its pending messages could not be appended again."""


class RetentionEvent(IntEnum):
    """What happens to retention; each event turns one region on or off."""

    CHECK = 0
    CHECKED = 1
    FIND = 2
    FOUND = 3
    REMOVE = 4
    REMOVED = 5
    DISK_FILLED = 6
    DISK_FREED = 7
    FILE_STUCK = 8
    FILE_FREED = 9


MOVES: Final = {
    RetentionEvent.CHECK: (RetentionState.CHECKING, True),
    RetentionEvent.CHECKED: (RetentionState.CHECKING, False),
    RetentionEvent.FIND: (RetentionState.FINDING, True),
    RetentionEvent.FOUND: (RetentionState.FINDING, False),
    RetentionEvent.REMOVE: (RetentionState.REMOVING, True),
    RetentionEvent.REMOVED: (RetentionState.REMOVING, False),
    RetentionEvent.DISK_FILLED: (RetentionState.FULL, True),
    RetentionEvent.DISK_FREED: (RetentionState.FULL, False),
    RetentionEvent.FILE_STUCK: (RetentionState.STUCK, True),
    RetentionEvent.FILE_FREED: (RetentionState.STUCK, False),
}
"""By event: a region, and whether the event turns it on (else off)."""


def move(state: RetentionState, event: RetentionEvent) -> RetentionState:
    """Return the state after an event.

    Raises:
        RuntimeError: the region is on already, or off already.
    """
    region, turns_on = MOVES[event]
    if bool(state & region) is turns_on:
        raise RuntimeError(f"retention that is {state!r} got the event {event.name}")
    return state ^ region


class Retention:
    """Checks the disk and deletes the files of one store.

    Args:
        min_of: finds a queue's first message in the log, in a worker.
        expire_ext: deletes the expired extension files of queues, in a worker.
    """

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
        self.state = RetentionState(0)
        self._goal = _Goal(0, is_for_space=False)
        self._next_check_ms = 0
        self._is_manual = False
        """Whether an operator asked for expired files to be deleted at the next check."""
        self._removable: list[str] = []
        """Paths that the next removal deletes."""
        self._cleaned_min = -1
        """Begin of the log when queue and index files were last cleaned."""
        self._logged_hold: tuple[str, str] | None = None
        """Log file and holder of the last warning."""
        self.stuck_reason = ""
        """Why the oldest log file stays although it is to be deleted; "" when none is."""
        self.holds: dict[str, Callable[[], int | None]] = {}
        """By holder: returns the oldest physical offset that must stay, None for nothing."""
        self.used_percent = 0

    @property
    def is_full(self) -> bool:
        """Whether the disk is above its watermark: writes are refused."""
        return bool(self.state & RetentionState.FULL)

    @property
    def is_stuck(self) -> bool:
        """Whether the oldest log file stays because appending its messages again failed."""
        return bool(self.state & RetentionState.STUCK)

    def _move(self, event: RetentionEvent) -> None:
        self.state = move(self.state, event)

    def delete_expired_now(self) -> None:
        """Delete expired files at the next turn, whatever the hour (an operator asked)."""
        self._is_manual = True
        self._next_check_ms = 0

    def change(self, config: StoreConfig) -> None:
        """Decide by other settings from now on."""
        self._config = config
        self._next_check_ms = 0

    def tick(self, now_ms: int) -> None:
        """Have a worker check the disk when it is time."""
        if self.state & RetentionState.CHECKING or now_ms < self._next_check_ms:
            return
        is_urgent = self.state & (RetentionState.FULL | RetentionState.STUCK)
        interval_ms = _FULL_INTERVAL_MS if is_urgent else self._config.clean_interval_ms
        self._next_check_ms = now_ms + interval_ms
        self._move(RetentionEvent.CHECK)
        paths = [file.path for file in self._log.files[:-1]][: self._config.delete_batch_max]

        def done(result: DiskUse | BaseException) -> None:
            self._move(RetentionEvent.CHECKED)
            if isinstance(result, BaseException):
                _LOG.error("checking the disk of %s failed: %s", self._config.root, result)
            else:
                self._apply(result, paths, now_ms)

        self._workers.submit(lambda: self._check(paths, now_ms), done)

    def _check(self, paths: list[str], now_ms: int) -> DiskUse:
        percents = [
            used_percent(*self._disk.usage(path)) for path in (self._log.path, self._config.root)
        ]
        return DiskUse(max(percents), [now_ms - self._disk.mtime_ms(path) for path in paths])

    def _apply(self, use: DiskUse, paths: list[str], now_ms: int) -> None:
        # The mover may have dropped files while the worker looked: ages are of files still there.
        gone_count = sum(path < self._log.files[0].path for path in paths) if paths else 0
        use = replace(use, ages_ms=use.ages_ms[gone_count:])
        hour = datetime.fromtimestamp(now_ms / 1000, tz=UTC).astimezone().hour
        decision = decide_retention(
            self._config, use, hour=hour, was_full=self.is_full, is_manual=self._is_manual
        )
        self._is_manual = False
        self.used_percent = use.used_percent
        if decision.is_full != self.is_full:
            is_full = decision.is_full
            self._move(RetentionEvent.DISK_FILLED if is_full else RetentionEvent.DISK_FREED)
            _LOG.warning(
                "disk of %s is used to %d %%: writes are %s",
                self._config.root,
                use.used_percent,
                "refused" if is_full else "accepted again",
            )
        count = self.synced_count(decision.file_count)
        if count < decision.file_count:
            # Sync early, so that a full disk need not wait for the next round.
            self._writer.sync_round()
        self.drop_files(count, is_for_space=decision.is_forced)

    def synced_count(self, count: int) -> int:
        """Return how many of the oldest `count` log files have all their units on stable storage.

        Only these may be deleted.  Units that a power cut takes are derived from the log again.
        Without the log, the queue would end where it was synced last, and give its next message a
        queue offset that readers have already seen.  The side file must have the queue's end for
        the same reason.
        """
        synced = self._writer.recorded_position
        return sum(mapped.end <= synced for mapped in self._log.files[:count])

    def drop_files(self, count: int, *, is_for_space: bool = False) -> None:
        """Delete the oldest log files, and the queue and index files that lead only to them.

        Where no message was ever pending, they are deleted at once; else one after the other, each
        when its pending messages were appended again.
        """
        wanted = min(count, len(self._log.files) - 1)
        if self._mover.is_busy:
            # The mover still works for an earlier decision.
            self._goal = self._goal._replace(file_count=max(self._goal.file_count, wanted))
            return
        self._goal = _Goal(wanted, is_for_space)
        if not wanted:
            self._set_stuck_reason("", is_failure=False)
        self._drop()

    def _drop(self) -> None:
        paths: list[str] = []
        while self._goal.file_count > 0 and not self._mover.is_busy and not self._is_first_held():
            if not self._mover.is_needless():
                self._free_first()
                break
            paths.append(self._drop_first())
        self._dropped(paths)

    def _drop_first(self) -> str:
        mapped = self._log.drop_first_file()
        self._goal = self._goal._replace(file_count=self._goal.file_count - 1)
        self._set_stuck_reason("", is_failure=False)
        _LOG.info("log file %s expired", mapped.path)
        return mapped.path

    def _free_first(self) -> None:
        """Have the oldest file's pending messages appended again; then drop it and go on."""
        first = self._log.files[0]

        def done(result: MoveResult) -> None:
            is_first = self._log.files[0] is first and len(self._log.files) > 1
            is_wanted = is_first and self._goal.file_count > 0
            if result.is_free and is_wanted and not self._is_first_held():
                self._dropped([self._drop_first()])
                self._mover.at("retention.dropped")
                self._drop()
            elif not result.is_free:
                text = f"log file {first.path} is to go and stays: {result.reason}"
                self._set_stuck_reason(text, is_failure=result.is_failure)

        size = first.end - first.start
        self._mover.free(first.end, size, done, is_for_space=self._goal.is_for_space)

    def _set_stuck_reason(self, reason: str, *, is_failure: bool) -> None:
        """Note why the oldest log file stays, and whether writes are refused for it."""
        if is_failure != self.is_stuck:
            if is_failure:
                self._move(RetentionEvent.FILE_STUCK)
                _LOG.error("%s; writes are refused until it can go", reason)
            else:
                self._move(RetentionEvent.FILE_FREED)
                _LOG.warning("the oldest log file no longer holds up writes")
            self._next_check_ms = 0
        self.stuck_reason = reason

    def _dropped(self, paths: list[str]) -> None:
        """Remove dropped log files, and the files that lead only to them."""
        is_moved = self._cleaned_min != self._log.min_offset
        if is_moved:
            self._cleaned_min = self._log.min_offset
            paths += self._index.expire(self._log.min_offset)
        self._remove_later(paths)
        if is_moved:
            self.find_minima()

    def find_minima(self) -> None:
        """Have a worker find the first message of each queue, then delete the files before it."""
        if self.state & RetentionState.FINDING:
            return
        self._move(RetentionEvent.FIND)
        queues = list(self._queues)

        def work() -> None:
            for queue in queues:
                if not queue.is_gone:
                    self._min_of(queue)
            self._expire_ext(queues)

        def done(result: object) -> None:
            self._move(RetentionEvent.FOUND)
            if isinstance(result, BaseException):
                _LOG.error("finding the queues' first offsets failed and is repeated: %s", result)
                self._cleaned_min = -1
            else:
                self._remove_later(self._expired_queue_files())

        self._workers.submit(work, done)

    def _remove_later(self, paths: list[str]) -> None:
        """Have a worker remove files, in this order and after those of earlier calls."""
        self._removable += paths
        if not self._removable or self.state & RetentionState.REMOVING:
            return
        self._move(RetentionEvent.REMOVE)
        batch, self._removable = self._removable, []

        def done(result: list[str] | BaseException) -> None:
            self._move(RetentionEvent.REMOVED)
            has_further = bool(self._removable)
            self._removable[:0] = batch if isinstance(result, BaseException) else result
            if has_further:
                self._remove_later([])

        self._workers.submit(lambda: self._remove(batch), done)

    def clean_queues(self, forget: Callable[[ConsumeQueue], None]) -> None:
        """Remove the queues whose messages have all expired (``cleanExpired``).

        The next message of such a queue gets queue offset 0 again, so a queue at which a pull waits
        stays.  Queues of system topics stay too.

        Args:
            forget: called on the loop for each queue, before its directory is removed.
        """
        queues = [
            queue
            for queue in self._queues
            if queue.max and not (queue.tail or queue.is_watched or is_system_topic(queue.topic))
        ]
        min_physical = self._log.min_offset

        def work() -> list[tuple[ConsumeQueue, int]]:
            empty_queues: list[tuple[ConsumeQueue, int]] = []
            for queue in queues:
                end = queue.max
                unit = self._queues.unit(queue, QueueOffset(end - 1))
                is_read = unit is not None and unit.is_valid and unit.size != PRE_BLANK_SIZE
                if unit and is_read and unit.physical_offset + unit.size <= min_physical:
                    empty_queues.append((queue, end))
            return empty_queues

        def done(result: list[tuple[ConsumeQueue, int]] | BaseException) -> None:
            if isinstance(result, BaseException):
                _LOG.error("finding queues without messages failed: %s", result)
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
        """Return whether a holder needs the oldest log file; log this once for each file."""
        first = self._log.files[0]
        for holder, oldest in self.holds.items():
            physical_offset = oldest()
            if physical_offset is not None and physical_offset < first.end:
                if self._logged_hold != (first.path, holder):
                    self._logged_hold = (first.path, holder)
                    _LOG.warning(
                        "log file %s has expired and is kept: %s need it from physical offset %d"
                        " on",
                        first.path,
                        holder,
                        physical_offset,
                    )
                return True
        return False

    def _remove(self, paths: list[str]) -> list[str]:
        """Remove files in order; return those that remain.

        A file remains when it, or one before it in its directory, cannot be removed.  After each
        log file the directory is synced.  Otherwise a power cut could bring back an older file but
        not a newer one, and a log with a gap does not open.
        """
        remaining: list[str] = []
        for path in paths:
            folder = path.rpartition("/")[0]
            if any(other.startswith(f"{folder}/") for other in remaining):
                remaining.append(path)
                continue
            try:
                self._disk.remove(path)
                if folder == self._log.path:
                    self._disk.sync_dir(folder)
            except (OSError, StoreError) as error:
                remaining.append(path)
                _LOG.error(
                    "deleting %s failed and is repeated with the next files: %s", path, error
                )
        return remaining

    def _expired_queue_files(self) -> list[str]:
        """Return the queue files before the one with the queue's first message, and forget them."""
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
