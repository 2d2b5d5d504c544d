"""Flushing the commit log: by timer (asynchronous) and by group commit (synchronous).

Job: call fdatasync in a worker at the right moments and say how far the log is on stable
storage.  It must not touch records, and never syncs on the loop.

Asynchronous (``FlushRealTimeService``): every 500 ms when at least 4 pages wait, and everything
every 10 s.  Synchronous: the first waiting put starts a flush at the end of the loop's turn, all
that come while it runs share the next one.  When the last flush answered n puts, their senders
usually send again at once; the next flush waits a moment for them (at most a quarter of what a
flush takes), so that groups do not split into small and large ones.

A flush that fails is the last one.  Linux reports a failed write-back once, then takes the pages
for clean: the next fdatasync succeeds without them, and confirming by it would lose messages.  So
the log takes no more records, who waits is told that the flush failed, and a mark stays on the
disk by which the next start knows that it must write again what the page cache still has.

Durable when: everything below `flushed` survives a power cut.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from cometmq.errors import StoreFailed
from cometmq.store.log.unsynced import mark_unsynced

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.store.base.config import StoreConfig
    from cometmq.store.base.disk import Disk, Workers
    from cometmq.store.log.commit_log import CommitLog, MappedFile

__all__ = ["CallLater", "Flusher"]

_LOG: Final = logging.getLogger("cometmq.store")
_PAGE_BYTES: Final = 4096
# Share of a flush's own time that the next one may wait for senders that were just answered.
_GATHER_SHARE: Final = 0.25
_GATHER_MS_MAX: Final = 5.0
# Of the senders expected back, this many are enough.
_GATHER_ENOUGH: Final = 0.9

if TYPE_CHECKING:
    CallLater = Callable[[float, Callable[[], None]], object]
    """`loop.call_later`: seconds, callback."""
else:
    CallLater = object


class Flusher:
    """Knows what is flushed, and flushes."""

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        workers: Workers,
        log: CommitLog,
        clock: Callable[[], int],
    ) -> None:
        self._disk = disk
        self._workers = workers
        self._log = log
        self._root = config.root
        self._clock = clock
        self._interval_ms = config.flush_interval_ms
        self._least_bytes = config.flush_least_pages * _PAGE_BYTES
        self._thorough_ms = config.flush_thorough_interval_ms
        self._timeout_ms = config.sync_flush_timeout_ms
        self._waiters: deque[tuple[int, int, Callable[[bool], None]]] = deque()
        self._call_later: CallLater | None = None
        self._is_flushing = False
        self._is_scheduled = False
        self._is_asked = False
        self._is_gathering = False
        self._is_closed = False
        self._last_ms = 0
        self._last_thorough_ms = 0
        self._expected = 0
        self._flush_ms = 0.0
        self.flushed = 0
        """Everything below this physical offset is on stable storage."""
        self.flush_count = 0
        self.on_flushed: Callable[[int], None] = lambda _: None
        """Called with `flushed` when it has moved, before waiting puts are answered."""

    def start(self, call_later: CallLater) -> None:
        """Timers exist from now on."""
        self._call_later = call_later
        self._last_ms = self._last_thorough_ms = self._clock()

    def when_durable(self, end_offset: int, callback: Callable[[bool], None]) -> None:
        """Call back with True once `end_offset` is flushed, False after the time-out."""
        if end_offset <= self.flushed:
            callback(True)
            return
        if self._is_closed or self._log.failure is not None:
            callback(False)
            return
        self._waiters.append((end_offset, self._clock() + self._timeout_ms, callback))
        self.request()

    def request(self) -> None:
        """Flush soon: at the end of this turn of the loop, or when the running one is done."""
        if self._is_closed:
            return
        if self._is_flushing:
            self._is_asked = True
            return
        if self._is_scheduled:
            if self._is_gathering and len(self._waiters) >= self._expected:
                # All that were expected are back.
                self._is_gathering = False
                self._expected = 0
                self._later(0.0)
            return
        self._is_scheduled = True
        self._later(0.0)

    def _later(self, seconds: float) -> None:
        call_later = self._call_later
        if call_later is None:
            self._run()
        else:
            call_later(seconds, self._run)

    def _run(self) -> None:
        if not self._is_scheduled or self._is_closed:
            return
        if self._is_flushing:
            # The timer was quicker; what it did not take is flushed when it is done.
            self._is_scheduled = False
            self._is_asked = True
            return
        if not self._is_gathering and len(self._waiters) < self._expected:
            # Wait for the senders the last flush answered, once.
            delay_ms = min(self._flush_ms * _GATHER_SHARE, _GATHER_MS_MAX)
            if delay_ms >= 0.5:
                self._is_gathering = True
                self._later(delay_ms / 1000)
                return
        self._is_gathering = False
        self._expected = 0
        self._is_scheduled = False
        self.flush()

    def flush(self) -> None:
        """Start a flush of everything written so far, unless one is under way."""
        target = self._log.wrote
        is_over = self._is_closed or self._log.failure is not None
        if self._is_flushing or is_over or target <= self.flushed:
            return
        self._is_flushing = True
        files = self._files_below(target)
        started_ms = self._clock()

        def done(result: object) -> None:
            self._is_flushing = False
            if self._is_closed:
                return
            if isinstance(result, BaseException):
                self._give_up(result)
                return
            self.flush_count += 1
            self._flush_ms = 0.5 * self._flush_ms + 0.5 * (self._clock() - started_ms)
            self.advance(target)

        self._workers.submit(lambda: self._sync(files), done)

    def _give_up(self, error: BaseException) -> None:
        failure = StoreFailed(
            f"{error}; what was written behind physical offset {self.flushed} may be lost, so"
            " writes are refused: look at the disk, then restart, which recovers from what is on it"
        )
        _LOG.critical("%s", failure)
        self._log.refuse(failure)
        self._fail_waiters()

    def advance(self, target: int) -> None:
        """The log is flushed up to `target`: confirm, answer, and flush on if more wait."""
        if target > self.flushed:
            self.flushed = target
            self.on_flushed(target)
        waiters = self._waiters
        answered = 0
        while waiters and waiters[0][0] <= target:
            answered += 1
            waiters.popleft()[2](True)
        # One sender gives 0: it is never waited for.
        self._expected = int((answered + len(waiters)) * _GATHER_ENOUGH)
        if waiters or self._is_asked:
            self._is_asked = False
            self.request()

    def _files_below(self, target: int) -> list[MappedFile]:
        flushed = self.flushed
        return [file for file in self._log.files if file.end > flushed and file.start < target]

    def _sync(self, files: list[MappedFile]) -> None:
        path = self._log.path
        try:
            for file in files:
                path = file.path
                file.file.sync()
                if not file.is_name_synced:
                    path = file.path.rpartition("/")[0]
                    self._disk.sync_dir(path)
                    file.is_name_synced = True
        except OSError as error:
            mark_unsynced(self._disk, self._root)
            raise StoreFailed(f"flushing {path} failed: {error.strerror or error}") from error

    def _fail_waiters(self) -> None:
        waiters = list(self._waiters)
        self._waiters.clear()
        for _, _, callback in waiters:
            callback(False)

    def tick(self, now_ms: int) -> None:
        """Timer: time out waiting puts, and flush when it is due."""
        waiters = self._waiters
        while waiters and waiters[0][1] <= now_ms:
            waiters.popleft()[2](False)
        waiting = self._log.wrote - self.flushed
        if waiting <= 0:
            return
        is_thorough = now_ms - self._last_thorough_ms >= self._thorough_ms
        is_due = now_ms - self._last_ms >= self._interval_ms and waiting >= self._least_bytes
        if is_due or is_thorough or waiters:
            self._last_ms = now_ms
            if is_thorough:
                self._last_thorough_ms = now_ms
            self.flush()

    def flush_all(self) -> None:
        """Flush everything now, in the calling thread (load and close).

        Raises StoreFailed, also when an earlier flush failed: nothing may be confirmed then.
        """
        if self._log.failure is not None:
            raise self._log.failure
        target = self._log.wrote
        self._sync(self._files_below(target))
        self.advance(target)

    def close(self) -> None:
        """Answer who still waits and start no more flushes."""
        self._is_closed = True
        self._fail_waiters()
