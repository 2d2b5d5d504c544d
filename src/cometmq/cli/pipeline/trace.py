"""`cometmq pipeline trace`: follows every traced message to its consumers."""

from __future__ import annotations

import click

from cometmq.cli.pipeline.options import (
    finish,
    open_progress,
    open_session,
    save_report,
    spark_options,
)
from cometmq.cli.terminal.options import name_server_option, security_options, set_up_logging
from cometmq.cli.terminal.values import parse_time_ms

__all__ = ["trace"]


@click.command("trace", short_help="Follow every traced message to its consumers.")
@name_server_option
@click.option(
    "--source",
    metavar="ADDRESS",
    default="topic:RMQ_SYS_TRACE_TOPIC",
    show_default=True,
    help="topic:NAME, store:DIR#TOPIC, archive:DIR or parquet:PATH.",
)
@click.option(
    "--since",
    metavar="TIME",
    callback=parse_time_ms,
    help="Select messages stored at or after TIME.",
)
@click.option(
    "--until", metavar="TIME", callback=parse_time_ms, help="Select messages stored before TIME."
)
@click.option("--group", metavar="NAME", help="Count messages that this group never consumed.")
@click.option(
    "--grace",
    metavar="DURATION",
    default="1m",
    show_default=True,
    help="Do not miss messages produced in the last DURATION; they may be under way.",
)
@click.option(
    "--list",
    "list_max",
    type=click.IntRange(0, 10_000),
    default=100,
    show_default=True,
    metavar="N",
    help="Show at most N messages of each kind.",
)
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Write journeys, latencies and lists as Parquet to DIR.",
)
@spark_options
@click.pass_context
def trace(
    ctx: click.Context,
    name_server: str,
    source: str,
    since: int | None,
    until: int | None,
    group: str | None,
    grace: str,
    list_max: int,
    out: str | None,
    master: str,
    conf: tuple[str, ...],
    report_path: str | None,
    as_json: bool,
) -> int:
    """Follow every traced message from its producer to its consumers.

    Reads the trace topic and reports latency percentiles per topic and group, which messages nobody
    consumed, which were consumed more than once, which failed. Clients write traces when tracing
    is switched on in them.
    """
    set_up_logging(ctx)
    from cometmq.spark.pipelines.base.spark_errors import explain_errors
    from cometmq.spark.pipelines.base.watching import watching
    from cometmq.spark.pipelines.inputs.address import parse_address
    from cometmq.spark.pipelines.inputs.extents import check_input
    from cometmq.spark.pipelines.inputs.frames import between, live_options, open_input
    from cometmq.spark.pipelines.reconcile.differences import duration_s
    from cometmq.spark.pipelines.trace.findings import check_fresh, examine

    address = parse_address(source)
    grace_ms = round(duration_s(grace) * 1000)
    check_fresh(out)
    security = security_options()
    extent = check_input(address, name_server, security, since_ms=since, until_ms=until)
    spark = open_session("trace", master, conf)
    options = {}
    if address.kind == "topic":
        options = live_options(name_server, security)
        for option, moment in (("startingTimestamp", since), ("endingTimestamp", until)):
            if moment is not None:
                options[option] = str(moment)
    with explain_errors(), open_progress(ctx, "trace", extent.rows) as progress:
        messages = open_input(spark, address, options=options)
        if address.kind != "topic":
            messages = between(messages, since, until)
        with watching(spark, progress, [extent]) as (counter,):
            findings = examine(
                messages,
                grace_ms=grace_ms,
                group=group,
                list_max=list_max,
                out=out,
                counter=counter,
            )
    summary = findings.summary(str(address), progress)
    report = findings.report(summary, progress)
    if not as_json:
        from cometmq.cli.terminal.output import print_listing

        print_listing(findings.latencies, as_json=False, empty="no latency was traced")
        print()
        return finish(summary, as_json=False, report=report, report_path=report_path)
    from cometmq.cli.terminal.exit_codes import FAILED
    from cometmq.cli.terminal.output import print_json

    is_reported = save_report(summary, report, report_path)
    print_json(findings.as_json(summary))
    return 0 if is_reported else FAILED
