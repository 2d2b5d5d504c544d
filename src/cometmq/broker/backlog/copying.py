"""Copies skipped messages to the retry topic of their group, oldest first.

A copy keeps body, flags, sender and properties of its message.  Members get it like a message that
is tried again, but as its first try, also members of RocketMQ's clients.  Only messages that the
group's present subscription wants are copied.

How fast: a range of a rescue or a replay is copied as fast as the broker can.  A range of *fresh
first* gets its share: while new messages wait too, so many copies are made as the share gives for
the new messages that were handed out; while none wait, as many as members take.

A crash repeats no copy and forgets none.  The file has for each range up to where copies are
durable, and where the retry topic ended then.  What was copied after that is found behind this end,
by the property `REPLAY_OF`: copies of a group are made one after the other, so the last one says
how far the copying came.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from cometmq.broker.backlog.reading import obstacle, queues_of, retry_ends, unhanded, unread
from cometmq.broker.base.put_again import put_again
from cometmq.codec.ids import offset_message_id
from cometmq.codec.properties import encode_properties, find_property
from cometmq.codec.stored_message import StoredMessage, decode_messages
from cometmq.core.filter.share_filter import wants
from cometmq.core.group.backlog_rules import BacklogRules
from cometmq.core.retry.dead_letters import REPLAY_OF, position_text
from cometmq.errors import CometError, MessageIllegal, StoreError
from cometmq.model import MessageQueue
from cometmq.model import properties as prop
from cometmq.model.names import retry_topic
from cometmq.store.base.results import ColdRead, GetResult, GetStatus

if TYPE_CHECKING:
    from cometmq.broker.base.state import BrokerState
    from cometmq.core.group.skipped_ranges import SkippedRange
    from cometmq.model.group import SubscriptionData

__all__ = ["BacklogCopier"]

log = logging.getLogger("cometmq.broker")

BATCH_COUNT: Final = 32
"""Copies of one turn of the loop: about 2 ms of work."""
BATCH_BYTES: Final = 1 << 20
SOON_S: Final = 0.01
WAIT_S: Final = 1.0
AHEAD_COUNT: Final = 32
"""So many copies of *fresh first* wait in each queue of the retry topic until a member takes them:
one pull.  More would go beside new messages that come later, whatever their share."""
_FIND_COUNT: Final = 512
_READ: Final = frozenset(
    {
        GetStatus.FOUND,
        GetStatus.MESSAGE_WAS_REMOVING,
        GetStatus.NO_MATCHED_MESSAGE,
        GetStatus.OFFSET_TOO_SMALL,
    }
)
"""A read with another status tells nothing about the messages; it is done again."""
NOTED_MS: Final = 1_000
"""The table notes so often which copies are durable: its file is not written without a pause."""


@dataclass(slots=True)
class _Copying:
    """The copying of one group."""

    is_known: bool = False
    """Whether the copies of the broker's life before were looked for."""
    is_busy: bool = False
    """Whether a worker reads for it."""
    unflushed: deque[tuple[SkippedRange, int, int, dict[int, int]]] = field(default_factory=deque)
    """Range, next offset, end of the log and ends of the retry topic behind each batch."""
    turn: int = 0
    """Chooses the queue of the retry topic."""
    queue_count: int = 1
    """So many queues of it get copies."""
    handed: int | None = None
    """New messages handed out until the last look."""
    due: float = 0.0
    """How many copies the share allows."""


