"""Pulls one queue, always one request ahead of the handlers.

The loop is a state machine driven by answers, not a task.  It hands an answer to its sink and sends
the next pull in the same turn, so the broker works while the messages are handled.  `MOVES` lists
every step.  An answer to a pull that was abandoned carries an old number and is ignored.

Reactions to response codes follow ``DefaultMQPushConsumerImpl`` of RocketMQ 5.4.0, with two
differences: after 24 and 25 (the broker does not know this consumer) a heartbeat goes out at once,
and an illegal offset is corrected here instead of at the next rebalance.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Final, Protocol

from cometmq.client.base.instance import ClientInstance
from cometmq.client.base.sandbox import SandboxFilter
from cometmq.client.message.message import ReceivedMessage, split_messages
from cometmq.codec.stored_message import decode_messages_lenient
from cometmq.core.consume.process_queue import ProcessQueue
from cometmq.core.filter.subscription import SQL92
from cometmq.errors import CodecError, CometError, ConnectFailed, RequestTimeout, ResponseCode
from cometmq.model import MessageQueue, SubscriptionData
from cometmq.model.flags import PULL_COMMIT_OFFSET
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.extensions.bulk_pull import BULK_PULL_FEATURE, BulkPullCode
from cometmq.wire.frame.acl import SignedPullTemplate
from cometmq.wire.header.fast_encode import PullRequestTemplate
from cometmq.wire.header.headers import PullResponseHeader

__all__ = ["MOVES", "PullEvent", "PullLoop", "PullSettings", "PullSink", "PullState", "move"]

log = logging.getLogger("cometmq.client")

COUNT_DEFAULT: Final = 32
PAUSE_ERROR_S: Final = 1.0
PAUSE_ERROR_S_MAX: Final = 5.0
PAUSE_BUSY_S: Final = 0.02
PAUSE_UNKNOWN_S: Final = 0.1
UNHELD_S: Final = 0.02
"""The broker did not hold an empty answer that comes sooner: pulling again at once would spin."""
PAUSE_UNHELD_S: Final = 0.1
HOLD_RECHECK_S: Final = 1.0
"""A held loop asks its sink again after this time, even if nobody wakes it."""
PULL_TIMEOUT_MS: Final = 30_000
BULK_COUNT_MAX: Final = 512
BULK_BYTES_MAX: Final = 1 << 20
"""Limits of a bulk pull: handing over its messages takes one turn, which delays all other work."""
OFFSET_RESET: Final = "OFFSET_RESET"
"""Remark of an answer 21 that carries an operator's offset (``PullMessageProcessor`` of 5.4.0)."""


class PullState(IntEnum):
    """The states of a pull loop."""

    IDLE = 0
    """Nothing is under way; only between two steps of one turn."""
    CONNECTING = 1
    """A task looks up the broker and connects to it."""
    PULLING = 2
    """A pull is in flight."""
    HELD = 3
    """The sink takes no messages now; a timer asks it again."""
    PAUSED = 4
    """A timer sends the next pull after a fault or an empty answer."""
    INTRODUCING = 5
    """A task sends a heartbeat to a broker that does not know this consumer."""
    STOPPED = 6


class PullEvent(IntEnum):
    """The events that change the state of a pull loop."""

    HOLD = 0
    CONNECT = 1
    SEND = 2
    PAUSE = 3
    INTRODUCE = 4
    END = 5
    """The task, request or timer of the present state has ended."""
    RESTART = 6
    STOP = 7


def _moves() -> dict[tuple[PullState, PullEvent], PullState]:
    state, event = PullState, PullEvent
    moves = {
        (state.IDLE, event.HOLD): state.HELD,
        (state.IDLE, event.CONNECT): state.CONNECTING,
        (state.IDLE, event.SEND): state.PULLING,
        (state.IDLE, event.PAUSE): state.PAUSED,
        (state.IDLE, event.INTRODUCE): state.INTRODUCING,
        (state.STOPPED, event.RESTART): state.STOPPED,
        (state.STOPPED, event.STOP): state.STOPPED,
    }
    for busy in (state.CONNECTING, state.PULLING, state.HELD, state.PAUSED, state.INTRODUCING):
        moves[busy, event.END] = state.IDLE
    for alive in set(state) - {state.STOPPED}:
        moves[alive, event.RESTART] = state.IDLE
        moves[alive, event.STOP] = state.STOPPED
    return moves


