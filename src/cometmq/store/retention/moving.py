"""Appends the pending messages of the oldest log file again, so that the file can be deleted.

A message is pending while it waits for its time of delivery, or for the end of its transaction.
The mover asks each kind (timers, delay levels, transactions: a `PendingKind`) for its pending
messages in a file, appends them at the end of the log in portions, makes that durable, and says
when the file may be deleted.  Retention deletes it.

The steps for one file; those without a worker run on the loop::

    find, in a worker --> prepare, in a worker --> read a portion, in a worker --> append it
        --> ... --> flush the log up to its end, in a worker --> the file may go

The log is always flushed, whatever ``flushDiskType`` says, also where nothing was appended.  So
the record that replaces a message of the file (its delivery, its commit, its new copy) is on stable
storage before the file is deleted.  A crash before that leaves the file; each kind then recognises
the messages that were appended again.

Cost: to find a pending message, a few bytes are read; then its record is read and written once.
The size of the file does not matter.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from cometmq.codec.stored_message import decode_message
from cometmq.errors import CodecError, StoreCorrupt, StoreError
from cometmq.model.offsets import PhysicalOffset

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.codec.stored_message import StoredMessage
    from cometmq.store.base.disk import Workers

__all__ = ["MoveResult", "Mover", "PendingKind", "PendingMessages", "ReadUnit", "Unit"]

_LOG: Final = logging.getLogger("cometmq.store")
PORTION_COUNT: Final = 64
"""Messages appended in one turn of the loop; sends come between two portions."""
PORTION_BYTES: Final = 1 << 20
_WORTH_SHARE: Final = 2
"""To win space, a file is freed only if at most one in so many of its bytes is pending."""


class Unit(Protocol):
    """One pending message."""

    @property
    def physical_offset(self) -> int:
        """Where its record is in the log."""


class ReadUnit(NamedTuple):
    """A pending message and its record; None when the record cannot be read."""

    unit: Any
    message: StoredMessage | None


@dataclass(slots=True)
class PendingMessages:
    """The pending messages of one kind below a physical offset."""

    count: int
    byte_count: int
    units: Callable[[int, int], Sequence[Unit]]
    """Returns a slice of the messages, by first and last number; may block."""
    waiting_count: int = 0
    """Further messages that are just being delivered or added: the file waits for them."""


class PendingKind(Protocol):
    """Timers, delay levels or transactions, as retention sees them."""

    plural: str
    """How a text names several of the messages: "timed messages"."""

    def is_used(self) -> bool:
        """Return whether such a message was put since the start, or is pending."""

    def find(self, end: int) -> Callable[[], PendingMessages]:
        """Return a function that finds the pending messages below `end`, for a worker."""

    def prepare(self, end: int) -> Callable[[], None]:
        """Return a function that makes durable what `append` relies on, for a worker."""

    def append(self, units: Sequence[ReadUnit]) -> int:
        """Append messages again; return for how many of them the file still has to wait.

        Raises:
            StoreError: the store takes no more messages.
        """


class MoveResult(NamedTuple):
    """Whether a log file may be deleted."""

    is_free: bool
    reason: str = ""
    """Why it may not."""
    is_failure: bool = False
    """Whether appending failed, so that waiting alone does not help."""


@dataclass(slots=True)
class _MoveJob:
    """The work on one log file."""

    end: int
    file_bytes: int
    is_for_space: bool
    done: Callable[[MoveResult], None]
    pending: list[tuple[PendingKind, PendingMessages]]
    waiting_count: int = 0
    moved_count: int = 0


class Mover:
    """Frees one log file at a time.

    Args:
        read: returns the record at a physical offset; called in a worker.
        flush: calls its argument with True when the log is durable up to its present end.
        lifted: a context in which puts are accepted above the watermarks of the disk.
    """

    def __init__(
        self,
        workers: Workers,
        read: Callable[[PhysicalOffset], memoryview | None],
        flush: Callable[[Callable[[bool], None]], None],
        lifted: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._workers = workers
        self._read = read
        self._flush = flush
        self._lifted = lifted
        self.kinds: list[PendingKind] = []
        self.is_busy = False
        self._logged_end = -1
        """End of the last file about which a warning was logged."""
        self.moved_count = 0
        """Messages appended again since the start."""
        self.at: Callable[[str], None] = lambda name: None
        """A hook for tests, called with the name of each step; they end the process there."""

    def is_needless(self) -> bool:
        """Return whether no kind ever had a pending message, so files may be deleted at once."""
        return not any(kind.is_used() for kind in self.kinds)

    def free(
        self,
        end: int,
        file_bytes: int,
        done: Callable[[MoveResult], None],
        *,
        is_for_space: bool,
    ) -> None:
        """Append the pending messages below `end` again; `done` is called on the loop."""
        self.is_busy = True
        job = _MoveJob(end, file_bytes, is_for_space, done, [])
        searches = [(kind, kind.find(end)) for kind in self.kinds]
        self._work(
            job,
            lambda: [(kind, search()) for kind, search in searches],
            lambda results: self._searched(job, results),
        )

    def _work(self, job: _MoveJob, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Call `work` in a worker, then `then` on the loop; any error ends the job."""

        def done(result: Any) -> None:
            if isinstance(result, BaseException):
                self._fail(job, result)
                return
            try:
                then(result)
            except (StoreError, OSError) as error:
                self._fail(job, error)
            except Exception as error:
                # After an unexpected error too, the next turn tries again.
                _LOG.exception("appending again what waits below %d failed", job.end)
                self._fail(job, error)

        self._workers.submit(work, done)

    def _searched(self, job: _MoveJob, results: list[tuple[PendingKind, PendingMessages]]) -> None:
        """Decide whether appending the messages pays, and begin."""
        job.pending = [(kind, pending) for kind, pending in results if pending.count]
        job.waiting_count = sum(pending.waiting_count for _, pending in results)
        byte_count = sum(pending.byte_count for _, pending in job.pending)
        if job.is_for_space and byte_count * _WORTH_SHARE > job.file_bytes:
            reason = (
                f"{_counts(job.pending)}, {byte_count >> 10} of its {job.file_bytes >> 10} KiB,"
                " wait in it, and to append them again would free next to nothing; give the store"
                " more space, or wait until they are delivered"
            )
            if self._logged_end != job.end:
                self._logged_end = job.end
                _LOG.warning("the log file that ends at %d stays: %s", job.end, reason)
            self._end(job, MoveResult(is_free=False, reason=reason))
            return
        if not job.pending:
            self._flush_all(job)
            return
        self.at("retention.found")
        works = [kind.prepare(job.end) for kind, _ in job.pending]
        self._work(job, lambda: [work() for work in works], lambda _: self._prepared(job))

    def _prepared(self, job: _MoveJob) -> None:
        self.at("retention.prepared")
        self._next(job, 0, 0)

    def _next(self, job: _MoveJob, number: int, start: int) -> None:
        """Read the next portion of a kind, or go to the next kind."""
        if number == len(job.pending):
            self.at("retention.appended")
            self._flush_all(job)
            return
        kind, pending = job.pending[number]
        if start >= pending.count:
            self._next(job, number + 1, 0)
            return

        def read() -> list[ReadUnit]:
            return self._read_portion(
                pending.units(start, min(pending.count, start + PORTION_COUNT))
            )

        def append(portion: list[ReadUnit]) -> None:
            with self._lifted():
                waiting_count = kind.append(portion)
            job.waiting_count += waiting_count
            job.moved_count += len(portion) - waiting_count
            self.at("retention.portion")
            self._next(job, number, start + len(portion))

        self._work(job, read, append)

    def _read_portion(self, units: Sequence[Unit]) -> list[ReadUnit]:
        """Read the records of messages, up to PORTION_BYTES."""
        portion: list[ReadUnit] = []
        byte_count = 0
        for unit in units:
            message = None
            try:
                record = self._read(PhysicalOffset(unit.physical_offset))
                message = None if record is None else decode_message(record)
                byte_count += 0 if record is None else len(record)
            except (StoreCorrupt, CodecError) as error:
                _LOG.error(
                    "the pending message at physical offset %d cannot be read and is lost with its"
                    " log file: %s; run cometmq store verify on the store",
                    unit.physical_offset,
                    error,
                )
            portion.append(ReadUnit(unit, message))
            if byte_count >= PORTION_BYTES:
                break
        return portion

    def _flush_all(self, job: _MoveJob) -> None:
        """Flush the log, then say whether the file may be deleted."""

        def flushed(is_durable: bool) -> None:
            if not is_durable:
                self._fail(job, StoreError("they were not flushed in time"))
                return
            self.at("retention.flushed")
            self.moved_count += job.moved_count
            if job.moved_count:
                _LOG.info(
                    "%s below physical offset %d were appended again", _counts(job.pending), job.end
                )
            if job.waiting_count:
                reason = f"{job.waiting_count} messages in it are about to be delivered"
                self._end(job, MoveResult(is_free=False, reason=reason))
            else:
                self._end(job, MoveResult(is_free=True))

        self._flush(flushed)

    def _fail(self, job: _MoveJob, error: BaseException) -> None:
        reason = (
            f"{_counts(job.pending) or 'what waits in it'} cannot be appended again"
            f" ({job.moved_count} were): {error}"
        )
        self._end(job, MoveResult(is_free=False, reason=reason, is_failure=True))

    def _end(self, job: _MoveJob, result: MoveResult) -> None:
        self.is_busy = False
        job.done(result)


def _counts(kinds: list[tuple[PendingKind, PendingMessages]]) -> str:
    return ", ".join(f"{pending.count} {kind.plural}" for kind, pending in kinds)
