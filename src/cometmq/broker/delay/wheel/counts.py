"""Pending timed messages of each topic, in the file where RocketMQ's broker keeps them.

Writes ``config/timermetrics`` and answers GET_TIMER_METRICS (61).  Each time it counts the units of
the timer log instead of keeping a count: so the figures are right after any crash, whatever the
file said.

JSON, no suffix, with a ``.bak`` (``TimerMetrics`` of RocketMQ 5.4)::

    {"dataVersion":{...},"timingCount":{"T":{"count":2,"timeStamp":1690000000000}}}

A unit has only the hash of its topic's name.  Where two topics share a hash, or no topic has it,
the message is read.  As in RocketMQ, a recall counts as minus one, for the message that it names.
Counting a million units takes a worker about 50 ms, so the file is written once a minute and at the
stop.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from cometmq.broker.base.state import answer, in_worker
from cometmq.broker.base.topic_counts import CountsFile, encode_counts
from cometmq.broker.delay.wheel.moving import pending_units
from cometmq.codec.java_hash import java_hash
from cometmq.codec.properties import find_property
from cometmq.codec.stored_message import decode_message
from cometmq.codec.timer import TIMER_DELETE
from cometmq.errors import CodecError, StoreError
from cometmq.model.topic import DataVersion
from cometmq.wire.command.codes import RequestCode

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from cometmq.broker.base.state import BrokerState
    from cometmq.broker.delay.wheel.moved_records import MovedRecords
    from cometmq.broker.delay.wheel.service import TimerService
    from cometmq.net.server import Handler, ServerConnection
    from cometmq.store.timer.book import TimerBook
    from cometmq.wire.command.command import RemotingCommand

__all__ = ["TIMING_COUNT", "TimerCounts"]

TIMING_COUNT: Final = "timingCount"
INTERVAL_MS: Final = 60_000
_READ_MAX: Final = 100_000
"""At most so many messages are read to learn their topic."""


class TimerCounts:
    """The timer counts of one broker."""

    def __init__(
        self,
        state: BrokerState,
        book: TimerBook,
        service: TimerService,
        moved: MovedRecords,
        loaded: CountsFile | None,
    ) -> None:
        """`loaded` is the file as it was read."""
        self._state = state
        self._book = book
        self._service = service
        self._moved = moved
        self._written = {} if loaded is None else dict(loaded.counts)
        self._start = DataVersion() if loaded is None else loaded.version
        self._revision = 0
        self._revised_ms = 0

    @property
    def revision(self) -> int:
        """A number that changes, at most once a minute, when messages were placed or delivered."""
        service = self._service
        now_ms = self._state.env.clock.now_ms()
        if service.is_stopped or now_ms - self._revised_ms >= INTERVAL_MS:
            self._revised_ms = now_ms
            self._revision = service.taken_count + service.delivered_count
        return self._revision

    def snapshot(self) -> Callable[[], bytes]:
        """Call it on the loop; the result counts and encodes, in a worker or at the stop."""
        state, book, service = self._state, self._book, self._service
        now_ms, read_ms, revision = state.env.clock.now_ms(), service.read_ms, self._revision
        reader, written, end = book.log.reader(), book.log.written, book.log.end
        replaced, written_before = self._moved.raw(), dict(self._written)
        topics = frozenset(state.topics.all())
        version = DataVersion(now_ms, self._start.counter + revision, self._start.state_version)

        def encode() -> bytes:
            store = state.store
            first = min(book.log.starts(), default=written)
            log_range = (store.min_physical_offset, store.max_physical_offset)
            units = pending_units(reader, first, end, read_ms, log_range, replaced)
            counts = self._by_topic(units, topics | written_before.keys())
            entries: dict[str, tuple[int, int]] = {}
            for topic in sorted(counts.keys() | written_before.keys()):
                count, before = counts.get(topic, 0), written_before.get(topic)
                if count or topic in topics:
                    entries[topic] = before if before and before[0] == count else (count, now_ms)
            self._written = entries
            return encode_counts(TIMING_COUNT, entries, version)

        return encode

    def _by_topic(self, units: np.ndarray, names: frozenset[str]) -> Counter[str]:
        import numpy as np

        by_hash: dict[int, list[str]] = {}
        for name in names:
            by_hash.setdefault(java_hash(name), []).append(name)
        counts: Counter[str] = Counter()
        changes = np.where(units["magic"] & TIMER_DELETE, -1, 1)
        hashes, hash_numbers = np.unique(units["hash"], return_inverse=True)
        for number, topic_hash in enumerate(hashes.tolist()):
            chosen = hash_numbers == number
            topics = by_hash.get(topic_hash, ())
            if len(topics) == 1:
                counts[topics[0]] += int(changes[chosen].sum())
                continue
            physical_offsets = units["physical_offset"][chosen][:_READ_MAX].tolist()
            for physical_offset, change in zip(
                physical_offsets, changes[chosen].tolist(), strict=False
            ):
                topic = self._topic_at(physical_offset)
                if topic is not None:
                    counts[topic] += change
        return counts

    def _topic_at(self, physical_offset: int) -> str | None:
        try:
            record = self._state.store.message_at(physical_offset)
            if record is None:
                return None
            topic = find_property(decode_message(record).raw_properties, b"REAL_TOPIC")
        except (StoreError, CodecError):
            return None
        return None if topic is None else topic.decode("utf-8", "replace")

    # -- the request -----------------------------------------------------------------------

    def handlers(self) -> dict[int, Handler]:
        """Map the request code to its method."""
        return {RequestCode.GET_TIMER_METRICS: self.show}

    def show(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes | None:
        """Serve GET_TIMER_METRICS (61) with what the file would say now."""
        in_worker(
            self._state,
            request,
            connection,
            self.snapshot(),
            lambda body: answer(request, body=body),
        )
        return None
