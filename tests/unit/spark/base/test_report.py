"""What pipelines add to their pages: the rate that progress sampled, the facts of the summary."""

from __future__ import annotations

from cometmq.report.page import ReportPage
from cometmq.spark.base.progress import RunProgress, Summary
from cometmq.spark.base.report import add_facts, add_rate, many


def test_rate_is_that_of_the_samples() -> None:
    """A thousand rows each second."""
    progress = RunProgress("archive", quiet=True, now=iter(range(100)).__next__)
    for _ in range(5):
        progress.advance(1_000)
    page = ReportPage("?", "!")
    add_rate(page, progress)
    assert "<h2>The run read 1,000 rows a second</h2>" in page.page()


def test_a_run_too_short_for_a_rate_shows_none() -> None:
    """One sample has no rate."""
    page = ReportPage("?", "!")
    add_rate(page, RunProgress("archive", quiet=True))
    assert "<h2>" not in page.page()


def test_facts_stand_at_the_foot_but_for_some() -> None:
    """What stands above already is left out."""
    page = ReportPage("?", "!")
    add_facts(page, Summary("x", {"body_bytes": 5_000, "advice": ["a"]}), without=("advice",))
    text = page.page()
    assert "<dt>body bytes</dt><dd class='body bytes'>5,000</dd>" in text
    assert "<dt>advice</dt>" not in text


def test_counts_have_their_noun() -> None:
    """One queue, two queues, two batches."""
    words = many(1, "queue"), many(2_000, "queue"), many(2, "batch", "batches")
    assert words == ("1 queue", "2,000 queues", "2 batches")
