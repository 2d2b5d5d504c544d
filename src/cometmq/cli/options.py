"""Options that several commands share, and the log set-up of a command."""

import logging
import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

__all__ = [
    "DEFAULT_NAME_SERVER",
    "is_quiet",
    "json_option",
    "name_server_option",
    "set_up_logging",
    "timeout_option",
]

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_NAME_SERVER: Final = "127.0.0.1:9876"


def name_server_option(function: F) -> F:
    """`-n HOST:PORT[;HOST:PORT]`, or NAMESRV_ADDR, or this machine's usual port."""
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
    )(function)


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
        type=click.FloatRange(min=0.1),
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
