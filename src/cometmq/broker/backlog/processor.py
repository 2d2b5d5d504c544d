"""RESCUE, REPLAY and SKIPPED: what operators ask about a group's backlog."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.backlog.reading import obstacle, queues_of, skipped_view, unfinished
from cometmq.broker.base.state import BrokerState, Refusal, answer, refusing
from cometmq.broker.base.store_failure import answer_saved
from cometmq.errors import ResponseCode, StoreError
from cometmq.wire.extensions.backlog import BacklogBody, BacklogCode, BacklogHeader

if TYPE_CHECKING:
    from cometmq.broker.backlog.service import BacklogService
    from cometmq.net.server import Handler, ServerConnection
    from cometmq.wire.command.command import RemotingCommand

__all__ = ["BacklogProcessor"]

QUEUES_MAX = 1_024


class BacklogProcessor:
    """The processors of codes 31040, 31041 and 31042."""

    def __init__(self, state: BrokerState, service: BacklogService) -> None:
        self._state = state
        self._service = service

    def handlers(self) -> dict[int, Handler]:
        """Map each code to its processor, with refusals turned into answers."""
        table: dict[int, Handler] = {
            BacklogCode.RESCUE: self.rescue,
            BacklogCode.REPLAY: self.replay,
            BacklogCode.SKIPPED: self.show,
        }
        return {code: refusing(handler) for code, handler in table.items()}

    def rescue(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes | None:
        """Serve RESCUE (31040): answered when no restart forgets it.

        Raises:
            Refusal: the group cannot skip messages, or the topic is none that it reads.
        """
        header = BacklogHeader.from_command(request)
        group, topic = header.consumer_group, header.topic
        count = self._queue_count(header)
        if topic is not None and topic not in self._state.topics:
            return answer(request, body=self._body(group, 0, []).encode())  # others have it
        self._refuse_obstacle(group)
        if topic is None or not any(True for _ in queues_of(self._state, group, topic)):
            online = self._state.consumers.get(group)
            wanted = online is not None and topic in online.subscriptions
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"group {group} consumes {topic} in order, which copies would break"
                if wanted
                else f"no member of group {group} subscribes to {topic}",
            )
        ranges, unknown = self._service.rescue(group, topic, count, now_ms)
        changed = sum(item.end - item.begin for item in ranges)
        return self._when_saved(request, connection, group, changed, unknown)

    def replay(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes | None:
        """Serve REPLAY (31041): answered when no restart forgets it.

        Raises:
            Refusal: the group cannot get copies.
        """
        header = BacklogHeader.from_command(request)
        group, topics = header.consumer_group, () if header.topic is None else (header.topic,)
        count = self._queue_count(header)
        if all(item.is_copied for item in self._state.skipped.ranges_of(group)):
            return answer(request, body=self._body(group, 0, []).encode())
        self._refuse_obstacle(group)
        changed = self._service.replay(group, topics, count, now_ms)
        return self._when_saved(request, connection, group, changed, [])

    def show(self, request: RemotingCommand, connection: ServerConnection, now_ms: int) -> bytes:
        """Serve SKIPPED (31042)."""
        group = BacklogHeader.from_command(request).consumer_group
        return answer(request, body=self._body(group, 0, []).encode())

    def _queue_count(self, header: BacklogHeader) -> int:
        count = 1 if header.queue_count is None else header.queue_count
        if not 1 <= count <= QUEUES_MAX:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER, f"queueCount is {count}, expected 1 to {QUEUES_MAX}"
            )
        return count

    def _refuse_obstacle(self, group: str) -> None:
        if group not in self._state.groups:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} does not exist"
            )
        reason = obstacle(self._state, group)
        if reason is not None:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER, f"group {group} cannot skip messages: {reason}"
            )

    def _when_saved(
        self,
        request: RemotingCommand,
        connection: ServerConnection,
        group: str,
        changed: int,
        unknown: list[int],
    ) -> bytes | None:
        def saved(failure: StoreError | None) -> None:
            frame = answer(request, body=self._body(group, changed, unknown).encode())
            answer_saved(self._state, request, connection, frame, failure)

        self._state.when_skipped_saved(saved)
        return None

    def _body(self, group: str, changed: int, unknown: list[int]) -> BacklogBody:
        return BacklogBody(
            [skipped_view(item) for item in self._state.skipped.ranges_of(group)],
            changed,
            unknown,
            obstacle(self._state, group),
            unfinished(self._state, group),
        )
