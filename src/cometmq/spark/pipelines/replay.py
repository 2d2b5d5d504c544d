"""`replay`: a slice of an archive back into a topic."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cometmq.spark.pipelines.archive.read import ArchiveSlice, read_archive
from cometmq.spark.pipelines.base.ordered_send import (
    ReplayResult,
    SendLedger,
    default_ledger,
    preview,
    send_ordered,
)

if TYPE_CHECKING:
    from pathlib import Path

    from cometmq.spark.base.progress import RunProgress

__all__ = ["replay", "replay_frame", "replay_preview"]


def replay_frame(spark: Any, root: str | Path, slice_: ArchiveSlice, target: str | None) -> Any:
    """The slice's rows with a column ``target``: the given topic, or each message's own.

    Raises:
        CometError: see `read_archive`.
    """
    from pyspark.sql import functions as sql

    frame = read_archive(spark, root, slice_)
    return frame.withColumn("target", sql.col("topic") if target is None else sql.lit(target))


def replay_preview(
    spark: Any, root: str | Path, slice_: ArchiveSlice, target: str | None = None
) -> list[dict[str, Any]]:
    """The rows that `replay` would send, counted by source queue.

    Raises:
        CometError: see `read_archive`.
    """
    return preview(replay_frame(spark, root, slice_, target))


def replay(
    spark: Any,
    root: str | Path,
    slice_: ArchiveSlice,
    *,
    name_server: str,
    target: str | None = None,
    settings: tuple[tuple[str, Any], ...] = (),
    order: str = "queue",
    rate: float | None = None,
    ledger: str | Path | None = None,
    again: bool = False,
    progress: RunProgress | None = None,
) -> ReplayResult:
    """Send a slice of the archive at ``root`` into ``target``, or into the topics it came from.

    The order of each source queue is kept.  The same call continues where an earlier one ended,
    and sends nothing if the earlier one finished, unless ``again``.

    Raises:
        CometError: see `read_archive` and `send_ordered`.
    """
    frame = replay_frame(spark, root, slice_, target)
    chosen = {name: _plain(value) for name, value in asdict(slice_).items()}
    plan = {"slice": chosen, "target": target, "order": order, "to": name_server}
    send_ledger = SendLedger(default_ledger(root, plan) if ledger is None else ledger)
    send_ledger.open(plan, again=again)
    return send_ordered(
        spark,
        frame,
        send_ledger,
        name_server=name_server,
        settings=settings,
        order=order,
        rate=rate,
        progress=progress,
    )


def _plain(value: Any) -> Any:
    """The value as JSON decodes it."""
    return list(value) if isinstance(value, tuple) else value
