"""Half messages whose log file is to go: they are put back at the end of the half queue.

Each open transaction whose newest record lies below a physical offset gets a new record, as in a
check, but no check is counted.

The new record names its first place, by which a recovery takes both for one transaction, and an op
message ends the old one for a Java broker.
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


class _Unit(NamedTuple):
    place: int
    size: int
    half: HalfMessage


class PendingHalves:
    """The open transactions of a broker as retention sees them."""

    what = "half messages"

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
        """The table is in order of place, so the first ones are it."""
        store = self._state.store
        halves: list[HalfMessage] = []
        for queue_offset in self._halves.offsets():
            half = self._halves.at(queue_offset)
            if half is None or half.physical_offset >= end:
                break
            halves.append(half)

        def look() -> PendingMessages:
            found = [
                _Unit(half.physical_offset, unit.size, half)
                for half in halves
                for unit in store.units(HALF_TOPIC, 0, half.queue_offset, 1)
            ]
            return PendingMessages(
                len(found),
                sum(unit.size for unit in found),
                lambda start, stop: found[start:stop],
                # Not flushed yet with SYNC_FLUSH, so not to be read.
                len(halves) - len(found),
            )

        return look

    def prepare(self, _: int) -> Callable[[], None]:
        """Nothing: a record says itself what it was before."""
        return lambda: None

    def append(self, units: Sequence[ReadUnit]) -> int:
        """Put the new records, and an op message that ends the old ones."""
        now_ms = self._state.env.clock.now_ms()
        for unit, message in units:
            half: HalfMessage = unit.half
            if message is None or self._halves.at(half.queue_offset) is not half:
                # Settled, or put back by a check meanwhile.
                continue
            self._check.put_back(half, message, now_ms)
            self._state.store.mover.at("retention.put")
        self._ops.flush()
        return 0
