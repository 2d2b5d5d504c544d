"""`cometmq pipeline dead-letters`: groups dead letters by cause, or sends a selection again."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from cometmq.cli.pipeline.options import (
    finish,
    open_progress,
    open_session,
    spark_options,
)
from cometmq.cli.terminal.options import name_server_option, security_options, set_up_logging
from cometmq.cli.terminal.streams import utf8
from cometmq.cli.terminal.values import Finite, parse_time_ms

if TYPE_CHECKING:
    from cometmq.spark.base.progress import Summary
    from cometmq.spark.base.report import HtmlReport

__all__ = ["dead_letters"]


@click.command("dead-letters", short_help="Group dead letters by cause; send a selection again.")
@name_server_option
@click.option(
    "--group",
    "groups",
    metavar="GROUP",
    multiple=True,
    help="Select messages that died for this group.",
)
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC",
    multiple=True,
    help="Select messages first sent to this topic.",
)
@click.option(
    "--tag",
    "tags",
    callback=utf8,
    metavar="TAG",
    multiple=True,
    help="Select messages with this tag.",
)
@click.option(
    "--key",
    "keys",
    callback=utf8,
    metavar="KEY",
    multiple=True,
    help="Select messages with this key.",
)
@click.option(
    "--reason",
    "reasons",
    metavar="TEXT",
    multiple=True,
    help="Select messages whose reason contains TEXT.",
)
@click.option(
    "--since",
    metavar="TIME",
    callback=parse_time_ms,
    help="Select messages that died at or after TIME.",
)
@click.option(
    "--until", metavar="TIME", callback=parse_time_ms, help="Select messages that died before TIME."
)
@click.option(
    "--where",
    callback=utf8,
    metavar="SQL",
    help="Select messages by a predicate over the columns; see the how-to.",
)
@click.option(
    "--by",
    default="originTopic,consumerGroup,timesRefused,tags,reason",
    show_default=True,
    metavar="COLUMNS",
    help="Group by these columns.",
)
@click.option(
    "--reason-property",
    "reason_properties",
    metavar="NAME",
    multiple=True,
    help="Property in which your consumers record the cause.  [default: error, exception, reason]",
)
@click.option("--redrive", is_flag=True, help="Send the selection again, to its origin topics.")
@click.option("--to", "target", metavar="TOPIC", help="With --redrive: send to this topic instead.")
@click.option("--dry-run", is_flag=True, help="With --redrive: count messages; send nothing.")
@click.option(
    "--rate",
    type=Finite(min=0, min_open=True),
    metavar="N",
    help="Send at most N messages a second.",
)
@click.option(
    "--ledger",
    metavar="DIR",
    type=click.Path(file_okay=False),
    default="cometmq-redrive",
    show_default=True,
    help="With --redrive: record sent messages in DIR.",
)
@spark_options
@click.pass_context
def dead_letters(
    ctx: click.Context,
    name_server: str,
    groups: tuple[str, ...],
    topics: tuple[str, ...],
    tags: tuple[str, ...],
    keys: tuple[str, ...],
    reasons: tuple[str, ...],
    since: int | None,
    until: int | None,
    where: str | None,
    by: str,
    reason_properties: tuple[str, ...],
    redrive: bool,
    target: str | None,
    dry_run: bool,
    rate: float | None,
    ledger: str,
    master: str,
    conf: tuple[str, ...],
    report_path: str | None,
    as_json: bool,
) -> int:
    """Group dead letters by cause, or send a selection of them again.

    A message that was sent again carries its origin in the property REPLAY_OF and stays in the
    dead-letter topic. The same command continues an interrupted run and sends nothing twice.
    """
    set_up_logging(ctx)
    if not redrive and (target is not None or dry_run or rate is not None):
        raise click.UsageError("--to, --dry-run and --rate belong to --redrive", ctx)
    from cometmq.client.base.security import with_environment
    from cometmq.spark.base.progress import Summary
    from cometmq.spark.base.reach import Extent
    from cometmq.spark.pipelines.base.ordered_send import all_topics, check_targets
    from cometmq.spark.pipelines.base.spark_errors import explain_errors
    from cometmq.spark.pipelines.base.watching import counted, watching
    from cometmq.spark.pipelines.dead_letters import (
        REASON_PROPERTIES,
        Selection,
        dead_topics,
        explain,
        select_dead,
    )
    from cometmq.spark.pipelines.inputs.extents import topic_ranges
    from cometmq.spark.pipelines.inputs.frames import live_options

    security = security_options()
    settings = tuple(sorted(with_environment(security).items()))
    found = dead_topics(all_topics(name_server, settings), groups)
    if target is not None:
        check_targets(name_server, settings, [target])
    selection = Selection(topics, tags, keys, reasons, since, until, where)
    if not found:
        return finish(Summary("dead-letters", {"dead_letter_topics": 0}), as_json=as_json)
    spark = open_session("dead-letters", master, conf)
    options = {**live_options(name_server, security), "includeProperties": "true"}
    chart: list[tuple[str, int, int]] = []
    with explain_errors(), open_progress(ctx, "dead-letters") as progress:
        frame = spark.read.format("cometmq").options(**options)
        messages = frame.option("subscribe", ",".join(found)).load()

        def chosen(some: Any) -> Any:
            return select_dead(explain(some, reason_properties or REASON_PROPERTIES), selection)

        selected = chosen(messages)
        if redrive:
            plan = {"to": name_server, "target": target, "groups": sorted(groups)}
            plan |= {name: _plain(value) for name, value in asdict(selection).items()}
            facts, rows = _redrive(
                spark, selected, name_server, settings, plan, rate, ledger, dry_run, progress
            )
        else:
            ranges = topic_ranges(found, name_server, security)
            extent = Extent(sum(end - begin for begin, end in ranges.values()), ranges)
            progress.update(0, total=extent.rows)
            with watching(spark, progress, [extent]) as (counter,):
                facts, rows = _analyse(chosen(counted(messages, counter)), by)
            chart = _deaths(selected)
    facts |= progress.reach_facts()
    summary = Summary("dead-letters", {**facts, "seconds": progress.seconds})
    if not as_json:
        from cometmq.cli.terminal.output import note, print_listing

        print_listing(rows, as_json=False, empty="no dead letter is selected")
        if redrive and dry_run:
            note("nothing was sent: a dry run")
        print()
    else:
        summary.facts["rows"] = rows
    report = _report(summary, rows, chart)
    return finish(summary, as_json=as_json, report=report, report_path=report_path)


def _analyse(selected: Any, by: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(facts, rows by cause)."""
    from cometmq.spark.pipelines.dead_letters import by_cause

    names = [name.strip() for name in by.split(",") if name.strip()]
    found = [row.asDict() for row in by_cause(selected, names).collect()]
    rows = [{name: _plain(value) for name, value in row.items()} for row in found]
    return {"messages": sum(row["messages"] for row in rows), "causes": len(rows)}, rows


