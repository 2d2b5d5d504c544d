"""The accounts over the wire: codes 3001 to 3010, and the file that keeps them.

Changes are answered when they are on disk.  Answers have no secrets: RocketMQ's do.

Source: AdminBrokerProcessor of RocketMQ 5.4.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from cometmq.core.access.accounts import Accounts
from cometmq.errors import CometError, DiskFull, ResponseCode, StoreError
from cometmq.net.server import Handler, ServerConnection
from cometmq.server.answers import Refusal, answer, refusing
from cometmq.server.config_file import ConfigFile
from cometmq.wire.command.codes import RequestCode as Code
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.command.fastjson import loads_object

__all__ = ["AccountProcessor"]

audit = logging.getLogger("cometmq.audit")


class AccountProcessor:
    """The processors of codes 3001 to 3010."""

    def __init__(self, accounts: Accounts, file: ConfigFile) -> None:
        self._accounts = accounts
        self._file = file

    def handlers(self) -> dict[int, Handler]:
        """Map each code to its processor, with refusals turned into answers."""
        accounts = self._accounts
        changes: dict[int, Callable[[RemotingCommand], None]] = {
            Code.AUTH_CREATE_USER: lambda request: accounts.create_user(
                _user_of(request), by_super=self._is_super(request)
            ),
            Code.AUTH_UPDATE_USER: lambda request: accounts.update_user(
                _user_of(request), by_super=self._is_super(request)
            ),
            Code.AUTH_DELETE_USER: lambda request: accounts.delete_user(
                request.ext_fields.get("username", ""), by_super=self._is_super(request)
            ),
            Code.AUTH_CREATE_ACL: lambda request: accounts.put_policies(
                _subject(request), _body(request), replaces=False
            ),
            Code.AUTH_UPDATE_ACL: lambda request: accounts.put_policies(
                _subject(request), _body(request), replaces=True
            ),
            Code.AUTH_DELETE_ACL: lambda request: accounts.delete_policies(
                _subject(request),
                request.ext_fields.get("policyType"),
                request.ext_fields.get("resource"),
            ),
        }
        answers: dict[int, Callable[[RemotingCommand], Any]] = {
            Code.AUTH_GET_USER: self._user,
            Code.AUTH_LIST_USER: self._users,
            Code.AUTH_GET_ACL: lambda request: accounts.acl_json(_subject(request)),
            Code.AUTH_LIST_ACL: self._acls,
        }
        table: dict[int, Handler] = {}
        for code, change in changes.items():
            table[code] = refusing(_change_handler(self, change))
        for code, find in answers.items():
            table[code] = refusing(_answer_handler(find))
        return table

    def change(
        self,
        request: RemotingCommand,
        connection: ServerConnection,
        change: Callable[[RemotingCommand], None],
    ) -> bytes | None:
        """Make a change, and answer when it is on disk.

        Raises:
            Refusal: it is illegal; nothing was changed.
        """
        try:
            change(request)
        except CometError as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, str(error)) from error
        audit.info(
            "code %d of %s from %s: %s",
            request.code,
            request.ext_fields.get("AccessKey", "nobody"),
            connection.peer,
            request.ext_fields.get("username") or request.ext_fields.get("subject"),
        )
        if request.is_oneway:
            return answer(request)

        def saved(failure: StoreError | None) -> None:
            if failure is None:
                connection.send(answer(request))
                return
            is_full = isinstance(failure, DiskFull)
            code = ResponseCode.SERVICE_NOT_AVAILABLE if is_full else ResponseCode.SYSTEM_ERROR
            connection.send(answer(request, code, str(failure)))

        self._file.when_saved(saved)
        return None

    def _is_super(self, request: RemotingCommand) -> bool:
        """Whether the request comes from a super user; its signature was checked before."""
        user = self._accounts.users.get(request.ext_fields.get("AccessKey", ""))
        return user is not None and user.is_super

    def _user(self, request: RemotingCommand) -> Any:
        user = self._accounts.users.get(request.ext_fields.get("username", ""))
        return None if user is None else user.to_json(with_secret=False)

    def _users(self, request: RemotingCommand) -> Any:
        part = request.ext_fields.get("filter", "")
        return [
            user.to_json(with_secret=False)
            for name, user in self._accounts.users.items()
            if part in name
        ]

    def _acls(self, request: RemotingCommand) -> Any:
        subject = request.ext_fields.get("subjectFilter", "")
        resource = request.ext_fields.get("resourceFilter", "")
        listing = []
        for name in self._accounts.policies:
            acl = self._accounts.acl_json(name)
            if acl is None or subject not in acl["subject"]:
                continue
            entries = [entry for policy in acl["policies"] for entry in policy["entries"]]
            if any(resource in entry["resource"] for entry in entries):
                listing.append(acl)
        return listing


def _change_handler(
    processor: AccountProcessor, change: Callable[[RemotingCommand], None]
) -> Handler:
    def serve(request: RemotingCommand, connection: ServerConnection, now_ms: int) -> bytes | None:
        return processor.change(request, connection, change)

    return serve


def _answer_handler(find: Callable[[RemotingCommand], Any]) -> Handler:
    def serve(request: RemotingCommand, connection: ServerConnection, now_ms: int) -> bytes:
        listing = find(request)
        return answer(request, body=msgspec.json.encode(listing) if listing else b"")

    return serve


def _body(request: RemotingCommand) -> dict[Any, Any]:
    try:
        return loads_object(request.body, "the body")
    except CometError as error:
        raise Refusal(ResponseCode.INVALID_PARAMETER, str(error)) from error


def _user_of(request: RemotingCommand) -> dict[Any, Any]:
    """The user of a body, under the name in the header."""
    name = request.ext_fields.get("username", "")
    if not name.strip():
        raise Refusal(ResponseCode.INVALID_PARAMETER, "The username is blank")
    return {**_body(request), "username": name}


def _subject(request: RemotingCommand) -> str:
    return request.ext_fields.get("subject", "")
