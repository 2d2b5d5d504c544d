"""`cometmq pipeline NAME`: the jobs on Spark, each imported when it runs."""

from __future__ import annotations

from typing import Final

import click

from cometmq.cli.lazy import LazyGroup

__all__ = ["PIPELINES", "pipeline"]

#: name -> (module, attribute, one line of help)
PIPELINES: Final[dict[str, tuple[str, str, str]]] = {
    "archive": ("cometmq.cli.pipeline_archive", "archive", "Topics to Parquet, exactly once."),
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
    check did not hold.
    """
