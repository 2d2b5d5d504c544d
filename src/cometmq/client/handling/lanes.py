"""The messages that wait for a worker, by lanes: the lane with the highest number goes first.

A lane has the messages of the queues with one queue id; in a priority topic that is the priority.
Every few takes one goes to a lower lane, to each in its turn, so that none starves: with `m` lower
lanes and a share `s`, the first message of a lower lane waits for at most `m / s` takes.
"""

from bisect import insort
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["Lanes"]

Work = tuple[Any, Any]
"""An assignment, and a message or a list of messages of its queue."""


class Lanes:
    """A deque of work, as `CoroutineDispatcher` uses it, with lanes.

    Args:
        low_share: the part of the takes that goes to lower lanes while they have work; above 0 and
            at most 1.
    """

    __slots__ = ("_before", "_busy", "_credit", "_lanes", "_last_low", "_low_share", "_top")

    def __init__(self, low_share: float) -> None:
        self._lanes: dict[int, deque[Work]] = {}
        self._busy: list[int] = []
        """The numbers of the lanes that have work, ascending."""
        self._top: deque[Work] = deque()
        """The highest lane that has work."""
        self._low_share = low_share
        self._credit = 0.0
        self._last_low = 0
        self._before = 0.0, 0
        """Credit and last lower lane before the last take."""

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def __bool__(self) -> bool:
        return bool(self._top)

    def __iter__(self) -> Iterator[Work]:
        for number in sorted(self._lanes, reverse=True):
            yield from self._lanes[number]

    def _lane(self, work: Work) -> deque[Work]:
        """Return the lane of work that is about to be added."""
        number: int = work[0].queue.queue_id
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = deque()
        if not lane:
            insort(self._busy, number)
            self._top = self._lanes[self._busy[-1]]
        return lane

    def append(self, work: Work) -> None:
        """Add work behind its lane."""
        self._lane(work).append(work)

    def appendleft(self, work: Work) -> None:
        """Undo the last take: the work is the next one again."""
        self._lane(work).appendleft(work)
        self._credit, self._last_low = self._before

    def extend(self, items: Sequence[Work]) -> None:
        """Add work of one queue behind its lane."""
        if items:
            self._lane(items[0]).extend(items)

    def popleft(self) -> Work:
        """Take the next work; HOT.

        Raises:
            IndexError: there is none.
        """
        if len(self._busy) > 1:
            self._before = self._credit, self._last_low
            self._credit += self._low_share
            if self._credit >= 1:
                return self._pop_low()
        top = self._top
        work = top.popleft()
        if not top:
            self._emptied(self._busy[-1])
        return work

    def _pop_low(self) -> Work:
        """Take the next work of the lower lanes, to each in its turn."""
        self._credit -= 1
        lower = self._busy[:-1]
        # The next lower one than the last, and from the lowest up again.
        number = next((each for each in lower if each > self._last_low), lower[0])
        self._last_low = number
        lane = self._lanes[number]
        work = lane.popleft()
        if not lane:
            self._emptied(number)
        return work

    def _emptied(self, number: int) -> None:
        self._busy.remove(number)
        if self._busy:
            self._top = self._lanes[self._busy[-1]]

    def clear(self) -> None:
        """Forget all work."""
        self._lanes.clear()
        self._busy.clear()
        self._top = deque()
