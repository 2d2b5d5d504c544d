"""`cometmq pipeline archive`: topics to Parquet, checked, compacted and shown."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from cometmq.cli.pipeline.options import finish, open_progress, open_session, spark_options
from cometmq.cli.terminal.options import name_server_option, security_options, set_up_logging
from cometmq.cli.terminal.values import Finite

if TYPE_CHECKING:
    from cometmq.report.page import ReportPage
    from cometmq.spark.base.progress import RunProgress, Summary
    from cometmq.spark.pipelines.archive.archive import ArchiveResult
    from cometmq.spark.pipelines.archive.source import ArchiveSource

__all__ = ["archive", "archive_report", "archive_summary", "now_ms"]


def now_ms() -> int:
    """This machine's time in ms since 1970."""
    return time.time_ns() // 1_000_000  # noqa: TID251 - stamps commits of this very machine


_topic_option = click.option(
    "--topic",
    "topics",
    metavar="TOPIC",
    multiple=True,
    help="Archive this topic only; may be repeated. Default: all but system topics.",
)
_store_option = click.option(
    "--store",
    "store_path",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Read this store directory instead of asking a cluster.",
)
_broker_option = click.option(
    "--broker",
    default="broker-a",
    show_default=True,
    metavar="NAME",
    help="Name of the broker that owns the store; the store does not hold it.",
)


class _ArchiveGroup(click.Group):
    """A group that also runs without a subcommand, and then takes its folder as an option."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Refuse a folder where a subcommand is expected."""
        if self.get_command(ctx, args[0]) is None:
            raise click.UsageError(
                f"No such command {args[0]!r}; commands are {', '.join(self.list_commands(ctx))}. "
                "To archive, give the folder as --to DIR.",
                ctx,
            )
        return super().resolve_command(ctx, args)


