"""Checks each request before its processor sees it: who signed it, and whether he may.

Both checks are made for every request, so a change of an account holds for the next one.  A request
that cannot be decided (a field is missing, a body does not decode) is refused.  Refusals and
administrative requests go to the logger ``cometmq.audit``.

Source: AuthenticationPipeline and AuthorizationPipeline of RocketMQ 5.4, with their remarks; code
16.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from cometmq.broker.access.needs import NEEDS, Need, topic_resource
from cometmq.broker.base.state import Refusal, answer
from cometmq.core.access.accounts import Accounts, User
from cometmq.core.access.policies import Action, Verdict, decide
from cometmq.core.transaction.open_transactions import OpenHalves
from cometmq.errors import CometError, RemoteProtocolError, ResponseCode
from cometmq.net.server import Answer, Handler, ServerConnection
from cometmq.wire.command.codes import RequestCode as Code
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.frame.acl import is_signature_right
from cometmq.wire.header.headers import EndTransactionHeader

__all__ = ["AccessGuard"]

audit = logging.getLogger("cometmq.audit")

_ADMIN: Final = frozenset({Action.CREATE, Action.UPDATE, Action.DELETE})


class AccessGuard:
    """The check of one broker's requests.

    Args:
        accounts: the live table.
        cluster: the name of the resource that administration needs.
        is_authorizing: whether permissions are checked too, and not signatures alone.
        unsigned: codes that need no signature.
        unchecked: codes that need no permission.
        halves: the open half messages, for the topic that an end of a transaction is about.
    """

    def __init__(
        self,
        accounts: Accounts,
        cluster: str,
        *,
        is_authorizing: bool,
        unsigned: frozenset[int],
        unchecked: frozenset[int],
        halves: OpenHalves,
    ) -> None:
        self._accounts = accounts
        self._cluster = cluster
        self._is_authorizing = is_authorizing
        self._unsigned = unsigned
        self._unchecked = unchecked
        self._halves = halves

    def guarded(self, handlers: dict[int, Handler]) -> dict[int, Handler]:
        """Return the processors, each behind the check."""
        return {code: partial(self._serve, handler) for code, handler in handlers.items()}

    def _serve(
        self,
        handler: Handler,
        request: RemotingCommand,
        connection: ServerConnection,
        now_ms: int,
    ) -> Answer:
        try:
            user = self.authenticate(request)
            self.authorize(user, request, connection.peer)
        except Refusal as refusal:
            name = request.ext_fields.get("AccessKey", "nobody")
            audit.warning(
                "refused: code %d of %s from %s: %s",
                request.code,
                name,
                connection.peer,
                refusal.remark,
            )
            return answer(request, refusal.code, refusal.remark)
        return handler(request, connection, now_ms)

    def authenticate(self, request: RemotingCommand) -> User | None:
        """Return who signed a request; None where nobody has to.

        Raises:
            Refusal: nobody did, or somebody unknown, or not with his secret.
        """
        if request.code in self._unsigned:
            return None
        name = request.ext_fields.get("AccessKey")
        if not name:
            raise _refusal("username cannot be null.")
        user = self._accounts.users.get(name)
        if user is None:
            raise _refusal(f"User:{name} is not found.")
        if not user.is_enabled:
            raise _refusal(f"User:{name} is disabled.")
        if not is_signature_right(request.ext_fields, request.body, user.secret):
            raise _refusal("check signature failed.")
        return user

    def authorize(self, user: User | None, request: RemotingCommand, peer: str) -> None:
        """Check that a user may do all that a request needs.

        Raises:
            Refusal: he may not; the remark names the resource.
        """
        if not self._is_authorizing or request.code in self._unchecked:
            return
        if user is None:
            raise _refusal("the request has no user, and its code needs permission.")
        needs = self._needs(request)
        ip = peer.rpartition(":")[0].strip("[]")
        if not user.is_super:
            for need in needs:
                verdict = self.verdict(user, need, ip)
                if not verdict.is_allowed:
                    raise _refusal(
                        f"User:{user.name} has no permission to access {need.resource} from {ip},"
                        f" {verdict.reason}"
                    )
        if any(not _ADMIN.isdisjoint(need.actions) for need in needs):
            audit.info(
                "code %d of %s from %s: %s",
                request.code,
                user.name,
                peer,
                ", ".join(str(need.resource) for need in needs),
            )

    def verdict(self, user: User, need: Need, ip: str) -> Verdict:
        """Decide on one need of one user."""
        policies = self._accounts.policies.get(user.name, {})
        return decide(policies, need.resource, need.actions, ip)

    def _needs(self, request: RemotingCommand) -> list[Need]:
        """Return what a request needs.

        Raises:
            Refusal: nobody can say, so a super user has to send it.
        """
        try:
            if request.code == Code.END_TRANSACTION:
                return [self._end_need(request)]
            find: Callable[[RemotingCommand, str], Iterable[Need]] | None = NEEDS.get(request.code)
            if find is None:
                raise RemoteProtocolError(f"the code {request.code} is for super users only")
            return list(find(request, self._cluster))
        except (CometError, AttributeError, TypeError) as error:
            # A body with other types than the format has is refused like one that does not decode.
            raise _refusal(f"what the request needs is not known: {error}") from error

    def _end_need(self, request: RemotingCommand) -> Need:
        """Pub of the topic of the half message, whatever topic the request names."""
        header = EndTransactionHeader.from_command(request)
        half = self._halves.find(header.tran_state_table_offset)
        topic = header.topic if half is None else half.topic
        if not topic:
            raise RemoteProtocolError("the half message is not open, and no topic is named")
        return Need(topic_resource(topic), (Action.PUB,))


def _refusal(remark: str) -> Refusal:
    return Refusal(ResponseCode.NO_PERMISSION, remark)
