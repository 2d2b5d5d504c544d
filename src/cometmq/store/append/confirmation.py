"""Up to where readers see the log.

A message is *confirmed* at once, or after its flush with SYNC_FLUSH; in a replica set
(`StoreConfig.is_copied_first`) when the in-sync replicas have it too.  What was confirmed stays so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.store.base.config import StoreConfig
    from cometmq.store.log.commit_log import CommitLog
    from cometmq.store.log.flush import Flusher

__all__ = ["Confirmation"]


class Confirmation:
    """The confirmed offset of one store.

    Args:
        show: makes messages below a physical offset visible.
    """

    def __init__(
        self, config: StoreConfig, log: CommitLog, flusher: Flusher, show: Callable[[int], None]
    ) -> None:
        self._log = log
        self._flusher = flusher
        self._is_sync = config.is_sync_flush
        self._is_copied_first = config.is_copied_first
        self._copied = self._confirmed = 0
        self._waiters: list[tuple[int, Callable[[bool], None]]] = []
        self._is_closed = False
        self._show = show

    @property
    def offset(self) -> int:
        """Physical offset up to which readers see the log."""
        if self._is_copied_first:
            return self._confirmed
        return self._flusher.flushed if self._is_sync else self._log.wrote

    def copied(self, end: int) -> None:
        """Note that other replicas have the log up to a physical offset, which may be beyond its
        end: then they are not waited for."""
        self._copied = end
        self.advance()

    def advance(self) -> None:
        """Show what is confirmed now."""
        if not self._is_copied_first:
            self._show(self._flusher.flushed)
            return
        end = min(self._copied, self._flusher.flushed if self._is_sync else self._log.wrote)
        if end <= self._confirmed:
            return
        self._confirmed = end
        self._show(end)
        waiters = self._waiters
        if waiters:
            self._waiters = [each for each in waiters if each[0] > end]
            for wanted, callback in waiters:
                if wanted <= end:
                    callback(True)

    def go_back(self, physical_offset: int) -> None:
        """Take what lies behind a physical offset for unconfirmed, in a store just loaded."""
        self._copied = self._confirmed = physical_offset

    def when(self, end_offset: int, callback: Callable[[bool], None]) -> None:
        """See `MessageStore.when_confirmed`."""
        if not self._is_copied_first:
            self._flusher.when_durable(end_offset, callback)
        elif end_offset <= self._confirmed or self._is_closed:
            callback(not self._is_closed)
        else:
            self._waiters.append((end_offset, callback))

    def close(self) -> None:
        """Call the waiting callbacks with False."""
        self._is_closed = True
        waiters, self._waiters = self._waiters, []
        for _, callback in waiters:
            callback(False)
