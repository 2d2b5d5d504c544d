"""WHY: where a message is for a group, answered by the code that delivers, run dry.

For each member the broker makes the pull that the member would send from the message's offset, and
takes the steps of `broker.pull` with it: the checks, the member's part of the group, the filter and
the read.  It leaves out what changes something: commits, resets, statistics and waiting.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cometmq.broker.backlog.reading import skipped_view
from cometmq.broker.base.state import BrokerState, Refusal, answer, in_worker
from cometmq.codec.properties import decode_properties
from cometmq.codec.stored_message import decode_message, properties_of
from cometmq.core.filter.share_filter import wants
from cometmq.core.group.filter_shares import filter_text
from cometmq.errors import CometError
from cometmq.model import MessageQueue
from cometmq.model.names import RETRY_PREFIX
from cometmq.store.base.results import ColdRead, GetResult, GetStatus
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.extensions.why import MemberView, PullOutcome, WhyBody, WhyHeader
from cometmq.wire.header.headers import PullMessageHeader

if TYPE_CHECKING:
    from cometmq.broker.pull.acknowledged import Acknowledgements
    from cometmq.broker.pull.pull import PullProcessor
    from cometmq.net.server import ServerConnection
    from cometmq.wire.extensions.backlog import SkippedView

__all__ = ["WhyProcessor"]


class WhyProcessor:
    """The processor of code 31030."""

    def __init__(
        self, state: BrokerState, pull: PullProcessor, acknowledgements: Acknowledgements
    ) -> None:
        self._state = state
        self._pull = pull
        self._acknowledgements = acknowledgements

    def why(self, request: RemotingCommand, connection: ServerConnection, now_ms: int) -> None:
        """Serve WHY (31030); a worker reads the record first, so that no read blocks the loop."""
        header = WhyHeader.from_command(request)
        store = self._state.store

        def warm() -> None:
            result = store.get(header.topic, header.queue_id, header.queue_offset, 1)
            if isinstance(result, ColdRead):
                result.warm()

        def finish(_: None) -> bytes:
            return answer(request, body=self.view(header, now_ms).encode())

        in_worker(self._state, request, connection, warm, finish)

    def view(self, header: WhyHeader, now_ms: int) -> WhyBody:
        """What each member would get, and what keeps the message from it."""
        state = self._state
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        online = state.consumers.get(group)
        keys = [] if online is None else list(online.members)
        properties = self._properties(header)
        body = WhyBody(
            now_ms,
            state.store.min_queue_offset(topic, queue_id),
            state.store.max_queue_offset(topic, queue_id),
            state.offsets.query(group, topic, queue_id),
            [self._member_view(header, key, properties, now_ms) for key in keys],
            group in state.groups,
            absent_filters=state.shares.absent_filters(group, topic, properties, wants),
            skipped=self._skipped(header),
        )
        for reader in dict.fromkeys([*self._readers(header, keys, now_ms), group]):
            queue = MessageQueue(topic, state.config.broker_name, queue_id)
            body.lock_owner = body.lock_owner or state.queue_locks.owner(reader, queue, now_ms)
            passed = self._acknowledgements.find(reader, topic, queue_id, header.queue_offset)
            if passed is not None and body.acknowledged_by is None:
                body.acknowledged_by, body.acknowledged_ms = passed.client_id, passed.at_ms
        return body

    def _skipped(self, header: WhyHeader) -> SkippedView | None:
        item = self._state.skipped.find(
            header.consumer_group, header.topic, header.queue_id, header.queue_offset
        )
        return None if item is None else skipped_view(item)

    def _readers(
        self, header: WhyHeader, keys: list[ServerConnection], now_ms: int
    ) -> Iterator[str]:
        """Under which names the members that may get the message keep offsets and locks."""
        shares, group = self._state.shares, header.consumer_group
        for key in keys:
            part = shares.part(group, header.topic, key, now_ms)
            if part is not None and self.dry_pull(header, key, now_ms)[0] is PullOutcome.DELIVERS:
                yield part.reader

    def _properties(self, header: WhyHeader) -> dict[str, str]:
        """The message's properties; none where the queue has no message there."""
        store = self._state.store
        try:
            result = store.get(
                header.topic, header.queue_id, header.queue_offset, 1, allow_cold=True
            )
            if isinstance(result, GetResult) and result.chunks:
                return decode_properties(properties_of(memoryview(bytes(result.chunks[0]))))
        except CometError:
            pass
        return {}

    def _member_view(
        self, header: WhyHeader, key: ServerConnection, properties: dict[str, str], now_ms: int
    ) -> MemberView:
        state, group = self._state, header.consumer_group
        online = state.consumers.get(group)
        assert online is not None
        part = state.shares.part(group, header.topic, key, now_ms)
        reached = state.shares.offset_of(part, group, header.topic, header.queue_id)
        own = online.wishes.get(key, {}).get(header.topic)
        outcome, reason = self.dry_pull(header, key, now_ms)
        if outcome is PullOutcome.FILTERED and own is not None:
            reason = f"{filter_text(own)} leaves it out"
            if wants(own)(properties) or header.topic.startswith(RETRY_PREFIX):
                reason = "members whose filter joined before get it"
        return MemberView(online.members[key].client_id, outcome, reason, reached, own is not None)

    def dry_pull(
        self, header: WhyHeader, key: ServerConnection, now_ms: int
    ) -> tuple[PullOutcome, str]:
        """What a member's pull that begins at the message would get first, and why."""
        pull = PullMessageHeader(
            consumer_group=header.consumer_group,
            topic=header.topic,
            queue_id=header.queue_id,
            queue_offset=header.queue_offset,
            max_msg_nums=1,
            sys_flag=0,
            commit_offset=0,
            suspend_timeout_ms=0,
        )
        try:
            decision = self._pull.decide(pull, key, now_ms)
        except Refusal as refusal:
            return PullOutcome.REFUSED, refusal.remark.strip()
        if not decision.is_owner:
            return PullOutcome.WAITS, "other members with the same filter get this queue's messages"
        result = self._pull.read(pull, decision, allow_cold=True)
        if not isinstance(result, GetResult):
            return PullOutcome.GONE, "the record cannot be read now"
        place = header.consumer_group, header.topic, header.queue_id
        if decision.part is None and self._pull.may_skip(pull, key):
            following = self._state.skipped.following(*place, header.queue_offset)
            if following != header.queue_offset:
                return PullOutcome.SKIPPED, f"the group goes on at {following}"
        if result.status is GetStatus.FOUND:
            first = decode_message(bytes(result.chunks[0]), 0)
            if first.queue_offset == header.queue_offset:
                return PullOutcome.DELIVERS, ""
        if result.status in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE):
            return PullOutcome.FILTERED, "the filter leaves it out"
        return PullOutcome.GONE, f"the queue has no message there ({result.status.name})"
