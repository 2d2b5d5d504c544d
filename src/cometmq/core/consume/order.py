"""Order inside one queue: which messages may run next, and what follows a failure.

A *strand* is the messages of a queue that run one after the other; strands run side by side.  With
order by queue the whole queue is one strand, named ``""``.  With order by message group each group
is a strand, and ``""`` the strand of messages without a group.  `STRAND_MOVES` lists the states of
a strand and its steps:

    READY --take--> RUNNING --done--> READY, or GONE without messages
      ^                |
      +---resume-- SUSPENDED <--fail--

A failed batch runs again with the same messages, except those at its front that were finished.
`core.consume.process_queue` decides which offset may be committed: the first unfinished message of
any strand holds back all later offsets.

Source: ``ConsumeMessageOrderlyService`` of RocketMQ 5.4.0 for order by queue; strands are ours.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Generic, TypeVar

from cometmq.core.delay.levels import DelayLevels
from cometmq.core.retry.consume_retry import DELAY_LEVEL_DEAD_LETTER

__all__ = [
    "ORDERS",
    "ORDER_BY_GROUP",
    "ORDER_BY_QUEUE",
    "ORDER_NONE",
    "RECONSUME_FOR_EVER",
    "STRAND_MOVES",
    "SUSPEND_MS",
    "GiveBack",
    "OrderPolicy",
    "Park",
    "StrandEvent",
    "StrandState",
    "Strands",
    "Suspend",
    "move_strand",
]

M = TypeVar("M")

ORDER_NONE: Final = "none"
ORDER_BY_QUEUE: Final = "queue"
ORDER_BY_GROUP: Final = "group"
ORDERS: Final = (ORDER_NONE, ORDER_BY_QUEUE, ORDER_BY_GROUP)
RECONSUME_FOR_EVER: Final = 2**31 - 1
"""Java's default for orderly consumers: a message is tried until its handler succeeds."""
SUSPEND_MS: Final = 1_000
"""``suspendCurrentQueueTimeMillis`` of Java."""
_LEVELS: Final = DelayLevels()


@dataclass(frozen=True, slots=True)
class Suspend:
    """The strand waits and tries the same messages again."""

    pause_ms: int


@dataclass(frozen=True, slots=True)
class GiveBack:
    """The message leaves the strand with a delay level, -1 for a dead letter."""

    delay_level: int


@dataclass(frozen=True, slots=True)
class Park:
    """The message and all later ones of its group are parked; see `core.extensions.parking`."""


@dataclass(frozen=True, slots=True)
class OrderPolicy:
    """The settings of an ordered consumer.

    ``max_reconsume_times`` counts the tries after the first.  ``park_after`` counts all tries, the
    first included; None means that nothing is parked.
    """

    suspend_ms: int = SUSPEND_MS
    max_reconsume_times: int = RECONSUME_FOR_EVER
    park_after: int | None = None

    def after_failure(
        self, delay_level: int, reconsume_times: int, pause_ms: int | None = None
    ) -> Suspend | GiveBack | Park:
        """What follows when a handler failed on a message.

        ``delay_level`` is the handler's answer: -1 for a dead letter, 0 for the usual pause, 1 to
        18 for the pause of that level.  ``reconsume_times`` counts earlier failures, and
        ``pause_ms`` is the exact pause that the handler asks for.
        """
        if delay_level == DELAY_LEVEL_DEAD_LETTER or reconsume_times >= self.max_reconsume_times:
            # In a retry topic later messages would overtake this one, so it becomes a dead letter.
            return GiveBack(DELAY_LEVEL_DEAD_LETTER)
        if self.park_after is not None and reconsume_times + 1 >= self.park_after:
            return Park()
        if pause_ms is not None:
            return Suspend(pause_ms)
        if delay_level > 0:
            return Suspend(_LEVELS.delay_ms(_LEVELS.clamp(delay_level)))
        return Suspend(self.suspend_ms)


class StrandState(IntEnum):
    """The states of a strand."""

    READY = 0
    """It has messages and waits for its turn."""
    RUNNING = 1
    """Its first messages are in the handler, or on their way back to the broker."""
    SUSPENDED = 2
    """It pauses after a failure."""
    GONE = 3
    """It has no messages, so it is no longer kept."""


class StrandEvent(IntEnum):
    """The events that change the state of a strand."""

    TAKE = 0
    DONE = 1
    FAIL = 2
    RESUME = 3
    EMPTY = 4
    """Its last message was finished or withdrawn."""


STRAND_MOVES: Final = {
    (StrandState.READY, StrandEvent.TAKE): StrandState.RUNNING,
    (StrandState.READY, StrandEvent.EMPTY): StrandState.GONE,
    (StrandState.RUNNING, StrandEvent.DONE): StrandState.READY,
    (StrandState.RUNNING, StrandEvent.FAIL): StrandState.SUSPENDED,
    (StrandState.RUNNING, StrandEvent.EMPTY): StrandState.GONE,
    (StrandState.SUSPENDED, StrandEvent.RESUME): StrandState.READY,
    (StrandState.SUSPENDED, StrandEvent.EMPTY): StrandState.GONE,
}
"""The next state by state and event; no other pair may occur."""


