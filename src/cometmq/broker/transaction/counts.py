"""Writes how many half messages of each topic are open, as RocketMQ's broker does.

The file is ``config/transactionMetrics``.

The table of open half messages counts, not the file, so the figures are right after any crash,
whatever the file said.

One line of JSON, no suffix, with a ``.bak`` (``TransactionMetrics`` of RocketMQ 5.4)::

    {"dataVersion":{...},"transactionCount":{"T":{"count":2,"timeStamp":1690000000000}}}

`timeStamp` says when the written count last changed, in ms.  A topic whose count is 0 again stays
until it is deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cometmq.broker.base.topic_counts import CountsFile, encode_counts
from cometmq.core.transaction.open_transactions import OpenHalves
from cometmq.model.topic import DataVersion

__all__ = ["TRANSACTION_COUNT", "TransactionCounts"]

TRANSACTION_COUNT: Final = "transactionCount"


class TransactionCounts:
    """The transaction counts of one broker."""

    def __init__(
        self,
        halves: OpenHalves,
        loaded: CountsFile | None,
        now_ms: Callable[[], int],
        has_topic: Callable[[str], bool],
    ) -> None:
        """`has_topic` says whether a topic still exists."""
        self._halves = halves
        self._now_ms = now_ms
        self._has_topic = has_topic
        self._written = {} if loaded is None else dict(loaded.counts)
        self._start = DataVersion() if loaded is None else loaded.version
        # After the recovery, topics without open transactions have a count of 0.
        halves.counts = {topic: count for topic, count in halves.counts.items() if count}
        halves.changes = 0 if self._is_as_written() else 1

    def _is_as_written(self) -> bool:
        counts = self._halves.counts
        topics = counts.keys() | self._written.keys()
        return all(counts.get(topic, 0) == self._written.get(topic, (0, 0))[0] for topic in topics)

    @property
    def revision(self) -> int:
        """Counts the half messages that were put or ended; 0 while the file is right."""
        return self._halves.changes

    def snapshot(self) -> Callable[[], bytes]:
        """Take the present counts; the result encodes them."""
        now_ms, open_counts = self._now_ms(), self._halves.counts
        entries: dict[str, tuple[int, int]] = {}
        for topic in sorted(open_counts.keys() | self._written.keys()):
            count = open_counts.get(topic, 0)
            before = self._written.get(topic)
            if count or self._has_topic(topic):
                entries[topic] = before if before and before[0] == count else (count, now_ms)
        self._written = entries
        version = DataVersion(
            now_ms, self._start.counter + self._halves.changes, self._start.state_version
        )
        return lambda: encode_counts(TRANSACTION_COUNT, entries, version)
