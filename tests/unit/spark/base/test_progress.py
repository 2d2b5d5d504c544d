"""Progress lines, rates and summaries, on a clock of the test's own."""

import io

import pytest

from cometmq.report.texts import duration_text, number_text
from cometmq.spark.base.progress import RunProgress, Summary


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        """Now."""
        return self.seconds


def test_rate_time_left_and_offsets_are_told() -> None:
    """The line holds rows, total, rate, share, time left and the queue that is furthest."""
    clock, stream = Clock(), io.StringIO()
    with RunProgress("archive", total=1_000, stream=stream, now=clock) as progress:
        clock.seconds += 2
        progress.update(400, offsets={"T broker-a:0": 200, "T broker-a:1": 250})
        assert progress.rate == 200
        assert progress.remaining_s == 3
        assert progress.line() == (
            "archive: 400 of 1,000 rows, 200/s, 40%, 3.0 s left, 2 queues, T broker-a:1 at 250"
        )
    assert stream.getvalue() == ""


def test_a_pipe_gets_a_line_every_ten_seconds() -> None:
    """A log file is not filled with lines, but it is not silent either."""
    clock, stream = Clock(), io.StringIO()
    progress = RunProgress("replay", stream=stream, now=clock)
    for _ in range(25):
        clock.seconds += 1
        progress.advance(10)
    assert stream.getvalue().splitlines() == [
        "replay: 100 rows, 10/s",
        "replay: 200 rows, 10/s",
    ]


def test_a_terminal_keeps_one_line_fresh_and_clean_at_the_end() -> None:
    """Everything stays on one line, which is empty in the end."""
    clock, stream = Clock(), Terminal()
    with RunProgress("replay", total=20, stream=stream, now=clock) as progress:
        for _ in range(2):
            clock.seconds += 1
            progress.advance(10, text="queue 3")
    written = stream.getvalue()
    assert "\n" not in written
    assert "20 of 20 rows" in written
    assert "queue 3" in written
    assert written.endswith("\r")
    assert written.rpartition("\r")[0].rpartition("\r")[2].strip() == ""


def test_quiet_counts_all_the_same() -> None:
    """Without a word the samples for the chart are still taken, and they stay bounded."""
    clock, stream = Clock(), Terminal()
    with RunProgress("archive", quiet=True, stream=stream, now=clock) as progress:
        for _ in range(5_000):
            clock.seconds += 0.5
            progress.advance(1)
    assert stream.getvalue() == ""
    assert progress.samples[-1] == (2_500.0, 5_000)
    assert len(progress.samples) <= 2_001


def test_the_rate_is_that_of_late() -> None:
    """A slow start does not lie in the rate for ever."""
    clock = Clock()
    progress = RunProgress("archive", quiet=True, now=clock)
    clock.seconds += 100
    progress.update(10)
    for _ in range(20):
        clock.seconds += 1
        progress.advance(100)
    assert progress.rate == pytest.approx(100, rel=0.15)


def test_summary_says_the_same_to_both_readers() -> None:
    """Text for people, JSON for machines, and wrong things in both."""
    summary = Summary("archive", {"rows": 12_345, "seconds": 83.0, "topics": ["A", "B"]})
    assert summary.as_json()["is_good"] is True
    assert summary.as_text().splitlines() == [
        "rows     12,345",
        "seconds  1 min 23 s",
        "topics   A, B",
    ]
    summary.faults.append("queue 3 lacks 7 rows")
    summary.report_path = "/tmp/x.html"
    assert not summary.is_good
    assert summary.as_text().endswith("report   /tmp/x.html\nWRONG: queue 3 lacks 7 rows")
    told = summary.as_json()
    assert told["rows"] == 12_345
    assert told["is_good"] is False
    assert told["faults"] == ["queue 3 lacks 7 rows"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.9, "9.9 s"), (42.4, "42 s"), (200, "3 min 20 s"), (7_500, "2 h 05 min")],
)
def test_durations(seconds: float, text: str) -> None:
    """Short ones with a digit, long ones in words."""
    assert duration_text(seconds) == text


def test_numbers() -> None:
    """Whole numbers whole, small ones with two digits, none as a dash."""
    assert [number_text(value) for value in (None, 0, 12_345, 0.25, 12_345.6)] == [
        "-",
        "0",
        "12,345",
        "0.25",
        "12,346",
    ]
