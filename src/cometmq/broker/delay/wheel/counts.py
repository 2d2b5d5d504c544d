"""Pending timed messages of each topic, in the file where RocketMQ's broker keeps them.

Job: what ``config/timermetrics`` says, when it is to be written, and the answer to
GET_TIMER_METRICS (61).  It must not keep count: the timer log is counted, so that the figures are
right after any crash, whatever the file said.

JSON, no suffix, with a ``.bak`` (``TimerMetrics`` of RocketMQ 5.4)::

    {"dataVersion":{...},"timingCount":{"T":{"count":2,"timeStamp":1690000000000}}}

A unit holds the hash of its topic's name only; where two topics share one, or the hash is not
known, the message is read.  As in RocketMQ a recall takes itself and what it names out of the
count.  Counting a million units takes a worker about 50 ms, so the file follows once a minute and
at the stop.
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
    from cometmq.broker.delay.wheel.moved_places import MovedPlaces
    from cometmq.broker.delay.wheel.service import TimerService
    from cometmq.net.server import Handler, ServerConnection
    from cometmq.store.timer.book import TimerBook
    from cometmq.wire.command.command import RemotingCommand

__all__ = ["TIMING_COUNT", "TimerCounts"]

TIMING_COUNT: Final = "timingCount"
INTERVAL_MS: Final = 60_000
_READ_MAX: Final = 100_000
"""At most so many messages are read for the name of their topic."""


class TimerCounts:
    """The timer counts of one broker."""

    def __init__(
        self, state: BrokerState, book: TimerBook, service: TimerService, moved: MovedPlaces
    ) -> None:
        self._state = state
        self._book = book
        self._service = service
        self._moved = moved
        self._written: dict[str, tuple[int, int]] = {}
        self._start = DataVersion()
        self._revision = 0
        self._looked_ms = 0

    def take(self, loaded: CountsFile | None) -> None:
        """Begin with what the file says."""
        if loaded is not None:
            self._written, self._start = dict(loaded.counts), loaded.version

    @property
    def revision(self) -> int:
        """Moves with what is placed and delivered, once a minute; at the stop with all of it."""
        service = self._service
        now_ms = self._state.env.clock.now_ms()
        if service.is_stopped or now_ms - self._looked_ms >= INTERVAL_MS:
            self._looked_ms = now_ms
            self._revision = service.taken_count + service.delivered_count
        return self._revision

    def snapshot(self) -> Callable[[], bytes]:
        """On the loop; the result counts and encodes, in a worker or at the stop."""
        state, book, service = self._state, self._book, self._service
        now_ms, read_ms, revision = state.env.clock.now_ms(), service.read_ms, self._revision
        reader, written, end = book.log.reader(), book.log.written, book.log.end
        replaced, written_before = self._moved.raw(), dict(self._written)
        topics = frozenset(state.topics.all())
        version = DataVersion(now_ms, self._start.counter + revision, self._start.state_version)

        def encode() -> bytes:
            store = state.store
            first = min(book.log.starts(), default=written)
            places = (store.min_physical_offset, store.max_physical_offset)
            found = pending_units(reader, first, end, read_ms, places, replaced)
            counts = self._by_topic(found, topics | written_before.keys())
            taken: dict[str, tuple[int, int]] = {}
            for topic in sorted(counts.keys() | written_before.keys()):
                count, before = counts.get(topic, 0), written_before.get(topic)
                if count or topic in topics:
                    taken[topic] = before if before and before[0] == count else (count, now_ms)
            self._written = taken
            return encode_counts(TIMING_COUNT, taken, version)

        return encode

    def _by_topic(self, found: np.ndarray, names: frozenset[str]) -> Counter[str]:
        import numpy as np

        by_hash: dict[int, list[str]] = {}
        for name in names:
            by_hash.setdefault(java_hash(name), []).append(name)
        counts: Counter[str] = Counter()
        changes = np.where(found["magic"] & TIMER_DELETE, -1, 1)
        hashes, which = np.unique(found["hash"], return_inverse=True)
        for number, topic_hash in enumerate(hashes.tolist()):
            chosen = which == number
            known = by_hash.get(topic_hash, ())
            if len(known) == 1:
                counts[known[0]] += int(changes[chosen].sum())
                continue
            places = found["place"][chosen][:_READ_MAX].tolist()
            for place, change in zip(places, changes[chosen].tolist(), strict=False):
                topic = self._topic_at(place)
                if topic is not None:
                    counts[topic] += change
        return counts

    def _topic_at(self, place: int) -> str | None:
        try:
            record = self._state.store.message_at(place)
            if record is None:
                return None
            topic = find_property(decode_message(record).raw_properties, b"REAL_TOPIC")
        except (StoreError, CodecError):
            return None
        return None if topic is None else topic.decode("utf-8", "replace")

    # -- the request -----------------------------------------------------------------------

    def handlers(self) -> dict[int, Handler]:
        """The code served here."""
        return {RequestCode.GET_TIMER_METRICS: self.show}

    def show(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes | None:
        """Serve GET_TIMER_METRICS (61): what the file would say now."""
        in_worker(
            self._state,
            request,
            connection,
            self.snapshot(),
            lambda body: answer(request, body=body),
        )
        return None
