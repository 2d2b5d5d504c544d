"""`cometmq broker status` and `cometmq broker config`: a running broker, from outside."""

from typing import TYPE_CHECKING

import click

from cometmq.cli.terminal.confirming import confirm
from cometmq.cli.terminal.options import (
    admin_client,
    done_option,
    json_option,
    name_server_option,
    set_up_logging,
    timeout_option,
)
from cometmq.cli.terminal.values import NAME

if TYPE_CHECKING:
    from cometmq.client import Admin

__all__ = ["broker_config", "broker_status"]


@click.command("status", short_help="A running broker's figures.")
@click.argument("name", type=NAME, required=False)
@name_server_option
@timeout_option
@json_option
@click.pass_context
def broker_status(
    ctx: click.Context, name: str | None, name_server: str, timeout_s: float, as_json: bool
) -> None:
    """Show the figures of broker NAME by RocketMQ's names; NAME is needed where there are several.

    \b
    cometmq broker status broker-a
    cometmq broker status --json | jq '.[] | select(.figure == "putTps")'
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing
    from cometmq.net.loop import run

    async def collect() -> list[dict[str, object]]:
        async with admin_client(name_server, timeout_s) as admin:
            chosen = name or await _only_broker(admin)
            table = await admin.broker_runtime_info(chosen)
        return [{"broker": chosen, "figure": key, "value": table[key]} for key in sorted(table)]

    print_listing(run(collect()), as_json=as_json)


async def _only_broker(admin: "Admin") -> str:
    """The name of the only broker.

    Raises:
        ConfigError: there are several, or none.
    """
    from cometmq.errors import ConfigError, NoRoute

    names = sorted((await admin.cluster_info()).brokers)
    if not names:
        raise NoRoute("no broker is registered; start one with cometmq broker")
    if len(names) > 1:
        raise ConfigError(f"name one of the {len(names)} brokers: {', '.join(names)}")
    return names[0]


@click.group("config", short_help="A running broker's settings: list, get, set.")
def broker_config() -> None:
    """Show and change the settings of a running broker."""


@broker_config.command("list", short_help="All settings of a running broker.")
@click.option("--broker", "name", type=NAME, help="The broker; needed where there are several.")
@name_server_option
@timeout_option
@json_option
@click.pass_context
def list_settings(
    ctx: click.Context, name: str | None, name_server: str, timeout_s: float, as_json: bool
) -> None:
    """List all settings of a running broker with their values."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing

    settings = _settings(name_server, timeout_s, name)
    print_listing(
        [{"key": key, "value": value} for key, value in sorted(settings.items())], as_json=as_json
    )


@broker_config.command("get", short_help="The value of one setting.")
@click.argument("key", type=NAME)
@click.option("--broker", "name", type=NAME, help="The broker; needed where there are several.")
@name_server_option
@timeout_option
@done_option
@click.pass_context
def get(ctx: click.Context, key: str, name: str | None, name_server: str, timeout_s: float) -> None:
    """Print the value of setting KEY at a running broker."""
    set_up_logging(ctx)
    from difflib import get_close_matches

    from cometmq.cli.terminal.output import print_done

    settings = _settings(name_server, timeout_s, name)
    if key not in settings:
        near = get_close_matches(key, settings, n=1)
        hint = f"; did you mean {near[0]}?" if near else "; cometmq broker config list has all"
        raise click.UsageError(f"the broker has no setting {key}{hint}")
    print_done(settings[key], key=key, value=settings[key])


def _assignments(
    ctx: click.Context, parameter: click.Parameter, assignments: tuple[str, ...]
) -> dict[str, str]:
    changes: dict[str, str] = {}
    for item in assignments:
        key, separator, value = item.partition("=")
        if not separator or not key.strip():
            raise click.BadParameter(f"{item!r} is not KEY=VALUE; write fileReservedTime=48")
        changes[key.strip()] = value.strip()
    return changes


@broker_config.command("set", short_help="Change settings of a running broker.")
@click.argument("changes", nargs=-1, required=True, metavar="KEY=VALUE...", callback=_assignments)
@click.option("--broker", "name", type=NAME, help="The broker; needed where there are several.")
@click.option("-y", "--yes", is_flag=True, help="Skip the confirmation.")
@name_server_option
@timeout_option
@done_option
@click.pass_context
def set_settings(
    ctx: click.Context,
    changes: dict[str, str],
    name: str | None,
    yes: bool,
    name_server: str,
    timeout_s: float,
) -> None:
    """Change settings of a running broker, all of them or none.

    The broker writes them into its configuration file, if it has one, so that they outlive a
    restart. It refuses keys that it reads at its start only, and says so.

    \b
    cometmq broker config set flushDiskType=SYNC_FLUSH fileReservedTime=48
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_done
    from cometmq.net.loop import run

    async def change() -> str:
        async with admin_client(name_server, timeout_s) as admin:
            chosen = name or await _only_broker(admin)
            if not yes:
                confirm(f"Change {', '.join(changes)} of {chosen}?")
            await admin.change_broker_config(chosen, changes)
            return chosen

    chosen = run(change())
    names = ", ".join(changes)
    print_done(f"{chosen}: {names} changed", is_note=True, broker=chosen, changed=changes)


def _settings(name_server: str, timeout_s: float, name: str | None) -> dict[str, str]:
    from cometmq.codec.java_properties import parse_properties
    from cometmq.net.loop import run

    async def collect() -> str:
        async with admin_client(name_server, timeout_s) as admin:
            return await admin.broker_config(name or await _only_broker(admin))

    return parse_properties(run(collect()))
