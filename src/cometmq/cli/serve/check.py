"""`cometmq config check`: what a configuration file means to a server, without starting one."""

from typing import TYPE_CHECKING

import click

from cometmq.cli.terminal.exit_codes import FAILED
from cometmq.cli.terminal.options import json_option, set_up_logging
from cometmq.extras import require

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["config"]


@click.group(short_help="Check a configuration file.")
def config() -> None:
    """Check a configuration file; `cometmq broker config` has the settings of a running broker."""


@config.command("check", short_help="What in a file has no effect, or is refused.")
@click.argument("path", type=click.Path(exists=True, dir_okay=False), metavar="FILE")
@click.option(
    "--for",
    "server",
    type=click.Choice(("broker", "name-server", "controller")),
    default="broker",
    show_default=True,
    help="The server that reads the file.",
)
@json_option
@click.pass_context
def check(ctx: click.Context, path: str, server: str, as_json: bool) -> int:
    """Read FILE as the server does, and list its keys without effect.

    `ignored` keys are RocketMQ's that mean nothing here. A `refused` key asks for protection that
    the server does not have: it starts only with --insecure, and the exit code is 1. An unknown key
    or an illegal value is an error with exit code 2, as at the server's start.

    \b
    cometmq config check broker.conf
    """
    require("broker", "cometmq config check")
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing

    ignored, refused = _without_effect(server, path)
    print_listing(
        [
            {"key": key, "value": value, "effect": effect}
            for effect, keys in (("refused", refused), ("ignored", ignored))
            for key, value in sorted(keys.items())
        ],
        as_json=as_json,
        empty=f"every key of {path} has its effect",
    )
    return FAILED if refused else 0


def _without_effect(server: str, path: str) -> "tuple[Mapping[str, str], Mapping[str, str]]":
    """The keys that are ignored, and those that ask for protection that does not exist."""
    if server == "broker":
        from cometmq.broker.base.config import load_config

        broker = load_config(path, environment={}, is_insecure=True)
        return broker.ignored, broker.unprotected
    if server == "name-server":
        from cometmq.namesrv.config import load_name_server_config

        name_server = load_name_server_config(path, is_insecure=True)
        return name_server.ignored, name_server.unprotected
    from cometmq.controller.config import load_controller_config

    return load_controller_config(path).ignored, {}
