"""Follows the timer topic and hands its messages over to be placed in the wheel.

Each message of queue 0 of ``rmq_sys_wheel_timer`` is handed over once, in order, as soon as readers
may see it.  Messages that this broker has just appended are in memory; older ones are read.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from cometmq.broker.base.state import BrokerState
from cometmq.codec.properties import find_property
from cometmq.codec.stored_message import decode_messages
from cometmq.errors import CodecError, StoreError
from cometmq.model.names import TIMER_TOPIC
from cometmq.store.base.results import ColdRead, GetStatus, PutItem

__all__ = ["Fresh", "TimerIntake"]

log = logging.getLogger("cometmq.broker")

TAKE_COUNT: Final = 256
"""Messages taken up in one turn."""
FRESH_MAX: Final = 65_536
RETRY_MS: Final = 100


class Fresh(msgspec.Struct, gc=False, frozen=True):
    """A message of the timer topic."""

    queue_offset: int
    physical_offset: int
    """Where its record is in the log."""
    size: int
    out_ms: int
    topic: str
    recalls: str | None = None
    """The key of the message that this one recalls; None where it is no recall."""
    due_ms: int = 0
    item: PutItem | None = None
    """The message for its own topic; None when it has to be read again."""
    born_host: bytes = b""


class TimerIntake:
    """The position in the timer topic up to which messages are placed.

    Args:
        next_offset: queue offset of the first message that is not placed.
        put_in_wheel: places messages in a row; called with them and the time.
        soon: called when a worker has read, to have the next turn.
        delivered: messages before this queue offset that are due before this time are passed over,
            since another broker has delivered them.
    """

    def __init__(
        self,
        state: BrokerState,
        next_offset: int,
        put_in_wheel: Callable[[list[Fresh], int], None],
        soon: Callable[[], None],
        delivered: tuple[int, int] = (0, 0),
    ) -> None:
        self._state = state
        self._put_in_wheel = put_in_wheel
        self._soon = soon
        self._delivered = delivered
        self._fresh: deque[list[Fresh]] = deque()
        self._fresh_count = 0
        self._expected_end = 0
        self._is_reading = False
        self._is_warm = False
        self._retry_ms = 0
        self.next_offset = next_offset
        """Queue offset of the next message to take up."""

    def start(self) -> None:
        """Begin with the messages that are in the topic."""
        self.expect(self._state.store.max_queue_offset(TIMER_TOPIC, 0))

    def expect(self, end: int) -> None:
        """Note that messages up to a queue offset were put."""
        self._expected_end = max(self._expected_end, end)

    def added(self, run: list[Fresh]) -> None:
        """Note messages that were just put, with queue offsets in a row."""
        if self._fresh_count < FRESH_MAX:
            self._fresh.append(run)
            self._fresh_count += len(run)
        self.expect(run[-1].queue_offset + 1)

    @property
    def is_behind(self) -> bool:
        """Whether the topic has messages that are not taken up, or not visible yet."""
        return self.next_offset < self._expected_end

    def message_count(self) -> int:
        """Return the number of visible messages that are not taken up."""
        return max(0, self._state.store.max_queue_offset(TIMER_TOPIC, 0) - self.next_offset)

    def take_up(self, now_ms: int) -> bool:
        """Hand over the next messages; return whether more can follow at once."""
        if now_ms < self._retry_ms:
            return False
        visible = self._state.store.max_queue_offset(TIMER_TOPIC, 0)
        run = self._fresh_up_to(visible)
        if run:
            self._put_in_wheel(run, now_ms)
            self.next_offset += len(run)
        elif self.next_offset < visible:
            return self._read_more(now_ms)
        return self.next_offset < visible

    def _fresh_up_to(self, visible: int) -> list[Fresh]:
        """Return the next messages below a queue offset that are in memory."""
        fresh = self._fresh
        messages: list[Fresh] = []
        following = self.next_offset
        end = min(visible, following + TAKE_COUNT)
        while fresh:
            run = fresh[0]
            start = following - run[0].queue_offset
            if 0 <= start < len(run):
                if following >= end:
                    break
                part = run[start : start + end - following]
                following += len(part)
                messages += part
                start += len(part)
            if start < len(run):
                # Messages before it are to be read first, or the turn has enough.
                break
            fresh.popleft()
            self._fresh_count -= len(run)
        return messages

    def _read_more(self, now_ms: int) -> bool:
        """Read messages from before this start of the broker; return whether to go on at once."""
        if self._is_reading:
            return False
        try:
            # A worker has just read this part, even where the disk cannot say that it is in memory.
            result = self._state.store.get(
                TIMER_TOPIC, 0, self.next_offset, TAKE_COUNT, allow_cold=self._is_warm
            )
            self._is_warm = False
        except StoreError as error:
            log.error("the timer topic cannot be read, next try in 0.1 s: %s", error)
            self._retry_ms = now_ms + RETRY_MS
            return False
        if isinstance(result, ColdRead):
            self._is_reading = True
            self._state.env.workers.submit(result.warm, self._warmed)
            return False
        if result.status is not GetStatus.FOUND:
            # The queue's files have expired: go on where the queue begins now.
            is_moved = result.next_queue_offset > self.next_offset
            self.next_offset = max(self.next_offset, result.next_queue_offset)
            return is_moved
        self._hand_over(b"".join(result.chunks), result.next_queue_offset, now_ms)
        return True

    def _warmed(self, result: object) -> None:
        self._is_reading = False
        self._is_warm = True
        self._soon()

    def _hand_over(self, data: bytes, read_to: int, now_ms: int) -> None:
        try:
            messages = decode_messages(data)
        except CodecError as error:
            log.error(
                "messages %d to %d of %s cannot be decoded and are skipped: %s; run cometmq store"
                " verify on the store",
                self.next_offset,
                read_to - 1,
                TIMER_TOPIC,
                error,
            )
            messages = []
        run: list[Fresh] = []
        for message in messages:
            raw = message.raw_properties
            out = find_property(raw, b"TIMER_OUT_MS")
            topic = find_property(raw, b"REAL_TOPIC")
            if out is None or topic is None or not out.isdigit():
                log.error(
                    "message %d of %s has no time: skipped", message.queue_offset, TIMER_TOPIC
                )
                continue
            if message.queue_offset < self._delivered[0] and int(out) < self._delivered[1]:
                continue
            recalls = find_property(raw, b"TIMER_DEL_UNIQKEY")
            run.append(
                Fresh(
                    message.queue_offset,
                    message.physical_offset,
                    message.total_size,
                    int(out),
                    topic.decode("utf-8", "replace"),
                    None if recalls is None else recalls.decode("utf-8", "replace"),
                )
            )
        self._put_in_wheel(run, now_ms)
        self.next_offset = max(self.next_offset, read_to)