def move_strand(state: StrandState, event: StrandEvent) -> StrandState:
    """The state of a strand after an event.

    Raises:
        RuntimeError: the event cannot occur in this state.
    """
    following = STRAND_MOVES.get((state, event))
    if following is None:
        raise RuntimeError(f"a strand that is {state.name} got the event {event.name}")
    return following


class _Strand(Generic[M]):
    """Unfinished messages, oldest first; the first ``running`` of them are in the handler."""

    __slots__ = ("messages", "running", "same_count", "state")

    def __init__(self) -> None:
        self.messages: deque[M] = deque()
        self.running = 0
        self.same_count = 0
        """The size of the next batch, because these messages failed together; 0 for any size."""
        self.state = StrandState.READY
        """Changed by `move_strand` only."""


class Strands(Generic[M]):
    """The strands of one queue."""

    __slots__ = ("_ready", "_strands")

    def __init__(self) -> None:
        self._strands: dict[str, _Strand[M]] = {}
        self._ready: deque[str] = deque()

    @property
    def is_ready(self) -> bool:
        """Whether `take` returns a batch."""
        return bool(self._ready)

    @property
    def strand_count(self) -> int:
        """How many strands have unfinished messages."""
        return len(self._strands)

    @property
    def suspended(self) -> list[str]:
        """The strands that pause after a failure."""
        suspended = StrandState.SUSPENDED
        return [name for name, strand in self._strands.items() if strand.state is suspended]

    def add(self, items: Iterable[tuple[str, M]]) -> None:
        """Add pulled messages, each with the name of its strand, in the order of the queue."""
        strands = self._strands
        for name, message in items:
            strand = strands.get(name)
            if strand is None:
                strand = strands[name] = _Strand()
                self._ready.append(name)
            strand.messages.append(message)

    def take(self, count_max: int) -> tuple[str, list[M]] | None:
        """Start the next batch: its strand and its messages; None if no strand is ready."""
        if not self._ready:
            return None
        name = self._ready.popleft()
        strand = self._strands[name]
        strand.state = move_strand(strand.state, StrandEvent.TAKE)
        count = min(strand.same_count or count_max, len(strand.messages))
        strand.running = count
        messages = strand.messages
        return name, [messages[index] for index in range(count)]

    def done(self, name: str, count: int) -> None:
        """End a batch: its first ``count`` messages are finished, the others never ran."""
        strand = self._end(name, count, 0)
        if strand.messages:
            strand.state = move_strand(strand.state, StrandEvent.DONE)
            self._ready.append(name)
        else:
            self._remove(name, strand)

    def suspend(self, name: str, done_count: int) -> None:
        """End a batch: its first ``done_count`` messages are finished, those after them failed."""
        strand = self._strands[name]
        failed_count = strand.running - done_count
        if not failed_count:
            self.done(name, done_count)
            return
        self._end(name, done_count, failed_count)
        strand.state = move_strand(strand.state, StrandEvent.FAIL)

    def resume(self, name: str) -> None:
        """End the pause of a strand; a strand that is not suspended stays as it is."""
        strand = self._strands.get(name)
        if strand is not None and strand.state is StrandState.SUSPENDED:
            strand.state = move_strand(strand.state, StrandEvent.RESUME)
            self._ready.append(name)

    def withdraw(self, name: str, is_wanted: Callable[[M], bool]) -> list[M]:
        """Remove from a strand the wanted messages that are not in the handler, in their order."""
        strand = self._strands.get(name)
        if strand is None:
            return []
        remaining: deque[M] = deque()
        withdrawn: list[M] = []
        for index, message in enumerate(strand.messages):
            is_out = index >= strand.running and is_wanted(message)
            (withdrawn if is_out else remaining).append(message)
        if not withdrawn:
            return withdrawn
        strand.messages = remaining
        if not strand.running:
            strand.same_count = 0
        if not remaining:
            if strand.state is StrandState.READY:
                self._ready.remove(name)
            self._remove(name, strand)
        return withdrawn

    def _end(self, name: str, done_count: int, failed_count: int) -> _Strand[M]:
        strand = self._strands[name]
        assert 0 <= done_count <= strand.running, "more was finished than ran"
        popleft = strand.messages.popleft
        for _ in range(done_count):
            popleft()
        strand.running = 0
        strand.same_count = failed_count
        return strand

    def _remove(self, name: str, strand: _Strand[M]) -> None:
        strand.state = move_strand(strand.state, StrandEvent.EMPTY)
        del self._strands[name]
