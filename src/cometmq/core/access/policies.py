"""What an account may do: policies, and the one entry that decides.

A *resource* is a cluster, a topic or a group, or all whose name begins with a text.  An entry names
a resource, actions, addresses, and allows or denies.  The most exact entry that matches decides;
without one, the answer is no.

Source: AclAuthorizationHandler, Resource and Policy of RocketMQ 5.4, and its JSON for tools.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import cached_property
from ipaddress import ip_address, ip_network
from typing import Any

from cometmq.errors import ConfigError

__all__ = [
    "Action",
    "Effect",
    "Entry",
    "Policy",
    "PolicyType",
    "Resource",
    "ResourceType",
    "Verdict",
    "decide",
]


class Action(IntEnum):
    """What a request does with a resource; the numbers are RocketMQ's."""

    ALL = 1
    PUB = 3
    SUB = 4
    CREATE = 5
    UPDATE = 6
    DELETE = 7
    GET = 8
    LIST = 9


class ResourceType(IntEnum):
    """The kind of a resource; the numbers are RocketMQ's."""

    ANY = 1
    CLUSTER = 2
    NAMESPACE = 3
    TOPIC = 4
    GROUP = 5


class Effect(IntEnum):
    """Whether an entry allows or denies; the numbers are RocketMQ's."""

    ALLOW = 1
    DENY = 2


class PolicyType(Enum):
    """Entries of `DEFAULT` count only where none of `CUSTOM` matches."""

    CUSTOM = "Custom"
    DEFAULT = "Default"


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource, or with `is_prefix` all whose name begins with `name`; ANY has no name."""

    type: ResourceType
    name: str = ""
    is_prefix: bool = False

    @staticmethod
    def parse(text: str) -> Resource:
        """Read ``*``, ``Topic:*``, ``Topic:name`` or ``Topic:begin*``.

        Raises:
            ConfigError: the text is none of these.  RocketMQ drops what follows the first ``*``,
                which would widen an entry.
        """
        if text == "*":
            return Resource(ResourceType.ANY, is_prefix=True)
        kind, separator, name = text.partition(":")
        types = {each.name.title(): each for each in ResourceType if each is not ResourceType.ANY}
        if not separator or kind not in types or not name or "*" in name[:-1]:
            raise ConfigError(
                f"{text!r} is no resource; write *, or {', '.join(types)} with :name or :begin*"
            )
        if name.endswith("*"):
            return Resource(types[kind], name[:-1], is_prefix=True)
        return Resource(types[kind], name)

    def __str__(self) -> str:
        star = "*" if self.is_prefix else ""
        if self.type is ResourceType.ANY:
            return star
        return f"{self.type.name.title()}:{self.name}{star}"

    def covers(self, other: Resource) -> bool:
        """Whether this one is, or has, the other, which is no prefix."""
        if self.type is ResourceType.ANY:
            return True
        if self.type is not other.type:
            return False
        return other.name.startswith(self.name) if self.is_prefix else other.name == self.name


@dataclass(frozen=True)
class Entry:
    """One line of a policy; without addresses it holds for all."""

    resource: Resource
    actions: frozenset[Action]
    decision: Effect
    source_ips: tuple[str, ...] = ()

    @cached_property
    def _networks(self) -> tuple[Any, ...]:
        return tuple(ip_network(text, strict=False) for text in self.source_ips)

    def matches(self, resource: Resource, actions: Iterable[Action], ip: str) -> bool:
        """Whether the entry speaks of the request."""
        if not self.resource.covers(resource):
            return False
        if Action.ALL not in self.actions and self.actions.isdisjoint(actions):
            return False
        if not self._networks:
            return True
        try:
            address = ip_address(ip)
        except ValueError:
            return False
        return any(address in network for network in self._networks)

    @cached_property
    def rank(self) -> tuple[bool, bool, int, bool]:
        """Sorts the most exact entry first, and of two equal ones the denying one."""
        own = self.resource
        return (
            own.type is ResourceType.ANY,
            own.is_prefix,
            -len(own.name),
            self.decision is Effect.ALLOW,
        )

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Entry:
        """Read an entry as tools write it.

        Raises:
            ConfigError: a part is missing or illegal; the text has RocketMQ's words for it.
        """
        names = {each.name.title(): each for each in Action}
        actions = data.get("actions") or ()
        unknown = [name for name in actions if name not in names]
        if not data.get("resource"):
            raise ConfigError("The resource is null.")
        if not actions or unknown:
            raise ConfigError(f"The actions {list(actions)} are not among {', '.join(names)}.")
        decisions = {each.name.title(): each for each in Effect}
        if data.get("decision") not in decisions:
            raise ConfigError("The decision is null or illegal.")
        ips = tuple(data.get("sourceIps") or ())
        for text in ips:
            try:
                ip_network(text, strict=False)
            except ValueError:
                raise ConfigError(f"The source ip {text!r} is invalid.") from None
        return Entry(
            Resource.parse(data["resource"]),
            frozenset(names[name] for name in actions),
            decisions[data["decision"]],
            ips,
        )

    def to_json(self) -> dict[str, Any]:
        """Write the entry as tools read it."""
        return {
            "actions": [action.name.title() for action in sorted(self.actions)],
            "decision": self.decision.name.title(),
            "resource": str(self.resource),
            "sourceIps": list(self.source_ips),
        }


@dataclass(frozen=True, slots=True)
class Policy:
    """Entries of one type; of two with the same resource the later one counts."""

    type: PolicyType
    entries: tuple[Entry, ...]

    def merged(self, other: Policy) -> Policy:
        """Return the policy with the other's entries in place of its own of the same resources."""
        table = {entry.resource: entry for entry in (*self.entries, *other.entries)}
        return Policy(self.type, tuple(table.values()))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one request for one resource, with the entry that decided."""

    is_allowed: bool
    reason: str
    entry: Entry | None = None


def decide(
    policies: Mapping[PolicyType, Policy],
    resource: Resource,
    actions: Iterable[Action],
    ip: str,
) -> Verdict:
    """Decide by the policies of one account; the actions are alternatives."""
    wanted = tuple(actions)
    for kind in (PolicyType.CUSTOM, PolicyType.DEFAULT):
        policy = policies.get(kind)
        if policy is None:
            continue
        matches = [each for each in policy.entries if each.matches(resource, wanted, ip)]
        if matches:
            entry = min(matches, key=lambda each: each.rank)
            is_allowed = entry.decision is Effect.ALLOW
            return Verdict(is_allowed, "allowed." if is_allowed else "the decision is deny.", entry)
    return Verdict(False, "no matched policies.")
