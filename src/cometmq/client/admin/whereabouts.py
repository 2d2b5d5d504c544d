"""Where one message is for a group, and the one change that would deliver it.

Copies come first: a dead letter, a parked copy, a retry.  Then the broker of the message, or of its
newest retry, answers what it would do with it (`WHY` of CometMQ's brokers, the code that delivers,
run dry), and `judge` says it in words.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cometmq.client.base.calls import BrokerCalls
from cometmq.client.message.message import ReceivedMessage
from cometmq.errors import (
    CodecError,
    CometError,
    NoBroker,
    NoRoute,
    QueryNotFound,
    ResponseCode,
    TopicNotExist,
)
from cometmq.model import MessageQueue
from cometmq.model.names import SCHEDULE_TOPIC, dlq_topic, park_topic, retry_topic
from cometmq.wire.body.client import ConsumerRunningInfo
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.extensions.backlog import SkippedView
from cometmq.wire.extensions.why import MemberView, PullOutcome, WhyBody, WhyCode, WhyHeader

__all__ = ["Whereabouts", "WhyCalls", "judge"]


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where a message is for a group.

    ``state`` is one of ``dead``, ``parked``, ``delayed``, ``removed``, ``acknowledged``,
    ``in-hand``, ``waits``, ``no-member``, ``not-wanted``, ``filtered``, ``absent-filter``,
    ``refused``, and, of messages that the group passes over in a backlog, ``dropped`` and
    ``set-aside``; ``facts`` are what was measured, ``change`` the one change that would deliver the
    message (empty where it was delivered).
    """

    state: str
    message_id: str
    queue: MessageQueue
    queue_offset: int
    facts: list[str] = field(default_factory=list)
    change: str = ""


class _WhyAdmin(Protocol):
    _calls: BrokerCalls

    async def _address(self, queue: MessageQueue) -> str: ...

    async def view_message(self, message_id: str, topic: str | None = None) -> ReceivedMessage: ...

    async def query_message(
        self, topic: str, key: str, *, is_unique_id: bool = False
    ) -> list[ReceivedMessage]: ...

    async def group_topics(self, group: str) -> list[str]: ...

    async def consumer_running_info(
        self, group: str, client_id: str, *, stacks: bool = False
    ) -> ConsumerRunningInfo: ...


class WhyCalls:
    """The admin client's call about one message and one group."""

    async def why(
        self: _WhyAdmin, message_id: str, group: str, topic: str | None = None
    ) -> Whereabouts:
        """Where a message is for a group, and what would deliver it.

        Args:
            message_id: the id that the producer got, or a broker's.
            topic: of the message; None looks in the topics of the group.

        Raises:
            QueryNotFound: no broker has the message.
            RequestNotSupported: the message's broker is not one of CometMQ.
        """
        message = await _find(self, message_id, group, topic)
        unique_id = message.message_id
        for state, name, change in (
            ("dead", dlq_topic(group), f"cometmq dead-letters redrive {group}"),
            ("parked", park_topic(group), f"cometmq parking retry {group}"),
        ):
            copies = await _copies(self, name, unique_id)
            if copies:
                return _put_aside(state, message, copies[-1], change)
        retries = await _copies(self, retry_topic(group), unique_id)
        delayed = await _copies(self, SCHEDULE_TOPIC, unique_id)
        newest = max(retries, key=lambda copy: copy.reconsume_times, default=message)
        later = [copy for copy in delayed if copy.reconsume_times > newest.reconsume_times]
        if later:
            return _delayed(message, later[-1], group)
        queue = newest.message_queue
        header = WhyHeader(group, newest.stored.topic, queue.queue_id, newest.queue_offset)
        command = RemotingCommand.request(WhyCode.WHY, header.to_ext())
        answer = await self._calls.ask(await self._address(queue), command)
        body = WhyBody.from_bytes(answer.body)
        in_hand = await _in_hand(self, group, queue, newest.queue_offset, body)
        tries = [] if newest is message else [f"try number {newest.reconsume_times + 1}"]
        if newest is not message and not newest.reconsume_times:
            tries = [f"copied from {message.message_queue} offset {message.queue_offset}"]
        return judge(body, message.message_id, group, queue, newest.queue_offset, in_hand, tries)


async def _find(
    admin: _WhyAdmin, message_id: str, group: str, topic: str | None
) -> ReceivedMessage:
    topics: Iterable[str | None] = [topic]
    if topic is None:
        topics = [None, *await admin.group_topics(group)]
    for name in topics:
        try:
            return await admin.view_message(message_id, name)
        except NoBroker:
            raise
        except (QueryNotFound, NoRoute, TopicNotExist, CodecError):
            continue  # no message of this topic, or no offset id
    raise QueryNotFound(
        ResponseCode.QUERY_NOT_FOUND,
        f"no message has the id {message_id} in {topic or f'a topic of {group}'}: it was never"
        " stored, or retention has removed it; name its topic if the group never read it",
    )


async def _copies(admin: _WhyAdmin, topic: str, unique_id: str) -> list[ReceivedMessage]:
    try:
        return await admin.query_message(topic, unique_id, is_unique_id=True)
    except NoBroker:
        raise
    except (NoRoute, TopicNotExist):
        return []  # the group has never had such copies


