"""Messages with an exact time: they wait in the timer topic for their slot of the wheel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.broker.base.state import BrokerState, Refusal
from cometmq.broker.delay.wheel.intake import Fresh
from cometmq.broker.delay.wheel.service import TimerService
from cometmq.broker.send.kinds import (
    CHECK_BYTES_MAX,
    Destination,
    Prepared,
    Send,
    SendKind,
    Shape,
    real_entries,
)
from cometmq.codec.properties import PROPERTIES_BYTES_MAX
from cometmq.codec.recall import encode_recall_handles, recall_handle_head
from cometmq.codec.timer_moved import OWN_NAMES
from cometmq.errors import ResponseCode
from cometmq.model import properties as prop
from cometmq.model.names import RETRY_PREFIX, TIMER_TOPIC
from cometmq.store.base.results import PutItem, PutResult
from cometmq.store.timer.timer_slots import BadTimer, TimerRules, asked_due_ms, has_timer
from cometmq.wire.header.headers import SendMessageHeader

if TYPE_CHECKING:
    from cometmq.native import NotedTimed

__all__ = ["TimedKind", "Timing"]

_TIME_DIGITS_MAX: Final = 18
_INT32_MAX: Final = 2**31 - 1
"""timerCongestNumEachSlot as it is when nothing is limited."""


class Timing(msgspec.Struct, gc=False, frozen=True):
    """When a timed message is delivered."""

    out_ms: int
    """Its slot of the wheel."""
    due_ms: int = 0
    """The exact time; 0 when the message is read from the log for delivery."""
    recalled_key: str | None = None
    """The key of the message that this one recalls."""


class TimedKind(SendKind):
    """Timed messages of one broker; a shape's detail is their `Timing`.

    `timers` is None where ``timerWheelEnable`` is false: timed messages are refused then.
    """

    mark = f"{prop.TIMER_DELIVER_MS}\x01"
    is_varying = True
    # With these a client could claim that its message replaces another one.
    dropped = tuple(OWN_NAMES)
    properties_bytes_max = PROPERTIES_BYTES_MAX - CHECK_BYTES_MAX

    def __init__(self, state: BrokerState, rules: TimerRules, timers: TimerService | None) -> None:
        self._state = state
        self._rules = rules
        self._timers = timers

    @property
    def is_enabled(self) -> bool:
        """Whether there are timers (timerWheelEnable)."""
        return self._timers is not None

    def is_open(self) -> bool:
        """Whether there are timers, and no limit of messages in a slot has to be checked."""
        limit = self._state.config.timer_congest_num_each_slot
        return self._timers is not None and limit == _INT32_MAX

    def parse(self, value: str, text: str) -> Timing | None:
        """Return the time, when it is an ordinary number."""
        if (
            self._timers is None
            or not (value.isascii() and value.isdigit())
            or len(value) > _TIME_DIGITS_MAX
        ):
            return None
        due_ms = int(value)
        return Timing(self._rules.out_ms(due_ms), due_ms)

    def check(self, header: SendMessageHeader, target: Destination, now_ms: int) -> None:
        """Let a message with a time wait, unless it is due already.

        Raises:
            Refusal: the message cannot wait as it asks.
        """
        if not has_timer(target.properties) or (target.reason and not target.kind.is_transactional):
            return
        out_ms = self.slot_of(target, now_ms)
        if out_ms is not None:
            self.delay(target, out_ms)

    def delay(self, target: Destination, out_ms: int) -> None:
        """Let a message wait for a slot of the wheel."""
        target.kind = self
        target.detail = Timing(out_ms, 0, target.properties.get(prop.TIMER_DEL_UNIQKEY))

    def out_ms(self, time_ms: int) -> int:
        """Return the slot of a time."""
        return self._rules.out_ms(time_ms)

    def slot_of(self, target: Destination, now_ms: int) -> int | None:
        """Return the slot of a message with a time; None when it is due already.

        Raises:
            Refusal: the message cannot wait as it asks.
        """
        timers = self._timers
        if timers is None:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                "accurate timer message is not enabled, timerWheelEnable is false",
            )
        if target.kind.is_transactional:
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                "the message is illegal: it is transactional and has an exact time; a message "
                "cannot wait for both, leave out one",
            )
        try:
            due_ms = asked_due_ms(target.properties, now_ms)
        except BadTimer as error:
            raise Refusal(ResponseCode.MESSAGE_ILLEGAL, f"timer message illegal: {error}") from None
        limit_ms = self._state.config.timer_max_delay_sec * 1000
        is_recall = prop.TIMER_DEL_UNIQKEY in target.properties
        if due_ms - now_ms > limit_ms or (is_recall and due_ms <= now_ms):
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                "timer message illegal, the delay time should not be bigger than the max delay "
                f"{limit_ms}ms; or if set del msg, the delay time should be bigger than the "
                f"current time (asked for {due_ms - now_ms} ms)",
            )
        if due_ms <= now_ms:
            return None
        out_ms = self._rules.out_ms(due_ms)
        self._check_congestion(timers.slot_count(out_ms))
        return out_ms

    def _check_congestion(self, count: int) -> None:
        """Refuse some of the messages for a full slot, and all when it has twice the limit.

        Source: TimerMessageStore.isReject.
        """
        limit = self._state.config.timer_congest_num_each_slot
        if limit == _INT32_MAX or count <= limit:
            return
        share = (count - limit) / (limit + 0.1)
        if count >= limit * 2 or self._state.env.chance.random() < share:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"timer message is under flow control: its second has {count} messages, "
                f"timerCongestNumEachSlot is {limit} and {limit * 2} are the most; send for "
                "another second, or raise the limit",
            )

    def needs_checks(self, shape: Shape, now_ms: int) -> bool:
        """Whether the time has come already, or is beyond the limit."""
        due_ms: int = shape.detail.due_ms
        limit_ms = self._state.config.timer_max_delay_sec * 1000
        return not now_ms < due_ms <= now_ms + limit_ms

    def prepare(
        self, topic: str, queue_id: int, shape: Shape, uniq_key: str, now_ms: int
    ) -> Prepared:
        """Put the message into the timer topic, with its slot of the wheel."""
        timing: Timing = shape.detail
        added = b"TIMER_OUT_MS\x01%d\x02%b" % (timing.out_ms, real_entries(topic, queue_id))
        return TIMER_TOPIC, 0, shape.tags_code, added

    def stored(
        self, sends: Sequence[Send], results: Sequence[PutResult], born_host: bytes, now_ms: int
    ) -> list[str] | None:
        """Hand messages to the timers; return the recall handle of each."""
        timers = self._timers
        if timers is None:
            return None
        open_to_ms = timers.open_to_ms
        run: list[Fresh] = []
        handles: list[str] = []
        heads: dict[str, str] = {}
        for send, result in zip(sends, results, strict=False):
            timing: Timing = send.shape.detail
            topic = send.real_topic
            # A message for a slot that is loaded already is delivered without reading it again.
            is_near = timing.due_ms and timing.out_ms < open_to_ms
            run.append(
                Fresh(
                    result.queue_offset,
                    result.physical_offset,
                    result.end_offset - result.physical_offset,
                    timing.out_ms,
                    topic,
                    timing.recalled_key,
                    timing.due_ms,
                    _real_item(send) if is_near else None,
                    born_host,
                )
            )
            # The handle has a time within the slot (SendMessageProcessor.attachRecallHandle).
            head = heads.get(topic)
            if head is None:
                head = heads[topic] = recall_handle_head(topic, self._state.config.broker_name)
            handles.append(f"{head}{timing.out_ms + 1} {send.uniq_key}")
        timers.added(run)
        if sends[0].real_topic.startswith(RETRY_PREFIX):
            return None
        return encode_recall_handles(handles)

    # -- what the native core has stored ----------------------------------------------------

    @property
    def precision_ms(self) -> int:
        """The width of a slot of the wheel."""
        return self._rules.precision_ms

    def native_span(self, now_ms: int) -> tuple[int, int]:
        """Return the first slot and the last due time that the core takes; (0, 0) for none.

        Messages for loaded slots go the way of Python, which keeps them in memory.
        """
        if self._timers is None or not self.is_open():
            return 0, 0
        return self._timers.open_to_ms, now_ms + self._state.config.timer_max_delay_sec * 1000

    def encoded(self, notes: Sequence[NotedTimed]) -> None:
        """Hand messages to the timers."""
        if self._timers is not None:
            self._timers.added([Fresh(*note) for note in notes])


def _real_item(send: Send) -> PutItem:
    """Return the message as it is delivered to its own topic."""
    return PutItem(
        send.real_topic,
        send.real_queue_id,
        send.body,
        send.properties,
        send.flag,
        send.sys_flag,
        send.born_ms,
        send.tags_code,
        send.index_keys,
    )
