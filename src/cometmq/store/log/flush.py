"""Flushes the commit log: by a timer (asynchronous) or by group commit (synchronous).

The flusher has a worker call fdatasync, and records up to which physical offset the log is on
stable storage (`flushed`).

Asynchronous (``FlushRealTimeService``): every 500 ms if at least 4 pages wait, and every 10 s
whatever waits.  Synchronous: the first waiting put starts a flush at the end of the loop's turn;
all puts that arrive while it runs share the next flush.  The senders of puts that a flush has
answered usually send again at once, so the next flush waits for them, for a quarter of the duration
of a flush at most.  Without that wait, small and large groups would alternate.

After a flush has failed there is no other.  Linux reports a failed write-back once and then counts
the pages as clean: the next fdatasync succeeds without them, and confirming by it would lose
messages.  So the log refuses records, every waiting put gets a failure, and a mark stays on the
disk (unsynced.py), by which the next start writes the end of the log again.

Durable when: everything below `flushed` survives a power cut.
"""

from __future__ import annotations

import logging
from collections import deque
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from cometmq.errors import StoreFailed
from cometmq.store.log.unsynced import mark_unsynced

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.store.base.config import StoreConfig
    from cometmq.store.base.disk import Disk, Workers
    from cometmq.store.log.commit_log import CommitLog, MappedFile

__all__ = ["MOVES", "CallLater", "FlushEvent", "FlushState", "Flusher", "move"]

_LOG: Final = logging.getLogger("cometmq.store")
_PAGE_BYTES: Final = 4096
# The share of a flush's duration for which the next flush waits for senders.
_GATHER_SHARE: Final = 0.25
_GATHER_MS_MAX: Final = 5.0
# The share of the answered senders for which the next flush waits.
_GATHER_ENOUGH: Final = 0.9

if TYPE_CHECKING:
    CallLater = Callable[[float, Callable[[], None]], object]
    """`loop.call_later`: seconds, callback."""
else:
    CallLater = object


class FlushState(IntEnum):
    """What a flusher is doing."""

    IDLE = 0
    SCHEDULED = 1
    """A flush starts at the end of this turn of the loop."""
    GATHERING = 2
    """A timer starts a flush; until then senders may join it."""
    FLUSHING = 3
    """A worker syncs."""
    FLUSHING_AGAIN = 4
    """A worker syncs, and another flush follows."""
    BROKEN = 5
    """A flush has failed; no other begins."""
    CLOSED = 6
    """No flush begins."""


class FlushEvent(IntEnum):
    """What happens to a flusher."""

    REQUEST = 0
    """Something waits for a flush."""
    GATHER = 1
    """Senders that were just answered are expected back."""
    GATHERED = 2
    """All expected senders are back."""
    RUN = 3
    """A scheduled callback arrives, maybe after another flush has done its work."""
    START = 4
    """A worker begins to sync."""
    SYNCED = 5
    FAIL = 6
    CLOSE = 7


def _moves() -> dict[tuple[FlushState, FlushEvent], FlushState]:
    state, event = FlushState, FlushEvent
    moves = {(any_state, event.CLOSE): state.CLOSED for any_state in state}
    # A callback that comes late, and a request after another one, change nothing.
    moves |= {(same, event.REQUEST): same for same in state}
    moves |= {(same, event.RUN): same for same in state}
    for pending in (state.SCHEDULED, state.GATHERING):
        moves[pending, event.RUN] = state.IDLE
        moves[pending, event.START] = state.FLUSHING_AGAIN
    for busy in (state.FLUSHING, state.FLUSHING_AGAIN):
        moves[busy, event.SYNCED] = state.IDLE
        moves[busy, event.FAIL] = state.BROKEN
    return moves | {
        (state.IDLE, event.REQUEST): state.SCHEDULED,
        (state.IDLE, event.START): state.FLUSHING,
        (state.IDLE, event.GATHER): state.GATHERING,
        (state.GATHERING, event.GATHERED): state.SCHEDULED,
        (state.FLUSHING, event.REQUEST): state.FLUSHING_AGAIN,
        (state.CLOSED, event.SYNCED): state.CLOSED,
        (state.CLOSED, event.FAIL): state.CLOSED,
    }


MOVES: Final = _moves()
"""The next state by state and event; no other pair may occur."""


def move(state: FlushState, event: FlushEvent) -> FlushState:
    """Return the state after an event.

    Raises:
        RuntimeError: the event cannot occur in this state.
    """
    following = MOVES.get((state, event))
    if following is None:
        raise RuntimeError(f"a flusher that is {state.name} got the event {event.name}")
    return following


_CANNOT_START: Final = frozenset(
    {FlushState.FLUSHING, FlushState.FLUSHING_AGAIN, FlushState.BROKEN, FlushState.CLOSED}
)


