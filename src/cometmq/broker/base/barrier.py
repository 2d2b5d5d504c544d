"""What a send waits for before it is answered: the flush (SYNC_FLUSH), slaves (SYNC_MASTER), both.

A broker has one barrier, and its kind never changes while the broker runs.  Where sends wait for
nothing, nobody asks it.  Flush and slaves work at the same time; when both are late, the answer
says so of the slaves, as RocketMQ's does.

Source: CommitLog.handleDiskFlushAndHA and GroupTransferService of RocketMQ 5.4.0.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from cometmq.broker.base.config import BrokerConfig
from cometmq.errors import ResponseCode
from cometmq.net.env import Clock

__all__ = ["SendBarrier", "late_remark"]


class Durable(Protocol):
    """What knows how far the log is flushed."""

    def when_durable(self, end_offset: int, callback: Callable[[bool], None]) -> None:
        """Call back with True when the log is flushed up to a physical offset, False too late."""


def late_remark(code: int) -> str | None:
    """Return the remark of an answer by the code that `when_passed` gave; None after a success."""
    return None if code == ResponseCode.SUCCESS else ResponseCode(code).name


class SendBarrier:
    """Tells when messages have passed.

    Args:
        store: whose flushes are waited for.
    """

    def __init__(self, config: BrokerConfig, clock: Clock, store: Durable) -> None:
        self._store = store
        self._clock = clock
        self._is_flushed = config.flush_disk_type == "SYNC_FLUSH"
        self.slave_count = config.awaited_slave_count
        """How many slaves must have a message."""
        self._is_set = config.enable_controller_mode
        self._timeout_ms = config.slave_timeout
        self._waiting: deque[tuple[int, int, Callable[[bool], None]]] = deque()
        """For each wait for slaves: end of the records, deadline in ms, callback."""
        self._acknowledged = -1
        self._timer: asyncio.TimerHandle | None = None
        self.is_waiting = self._is_flushed or self.slave_count > 0
        """Whether sends wait for anything."""
        self.kick: Callable[[], None] = lambda: None
        """Has the log sent to slaves at once."""

    @property
    def level(self) -> str | None:
        """What an answer says about messages that have passed; None where nothing is waited for."""
        levels = ["flushed"] if self._is_flushed else []
        if self.slave_count:
            levels.append(
                "replicas=in-sync" if self._is_set else f"replicas={1 + self.slave_count}"
            )
        return ",".join(levels) or None

    def when_passed(self, end_offset: int, settle: Callable[[int], None]) -> None:
        """Call back with the response code when everything before a physical offset has passed.

        FLUSH_DISK_TIMEOUT or FLUSH_SLAVE_TIMEOUT mean that it is stored and did not pass in time.
        """
        if not self.slave_count:
            self._store.when_durable(
                end_offset,
                lambda is_durable: settle(
                    ResponseCode.SUCCESS if is_durable else ResponseCode.FLUSH_DISK_TIMEOUT
                ),
            )
            return
        if not self._is_flushed:
            self._when_copied(
                end_offset,
                lambda is_copied: settle(
                    ResponseCode.SUCCESS if is_copied else ResponseCode.FLUSH_SLAVE_TIMEOUT
                ),
            )
            return
        codes: list[int] = []

        def settle_part(code: int) -> None:
            codes.append(code)
            if len(codes) == 2:
                settle(max(codes))

        self._store.when_durable(
            end_offset,
            lambda is_durable: settle_part(
                ResponseCode.SUCCESS if is_durable else ResponseCode.FLUSH_DISK_TIMEOUT
            ),
        )
        self._when_copied(
            end_offset,
            lambda is_copied: settle_part(
                ResponseCode.SUCCESS if is_copied else ResponseCode.FLUSH_SLAVE_TIMEOUT
            ),
        )

    def _when_copied(self, end_offset: int, settle: Callable[[bool], None]) -> None:
        if end_offset <= self._acknowledged:
            settle(True)
            return
        if self._waiting:
            # Waits end in order, so none may be for less than the one before.
            end_offset = max(end_offset, self._waiting[-1][0])
        self._waiting.append((end_offset, self._clock.now_ms() + self._timeout_ms, settle))
        if self._timer is None:
            self._arm(self._timeout_ms)
        self.kick()

    def acknowledged(self, end_offset: int) -> None:
        """Note that enough slaves have everything before a physical offset; -1: too few slaves."""
        self._acknowledged = end_offset
        waiting = self._waiting
        while waiting and waiting[0][0] <= end_offset:
            waiting.popleft()[2](True)

    def _arm(self, wait_ms: int) -> None:
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now_ms, waiting = self._clock.now_ms(), self._waiting
        while waiting and waiting[0][1] <= now_ms:
            waiting.popleft()[2](False)
        if waiting:
            self._arm(max(1, waiting[0][1] - now_ms))

    def stop(self) -> None:
        """Answer all waits for slaves with the time-out."""
        if self._timer is not None:
            self._timer.cancel()
        while self._waiting:
            self._waiting.popleft()[2](False)
