"""`cometmq controller`: a controller in the foreground; what one says of its broker sets, and sets
that it is to record anew."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from cometmq.cli.serve.serve import serve_until_stopped
from cometmq.cli.terminal.options import (
    controller_client,
    controller_option,
    json_option,
    set_up_logging,
    timeout_option,
)
from cometmq.cli.terminal.values import GIVEN, NAME

if TYPE_CHECKING:
    from cometmq.client.admin.controllers import ControllerStatus
    from cometmq.wire.body.controller import SetReplicas

__all__ = ["controller"]


@click.group(invoke_without_command=True, short_help="Run a controller, and show its replica sets.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=None,
    help="Listen on this port (controllerPort).  [default: the port in controllerDLegerPeers, "
    "else 9877]",
)
@click.option(
    "--listen",
    "listen_host",
    type=GIVEN,
    metavar="HOST",
    help="Address to listen on; 0.0.0.0 for all interfaces.",
)
@click.option(
    "--store",
    "store_path",
    metavar="DIR",
    help="Directory of a controller without etcd (controllerStorePath).",
)
@click.option(
    "--etcd",
    metavar="URL",
    help="Members of etcd, http://HOST:2379, separated by ';' (cometmqEtcd).",
)
@click.option(
    "-c",
    "--config",
    "config_path",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Read this RocketMQ .conf file (Java properties), or TOML if it ends in .toml.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set one configuration key of RocketMQ; may be repeated.",
)
@click.pass_context
def controller(
    ctx: click.Context,
    port: int | None,
    listen_host: str | None,
    store_path: str | None,
    etcd: str | None,
    config_path: str | None,
    settings: tuple[str, ...],
) -> None:
    """Run a controller in the foreground: it replaces the dead masters of replica sets.

    Brokers name it in controllerAddr. Without --etcd it is alone and keeps its state in a local
    file: that survives a killed process and a power failure, but while this controller is down, no
    master is replaced. With --etcd several controllers share their state, and one of them leads.
    """
    if ctx.invoked_subcommand is not None:
        return
    started = _monotonic()
    set_up_logging(ctx)
    from cometmq.broker.base.config import parse_assignments
    from cometmq.cli.serve.serve import say_ignored
    from cometmq.controller.config import load_controller_config
    from cometmq.net.loop import run

    given = {
        "controllerPort": port,
        "bindAddress": listen_host,
        "controllerStorePath": store_path,
        "cometmqEtcd": etcd,
    }
    overrides: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    overrides.update(parse_assignments(settings))
    loaded = load_controller_config(config_path, overrides=overrides)
    say_ignored(loaded.ignored)

    async def serve() -> None:
        from cometmq.controller.opening import open_controller
        from cometmq.net.env import system_environment
        from cometmq.store.base.disk import RealDisk

        server = open_controller(loaded.config, system_environment(), RealDisk())
        await serve_until_stopped(
            server.start,
            server.stop,
            lambda: (
                f"cometmq controller: ready in {_monotonic() - started:.2f} s, "
                f"controller {server.address}"
            ),
        )

    run(serve())


@controller.command("status", short_help="Who leads, and the replicas of each broker set.")
@click.argument("broker_names", type=NAME, nargs=-1)
@controller_option
@timeout_option
@json_option
@click.pass_context
def status(
    ctx: click.Context,
    broker_names: tuple[str, ...],
    addresses: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Show the replicas of BROKER_NAMES (default: of all sets, which only CometMQ's controllers
    list).

    A replica that is in sync has every acknowledged message, and can become the master.
    """
    set_up_logging(ctx)
    from cometmq.net.loop import run

    async def collect() -> "ControllerStatus":
        async with controller_client(addresses, timeout_s) as controllers:
            return await controllers.status(broker_names)

    found = run(collect())
    _print(found.sets, {"leader": found.leader}, as_json=as_json)


@controller.command("adopt", short_help="Record a set anew whose state the controllers have lost.")
@click.argument("broker_name", type=NAME)
@click.option(
    "--elect-among",
    "replica_count",
    type=click.IntRange(1),
    metavar="N",
    help="The master is dead: elect the replica with the longest log. N is how many brokers the "
    "set has, dead ones too.",
)
@controller_option
@timeout_option
@json_option
@click.pass_context
def adopt(
    ctx: click.Context,
    broker_name: str,
    replica_count: int | None,
    addresses: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Have the controllers record BROKER_NAME from what its living brokers say, for example when
    etcd is lost.

    The master goes on under a new epoch, and its slaves are in sync as soon as they have its log.
    A set that is recorded gets the living replicas that it lacks. Brokers of CometMQ only.
    """
    set_up_logging(ctx)
    from cometmq.net.loop import run

    async def ask() -> "SetReplicas":
        async with controller_client(addresses, timeout_s) as controllers:
            return await controllers.adopt(broker_name, replica_count)

    _print({broker_name: run(ask())}, {}, as_json=as_json)


def _print(sets: Mapping[str, "SetReplicas"], also: Mapping[str, object], *, as_json: bool) -> None:
    from cometmq.cli.terminal.output import print_listing

    print_listing(
        [
            {
                "broker": name,
                "id": member.broker_id,
                "address": member.address,
                "role": "master" if member.broker_id == replicas.master_id else "slave",
                "in_sync": member in replicas.in_sync,
                "alive": member.is_alive,
                "master_epoch": replicas.master_epoch,
                **also,
            }
            for name, replicas in sets.items()
            for member in sorted(
                (*replicas.in_sync, *replicas.not_in_sync), key=lambda each: each.broker_id
            )
        ],
        as_json=as_json,
    )


def _monotonic() -> float:
    import time

    return time.monotonic()
