"""Order inside one queue: which messages may run next, and what follows a failure.

Job: keep the pulled messages of a queue in lanes, give out what may run, take back what failed.
Must not: run handlers, commit or send anything, or read a clock.

Theory: the messages of one lane run one after the other, lanes run side by side.  Order by queue
is one lane, order by message group has a lane per group (and the lane "" for messages without).
A lane is in one of four states:

    IDLE --add--> READY --take--> RUNNING --done--> READY or IDLE
                    ^               |
                    +---resume-- SUSPENDED <--suspend-- (same messages again)

A failed batch is the next one again, message by message the same, unless its first messages were
done.  What may be committed is not decided here: `core.process_queue` holds back every offset
from the first unfinished message on, whatever lane it is in.

Source: ``ConsumeMessageOrderlyService`` of RocketMQ 5.4.0 for order by queue; lanes are ours.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from cometmq.core.delay.levels import DelayLevels
from cometmq.core.retry.consume_retry import DELAY_LEVEL_DEAD_LETTER

__all__ = [
    "ORDERS",
    "ORDER_BY_GROUP",
    "ORDER_BY_QUEUE",
    "ORDER_NONE",
    "RECONSUME_FOR_EVER",
    "SUSPEND_MS",
    "Lanes",
    "OrderPolicy",
    "Park",
    "SendBack",
    "Suspend",
]

M = TypeVar("M")

ORDER_NONE: Final = "none"
ORDER_BY_QUEUE: Final = "queue"
ORDER_BY_GROUP: Final = "group"
ORDERS: Final = (ORDER_NONE, ORDER_BY_QUEUE, ORDER_BY_GROUP)
RECONSUME_FOR_EVER: Final = 2**31 - 1
"""Java's default for orderly consumers: a message is tried until it is taken."""
SUSPEND_MS: Final = 1_000
"""``suspendCurrentQueueTimeMillis`` of Java."""
_LEVELS: Final = DelayLevels()


@dataclass(frozen=True, slots=True)
class Suspend:
    """The lane waits and tries the same messages again."""

    pause_ms: int


@dataclass(frozen=True, slots=True)
class SendBack:
    """The message leaves the lane with this delay level (-1: a dead letter); the lane goes on."""

    delay_level: int


@dataclass(frozen=True, slots=True)
class Park:
    """The message, and all of its group after it, leave the lane: see `core.parking`."""


@dataclass(frozen=True, slots=True)
class OrderPolicy:
    """What a consumer chose; ``max_reconsume_times`` are tries after the first.

    ``park_after`` are tries, the first among them; None for never.
    """

    suspend_ms: int = SUSPEND_MS
    max_reconsume_times: int = RECONSUME_FOR_EVER
    park_after: int | None = None

    def after_failure(self, delay_level: int, reconsume_times: int) -> Suspend | SendBack | Park:
        """What follows when a handler did not take a message.

        ``delay_level`` is the handler's answer: -1 for a dead letter, 0 for the usual pause, 1 to
        18 for the pause of that level.  ``reconsume_times`` counts its failures before this one.
        """
        if delay_level == DELAY_LEVEL_DEAD_LETTER or reconsume_times >= self.max_reconsume_times:
            # Waiting in a retry topic would let later messages pass it: the last stop is final.
            return SendBack(DELAY_LEVEL_DEAD_LETTER)
        if self.park_after is not None and reconsume_times + 1 >= self.park_after:
            return Park()
        if delay_level > 0:
            return Suspend(_LEVELS.delay_ms(_LEVELS.clamp(delay_level)))
        return Suspend(self.suspend_ms)


class _Lane(Generic[M]):
    """Unfinished messages of one lane, oldest first; the first ``running`` are in the handler."""

    __slots__ = ("is_suspended", "messages", "running", "same_count")

    def __init__(self) -> None:
        self.messages: deque[M] = deque()
        self.running = 0
        self.same_count = 0
        """How many messages the next batch has, because they failed together; 0 for any."""
        self.is_suspended = False


class Lanes(Generic[M]):
    """The lanes of one queue; a lane without messages does not exist."""

    __slots__ = ("_lanes", "_ready", "running_count")

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane[M]] = {}
        self._ready: deque[str] = deque()
        self.running_count = 0
        """Lanes with messages in the handler."""

    @property
    def is_ready(self) -> bool:
        """Whether `take` would give something."""
        return bool(self._ready)

    @property
    def lane_count(self) -> int:
        """Lanes with unfinished messages."""
        return len(self._lanes)

    @property
    def suspended(self) -> list[str]:
        """Lanes that wait after a failure."""
        return [name for name, lane in self._lanes.items() if lane.is_suspended]

    def add(self, items: Iterable[tuple[str, M]]) -> None:
        """Take in pulled messages with the names of their lanes, in the order of the queue."""
        lanes = self._lanes
        for name, message in items:
            lane = lanes.get(name)
            if lane is None:
                lane = lanes[name] = _Lane()
                self._ready.append(name)
            lane.messages.append(message)

    def take(self, count_max: int) -> tuple[str, list[M]] | None:
        """The next messages to run and their lane, which is RUNNING from now on."""
        if not self._ready:
            return None
        name = self._ready.popleft()
        lane = self._lanes[name]
        count = min(lane.same_count or count_max, len(lane.messages))
        lane.running = count
        self.running_count += 1
        messages = lane.messages
        return name, [messages[place] for place in range(count)]

    def done(self, name: str, count: int) -> None:
        """The first ``count`` running messages are finished, the others of the batch never ran."""
        self._end(name, count, 0)

    def suspend(self, name: str, done_count: int) -> None:
        """The first ``done_count`` are finished, those after them failed: the lane waits."""
        running = self._lanes[name].running
        self._end(name, done_count, running - done_count)

    def resume(self, name: str) -> None:
        """The pause of a lane is over."""
        lane = self._lanes.get(name)
        if lane is not None and lane.is_suspended:
            lane.is_suspended = False
            self._ready.append(name)

    def withdraw(self, name: str, is_wanted: Callable[[M], bool]) -> list[M]:
        """Take out of a lane, in their order, the messages that do not run and are wanted."""
        lane = self._lanes.get(name)
        if lane is None:
            return []
        stay: deque[M] = deque()
        out: list[M] = []
        for place, message in enumerate(lane.messages):
            is_out = place >= lane.running and is_wanted(message)
            (out if is_out else stay).append(message)
        if not out:
            return out
        lane.messages = stay
        if not lane.running:
            lane.same_count = 0
        if not stay:
            del self._lanes[name]
            if name in self._ready:
                self._ready.remove(name)
        return out

    def _end(self, name: str, done_count: int, failed_count: int) -> None:
        lane = self._lanes[name]
        assert 0 <= done_count <= lane.running, "more was finished than ran"
        popleft = lane.messages.popleft
        for _ in range(done_count):
            popleft()
        lane.running = 0
        lane.same_count = failed_count
        self.running_count -= 1
        if failed_count:
            lane.is_suspended = True
        elif lane.messages:
            self._ready.append(name)
        else:
            del self._lanes[name]
