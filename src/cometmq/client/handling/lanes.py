"""The messages that wait for a worker, by lanes: the lane with the highest number goes first.

A lane has the messages of the queues with one queue id; in a priority topic that is the priority.
Every few takes one goes to a lower lane, to each in its turn, so that none starves: with `m` lower
lanes and a share `s`, the first message of a lower lane waits for at most `m / s` takes.
"""

from collections import deque
from collections.abc import Iterable, Iterator
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

    def __init__(self, low_share: float) -> None:
        self._lanes: dict[int, deque[Work]] = {}
        self._low_share = low_share
        self._credit = 0.0
        self._last_low = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Work]:
        for number in sorted(self._lanes, reverse=True):
            yield from self._lanes[number]

    def _lane(self, work: Work) -> deque[Work]:
        number: int = work[0].queue.queue_id
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = deque()
        return lane

    def append(self, work: Work) -> None:
        """Add work behind its lane."""
        self._lane(work).append(work)
        self._count += 1

    def appendleft(self, work: Work) -> None:
        """Return work to the front of its lane."""
        self._lane(work).appendleft(work)
        self._count += 1

    def extend(self, items: Iterable[Work]) -> None:
        """Add work behind its lanes."""
        for work in items:
            self.append(work)

    def popleft(self) -> Work:
        """Take the next work; HOT.

        Raises:
            IndexError: there is none.
        """
        busy = sorted(number for number, lane in self._lanes.items() if lane)
        if not busy:
            raise IndexError("no message waits in any lane")
        number = busy[-1]
        if len(busy) > 1:
            self._credit += self._low_share
            if self._credit >= 1:
                self._credit -= 1
                lower = busy[:-1]
                # The next lower one than the last, and from the lowest up again.
                number = next((each for each in lower if each > self._last_low), lower[0])
                self._last_low = number
        self._count -= 1
        return self._lanes[number].popleft()

    def clear(self) -> None:
        """Forget all work."""
        self._lanes.clear()
        self._count = 0