MOVES: Final = _moves()
"""The next state by state and event; no other pair may occur."""
_WAITING: Final = (PullState.HELD, PullState.PAUSED)


def move(state: PullState, event: PullEvent) -> PullState:
    """The state after an event.

    Raises:
        RuntimeError: the event cannot occur in this state.
    """
    following = MOVES.get((state, event))
    if following is None:
        raise RuntimeError(f"a pull loop that is {state.name} got the event {event.name}")
    return following


@dataclass(frozen=True, slots=True)
class PullSettings:
    """Settings that all pulls of a consumer share."""

    code: int
    group: str
    sys_flag: int
    suspend_ms: int
    max_count: int = COUNT_DEFAULT
    max_bytes: int = 262_144
    sends_expression: bool = False


class PullSink(Protocol):
    """The consumer of a queue, as its pull loop uses it."""

    def hold(self, loop: "PullLoop") -> str | None:
        """Why the loop must not pull now, or None; the sink calls ``wake`` when it may."""
        ...

    def room(self, loop: "PullLoop") -> tuple[int, int]:
        """How many messages and bytes the sink takes before it holds the loop."""
        ...

    def accept(self, loop: "PullLoop", messages: list[ReceivedMessage], next_offset: int) -> None:
        """Take matching messages, possibly none; the next pull starts at ``next_offset``."""
        ...

    def commit_hint(self, loop: "PullLoop") -> int:
        """An offset to commit along with a pull, or -1."""
        ...

    def offset_moved(self, loop: "PullLoop", queue_offset: int, *, is_ordered: bool) -> None:
        """Continue at this offset: an operator ordered it, or the requested one does not exist."""
        ...


