"""Checks each request before its processor sees it: who signed it, and whether he may.

Both checks are made for every request, so a change of an account holds for the next one.  A request
that cannot be decided (a field is missing, a body does not decode) is refused.  Refusals and
administrative requests go to the logger ``cometmq.audit``.

Source: AuthenticationPipeline and AuthorizationPipeline of RocketMQ 5.4, with their remarks, and
PlainAccessValidator of RocketMQ 4.9.8; code 16 for both.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple, Protocol

from cometmq.core.access.accounts import Accounts, User
from cometmq.core.access.plain import PlainAccounts
from cometmq.core.access.policies import Action, decide
from cometmq.core.access.white import WhiteAddresses
from cometmq.errors import CometError, RemoteProtocolError, ResponseCode
from cometmq.net.server import Answer, Handler, ServerConnection
from cometmq.server.access.needs import Need, Needs
from cometmq.server.answers import Refusal, answer
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.frame.acl import is_signature_right

__all__ = ["AccessGuard", "AccessRules", "AccountRules", "Caller", "PlainRules", "denied"]

audit = logging.getLogger("cometmq.audit")

_ADMIN: Final = frozenset({Action.CREATE, Action.UPDATE, Action.DELETE})


class Caller(NamedTuple):
    """Who sends a request."""

    name: str
    is_free: bool
    """He may do everything."""


class AccessRules(Protocol):
    """One kind of accounts."""

    is_authorizing: bool
    """Whether permissions are checked, and not signatures alone."""

    def authenticate(self, request: RemotingCommand, ip: str) -> Caller:
        """Say who signed a request.

        Raises:
            Refusal: nobody did, or somebody unknown, or not with his secret.
        """

    def refusal(self, caller: Caller, need: Need, ip: str) -> str | None:
        """Say why a caller may not do what he needs; None if he may."""


def denied(remark: str) -> Refusal:
    """Return the refusal of a request that is not permitted."""
    return Refusal(ResponseCode.NO_PERMISSION, remark)


class AccountRules:
    """The accounts of ACL 2.0.

    Args:
        accounts: the live table.
        white: from where every request passes.
        is_authorizing: whether permissions are checked too.
    """

    def __init__(self, accounts: Accounts, white: WhiteAddresses, *, is_authorizing: bool) -> None:
        self._accounts = accounts
        self._white = white
        self.is_authorizing = is_authorizing

    def authenticate(self, request: RemotingCommand, ip: str) -> Caller:
        """Say who signed a request, or that it comes from a white address."""
        name = request.ext_fields.get("AccessKey") or ""
        if ip in self._white:
            return Caller(name or "anybody", is_free=True)
        if not name:
            raise denied("username cannot be null.")
        user = self._accounts.users.get(name)
        if user is None:
            raise denied(f"User:{name} is not found.")
        if not user.is_enabled:
            raise denied(f"User:{name} is disabled.")
        if ip in user.white:
            return Caller(name, is_free=True)
        check_signature(request, user)
        return Caller(name, user.is_super)

    def refusal(self, caller: Caller, need: Need, ip: str) -> str | None:
        """Decide by the caller's policies."""
        policies = self._accounts.policies.get(caller.name, {})
        verdict = decide(policies, need.resource, need.actions, ip)
        if verdict.is_allowed:
            return None
        return (
            f"User:{caller.name} has no permission to access {need.resource} from {ip},"
            f" {verdict.reason}"
        )


def check_signature(request: RemotingCommand, user: User) -> None:
    """Check that a user has signed a request.

    Raises:
        Refusal: he has not.
    """
    if not is_signature_right(request.ext_fields, request.body, user.secret):
        raise denied("check signature failed.")


class PlainRules:
    """The accounts of ACL 1.0, which the owner replaces when their file has changed."""

    is_authorizing = True

    def __init__(self, accounts: PlainAccounts) -> None:
        self.accounts = accounts

    def authenticate(self, request: RemotingCommand, ip: str) -> Caller:
        """Say who signed a request, or that it comes from a white address."""
        name = request.ext_fields.get("AccessKey") or ""
        if ip in self.accounts.white:
            return Caller(name or "anybody", is_free=True)
        if not name:
            raise denied("No accessKey is configured")
        account = self.accounts.accounts.get(name)
        if account is None:
            raise denied(f"No acl config for {name}")
        if ip in account.white:
            return Caller(name, is_free=True)
        if not is_signature_right(request.ext_fields, request.body, account.secret):
            raise denied(f"Check signature failed for accessKey={name}")
        return Caller(name, account.is_free)

    def refusal(self, caller: Caller, need: Need, ip: str) -> str | None:
        """Decide by the caller's lists and defaults."""
        account = self.accounts.accounts.get(caller.name)
        if account is None:
            return f"No acl config for {caller.name}"
        return account.refusal(need.resource, need.actions)


