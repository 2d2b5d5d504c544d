"""`cometmq app`: runs an `App` that a module of the program defines."""

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cometmq.cli.terminal.options import set_up_logging
from cometmq.errors import ConfigError

if TYPE_CHECKING:
    from cometmq.app import App

__all__ = ["app"]


@click.group("app", short_help="Run the handlers of a program.")
def app() -> None:
    """Run the handlers of a program."""


@app.command("run", short_help="Run an App in the foreground.")
@click.argument("target", metavar="MODULE:APP")
@click.option(
    "-n", "--name-server", metavar="HOST:PORT[;...]", help="Instead of the App's name servers."
)
@click.pass_context
def run(ctx: click.Context, target: str, name_server: str | None) -> int:
    """Run an App in the foreground until SIGTERM or Ctrl-C.

    MODULE:APP names a cometmq.App, such as shop.worker:app; modules are found from the current
    directory. At the first signal the handlers in work end and are acknowledged, then everything
    closes. A second signal ends the process at once.
    """
    import logging

    set_up_logging(ctx)
    if not ctx.obj["quiet"]:
        logging.getLogger("cometmq.app").setLevel(logging.INFO)
    _load(target).run(name_server=name_server)
    return 0


def _load(target: str) -> "App":
    """The App that ``module:name`` names.

    Raises:
        ConfigError: there is no such module, or the name is none of an App.
    """
    from cometmq.app import App
    from cometmq.app.sync_app import App as SyncApp

    module_name, separator, path = target.partition(":")
    if not (module_name and separator and path):
        raise ConfigError(f"{target!r} names no App; give MODULE:APP, such as shop.worker:app")
    sys.path.insert(0, str(Path.cwd()))
    try:
        value: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(
            f"there is no module {error.name} in {Path.cwd()} or among the installed ones"
        ) from error
    for name in path.split("."):
        if not hasattr(value, name):
            raise ConfigError(f"the module {module_name} has no {path}")
        value = getattr(value, name)
    if isinstance(value, SyncApp):
        return value.asyncio
    if not isinstance(value, App):
        raise ConfigError(f"{target} is {value!r:.100} ({type(value).__name__}), no cometmq.App")
    return value
