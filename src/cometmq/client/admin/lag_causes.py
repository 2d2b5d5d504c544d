"""Why messages of a group wait: causes with their evidence and remedy, from what servers and
members say.

`LagView` is what was asked; `lag_causes` judges it and asks nobody.  Members answer themselves
(`ConsumerRunningInfo`), so Java's and Go's are judged as ours; what only ours tell (paused queues,
coroutines) is used where it is there.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cometmq.client.message.message import ReceivedMessage
from cometmq.core.filter.share_filter import wants
from cometmq.core.group.filter_shares import difference_text, filter_text
from cometmq.model import MessageQueue, SubscriptionData
from cometmq.model.names import RETRY_PREFIX
from cometmq.wire.body.client import ConsumerRunningInfo
from cometmq.wire.extensions.backlog import BacklogBody

__all__ = ["LagCause", "LagView", "first_waiting", "has_open_question", "lag_causes"]

STILL_MS: Final = 60_000
"""A queue in which nothing was pulled or handled for so long stands still."""
SAMPLE: Final = 32
SAMPLED_QUEUES: Final = 4
"""Samples of so many messages of so many queues say what waits, and cost a pull each."""
_HELD_BACK: Final = 500
"""Members stop to pull a queue at some number of messages in memory: Java's at 1,000."""
_NAMES_MAX: Final = 4
_STACK_LINES: Final = 12
_HOT_SHARE: Final = 0.5
_SAMPLE_MIN: Final = 8
"""So many messages at least say something about keys and filters."""
_IDLE: Final = re.compile(
    r"await waiter|LinkedBlockingQueue\.take|ThreadPoolExecutor\.getTask|selectors\.py"
    r"|threading\.py.*in wait\b|in _work\b[^\n]*\n[^\n]*(?:wait|get)\("
)
"""What the stack of a worker has that waits for work."""


@dataclass(frozen=True, slots=True)
class LagCause:
    """One cause: ``kind`` is a word for programs, ``evidence`` was measured, ``remedy`` helps."""

    kind: str
    evidence: str
    remedy: str
    stack: str = ""
    """Where a handler is, for a slow or stuck one."""


@dataclass(slots=True)
class LagView:
    """What servers and members say about a group.

    Offsets are (end of the queue, next offset of the group or None).  ``members`` has None for a
    member that did not answer.  ``samples`` are some of the first waiting messages of a queue.
    """

    group: str
    now_ms: int
    offsets: dict[MessageQueue, tuple[int, int | None]]
    members: dict[str, ConsumerRunningInfo | None]
    earlier: dict[str, ConsumerRunningInfo] = field(default_factory=dict)
    """What members said a moment before."""
    switched_off: list[str] = field(default_factory=list)
    """Brokers where the group may not consume."""
    samples: dict[MessageQueue, list[ReceivedMessage]] = field(default_factory=dict)
    skipped: dict[str, BacklogBody] = field(default_factory=dict)
    """What brokers say about messages that the group passed over."""

    def lag(self, queue: MessageQueue) -> int:
        """How many messages of a queue wait."""
        end, offset = self.offsets[queue]
        return max(0, end - (offset or 0))

    @property
    def waiting(self) -> list[MessageQueue]:
        """The queues in which messages wait, the most first; without the retry topic."""
        queues = [
            queue
            for queue in self.offsets
            if self.lag(queue) and not queue.topic.startswith(RETRY_PREFIX)
        ]
        return sorted(queues, key=lambda queue: (-self.lag(queue), queue))

    @property
    def answers(self) -> dict[str, ConsumerRunningInfo]:
        """The members that answered."""
        return {name: info for name, info in self.members.items() if info is not None}

    def owners(self, queue: MessageQueue) -> dict[str, dict[str, Any]]:
        """What each member says that has a queue."""
        return {
            name: info.queue_table[queue]
            for name, info in self.answers.items()
            if queue in info.queue_table and not info.queue_table[queue].get("droped")
        }


def first_waiting(view: LagView) -> dict[MessageQueue, tuple[int, int]]:
    """Where to read samples: the first and the end offset, of the queues with the largest lag."""
    return {
        queue: (
            view.offsets[queue][1] or 0,
            min(view.offsets[queue][0], (view.offsets[queue][1] or 0) + SAMPLE),
        )
        for queue in view.waiting[:SAMPLED_QUEUES]
    }


def has_open_question(view: LagView) -> bool:
    """Whether a second look at the members tells a stuck message from one that is handled."""
    return any(
        queue in view.offsets and _done_behind(view, queue, state)
        for info in view.answers.values()
        for queue, state in info.queue_table.items()
    )