class Flusher:
    """Flushes one commit log.

    Args:
        on_flushed: called with `flushed` when it has grown, before waiting puts are answered.
    """

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        workers: Workers,
        log: CommitLog,
        clock: Callable[[], int],
        on_flushed: Callable[[int], None],
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
        """For each waiting put: end of its records, deadline in ms, callback."""
        self._call_later: CallLater | None = None
        self.state = FlushState.IDLE
        self._last_ms = 0
        self._last_thorough_ms = 0
        self._expected_count = 0
        """How many puts the next flush waits for."""
        self._flush_ms = 0.0
        self.flushed = 0
        """Everything below this physical offset is on stable storage."""
        self.flush_count = 0
        self.took: Callable[[int], None] = lambda milliseconds: None
        """Hears how long each flush took."""
        self._on_flushed = on_flushed

    def start(self, call_later: CallLater) -> None:
        """Use timers from now on."""
        self._call_later = call_later
        self._last_ms = self._last_thorough_ms = self._clock()

    def when_durable(self, end_offset: int, callback: Callable[[bool], None]) -> None:
        """Call back with True when the log is flushed up to `end_offset`, with False too late."""
        if end_offset <= self.flushed:
            callback(True)
            return
        if self.state is FlushState.CLOSED or self._log.failure is not None:
            callback(False)
            return
        self._waiters.append((end_offset, self._clock() + self._timeout_ms, callback))
        self.request()

    def request(self) -> None:
        """Flush at the end of this turn of the loop, or after the flush under way."""
        before = self.state
        self.state = move(before, FlushEvent.REQUEST)
        if before is FlushState.IDLE:
            self._later(0.0)
        elif before is FlushState.GATHERING and len(self._waiters) >= self._expected_count:
            self.state = move(before, FlushEvent.GATHERED)
            self._expected_count = 0
            self._later(0.0)

    def _later(self, seconds: float) -> None:
        call_later = self._call_later
        if call_later is None:
            self._run()
        else:
            call_later(seconds, self._run)

    def _run(self) -> None:
        before = self.state
        self.state = move(before, FlushEvent.RUN)
        if before is self.state:
            return
        if before is FlushState.SCHEDULED and len(self._waiters) < self._expected_count:
            # Wait once for the senders that the last flush has answered.
            delay_ms = min(self._flush_ms * _GATHER_SHARE, _GATHER_MS_MAX)
            if delay_ms >= 0.5:
                self.state = move(self.state, FlushEvent.GATHER)
                self._later(delay_ms / 1000)
                return
        self._expected_count = 0
        self.flush()

    def flush(self) -> None:
        """Start a flush of everything written so far, unless one is under way."""
        target = self._log.wrote
        if self.state in _CANNOT_START or self._log.failure is not None or target <= self.flushed:
            return
        self.state = move(self.state, FlushEvent.START)
        files = self._files_below(target)
        started_ms = self._clock()

        def done(result: object) -> None:
            before = self.state
            if isinstance(result, BaseException):
                self.state = move(before, FlushEvent.FAIL)
                if before is not FlushState.CLOSED:
                    self._give_up(result)
                return
            self.state = move(before, FlushEvent.SYNCED)
            if before is FlushState.CLOSED:
                return
            self.flush_count += 1
            took_ms = self._clock() - started_ms
            self._flush_ms = 0.5 * self._flush_ms + 0.5 * took_ms
            self.took(took_ms)
            self._advance(target)
            if self._waiters or before is FlushState.FLUSHING_AGAIN:
                self.request()

        self._workers.submit(lambda: self._sync(files), done)

    def _give_up(self, error: BaseException) -> None:
        """After a failed flush, refuse records and answer the waiting puts."""
        failure = StoreFailed(
            f"{error}; what was written behind physical offset {self.flushed} may be lost, so"
            " writes are refused: look at the disk, then restart, which recovers from what is on it"
        )
        _LOG.critical("%s", failure)
        self._log.refuse(failure)
        self._fail_waiters()

    def _advance(self, target: int) -> None:
        """Note that the log is flushed up to `target`, and answer the puts below it."""
        if target > self.flushed:
            self.flushed = target
            self._on_flushed(target)
        waiters = self._waiters
        answered = 0
        while waiters and waiters[0][0] <= target:
            answered += 1
            waiters.popleft()[2](True)
        # With a single sender this is 0, so no flush waits for it.
        self._expected_count = int((answered + len(waiters)) * _GATHER_ENOUGH)

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
        """Answer the puts whose deadline has passed, and flush if that is due."""
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

        Raises:
            StoreFailed: this flush or an earlier one has failed.
        """
        if self._log.failure is not None:
            raise self._log.failure
        target = self._log.wrote
        self._sync(self._files_below(target))
        self._advance(target)
        if self._waiters:
            self.request()

    def close(self) -> None:
        """Answer the waiting puts with False, and begin no more flushes."""
        self.state = move(self.state, FlushEvent.CLOSE)
        self._fail_waiters()
