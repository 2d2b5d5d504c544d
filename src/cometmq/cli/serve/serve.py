"""`up`, `name-server` and `broker`: servers that run in the foreground until a signal.

Each prints one line on stdout when it accepts connections; scripts wait for that line:

    cometmq up: ready in 0.21 s, name server 127.0.0.1:9876, broker 127.0.0.1:10911, store /tmp/x
"""

import logging
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import click

from cometmq.cli.serve.running_broker import broker_config, broker_status
from cometmq.cli.terminal.options import is_quiet, set_up_logging
from cometmq.cli.terminal.values import GIVEN
from cometmq.extras import require

if TYPE_CHECKING:
    from cometmq.broker.base.config import LoadedConfig
    from cometmq.cli.terminal.output import ProgressBar
    from cometmq.console.server import ConsoleServer
    from cometmq.controller.config import ControllerConfig
    from cometmq.controller.server import Controller
    from cometmq.errors import StoreError
    from cometmq.store.base.results import RecoveryReport

__all__ = ["GC_THRESHOLDS", "broker", "name_server", "say_ignored", "serve_until_stopped", "up"]

_LOG = logging.getLogger("cometmq.cli")
RECOVERY_WORTH_A_LINE_MS: Final = 1000
RECOVERY_WORTH_A_BAR_S: Final = 0.5

GC_THRESHOLDS = (10_000, 20, 100)
"""With the default of 700 young objects, waiting index entries start the collector every few
hundred messages, which costs 0.4-1.2 us of the 6 us per message. These values cost 0.02-0.2 us."""

set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set one configuration key of RocketMQ; may be repeated.",
)
config_option = click.option(
    "-c",
    "--config",
    "config_path",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Read this RocketMQ .conf file (Java properties), or TOML if it ends in .toml.",
)
store_option = click.option(
    "--store", "store_path", metavar="DIR", help="Store directory (storePathRootDir)."
)
insecure_option = click.option(
    "--insecure",
    "is_insecure",
    is_flag=True,
    help="Start even if the configuration asks for protection that CometMQ does not have yet.",
)
listen_option = click.option(
    "--listen",
    "listen_host",
    type=GIVEN,
    metavar="HOST",
    help="Address to listen on; 0.0.0.0 for all interfaces.",
)


