"""What a console shows, and to whom."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from cometmq.net.tls import Tls

__all__ = ["ClientKeywords", "ConsoleSettings"]


class ClientKeywords(TypedDict):
    """Keyword arguments of an `Admin` or a `Producer`."""

    name_server: str
    timeout_ms: int
    access_key: str
    secret_key: str
    security_token: str
    tls: Tls | bool | None


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """The settings of a console.

    ``hosts`` are the names that a request may call the console by; none allows any.  ``is_https``
    makes cookies secure.  ``is_read_only`` refuses every change.
    """

    name_server: str
    timeout_ms: int = 5_000
    tls: Tls | bool | None = None
    hosts: frozenset[str] = field(default_factory=frozenset)
    is_https: bool = False
    is_read_only: bool = False

    @property
    def cookie(self) -> str:
        """The name of the cookie; a browser sends ``__Host-`` cookies over HTTPS only."""
        return "__Host-cometmq" if self.is_https else "cometmq-console"

    def client_options(self, access_key: str = "", secret_key: str = "") -> ClientKeywords:
        """The arguments of a client with these keys, whatever the environment has; or without."""
        return ClientKeywords(
            name_server=self.name_server,
            timeout_ms=self.timeout_ms,
            access_key=access_key,
            secret_key=secret_key,
            security_token="",
            tls=self.tls,
        )