class PullLoop:
    """The pulls of one queue."""

    __slots__ = (
        "_broker_id",
        "_bulk_address",
        "_bulk_template",
        "_code",
        "_errors_in_row",
        "_instance",
        "_loop",
        "_namespace",
        "_number",
        "_one_by_one_until",
        "_sandbox_filter",
        "_sent_at",
        "_settings",
        "_sink",
        "_sub_version",
        "_template",
        "_timer",
        "hold_reason",
        "last_error",
        "process_queue",
        "pull_count",
        "pull_s",
        "pulled_count",
        "queue",
        "state",
        "subscription",
    )

    def __init__(
        self,
        instance: ClientInstance,
        queue: MessageQueue,
        process_queue: ProcessQueue,
        subscription: SubscriptionData,
        settings: PullSettings,
        sink: PullSink,
        sandbox_filter: SandboxFilter | None = None,
    ) -> None:
        self._sandbox_filter = sandbox_filter
        self._instance = instance
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._namespace = instance.options.namespace.name
        self._sink = sink
        self._number = 0
        self._one_by_one_until = -1
        """Below this queue offset pulls ask for one message, because an answer was damaged."""
        self._broker_id = 0
        self._errors_in_row = 0
        self._sent_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.queue = queue
        self.process_queue = process_queue
        self.subscription = subscription
        self.state = PullState.IDLE
        """Changed by `move` only."""
        self.hold_reason: str | None = None
        """Why the sink holds the loop; None while it does not."""
        self.last_error: str | None = None
        self.pull_count = 0
        """Pulls that brought messages."""
        self.pull_s = 0.0
        """How long these pulls took."""
        self.pulled_count = 0
        """How many messages they brought."""
        self._sub_version = subscription.sub_version
        if settings.sends_expression and subscription.expression_type != SQL92:
            self._sub_version = 0  # as Java's lite consumer: the request carries the expression
        self._code = settings.code
        self._template = self._new_template(settings.code)
        self._bulk_template: PullRequestTemplate | None = None
        self._bulk_address: str | None = None
        """The broker's address while a bulk pull is in flight."""

    def _new_template(self, code: int) -> PullRequestTemplate:
        settings, subscription, queue = self._settings, self.subscription, self.queue
        credentials = self._instance.options.security.credentials
        template: Callable[..., PullRequestTemplate] = PullRequestTemplate
        if credentials is not None:
            template = partial(SignedPullTemplate, credentials)
        wrap = self._instance.options.namespace.wrap
        return template(
            wrap(settings.group),
            wrap(queue.topic),
            queue.queue_id,
            expression_type=subscription.expression_type,
            subscription=subscription.sub_string if settings.sends_expression else None,
            broker_name=queue.broker_name,
            code=code,
        )

    # -- driving ----------------------------------------------------------------------------

    @property
    def may_be_stuck(self) -> bool:
        """Whether the loop should make progress by itself: it is neither held nor stopped."""
        return self.state is not PullState.HELD and self.state is not PullState.STOPPED

    def pull(self) -> None:
        """Send the next pull unless a step is under way or the sink holds the loop."""
        state = self.state
        if state is not PullState.IDLE:
            if state not in _WAITING:
                return
            self.state = move(state, PullEvent.END)
            self._cancel_timer()
        reason = self._sink.hold(self)
        if reason is not None:
            self.hold_reason = reason
            self._wait(PullEvent.HOLD, HOLD_RECHECK_S)
            return
        self.hold_reason = None
        name, routes = self.queue.broker_name, self._instance.routes
        # While the master is away a slave serves the queue.
        address = routes.address(name, self._broker_id) or routes.any_address(name)
        channel = self._instance.pool.open_channel(address) if address is not None else None
        if channel is None or not self._instance.is_greeted(channel):
            self.state = move(self.state, PullEvent.CONNECT)
            self._instance.spawn(self._connect(self._number, address), f"connect-{self.queue}")
            return
        self.state = move(self.state, PullEvent.SEND)
        self._number += 1
        number = self._number
        opaque = channel.next_opaque()
        self._sent_at = self._loop.time()
        channel.call(
            opaque,
            self._frame(opaque, channel.address),
            channel.deadline_in(PULL_TIMEOUT_MS + self._settings.suspend_ms),
            lambda answer: self._answered(number, answer),
        )
        # Send the pull now: the broker works on it while the handlers get the last answer.
        channel.flush()

    def wake(self) -> None:
        """Pull again if the sink has held the loop."""
        if self.hold_reason is not None:
            self.pull()

    def restart(self) -> None:
        """Abandon the step under way, if any, and pull anew."""
        self._abandon(PullEvent.RESTART)
        self.pull()

    def stop(self) -> None:
        """Pull no more, and ignore an answer still to come."""
        self._abandon(PullEvent.STOP)

    def _abandon(self, event: PullEvent) -> None:
        self.state = move(self.state, event)
        self._number += 1
        self._cancel_timer()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, event: PullEvent, pause_s: float) -> None:
        """Pull after a pause, unless the sink has stopped the loop in this turn."""
        if self.state is PullState.STOPPED:
            return
        self.state = move(self.state, event)
        self._timer = self._loop.call_later(pause_s, self.pull)

    async def _connect(self, number: int, address: str | None) -> None:
        """Connect to the broker; ``number`` was the loop's when this task was made."""
        try:
            if address is None:
                await self._instance.refresh_route(self.queue.topic)
                address = self._instance.routes.any_address(self.queue.broker_name)
            if address is None:
                raise CometError(f"the route has no address for {self.queue.broker_name}")
            await self._instance.io.channel(address, self._instance.options.request_timeout_ms)
        except Exception as error:
            # The broker may have moved; the next try uses the new route.
            self._instance.refresh_soon(self.queue.topic)
            if number == self._number:
                self.state = move(self.state, PullEvent.END)
                self._broker_id = 0
                self._failed(str(error), is_logged=isinstance(error, ConnectFailed))
            return
        if number == self._number:
            self.state = move(self.state, PullEvent.END)
            self.pull()

    # -- answers ----------------------------------------------------------------------------

    def _answered(self, number: int, answer: RemotingCommand | Exception) -> None:
        if number != self._number:
            return
        self.state = move(self.state, PullEvent.END)
        try:
            if isinstance(answer, Exception):
                self._broker_id = 0
                self._failed(
                    str(answer),
                    at_once=isinstance(answer, RequestTimeout),
                    is_logged=isinstance(answer, ConnectFailed),
                )
            elif answer.code in _PULL_ANSWERS:
                if self._errors_in_row:
                    self._errors_in_row = 0
                    self._instance.io.outages.ended(f"pulls of {self.queue}")
                self._take(answer)
            else:
                self._refused(answer)
        except Exception as error:
            # No fault may end the pulls of a queue.
            log.exception("a pull of %s could not be handled", self.queue)
            self._abandon(PullEvent.RESTART)
            self._failed(f"{type(error).__name__}: {error}")

    def _take(self, answer: RemotingCommand) -> None:
        header = PullResponseHeader.from_command(answer)
        process_queue = self.process_queue
        process_queue.broker_max_offset = header.max_offset
        self._broker_id = header.suggest_which_broker_id
        code = answer.code
        next_offset = header.next_begin_offset
        if code == 0:
            messages, next_offset = self._messages(answer.body, next_offset)
            bounds = header.min_offset, header.max_offset
            for message in messages:
                message.bounds = bounds
            if self._namespace:
                for message in messages:
                    message.within(self._namespace)
            chosen = self._sandbox_filter
            if chosen is not None and not chosen.is_ready(self.queue.topic, messages):
                self._wait(PullEvent.PAUSE, PAUSE_UNKNOWN_S)  # the same messages again
                return
            self.pull_count += 1
            self.pull_s += self._loop.time() - self._sent_at
            self.pulled_count += len(messages)
            self._sink.accept(self, self._matching(messages), next_offset)
            self.pull()
        elif code == ResponseCode.PULL_OFFSET_MOVED:
            is_ordered = answer.remark == OFFSET_RESET
            if not is_ordered:
                log.warning(
                    "%s of group %s: offset %d is outside the broker's %d to %d; continuing at %d",
                    self.queue,
                    self._settings.group,
                    process_queue.pull_offset,
                    header.min_offset,
                    header.max_offset,
                    next_offset,
                )
            self._sink.offset_moved(self, next_offset, is_ordered=is_ordered)
            self.pull()
        else:
            self._sink.accept(self, [], next_offset)
            is_unheld = self._loop.time() - self._sent_at < UNHELD_S
            if is_unheld and code == ResponseCode.PULL_NOT_FOUND:
                self._wait(PullEvent.PAUSE, PAUSE_UNHELD_S)
            else:
                self.pull()

    def _matching(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        if self._sandbox_filter is not None:
            messages = self._sandbox_filter.own_messages(messages)
        tags = self.subscription.tags_set
        if not tags:
            return messages
        return [message for message in messages if message.tags in tags]

    def _messages(self, body: bytes, next_offset: int) -> tuple[list[ReceivedMessage], int]:
        """The messages of an answer, and the offset of the next pull."""
        try:
            return split_messages(body, self.queue), next_offset
        except CodecError as error:
            return self._salvage(body, next_offset, error)

    def _salvage(
        self, body: bytes, next_offset: int, error: CodecError
    ) -> tuple[list[ReceivedMessage], int]:
        """The readable messages of a damaged answer, and the offset of the next pull.

        Damage that hides where the next record begins hides the remainder of the answer.  That part
        is pulled again, one message at a time, so that only damaged records are skipped; the log
        names each.
        """
        records, broken = decode_messages_lenient(body)
        begin = self.process_queue.pull_offset
        hides_rest = bool(broken) and broken[-1].position + broken[-1].size == len(body)
        if hides_rest and begin >= self._one_by_one_until:
            begin = max((record.queue_offset + 1 for record in records), default=begin)
            self._one_by_one_until = next_offset
            log.warning(
                "%s: an answer of %d bytes is damaged (%s); offsets %d to %d are asked for again,"
                " one by one",
                self.queue,
                len(body),
                error,
                begin,
                next_offset - 1,
            )
            next_offset = begin
            broken = broken[:-1]
        if broken:
            log.error(
                "%s: an answer of %d bytes is damaged (%s); %d messages read, passed over: %s",
                self.queue,
                len(body),
                error,
                len(records),
                "; ".join(
                    f"{part.size} bytes at {part.position}: {part.reason}" for part in broken
                ),
            )
        messages = [
            ReceivedMessage(self.queue, record.queue_offset, record.total_size, b"", 0, record)
            for record in records
        ]
        return messages, next_offset

    def _refused(self, answer: RemotingCommand) -> None:
        code = answer.code
        text = f"code {code} {answer.remark or ''}".strip()
        if code in (ResponseCode.FLOW_CONTROL, ResponseCode.SYSTEM_BUSY):
            self._wait(PullEvent.PAUSE, PAUSE_BUSY_S)
        elif code in (
            ResponseCode.SUBSCRIPTION_NOT_EXIST,
            ResponseCode.SUBSCRIPTION_NOT_LATEST,
            ResponseCode.FILTER_DATA_NOT_EXIST,
            ResponseCode.FILTER_DATA_NOT_LATEST,
        ):
            log.debug("%s: %s; sending a heartbeat", self.queue, text)
            self._errors_in_row += 1
            self.state = move(self.state, PullEvent.INTRODUCE)
            self._instance.spawn(
                self._introduce(self._number), f"heartbeat-{self.queue.broker_name}"
            )
        elif code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and self._bulk_address is not None:
            # Another broker now listens at this address.
            self._instance.forget_features(self._bulk_address)
            self.pull()
        elif (
            code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            and self._code == RequestCode.LITE_PULL_MESSAGE
        ):
            # Brokers of 4.9 serve lite consumers through the ordinary pull, with the same flags.
            self._code = RequestCode.PULL_MESSAGE
            self._template = self._new_template(self._code)
            self.pull()
        else:
            self._failed(text)

    async def _introduce(self, number: int) -> None:
        """Send a heartbeat to a broker that does not know this consumer, then pull again."""
        address = self._instance.routes.address(self.queue.broker_name)
        if address is not None:
            await self._instance.heartbeat_to(address)
        if number == self._number:
            self.state = move(self.state, PullEvent.END)
            self._wait(
                PullEvent.PAUSE, PAUSE_UNKNOWN_S if self._errors_in_row < 5 else PAUSE_ERROR_S
            )

    def _failed(self, text: str, *, at_once: bool = False, is_logged: bool = False) -> None:
        """Pull again after a pause; ``is_logged`` says that the connection's loss is logged."""
        if self._instance.is_closed:
            return
        self._errors_in_row += 1
        self.last_error = text
        if is_logged:
            log.debug("pull of %s failed: %s", self.queue, text)
        else:
            self._instance.io.outages.failed(f"pulls of {self.queue}", text)
        pause_s = min(PAUSE_ERROR_S * self._errors_in_row, PAUSE_ERROR_S_MAX)
        self._wait(PullEvent.PAUSE, 0.0 if at_once and self._errors_in_row < 2 else pause_s)

    # -- requests ---------------------------------------------------------------------------

    def _bulk_limits(self, address: str, begin: int) -> tuple[int, int] | None:
        """The limits (messages, bytes) of a bulk pull; None if an ordinary pull is as good.

        A bulk pull serves a backlog, at a broker that offers bulk pulls, and brings no more than
        the sink takes.
        """
        settings = self._settings
        enough = 2 * settings.max_count
        backlog = self.process_queue.broker_max_offset - begin
        if (
            backlog < enough
            or settings.max_count < COUNT_DEFAULT
            or begin < self._one_by_one_until
            or not self._instance.knows(address, BULK_PULL_FEATURE)
        ):
            return None
        count, byte_count = self._sink.room(self)
        if count < enough or byte_count < settings.max_bytes:
            return None
        return min(count, backlog, BULK_COUNT_MAX), min(byte_count, BULK_BYTES_MAX)

    def _frame(self, opaque: int, address: str) -> bytes:
        """The next pull request; HOT."""
        settings = self._settings
        sys_flag = settings.sys_flag
        commit_offset = self._sink.commit_hint(self)
        if commit_offset >= 0:
            sys_flag |= PULL_COMMIT_OFFSET
        else:
            commit_offset = 0
        begin = self.process_queue.pull_offset
        count = settings.max_count if begin >= self._one_by_one_until else 1
        byte_count, template = settings.max_bytes, self._template
        bulk = self._bulk_limits(address, begin)
        self._bulk_address = None
        if bulk is not None:
            self._bulk_address = address
            count, byte_count = bulk
            if self._bulk_template is None:
                self._bulk_template = self._new_template(BulkPullCode.BULK_PULL)
            template = self._bulk_template
        return template.encode(
            opaque,
            begin,
            count,
            sys_flag,
            commit_offset,
            settings.suspend_ms,
            self._sub_version,
            byte_count,
        )


_PULL_ANSWERS: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