def lag_causes(view: LagView) -> list[LagCause]:
    """Return why messages wait; the first cause has to be removed first."""
    if not view.members and view.waiting:
        return [*_switched_off(view), _no_member(view)]
    causes = [cause for check in _CHECKS for cause in check(view)]
    if not causes and view.waiting:
        total = sum(map(view.lag, view.waiting))
        causes.append(
            LagCause(
                "catching-up",
                f"{total:,} messages wait in {_queue_names(view.waiting)}, and members take them",
                "wait, or give the group more handlers, members and queues",
            )
        )
    return causes


def _switched_off(view: LagView) -> Iterator[LagCause]:
    if view.switched_off:
        yield LagCause(
            "switched-off",
            f"the group may not consume at {', '.join(view.switched_off)} (consumeEnable=false)",
            f"mqadmin updateSubGroup -g {view.group} -s true, at each broker",
        )


def _no_member(view: LagView) -> LagCause:
    total = sum(map(view.lag, view.waiting))
    return LagCause(
        "no-consumer",
        f"{total:,} messages wait in {_queue_names(view.waiting)}, and no member is online",
        "start a consumer of the group; if nobody needs the messages, delete the group: "
        f"cometmq group delete {view.group}",
    )


def _silent(view: LagView) -> Iterator[LagCause]:
    silent = [name for name, info in view.members.items() if info is None]
    if silent:
        yield LagCause(
            "no-answer",
            f"{_names(silent)} did not answer a broker, which relayed the question",
            "the process may hang or be cut off: look at it, or end it, so that others get its"
            " queues",
        )


def _differences(view: LagView) -> Iterator[LagCause]:
    text = difference_text(
        {
            name: {item.topic: item for item in info.subscriptions}
            for name, info in view.answers.items()
            if info.subscriptions
        }
    )
    if text is not None:
        yield LagCause(
            "different-subscriptions",
            f"members want different messages: {text}",
            "a broker of CometMQ gives each message to a member that wants it, and keeps those of a"
            " filter whose members are away; RocketMQ's broker loses messages: make them equal",
        )


def _allocation(view: LagView) -> Iterator[LagCause]:
    """More members than queues, uneven shares, queues that nobody has or wants."""
    for topic in dict.fromkeys(queue.topic for queue in view.waiting):
        queues = [queue for queue in view.offsets if queue.topic == topic]
        wanting = {name: info for name, info in view.answers.items() if topic in _topics_of(info)}
        if not wanting and len(view.answers) == len(view.members):
            yield LagCause(
                "topic-not-wanted",
                f"no member subscribes to {topic}, where "
                f"{sum(view.lag(queue) for queue in queues):,} messages wait",
                "start a member that does, or skip them: cometmq group reset "
                f"{view.group} {topic} --to-latest",
            )
            continue
        counts = {
            name: sum(queue in info.queue_table for queue in queues)
            for name, info in wanting.items()
        }
        idle = [name for name, count in counts.items() if not count]
        orphans = [queue for queue in queues if view.lag(queue) and not view.owners(queue)]
        if orphans and len(view.answers) == len(view.members):
            yield LagCause(
                "orphaned-queues",
                f"no member has {_queue_names(orphans)}, where messages wait",
                "a rebalance is under way for seconds; if it stays, members use different"
                " strategies or an ordered one waits for a lock of a member that hangs",
            )
        if len(wanting) > len(queues):
            yield LagCause(
                "fewer-queues-than-members",
                f"{len(wanting)} members share the {len(queues)} queues of {topic}: "
                f"{_names(idle)} get nothing",
                f"give it more queues (cometmq topic grow {topic}), or run fewer members",
            )
        elif counts and max(counts.values()) - min(counts.values()) > 1:
            shares = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
            yield LagCause(
                "uneven-allocation",
                f"the queues of {topic} are not divided evenly: {shares}",
                "wait for the next rebalance (20 s); if it stays, members use different strategies",
            )


def _paused(view: LagView) -> Iterator[LagCause]:
    for name, info in view.answers.items():
        paused = [
            queue
            for queue, state in info.queue_table.items()
            if state.get("paused") and queue in view.offsets and view.lag(queue)
        ]
        if paused:
            yield LagCause(
                "paused",
                f"the program of {name} has paused {_queue_names(paused)}",
                "have it call resume()",
            )


