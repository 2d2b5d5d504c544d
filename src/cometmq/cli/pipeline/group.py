"""`cometmq pipeline NAME`: the Spark jobs, each imported when it runs."""

from __future__ import annotations

from typing import Final

import click

from cometmq.cli.terminal.lazy import LazyGroup

__all__ = ["PIPELINES", "pipeline"]

#: name -> (module, attribute, one line of help)
PIPELINES: Final[dict[str, tuple[str, str, str]]] = {
    "archive": (
        "cometmq.cli.pipeline.archive",
        "archive",
        "Archive topics to Parquet, exactly once.",
    ),
    "replay": (
        "cometmq.cli.pipeline.replay",
        "replay",
        "Send a slice of an archive to a topic again.",
    ),
    "dead-letters": (
        "cometmq.cli.pipeline.dead_letters",
        "dead_letters",
        "Group dead letters by cause; send a selection again.",
    ),
    "trace": (
        "cometmq.cli.pipeline.trace",
        "trace",
        "Follow every traced message to its consumers.",
    ),
    "reconcile": (
        "cometmq.cli.pipeline.reconcile",
        "reconcile",
        "Compare two sources record by record.",
    ),
    "backlog": (
        "cometmq.cli.pipeline.backlog",
        "backlog",
        "Report how far groups lag, why, and what to do.",
    ),
    "cdc": ("cometmq.cli.pipeline.cdc", "cdc", "Merge Canal or Debezium changes into a table."),
}


@click.group(
    "pipeline",
    cls=LazyGroup,
    table=PIPELINES,
    short_help="Archive, replay and analyse messages with Spark.",
)
def pipeline() -> None:
    """Archive, replay and analyse messages with Spark.

    Needs the extra cometmq[spark] and a Java 17 or newer. Every pipeline prints rows, rate and time
    left on stderr while it runs and a summary at its end, as JSON with --json. Exit code 1 when a
    check fails.
    """
