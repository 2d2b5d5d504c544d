"""`cometmq pipeline reconcile`: compares two sources record by record."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from cometmq.cli.pipeline.options import (
    finish,
    open_progress,
    open_session,
    spark_options,
)
from cometmq.cli.terminal.options import name_server_option, security_options, set_up_logging
from cometmq.cli.terminal.values import parse_time_ms

if TYPE_CHECKING:
    from cometmq.spark.base.reach import Extent
    from cometmq.spark.pipelines.base.watching import RowCounter
    from cometmq.spark.pipelines.inputs.address import Address

__all__ = ["reconcile"]


def _expressions(
    side: str, key: str | None, time: str | None, values: tuple[str, ...], both: Any
) -> Any:
    """The expressions of one side, which default to those of both.

    Raises:
        click.UsageError: the side has no key or no time."""
    from cometmq.spark.pipelines.reconcile.differences import Comparing

    key, time = key or both.key, time or both.time
    for name, value in (("key", key), ("time", time)):
        if not value:
            raise click.UsageError(
                f"the {side} side has no {name}: give --{name} EXPRESSION, or --{side}-{name}"
            )
    return Comparing(key, time, values or both.values)


def _pairs(assignments: tuple[str, ...], hint: str) -> dict[str, str]:
    pairs = {}
    for assignment in assignments:
        name, separator, value = assignment.partition("=")
        if not separator:
            raise click.BadParameter(f"{assignment!r} is not NAME=VALUE", param_hint=hint)
        pairs[name] = value
    return pairs


def _open(
    spark: Any,
    address: Address,
    live: dict[str, str],
    own_options: dict[str, str],
    columns: str | None,
    *,
    stream: bool,
) -> Any:
    from cometmq.spark.pipelines.inputs.frames import open_input, with_json_columns

    options = {**(live if address.kind == "topic" else {}), **own_options}
    frame = open_input(spark, address, options=options, stream=stream)
    return frame if columns is None else with_json_columns(frame, columns)


class _Watched:
    """Counts the rows of each side as Spark reads them.

    A source with offsets counts every row; elsewhere the event time filters first, so that a
    database or Parquet can skip other rows.
    """

    def __init__(self, between: Any, extents: list[Extent], counters: list[RowCounter]) -> None:
        self._between = between
        self._sides = {
            side: (extent, counter)
            for side, extent, counter in zip("LR", extents, counters, strict=True)
        }

    def total(self, *, is_all: bool) -> int | None:
        """Number of rows to count; None where it is unknown."""
        rows = [
            extent.rows if is_all or extent.ranges else None for extent, _ in self._sides.values()
        ]
        return None if None in rows else sum(count or 0 for count in rows)

    def __call__(self, frame: Any, side: str) -> Any:
        from cometmq.spark.pipelines.base.watching import counted

        extent, counter = self._sides[side]
        if extent.ranges:
            return self._between(counted(frame, counter))
        return counted(self._between(frame), counter)


@click.command("reconcile", short_help="Compare two sources record by record.")
@click.argument("left")
@click.argument("right")
@name_server_option
@click.option("--key", default="", metavar="EXPR", help="The business key, in Spark SQL.")
@click.option("--time", default="", metavar="EXPR", help="The event time.")
@click.option(
    "--value",
    "values",
    multiple=True,
    metavar="EXPR",
    help="An expression that must agree; repeatable.",
)
@click.option(
    "--left-key",
    metavar="EXPR",
    help="Key of the left side, where the sides differ; also --right-key.",
)
@click.option("--right-key", metavar="EXPR", hidden=True)
@click.option("--left-time", metavar="EXPR", help="Event time of the left side; also --right-time.")
@click.option("--right-time", metavar="EXPR", hidden=True)
@click.option(
    "--left-value",
    "left_values",
    multiple=True,
    metavar="EXPR",
    help="Value of the left side, paired by position.",
)
@click.option("--right-value", "right_values", multiple=True, metavar="EXPR", hidden=True)
@click.option(
    "--left-json", metavar="DDL", help="Turn members of JSON bodies into columns: 'id bigint'."
)
@click.option("--right-json", metavar="DDL", help="The same for the right side.")
@click.option(
    "--left-option", multiple=True, metavar="NAME=VALUE", help="Set an option of the left source."
)
@click.option(
    "--right-option", multiple=True, metavar="NAME=VALUE", help="Set an option of the right source."
)
@click.option(
    "--since", metavar="TIME", callback=parse_time_ms, help="Select records at or after TIME."
)
@click.option("--until", metavar="TIME", callback=parse_time_ms, help="Select records before TIME.")
@click.option(
    "--late",
    default="10m",
    show_default=True,
    metavar="DURATION",
    help="How far apart records of one key may lie and still belong together.",
)
@click.option(
    "--on-time", metavar="DURATION", help="Report records that lie further apart as late."
)
@click.option(
    "--window",
    default="1h",
    show_default=True,
    metavar="DURATION",
    help="Count differences per window of DURATION.",
)
@click.option(
    "--out", metavar="DIR", type=click.Path(file_okay=False), help="Write the differences to DIR."
)
@click.option("--stream", is_flag=True, help="Compare records as they arrive, until Ctrl-C.")
@click.option("--once", is_flag=True, help="With --stream: compare what is stored now, then end.")
@click.option("--checkpoint", metavar="DIR", help="With --stream: keep its progress in DIR.")
@click.option("--every", default="5 seconds", show_default=True, metavar="DURATION")
@spark_options
@click.pass_context
def reconcile(
    ctx: click.Context,
    left: str,
    right: str,
    name_server: str,
    key: str,
    time: str,
    values: tuple[str, ...],
    left_key: str | None,
    right_key: str | None,
    left_time: str | None,
    right_time: str | None,
    left_values: tuple[str, ...],
    right_values: tuple[str, ...],
    left_json: str | None,
    right_json: str | None,
    left_option: tuple[str, ...],
    right_option: tuple[str, ...],
    since: int | None,
    until: int | None,
    late: str,
    on_time: str | None,
    window: str,
    out: str | None,
    stream: bool,
    once: bool,
    checkpoint: str | None,
    every: str,
    master: str,
    conf: tuple[str, ...],
    report_path: str | None,
    as_json: bool,
) -> int:
    """Compare LEFT and RIGHT by a business key, in windows of event time.

    Each is topic:NAME, store:DIR#TOPIC, archive:DIR, parquet:PATH, json:PATH, delta:PATH or
    jdbc:URL#TABLE. Exit code 0 when both hold the same, 6 when they differ.
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.exit_codes import DIFFERENT
    from cometmq.spark.pipelines.base.spark_errors import explain_errors
    from cometmq.spark.pipelines.base.watching import watching
    from cometmq.spark.pipelines.inputs.address import parse_address
    from cometmq.spark.pipelines.inputs.extents import check_input
    from cometmq.spark.pipelines.inputs.frames import live_options
    from cometmq.spark.pipelines.reconcile.differences import (
        Comparing,
        event_time_between,
        sides_of,
    )
    from cometmq.spark.pipelines.reconcile.findings import Reconciling, check_out

    if stream != (checkpoint is not None):
        raise click.UsageError("--stream and --checkpoint DIR go together: DIR has its progress")
    if once and not stream:
        raise click.UsageError("--once goes with --stream; without it a run ends by itself")
    both = Comparing(key, time, values)
    wants = (
        _expressions("left", left_key, left_time, left_values, both),
        _expressions("right", right_key, right_time, right_values, both),
    )
    addresses = (parse_address(left), parse_address(right))
    given = (_pairs(left_option, "--left-option"), _pairs(right_option, "--right-option"))
    comparison = Reconciling(late, on_time, window, out)
    check_out(out, stream=stream)
    security = security_options()
    extents = [check_input(address, name_server, security) for address in addresses]
    live = live_options(name_server, security)
    spark = open_session("reconcile", master, conf)
    with explain_errors(), open_progress(ctx, "reconcile") as progress:
        frames = [
            _open(spark, address, live, options, columns, stream=stream)
            for address, options, columns in zip(
                addresses, given, (left_json, right_json), strict=True
            )
        ]
        between = partial(event_time_between, since_ms=since, until_ms=until)
        sides_with = partial(sides_of, frames[0], frames[1], wants[0], wants[1], late=late)
        sides = between(sides_with())
        if checkpoint is not None:
            comparison.stream(
                sides,
                checkpoint=checkpoint,
                once=once,
                every=every,
                progress=progress,
                extents=extents,
            )
        else:
            with watching(spark, progress, extents) as counters:
                each = _Watched(between, extents, counters)
                progress.total = each.total(is_all=since is None and until is None)
                comparison.batch(sides, sides_with(each=each))
    summary = comparison.summary(str(addresses[0]), str(addresses[1]), progress)
    report = comparison.report(summary, progress)
    finish(summary, as_json=as_json, report=report, report_path=report_path)
    return 0 if comparison.is_equal else DIFFERENT