def _handlers(view: LagView) -> Iterator[LagCause]:
    """A message that is not finished, and handlers that are slower than the messages come."""
    for name, info in view.answers.items():
        slow: list[MessageQueue] = []
        for queue in sorted(info.queue_table):
            if queue not in view.offsets or not view.lag(queue):
                continue
            state = info.queue_table[queue]
            if not state.get("cachedMsgCount") or state.get("paused"):
                continue
            cause = _stuck(view, name, info, queue)
            if cause is not None:
                yield cause
            else:
                slow.append(queue)
        if slow:
            yield _slow(view, name, info, slow)


def _done_behind(view: LagView, queue: MessageQueue, state: dict[str, Any]) -> int:
    """How many messages behind the first unfinished one need no handler any more.

    A member that is not held back by the messages in its memory has pulled the queue to its end.
    """
    count, first = int(state.get("cachedMsgCount") or 0), int(state["cachedMsgMinOffset"])
    if state.get("holdReason") or count >= _HELD_BACK or not count:
        return 0
    if view.now_ms - int(state.get("lastPullTimestamp") or 0) > STILL_MS:
        return 0
    return max(0, view.offsets[queue][0] - first - count)


def _stuck(
    view: LagView, name: str, info: ConsumerRunningInfo, queue: MessageQueue
) -> LagCause | None:
    state = info.queue_table[queue]
    first = int(state["cachedMsgMinOffset"])
    still_ms = view.now_ms - int(state.get("lastConsumeTimestamp") or 0)
    earlier = view.earlier.get(name)
    before = {} if earlier is None else earlier.queue_table.get(queue, {})
    is_same = before.get("cachedMsgMinOffset") == first
    done = _done_behind(view, queue, state)
    if still_ms <= STILL_MS and not (done and is_same):
        return None
    return LagCause(
        "stuck-message",
        f"{name} has not finished {_queue_name(queue)} offset {first}"
        f"{_identity(view, queue, first)}; {done} behind it are done or filtered, and the last"
        f" message was handled {still_ms / 1000:.0f} s ago",
        f"cometmq message show {queue.topic} --queue {queue.broker_name}:{queue.queue_id} --offset"
        f" {first}; mend or end the handler, or let it fail, so that the message is tried again",
        _handler_stack(info.jstack),
    )


def _slow(
    view: LagView, name: str, info: ConsumerRunningInfo, queues: list[MessageQueue]
) -> LagCause:
    rates = [
        f"{topic}: {float(row.get('consumeRT') or 0):.0f} ms a message,"
        f" {float(row.get('consumeOKTPS') or 0):.1f} done a second"
        for topic, row in sorted(info.status_table.items())
        if topic in {queue.topic for queue in queues}
    ]
    threads = info.properties.get("PROP_THREADPOOL_CORE_SIZE")
    return LagCause(
        "slow-handler",
        f"the handlers of {name} are behind in {_queue_names(queues)}"
        + (f"; {'; '.join(rates)}" if rates else "")
        + (f"; {threads} at a time" if threads else ""),
        "make the handler faster, raise the number of handlers at a time, or run more members",
        _handler_stack(info.jstack),
    )


def _not_pulled(view: LagView) -> Iterator[LagCause]:
    for queue in view.waiting:
        for name, state in view.owners(queue).items():
            pulled_ms = int(state.get("lastPullTimestamp") or 0)
            if state.get("cachedMsgCount") or state.get("paused"):
                continue
            if view.now_ms - pulled_ms > STILL_MS and len(view.owners(queue)) == 1:
                yield LagCause(
                    "not-pulled",
                    f"{name} has {_queue_name(queue)} and has pulled nothing for "
                    f"{(view.now_ms - pulled_ms) / 1000:.0f} s",
                    "look at its log and at its connection to the broker; a restart of the member"
                    " gives the queue to another",
                )


def _hot(view: LagView) -> Iterator[LagCause]:
    """One queue, or one key, that has most of the waiting messages."""
    total = sum(map(view.lag, view.waiting))
    if not total:
        return
    first = view.waiting[0]
    queue_count = sum(queue.topic == first.topic for queue in view.offsets)
    if queue_count > 1 and view.lag(first) > total * _HOT_SHARE and view.lag(first) > queue_count:
        yield LagCause(
            "hot-queue",
            f"{view.lag(first):,} of {total:,} waiting messages are in {_queue_name(first)}",
            "see whether one key or one stuck message holds it up: cometmq client stacks, cometmq"
            " message show",
        )
    messages = [message for sample in view.samples.values() for message in sample]
    keys = Counter(message.message_group or " ".join(message.keys) for message in messages)
    keys.pop("", None)
    if keys and len(messages) >= _SAMPLE_MIN:
        key, count = keys.most_common(1)[0]
        if count > len(messages) * _HOT_SHARE and len(keys) > 1:
            yield LagCause(
                "hot-key",
                f"{count} of {len(messages)} waiting messages that were read have the key {key!r}",
                "spread this key (a finer message group), or move it aside: order is kept for each"
                " key, so more queues do not help it",
            )