@click.group(
    "archive",
    cls=_ArchiveGroup,
    invoke_without_command=True,
    short_help="Archive topics to Parquet, exactly once.",
)
@name_server_option
@_topic_option
@_store_option
@_broker_option
@click.option(
    "--to", "root", metavar="DIR", type=click.Path(file_okay=False), help="The archive's folder."
)
@click.option("--rows-per-file", type=click.IntRange(1), default=500_000, show_default=True)
@click.option("--compression", default="zstd", show_default=True, help="Or snappy, lz4, gzip.")
@click.option(
    "--json-schema",
    metavar="DDL",
    help="Turn members of JSON bodies into columns: 'a int, b string'.",
)
@click.option(
    "--json-prefix", metavar="TEXT", default="", help="Prefix for the names of the JSON columns."
)
@click.option(
    "--skip-corrupt", is_flag=True, help="Skip messages that do not decode, and count them."
)
@click.option(
    "--allow-gaps", is_flag=True, help="Continue where messages expired before they were archived."
)
@click.option(
    "--compact-at",
    type=click.IntRange(0),
    default=16,
    show_default=True,
    metavar="N",
    help="Merge small files where a date and topic has N; 0: never.",
)
@click.option("--every", type=Finite(0.1), metavar="SECONDS", help="Repeat the run every SECONDS.")
@spark_options
@click.pass_context
def archive(
    ctx: click.Context,
    name_server: str,
    topics: tuple[str, ...],
    store_path: str | None,
    broker: str,
    root: str | None,
    rows_per_file: int,
    compression: str,
    json_schema: str | None,
    json_prefix: str,
    skip_corrupt: bool,
    allow_gaps: bool,
    compact_at: int,
    every: float | None,
    master: str,
    conf: tuple[str, ...],
    report_path: str | None,
    as_json: bool,
) -> int:
    """Archive topics to Parquet files by date and topic, exactly once.

    Archives messages that are stored and not yet in the archive, commit by commit; the next run
    continues after a killed one. The files are in DIR/date=.../topic=.../, and DIR/_manifest lists
    their contents.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    set_up_logging(ctx)
    if root is None:
        raise click.UsageError("Missing option '--to DIR': the folder to archive to.", ctx)
    from cometmq.spark.pipelines.archive.archive import ArchiveOptions, check_folder
    from cometmq.spark.pipelines.archive.archive import archive as run_archive
    from cometmq.spark.pipelines.archive.compact import compact as run_compact
    from cometmq.spark.pipelines.base.spark_errors import explain_errors

    options = ArchiveOptions(
        rows_per_file=rows_per_file,
        compression=compression,
        mode="DROPMALFORMED" if skip_corrupt else "FAILFAST",
        json_schema=json_schema,
        json_prefix=json_prefix,
        allow_gaps=allow_gaps,
    )
    options.check()
    check_folder(root)
    source = make_source(name_server, store_path, broker)
    chosen = list(topics) or source.topics()
    source.bounds([queue for topic in chosen for queue in source.queues(topic)])
    spark = open_session("archive", master, conf)
    code = 0
    while True:
        with explain_errors(), open_progress(ctx, "archive") as progress:
            result = run_archive(
                spark, source, root, topics or None, options, now_ms=now_ms, progress=progress
            )
            if compact_at:
                run_compact(
                    spark,
                    root,
                    rows_per_file=rows_per_file,
                    files_min=compact_at,
                    compression=compression,
                    now_ms=now_ms,
                )
        summary = archive_summary(result, source.text, progress.seconds)
        report = archive_report(result, summary, progress)
        code = max(code, finish(summary, as_json=as_json, report=report, report_path=report_path))
        if every is None:
            return code
        time.sleep(every)


def make_source(name_server: str, store_path: str | None, broker: str) -> ArchiveSource:
    """Open the cluster or the store that the options name."""
    from cometmq.client.base.security import with_environment
    from cometmq.spark.pipelines.archive.source import ClusterSource, DirectorySource

    if store_path is not None:
        from pathlib import Path

        return DirectorySource(str(Path(store_path).absolute()), broker)
    return ClusterSource(name_server, tuple(sorted(with_environment(security_options()).items())))


def archive_summary(result: ArchiveResult, source: str, seconds: float) -> Summary:
    """Summarise a run, for text and JSON."""
    from cometmq.spark.base.progress import Summary

    return Summary(
        "archive",
        {
            "source": source,
            "archive": result.root,
            "rows": result.rows,
            "files": result.files,
            "file_bytes": result.size_bytes,
            "commits": result.commits,
            "topics": sorted(result.rows_by_topic),
            "expired": result.expired,
            "corrupt": result.corrupt,
            "json_failed": result.json_failed,
            "seconds": seconds,
            "rows_per_second": round(result.rows / seconds) if seconds else 0,
        },
    )


def archive_report(result: ArchiveResult, summary: Summary, progress: RunProgress) -> ReportPage:
    """Build the report: what is archived now, what was left out, where the next run begins."""
    from cometmq.report.charts import bars, columns
    from cometmq.report.page import ReportPage
    from cometmq.spark.base.report import add_facts, add_rate, many

    dropped = [
        f"{count:,} {text}"
        for count, text in (
            (result.expired, "expired before this run"),
            (result.corrupt, "did not decode"),
        )
        if count
    ]
    report = ReportPage(
        "What is archived now, and what is not?",
        f"{many(result.rows, 'message')} of {many(len(result.rows_by_topic), 'topic')} archived; "
        + (f"{' and '.join(dropped)}" if dropped else "no message was left out")
        if result.rows or dropped
        else "Nothing new is stored: the archive has all messages",
        f"From {summary.facts['source']} into {result.root}.",
        summary.faults,
    )
    report.figure("Archived", result.rows, "messages, each once")
    report.figure("Files", result.files, f"{result.size_bytes / 1_048_576:,.1f} MiB of Parquet")
    report.figure("Commits", result.commits)
    report.figure("Expired before", result.expired, "deleted by the broker")
    report.figure("Did not decode", result.corrupt)
    report.figure("No such JSON", result.json_failed, "archived, with nulls in these columns")
    topics = sorted(result.rows_by_topic.items(), key=lambda item: (-item[1], item[0]))
    if topics:
        report.section(
            f"{topics[0][0]} has {topics[0][1] / max(result.rows, 1):.0%} of the messages",
            "Archived messages by topic.",
            chart=bars([(name, float(rows)) for name, rows in topics], name="topic"),
            half=True,
        )
        dates = sorted(result.rows_by_date.items())
        report.section(
            f"They were stored on {many(len(dates), 'day')}",
            "Archived messages by day of storage (UTC).",
            chart=columns(
                [day for day, _ in dates],
                {"messages": [float(rows) for _, rows in dates]},
                name="day",
            ),
            half=True,
        )
    rows: list[dict[str, Any]] = [
        {"queue": str(queue), "next_offset": position}
        for queue, position in sorted(result.positions.items())
    ]
    report.section(f"The next run begins at these offsets of {many(len(rows), 'queue')}", rows=rows)
    add_rate(report, progress)
    add_facts(report, summary)
    return report


@archive.command("verify", short_help="Compare an archive with its manifest and its source.")
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False))
@name_server_option
@_topic_option
@_store_option
@_broker_option
@click.option("--offline", is_flag=True, help="Check the archive only; ask no broker.")
@spark_options
@click.pass_context
def verify(
    ctx: click.Context,
    directory: str,
    name_server: str,
    topics: tuple[str, ...],
    store_path: str | None,
    broker: str,
    offline: bool,
    master: str,
    conf: tuple[str, ...],
    report_path: str | None,
    as_json: bool,
) -> int:
    """Compare counts, offsets and checksums of archive DIR with its manifest and its source.

    Exit code 1 when anything differs. Messages that have expired at the broker cannot be compared
    and are counted.
    """
    set_up_logging(ctx)
    from cometmq.report.page import ReportPage
    from cometmq.spark.base.progress import Summary
    from cometmq.spark.base.report import add_facts, add_rate, many
    from cometmq.spark.pipelines.archive.manifest import Manifest
    from cometmq.spark.pipelines.archive.verify import verify as run_verify
    from cometmq.spark.pipelines.base.spark_errors import explain_errors

    Manifest(directory).read()
    source = None if offline else make_source(name_server, store_path, broker)
    if source is not None:
        source.topics()
    spark = open_session("archive verify", master, conf)
    with explain_errors(), open_progress(ctx, "verify") as progress:
        result = run_verify(spark, directory, source, topics=topics or None, progress=progress)
    facts = {
        "archive": directory,
        "source": "not asked" if source is None else source.text,
        "files": result.files,
        "rows": result.rows,
        "compared_rows": result.compared_rows,
        "expired_rows": result.expired_rows,
        "unarchived_rows": result.unarchived_rows,
        "seconds": progress.seconds,
    }
    summary = Summary("archive verify", facts, result.faults)
    report = ReportPage(
        "Is the archive what was stored?",
        f"{many(len(result.faults), 'fault')} in {many(result.files, 'file')}"
        if result.faults
        else f"{many(result.files, 'file')} and {many(result.rows, 'row')} are as the manifest says"
        + ("" if source is None else f"; {result.compared_rows:,} rows equal the source"),
        f"The archive {directory}, by counts, offsets and checksums.",
        result.faults,
    )
    report.figure("Rows", result.rows)
    report.figure("Compared with the source", result.compared_rows)
    report.figure("Expired at the source", result.expired_rows, "cannot be compared")
    report.figure("Not archived yet", result.unarchived_rows, "stored since")
    add_rate(report, progress)
    add_facts(report, summary)
    return finish(summary, as_json=as_json, report=report, report_path=report_path)


@archive.command("compact", short_help="Merge small files of an archive.")
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False))
@click.option("--rows-per-file", type=click.IntRange(1), default=500_000, show_default=True)
@click.option("--compression", default="zstd", show_default=True, help="Or snappy, lz4, gzip.")
@spark_options
@click.pass_context
def compact(
    ctx: click.Context,
    directory: str,
    rows_per_file: int,
    compression: str,
    master: str,
    conf: tuple[str, ...],
    report_path: str | None,
    as_json: bool,
) -> int:
    """Merge the files of archive DIR that have less than half of --rows-per-file rows."""
    set_up_logging(ctx)
    from cometmq.report.page import ReportPage
    from cometmq.spark.base.progress import Summary
    from cometmq.spark.base.report import add_facts, many
    from cometmq.spark.pipelines.archive.compact import compact as run_compact
    from cometmq.spark.pipelines.archive.manifest import Manifest
    from cometmq.spark.pipelines.base.spark_errors import explain_errors

    Manifest(directory).read()
    spark = open_session("archive compact", master, conf)
    with explain_errors(), open_progress(ctx, "compact") as progress:
        result = run_compact(
            spark,
            directory,
            rows_per_file=rows_per_file,
            compression=compression,
            now_ms=now_ms,
            progress=progress,
        )
    facts = {
        "archive": directory,
        "files_before": result.files_before,
        "files_after": result.files_after,
        "rows": result.rows,
        "seconds": progress.seconds,
    }
    summary = Summary("archive compact", facts)
    report = ReportPage(
        "How many files has the archive now?",
        f"{many(result.files_before, 'small file')} became {result.files_after:,}",
        f"The archive {directory}; {many(result.rows, 'row')} moved.",
    )
    add_facts(report, summary)
    return finish(summary, as_json=as_json, report=report, report_path=report_path)


@archive.command("files", short_help="Print the paths of an archive's files.")
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False))
@_topic_option
def files(directory: str, topics: tuple[str, ...]) -> None:
    """Print the paths of the files of archive DIR that are committed, one per line.

    For DuckDB, Polars or pyarrow while the archive is being written or compacted.
    """
    from cometmq.spark.pipelines.archive.read import ArchiveSlice, archive_files

    for path in archive_files(directory, ArchiveSlice(topics=topics)):
        click.echo(str(path))