def _put_aside(
    state: str, message: ReceivedMessage, copy: ReceivedMessage, change: str
) -> Whereabouts:
    tries = copy.reconsume_times
    return Whereabouts(
        state,
        message.message_id,
        copy.message_queue,
        copy.queue_offset,
        [f"put into {copy.message_queue} offset {copy.queue_offset} after {tries} tries"],
        change,
    )


def _delayed(message: ReceivedMessage, copy: ReceivedMessage, group: str) -> Whereabouts:
    level = copy.properties.get("DELAY", "?")
    return Whereabouts(
        "delayed",
        message.message_id,
        copy.message_queue,
        copy.queue_offset,
        [f"failed {copy.reconsume_times} times; the next try waits at delay level {level}"],
        f"wait; cometmq group show {group} has the pauses between tries",
    )


async def _in_hand(
    admin: _WhyAdmin, group: str, queue: MessageQueue, queue_offset: int, body: WhyBody
) -> str | None:
    """The member that has pulled the message and not finished it."""
    for member in body.members:
        if member.outcome is not PullOutcome.DELIVERS:
            continue
        try:
            info = await admin.consumer_running_info(group, member.client_id)
        except CometError:
            continue
        state = info.queue_table.get(queue, {})
        first, last = state.get("cachedMsgMinOffset", 0), state.get("cachedMsgMaxOffset", 0)
        if state.get("cachedMsgCount") and first <= queue_offset <= last:
            return member.client_id
    return None


def judge(
    body: WhyBody,
    message_id: str,
    group: str,
    queue: MessageQueue,
    queue_offset: int,
    in_hand: str | None = None,
    facts: Sequence[str] = (),
) -> Whereabouts:
    """Say a broker's view of a message in words."""

    def of(state: str, measured: Iterable[str], change: str = "") -> Whereabouts:
        told = [*facts, f"stored in {queue} offset {queue_offset}", *measured]
        return Whereabouts(state, message_id, queue, queue_offset, told, change)

    if queue_offset < body.min_offset:
        text = f"the queue begins at {body.min_offset}: retention has removed the message"
        return of("removed", [text], "none: raise fileReservedTime for later messages")
    skipped = body.skipped
    if skipped is not None and (skipped.copied_to is None or skipped.copied_to <= queue_offset):
        return of(*_passed_over(skipped, group, queue_offset, body.now_ms))
    takers = [member for member in body.members if member.outcome is PullOutcome.DELIVERS]
    reached = [member.next_offset for member in takers if member.next_offset is not None]
    committed = min(reached) if reached else body.group_offset
    if (takers or not body.members) and committed is not None and committed > queue_offset:
        return of("acknowledged", _passed(body, committed))
    if not body.members:
        return of("no-member", ["no member is online"], f"start a consumer of {group}")
    if in_hand is not None:
        text = f"{in_hand} has it in memory and has not finished it"
        return of("in-hand", [text], f"cometmq client stacks {in_hand} --group {group}")
    if takers:
        change = f"let the messages before it be handled: cometmq group lag {group} --explain"
        return of("waits", _before(body, takers, committed, queue_offset), change)
    return of(*_not_taken(body, group, queue))


def _passed_over(
    skipped: SkippedView, group: str, queue_offset: int, now_ms: int
) -> tuple[str, list[str], str]:
    """Return state, facts and change for a message that the group passes over."""
    seconds = max(0, now_ms - skipped.at_ms) / 1000
    reason = f"passed over because of {skipped.reason} {seconds:.0f} s ago"
    facts = [f"{reason}, with offsets {skipped.begin} to {skipped.end - 1}"]
    if skipped.copied_to is None:
        return "dropped", facts, f"cometmq group replay {group} {skipped.topic}"
    facts.append(f"{queue_offset - skipped.copied_to} messages are copied before it")
    return "set-aside", facts, f"wait; cometmq group skipped {group} shows the progress"


def _passed(body: WhyBody, committed: int) -> list[str]:
    facts = [f"the group goes on from {committed}"]
    if body.acknowledged_by is not None and body.acknowledged_ms is not None:
        seconds = max(0, body.now_ms - body.acknowledged_ms) / 1000
        facts.append(f"acknowledged by {body.acknowledged_by} {seconds:.0f} s ago")
    return facts


def _before(
    body: WhyBody, takers: Sequence[MemberView], committed: int | None, queue_offset: int
) -> list[str]:
    names = ", ".join(sorted({member.client_id for member in takers}))
    begin = body.min_offset if committed is None else committed
    facts = [f"{max(0, queue_offset - begin)} messages are before it", f"would go to {names}"]
    if body.lock_owner is not None:
        facts.append(f"the queue is locked by {body.lock_owner}")
    return facts


def _not_taken(body: WhyBody, group: str, queue: MessageQueue) -> tuple[str, list[str], str]:
    """Return state, facts and change for a message that no member would get."""
    reasons = [f"{member.client_id}: {member.reason}" for member in body.members if member.reason]
    if body.absent_filters:
        filters = ", ".join(body.absent_filters)
        text = f"wanted by {filters}, whose members are away"
        return "absent-filter", [text, *reasons], f"start a member with {filters}"
    wanting = [member for member in body.members if member.wants_topic]
    refused = [member for member in wanting if member.outcome is PullOutcome.REFUSED]
    if not wanting:
        text = f"no member subscribes to {queue.topic}"
        return "not-wanted", [text], f"subscribe to {queue.topic} in a member of {group}"
    if refused:
        return "refused", reasons, "remove what the broker names"
    return "filtered", reasons, "subscribe to the message's tag or properties"
