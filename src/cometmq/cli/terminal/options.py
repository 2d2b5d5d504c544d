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
"""A day; a longer timeout of one request is a mistaken unit."""


_SECURITY: Final = "cometmq.security"
_TLS_MODES: Final = ("on", "off", "no-hostname", "insecure")


def _remember(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Store a connection option for `security_options`."""
    if value is not None:
        ctx.meta.setdefault(_SECURITY, {})[parameter.name] = value


def _secured(function: F) -> F:
    """Add the options for keys and TLS; the secret has none, as other users see command lines."""
    path = click.Path(exists=True, dir_okay=False)
    options = (
        click.option(
            "--access-key",
            metavar="KEY",
            help="Sign requests as this account, with the secret in COMETMQ_SECRET_KEY.",
            expose_value=False,
            callback=_remember,
        ),
        click.option(
            "--tls",
            type=click.Choice(_TLS_MODES),
            help="Use TLS; no-hostname accepts any trusted host, insecure any certificate.",
            expose_value=False,
            callback=_remember,
        ),
        click.option(
            "--tls-ca",
            type=path,
            help="Trust the authorities in this PEM file instead of the system's.",
            expose_value=False,
            callback=_remember,
        ),
        click.option(
            "--tls-cert",
            type=path,
            help="PEM file of the client's certificate.",
            expose_value=False,
            callback=_remember,
        ),
        click.option(
            "--tls-key",
            type=path,
            help="PEM file of that certificate's private key.",
            expose_value=False,
            callback=_remember,
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def security_options() -> "SecurityOptions":
    """Keyword arguments for clients, from the options of the running command.

    The client reads options that are absent here from the environment.
    """
    from cometmq.client.base.security import SecurityOptions

    given: dict[str, str] = click.get_current_context().meta.get(_SECURITY, {})
    options = SecurityOptions()
    if "access_key" in given:
        options["access_key"] = given["access_key"]
    mode = given.get("tls")
    if mode == "off":
        options["tls"] = False
    elif given.keys() & {"tls", "tls_ca", "tls_cert", "tls_key"}:
        from cometmq.net.tls import Tls

        options["tls"] = Tls(
            ca_file=given.get("tls_ca"),
            cert_file=given.get("tls_cert"),
            key_file=given.get("tls_key"),
            verify=mode != "insecure",
            check_hostname=mode not in ("insecure", "no-hostname"),
        )
    return options


def admin_client(name_server: str, timeout_s: float) -> "Admin":
    """Create an admin client with the connection options of the running command."""
    from cometmq.client import Admin

    timeout_ms = round(timeout_s * 1000)
    return Admin(name_server=name_server, timeout_ms=timeout_ms, **security_options())


def name_server_option(function: F) -> F:
    """Add `-n HOST:PORT[;HOST:PORT]`, which defaults to NAMESRV_ADDR or this machine's usual port,
    and the options for keys and TLS."""
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
    """Add `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")(
        function
    )


def timeout_option(function: F) -> F:
    """Add `--timeout SECONDS` for one request."""
    return click.option(
        "--timeout",
        "timeout_s",
        type=Finite(min=0.1, max=TIMEOUT_S_MAX),
        default=5.0,
        show_default=True,
        metavar="SECONDS",
        help="Fail a request that takes longer.",
    )(function)


def is_quiet(ctx: click.Context) -> bool:
    """Whether `-q` was given to the root command."""
    return bool((ctx.find_root().obj or {}).get("quiet"))


def set_up_logging(ctx: click.Context, *, level: int = logging.WARNING) -> None:
    """Log to stderr at ``level``, one step finer per `-v`; log nothing with `-q`."""
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