class BacklogCopier:
    """The copying of all groups of a broker.

    Args:
        rules_of: gives the rules of a group.
        soon: has `turn` called soon.
    """

    def __init__(
        self,
        state: BrokerState,
        rules_of: Callable[[str], BacklogRules],
        soon: Callable[[], None],
    ) -> None:
        self._state = state
        self._rules_of = rules_of
        self._soon = soon
        self._groups: dict[str, _Copying] = {}
        self.is_stopped = False
        self._noted_ms = 0
        self.copied_counts: dict[str, int] = {}
        """Copies made since the start, by group."""
        self.at: Callable[[str], None] = lambda name: None
        """Called with the name of each step."""

    # -- the turn -----------------------------------------------------------------------------

    def turn(self, now_ms: int) -> float | None:
        """Copy a batch of each group; return after how many seconds to go on, None for never."""
        wait_s: float | None = None
        for group, entry in list(self._state.skipped.all().items()):
            if not entry.is_copying:
                continue
            copying = self._groups.setdefault(group, _Copying(is_known=not entry.is_restored))
            try:
                group_wait_s = self._turn_of(group, copying, now_ms)
            except CometError as error:
                log.error("copies of skipped messages of group %s wait: %s", group, error)
                group_wait_s = WAIT_S
            wait_s = group_wait_s if wait_s is None else min(wait_s, group_wait_s)
        return wait_s

    def settle(self) -> None:
        """Note which copies are durable now, at most once in `NOTED_MS`."""
        store, now_ms = self._state.store, self._state.env.clock.now_ms()
        if not self.is_stopped and 0 <= now_ms - self._noted_ms < NOTED_MS:
            return
        self._noted_ms = now_ms
        # A stop writes the table, and then flushes the log.
        flushed = store.confirmed_offset if self.is_stopped else store.flushed_offset
        for group, copying in self._groups.items():
            done = None
            while copying.unflushed and copying.unflushed[0][2] <= flushed:
                done = copying.unflushed.popleft()
                item, next_offset, _, ends = done
                self._state.skipped.settle(group, item, next_offset, ends)

    def _turn_of(self, group: str, copying: _Copying, now_ms: int) -> float:
        self.settle()
        if copying.is_busy:
            return WAIT_S
        if obstacle(self._state, group) is not None:
            return WAIT_S
        if not copying.is_known:
            self._look_for_copies(group, copying)
            return WAIT_S
        queue_count = self._retry_queue_count(group, now_ms)
        if queue_count is None:
            return WAIT_S
        copying.queue_count = queue_count
        online = self._state.consumers.get(group)
        assert online is not None
        items = self._state.skipped.to_copy(group)
        for item in sorted(items, key=lambda one: one.is_throttled):
            subscription = online.subscriptions.get(item.topic)
            if subscription is None:
                continue  # its messages wait until somebody wants the topic again
            is_throttled = item.is_throttled and self._rules_of(group).fresh_share is not None
            count = BATCH_COUNT
            if is_throttled:
                count = min(count, self._allowance(group, copying))
            if count <= 0:
                return SOON_S
            made = self._copy(group, copying, item, subscription, count, now_ms)
            if made is None:
                return WAIT_S  # a worker reads, or the store takes nothing now
            if is_throttled:
                copying.due = max(0.0, copying.due - made)
            return 0.0 if not is_throttled else SOON_S
        return WAIT_S

    # -- how fast -----------------------------------------------------------------------------

    def _allowance(self, group: str, copying: _Copying) -> int:
        """How many copies of old messages may be made now."""
        state = self._state
        gets = state.stats.group_gets()
        topics = {queue.topic for queue in queues_of(state, group)}
        handed = sum(gets.get((topic, group), (0, 0))[0] for topic in topics)
        new = 0 if copying.handed is None else max(0, handed - copying.handed)
        copying.handed = handed
        due = copying.due + self._rules_of(group).due_copies(new)
        copying.due = min(due, float(BATCH_COUNT))
        ends = retry_ends(state, group)
        room = AHEAD_COUNT * max(1, len(ends)) - unhanded(state, group, ends)
        return min(room, int(copying.due)) if self._has_fresh(group) else room

    def _has_fresh(self, group: str) -> bool:
        """Whether new messages wait that no member has got."""
        for queue in queues_of(self._state, group):
            bounds = unread(self._state, group, queue)
            if bounds is not None and bounds[0] < bounds[1]:
                return True
        return False

    # -- copies -------------------------------------------------------------------------------

    def _copy(
        self,
        group: str,
        copying: _Copying,
        item: SkippedRange,
        subscription: SubscriptionData,
        count: int,
        now_ms: int,
        *,
        allow_cold: bool = False,
    ) -> int | None:
        """Copy some messages of a range; return how many, None when a worker reads them first."""
        state = self._state
        result = state.store.get(
            item.topic,
            item.queue_id,
            item.next_offset,
            count,
            BATCH_BYTES,
            subscription.code_set or None if subscription.expression_type == "TAG" else None,
            allow_cold=allow_cold,
        )
        if isinstance(result, ColdRead):
            copying.is_busy = True

            def warmed(_: object) -> None:
                copying.is_busy = False
                is_known = any(one is item for one in state.skipped.ranges_of(group))
                if self.is_stopped or not is_known:
                    return  # an operator has moved the group meanwhile
                try:
                    now_ms = state.env.clock.now_ms()
                    made = self._copy(
                        group, copying, item, subscription, count, now_ms, allow_cold=True
                    )
                    copying.due = max(0.0, copying.due - (made or 0))
                except CometError as error:
                    log.error("copies of skipped messages of group %s wait: %s", group, error)
                self._soon()

            state.env.workers.submit(result.warm, warmed)
            return None
        if result.status not in _READ:
            return None
        following = min(max(result.next_queue_offset, item.next_offset), item.end)
        if result.min_queue_offset > item.next_offset:
            log.warning(
                "retention has removed messages of %s:%d that group %s had skipped and not got: "
                "offsets %d to %d",
                item.topic,
                item.queue_id,
                group,
                item.next_offset,
                min(result.min_queue_offset, item.end) - 1,
            )
        takes = wants(subscription)
        made, begin = 0, item.next_offset
        for message in _records(result):
            if message.queue_offset >= item.end or not takes(message.properties):
                continue
            queue_id = copying.turn % copying.queue_count
            if not self._put(group, item, message, queue_id, now_ms):
                following = message.queue_offset
                break
            copying.turn += 1
            made += 1
            self.at("backlog.copied")
        if following == begin:
            return None
        state.skipped.copied(item, following)
        copying.unflushed.append(
            (item, following, state.store.max_physical_offset, retry_ends(state, group))
        )
        self.copied_counts[group] = self.copied_counts.get(group, 0) + made
        if not item.waiting_count:
            log.info(
                "group %s: all messages of %s:%d from %d to %d that it wants are copied",
                group,
                item.topic,
                item.queue_id,
                item.begin,
                item.end - 1,
            )
        return made

    def _retry_queue_count(self, group: str, now_ms: int) -> int | None:
        """Return how many queues the group's retry topic has; None until a restart knows them.

        It would not know queues that the topic has got just now, nor the copies in them.
        """
        state, topic = self._state, retry_topic(group)
        config = state.ensure_topic(topic, 1, now_ms)
        if not state.is_topic_saved(topic):
            state.when_topics_saved(lambda failure: None if failure else self._soon())
            return None
        return max(1, config.write_queue_count)

    def _put(
        self, group: str, item: SkippedRange, message: StoredMessage, queue_id: int, now_ms: int
    ) -> bool:
        """Append the copy of a message; False to try again later."""
        state = self._state
        queue = MessageQueue(item.topic, state.config.broker_name, item.queue_id)
        properties = dict(message.properties)
        properties.setdefault(prop.RETRY_TOPIC, item.topic)
        properties.setdefault(
            prop.ORIGIN_MESSAGE_ID, offset_message_id(message.store_host, message.physical_offset)
        )
        properties[REPLAY_OF] = position_text(queue, message.queue_offset)
        raw = encode_properties(properties)
        try:
            put_again(state, retry_topic(group), queue_id, message, raw, now_ms)
        except MessageIllegal as error:
            log.error(
                "message %d of %s cannot be copied for group %s: %s; cometmq message send-direct "
                "hands it to a member",
                message.queue_offset,
                queue,
                group,
                error,
            )
        except StoreError as error:
            log.error("copies of skipped messages of group %s wait: %s", group, error)
            return False
        return True

    # -- after a restart ----------------------------------------------------------------------

    def _look_for_copies(self, group: str, copying: _Copying) -> None:
        """Find in a worker what was copied before the start and is not in the file."""
        state = self._state
        copying.is_busy = True
        entry = state.skipped.all()[group]
        begins = {
            queue_id: entry.retry_ends.get(queue_id, 0)
            for queue_id in state.store.queues(retry_topic(group))
        }

        def done(copies: dict[str, list[int]] | BaseException) -> None:
            copying.is_busy = False
            if self.is_stopped:
                return
            if isinstance(copies, BaseException):
                log.error("copies of group %s cannot be looked for: %s", group, copies)
                return
            copying.is_known = True
            # Later copies must not make a restart look behind these.
            end, ends = state.store.max_physical_offset, retry_ends(state, group)
            for item in entry.ranges:
                queue = MessageQueue(item.topic, state.config.broker_name, item.queue_id)
                copied = [
                    queue_offset
                    for queue_offset in copies.get(str(queue), ())
                    if item.safe_offset <= queue_offset < item.end
                ]
                if item.is_copied and copied:
                    state.skipped.copied(item, max(copied) + 1)
                    copying.unflushed.append((item, max(copied) + 1, end, ends))
            self._soon()

        state.env.workers.submit(partial(_copies_behind, state, group, begins), done)


def _copies_behind(state: BrokerState, group: str, begins: dict[int, int]) -> dict[str, list[int]]:
    """Read which messages have their copies behind these offsets: by queue.  Blocks."""
    copies: dict[str, list[int]] = {}
    topic = retry_topic(group)
    for queue_id, begin in begins.items():
        queue_offset = max(begin, state.store.min_queue_offset(topic, queue_id))
        while queue_offset < state.store.max_queue_offset(topic, queue_id):
            result = state.store.get(topic, queue_id, queue_offset, _FIND_COUNT, allow_cold=True)
            if isinstance(result, ColdRead) or result.next_queue_offset <= queue_offset:
                break
            for message in _records(result):
                position = find_property(message.raw_properties, REPLAY_OF.encode())
                if position is not None:
                    queue, _, offset = position.decode().rpartition(":")
                    copies.setdefault(queue, []).append(int(offset))
            queue_offset = result.next_queue_offset
    return copies


def _records(result: GetResult) -> list[StoredMessage]:
    return decode_messages(b"".join(result.chunks)) if result.status is GetStatus.FOUND else []
