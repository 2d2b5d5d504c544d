"""Access control: users, the entries of their policies, and which entry decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cometmq.core.access.accounts import Accounts
from cometmq.core.access.policies import Action, Resource, decide

if TYPE_CHECKING:
    from cometmq.client import Admin

__all__ = ["explain_access", "policy_rows", "user_rows"]


async def user_rows(admin: Admin, name_part: str = "") -> list[dict[str, Any]]:
    """A row for each user whose name contains a text; without passwords."""
    return [
        {"user": each["username"], "type": each["userType"], "status": each["userStatus"]}
        for each in await admin.users(name_part)
    ]


async def policy_rows(admin: Admin, name_part: str = "") -> list[dict[str, Any]]:
    """A row for each entry of the users whose names contain a text."""
    return [
        {
            "user": each["subject"].removeprefix("User:"),
            "type": part["policyType"],
            "resource": entry["resource"],
            "decision": entry["decision"],
            "actions": entry["actions"],
            "from": entry.get("sourceIps") or [],
        }
        for each in await admin.policies(name_part)
        for part in each["policies"]
        for entry in part["entries"]
    ]


async def explain_access(
    admin: Admin, name: str, resource: str, action: str, ip: str
) -> dict[str, Any]:
    """Whether a user may do something, and which entry decides, by the brokers' own function.

    Raises:
        ConfigError: the resource is none.
    """
    wanted = Resource.parse(resource)
    users, policies = await admin.users(name), await admin.policies(name)
    account = next((each for each in users if each["username"] == name), None)
    row: dict[str, Any] = {"user": name, "resource": resource, "action": action, "from": ip}
    if account is None:
        return row | {"allowed": False, "because": "there is no such user", "entry": None}
    if account["userStatus"] != "enable":
        return row | {"allowed": False, "because": "the user is disabled", "entry": None}
    if account["userType"] == "Super":
        return row | {"allowed": True, "because": "a super user may do everything", "entry": None}
    accounts = Accounts.from_json(
        {
            "users": {name: {**account, "password": "-"}},
            "acls": {
                each["subject"]: each for each in policies if each["subject"] == f"User:{name}"
            },
        }
    )
    verdict = decide(accounts.policies.get(name, {}), wanted, [Action[action.upper()]], ip)
    entry = verdict.entry
    return row | {
        "allowed": verdict.is_allowed,
        "because": verdict.reason,
        "entry": None
        if entry is None
        else f"{entry.resource} {entry.decision.name.title()}"
        f" {', '.join(entry.to_json()['actions'])}",
    }