@click.command(short_help="Run name server and broker in one process, in the foreground.")
@store_option
@click.option(
    "--name-server-port",
    type=click.IntRange(0, 65535),
    default=9876,
    show_default=True,
    help="The name server's port.",
)
@click.option(
    "--broker-port",
    type=click.IntRange(0, 65535),
    default=None,
    help="Listen on this port (listenPort).  [default: 10911]",
)
@click.option(
    "--listen",
    "listen_host",
    type=GIVEN,
    default=None,
    metavar="HOST",
    help="Listen on this address (bindAddress); 0.0.0.0 for all interfaces.  [default: 127.0.0.1]",
)
@click.option(
    "--console-port",
    type=click.IntRange(0, 65535),
    default=None,
    metavar="PORT",
    help="Run the web console too, on this port of 127.0.0.1; needs the extra console.",
)
@config_option
@set_option
@insecure_option
@click.pass_context
def up(
    ctx: click.Context,
    store_path: str | None,
    name_server_port: int,
    console_port: int | None,
    broker_port: int | None,
    listen_host: str | None,
    config_path: str | None,
    settings: tuple[str, ...],
    is_insecure: bool,
) -> None:
    """Run name server and broker in one process, in the foreground.

    Port 0 lets the system choose. One line on stdout says when both accept connections. Ctrl-C or
    SIGTERM stops gracefully: everything acknowledged is on disk when the command returns. The
    broker ignores NAMESRV_ADDR: it registers with this cluster's own name server and with the name
    servers that namesrvAddr sets in the file or by --set. A new store gets commit-log files of 64
    MiB (mappedFileSizeCommitLog); an existing one keeps the size that its files have.
    """
    started = _monotonic()
    require("broker", "cometmq up")
    set_up_logging(ctx)
    from cometmq.broker.base.config import SMALL_LOG_FILE_BYTES, load_config, parse_assignments

    given = {
        "listenPort": broker_port,
        "bindAddress": listen_host,
        "storePathRootDir": store_path,
    }
    overrides: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    overrides.update(parse_assignments(settings))
    loaded = load_config(
        config_path,
        overrides=overrides,
        # The cluster has its own name server; NAMESRV_ADDR may name that of another cluster.
        environment={key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"},
        defaults={
            "bindAddress": "127.0.0.1",
            "mappedFileSizeCommitLog": SMALL_LOG_FILE_BYTES,
        },
        is_insecure=is_insecure,
    )
    say_ignored(loaded.ignored)
    _say_unprotected(loaded.unprotected)
    from cometmq.net.loop import run

    if console_port is not None:
        require("console", "cometmq up --console-port")
    run(_up(loaded, name_server_port, console_port, started, quiet=is_quiet(ctx)))


async def _up(
    loaded: "LoadedConfig",
    name_server_port: int,
    console_port: int | None,
    started: float,
    *,
    quiet: bool,
) -> None:
    from cometmq.standalone import Standalone

    cluster = Standalone(
        loaded.config,
        config_path=loaded.path,
        name_server_port=name_server_port,
        name_server_host=loaded.config.bind_address,
    )
    consoles: list[ConsoleServer] = []

    async def start() -> None:
        await _recovering(cluster.start, lambda: cluster.broker.recovery, quiet=quiet)
        if console_port is not None:
            from cometmq.cli.serve.console import console_settings
            from cometmq.console.server import ConsoleServer

            settings = console_settings(cluster.name_server_address, "127.0.0.1")
            server = ConsoleServer(settings, "127.0.0.1", console_port)
            await server.start()
            consoles.append(server)

    async def stop() -> None:
        for server in consoles:
            await server.stop()
        await cluster.stop()

    await serve_until_stopped(
        start,
        stop,
        lambda: (
            f"cometmq up: ready in {_monotonic() - started:.2f} s, "
            f"name server {cluster.name_server_address}, broker {cluster.broker_address}, "
            f"store {loaded.config.store_path()}"
            + "".join(f", console {server.address}" for server in consoles)
        ),
    )


@click.command("name-server", short_help="Run a name server in the foreground.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=None,
    help="Listen on this port (listenPort).  [default: 9876]",
)
@listen_option
@config_option
@set_option
@insecure_option
@click.pass_context
def name_server(
    ctx: click.Context,
    port: int | None,
    listen_host: str | None,
    config_path: str | None,
    settings: tuple[str, ...],
    is_insecure: bool,
) -> None:
    """Run a name server in the foreground.

    Start as many as you like: brokers register with each, and name servers never talk to each
    other. With enableControllerInNamesrv=true a controller runs beside it (`cometmq controller`).
    """
    started = _monotonic()
    set_up_logging(ctx)
    from cometmq.broker.base.config import parse_assignments
    from cometmq.namesrv.config import load_name_server_config

    overrides: dict[str, Any] = {}
    if port is not None:
        overrides["listenPort"] = port
    if listen_host is not None:
        overrides["bindAddress"] = listen_host
    overrides.update(parse_assignments(settings))
    loaded = load_name_server_config(config_path, overrides=overrides, is_insecure=is_insecure)
    say_ignored(loaded.ignored)
    _say_unprotected(loaded.unprotected)
    controller_config: ControllerConfig | None = None
    if loaded.config.enable_controller_in_namesrv:
        from cometmq.controller.config import load_controller_config

        inside = load_controller_config(overrides=loaded.controller)
        say_ignored(inside.ignored)
        controller_config = inside.config
    from cometmq.net.loop import run

    async def serve() -> None:
        from cometmq.namesrv import NameServer
        from cometmq.net.env import system_environment
        from cometmq.store.base.disk import RealDisk

        env, disk = system_environment(), RealDisk()
        servers: list[NameServer | Controller] = [NameServer(loaded.config, env, disk)]
        if controller_config is not None:
            from cometmq.controller.opening import open_controller

            servers.append(open_controller(controller_config, env, disk))

        async def start() -> None:
            for server in servers:
                await server.start()

        async def stop() -> None:
            for server in reversed(servers):
                await server.stop()

        await serve_until_stopped(
            start,
            stop,
            lambda: (
                f"cometmq name-server: ready in {_monotonic() - started:.2f} s, "
                + ", ".join(
                    f"{name} {server.address}"
                    for name, server in zip(("name server", "controller"), servers, strict=False)
                )
            ),
        )

    run(serve())


@click.group(
    invoke_without_command=True,
    short_help="Run a broker in the foreground; look at one, change its settings.",
)
@click.option(
    "-n",
    "--name-server",
    "name_server",
    metavar="HOST:PORT",
    help="Name servers, separated by ';' (namesrvAddr). [env var: NAMESRV_ADDR]",
)
@store_option
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=None,
    help="Listen on this port (listenPort).  [default: 10911]",
)
@listen_option
@config_option
@set_option
@insecure_option
@click.option(
    "--processes",
    type=click.IntRange(1, 100),
    default=None,
    metavar="N",
    help="Run N brokers NAME-0, NAME-1, ... that share nothing, on ports 10 apart.",
)
@click.option("--supervised", is_flag=True, hidden=True)
@click.pass_context
def broker(
    ctx: click.Context,
    name_server: str | None,
    store_path: str | None,
    port: int | None,
    listen_host: str | None,
    config_path: str | None,
    settings: tuple[str, ...],
    is_insecure: bool,
    processes: int | None,
    supervised: bool,
) -> int:
    """Run a broker in the foreground.

    The broker reads RocketMQ's broker.conf unchanged: it accepts keys that have no effect here and
    lists them once. Later sources win: defaults, file, environment, options, --set.

    With --processes N this process supervises N brokers, which use more than one core: broker i
    is called NAME-i, listens on port + 10*i and stores in DIR/NAME-i. The supervisor restarts a
    broker that ends, stops all on a signal, and prints their log lines on its own stderr.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    started = _monotonic()
    require("broker", "cometmq broker")
    set_up_logging(ctx)
    from cometmq.broker.base.config import load_config, parse_assignments

    given = {
        "namesrvAddr": name_server,
        "storePathRootDir": store_path,
        "listenPort": port,
        "bindAddress": listen_host,
    }
    overrides: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    overrides.update(parse_assignments(settings))
    loaded = load_config(config_path, overrides=overrides, is_insecure=is_insecure)
    if not supervised:
        say_ignored(loaded.ignored)
        _say_unprotected(loaded.unprotected)
    if not loaded.config.name_servers() and not is_quiet(ctx) and not supervised:
        _LOG.warning(
            "no name server is set, so no client can find this broker by topic; give -n HOST:PORT, "
            "NAMESRV_ADDR or namesrvAddr"
        )
    from cometmq.net.loop import run

    if processes is not None:
        from cometmq.cli.serve.processes import supervise

        shared = (("-n", name_server), ("--listen", listen_host), ("-c", config_path))
        options = [word for key, value in shared if value for word in (key, value)]
        options += [word for assignment in settings for word in ("--set", assignment)]
        options += ["--insecure"] * is_insecure
        return run(supervise(loaded.config, processes, started, _root_options(ctx), options))

    async def serve() -> None:
        from cometmq.broker import Broker
        from cometmq.broker.replica_broker import ReplicaBroker
        from cometmq.net.env import system_environment
        from cometmq.store.base.disk import RealDisk

        kind = ReplicaBroker if loaded.config.enable_controller_mode else Broker
        server = kind(loaded.config, system_environment(), RealDisk(), config_path=loaded.path)
        await serve_until_stopped(
            lambda: _recovering(server.start, lambda: server.recovery, quiet=is_quiet(ctx)),
            server.stop,
            lambda: (
                f"cometmq broker: ready in {_monotonic() - started:.2f} s, "
                f"broker {server.address}, store {loaded.config.store_path()}"
            ),
            is_supervised=supervised,
        )

    run(serve())
    return 0


broker.add_command(broker_status)
broker.add_command(broker_config)


def _root_options(ctx: click.Context) -> list[str]:
    """Repeat this process' -q and -v."""
    given = ctx.find_root().obj or {}
    return ["-q"] * bool(given.get("quiet")) + ["-v"] * int(given.get("verbose", 0))


