"""Who committed the offsets of a queue, and when: the last few commits of each queue, in memory.

It answers which member acknowledged a message.  A restart forgets it, and a commit that comes with
a pull is known from the regular commit after it, which follows within seconds.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

__all__ = ["Acknowledgement", "Acknowledgements"]

_COMMITS_MAX: Final = 16
_QUEUES_MAX: Final = 4096
"""About 100 bytes a commit: at most 7 MB."""


class Acknowledgement(NamedTuple):
    """A commit: all messages before `consumer_offset` are done."""

    consumer_offset: int
    client_id: str
    at_ms: int


class Acknowledgements:
    """The last commits by group (or share of a group), topic and queue."""

    def __init__(self) -> None:
        self._queues: dict[tuple[str, str, int], deque[Acknowledgement]] = {}

    def note(
        self,
        reader: str,
        topic: str,
        queue_id: int,
        consumer_offset: int,
        client_id: str,
        now_ms: int,
    ) -> None:
        """Note a commit of a member."""
        key = (reader, topic, queue_id)
        commits = self._queues.get(key)
        if commits is None:
            if len(self._queues) >= _QUEUES_MAX:
                del self._queues[next(iter(self._queues))]
            commits = self._queues[key] = deque(maxlen=_COMMITS_MAX)
        if not commits or commits[-1].consumer_offset != consumer_offset:
            commits.append(Acknowledgement(consumer_offset, client_id, now_ms))

    def find(
        self, reader: str, topic: str, queue_id: int, queue_offset: int
    ) -> Acknowledgement | None:
        """Return the commit that passed a message; None if it is not among the last ones."""
        before: Acknowledgement | None = None
        for commit in self._queues.get((reader, topic, queue_id), ()):
            if commit.consumer_offset > queue_offset:
                return commit if before is not None else None
            before = commit
        return None
