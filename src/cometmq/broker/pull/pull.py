"""PULL_MESSAGE and LITE_PULL_MESSAGE: reading queues, with long polling.

A pull is checked in the order of docs/internals/delivery.md#pull-checks, read, and answered by the
status table of docs/internals/protocol.md#pulling, or held until there is something to answer.
Nothing here blocks: a worker reads bytes that are not in memory, and the pull is answered when they
are.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from cometmq import native
from cometmq.broker.base.state import FAQ, BrokerState, Refusal, answer
from cometmq.broker.pull.filters import FilterService, OwnFilter, RecordFilter
from cometmq.broker.pull.hold import HeldPull, PullHold
from cometmq.broker.pull.late_commits import is_late
from cometmq.broker.pull.pull_plans import PULL_BYTES_MAX, PlannedPull, PullFront
from cometmq.codec.stored_message import PHYSICAL_OFFSET_POSITION
from cometmq.core.filter.share_filter import filter_of_part
from cometmq.core.filter.skip_filter import SkipFilter
from cometmq.core.filter.tag_filter import filter_codes, is_tag_type, parse_subscription
from cometmq.core.group.filter_shares import SharePart
from cometmq.errors import RemoteProtocolError, ResponseCode, StoreError
from cometmq.model.flags import (
    PERM_READ,
    PULL_COMMIT_OFFSET,
    PULL_LITE,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
)
from cometmq.model.group import SUBSCRIBE_ALL, SubscriptionGroupConfig
from cometmq.model.offsets import ConsumerOffset
from cometmq.model.topic import TopicConfig
from cometmq.net.env import physical_memory_bytes
from cometmq.net.server import Front, ServerConnection
from cometmq.store.base.results import ColdRead, GetResult, GetStatus
from cometmq.wire.command.command import FLAG_ONEWAY, RemotingCommand
from cometmq.wire.frame.framing import decode_frame
from cometmq.wire.header.fast_encode import encode_pull_response
from cometmq.wire.header.headers import PullMessageHeader

__all__ = ["PullProcessor"]

Frame = bytes | list[bytes | memoryview] | None

_FORBIDDEN_BROKER: Final = {"forbiddenType": "1"}
_FORBIDDEN_GROUP: Final = {"forbiddenType": "2"}
_FORBIDDEN_TOPIC: Final = {"forbiddenType": "3"}
_FORBIDDEN_BROADCAST: Final = {"forbiddenType": "4"}
_FORBIDDEN_SUBSCRIPTION: Final = {"forbiddenType": "5"}

_CODE_OF_STATUS: Final = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
"""The answers for NO_MATCHED_LOGIC_QUEUE and NO_MESSAGE_IN_QUEUE depend on the offset that the pull
asks for: 0 waits there, any other has moved."""
_HEAD_BYTES: Final = PHYSICAL_OFFSET_POSITION + 8
_MEMORY_BYTES: Final = physical_memory_bytes()


@lru_cache(maxsize=4096)
def _parsed_codes(topic: str, expression: str | None) -> frozenset[int] | None:
    return filter_codes(parse_subscription(topic, expression))


class PullDecision(NamedTuple):
    """What the checks of a pull found: how it reads, if its sender gets the queue's messages."""

    topic: TopicConfig
    group: SubscriptionGroupConfig
    part: SharePart | None
    is_owner: bool
    codes: frozenset[int] | None
    filtered: RecordFilter | None


class DecodedPull(HeldPull):
    """A pull that waits, as Python has read it."""

    __slots__ = ("header", "request")

    def __init__(
        self,
        request: RemotingCommand,
        header: PullMessageHeader,
        connection: ServerConnection,
        codes: frozenset[int] | None,
        since_ms: int,
        deadline_ms: int,
        filtered: RecordFilter | None,
    ) -> None:
        super().__init__(
            connection,
            header.consumer_group,
            header.topic,
            header.queue_id,
            header.queue_offset,
            codes,
            since_ms,
            deadline_ms,
            filtered,
        )
        self.request = request
        self.header = header


