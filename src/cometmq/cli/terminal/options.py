"""Options that several commands share, and the log set-up of a command."""

import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from cometmq.cli.terminal.log_lines import level_of_environment, log_formatter
from cometmq.cli.terminal.values import Finite

if TYPE_CHECKING:
    from cometmq.client import Admin
    from cometmq.client.admin.controllers import ControllerAdmin
    from cometmq.client.base.security import SecurityOptions

__all__ = [
    "DEFAULT_NAME_SERVER",
    "PRINTS_JSON",
    "admin_client",
    "controller_client",
    "controller_option",
    "done_option",
    "is_quiet",
    "json_option",
    "name_server_option",
    "security_options",
    "set_up_logging",
    "timeout_option",
]

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_NAME_SERVER: Final = "127.0.0.1:9876"
DEFAULT_CONTROLLER: Final = "127.0.0.1:9877"
TIMEOUT_S_MAX: Final = 86_400
"""A day; a longer timeout of one request is a mistaken unit."""


_SECURITY: Final = "cometmq.security"
PRINTS_JSON: Final = "cometmq.prints_json"
"""Where `done_option` notes for `print_done` that the command has --json."""
_JSON_HELP: Final = "Print JSON instead of text."
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


def _name_server(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str:
    """The name servers, from a profile where nobody gave any; its keys and TLS come with them."""
    named = (ctx.find_root().obj or {}).get("profile")
    is_on_line = ctx.get_parameter_source("name_server") is ParameterSource.COMMANDLINE
    if named and is_on_line and not ctx.resilient_parsing:
        raise click.UsageError("-n and --profile both name a cluster; give one of them")
    if value is not None and (is_on_line or not named):
        return value
    from cometmq.cli.terminal.profiles import Profiles

    profile = Profiles.load().chosen(named)
    if profile is None:
        return DEFAULT_NAME_SERVER
    options = ctx.meta.setdefault(_SECURITY, {})
    names = ["tls", "tls_ca", "tls_cert", "tls_key"]
    if "access_key" not in options:  # else the secret would be another account's
        names += ["access_key", "secret_file"]
    for name in names:
        if getattr(profile, name):
            options.setdefault(name, getattr(profile, name))
    return profile.name_server


def security_options() -> "SecurityOptions":
    """Keyword arguments for clients, from the options of the running command.

    The client reads options that are absent here from the environment.
    """
    from cometmq.client.base.security import SecurityOptions

    given: dict[str, str] = click.get_current_context().meta.get(_SECURITY, {})
    options = SecurityOptions()
    if "access_key" in given:
        options["access_key"] = given["access_key"]
    if "secret_file" in given:
        from cometmq.cli.terminal.profiles import read_secret

        options["secret_key"] = read_secret(given["secret_file"])
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
    """Add `-n HOST:PORT[;HOST:PORT]` and the options for keys and TLS.

    Without `-n` and NAMESRV_ADDR they come from a profile; without one the name server is this
    machine's usual one.
    """
    return click.option(
        "-n",
        "--name-server",
        "name_server",
        metavar="HOST:PORT",
        envvar="NAMESRV_ADDR",
        show_envvar=True,
        callback=_name_server,
        help=f"Name servers, separated by ';'.  [default: the profile's, or {DEFAULT_NAME_SERVER}]",
    )(_secured(function))


def controller_option(function: F) -> F:
    """Add `-a HOST:PORT[;HOST:PORT]`, the controllers, and the options for keys and TLS."""
    return click.option(
        "-a",
        "--controller",
        "addresses",
        metavar="HOST:PORT",
        default=DEFAULT_CONTROLLER,
        show_default=True,
        help="Controllers, separated by ';' (controllerAddr).",
    )(_secured(function))


def controller_client(addresses: str, timeout_s: float) -> "ControllerAdmin":
    """Create what asks controllers, with the connection options of the running command."""
    from cometmq.client.admin.controllers import ControllerAdmin

    return ControllerAdmin(addresses.split(";"), round(timeout_s * 1000), **security_options())


def json_option(function: F) -> F:
    """Add `--json`."""
    return click.option("--json", "as_json", is_flag=True, help=_JSON_HELP)(function)


def done_option(function: F) -> F:
    """Add `--json` to a command that says with `print_done` what it did."""
    return click.option(
        "--json",
        "prints_json",
        is_flag=True,
        expose_value=False,
        callback=_remember_json,
        help=_JSON_HELP,
    )(function)


def _remember_json(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    ctx.meta[PRINTS_JSON] = value


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
    """Log to stderr at ``level``, one step finer per `-v`; log nothing with `-q`.

    The environment may ask for another level, and for JSON (`log_lines`); `-v` and `-q` go before.

    Raises:
        ConfigError: a variable of the environment has an unknown value.
    """
    settings = ctx.find_root().obj or {}
    formatter, wanted = log_formatter(), level_of_environment()
    if settings.get("quiet"):
        logging.disable(logging.CRITICAL)
        return
    verbose = settings.get("verbose", 0)
    if verbose or wanted is None:
        wanted = min(level, (level, logging.INFO, logging.DEBUG)[min(verbose, 2)])
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=wanted, handlers=[handler])
