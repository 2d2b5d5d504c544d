"""Asks etcd's JSON gateway over HTTP, one endpoint after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import httpx

from cometmq.errors import ControllerError
from cometmq.net.tls import Tls

__all__ = ["EtcdGateway"]

TIMEOUT_S: Final = 1.0
"""A member of etcd that does not answer for so long: the next one is asked."""
EXPIRED: Final = 401
STALE: Final = "auth store is old"
"""In the answer, with code 400, to a token from before a change of any user or role."""


class EtcdGateway:
    """The members of one etcd cluster.

    Args:
        endpoints: ``http://host:port`` or ``https://host:port`` of each member.
        tls: what their certificates are checked with.
        user: empty where etcd asks for no password.
        timeout_s: a member that does not answer for so long is passed over.

    Raises:
        ConfigError: a file of `tls` cannot be read.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        tls: Tls,
        user: str = "",
        password: str = "",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._endpoints = [endpoint.rstrip("/") for endpoint in endpoints]
        self._client = httpx.AsyncClient(verify=tls.context(), timeout=timeout_s, trust_env=False)
        self._user, self._password = user, password
        self._token = ""

    async def call(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask one member after the other, the one that answered last first.

        Raises:
            ControllerError: no member answers, or etcd refuses; the text says what each said.
        """
        faults: list[str] = []
        for endpoint in list(self._endpoints):
            try:
                answer = await self._ask(endpoint, path, body)
            except (httpx.HTTPError, OSError, ValueError) as error:
                # A refused certificate shows only when the answer is read, as the ssl module's.
                faults.append(f"{endpoint}: {str(error) or type(error).__name__}")
                self._endpoints.remove(endpoint)
                self._endpoints.append(endpoint)
                continue
            return answer
        raise ControllerError(f"no member of etcd has answered {path}: {'; '.join(faults)}")

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _ask(self, endpoint: str, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._user and not self._token:
            self._token = await self._authenticate(endpoint)
        response = await self._post(endpoint, path, body)
        is_old = response.status_code == EXPIRED or STALE in response.text
        if is_old and self._user:
            self._token = await self._authenticate(endpoint)
            response = await self._post(endpoint, path, body)
        if response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise httpx.HTTPError(f"{response.status_code} {response.text[:200]}")
        if response.status_code != httpx.codes.OK:
            raise ControllerError(
                f"etcd refuses {path}: {response.status_code} {response.text[:200]}"
            )
        answer: Mapping[str, Any] = response.json()
        return answer

    async def _authenticate(self, endpoint: str) -> str:
        login = {"name": self._user, "password": self._password}
        self._token = ""
        response = await self._post(endpoint, "auth/authenticate", login)
        if response.status_code != httpx.codes.OK:
            raise ControllerError(
                f"etcd does not let user {self._user} in: {response.status_code}"
                f" {response.text[:200]}"
            )
        return str(response.json()["token"])

    async def _post(self, endpoint: str, path: str, body: Mapping[str, Any]) -> httpx.Response:
        headers = {"Authorization": self._token} if self._token else {}
        return await self._client.post(f"{endpoint}/v3/{path}", json=body, headers=headers)
