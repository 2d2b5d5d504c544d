"""`cometmq console`: the web console, in the foreground until a signal."""

from typing import TYPE_CHECKING, Final

import click

from cometmq.cli.terminal.options import (
    name_server_option,
    security_options,
    set_up_logging,
    timeout_option,
)
from cometmq.cli.terminal.values import GIVEN
from cometmq.extras import require

if TYPE_CHECKING:
    from cometmq.console.settings import ConsoleSettings

__all__ = ["CONSOLE_PORT", "console", "console_settings"]

CONSOLE_PORT: Final = 9890
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


@click.command(short_help="Run the web console, in the foreground.")
@name_server_option
@timeout_option
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=CONSOLE_PORT,
    show_default=True,
    help="Listen on this port.",
)
@click.option(
    "--listen",
    "listen_host",
    type=GIVEN,
    metavar="HOST",
    default="127.0.0.1",
    show_default=True,
    help="Listen on this address; 0.0.0.0 for all interfaces.",
)
@click.option(
    "--host",
    "hosts",
    type=GIVEN,
    multiple=True,
    metavar="NAME",
    help="A name that browsers call the console by; may be repeated.  [default: any, or"
    " localhost on this machine's own address]",
)
@click.option(
    "--https-cert",
    type=click.Path(exists=True, dir_okay=False),
    help="PEM file of a certificate: serve HTTPS.",
)
@click.option(
    "--https-key",
    type=click.Path(exists=True, dir_okay=False),
    help="PEM file of that certificate's private key.",
)
@click.option("--read-only", "is_read_only", is_flag=True, help="Refuse every change.")
@click.option(
    "--insecure",
    "is_insecure",
    is_flag=True,
    help="Start where others reach it, although the brokers check nobody.",
)
@click.pass_context
def console(
    ctx: click.Context,
    name_server: str,
    timeout_s: float,
    port: int,
    listen_host: str,
    hosts: tuple[str, ...],
    https_cert: str | None,
    https_key: str | None,
    is_read_only: bool,
    is_insecure: bool,
) -> None:
    """Run the web console of a cluster, in the foreground.

    Where brokers check who asks (authenticationEnabled), visitors sign in with accounts of the
    brokers, and may do what those let them do. Where they do not, everybody who reaches the
    console may do everything; it then listens on this machine only, unless --insecure is given.

    \b
    cometmq console -n 127.0.0.1:9876
    cometmq console -n ns1:9876 --listen 0.0.0.0 --https-cert console.pem --https-key key.pem
    """
    require("console", "cometmq console")
    set_up_logging(ctx)
    from cometmq.cli.serve.serve import serve_until_stopped
    from cometmq.net.loop import run

    if https_key is not None and https_cert is None:
        raise click.UsageError("--https-key needs --https-cert")

    async def serve() -> None:
        from cometmq.console.server import ConsoleServer

        settings = console_settings(
            name_server,
            listen_host,
            timeout_s=timeout_s,
            hosts=hosts,
            is_https=https_cert is not None,
            is_read_only=is_read_only,
        )
        if listen_host not in _LOOPBACK and not is_insecure:
            await _refuse_open_cluster(settings, listen_host)
        server = ConsoleServer(
            settings, listen_host, port, cert_file=https_cert, key_file=https_key
        )
        await serve_until_stopped(
            server.start, server.stop, lambda: f"cometmq console: ready, {server.address}"
        )

    run(serve())


def console_settings(
    name_server: str,
    listen_host: str,
    *,
    timeout_s: float = 5.0,
    hosts: tuple[str, ...] = (),
    is_https: bool = False,
    is_read_only: bool = False,
) -> "ConsoleSettings":
    """The settings of a console, with the TLS options of the running command."""
    from cometmq.client.base.security import with_environment
    from cometmq.console.settings import ConsoleSettings

    names = {host.lower() for host in hosts}
    if listen_host in _LOOPBACK:
        names |= {*_LOOPBACK, "[::1]"}
    return ConsoleSettings(
        name_server,
        timeout_ms=round(timeout_s * 1000),
        tls=with_environment(security_options()).get("tls"),
        hosts=frozenset(names),
        is_https=is_https,
        is_read_only=is_read_only,
    )


async def _refuse_open_cluster(settings: "ConsoleSettings", listen_host: str) -> None:
    """Refuse to listen where others reach it, if brokers serve who has no keys."""
    from cometmq.console.open_cluster import asks_nobody
    from cometmq.errors import ConfigError

    if await asks_nobody(settings):
        raise ConfigError(
            f"the brokers at {settings.name_server} check nobody, so everybody who reaches"
            f" {listen_host} could change everything: set authenticationEnabled=true at the"
            " brokers, listen on 127.0.0.1, or give --insecure"
        )
