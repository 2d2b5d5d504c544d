"""Settings that all clients share, as one checked, frozen value with RocketMQ's defaults."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Final, Protocol, Unpack

from cometmq.client.base.arguments import check_ms, checked_text, checked_topic
from cometmq.client.base.name_servers import NameServers
from cometmq.client.base.namespace import NO_NAMESPACE, Namespace
from cometmq.client.base.sandbox import check_sandbox
from cometmq.client.base.security import OPEN, Security, SecurityOptions
from cometmq.errors import ConfigError, ConfigTypeError
from cometmq.model.names import TRACE_TOPIC
from cometmq.net.env import Environment, system_environment
from cometmq.net.tls import TlsNetwork
from cometmq.wire.command.command import RemotingCommand

__all__ = ["ClientOptions", "CommonOptions", "Shareable", "check_names"]

_COMMON_NAMES: Final = ("name_server", "timeout_ms", "instance_name", "client_ip", "env")


class Shareable(Protocol):
    """A connection that several clients share, as their options see it."""

    options: "ClientOptions"

    def open_shared(self) -> object:
        """What the clients share (`SharedInstance`), for one that begins."""
        ...


class CommonOptions(SecurityOptions, total=False):
    """Keyword arguments of every client, besides its name servers.

    ``connection`` is a `Connection` that other clients use too; name servers, keys, TLS and the
    other options of a connection are then given to it.  ``namespace`` puts ``Space%`` before the
    names of topics and groups on the wire.  ``sandbox`` is a test environment that shares topics
    with others.  ``trace`` makes a producer or push consumer write RocketMQ's trace records: True
    for the topic ``RMQ_SYS_TRACE_TOPIC``, or the name of another topic.
    """

    connection: Shareable | None
    namespace: str | None
    sandbox: str | None
    trace: bool | str | None


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The settings of a client; times are in milliseconds.

    ``name_servers`` may change while the client runs; the others do not.

    ``instance_name`` replaces the process id in the client id (two clients must not share one);
    ``client_ip`` replaces the address of the interface that routes outwards.
    """

    name_servers: NameServers
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
    connection: Shareable | None = None
    namespace: Namespace = NO_NAMESPACE
    sandbox: str | None = None
    trace_topic: str | None = None
    """Where trace records go; None: none are written."""

    @property
    def prepare(self) -> Callable[[RemotingCommand], None] | None:
        """Translates the names in a request and signs it; None if neither is needed."""
        wrap, sign = self.namespace.wrap_command, self.security.prepare
        if not self.namespace:
            return sign
        if sign is None:
            return wrap

        def both(command: RemotingCommand) -> None:
            wrap(command)
            sign(command)

        return both

    def of_whole_cluster(self, client: str) -> "ClientOptions":
        """Themselves, for a client that works on the whole cluster.

        Raises:
            ConfigError: a namespace or a sandbox is set.
        """
        self.refuse_trace(client)
        if self.sandbox:
            raise ConfigError(f"sandbox is {self.sandbox!r}, which has no effect on {client}")
        if self.namespace:
            raise ConfigError(
                f"namespace is {self.namespace.name!r}, but {client} takes names as the cluster "
                f"has them, such as {self.namespace.name}%Topic; give it none"
            )
        return self

    def refuse_trace(self, client: str) -> None:
        """Refuse traces for a client that writes none.

        Raises:
            ConfigError: they are asked for.
        """
        if self.trace_topic is not None:
            raise ConfigError(
                f"trace is set, and {client} writes no traces; producers and push consumers do"
            )

    @classmethod
    def of(
        cls,
        name_server: str | Sequence[str] | None,
        *,
        env: Environment | None = None,
        instance_name: str | None = None,
        client_ip: str | None = None,
        request_timeout_ms: int = 3_000,
        connection: Shareable | None = None,
        namespace: str | None = None,
        sandbox: str | None = None,
        trace: bool | str | None = None,
        **security: Unpack[SecurityOptions],
    ) -> "ClientOptions":
        """Options from the keyword arguments of a client.

        Raises:
            ConfigError: an address, a key or another value is wrong.
            TypeError: a keyword argument is unknown.
        """
        check_ms("timeout_ms", request_timeout_ms)
        if connection is not None:
            own = {
                "name_server": name_server,
                "env": env,
                "instance_name": instance_name,
                "client_ip": client_ip,
                "namespace": namespace,
                "sandbox": sandbox,
                **security,
            }
            return replace(
                _options_of(connection, own),
                request_timeout_ms=request_timeout_ms,
                trace_topic=_trace_topic(trace),
            )
        if instance_name is not None:
            checked_text("instance_name", instance_name)
        if client_ip is not None:
            _check_ip(client_ip)
        if env is None:
            env = system_environment()
        elif not hasattr(env, "clock"):
            raise ConfigError(f"env is {env!r:.100}; give an Environment of cometmq.net.env")
        check_names(security, CommonOptions.__annotations__)
        secured = Security.of(**security)
        if secured.tls is not None:
            env = replace(env, network=TlsNetwork(secured.tls))
        return cls(
            NameServers(name_server, env, resolves=secured.tls is None),
            env=env,
            instance_name=instance_name,
            client_ip=client_ip,
            request_timeout_ms=request_timeout_ms,
            security=secured,
            namespace=Namespace(namespace),
            sandbox=check_sandbox(sandbox),
            trace_topic=_trace_topic(trace),
        )


def _trace_topic(trace: bool | str | None) -> str | None:
    if trace is None or trace is False:
        return None
    return TRACE_TOPIC if trace is True else checked_topic(trace)


def _options_of(connection: Shareable, own: Mapping[str, object]) -> ClientOptions:
    """The options of a connection, to whose clients no option of its own was given."""
    if not hasattr(connection, "open_shared"):
        raise ConfigTypeError(
            f"connection is {connection!r:.100} ({type(connection).__name__}); give a Connection"
        )
    for name, value in own.items():
        if value is not None:
            raise ConfigError(
                f"{name}= belongs to the connection; give it to Connection(...) instead of the "
                "client"
            )
    return connection.options


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
