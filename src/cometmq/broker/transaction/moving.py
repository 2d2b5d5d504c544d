"""Puts half messages back at the end of the half queue, so that their log file can go.

Each open transaction whose newest record lies below a physical offset gets a new record.  It is as
in a check-back, but no check is counted.

The new record names the first queue offset of the half message, so a recovery takes both records
for one transaction.  An op message ends the old record for a Java broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cometmq.model.names import HALF_TOPIC
from cometmq.store.retention.moving import PendingMessages, ReadUnit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.broker.base.state import BrokerState
    from cometmq.broker.transaction.check_back import CheckBack
    from cometmq.broker.transaction.ops import OpWriter
    from cometmq.core.transaction.open_transactions import HalfMessage, OpenHalves

__all__ = ["PendingHalves"]


class _HalfRecord(NamedTuple):
    """The newest record of an open transaction."""

    physical_offset: int
    size: int
    half: HalfMessage


class PendingHalves:
    """The open transactions of a broker as retention sees them."""

    plural = "half messages"

    def __init__(
        self, state: BrokerState, halves: OpenHalves, ops: OpWriter, check: CheckBack
    ) -> None:
        self._state = state
        self._halves = halves
        self._ops = ops
        self._check = check

    def is_used(self) -> bool:
        """Whether there ever was a half message."""
        return bool(self._state.store.end_of_queue(HALF_TOPIC, 0))

    def find(self, end: int) -> Callable[[], PendingMessages]:
        """Prepare the search: the table is in log order, so the first half messages are meant."""
        store = self._state.store
        halves: list[HalfMessage] = []
        for queue_offset in self._halves.offsets():
            half = self._halves.at(queue_offset)
            if half is None or half.physical_offset >= end:
                break
            halves.append(half)

        def search() -> PendingMessages:
            records = [
                _HalfRecord(half.physical_offset, unit.size, half)
                for half in halves
                for unit in store.units(HALF_TOPIC, 0, half.queue_offset, 1)
            ]
            return PendingMessages(
                len(records),
                sum(record.size for record in records),
                lambda start, stop: records[start:stop],
                # With SYNC_FLUSH a half message that is not flushed yet cannot be read.
                len(halves) - len(records),
            )

        return search

    def prepare(self, _: int) -> Callable[[], None]:
        """Prepare nothing: a new record itself says which half message it is."""
        return lambda: None

    def append(self, units: Sequence[ReadUnit]) -> int:
        """Put a new record for each half message, and an op message that ends the old ones."""
        now_ms = self._state.env.clock.now_ms()
        for unit, message in units:
            half: HalfMessage = unit.half
            if message is None or self._halves.at(half.queue_offset) is not half:
                # It was ended, or a check-back has put it back.
                continue
            self._check.put_back(half, message, now_ms)
            self._state.store.mover.at("retention.put")
        self._ops.flush()
        return 0
