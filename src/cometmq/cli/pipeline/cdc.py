"""`cometmq pipeline cdc`: merges change events into the table they describe."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from cometmq.cli.pipeline.options import finish, open_progress, open_session, spark_options
from cometmq.cli.terminal.options import name_server_option, security_options, set_up_logging

if TYPE_CHECKING:
    from cometmq.spark.pipelines.cdc.table import DeltaTableTarget, ParquetTable

__all__ = ["cdc"]


def _target(path: str, kind: str) -> DeltaTableTarget | ParquetTable:
    from cometmq.spark.pipelines.cdc.table import DeltaTableTarget, ParquetTable

    return DeltaTableTarget(path) if kind == "delta" else ParquetTable(path)


@click.command("cdc", short_help="Merge Canal or Debezium changes into a table.")
@click.argument("source")
@name_server_option
@click.option(
    "--to",
    "to",
    required=True,
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="The table's folder.",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["parquet", "delta"]),
    default="parquet",
    show_default=True,
    help="Parquet snapshots, or a Delta table.",
)
@click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="COLUMN",
    help="Key column of the table; required for Debezium.",
)
@click.option(
    "--table", metavar="DATABASE.TABLE", help="Select one table where the topic holds several."
)
@click.option("--columns", metavar="DDL", help="Keep these: 'id bigint, amount decimal(10,2)'.")
@click.option("--follow", is_flag=True, help="Merge changes as they arrive, until Ctrl-C.")
@click.option("--once", is_flag=True, help="With --follow: merge what is stored now, then end.")
@click.option(
    "--checkpoint",
    metavar="DIR",
    help="With --follow: keep its progress in DIR.  [default: TO.checkpoint]",
)
@click.option("--every", default="5 seconds", show_default=True, metavar="DURATION")
@click.option(
    "--rows-per-batch",
    type=click.IntRange(1),
    metavar="N",
    help="With --follow: read about N rows per batch at most.",
)
@spark_options
@click.pass_context
def cdc(
    ctx: click.Context,
    source: str,
    name_server: str,
    to: str,
    kind: str,
    keys: tuple[str, ...],
    table: str | None,
    columns: str | None,
    follow: bool,
    once: bool,
    checkpoint: str | None,
    every: str,
    rows_per_batch: int | None,
    master: str,
    conf: tuple[str, ...],
    report_path: str | None,
    as_json: bool,
) -> int:
    """Merge the changes of SOURCE (topic:NAME, archive:DIR, parquet:PATH, …) into a table.

    Changes are ordered by their position in the binlog, so they may arrive in any order and more
    than once. With --follow each batch is applied exactly once, also across restarts.
    """
    set_up_logging(ctx)
    from cometmq.spark.pipelines.base.following import follow as follow_stream
    from cometmq.spark.pipelines.base.spark_errors import explain_errors
    from cometmq.spark.pipelines.base.watching import row_counter, watching
    from cometmq.spark.pipelines.cdc.merger import Merger
    from cometmq.spark.pipelines.inputs.address import parse_address
    from cometmq.spark.pipelines.inputs.extents import check_input
    from cometmq.spark.pipelines.inputs.frames import live_options, open_input, parse_columns

    if once and not follow:
        raise click.UsageError("--once goes with --follow; without it a run ends by itself")
    address = parse_address(source)
    target = _target(to, kind)
    security = security_options()
    extent = check_input(address, name_server, security)
    options: dict[str, Any] = {}
    if address.kind == "topic":
        options = live_options(name_server, security)
        if rows_per_batch is not None and follow:
            options["maxOffsetsPerTrigger"] = str(rows_per_batch)
    spark = open_session("cdc", master, conf)
    merger = Merger(target, keys, table)
    with explain_errors(), target.locked(), open_progress(ctx, "cdc", extent.rows) as progress:
        if columns is not None:
            schema = parse_columns(columns)
            merger.columns = {one.name: one.dataType.simpleString() for one in schema}
        messages = open_input(spark, address, options=options, stream=follow)
        if follow:
            rows_read = row_counter(spark)
            follow_stream(
                messages,
                partial(merger.take, counter=rows_read),
                checkpoint=checkpoint or f"{to.rstrip('/')}.checkpoint",
                once=once,
                every=every,
                progress=progress,
                counter=rows_read,
                extents=[extent],
            )
        else:
            with watching(spark, progress, [extent]) as (counter,):
                merger.take(messages, counter=counter)
    summary = merger.summary(to, progress)
    report = merger.report(summary, progress)
    return finish(summary, as_json=as_json, report=report, report_path=report_path)