async def _recovering(
    start: Callable[[Callable[[str, int, int], None]], Awaitable[None]],
    report: Callable[[], "RecoveryReport | None"],
    *,
    quiet: bool,
) -> None:
    """Start, show a progress bar where recovery takes long, and report what recovery did."""
    begin = _monotonic()
    with ExitStack() as stack:
        bars: list[ProgressBar] = []

        def show(step: str, done: int, total: int) -> None:
            if not bars:
                # Importing rich costs time and memory, which a short recovery need not pay.
                if _monotonic() - begin < RECOVERY_WORTH_A_BAR_S:
                    return
                from cometmq.cli.terminal.output import progress

                bars.extend(stack.enter_context(progress("recovery", quiet=quiet)))
            bars[0].update(done, total or None, f"recovery: {step}")

        await start(show)
    _say_pure()
    recovered = report()
    if recovered is not None and not quiet:
        text = _recovery_text(recovered)
        if text:
            print(f"cometmq: {text}", file=sys.stderr)


def _recovery_text(report: "RecoveryReport") -> str:
    """Say what recovery did; empty where it did nothing worth reporting."""
    is_javas_way = report.mode in {"normal", "abnormal"}
    if not (is_javas_way or report.truncated_bytes or report.elapsed_ms > RECOVERY_WORTH_A_LINE_MS):
        return ""
    because = f" ({report.reason})" if report.reason else ""
    torn = (
        f", {report.truncated_bytes:,} bytes of a torn tail cut off"
        if report.truncated_bytes
        else ""
    )
    return (
        f"store recovered in {report.elapsed_ms / 1000:.2f} s, {report.mode}{because}: "
        f"{report.records_scanned:,} records read from {report.scan_start:,} to "
        f"{report.scan_end:,}, {report.queues:,} queues{torn}"
    )


