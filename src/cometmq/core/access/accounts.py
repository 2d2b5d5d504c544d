"""The accounts of a broker and their policies, as one table that is saved as JSON.

The table answers and changes as RocketMQ's admin codes 3001 to 3010 ask (AuthenticationMetadata-
and AuthorizationMetadataManagerImpl of RocketMQ 5.4), with its words for what is illegal.  Secrets
are stored as they are, since a signature is checked with them: the file belongs to its owner alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cometmq.core.access.policies import Entry, Policy, PolicyType, Resource
from cometmq.core.access.white import WhiteAddresses
from cometmq.errors import ConfigError

__all__ = ["Accounts", "User"]

SUBJECT: Final = "User:"
_TYPES: Final = ("Super", "Normal")
_STATUSES: Final = ("enable", "disable")


@dataclass(frozen=True, slots=True)
class User:
    """An account; a super user may do everything."""

    name: str
    secret: str = field(repr=False)
    is_super: bool = False
    is_enabled: bool = True
    white: WhiteAddresses = field(default_factory=WhiteAddresses, compare=False)
    """From where his requests pass without a signature and without policies, as in ACL 1.0."""

    def to_json(self, *, with_secret: bool = True) -> dict[str, Any]:
        """Write the account as tools read it."""
        return {
            **({"password": self.secret} if with_secret else {}),
            "userStatus": _STATUSES[not self.is_enabled],
            "userType": _TYPES[not self.is_super],
            "username": self.name,
            **({"whiteRemoteAddress": ",".join(self.white.texts)} if self.white.texts else {}),
        }


class Accounts:
    """Users by name, and the policies of each."""

    def __init__(self) -> None:
        self.users: dict[str, User] = {}
        self.policies: dict[str, dict[PolicyType, Policy]] = {}
        self.revision = 0

    # -- users ------------------------------------------------------------------------------

    def create_user(self, data: Mapping[str, Any], *, by_super: bool) -> None:
        """Add a user.

        Raises:
            ConfigError: it exists, a part is missing, or only a super user may create it.
        """
        name, secret = data.get("username") or "", data.get("password") or ""
        if not name.strip():
            raise ConfigError("username can not be blank")
        if not secret.strip():
            raise ConfigError("password can not be blank")
        if name in self.users:
            raise ConfigError("The user is existed")
        self._put(_changed(User(name, secret), data), by_super=by_super, verb="create")

    def update_user(self, data: Mapping[str, Any], *, by_super: bool) -> None:
        """Change what `data` names of a user.

        Raises:
            ConfigError: there is none, a part is illegal, or only a super user may change it.
        """
        before = self._user(data.get("username") or "")
        if before.is_super and not by_super:
            raise ConfigError("The super user can only be update by super user")
        self._put(_changed(before, data), by_super=by_super, verb="update")

    def delete_user(self, name: str, *, by_super: bool) -> None:
        """Remove a user, if there is one, and its policies.

        Raises:
            ConfigError: only a super user may delete it.
        """
        user = self.users.get(name)
        if user is not None and user.is_super and not by_super:
            raise ConfigError("The super user can only be delete by super user")
        self.users.pop(name, None)
        self.policies.pop(name, None)
        self.revision += 1

    def _put(self, user: User, *, by_super: bool, verb: str) -> None:
        if user.is_super and not by_super:
            raise ConfigError(f"The super user can only be {verb} by super user")
        self.users[user.name] = user
        self.revision += 1

    def _user(self, name: str) -> User:
        user = self.users.get(name)
        if user is None:
            raise ConfigError("The user is not exist")
        return user

    # -- policies ---------------------------------------------------------------------------

    def put_policies(self, subject: str, data: Mapping[str, Any], *, replaces: bool) -> None:
        """Add policies to a user's (``createAcl``), or put them in place of those (``updateAcl``).

        Raises:
            ConfigError: no such user, or an entry is illegal.
        """
        name = self._subject(subject)
        policies = _policies(data)
        if not policies:
            raise ConfigError("The policies is empty")
        if not replaces:
            before = self.policies.get(name, {})
            for kind, policy in before.items():
                policies[kind] = policy.merged(policies[kind]) if kind in policies else policy
        self.policies[name] = policies
        self.revision += 1

    def delete_policies(self, subject: str, kind: str | None, resource: str | None) -> None:
        """Remove a user's entry for one resource, or all entries of a type (Custom by default).

        Raises:
            ConfigError: no such user, type or resource.
        """
        name = self._subject(subject)
        policies = dict(self.policies.get(name, {}))
        policy_type = _policy_type(kind or "Custom")
        policy = policies.pop(policy_type, None)
        if policy is not None and resource:
            wanted = Resource.parse(resource)
            entries = tuple(entry for entry in policy.entries if entry.resource != wanted)
            if entries:
                policies[policy_type] = Policy(policy_type, entries)
        if policies:
            self.policies[name] = policies
        else:
            self.policies.pop(name, None)
        self.revision += 1

    def _subject(self, subject: str) -> str:
        if not subject.startswith(SUBJECT):
            raise ConfigError(f"the subject {subject!r} is not User:name")
        return self._user(subject.removeprefix(SUBJECT)).name

    def acl_json(self, subject: str) -> dict[str, Any] | None:
        """Write a user's policies as tools read them; None without any."""
        policies = self.policies.get(subject.removeprefix(SUBJECT))
        if not policies:
            return None
        return {
            "policies": [
                {"entries": [each.to_json() for each in policy.entries], "policyType": kind.value}
                for kind, policy in policies.items()
            ],
            "subject": SUBJECT + subject.removeprefix(SUBJECT),
        }

    # -- the file ---------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Write the table: users and their policies by name, so that one can change alone."""
        return {
            "users": {name: user.to_json() for name, user in self.users.items()},
            "acls": {name: self.acl_json(name) for name in self.policies},
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Accounts:
        """Read the table.

        Raises:
            ConfigError: a user or an entry is illegal.
        """
        accounts = Accounts()
        for user in data.get("users", {}).values():
            accounts.create_user(user, by_super=True)
        for acl in data.get("acls", {}).values():
            accounts.put_policies(acl.get("subject") or "", acl, replaces=True)
        return accounts

    def take(self, other: Accounts) -> None:
        """Become equal to another table."""
        self.users, self.policies = other.users, other.policies
        self.revision += 1


def _changed(user: User, data: Mapping[str, Any]) -> User:
    kind, status = data.get("userType"), data.get("userStatus")
    if kind is not None and kind not in _TYPES:
        raise ConfigError(f"the user type {kind!r} is not among {', '.join(_TYPES)}")
    if status is not None and status not in _STATUSES:
        raise ConfigError(f"the user status {status!r} is not among {', '.join(_STATUSES)}")
    white = data.get("whiteRemoteAddress")
    return replace(
        user,
        white=user.white if white is None else WhiteAddresses([white]),
        secret=data.get("password") or user.secret,
        is_super=user.is_super if kind is None else kind == "Super",
        is_enabled=user.is_enabled if status is None else status == "enable",
    )


def _policy_type(text: str) -> PolicyType:
    try:
        return PolicyType(text)
    except ValueError:
        raise ConfigError(f"the policy type {text!r} is neither Custom nor Default") from None


def _policies(data: Mapping[str, Any]) -> dict[PolicyType, Policy]:
    policies: dict[PolicyType, Policy] = {}
    for item in data.get("policies") or ():
        kind = _policy_type(item.get("policyType") or "Custom")
        entries = tuple(map(Entry.from_json, item.get("entries") or ()))
        if not entries:
            raise ConfigError("The policy entries is empty")
        policy = Policy(kind, entries)
        policies[kind] = policies[kind].merged(policy) if kind in policies else policy
    return policies