def _deaths(selected: Any) -> list[tuple[str, int, int]]:
    """Origin topic, minute, deaths."""
    from cometmq.spark.pipelines.dead_letters import over_time

    return [
        (str(row["originTopic"]), row["step"], row["messages"])
        for row in over_time(selected, 60_000).collect()
    ]


def _plain(value: Any) -> Any:
    """Convert to JSON: numbers and None stay, other values become text."""
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, int) else str(value)


def _redrive(
    spark: Any,
    selected: Any,
    name_server: str,
    settings: tuple[tuple[str, Any], ...],
    plan: dict[str, Any],
    rate: float | None,
    ledger: str,
    dry_run: bool,
    progress: Any,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(facts, rows by queue)."""
    from cometmq.spark.pipelines.base.ordered_send import (
        SendLedger,
        default_ledger,
        preview,
        send_ordered,
    )
    from cometmq.spark.pipelines.dead_letters import to_redrive

    frame = to_redrive(selected, plan["target"])
    rows = preview(frame)
    facts: dict[str, Any] = {"messages": sum(row["messages"] for row in rows), "dry_run": dry_run}
    if dry_run:
        return facts, rows
    book = SendLedger(default_ledger(ledger, plan))
    book.open(plan)
    result = send_ordered(
        spark,
        frame,
        book,
        name_server=name_server,
        settings=settings,
        rate=rate,
        progress=progress,
    )
    facts |= {"sent": result.sent, "sent_before": result.skipped}
    return facts, rows


def _report(
    summary: Summary, rows: list[dict[str, Any]], chart: list[tuple[str, int, int]]
) -> HtmlReport:
    from cometmq.spark.base.report import HtmlReport

    report = HtmlReport("Dead letters")
    report.summary(summary)
    lines: dict[str, list[tuple[float, float]]] = {}
    for topic, step, messages in chart:
        lines.setdefault(topic, []).append((step, messages))
    if lines:
        report.line_chart("Deaths a minute", lines, x_times=True, y_unit="messages")
        totals = {topic: sum(y for _, y in points) for topic, points in lines.items()}
        report.bar_chart("By topic", sorted(totals.items()), unit="messages")
    report.heading("By cause" if chart else "By queue")
    report.table(rows)
    return report
