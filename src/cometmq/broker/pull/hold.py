"""Long polling: a pull that finds no message waits here for one, or until its time is up.

`PullHold` holds pulls by queue and decides which of them run again.  It neither reads the store
nor writes answers: its owner passes the function that runs a held pull.

A pull runs again when

- a message with a tag code it wants becomes visible in its queue (`arrived`).  All pulls woken in
  one turn of the loop run at its end, so one pull answers a burst of sends with many messages.  A
  pull with an SQL92 filter goes on waiting if nothing of the burst matches;
- an operator moves its group's offset in its queue (`offset_moved`);
- its deadline has come;
- the sweep sees that its queue has grown past it, whether the pull wants the messages or not: a
  filtered consumer moves on, and a lost wake-up costs at most one sweep.

One timer serves all pulls; it is set to the earliest deadline or the next sweep.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable
from typing import Final

from cometmq.broker.pull.filters import RecordFilter
from cometmq.net.env import Clock
from cometmq.net.server import ServerConnection

__all__ = ["HELD_PULLS_MAX", "HELD_PULLS_PER_CONNECTION_MAX", "HeldPull", "PullHold"]

log = logging.getLogger("cometmq.broker")

SWEEP_INTERVAL_MS: Final = 5000
"""PullRequestHoldService of RocketMQ 5.4 checks at this pace."""
HELD_PULLS_MAX: Final = 100_000
"""Java's pullThreadPoolQueueCapacity; each held pull is about 1 KiB of memory."""
_ENDED_MAX: Final = 64
"""So many pulls that ended, and as many as wait, keep their deadlines."""
HELD_PULLS_PER_CONNECTION_MAX: Final = 16_384
"""A client has one held pull per queue; this is a bound on what one connection may cost."""


class HeldPull:
    """A waiting pull.  It wants messages with these tag `codes`; None means all.

    What runs it again derives a class with what it needs for that.
    """

    __slots__ = (
        "codes",
        "connection",
        "deadline_ms",
        "filter",
        "group",
        "is_waiting",
        "queue_id",
        "queue_offset",
        "since_ms",
        "topic",
    )

    def __init__(
        self,
        connection: ServerConnection,
        group: str,
        topic: str,
        queue_id: int,
        queue_offset: int,
        codes: frozenset[int] | None,
        since_ms: int,
        deadline_ms: int,
        filtered: RecordFilter | None = None,
    ) -> None:
        self.connection = connection
        self.group = group
        self.topic = topic
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.codes = codes
        self.since_ms = since_ms
        self.deadline_ms = deadline_ms
        self.filter = filtered
        self.is_waiting = True