def _failed_start(error: Exception) -> "StoreError":
    """Describe the cause and the remedy of a start that the file system made fail."""
    import errno

    from cometmq.errors import DiskFull, StoreError

    cause = error.__cause__ if isinstance(error, DiskFull) else error
    fault = cause if isinstance(cause, OSError) else None
    text = f"cannot use {(fault and fault.filename) or 'the store'}: "
    text += (fault and fault.strerror) or str(error)
    if isinstance(error, DiskFull) or (fault and fault.errno in {errno.ENOSPC, errno.EDQUOT}):
        return DiskFull(f"{text}; make room on this file system, then start again")
    return StoreError(
        f"{text}; give a directory that this user may write to (--store, or storePathRootDir and"
        " kvConfigPath)"
    )


async def serve_until_stopped(
    start: Callable[[], Awaitable[None]],
    stop: Callable[[], Awaitable[None]],
    ready: Callable[[], str],
    *,
    is_supervised: bool = False,
) -> None:
    """Start, print the ready line, wait for a signal, stop; after a failed start, stop as well.

    A supervised server also stops when its supervisor ends.

    Raises:
        ConnectFailed: the address cannot be listened on.
        StoreError: the file system made the start fail; DiskFull where it is full.
    """
    import asyncio
    import gc

    from cometmq.errors import ConnectFailed, DiskFull
    from cometmq.net.loop import allow_open_files, wait_for_stop_signal

    allow_open_files()
    try:
        try:
            await start()
        except ConnectFailed:
            raise  # an OSError too, but not of the file system
        except (OSError, DiskFull) as error:
            raise _failed_start(error) from error
        # The objects of the start live as long as the process: the collector need not walk them.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        # Install the handlers before the ready line, so that a signal right after it stops the
        # server; but after the start, so that Ctrl-C can break off a long recovery.
        reasons: list[asyncio.Future[str]] = [asyncio.ensure_future(wait_for_stop_signal())]
        if is_supervised:
            from cometmq.standalone.supervisor import parent_ended

            reasons.append(parent_ended())
        await asyncio.sleep(0)
        print(ready(), flush=True)
        done, _ = await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
        _LOG.info("%s received, stopping", done.pop().result())
    finally:
        await stop()


def say_ignored(ignored: Mapping[str, str]) -> None:
    """Name the settings that are accepted without effect."""
    if ignored:
        names = ", ".join(sorted(ignored))
        _LOG.warning("accepted without effect here (docs/reference/configuration.md): %s", names)


def _say_pure() -> None:
    from cometmq import native

    if native.SendEncoder is None:
        _LOG.warning(
            "%s; with the native core sends take less processor time (docs/how-to/install.md)",
            native.describe(),
        )


def _say_unprotected(unprotected: Mapping[str, str]) -> None:
    if unprotected:
        settings = ", ".join(f"{key}={value}" for key, value in sorted(unprotected.items()))
        _LOG.warning("started --insecure, open to everybody who reaches it, without: %s", settings)


def _monotonic() -> float:
    import time

    return time.monotonic()
