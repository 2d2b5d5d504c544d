"""The admin client's call that explains why messages of a group wait.

It asks brokers for offsets and settings, each member for its own report with stacks, and reads a
few waiting messages; `lag_causes` judges.  Nothing is changed.
"""

import contextlib
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from cometmq.client.admin.lag_causes import (
    LagCause,
    LagView,
    first_waiting,
    has_open_question,
    lag_causes,
)
from cometmq.client.base.calls import BrokerCalls
from cometmq.client.base.transport import Io
from cometmq.errors import CometError, NoRoute, RequestNotSupported
from cometmq.model import MessageQueue, SubscriptionGroupConfig
from cometmq.model.names import is_system_group, retry_topic
from cometmq.wire.body.admin import decode_group_config_wrapper
from cometmq.wire.body.client import ConsumerRunningInfo
from cometmq.wire.body.stats import decode_broker_consume_stats
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.extensions.backlog import BacklogBody, BacklogCode, BacklogHeader
from cometmq.wire.header.admin import IsOrderHeader
from cometmq.wire.header.headers import RunningInfoHeader

if TYPE_CHECKING:
    from cometmq.client.admin.calls import QueueProgress
    from cometmq.client.base.reading import QueueReader

__all__ = ["LagCalls"]

SECOND_LOOK_S: Final = 2.0
"""Most handlers finish within this time."""
SECOND_LOOK_ALL_S: Final = 1.0
"""For all groups at once."""


class _LagAdmin(Protocol):
    _io: Io
    _calls: BrokerCalls

    async def _masters(
        self, cluster: str | None = None, broker_name: str | None = None
    ) -> dict[str, str]: ...

    async def group_topics(self, group: str) -> list[str]: ...

    async def group_offsets(
        self, group: str, topics: Iterable[str] | None = None
    ) -> "dict[MessageQueue, QueueProgress]": ...

    async def group_configs(self, group: str) -> dict[str, SubscriptionGroupConfig]: ...

    async def consumer_list(self, group: str) -> list[str]: ...

    async def consumer_running_info(
        self, group: str, client_id: str, *, stacks: bool = False
    ) -> ConsumerRunningInfo: ...

    async def skipped(self, group: str) -> dict[str, BacklogBody]: ...

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
        with contextlib.suppress(RequestNotSupported):
            view.skipped = await self.skipped(group)
        for queue, (first, end) in first_waiting(view).items():
            await _read_sample(self, view, queue, first, end)
        if has_open_question(view):
            await self._io.sleep(SECOND_LOOK_S)
            view.earlier, view.members = view.answers, await _answers(self, group)
            view.now_ms = self._io.env.clock.now_ms()
        return view, lag_causes(view)

    async def explain_lags(self: _LagAdmin) -> dict[str, tuple[LagView, list[LagCause]]]:
        """What waits for each group of the cluster that has ever committed, and why.

        Brokers are asked once for all groups, and members only of groups with waiting messages: of
        a thousand groups in a second or two.  Samples are of each group's fullest queue only.
        """
        views: dict[str, LagView] = {}
        now_ms, masters = self._io.env.clock.now_ms(), await self._masters()
        for name, address in masters.items():
            await _read_progress(self, name, address, views, now_ms)
        waiting = [view for view in views.values() if view.waiting]
        await self._io.together([partial(_ask_members, self, view, masters) for view in waiting])
        doubtful = [view for view in waiting if has_open_question(view)]
        if doubtful:
            passed_s = (self._io.env.clock.now_ms() - now_ms) / 1000
            await self._io.sleep(max(0.0, SECOND_LOOK_ALL_S - passed_s))
            await self._io.together([partial(_ask_again, self, one, masters) for one in doubtful])
        return {name: (view, lag_causes(view)) for name, view in sorted(views.items())}


async def _read_progress(
    admin: _LagAdmin, name: str, address: str, views: dict[str, LagView], now_ms: int
) -> None:
    """Add what a broker says about all groups."""
    command = RemotingCommand.request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    configs = decode_group_config_wrapper((await admin._calls.ask(address, command)).body).groups
    command = RemotingCommand.request(
        RequestCode.GET_BROKER_CONSUME_STATS, IsOrderHeader().to_ext()
    )
    answer = await admin._calls.ask(address, command)
    for group, items in decode_broker_consume_stats(answer.body).items():
        if is_system_group(group):
            continue
        view = views.setdefault(group, LagView(group, now_ms, {}, {}))
        for item in items:
            for queue, reached in item.queues.items():
                view.offsets[queue] = reached.broker_offset, reached.consumer_offset
        if group in configs and not configs[group].consume_enable:
            view.switched_off.append(name)


async def _ask_members(admin: _LagAdmin, view: LagView, masters: Mapping[str, str]) -> None:
    """Ask the members of a group, and read what waits first."""
    view.members = await _answers_at(admin, view.group, masters)
    for queue, (first, end) in list(first_waiting(view).items())[:1]:
        await _read_sample(admin, view, queue, first, end)
    with contextlib.suppress(RequestNotSupported):
        for name, address in masters.items():
            header = BacklogHeader(view.group)
            command = RemotingCommand.request(BacklogCode.SKIPPED, header.to_ext())
            answer = await admin._calls.ask(address, command)
            view.skipped[name] = BacklogBody.from_bytes(answer.body)


async def _ask_again(admin: _LagAdmin, view: LagView, masters: Mapping[str, str]) -> None:
    view.earlier = view.answers
    view.members = await _answers_at(admin, view.group, masters)
    view.now_ms = admin._io.env.clock.now_ms()


async def _answers_at(
    admin: _LagAdmin, group: str, masters: Mapping[str, str]
) -> dict[str, ConsumerRunningInfo | None]:
    """What each member says of itself, as `_answers`, with the masters known."""
    members: dict[str, ConsumerRunningInfo | None] = {}
    for address in masters.values():
        for client_id in await admin._calls.consumer_ids(address, group):
            if members.get(client_id) is not None:
                continue
            header = RunningInfoHeader(group, client_id, True)
            command = RemotingCommand.request(
                RequestCode.GET_CONSUMER_RUNNING_INFO, header.to_ext()
            )
            members[client_id] = None
            with contextlib.suppress(CometError):
                answer = await admin._calls.ask(address, command)
                members[client_id] = ConsumerRunningInfo.decode(answer.body)
    return members


async def _read_sample(
    admin: _LagAdmin, view: LagView, queue: MessageQueue, first: int, end: int
) -> None:
    reader = admin.queue_reader()
    with contextlib.suppress(CometError):  # what is unreadable is no reason to say nothing else
        view.samples[queue] = [each async for each in reader.read(queue, first, end)]


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
