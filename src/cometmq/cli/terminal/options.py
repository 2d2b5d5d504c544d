"""Options that several commands share, and the log set-up of a command."""

import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from cometmq.cli.terminal.values import Finite

if TYPE_CHECKING:
    from cometmq.client import Admin
    from cometmq.client.base.security import SecurityOptions

__all__ = [
    "DEFAULT_NAME_SERVER",
    "admin_client",
    "is_quiet",
    "json_option",
    "name_server_option",
    "security_options",
    "set_up_logging",
    "timeout_option",
]

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_NAME_SERVER: Final = "127.0.0.1:9876"
TIMEOUT_S_MAX: Final = 86_400
"""A day; whoever wants one request to take longer has mistaken the unit."""


_SECURITY: Final = "cometmq.security"
_TLS_MODES: Final = ("on", "off", "no-hostname", "insecure")


def _remember(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Keep a connection option where `security_options` finds it."""
    if value is not None:
        ctx.meta.setdefault(_SECURITY, {})[parameter.name] = value


def _secured(function: F) -> F:
    """Keys and TLS. There is no option for the secret: command lines are seen by others."""
    path = click.Path(exists=True, dir_okay=False)
    options = (
        click.option(
            "--access-key",
            metavar="KEY",
            help="Sign requests as this account; the secret is taken from COMETMQ_SECRET_KEY.",
            expose_value=False,
            callback=_remember,
        ),
        click.option(
            "--tls",
            type=click.Choice(_TLS_MODES),
            help="Speak TLS; any host of a trusted authority, or any certificate at all.",
            expose_value=False,
            callback=_remember,
        ),
        click.option(
            "--tls-ca",
            type=path,
            help="PEM file of the authorities to trust instead of the system's.",
            expose_value=False,
            callback=_remember,
        ),
        click.option(
            "--tls-cert",
            type=path,
            help="PEM file of our own certificate.",
            expose_value=False,
            callback=_remember,
        ),
        click.option(
            "--tls-key",
            type=path,
            help="PEM file of its private key.",
            expose_value=False,
            callback=_remember,
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def security_options() -> "SecurityOptions":
    """Keyword arguments for clients, from the options of the command that runs.

    What was not given is left to the client, which looks into the environment.
    """
    from cometmq.client.base.security import SecurityOptions

    given: dict[str, str] = click.get_current_context().meta.get(_SECURITY, {})
    found = SecurityOptions()
    if "access_key" in given:
        found["access_key"] = given["access_key"]
    mode = given.get("tls")
    if mode == "off":
        found["tls"] = False
    elif given.keys() & {"tls", "tls_ca", "tls_cert", "tls_key"}:
        from cometmq.net.tls import Tls

        found["tls"] = Tls(
            ca_file=given.get("tls_ca"),
            cert_file=given.get("tls_cert"),
            key_file=given.get("tls_key"),
            verify=mode != "insecure",
            check_hostname=mode not in ("insecure", "no-hostname"),
        )
    return found


def admin_client(name_server: str, timeout_s: float) -> "Admin":
    """The client of a command that manages something, with the command's connection options."""
    from cometmq.client import Admin

    timeout_ms = round(timeout_s * 1000)
    return Admin(name_server=name_server, timeout_ms=timeout_ms, **security_options())


def name_server_option(function: F) -> F:
    """`-n HOST:PORT[;HOST:PORT]`, or NAMESRV_ADDR, or this machine's usual port; and what that
    cluster may ask for."""
    return click.option(
        "-n",
        "--name-server",
        "name_server",
        metavar="HOST:PORT",
        envvar="NAMESRV_ADDR",
        default=DEFAULT_NAME_SERVER,
        show_default=True,
        show_envvar=True,
        help="Name servers, separated by ';'.",
    )(_secured(function))


def json_option(function: F) -> F:
    """`--json` on every listing."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")(
        function
    )


def timeout_option(function: F) -> F:
    """`--timeout SECONDS` for one request."""
    return click.option(
        "--timeout",
        "timeout_s",
        type=Finite(min=0.1, max=TIMEOUT_S_MAX),
        default=5.0,
        show_default=True,
        metavar="SECONDS",
        help="How long one request may take.",
    )(function)


def is_quiet(ctx: click.Context) -> bool:
    """Whether `-q` was given to the root command."""
    return bool((ctx.find_root().obj or {}).get("quiet"))


def set_up_logging(ctx: click.Context, *, level: int = logging.WARNING) -> None:
    """Log to stderr at ``level``, one step finer per `-v`; nothing at all with `-q`."""
    settings = ctx.find_root().obj or {}
    if settings.get("quiet"):
        logging.disable(logging.CRITICAL)
        return
    finer = min(level, (level, logging.INFO, logging.DEBUG)[min(settings.get("verbose", 0), 2)])
    logging.basicConfig(
        level=finer,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
