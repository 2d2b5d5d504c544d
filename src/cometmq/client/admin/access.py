"""The admin client's calls about accounts and their policies (codes 3001 to 3010)."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from cometmq.client.base.calls import BrokerCalls
from cometmq.client.base.routes import RouteBook
from cometmq.errors import CodecError, RemoteError, ResponseCode
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.headers import UnregisterClientHeader

__all__ = ["AccessCalls"]

Change: TypeAlias = Callable[[str], Awaitable[object]]
"""Changes the accounts of the server with this address."""


class _AccessAdmin(Protocol):
    _calls: BrokerCalls
    _routes: RouteBook

    async def _masters(
        self, cluster: str | None = None, broker_name: str | None = None
    ) -> dict[str, str]: ...

    async def cluster_info(self) -> Any: ...

    async def _change_everywhere(self, change: Change) -> None: ...


class AccessCalls:
    """The admin client's calls about access control.

    Each server has accounts of its own: changes go to every broker, slaves included, and to every
    name server that checks requests; a listing comes from one master.
    Policies are as RocketMQ's tools write them: ``{"policyType": "Custom", "entries": [{"resource":
    "Topic:Orders*", "actions": ["Pub", "Sub"], "sourceIps": [], "decision": "Allow"}]}``.
    """

    async def sign_in(self: _AccessAdmin, name: str) -> bool:
        """Have a broker check this client's keys; return whether the user is a super user.

        The request asks for nothing, so that it needs no permission.  An ordinary user who may not
        read accounts counts as one.

        Raises:
            AccessDenied: the broker knows no such user, or the signature is not his.
            CometError: no broker answers.
        """
        address = next(iter((await self._masters()).values()))
        fields = UnregisterClientHeader(f"{name}-in").to_ext()
        await self._calls.ask(
            address, RemotingCommand.request(RequestCode.UNREGISTER_CLIENT, fields)
        )
        try:
            account = await _ask(self._calls, address, RequestCode.AUTH_GET_USER, username=name)
        except RemoteError:
            return False
        return bool(account and account.get("userType") == "Super")

    async def put_user(
        self: _AccessAdmin,
        name: str,
        *,
        password: str | None = None,
        is_super: bool | None = None,
        is_enabled: bool | None = None,
        white_addresses: str | None = None,
    ) -> None:
        """Create a user, or change what is given of one that exists.

        Args:
            white_addresses: from where his requests pass without signature and policies, in the
                forms of ACL 1.0, joined by commas; RocketMQ's brokers know nothing of it.

        Raises:
            RemoteError: a broker refused; brokers before it in the order of names have the change.
        """
        data: dict[str, str] = {"username": name}
        if password is not None:
            data["password"] = password
        if is_super is not None:
            data["userType"] = "Super" if is_super else "Normal"
        if is_enabled is not None:
            data["userStatus"] = "enable" if is_enabled else "disable"
        if white_addresses is not None:
            data["whiteRemoteAddress"] = white_addresses

        async def put(address: str) -> None:
            is_known = await _ask(self._calls, address, RequestCode.AUTH_GET_USER, username=name)
            code = RequestCode.AUTH_UPDATE_USER if is_known else RequestCode.AUTH_CREATE_USER
            await _ask(self._calls, address, code, data, username=name)

        await self._change_everywhere(put)

    async def delete_user(self: _AccessAdmin, name: str) -> None:
        """Remove a user and his policies from every server."""
        await self._change_everywhere(
            lambda address: _ask(self._calls, address, RequestCode.AUTH_DELETE_USER, username=name)
        )

    async def _change_everywhere(self: _AccessAdmin, change: Change) -> None:
        """Make a change at every broker and name server that has accounts.

        Raises:
            RemoteError: one refused, or none has any.
        """
        brokers = (await self.cluster_info()).brokers
        addresses = [
            address for name in sorted(brokers) for address in brokers[name].broker_addrs.values()
        ]
        unsupported: RemoteError | None = None
        count = 0
        for address in dict.fromkeys((*addresses, *self._routes.name_servers)):
            try:
                await change(address)
                count += 1
            except RemoteError as error:
                if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise
                unsupported = error
        if not count and unsupported is not None:
            raise unsupported

    async def users(
        self: _AccessAdmin, name_part: str = "", *, broker_name: str | None = None
    ) -> list[dict[str, Any]]:
        """The users of one broker whose names contain a text; without their passwords."""
        address = next(iter((await self._masters(broker_name=broker_name)).values()))
        code = RequestCode.AUTH_LIST_USER
        return await _ask(self._calls, address, code, filter=name_part) or []

    async def put_policies(
        self: _AccessAdmin, name: str, policies: Sequence[Mapping[str, Any]]
    ) -> None:
        """Add entries to a user's policies; those of the same resource are replaced."""
        data = {"subject": f"User:{name}", "policies": list(policies)}
        code = RequestCode.AUTH_CREATE_ACL
        await self._change_everywhere(
            lambda address: _ask(self._calls, address, code, data, subject=f"User:{name}")
        )

    async def delete_policies(
        self: _AccessAdmin, name: str, *, resource: str | None = None, policy_type: str = "Custom"
    ) -> None:
        """Remove a user's entry for one resource, or all entries of a type."""
        fields = {"subject": f"User:{name}", "policyType": policy_type}
        if resource is not None:
            fields["resource"] = resource
        await self._change_everywhere(
            lambda address: _ask(self._calls, address, RequestCode.AUTH_DELETE_ACL, None, **fields)
        )

    async def policies(
        self: _AccessAdmin, name_part: str = "", *, broker_name: str | None = None
    ) -> list[dict[str, Any]]:
        """The policies of one broker's users whose names contain a text."""
        address = next(iter((await self._masters(broker_name=broker_name)).values()))
        code = RequestCode.AUTH_LIST_ACL
        return await _ask(self._calls, address, code, subjectFilter=name_part) or []


async def _ask(
    calls: BrokerCalls,
    address: str,
    code: int,
    data: Mapping[str, Any] | None = None,
    **fields: str,
) -> Any:
    """Send a request, and read the JSON of its answer, if it has any."""
    body = b"" if data is None else msgspec.json.encode(data)
    answer = await calls.ask(address, RemotingCommand.request(code, fields, body=body))
    if not answer.body:
        return None
    try:
        return msgspec.json.decode(answer.body)
    except msgspec.DecodeError as error:
        raise CodecError(f"the answer to {code} is no JSON: {error}") from error
