"""The page of a run that sent messages again: what was sent, what was not, by queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cometmq.report.page import ReportPage
    from cometmq.spark.base.progress import RunProgress, Summary

__all__ = ["sent_page"]


def sent_page(
    summary: Summary, rows: Sequence[Mapping[str, Any]], lead: str, progress: RunProgress
) -> ReportPage:
    """Build the page.

    Args:
        rows: by queue: ``source`` and ``sent``, or the rows of `preview`.
        lead: where the messages came from.
    """
    from cometmq.report.charts import bars
    from cometmq.report.page import ReportPage
    from cometmq.spark.base.report import add_facts, add_rate, many

    facts = summary.facts
    is_dry = bool(facts.get("dry_run") or facts.get("preview"))
    sent, before = facts.get("sent", 0), facts.get("sent_before", 0)
    answer = (
        f"{many(facts.get('messages', 0), 'message')} would be sent; this run sent nothing"
        if is_dry
        else f"{many(sent, 'message')} sent again; "
        + (f"{before:,} were sent by an earlier run" if before else "no message is left")
    )
    page = ReportPage("What was sent again?", answer, f"{lead}.", summary.faults)
    page.figure("Selected" if is_dry else "Sent", facts.get("messages", 0) if is_dry else sent)
    if not is_dry:
        page.figure("Sent before", before, "by an earlier run")
    named = [(str(row["source"]), float(row.get("sent", row.get("messages", 0)))) for row in rows]
    ranked = sorted(named, key=lambda item: (-item[1], item[0]))
    page.section(
        f"The messages came from {many(len(rows), 'queue')}",
        "Messages by source queue.",
        chart=bars(ranked, unit="messages", name="queue") if ranked else None,
        rows=rows,
    )
    add_rate(page, progress)
    add_facts(page, summary, without=("rows",))
    return page
