"""From an account of ACL 1.0 to a user and policies of ACL 2.0.

RocketMQ's AuthMigrator does the same and leaves white addresses behind, which shuts out hosts that
never signed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from cometmq.core.access.plain import PlainAccount, PlainPermission
from cometmq.core.access.policies import Action
from cometmq.model.names import TRACE_TOPIC

__all__ = ["MigratedAccount", "migrated"]

_ADMINISTRATION: Final = ("Create", "Update", "Delete", "Get", "List")


@dataclass(frozen=True, slots=True)
class MigratedAccount:
    """What to create at a server that has ACL 2.0."""

    is_super: bool
    policies: tuple[dict[str, Any], ...]
    """As RocketMQ's tools write them."""
    notes: tuple[str, ...]
    """What ACL 2.0 cannot say as the file says it."""


def migrated(account: PlainAccount) -> MigratedAccount:
    """Translate an account; its white addresses go with the user."""
    if account.is_free:
        return MigratedAccount(True, (), ())
    custom: list[dict[str, Any]] = []
    default: list[dict[str, Any]] = []
    notes = []
    for kind, permissions, fallback in (
        ("Topic", account.topics, account.default_topic),
        ("Group", account.groups, account.default_group),
    ):
        for name, permission in permissions.items():
            custom.append(_entry(f"{kind}:{name}", permission))
            wider = fallback & ~permission
            if permission and wider:
                notes.append(
                    f"{kind}:{name} gets {'|'.join(_words(wider))} too, by the default for all"
                    " names: deny it with a user of its own, or give this user no default"
                )
        if fallback:
            default.append(_entry(f"{kind}:*", fallback))
    if TRACE_TOPIC not in account.topics:
        # ACL 1.0 lets everybody write traces.
        custom.append(_entry(f"Topic:{TRACE_TOPIC}", PlainPermission.PUB))
    if account.is_admin:
        default.append(_allow("Cluster:*", ["All"]))
        for resource in ("Topic:*", "Group:*"):
            granted = next((each for each in default if each["resource"] == resource), None)
            if granted is None:
                default.append(_allow(resource, _ADMINISTRATION))
            else:
                granted["actions"] = sorted({*granted["actions"], *_ADMINISTRATION})
    policies = (("Custom", custom), ("Default", default))
    return MigratedAccount(
        False,
        tuple({"policyType": kind, "entries": entries} for kind, entries in policies if entries),
        tuple(notes),
    )


def _words(permission: PlainPermission) -> list[str]:
    return [
        action.name.title()
        for flag, action in ((PlainPermission.PUB, Action.PUB), (PlainPermission.SUB, Action.SUB))
        if flag in permission
    ]


def _entry(resource: str, permission: PlainPermission) -> dict[str, Any]:
    if not permission:
        return {"resource": resource, "actions": ["All"], "sourceIps": [], "decision": "Deny"}
    return _allow(resource, [*_words(permission), "Get"])


def _allow(resource: str, actions: Iterable[str]) -> dict[str, Any]:
    return {"resource": resource, "actions": list(actions), "sourceIps": [], "decision": "Allow"}
