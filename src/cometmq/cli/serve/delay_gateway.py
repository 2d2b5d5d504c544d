"""`cometmq delay-gateway`: exact timers for a cluster that has delay levels only."""

import click

from cometmq.cli.terminal.options import (
    json_option,
    name_server_option,
    security_options,
    set_up_logging,
)
from cometmq.cli.terminal.values import GIVEN
from cometmq.extras import require

__all__ = ["delay_gateway"]


@click.command(
    "delay-gateway", short_help="Run exact timers for a RocketMQ 4 cluster, in the foreground."
)
@name_server_option
@click.option(
    "--store",
    "store_path",
    type=GIVEN,
    required=True,
    metavar="DIR",
    help="The gateway's own store: what waits is there.",
)
@click.option("--topic", default="DELAY_GATEWAY", show_default=True, help="To take from.")
@click.option(
    "--dead-letter-topic",
    default="DELAY_GATEWAY_DEAD",
    show_default=True,
    help="For messages that cannot be carried.",
)
@click.option("--group", default="DELAY_GATEWAY", show_default=True, help="Group at the cluster.")
@click.option("--status", is_flag=True, help="Say what the gateway of --store has done, and end.")
@json_option
@click.pass_context
def delay_gateway(
    ctx: click.Context,
    name_server: str,
    store_path: str,
    topic: str,
    dead_letter_topic: str,
    group: str,
    status: bool,
    as_json: bool,
) -> int:
    """Deliver messages at exact times in a cluster that has no timers; runs until a signal.

    Producers of any client send to DELAY_GATEWAY with the user properties GATEWAY_TOPIC (the topic
    for the message) and GATEWAY_TIME_MS (ms since 1970) or GATEWAY_DELAY_MS. The gateway keeps
    each message in its own store and sends it to its topic on time, at least once; a repetition
    has the same GATEWAY_ID. Once a second the gateway writes its status to gateway.json in the
    store.
    """
    import logging

    set_up_logging(ctx)
    logging.getLogger("cometmq.gateway").setLevel(logging.INFO)  # its lines are the metrics
    from cometmq.cli.terminal.exit_codes import NOT_FOUND
    from cometmq.cli.terminal.output import note, print_json
    from cometmq.gateway.gateway import DelayGateway, read_status

    if status:
        found = read_status(store_path)
        if found is None:
            note(f"cometmq: no gateway has run with the store {store_path}; check --store")
            return NOT_FOUND
        if as_json:
            print_json(found)
        else:
            print(" ".join(f"{name}={value}" for name, value in found.items() if value != ""))
        return 0
    require("broker", "cometmq delay-gateway")
    from cometmq.cli.serve.serve import serve_until_stopped
    from cometmq.net.loop import run

    async def serve() -> None:
        gateway = DelayGateway(
            name_server,
            store_path,
            topic=topic,
            dead_letter_topic=dead_letter_topic,
            group=group,
            **security_options(),
        )
        await serve_until_stopped(
            gateway.start,
            gateway.stop,
            lambda: (
                f"cometmq delay-gateway: ready, from {topic} at {name_server}, store {store_path}"
            ),
        )

    run(serve())
    return 0
