"""`cometmq pipeline dead-letters`: groups dead letters by cause, or sends a selection again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from cometmq.cli.admin.dead_letters import Redriven, redrive_options, redrive_plans
from cometmq.cli.pipeline.options import (
    finish,
    open_progress,
    open_session,
    spark_options,
)
from cometmq.cli.pipeline.sent_page import sent_page
from cometmq.cli.terminal.options import (
    admin_client,
    name_server_option,
    security_options,
    set_up_logging,
)
from cometmq.cli.terminal.streams import utf8
from cometmq.cli.terminal.values import parse_time_ms

if TYPE_CHECKING:
    from cometmq.model import MessageQueue
    from cometmq.report.page import ReportPage
    from cometmq.spark.base.progress import RunProgress, Summary

__all__ = ["dead_letters"]

_TIMEOUT_S: Final = 10.0


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
@click.option("--id", "ids", metavar="ID", multiple=True, help="Select messages with this id.")
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
@click.option(
    "--redrive", is_flag=True, help="Send the selection again, as `dead-letters redrive` does."
)
@redrive_options
@spark_options
@click.pass_context
def dead_letters(
    ctx: click.Context,
    name_server: str,
    groups: tuple[str, ...],
    topics: tuple[str, ...],
    tags: tuple[str, ...],
    keys: tuple[str, ...],
    ids: tuple[str, ...],
    reasons: tuple[str, ...],
    since: int | None,
    until: int | None,
    where: str | None,
    by: str,
    reason_properties: tuple[str, ...],
    redrive: bool,
    to_origin: bool,
    again: bool,
    preview: bool,
    rate: float | None,
    yes: bool,
    master: str,
    conf: tuple[str, ...],
    report_path: str | None,
    as_json: bool,
) -> int:
    """Group dead letters by cause, or send a selection of them again.

    With --redrive, Spark selects, and the rest is as with `cometmq dead-letters redrive`: the
    messages go to their groups' retry topics, stay in the dead-letter topics, and no run of either
    command sends them twice.
    """
    set_up_logging(ctx)
    if not redrive and (to_origin or again or preview or yes or rate is not None):
        raise click.UsageError(
            "--to-origin, --again, --preview, --rate and --yes belong to --redrive", ctx
        )
    from cometmq.client.base.security import with_environment
    from cometmq.spark.base.progress import Summary
    from cometmq.spark.base.reach import Extent
    from cometmq.spark.pipelines.base.ordered_send import all_topics
    from cometmq.spark.pipelines.base.spark_errors import explain_errors
    from cometmq.spark.pipelines.base.watching import counted, watching
    from cometmq.spark.pipelines.dead_letters import (
        REASON_PROPERTIES,
        Selection,
        dead_topics,
        explain,
        offsets_of,
        select_dead,
    )
    from cometmq.spark.pipelines.inputs.extents import topic_ranges
    from cometmq.spark.pipelines.inputs.frames import live_options

    security = security_options()
    settings = tuple(sorted(with_environment(security).items()))
    found = dead_topics(all_topics(name_server, settings), groups)
    selection = Selection(topics, tags, keys, reasons, ids, since, until, where)
    if not found:
        return finish(Summary("dead-letters", {"dead_letter_topics": 0}), as_json=as_json)
    spark = open_session("dead-letters", master, conf)
    options = {**live_options(name_server, security), "includeProperties": "true"}
    reasons_of = reason_properties or REASON_PROPERTIES
    chart: list[tuple[str, int, int]] = []
    facts: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    offsets: dict[MessageQueue, list[int]] = {}
    with explain_errors(), open_progress(ctx, "dead-letters") as progress:
        frame = spark.read.format("cometmq").options(**options)
        messages = frame.option("subscribe", ",".join(found)).load()
        ranges = topic_ranges(found, name_server, security)
        extent = Extent(sum(end - begin for begin, end in ranges.values()), ranges)
        progress.update(0, total=extent.rows)
        with watching(spark, progress, [extent]) as (counter,):
            chosen = select_dead(explain(counted(messages, counter), reasons_of), selection)
            if redrive:
                offsets = offsets_of(chosen)
            else:
                facts, rows = _analyse(chosen, by)
        if not redrive:
            chart = _deaths(select_dead(explain(messages, reasons_of), selection))
    if redrive:
        from cometmq.net.loop import run

        done = run(
            _redrive(ctx, name_server, offsets, to_origin, again, rate, preview, yes, as_json)
        )
        facts = {**done.facts, "preview": preview}
        rows = done.targets
    facts |= progress.reach_facts()
    summary = Summary("dead-letters", {**facts, "seconds": progress.seconds})
    if not as_json:
        from cometmq.cli.terminal.output import note, print_listing

        if not redrive:
            print_listing(rows, as_json=False, empty="no dead letter is selected")
        elif preview:
            note("nothing was sent: a preview")
        print()
    else:
        summary.facts["rows"] = rows
    if redrive:
        sources = [
            {"source": str(queue), "messages": len(found)} for queue, found in offsets.items()
        ]
        report = sent_page(summary, sources, "Dead letters, chosen by the command", progress)
    else:
        report = _report(summary, rows, chart, progress)
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
    """The value for JSON: numbers and None stay, other values become text."""
    return value if value is None or isinstance(value, int) else str(value)


async def _redrive(
    ctx: click.Context,
    name_server: str,
    offsets: dict[MessageQueue, list[int]],
    to_origin: bool,
    again: bool,
    rate: float | None,
    preview: bool,
    yes: bool,
    as_json: bool,
) -> Redriven:
    """Send dead letters of several groups again, group by group."""
    from cometmq.client.admin.redrive import DeadLetters, Redrive
    from cometmq.model.names import DLQ_PREFIX
    from cometmq.net.env import SystemClock

    async with admin_client(name_server, _TIMEOUT_S) as admin:
        plans = []
        for topic in sorted({queue.topic for queue in offsets}):
            sending = Redrive(
                DeadLetters(admin.queue_reader(), topic.removeprefix(DLQ_PREFIX)),
                admin,
                to_origin=to_origin,
                is_repeated=again,
                rate=rate,
                clock=SystemClock(),
            )
            of_topic = {queue: chosen for queue, chosen in offsets.items() if queue.topic == topic}
            plans.append((sending, await sending.plan_offsets(of_topic)))
        return await redrive_plans(ctx, plans, preview=preview, yes=yes, as_json=as_json)


def _report(
    summary: Summary,
    rows: list[dict[str, Any]],
    deaths: list[tuple[str, int, int]],
    progress: RunProgress,
) -> ReportPage:
    """Build the page: which cause killed most, when, and of which topics."""
    from cometmq.report.charts import bars, lines
    from cometmq.report.page import ReportPage
    from cometmq.spark.base.report import add_facts, add_rate, many

    total = summary.facts["messages"]
    answer = "No dead letter is selected"
    if rows:
        cause = ", ".join(
            f"{_spaced(name)} {value}"
            for name, value in rows[0].items()
            if name not in _NO_CAUSE and value is not None
        )
        answer = (
            f"{rows[0]['messages']:,} of {many(total, 'dead letter')} have one cause: {cause}"
            if len(rows) > 1
            else f"All {many(total, 'dead letter')} have one cause: {cause}"
        )
    page = ReportPage(
        "Why did messages die?",
        answer,
        "Messages that a group refused too often, from the dead-letter topics.",
        summary.faults,
    )
    page.figure("Dead letters", total)
    page.figure("Causes", len(rows), "different values of the grouping columns")
    topics: dict[str, list[tuple[float, float]]] = {}
    for topic, step, messages in deaths:
        topics.setdefault(topic, []).append((step, messages))
    if topics:
        sums = {topic: sum(count for _, count in points) for topic, points in topics.items()}
        ranked = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
        page.figure("Origin topics", len(ranked))
        page.section(
            f"Most died in {ranked[0][0]}: {ranked[0][1] / max(total, 1):.0%}",
            "Dead letters by origin topic.",
            chart=bars(ranked, unit="messages", name="origin topic"),
            half=True,
        )
        page.section(
            f"The worst minute killed {max(count for _, _, count in deaths):,}",
            "Deaths a minute (UTC), by origin topic.",
            chart=lines(
                {topic: topics[topic] for topic, _ in ranked[:_LINES_MAX]},
                x="time",
                y="deaths a minute",
                times=True,
                height=280,
            ),
            half=True,
        )
    if rows:
        page.section(
            f"{many(len(rows), 'cause')}, the most frequent first",
            chart=bars(
                [
                    (
                        ", ".join(
                            str(value)
                            for name, value in row.items()
                            if name not in _NO_CAUSE and value is not None
                        ),
                        float(row["messages"]),
                    )
                    for row in rows
                ],
                unit="messages",
                name="cause",
            ),
            rows=rows,
        )
    add_rate(page, progress)
    add_facts(page, summary, without=("rows",))
    return page


_NO_CAUSE = frozenset({"messages", "first", "last", "exampleKeys"})
"""Columns of `by_cause` that do not tell the cause."""
_LINES_MAX = 6


def _spaced(name: str) -> str:
    """``originTopic`` as words."""
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name)
