"""The admin client's call that explains why messages of a group wait.

It asks brokers for offsets and settings, each member for its own report with stacks, and reads a
few waiting messages; `lag_causes` judges.  Nothing is changed.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol

from cometmq.client.admin.lag_causes import (
    LagCause,
    LagView,
    first_waiting,
    has_open_question,
    lag_causes,
)
from cometmq.client.base.transport import Io
from cometmq.errors import CometError, NoRoute
from cometmq.model import MessageQueue, SubscriptionGroupConfig
from cometmq.model.names import retry_topic
from cometmq.wire.body.client import ConsumerRunningInfo

if TYPE_CHECKING:
    from cometmq.client.admin.calls import QueueProgress
    from cometmq.client.base.reading import QueueReader

__all__ = ["LagCalls"]

SECOND_LOOK_S: Final = 2.0
"""Most handlers finish within this time."""


class _LagAdmin(Protocol):
    _io: Io

    async def group_topics(self, group: str) -> list[str]: ...

    async def group_offsets(
        self, group: str, topics: Iterable[str] | None = None
    ) -> "dict[MessageQueue, QueueProgress]": ...

    async def group_configs(self, group: str) -> dict[str, SubscriptionGroupConfig]: ...

    async def consumer_list(self, group: str) -> list[str]: ...

    async def consumer_running_info(
        self, group: str, client_id: str, *, stacks: bool = False
    ) -> ConsumerRunningInfo: ...

    def queue_reader(self) -> "QueueReader": ...


class LagCalls:
    """The admin client's call about the lag of a group."""

    async def explain_lag(
        self: _LagAdmin, group: str, topics: Iterable[str] | None = None
    ) -> tuple[LagView, list[LagCause]]:
        """What waits for a group, and why: the first cause has to be removed first.

        Args:
            topics: only these; None for all that the group has offsets for or members want.
        """
        view = LagView(group, self._io.env.clock.now_ms(), {}, {})
        view.members = await _answers(self, group)
        chosen = set(topics or ())
        if topics is None:
            chosen = set(await self.group_topics(group)) | {
                item.topic for info in view.answers.values() for item in info.subscriptions
            }
        for topic in sorted(chosen | {retry_topic(group)}):
            try:
                progress = await self.group_offsets(group, [topic])
            except NoRoute:
                continue  # a topic that was deleted, or that does not exist yet
            for queue, reached in progress.items():
                view.offsets[queue] = reached.broker_offset, reached.consumer_offset
        configs = await self.group_configs(group)
        view.switched_off = sorted(name for name, one in configs.items() if not one.consume_enable)
        reader = self.queue_reader()
        for queue, (first, end) in first_waiting(view).items():
            try:
                view.samples[queue] = [each async for each in reader.read(queue, first, end)]
            except CometError:
                continue  # what is unreadable is no reason to say nothing else
        if has_open_question(view):
            await self._io.sleep(SECOND_LOOK_S)
            view.earlier, view.members = view.answers, await _answers(self, group)
            view.now_ms = self._io.env.clock.now_ms()
        return view, lag_causes(view)


async def _answers(admin: _LagAdmin, group: str) -> dict[str, ConsumerRunningInfo | None]:
    """What each member says of itself; None for one that does not answer."""
    members: dict[str, ConsumerRunningInfo | None] = {}
    for client_id in await _members(admin, group):
        try:
            members[client_id] = await admin.consumer_running_info(group, client_id, stacks=True)
        except CometError:
            members[client_id] = None
    return members


async def _members(admin: _LagAdmin, group: str) -> list[str]:
    """The members at all brokers; a group without members is an answer, not an error."""
    try:
        return await admin.consumer_list(group)
    except CometError:
        return []
