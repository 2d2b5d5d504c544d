"""`cometmq pipeline replay`: sends a slice of an archive to a topic again."""

from __future__ import annotations

import click

from cometmq.cli.pipeline.options import (
    finish,
    open_progress,
    open_session,
    spark_options,
)
from cometmq.cli.pipeline.sent_page import sent_page
from cometmq.cli.terminal.options import name_server_option, security_options, set_up_logging
from cometmq.cli.terminal.streams import utf8
from cometmq.cli.terminal.values import Finite, parse_time_ms

__all__ = ["replay"]


@click.command("replay", short_help="Send a slice of an archive to a topic again.")
@click.argument("archive", metavar="DIR", type=click.Path(file_okay=False))
@name_server_option
@click.option(
    "--to",
    "target",
    metavar="TOPIC",
    help="Send to TOPIC. Default: the topics the messages came from.",
)
@click.option(
    "--topic", "topics", metavar="TOPIC", multiple=True, help="Select messages of this topic."
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
@click.option(
    "--key",
    "keys",
    callback=utf8,
    metavar="KEY",
    multiple=True,
    help="Select messages with this key.",
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
    "--where",
    callback=utf8,
    metavar="SQL",
    help="Select messages by a predicate over the archive's columns.",
)
@click.option(
    "--order",
    type=click.Choice(["queue", "group"]),
    default="queue",
    show_default=True,
    help="Send each source queue, or each message group, to one queue in its order.",
)
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
    help="Record sent messages in DIR. Default: in the archive, by selection.",
)
@click.option("--again", is_flag=True, help="Also send messages that were sent before.")
@click.option("--dry-run", is_flag=True, help="Count messages; send nothing.")
@spark_options
@click.pass_context
def replay(
    ctx: click.Context,
    archive: str,
    name_server: str,
    target: str | None,
    topics: tuple[str, ...],
    since: int | None,
    until: int | None,
    keys: tuple[str, ...],
    tags: tuple[str, ...],
    where: str | None,
    order: str,
    rate: float | None,
    ledger: str | None,
    again: bool,
    dry_run: bool,
    master: str,
    conf: tuple[str, ...],
    report_path: str | None,
    as_json: bool,
) -> int:
    """Send messages of the archive DIR again, in the order of their queues.

    Each message carries its origin in the property REPLAY_OF. The same
    command continues an interrupted run without loss or repetition.
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import note, print_listing
    from cometmq.client.base.security import with_environment
    from cometmq.spark.base.progress import Summary
    from cometmq.spark.pipelines.archive.read import ArchiveSlice, archive_files
    from cometmq.spark.pipelines.base.ordered_send import check_targets
    from cometmq.spark.pipelines.base.spark_errors import explain_errors
    from cometmq.spark.pipelines.replay import replay as run_replay
    from cometmq.spark.pipelines.replay import replay_preview

    chosen = ArchiveSlice(topics, since, until, keys, tags, where)
    chosen.check()
    archive_files(archive, chosen)
    settings = tuple(sorted(with_environment(security_options()).items()))
    if not dry_run and target is not None:
        check_targets(name_server, settings, [target])
    spark = open_session("replay", master, conf)
    with explain_errors(), open_progress(ctx, "replay") as progress:
        facts: dict[str, object] = {"archive": archive, "dry_run": dry_run}
        if dry_run:
            rows = replay_preview(spark, archive, chosen, target)
            facts["messages"] = sum(row["messages"] for row in rows)
            facts["body_bytes"] = sum(row["body_bytes"] for row in rows)
        else:
            result = run_replay(
                spark,
                archive,
                chosen,
                name_server=name_server,
                target=target,
                settings=settings,
                order=order,
                rate=rate,
                ledger=ledger,
                again=again,
                progress=progress,
            )
            rows = [{"source": name, "sent": sent} for name, sent in sorted(result.queues.items())]
            facts |= {"sent": result.sent, "sent_before": result.skipped}
    facts |= {**progress.reach_facts(), "seconds": progress.seconds}
    summary = Summary("replay", dict(facts))
    report = sent_page(summary, rows, f"From the archive {archive}", progress)
    if not as_json:
        print_listing(rows, as_json=False, empty="no message to send")
        if dry_run:
            note("nothing was sent: a dry run")
        print()
    return finish(summary, as_json=as_json, report=report, report_path=report_path)
