"""Listings: JSON for scripts, one row per line in a pipe."""

import json

import pytest

from cometmq.cli.terminal.output import print_listing, progress

ROWS = [
    {"topic": "Orders", "queue_count": 8, "order": False, "groups": ["a", "b"], "rate": 1.5},
    {"topic": "Bills of 2013", "queue_count": 12345, "order": True, "groups": [], "rate": None},
]


def test_json_is_the_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON output equals the rows."""
    print_listing(ROWS, as_json=True)
    assert json.loads(capsys.readouterr().out) == ROWS


def test_json_of_nothing_is_an_empty_list(capsys: pytest.CaptureFixture[str]) -> None:
    """An empty listing is valid JSON for a script."""
    print_listing([], as_json=True, empty="no topics")
    assert capsys.readouterr().out == "[]\n"


def test_pipe_gets_aligned_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """One line per row, numbers to the right, nothing cut to a width."""
    print_listing(ROWS, as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "TOPIC          QUEUE-COUNT  ORDER  GROUPS  RATE",
        "Orders                   8  no     a, b    1.50",
        "Bills of 2013       12,345  yes    -          -",
    ]


def test_empty_listing_speaks_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """The sentence about an empty listing goes to stderr."""
    print_listing([], as_json=False, empty="no topics")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "no topics\n"


def test_progress_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A log file is not filled with bars."""
    with progress("sent", "read", total=3) as (sent, read):
        sent.update(1)
        read.update(2, total=4, text="reading")
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""
