"""The accounts of ACL 1.0, as `plain_acl.yml` has them, and what each may do.

    globalWhiteRemoteAddresses: [10.10.103.*]
    accounts:
      - accessKey: RocketMQ
        secretKey: 12345678
        whiteRemoteAddress:
        admin: false
        defaultTopicPerm: DENY
        defaultGroupPerm: SUB
        topicPerms: [topicA=DENY, topicB=PUB|SUB]
        groupPerms: [groupA=DENY]

A permission is for one name; a name without one has the account's default, which is to deny.  What
RocketMQ 4.9 lets every account do that signs (settings, accounts of other people, deleting topics)
needs ``admin: true`` here.

Source: PlainPermissionManager and PlainAccessResource of RocketMQ 4.9.8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Flag
from typing import Any, Final

from cometmq.core.access.policies import Action, Resource, ResourceType
from cometmq.core.access.white import WhiteAddresses
from cometmq.errors import ConfigError
from cometmq.model.names import RETRY_PREFIX, TRACE_TOPIC

__all__ = ["PlainAccount", "PlainAccounts", "PlainPermission"]

_KEY_LENGTH_MIN: Final = 7
"""RocketMQ loads no file with a shorter key."""


class PlainPermission(Flag):
    """What an account may do with a topic or a group."""

    DENY = 0
    PUB = 1
    SUB = 2


@dataclass(frozen=True, slots=True)
class PlainAccount:
    """One account."""

    name: str
    secret: str = field(repr=False)
    white: WhiteAddresses
    is_admin: bool
    topics: Mapping[str, PlainPermission]
    groups: Mapping[str, PlainPermission]
    default_topic: PlainPermission
    default_group: PlainPermission

    @property
    def is_free(self) -> bool:
        """Whether it may do everything: an administrator without lists."""
        return self.is_admin and not self.topics and not self.groups

    def refusal(self, resource: Resource, actions: Iterable[Action]) -> str | None:
        """Say why the account may not do one of these actions; None if it may."""
        wanted = frozenset(actions)
        if self.is_free:
            return None
        uses = wanted & {Action.PUB, Action.SUB}
        if self.is_admin and (not uses or uses != wanted):
            return None
        is_topic = resource.type is ResourceType.TOPIC
        if not is_topic and resource.type is not ResourceType.GROUP:
            return f"Need admin permission, but accessKey={self.name} is not"
        if resource.name == TRACE_TOPIC and Action.PUB in wanted:
            return None
        permissions = self.topics if is_topic else self.groups
        default = self.default_topic if is_topic else self.default_group
        granted = permissions.get(resource.name, default)
        allowed = {
            *((Action.PUB,) if PlainPermission.PUB in granted else ()),
            *((Action.SUB,) if PlainPermission.SUB in granted else ()),
            *((Action.GET,) if granted else ()),
        }
        if wanted & allowed:
            return None
        if not wanted & {Action.PUB, Action.SUB, Action.GET}:
            return f"Need admin permission for {resource}, but accessKey={self.name} is not"
        if resource.name in permissions:
            return f"accessKey={self.name} has no permission for {resource}"
        return f"No default permission of accessKey={self.name} for {resource}"

    @staticmethod
    def read(data: Mapping[str, Any]) -> PlainAccount:
        """Read an account; all scalars are texts.

        Raises:
            ConfigError: a key is too short, a list is none, or an address is illegal.
        """
        name, secret = data.get("accessKey") or "", data.get("secretKey") or ""
        if len(name) < _KEY_LENGTH_MIN or len(secret) < _KEY_LENGTH_MIN:
            raise ConfigError(
                f"the account {name!r}: accessKey and secretKey need {_KEY_LENGTH_MIN} characters"
                " or more"
            )
        topics, groups = _permissions(data, "topicPerms"), _permissions(data, "groupPerms")
        for topic in [each for each in topics if each.startswith(RETRY_PREFIX)]:
            # A retry topic stands for its group, in RocketMQ too.
            groups.setdefault(topic.removeprefix(RETRY_PREFIX), topics.pop(topic))
        return PlainAccount(
            name,
            secret,
            WhiteAddresses([data.get("whiteRemoteAddress") or ""]),
            str(data.get("admin") or "").strip().lower() == "true",
            topics,
            groups,
            _permission(data.get("defaultTopicPerm") or ""),
            _permission(data.get("defaultGroupPerm") or ""),
        )


def _permission(text: str) -> PlainPermission:
    """Read a permission; any text that is none denies, as in RocketMQ."""
    words = [word.strip() for word in text.split("|")]
    if words == ["PUB"]:
        return PlainPermission.PUB
    if words == ["SUB"]:
        return PlainPermission.SUB
    if sorted(words) == ["PUB", "SUB"]:
        return PlainPermission.PUB | PlainPermission.SUB
    return PlainPermission.DENY


def _permissions(data: Mapping[str, Any], key: str) -> dict[str, PlainPermission]:
    items = data.get(key) or []
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise ConfigError(f"{key} is no list of name=PERMISSION")
    table = {}
    for item in items:
        name, separator, text = item.partition("=")
        if not separator or not name.strip():
            raise ConfigError(f"{key} has {item!r}, which is not name=PERMISSION")
        table[name.strip()] = _permission(text.strip())
    return table


@dataclass(frozen=True, slots=True)
class PlainAccounts:
    """All accounts by access key, and the addresses from which everything passes."""

    accounts: Mapping[str, PlainAccount]
    white: WhiteAddresses

    @staticmethod
    def read(documents: Iterable[Mapping[str, Any]]) -> PlainAccounts:
        """Read the documents of one or more files: of two accounts with one key the later counts.

        Raises:
            ConfigError: a part is illegal.
        """
        accounts: dict[str, PlainAccount] = {}
        white: list[str] = []
        for document in documents:
            addresses = document.get("globalWhiteRemoteAddresses") or []
            listed = document.get("accounts") or []
            if not isinstance(addresses, list) or not isinstance(listed, list):
                raise ConfigError("globalWhiteRemoteAddresses and accounts must be lists")
            white += [str(text or "") for text in addresses]
            for item in listed:
                if not isinstance(item, Mapping):
                    raise ConfigError(f"the account {item!r} has no fields")
                account = PlainAccount.read(item)
                accounts[account.name] = account
        return PlainAccounts(accounts, WhiteAddresses(white))
