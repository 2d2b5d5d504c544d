"""Which slots of the timer wheel are being delivered, and what of them is outstanding.

Counts the messages that each slot from the read time to the last loaded one still has to deliver,
and keeps the recalls of those slots by the message they name.

    slots    ... | read_ms  ...                open_to_ms | ...
    done with    | loaded, something outstanding          | not looked at yet

A slot is done with when its time has passed and nothing of it is outstanding; only the first ones
are closed, so that `read_ms` says everything before it was delivered.
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

    __slots__ = ("_outstanding", "_touched", "left_ms", "open_to_ms", "precision_ms", "read_ms",
                 "recalls")  # fmt: skip

    def __init__(self, read_ms: int, precision_ms: int) -> None:
        self.precision_ms = precision_ms
        self.read_ms = read_ms
        """The first slot that is not done with."""
        self.open_to_ms = read_ms
        """The first slot that is not loaded."""
        self.left_ms = -1
        """The last slot something was delivered of, once it is done with."""
        self.recalls: dict[str, Waiting] = {}
        """Recalls by the key that they name (`fetch.recall_keys`)."""
        self._outstanding: dict[int, int] = {}
        self._touched: set[int] = set()

    def expect(self, slot_ms: int, count: int) -> None:
        """Count messages of a slot that are to be delivered."""
        self._outstanding[slot_ms] = self._outstanding.get(slot_ms, 0) + count

    def done_with(self, units: Iterable[Waiting]) -> None:
        """Count messages off that were delivered, or need not be."""
        counts = Counter([unit.slot_ms for unit in units])
        for slot_ms, count in counts.items():
            self._outstanding[slot_ms] -= count
        self._touched.update(counts)

    def last_touched_ms(self) -> int | None:
        """The last open slot of which something was delivered."""
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
                self.left_ms = read_ms
            read_ms += self.precision_ms
        if read_ms != self.read_ms:
            self.read_ms = read_ms
            if self.recalls:
                self.recalls = {
                    key: unit for key, unit in self.recalls.items() if unit.slot_ms >= read_ms
                }

    def is_recalled(self, ready: Ready) -> bool:
        """Whether a recall names this message.

        It names what is due in its own slot, so the same id in another one stays.
        """
        unit = ready.unit
        if unit.magic & TIMER_ROLL:
            return False
        item = ready.item
        uniq_key = item.index_keys[0] if item.index_keys else None
        keys = recall_keys(item.topic, uniq_key or "")
        found = [recall for key in keys if (recall := self.recalls.get(key)) is not None]
        return any(recall.slot_ms == unit.slot_ms for recall in found)
