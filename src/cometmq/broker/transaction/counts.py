"""Open half messages of each topic, in the file where RocketMQ's broker keeps them.

Job: what ``config/transactionMetrics`` says and when it is to be written.  It must not count: the
table of open half messages does, so that the figures are right after any crash, whatever the file
said.

One line of JSON, no suffix, with a ``.bak`` (``TransactionMetrics`` of RocketMQ 5.4)::

    {"dataVersion":{...},"transactionCount":{"T":{"count":2,"timeStamp":1690000000000}}}

`timeStamp` is the last change of the count that was written, in ms.  A topic whose count has sunk
to 0 stays until it is deleted.
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

    __slots__ = ("_halves", "_is_known", "_now_ms", "_start", "_written")

    def __init__(
        self,
        halves: OpenHalves,
        loaded: CountsFile | None,
        now_ms: Callable[[], int],
        is_known: Callable[[str], bool],
    ) -> None:
        """`is_known` says whether a topic still exists."""
        self._halves = halves
        self._now_ms = now_ms
        self._is_known = is_known
        self._written = {} if loaded is None else dict(loaded.counts)
        self._start = DataVersion() if loaded is None else loaded.version
        # Recovery counted what was ended as well.
        halves.counts = {topic: count for topic, count in halves.counts.items() if count}
        halves.changes = 0 if self._is_as_written() else 1

    def _is_as_written(self) -> bool:
        counts = self._halves.counts
        topics = counts.keys() | self._written.keys()
        return all(counts.get(topic, 0) == self._written.get(topic, (0, 0))[0] for topic in topics)

    @property
    def revision(self) -> int:
        """Moves with every half message that is put or ended; 0 while the file is right."""
        return self._halves.changes

    def snapshot(self) -> Callable[[], bytes]:
        """Take the figures of now; the result encodes them."""
        now_ms, open_counts = self._now_ms(), self._halves.counts
        taken: dict[str, tuple[int, int]] = {}
        for topic in sorted(open_counts.keys() | self._written.keys()):
            count = open_counts.get(topic, 0)
            before = self._written.get(topic)
            if count or self._is_known(topic):
                taken[topic] = before if before and before[0] == count else (count, now_ms)
        self._written = taken
        version = DataVersion(
            now_ms, self._start.counter + self._halves.changes, self._start.state_version
        )
        return lambda: encode_counts(TRANSACTION_COUNT, taken, version)
