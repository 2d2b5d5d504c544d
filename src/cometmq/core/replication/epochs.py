"""The epochs of a log, and where two logs part.

Each mastership of a replica set has a number, and its records are one range of the log.  Two logs
of one set are equal up to the end of the last epoch that both have with the same start; what a
replica has behind that was never acknowledged, and is cut before it follows again.

An epoch in which nothing was written is dropped when the next one begins, so no two epochs share a
start: otherwise two masters' records could pass for those of one epoch.  (RocketMQ keeps the older
entry then.)
"""

from __future__ import annotations

from collections.abc import Sequence

from cometmq.codec.epoch_file import Epoch

__all__ = ["EpochList", "parting_point"]


class EpochList:
    """The epochs of one log, oldest first."""

    def __init__(self, epochs: Sequence[Epoch] = ()) -> None:
        self._epochs = tuple(epochs)

    @property
    def entries(self) -> tuple[Epoch, ...]:
        """The epochs."""
        return self._epochs

    @property
    def last(self) -> int:
        """The number of the last epoch; -1 without one, as RocketMQ's brokers say it."""
        return self._epochs[-1].number if self._epochs else -1

    def began(self, number: int, start: int) -> EpochList:
        """Return the list with a new epoch that begins at the end of the log.

        An epoch that goes on after a restart of its master is none: it keeps its start, by which
        the slaves know it.
        """
        if self.last == number:
            return self
        kept = [epoch for epoch in self._epochs if epoch.number < number and epoch.start < start]
        return EpochList((*kept, Epoch(number, start)))

    def up_to(self, end: int) -> EpochList:
        """Return the epochs of which a log with this end has something."""
        return EpochList([epoch for epoch in self._epochs if epoch.start < end])

    def at(self, physical_offset: int) -> tuple[Epoch, int | None] | None:
        """Return the epoch of a physical offset and its end; the last epoch has none yet.

        None: the log's epochs begin later.
        """
        end: int | None = None
        for epoch in reversed(self._epochs):
            if epoch.start <= physical_offset:
                return epoch, end
            end = epoch.start
        return None


def parting_point(own: EpochList, own_end: int, theirs: EpochList, their_end: int) -> int | None:
    """Return the physical offset up to which two logs are equal; None where nothing shows it."""
    starts = dict(theirs.entries)
    end = own_end
    for number, start in reversed(own.entries):
        if starts.get(number) == start:
            found = theirs.at(start)
            assert found is not None
            their_epoch_end = found[1]
            return min(end, their_end if their_epoch_end is None else their_epoch_end)
        end = start
    return None
