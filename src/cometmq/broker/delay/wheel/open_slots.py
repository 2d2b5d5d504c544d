"""Knows which slots of the timer wheel are being delivered, and how much of each is outstanding.

It counts the messages that each slot from the read time to the last loaded one still has to
deliver, and keeps the recalls of those slots by the message that they name.

    slots    ... | read_ms  ...                open_to_ms | ...
    done with    | loaded, something outstanding          | not loaded yet

A slot is done with when its time has passed and nothing of it is outstanding.  Slots are closed in
order, so everything before `read_ms` was delivered.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from cometmq.broker.delay.wheel.fetch import Ready, Waiting, recall_keys
from cometmq.codec.timer import TIMER_ROLL

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["OpenSlots"]


class OpenSlots:
    """The open slots of one broker."""

    def __init__(self, read_ms: int, precision_ms: int) -> None:
        self.precision_ms = precision_ms
        self.read_ms = read_ms
        """The first slot that is not done with."""
        self.open_to_ms = read_ms
        """The first slot that is not loaded."""
        self.delivered_ms = -1
        """The last slot that is done with and of which something was delivered."""
        self.recalls: dict[str, Waiting] = {}
        """Recalls by the key that they name (`fetch.recall_keys`)."""
        self._outstanding: dict[int, int] = {}
        self._touched: set[int] = set()

    def expect(self, slot_ms: int, count: int) -> None:
        """Count messages of a slot that are to be delivered."""
        self._outstanding[slot_ms] = self._outstanding.get(slot_ms, 0) + count

    def done_with(self, units: Iterable[Waiting]) -> None:
        """Take messages off the count that were delivered or need not be delivered."""
        counts = Counter([unit.slot_ms for unit in units])
        for slot_ms, count in counts.items():
            self._outstanding[slot_ms] -= count
        self._touched.update(counts)

    def overdue_count(self, now_ms: int) -> int:
        """Count what is outstanding of open slots whose time has passed."""
        return sum(
            count
            for slot_ms, count in self._outstanding.items()
            if slot_ms + self.precision_ms <= now_ms
        )

    def last_touched_ms(self) -> int | None:
        """Return the last open slot of which something was delivered."""
        return max([slot_ms for slot_ms in self._touched if slot_ms >= self.read_ms], default=None)

    def close(self, now_ms: int) -> None:
        """Move on past the slots that are done with."""
        outstanding = self._outstanding
        read_ms = self.read_ms
        while read_ms < self.open_to_ms and read_ms + self.precision_ms <= now_ms:
            if outstanding.get(read_ms, 0):
                break
            outstanding.pop(read_ms, None)
            if read_ms in self._touched:
                self._touched.discard(read_ms)
                self.delivered_ms = read_ms
            read_ms += self.precision_ms
        if read_ms != self.read_ms:
            self.read_ms = read_ms
            if self.recalls:
                self.recalls = {
                    key: unit for key, unit in self.recalls.items() if unit.slot_ms >= read_ms
                }

    def is_recalled(self, ready: Ready) -> bool:
        """Whether a recall names this message.

        A recall counts for messages of its own slot only: the same id in another slot stays.
        """
        unit = ready.unit
        if unit.magic & TIMER_ROLL:
            return False
        item = ready.item
        uniq_key = item.index_keys[0] if item.index_keys else None
        keys = recall_keys(item.topic, uniq_key or "")
        recalls = [recall for key in keys if (recall := self.recalls.get(key)) is not None]
        return any(recall.slot_ms == unit.slot_ms for recall in recalls)
