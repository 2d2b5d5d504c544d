"""`cometmq pipeline backlog`: lag, drain rate, time to drain, skew, advice."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from cometmq.cli.pipeline.options import (
    finish,
    open_progress,
    open_session,
    save_report,
    spark_options,
)
from cometmq.cli.terminal.options import name_server_option, security_options, set_up_logging
from cometmq.cli.terminal.values import Finite
from cometmq.listings.existing_group import require_group_among

if TYPE_CHECKING:
    from cometmq.sync import Admin

__all__ = ["backlog"]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000  # noqa: TID251 - a command's own clock


def _existing_groups(admin: Admin, names: tuple[str, ...]) -> list[str]:
    """The groups in ``names``, or all groups where it is empty.

    Raises:
        GroupNotExist: no broker knows one of them.
    """
    groups = admin.group_list()
    for name in names:
        require_group_among(groups, name)
    return list(names) or groups


def _check_topics(admin: Admin, topics: tuple[str, ...]) -> None:
    """Check that brokers have ``topics``; an unknown one would look like one without backlog.

    Raises:
        NoRoute: no broker has a topic; the error suggests the nearest name."""
    from cometmq.arrow.options import nearest
    from cometmq.errors import NoRoute

    there = admin.topic_list(include_system=True) if topics else []
    for topic in topics:
        if topic not in there:
            raise NoRoute(f"no broker has the topic {topic}{nearest(topic, there) or '.'}")


@click.command("backlog", short_help="Report how far groups lag, why, and what to do.")
@click.argument("groups", nargs=-1, metavar="[GROUP]...")
@name_server_option
@click.option(
    "--topic", "topics", multiple=True, metavar="TOPIC", help="Report this topic only; repeatable."
)
@click.option(
    "--interval",
    "interval_s",
    type=Finite(min=0.05),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between the two samples that give the rates.",
)
@click.option("--no-skew", is_flag=True, help="Compare offsets only; do not read waiting messages.")
@click.option(
    "--key",
    metavar="EXPR",
    help="Expression in Spark SQL that decides the queue.  [default: sharding key]",
)
@click.option("--top", type=click.IntRange(1, 1000), default=20, show_default=True, metavar="N")
@spark_options
@click.pass_context
def backlog(
    ctx: click.Context,
    groups: tuple[str, ...],
    name_server: str,
    topics: tuple[str, ...],
    interval_s: float,
    no_skew: bool,
    key: str | None,
    top: int,
    master: str,
    conf: tuple[str, ...],
    report_path: str | None,
    as_json: bool,
) -> int:
    """Report lag, rates and time to drain of consumer groups (default: all), with advice.

    Takes two samples of offsets, then reads the waiting messages and shows heavy keys, hot queues
    and hot producers. Spark starts only when something waits.
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.exit_codes import FAILED
    from cometmq.cli.terminal.output import print_json, print_listing
    from cometmq.spark.base.reach import Extent
    from cometmq.spark.pipelines.backlog.findings import (
        BacklogFindings,
        read_waiting,
        waiting_ranges,
    )
    from cometmq.spark.pipelines.backlog.lag import SHARDING_KEY, take_sample
    from cometmq.spark.pipelines.base.spark_errors import explain_errors
    from cometmq.spark.pipelines.base.watching import watching
    from cometmq.spark.pipelines.inputs.frames import live_options
    from cometmq.sync import Admin

    security = security_options()
    with Admin(name_server=name_server, **security) as admin:
        chosen = _existing_groups(admin, groups)
        _check_topics(admin, topics)
        first = take_sample(admin, chosen, now_ms=_now_ms(), topics=topics)
        time.sleep(interval_s)
        second = take_sample(admin, chosen, now_ms=_now_ms(), topics=topics)
    found = BacklogFindings.of(first, second)
    with open_progress(ctx, "backlog") as progress:
        if not no_skew and any(queue.lag for queue in found.queues):
            spark = open_session("backlog", master, conf)
            ranges = waiting_ranges(found.queues)
            extent = Extent(sum(end - begin for begin, end in ranges.values()), ranges)
            progress.update(0, total=extent.rows)
            with explain_errors(), watching(spark, progress, [extent], by_stages=True):
                waiting = read_waiting(spark, found.queues, live_options(name_server, security))
                if waiting is not None:
                    found.skew(waiting, top=top, key=key or SHARDING_KEY)
        progress.update(found.waiting)
    summary = found.summary(name_server, progress)
    report = found.report(summary, progress)
    if as_json:
        is_reported = save_report(summary, report, report_path)
        print_json(found.as_json(summary))
        return 0 if is_reported else FAILED
    print_listing(found.group_rows(), as_json=False, empty="no group has committed an offset")
    for text in found.advice():
        print(f"ADVICE: {text}")
    print()
    summary.facts.pop("advice")
    return finish(summary, as_json=False, report=report, report_path=report_path)