def _filtered(view: LagView) -> Iterator[LagCause]:
    """Waiting messages that no member wants."""
    for topic in dict.fromkeys(queue.topic for queue in view.samples):
        items = [
            item
            for info in view.answers.values()
            for item in info.subscriptions
            if item.topic == topic
        ]
        messages = [
            message for queue, sample in view.samples.items() if queue.topic == topic
            for message in sample
        ]  # fmt: skip
        if not items or len(messages) < _SAMPLE_MIN:
            continue
        count = sum(_is_wanted(items, message) for message in messages)
        if count * 2 < len(messages):
            yield LagCause(
                "filtered",
                f"{len(messages) - count} of {len(messages)} waiting messages of {topic} that were"
                f" read match no filter ({', '.join(sorted({filter_text(i) for i in items}))})",
                "these cost no handler: the group passes over them as its members pull; if they"
                " were to be handled, change the subscription",
            )


def _is_wanted(items: Sequence[SubscriptionData], message: ReceivedMessage) -> bool:
    return any(wants(item)(message.properties) for item in items)


def _retrying(view: LagView) -> Iterator[LagCause]:
    lag = sum(view.lag(queue) for queue in view.offsets if queue.topic.startswith(RETRY_PREFIX))
    failing = {
        name: sum(float(row.get("consumeFailedTPS") or 0) for row in info.status_table.values())
        for name, info in view.answers.items()
    }
    failing = {name: rate for name, rate in failing.items() if rate > 0}
    if lag or failing:
        rates = ", ".join(f"{name} {rate:.1f} a second" for name, rate in sorted(failing.items()))
        yield LagCause(
            "retrying",
            f"{lag:,} messages wait for another try now"
            + (f"; handlers fail at {rates}" if rates else ""),
            "read the handler's errors in the members' logs, and mend it; the waits between tries"
            f" are those of cometmq group show {view.group}",
        )


def _set_aside(view: LagView) -> Iterator[LagCause]:
    """Messages that the group passed over and that wait for their copies."""
    waiting = Counter[str]()
    for body in view.skipped.values():
        for item in body.ranges:
            if item.copied_to is not None and item.copied_to < item.end:
                waiting[item.topic] += item.end - item.copied_to
    for topic, count in sorted(waiting.items()):
        yield LagCause(
            "set-aside",
            f"{count:,} older messages of {topic} were passed over and come as copies",
            f"wait: cometmq group skipped {view.group} shows the progress; cometmq group backlog"
            f" {view.group} has the share of new messages",
        )


_CHECKS: Final[tuple[Callable[[LagView], Iterator[LagCause]], ...]] = (
    _switched_off,
    _silent,
    _allocation,
    _differences,
    _paused,
    _handlers,
    _not_pulled,
    _hot,
    _filtered,
    _set_aside,
    _retrying,
)


def _topics_of(info: ConsumerRunningInfo) -> set[str]:
    return {item.topic for item in info.subscriptions}


def _identity(view: LagView, queue: MessageQueue, queue_offset: int) -> str:
    for message in view.samples.get(queue, ()):
        if message.queue_offset == queue_offset:
            keys = f", keys {' '.join(message.keys)}" if message.keys else ""
            return f" (message {message.message_id}{keys})"
    return ""


def _handler_stack(text: str | None) -> str:
    """The first lines of a handler that works, among the stacks of a member."""
    for block in re.split(r"\n\s*\n", text or ""):
        title = block.strip().partition("\n")[0]
        if not re.search(r"ConsumeMessage|handler", title, re.IGNORECASE) or _IDLE.search(block):
            continue
        lines = [line.rstrip() for line in block.strip().splitlines()]
        # Python prints the innermost frame last, Java first.
        is_python = 'File "' in block
        return "\n".join(
            lines[:1] + (lines[-_STACK_LINES:] if is_python else lines[1:_STACK_LINES])
        )
    return ""


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    return ", ".join(sorted(names)[:_NAMES_MAX]) + more or "nobody"


def _queue_name(queue: MessageQueue) -> str:
    return f"{queue.topic} {queue.broker_name}:{queue.queue_id}"


def _queue_names(queues: Sequence[MessageQueue]) -> str:
    return _names([_queue_name(queue) for queue in queues])
