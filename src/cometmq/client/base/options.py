"""Settings that all clients share, as one checked, frozen value with RocketMQ's defaults."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Final, Unpack

from cometmq.client.base.arguments import check_ms, checked_text
from cometmq.client.base.security import OPEN, Security, SecurityOptions
from cometmq.errors import ConfigError, ConfigTypeError
from cometmq.net.env import Environment, system_environment
from cometmq.net.network import parse_address
from cometmq.net.tls import TlsNetwork

__all__ = ["ClientOptions", "check_names", "name_server_addresses"]

NAME_SERVER_VARIABLE: Final = "NAMESRV_ADDR"
DEFAULT_NAME_SERVER: Final = "127.0.0.1:9876"
_COMMON_NAMES: Final = ("name_server", "timeout_ms", "instance_name", "client_ip", "env")


def name_server_addresses(name_server: object) -> tuple[str, ...]:
    """Addresses from ``a:9876;b:9876``, a sequence, ``NAMESRV_ADDR``, or the local default.

    Raises:
        ConfigError: an entry is not ``host:port``.
    """
    if name_server is None:
        name_server = os.environ.get(NAME_SERVER_VARIABLE) or DEFAULT_NAME_SERVER
    if isinstance(name_server, str):
        name_server = [name_server]
    elif not isinstance(name_server, Iterable) or isinstance(name_server, (bytes, bytearray)):
        raise ConfigTypeError(
            f"name_server is {name_server!r:.100} ({type(name_server).__name__}); give a text such "
            "as 127.0.0.1:9876, or a list of such texts"
        )
    addresses: list[str] = []
    entries = [checked_text("a name server address", entry) for entry in name_server]
    for part in ";".join(entries).replace(",", ";").split(";"):
        address = part.strip().removeprefix("http://")
        if not address:
            continue
        try:
            if not parse_address(address)[1]:
                raise ValueError("nobody listens on port 0")
        except Exception as error:
            raise ConfigError(
                f"name server address {address!r} is not host:port; set name_server= or "
                f"{NAME_SERVER_VARIABLE} to something like 127.0.0.1:9876"
            ) from error
        addresses.append(address)
    if not addresses:
        raise ConfigError(
            f"no name server address given; set name_server= or {NAME_SERVER_VARIABLE} to "
            "something like 127.0.0.1:9876"
        )
    return tuple(addresses)


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The settings of a client; times are in milliseconds.

    ``instance_name`` replaces the process id in the client id (two clients must not share one);
    ``client_ip`` replaces the address of the interface that routes outwards.
    """

    name_servers: tuple[str, ...]
    env: Environment = field(default_factory=system_environment)
    instance_name: str | None = None
    client_ip: str | None = None
    process_id: int | None = None
    request_timeout_ms: int = 3_000
    heartbeat_interval_ms: int = 30_000
    route_interval_ms: int = 30_000
    persist_interval_ms: int = 5_000
    rebalance_interval_ms: int = 20_000
    security: Security = OPEN

    @classmethod
    def of(
        cls,
        name_server: str | Sequence[str] | None,
        *,
        env: Environment | None = None,
        instance_name: str | None = None,
        client_ip: str | None = None,
        request_timeout_ms: int = 3_000,
        **security: Unpack[SecurityOptions],
    ) -> "ClientOptions":
        """Options from the keyword arguments of a client.

        Raises:
            ConfigError: an address, a key or another value is wrong.
            TypeError: a keyword argument is unknown.
        """
        check_ms("timeout_ms", request_timeout_ms)
        if instance_name is not None:
            checked_text("instance_name", instance_name)
        if client_ip is not None:
            _check_ip(client_ip)
        if env is None:
            env = system_environment()
        elif not hasattr(env, "clock"):
            raise ConfigError(f"env is {env!r:.100}; give an Environment of cometmq.net.env")
        check_names(security, SecurityOptions.__annotations__)
        secured = Security.of(**security)
        if secured.tls is not None:
            env = replace(env, network=TlsNetwork(secured.tls))
        return cls(
            name_server_addresses(name_server),
            env=env,
            instance_name=instance_name,
            client_ip=client_ip,
            request_timeout_ms=request_timeout_ms,
            security=secured,
        )


def _check_ip(client_ip: object) -> None:
    text = checked_text("client_ip", client_ip)
    try:
        ip_address(text)
    except ValueError:
        raise ConfigError(f"client_ip is {client_ip!r}; give an IP address") from None


def check_names(options: Iterable[str], accepted: Iterable[str]) -> None:
    """Refuse unknown arguments.

    Clients pass their arguments on to other classes, whose names Python's own error would show.

    Raises:
        TypeError: an argument is not among the accepted ones; the text proposes a similar one.
    """
    names = list(accepted)
    for name in options:
        if name not in names:
            from difflib import get_close_matches

            similar = get_close_matches(name, [*names, *_COMMON_NAMES], n=1)
            hint = f"did you mean {similar[0]}=?" if similar else "help() of the class lists them"
            raise TypeError(f"a client has no argument {name}=; {hint}")