class AccessGuard:
    """The check of one server's requests.

    Args:
        rules: the accounts.
        inner: the server's own account for requests of its own process; None without one.
        cluster: the name of the resource that administration needs.
        needs: what each code needs; a code without an entry is for super users only.
        unsigned: codes that need no signature.
        unchecked: codes that need no permission.
    """

    def __init__(
        self,
        rules: AccessRules,
        cluster: str,
        needs: Mapping[int, Needs],
        *,
        inner: User | None = None,
        unsigned: frozenset[int] = frozenset(),
        unchecked: frozenset[int] = frozenset(),
    ) -> None:
        self._rules = rules
        self._inner = inner
        self._cluster = cluster
        self._table = needs
        self._unsigned = unsigned
        self._unchecked = unchecked
        self.refused: Counter[str] = Counter()
        """How many requests were refused, by the part of the check that refused them."""

    def guarded(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """Return the processors, each behind the check."""
        return {code: partial(self._serve, handler) for code, handler in handlers.items()}

    def _serve(
        self,
        handler: Handler,
        request: RemotingCommand,
        connection: ServerConnection,
        now_ms: int,
    ) -> Answer:
        step = "authentication"
        ip = connection.peer.rpartition(":")[0].strip("[]")
        try:
            caller = self._authenticate(request, ip)
            step = "authorization"
            self._authorize(caller, request, ip)
        except Refusal as refusal:
            self.refused[step] += 1
            audit.warning(
                "refused: code %d of %s from %s: %s",
                request.code,
                request.ext_fields.get("AccessKey", "nobody"),
                connection.peer,
                refusal.remark,
            )
            return answer(request, refusal.code, refusal.remark)
        return handler(request, connection, now_ms)

    def _authenticate(self, request: RemotingCommand, ip: str) -> Caller | None:
        """Return who signed a request; None where nobody has to."""
        if request.code in self._unsigned:
            return None
        inner = self._inner
        if inner is not None and request.ext_fields.get("AccessKey") == inner.name:
            check_signature(request, inner)
            return Caller(inner.name, is_free=True)
        return self._rules.authenticate(request, ip)

    def _authorize(self, caller: Caller | None, request: RemotingCommand, ip: str) -> None:
        """Check that a caller may do all that a request needs.

        Raises:
            Refusal: he may not; the remark names the resource.
        """
        if not self._rules.is_authorizing or request.code in self._unchecked:
            return
        if caller is None:
            raise denied("the request has no user, and its code needs permission.")
        # A super user passes a request that nobody else may send, and one that makes no sense.
        needs = self._needs(request, is_strict=not caller.is_free)
        if not caller.is_free:
            for need in needs:
                remark = self._rules.refusal(caller, need, ip) if need.actions else None
                if not need.actions:
                    remark = (
                        f"User:{caller.name} has no permission to access {need.resource} from"
                        f" {ip}, which is for super users only."
                    )
                if remark is not None:
                    raise denied(remark)
        if any(not _ADMIN.isdisjoint(need.actions) for need in needs):
            audit.info(
                "code %d of %s from %s: %s",
                request.code,
                caller.name,
                ip,
                ", ".join(str(need.resource) for need in needs),
            )

    def _needs(self, request: RemotingCommand, *, is_strict: bool) -> list[Need]:
        """Return what a request needs.

        Raises:
            Refusal: nobody can say, so a super user has to send it.
        """
        try:
            find = self._table.get(request.code)
            if find is None:
                raise RemoteProtocolError(f"the code {request.code} is for super users only")
            found: Iterable[Need] = find(request, self._cluster)
            return list(found)
        except (CometError, AttributeError, TypeError) as error:
            if not is_strict:
                return []
            # A body with other types than the format has is refused like one that does not decode.
            raise denied(f"what the request needs is not known: {error}") from error
