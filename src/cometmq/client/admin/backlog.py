"""The admin client's calls about what a group passes over in a backlog."""

from dataclasses import replace
from typing import Final, Protocol

from cometmq.client.base.calls import BrokerCalls
from cometmq.core.group.backlog_rules import DROP_AGE, DROP_LAG, FRESH_LAG, FRESH_SHARE
from cometmq.errors import ConfigError
from cometmq.model import SubscriptionGroupConfig
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.extensions.backlog import BacklogBody, BacklogCode, BacklogHeader

__all__ = ["RESCUE_QUEUES", "BacklogCalls"]

RESCUE_QUEUES: Final = 16


class _BacklogAdmin(Protocol):
    _calls: BrokerCalls

    async def _masters(
        self, cluster: str | None = None, broker_name: str | None = None
    ) -> dict[str, str]: ...

    async def group_configs(self, group: str) -> dict[str, SubscriptionGroupConfig]: ...

    async def create_group(
        self,
        config: SubscriptionGroupConfig,
        *,
        cluster: str | None = None,
        broker_name: str | None = None,
    ) -> None: ...

    async def _ask_about_backlog(
        self, code: BacklogCode, group: str, topic: str | None, queue_count: int | None
    ) -> dict[str, BacklogBody]: ...


class BacklogCalls:
    """Rules, rescue and replay of a group."""

    async def set_backlog_rules(
        self: _BacklogAdmin,
        group: str,
        *,
        drop_age_ms: int | None = None,
        drop_lag: int | None = None,
        fresh_share: float | None = None,
        fresh_lag: int | None = None,
    ) -> None:
        """Replace the rules of a group at all brokers that know it; what is None is off.

        Args:
            drop_age_ms: drop messages that were stored longer ago.
            drop_lag: where more messages of a queue wait, drop the oldest, down to half of it.
            fresh_share: the part of deliveries for the newest messages, from 0.01 to 0.99; the
                others fill the past.
            fresh_lag: where more messages of a queue wait, they belong to the past; 1,000 if None.

        Raises:
            ConfigError: no broker knows the group, or the share is out of range.
            RemoteError: a broker refused a value.
        """
        if fresh_share is not None and not 0.01 <= fresh_share <= 0.99:
            raise ConfigError(f"fresh_share is {fresh_share}, expected 0.01 to 0.99")
        percent = None if fresh_share is None else round(fresh_share * 100)
        values = {
            DROP_AGE: drop_age_ms,
            DROP_LAG: drop_lag,
            FRESH_SHARE: percent,
            FRESH_LAG: fresh_lag,
        }
        configs = await self.group_configs(group)
        if not configs:
            raise ConfigError(f"no broker knows the group {group}; cometmq group set --create")
        for broker_name, config in configs.items():
            changes = {f"+{key}": str(value) for key, value in values.items() if value is not None}
            changes |= {
                f"-{key}": ""
                for key, value in values.items()
                if value is None and key in config.attributes
            }
            await self.create_group(replace(config, attributes=changes), broker_name=broker_name)

    async def rescue(
        self: _BacklogAdmin, group: str, topic: str, queue_count: int = RESCUE_QUEUES
    ) -> dict[str, BacklogBody]:
        """Have the messages of a topic that no member has got copied to more queues, by broker.

        The group's retry topic gets at least so many queues, to which each broker copies its
        backlog; the group goes on behind it.  Once answered, no restart forgets it.

        Raises:
            RemoteError: the group cannot skip messages; the text says why.
        """
        return await self._ask_about_backlog(BacklogCode.RESCUE, group, topic, queue_count)

    async def replay(
        self: _BacklogAdmin, group: str, topic: str | None = None, queue_count: int = 1
    ) -> dict[str, BacklogBody]:
        """Have dropped messages of a group copied to its retry topic, by broker.

        Raises:
            RemoteError: the group cannot get copies; the text says why.
        """
        return await self._ask_about_backlog(BacklogCode.REPLAY, group, topic, queue_count)

    async def skipped(self: _BacklogAdmin, group: str) -> dict[str, BacklogBody]:
        """What a group passes over, by broker, and how far it is copied."""
        return await self._ask_about_backlog(BacklogCode.SKIPPED, group, None, None)

    async def _ask_about_backlog(
        self: _BacklogAdmin,
        code: BacklogCode,
        group: str,
        topic: str | None,
        queue_count: int | None,
    ) -> dict[str, BacklogBody]:
        header = BacklogHeader(group, topic, queue_count)
        bodies: dict[str, BacklogBody] = {}
        for name, address in (await self._masters()).items():
            answer = await self._calls.ask(address, RemotingCommand.request(code, header.to_ext()))
            bodies[name] = BacklogBody.from_bytes(answer.body)
        return bodies
