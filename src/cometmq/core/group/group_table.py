"""The subscription groups of one broker: settings, creation on demand, forbidden topics.

The table has `SubscriptionGroupConfig` values and their `DataVersion`.  It saves nothing itself:
its owner saves it when `revision` has grown.  `cometmq.core.group.consumer_group` knows which
members of a group are online.

Source: SubscriptionGroupManager of RocketMQ 5.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cometmq.model.flags import PERM_READ
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.names import SYSTEM_GROUPS, TOOLS_GROUP, check_group, is_system_group
from cometmq.model.topic import DataVersion

__all__ = ["SubscriptionGroupTable", "system_groups"]

_NOT_BROADCAST: Final = frozenset({TOOLS_GROUP, "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP"})


def system_groups() -> list[SubscriptionGroupConfig]:
    """List the groups that exist from a broker's first start
    (docs/internals/store.md#topics-and-groups-at-first-boot)."""
    return [
        SubscriptionGroupConfig(name, consume_broadcast_enable=True)
        if name not in _NOT_BROADCAST
        else SubscriptionGroupConfig(name)
        for name in SYSTEM_GROUPS
    ]


class SubscriptionGroupTable:
    """Groups by name; every change moves `version` and `revision`."""

    def __init__(
        self,
        groups: Mapping[str, SubscriptionGroupConfig] | None = None,
        version: DataVersion | None = None,
        *,
        auto_create: bool = True,
        forbidden: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        self._groups: dict[str, SubscriptionGroupConfig] = dict(groups or {})
        self.auto_create = auto_create
        """Whether `find` makes a group that is missing."""
        self.forbidden = {group: dict(topics) for group, topics in (forbidden or {}).items()}
        self.version = version or DataVersion()
        self.revision = 0

    def __contains__(self, group: object) -> bool:
        return group in self._groups

    def all(self) -> Mapping[str, SubscriptionGroupConfig]:
        """The live table; callers only read it."""
        return self._groups

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """The group's settings; None if it does not exist."""
        return self._groups.get(group)

    def find(self, group: str, now_ms: int) -> SubscriptionGroupConfig | None:
        """The group's settings; a missing group is created if that is allowed.

        None if the group does not exist and automatic creation is off, or its name is illegal.
        """
        known = self._groups.get(group)
        if known is not None:
            return known
        if not (self.auto_create or is_system_group(group)) or check_group(group) is not None:
            return None
        created = SubscriptionGroupConfig(group)
        self.put(created, now_ms)
        return created

    def seed(self, now_ms: int) -> None:
        """Add the system groups that are missing."""
        for config in system_groups():
            if config.group_name not in self._groups:
                self.put(config, now_ms)

    def put(self, config: SubscriptionGroupConfig, now_ms: int) -> None:
        """Create or replace a group."""
        self._groups[config.group_name] = config
        self._changed(now_ms)

    def delete(self, group: str, now_ms: int) -> bool:
        """Remove a group; False when it did not exist."""
        self.forbidden.pop(group, None)
        if self._groups.pop(group, None) is None:
            return False
        self._changed(now_ms)
        return True

    def is_read_forbidden(self, group: str, topic: str) -> bool:
        """Whether an operator forbade the group to read the topic."""
        return bool(self.forbidden.get(group, {}).get(topic, 0) & PERM_READ)

    def forbid_reading(self, group: str, topic: str, is_forbidden: bool, now_ms: int) -> None:
        """Forbid or allow a group to read a topic; other bits of the mask stay."""
        topics = self.forbidden.get(group, {})
        known = topics.get(topic, 0)
        mask = known | PERM_READ if is_forbidden else known & ~PERM_READ
        if mask == known:
            return
        if mask:
            self.forbidden.setdefault(group, {})[topic] = mask
        else:
            del topics[topic]
            if not topics:
                del self.forbidden[group]
        self._changed(now_ms)

    def _changed(self, now_ms: int) -> None:
        self.version = self.version.next(now_ms)
        self.revision += 1