class PullHold:
    """The held pulls of a broker.

    Args:
        clock: for deadlines.
        run: runs a pull again, which is no longer held then.
        max_queue_offset: gives the end of a queue, for the sweep.
        watch: called when the first pull of a queue is held (True) and when its last pull is
            no longer held (False).
        has_wanted: says whether a pull with a filter runs after an arrival.
    """

    def __init__(
        self,
        clock: Clock,
        run: Callable[[HeldPull], None],
        max_queue_offset: Callable[[str, int], int],
        watch: Callable[[str, int, bool], None],
        has_wanted: Callable[[HeldPull], bool],
    ) -> None:
        self._clock = clock
        self._run = run
        self._max_queue_offset = max_queue_offset
        self._watch = watch
        self._has_wanted = has_wanted
        self._examined: dict[HeldPull, None] = {}
        self._by_queue: dict[tuple[str, int], dict[HeldPull, None]] = {}
        self._by_connection: dict[ServerConnection, dict[HeldPull, None]] = {}
        self._deadlines: list[tuple[int, int, HeldPull]] = []
        self._sequence = 0
        self._count = 0
        self._woken: list[HeldPull] = []
        self._wake_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._next_sweep_ms = 0

    def __len__(self) -> int:
        return self._count

    def is_full(self, connection: ServerConnection) -> bool:
        """Say whether the broker or this connection has as many held pulls as it may."""
        if self._count >= HELD_PULLS_MAX:
            return True
        own = self._by_connection.get(connection)
        return own is not None and len(own) >= HELD_PULLS_PER_CONNECTION_MAX

    def add(self, pull: HeldPull) -> None:
        """Let a pull wait."""
        key = (pull.topic, pull.queue_id)
        waiting = self._by_queue.get(key)
        if waiting is None:
            self._watch(pull.topic, pull.queue_id, True)
            waiting = self._by_queue[key] = {}
        waiting[pull] = None
        self._by_connection.setdefault(pull.connection, {})[pull] = None
        self._count += 1
        self._sequence += 1
        deadlines = self._deadlines
        if len(deadlines) > 2 * self._count + _ENDED_MAX:
            self._deadlines = deadlines = [entry for entry in deadlines if entry[2].is_waiting]
            heapq.heapify(deadlines)
        heapq.heappush(deadlines, (pull.deadline_ms, self._sequence, pull))
        self._arm()

    def arrived(self, topic: str, queue_id: int, next_offset: int, tags_code: int) -> None:
        """Note that a message became visible; `next_offset` is the one after it."""
        waiting = self._by_queue.get((topic, queue_id))
        if waiting is None:
            return
        for pull in list(waiting):
            if pull.queue_offset < next_offset and (pull.codes is None or tags_code in pull.codes):
                if pull.filter is not None:
                    self._examined[pull] = None
                    continue
                self._remove(pull)
                self._woken.append(pull)
        self._wake()

    def _wake(self) -> None:
        if (self._woken or self._examined) and not self._wake_scheduled:
            self._wake_scheduled = True
            asyncio.get_running_loop().call_soon(self._run_woken)

    def grown(self, topic: str, queue_id: int) -> None:
        """Run every pull of a queue in which many messages of any tag became visible at once."""
        for pull in list(self._by_queue.get((topic, queue_id), ())):
            self._remove(pull)
            self._woken.append(pull)
        self._wake()

    def offset_moved(self, group: str, topic: str, queue_id: int) -> None:
        """Run the pulls of a group whose offset an operator moved, so that they learn of it."""
        # The latest first: only the first to run carries the reset, and a client that has pulled
        # again (after a seek, say) ignores the answer to its older pull.
        for pull in reversed(list(self._by_queue.get((topic, queue_id), ()))):
            if pull.group == group:
                self._remove(pull)
                self._run_pull(pull)

    def group_changed(self, group: str) -> None:
        """Run the pulls of a group whose members read otherwise now."""
        for waiting in [list(pulls) for pulls in self._by_queue.values()]:
            for pull in waiting:
                if pull.is_waiting and pull.group == group:
                    self._remove(pull)
                    self._run_pull(pull)

    def drop_connection(self, connection: ServerConnection) -> None:
        """Forget the pulls of a lost connection."""
        for pull in list(self._by_connection.get(connection, {})):
            self._remove(pull)

    def drop_topic(self, topic: str) -> None:
        """Run the pulls of a deleted topic, so that they learn of it."""
        for key in [key for key in self._by_queue if key[0] == topic]:
            for pull in list(self._by_queue[key]):
                self._remove(pull)
                self._run_pull(pull)

    def stop(self) -> None:
        """Forget every pull and the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._by_queue.clear()
        self._by_connection.clear()
        self._deadlines.clear()
        self._woken.clear()
        self._examined.clear()
        self._count = 0

    def _remove(self, pull: HeldPull) -> None:
        pull.is_waiting = False
        key = (pull.topic, pull.queue_id)
        waiting = self._by_queue[key]
        del waiting[pull]
        if not waiting:
            del self._by_queue[key]
            self._watch(pull.topic, pull.queue_id, False)
        own = self._by_connection[pull.connection]
        del own[pull]
        if not own:
            del self._by_connection[pull.connection]
        self._count -= 1

    def _run_woken(self) -> None:
        self._wake_scheduled = False
        woken, self._woken = self._woken, []
        for pull in woken:
            self._run_pull(pull)
        examined, self._examined = self._examined, {}
        for pull in examined:
            if pull.is_waiting and self._has_wanted(pull):
                self._remove(pull)
                self._run_pull(pull)

    def _run_pull(self, pull: HeldPull) -> None:
        """Run a pull; an error in one must not leave the others unanswered."""
        try:
            self._run(pull)
        except Exception:
            log.exception("a held pull of %s failed", pull.connection.peer)
            pull.connection.close()

    def _arm(self) -> None:
        """Set the timer to the earliest deadline or sweep, unless it fires earlier already."""
        if self._timer is not None:
            due_ms = min(self._deadlines[0][0], self._next_sweep_ms)
            if self._timer_ms <= due_ms:
                return
            self._timer.cancel()
        now_ms = self._clock.now_ms()
        if self._next_sweep_ms <= now_ms:
            self._next_sweep_ms = now_ms + SWEEP_INTERVAL_MS
        due_ms = min(self._deadlines[0][0], self._next_sweep_ms)
        self._timer_ms = due_ms
        wait_s = max(0, due_ms - now_ms) / 1000
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_ms = self._clock.now_ms()
        deadlines = self._deadlines
        while deadlines and (not deadlines[0][2].is_waiting or deadlines[0][0] <= now_ms):
            pull = heapq.heappop(deadlines)[2]
            if pull.is_waiting:
                self._remove(pull)
                self._run_pull(pull)
        if now_ms >= self._next_sweep_ms:
            self._next_sweep_ms = now_ms + SWEEP_INTERVAL_MS
            self._sweep()
        if deadlines:
            self._arm()

    def _sweep(self) -> None:
        for (topic, queue_id), waiting in list(self._by_queue.items()):
            end = self._max_queue_offset(topic, queue_id)
            for pull in list(waiting):
                if pull.is_waiting and pull.queue_offset < end:
                    self._remove(pull)
                    self._run_pull(pull)
