"""Backlog rules: which messages of a queue are dropped, and which count as old."""

import pytest

from cometmq.core.group.backlog_rules import (
    DROP_AGE,
    DROP_LAG,
    FRESH_LAG,
    FRESH_SHARE,
    BacklogRules,
)


def test_a_group_without_attributes_has_no_rules() -> None:
    """`fresh_lag` alone asks for nothing."""
    assert BacklogRules.of({}).is_empty
    assert BacklogRules.of({FRESH_LAG: "5", "subscription.strict": "true"}).is_empty
    assert BacklogRules.of({}).cut_by_lag(0, 10**9) == 0
    assert BacklogRules.of({}).cut_by_freshness(0, 10**9) == 0


def test_attributes_are_read() -> None:
    """The share is stored in percent."""
    rules = BacklogRules.of({DROP_AGE: "60000", DROP_LAG: "100", FRESH_SHARE: "80"})
    assert rules == BacklogRules(60_000, 100, 0.8)
    assert not rules.is_empty
    assert BacklogRules.of({FRESH_SHARE: "80", FRESH_LAG: "7"}).fresh_lag == 7


@pytest.mark.parametrize(
    ("begin", "end", "cut"), [(0, 100, 0), (0, 101, 51), (50, 150, 50), (50, 400, 350)]
)
def test_the_lag_drops_down_to_half(begin: int, end: int, cut: int) -> None:
    """So that it seldom drops."""
    assert BacklogRules(drop_lag=100).cut_by_lag(begin, end) == cut


@pytest.mark.parametrize(("begin", "end", "cut"), [(0, 10, 0), (0, 11, 11), (5, 16, 16)])
def test_everything_that_waits_is_old(begin: int, end: int, cut: int) -> None:
    """Where more waits than counts as new."""
    assert BacklogRules(fresh_share=0.5, fresh_lag=10).cut_by_freshness(begin, end) == cut


@pytest.mark.parametrize(("share", "copies"), [(0.5, 8.0), (0.8, 2.0), (0.2, 32.0)])
def test_old_messages_get_the_rest_of_the_share(share: float, copies: float) -> None:
    """For eight new ones."""
    assert BacklogRules(fresh_share=share).due_copies(8) == pytest.approx(copies)