class PullProcessor:
    """The processors of codes 11 and 361, and the pulls that wait."""

    def __init__(self, state: BrokerState, filters: FilterService) -> None:
        self._state = state
        self._filters = filters
        store = state.store
        self.hold = PullHold(
            state.env.clock,
            self._run_held,
            store.max_queue_offset,
            lambda topic, queue_id, is_first: (
                store.watch(topic, queue_id) if is_first else store.unwatch(topic, queue_id)
            ),
            self._has_wanted,
        )
        self._front = PullFront(state, self.check, self.hold)

    def front(self) -> Front | None:
        """Return what serves pulls by the native core; None where it is not there."""
        return None if native.read_pull is None else self._front.serve

    def pull(self, request: RemotingCommand, connection: ServerConnection, now_ms: int) -> Frame:
        """Serve a pull; None when it was held or waits for cold bytes."""
        header = PullMessageHeader.from_command(request)
        return self._serve(request, header, connection, now_ms, may_park=True)

    def pull_with(
        self,
        request: RemotingCommand,
        header: PullMessageHeader,
        connection: ServerConnection,
        now_ms: int,
    ) -> Frame:
        """Serve a pull whose header was decoded already."""
        return self._serve(request, header, connection, now_ms, may_park=True)

    # -- checks ---------------------------------------------------------------------------

    def check(
        self, header: PullMessageHeader, connection: ServerConnection, now_ms: int
    ) -> tuple[TopicConfig, SubscriptionGroupConfig, frozenset[int] | None, OwnFilter | None]:
        """Check in Java's order; give topic, group, the wanted tag codes (None: all), the filter.

        Raises:
            Refusal: the answer's code and remark.
        """
        state = self._state
        if not state.config.broker_permission & PERM_READ:
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                f"the broker[{state.address}] pulling message is forbidden",
                _FORBIDDEN_BROKER,
            )
        if header.sys_flag & PULL_LITE and not state.config.lite_pull_message_enable:
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                f"the broker[{state.address}] for lite pull consumer is forbidden",
                _FORBIDDEN_BROKER,
            )
        group = state.groups.find(header.consumer_group, now_ms)
        if group is None:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{header.consumer_group}] does not exist, {FAQ}",
            )
        if not group.consume_enable:
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                f"subscription group no permission, {header.consumer_group}",
                _FORBIDDEN_GROUP,
            )
        topic = state.topics.get(header.topic)
        if topic is None:
            raise Refusal(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{header.topic}] not exist, apply first please! {FAQ}",
            )
        if not topic.perm & PERM_READ:
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                f"the topic[{header.topic}] pulling message is forbidden",
                _FORBIDDEN_TOPIC,
            )
        if not 0 <= header.queue_id < topic.read_queue_count:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_count}] "
                f"consumer:[/{connection.peer}]",
            )
        if header.sys_flag & PULL_SUBSCRIPTION:
            return topic, group, *self._wanted_of_request(header)
        return topic, group, *self._wanted_of_heartbeat(header, connection, group)

    def _wanted_of_request(
        self, header: PullMessageHeader
    ) -> tuple[frozenset[int] | None, OwnFilter | None]:
        if not is_tag_type(header.expression_type):
            return None, self._filters.of_request(header)
        try:
            codes = _parsed_codes(header.topic, header.subscription)
        except RemoteProtocolError as error:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"parse the consumer's subscription failed: {error}",
            ) from error
        return codes, self._filters.of_retry(header.topic)

    def _wanted_of_heartbeat(
        self,
        header: PullMessageHeader,
        connection: ServerConnection,
        group: SubscriptionGroupConfig,
    ) -> tuple[frozenset[int] | None, OwnFilter | None]:
        online = self._state.consumers.get(header.consumer_group)
        if online is None:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{FAQ}"
            )
        if online.is_broadcast and not group.consume_broadcast_enable:
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{header.consumer_group}] can not consume by broadcast way",
                _FORBIDDEN_BROADCAST,
            )
        if self._state.groups.is_read_forbidden(header.consumer_group, header.topic):
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{header.consumer_group}] is forbidden for "
                f"topic[{header.topic}]",
                _FORBIDDEN_SUBSCRIPTION,
            )
        subscription = online.subscription_of(connection, header.topic)
        if subscription is None:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{FAQ}"
            )
        newest = online.subscriptions.get(header.topic, subscription)
        # Members with equal subscriptions may have told the newest version for each other.
        is_told = (newest.sub_string, newest.expression_type) == (
            subscription.sub_string,
            subscription.expression_type,
        )
        if (newest if is_told else subscription).sub_version < header.sub_version:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
            )
        if not is_tag_type(subscription.expression_type):
            return None, self._filters.of_group(header, subscription)
        # The heartbeat processor computed the codes from the tags.
        return subscription.code_set or None, self._filters.of_retry(header.topic)

    def decide(
        self, header: PullMessageHeader, connection: ServerConnection, now_ms: int
    ) -> PullDecision:
        """Check a pull, and find what its sender reads; changes nothing.

        Raises:
            Refusal: the answer's code and remark.
        """
        topic, group, codes, own = self.check(header, connection, now_ms)
        part = self._part_of(header, connection, now_ms)
        if part is None:
            filtered = self._without_skipped(header, connection, own)
            return PullDecision(topic, group, None, True, codes, filtered)
        codes, filtered = filter_of_part(part, header.topic)
        return PullDecision(topic, group, part, part.is_owner(header.queue_id), codes, filtered)

    def read(
        self, header: PullMessageHeader, decision: PullDecision, *, allow_cold: bool
    ) -> GetResult | ColdRead:
        """Read the messages that a pull gets.

        Raises:
            StoreError: the store cannot read them.
        """
        filtered, wanted_bytes = decision.filtered, header.max_msg_bytes
        return self._state.store.get(
            header.topic,
            header.queue_id,
            header.queue_offset,
            header.max_msg_nums,
            PULL_BYTES_MAX if not wanted_bytes or wanted_bytes < 0 else wanted_bytes,
            decision.codes,
            None if filtered is None else filtered.matches,
            None if filtered is None else filtered.hint,
            () if filtered is None else filtered.needles,
            allow_cold=allow_cold,
        )

    # -- serving --------------------------------------------------------------------------

    def _serve(
        self,
        request: RemotingCommand,
        header: PullMessageHeader,
        connection: ServerConnection,
        now_ms: int,
        *,
        may_park: bool,
        allow_cold: bool = False,
    ) -> Frame:
        state = self._state
        try:
            decision = self.decide(header, connection, now_ms)
        except Refusal as refusal:
            return answer(request, refusal.code, refusal.remark, refusal.ext)
        is_settled, frame = self._settle_offset(
            request, header, connection, decision, now_ms, may_park=may_park
        )
        if is_settled:
            return frame
        config = state.config
        try:
            result = self.read(header, decision, allow_cold=allow_cold)
        except StoreError as error:
            return answer(request, ResponseCode.SYSTEM_ERROR, str(error))
        if isinstance(result, ColdRead):
            self._warm(request, header, connection, result, may_park)
            return None
        code = _CODE_OF_STATUS.get(result.status, ResponseCode.PULL_OFFSET_MOVED)
        if code is ResponseCode.PULL_OFFSET_MOVED:
            code, result = _moved(header.queue_offset, result, is_slave=config.is_slave)
        if (
            code is ResponseCode.PULL_NOT_FOUND
            and may_park
            and header.sys_flag & PULL_SUSPEND
            and not request.flag & FLAG_ONEWAY
            and not self.hold.is_full(connection)
        ):
            timeout_ms = max(0, header.suspend_timeout_ms)
            if not config.long_polling_enable:
                timeout_ms = config.short_polling_time_mills
            deadline_ms = now_ms + timeout_ms
            self.hold.add(
                DecodedPull(
                    request,
                    header,
                    connection,
                    decision.codes,
                    now_ms,
                    deadline_ms,
                    decision.filtered,
                )
            )
            return None
        if code is ResponseCode.SUCCESS:
            state.stats.got(
                header.topic,
                header.consumer_group,
                header.queue_id,
                result.count,
                result.byte_count,
                result.next_queue_offset,
            )
        else:
            state.stats.missed_pulls += 1
        return self._answer(request, code, result, decision.topic, decision.group)

    def _settle_offset(
        self,
        request: RemotingCommand,
        header: PullMessageHeader,
        connection: ServerConnection,
        decision: PullDecision,
        now_ms: int,
        *,
        may_park: bool,
    ) -> tuple[bool, Frame]:
        """Commit what the pull brings; return whether it reads nothing now, and its answer then."""
        topic, group, part = decision.topic, decision.group, decision.part
        shares = self._state.shares
        offsets, reader = shares.table_of(part, header.consumer_group)
        key = reader, header.topic, header.queue_id
        if may_park and header.sys_flag & PULL_COMMIT_OFFSET:
            header.sys_flag &= ~PULL_COMMIT_OFFSET  # commit once, however often this pull runs
            consumer_offset = ConsumerOffset(header.commit_offset)
            who = header.consumer_group, *key[1:], consumer_offset
            if offsets.may_commit(*key, consumer_offset, connection.peer, now_ms) and not is_late(
                self._state, part, *who, connection, now_ms
            ):
                shares.commit(part, *who, now_ms)
        online = self._state.consumers.get(header.consumer_group)
        offsets.note_pull(
            *key,
            header.queue_offset,
            connection.peer,
            now_ms,
            is_broadcast=online is not None and online.is_broadcast,
        )
        if part is not None and not decision.is_owner:
            return True, self._wait_for_turn(
                request, header, connection, topic, group, part, now_ms, may_park=may_park
            )
        reset = offsets.deliver_reset(*key, header.queue_offset, connection.peer)
        if reset is not None:
            return True, self._reset_answer(request, header, topic, group, reset)
        skipped = self._state.skipped
        if part is None and self.may_skip(header, connection):
            place = header.consumer_group, header.topic, header.queue_id
            if skipped.is_unsaved(*place):
                # Nobody goes past messages of which a restart would know nothing.
                self._state.when_skipped_saved(
                    lambda _: self._serve_later(
                        request, header, connection, allow_cold=False, may_park=may_park
                    )
                )
                return True, None
            following = skipped.following(*place, header.queue_offset)
            if following != header.queue_offset:
                return True, self._bare_answer(
                    request, header, topic, group, ResponseCode.PULL_RETRY_IMMEDIATELY, following
                )
        handled = None if part is None else self._skip_handled(part, header, now_ms)
        if handled is not None:
            return True, self._bare_answer(
                request, header, topic, group, ResponseCode.PULL_RETRY_IMMEDIATELY, handled
            )
        return False, None

    def _answer(
        self,
        request: RemotingCommand,
        code: int,
        result: GetResult,
        topic: TopicConfig,
        group: SubscriptionGroupConfig,
    ) -> Frame:
        return encode_pull_response(
            request.opaque,
            request.serialize_type,
            code,
            result.status.name,
            result.next_queue_offset,
            result.min_queue_offset,
            result.max_queue_offset,
            result.chunks,
            result.byte_count,
            suggest_which_broker_id=self._suggested_id(result, group),
            topic_sys_flag=topic.topic_sys_flag,
            group_sys_flag=group.group_sys_flag,
        )

    def _suggested_id(self, result: GetResult, group: SubscriptionGroupConfig) -> int:
        """Return the id of the broker of this name that the next pull is to go to.

        ================  ==========================  =======================================
        slaveReadEnable   what was read               suggestion
        ================  ==========================  =======================================
        false             anything                    0, the master
        true              more than memory may hold   the group's whichBrokerWhenConsumeSlowly
                          behind the log's end
        true, on master   anything else               the group's brokerId, usually 0
        true, on slave    anything else               0 while the master is there, else itself
        ================  ==========================  =======================================
        """
        state = self._state
        config = state.config
        if not config.slave_read_enable:
            return 0
        if result.chunks:
            head = bytes(result.chunks[0][:_HEAD_BYTES])
            position = int.from_bytes(head[PHYSICAL_OFFSET_POSITION:], "big")
            near_bytes = _MEMORY_BYTES * config.access_message_in_memory_max_ratio // 100
            if state.store.max_physical_offset - position > near_bytes:
                return group.which_broker_when_consume_slowly
        if config.is_slave:
            return 0 if state.follows_master() else config.broker_id
        return group.broker_id

    # -- skipped messages --------------------------------------------------------------------

    def may_skip(self, header: PullMessageHeader, connection: ServerConnection) -> bool:
        """Whether a pull comes from a member of a group that has skipped messages."""
        if not self._state.skipped.concerns(header.consumer_group):
            return False
        online = self._state.consumers.get(header.consumer_group)
        return online is not None and connection in online.members

    def _without_skipped(
        self,
        header: PullMessageHeader,
        connection: ServerConnection,
        filtered: OwnFilter | None,
    ) -> RecordFilter | None:
        """Add to the filter of a pull that it does not read into skipped ranges."""
        if not self.may_skip(header, connection):
            return filtered
        ranges = self._state.skipped.ahead(
            header.consumer_group, header.topic, header.queue_id, header.queue_offset
        )
        return SkipFilter(filtered, ranges) if ranges else filtered

    # -- groups whose members differ ---------------------------------------------------------

    def _part_of(
        self, header: PullMessageHeader, connection: ServerConnection, now_ms: int
    ) -> SharePart | None:
        """Return what the member reads, if its group does not read as one.

        A pull with another filter than the member's subscription is no business of its group.
        """
        group = header.consumer_group
        if not self._state.shares.is_split(group):
            return None
        part = self._state.shares.part(group, header.topic, connection, now_ms)
        if part is None or not header.sys_flag & PULL_SUBSCRIPTION:
            return part
        online = self._state.consumers.get(group)
        own = None if online is None else online.subscription_of(connection, header.topic)
        asked = header.subscription or SUBSCRIBE_ALL
        return part if own is not None and own.sub_string == asked else None

    def _wait_for_turn(
        self,
        request: RemotingCommand,
        header: PullMessageHeader,
        connection: ServerConnection,
        topic: TopicConfig,
        group: SubscriptionGroupConfig,
        part: SharePart,
        now_ms: int,
        *,
        may_park: bool,
    ) -> Frame:
        """Let a pull wait whose queue other members with the same filter read."""
        if (
            may_park
            and header.sys_flag & PULL_SUSPEND
            and not request.flag & FLAG_ONEWAY
            and not self.hold.is_full(connection)
        ):
            deadline_ms = now_ms + max(0, header.suspend_timeout_ms)
            nothing: frozenset[int] = frozenset()
            self.hold.add(
                DecodedPull(request, header, connection, nothing, now_ms, deadline_ms, None)
            )
            return None
        handled = self._state.shares.offset_of(
            part, header.consumer_group, header.topic, header.queue_id
        )
        following = max(header.queue_offset, handled or 0)
        return self._bare_answer(
            request, header, topic, group, ResponseCode.PULL_NOT_FOUND, following
        )

    def _skip_handled(
        self, part: SharePart, header: PullMessageHeader, now_ms: int
    ) -> ConsumerOffset | None:
        """Return where a pull goes on that would read again what members before it handled."""
        shares, key = self._state.shares, (header.topic, header.queue_id)
        handled = shares.offset_of(part, header.consumer_group, *key)
        if handled is None:
            # Others that come and go count on knowing where this share began.
            consumer_offset = ConsumerOffset(max(0, header.queue_offset))
            shares.commit(part, header.consumer_group, *key, consumer_offset, now_ms)
            return None
        is_new_owner = shares.takes_over(part, *key)
        return handled if is_new_owner and header.queue_offset < handled else None

    def _bare_answer(
        self,
        request: RemotingCommand,
        header: PullMessageHeader,
        topic: TopicConfig,
        group: SubscriptionGroupConfig,
        code: ResponseCode,
        following: int,
    ) -> Frame:
        """Answer without messages; the consumer goes on at `following`."""
        store = self._state.store
        return encode_pull_response(
            request.opaque,
            request.serialize_type,
            code,
            code.name,
            following,
            store.min_queue_offset(header.topic, header.queue_id),
            store.max_queue_offset(header.topic, header.queue_id),
            topic_sys_flag=topic.topic_sys_flag,
            group_sys_flag=group.group_sys_flag,
        )

    def _reset_answer(
        self,
        request: RemotingCommand,
        header: PullMessageHeader,
        topic: TopicConfig,
        group: SubscriptionGroupConfig,
        reset_offset: int,
    ) -> Frame:
        """Tell a consumer that an operator moved its offset."""
        store = self._state.store
        return encode_pull_response(
            request.opaque,
            request.serialize_type,
            ResponseCode.PULL_OFFSET_MOVED,
            "OFFSET_RESET",
            reset_offset,
            store.min_queue_offset(header.topic, header.queue_id),
            store.max_queue_offset(header.topic, header.queue_id),
            topic_sys_flag=topic.topic_sys_flag,
            group_sys_flag=group.group_sys_flag,
        )

    # -- later ----------------------------------------------------------------------------

    def _has_wanted(self, pull: HeldPull) -> bool:
        """Say whether a held pull with a filter can be answered now.

        Messages that do not match are passed over: the next check begins after them, and so does
        the consumer when the pull is answered.
        """
        filtered = pull.filter
        if filtered is None or not isinstance(pull, DecodedPull):
            return True
        header = pull.header
        try:
            result = self._state.store.get(
                pull.topic,
                pull.queue_id,
                header.queue_offset,
                1,
                match=filtered.matches,
                hint=filtered.hint,
                needles=filtered.needles,
            )
        except StoreError:
            return True
        if isinstance(result, ColdRead):
            return True
        if result.status is not GetStatus.NO_MATCHED_MESSAGE:
            return result.status is not GetStatus.OFFSET_OVERFLOW_ONE
        header.queue_offset = result.next_queue_offset
        return result.next_queue_offset < result.max_queue_offset

    def _run_held(self, pull: HeldPull) -> None:
        """Run a held pull again; this time it is answered, with or without messages."""
        connection = pull.connection
        if isinstance(pull, PlannedPull):
            if connection.is_closed:
                return
            frame = self._front.answer_held(pull, self._state.env.clock.now_ms())
            if frame is not None:
                connection.send(frame)
                return
            command = decode_frame(pull.frame)
            header = PullMessageHeader.from_command(command)
            self._serve_later(command, header, connection, allow_cold=False, may_park=False)
            return
        assert isinstance(pull, DecodedPull)
        self._serve_later(pull.request, pull.header, connection, allow_cold=False, may_park=False)

    def _warm(
        self,
        request: RemotingCommand,
        header: PullMessageHeader,
        connection: ServerConnection,
        cold: ColdRead,
        may_park: bool,
    ) -> None:
        self._state.env.workers.submit(
            cold.warm,
            lambda _: self._serve_later(
                request, header, connection, allow_cold=True, may_park=may_park
            ),
        )

    def _serve_later(
        self,
        request: RemotingCommand,
        header: PullMessageHeader,
        connection: ServerConnection,
        *,
        allow_cold: bool,
        may_park: bool,
    ) -> None:
        if connection.is_closed:
            return
        now_ms = self._state.env.clock.now_ms()
        frame = self._serve(
            request, header, connection, now_ms, may_park=may_park, allow_cold=allow_cold
        )
        if frame is not None and not request.flag & FLAG_ONEWAY:
            connection.send(frame)


def _moved(
    queue_offset: int, result: GetResult, *, is_slave: bool
) -> tuple[ResponseCode, GetResult]:
    """Return code and result for an offset that the queue does not have.

    Offset 0 of a queue without messages waits.  So does an offset behind the end at a slave: the
    consumer has read the master, and the slave is behind.
    """
    if queue_offset == 0 and result.status not in _CODE_OF_STATUS:
        return ResponseCode.PULL_NOT_FOUND, result
    if not is_slave or queue_offset <= result.max_queue_offset:
        return ResponseCode.PULL_OFFSET_MOVED, result
    return (
        ResponseCode.PULL_NOT_FOUND,
        msgspec.structs.replace(result, next_queue_offset=queue_offset),
    )
