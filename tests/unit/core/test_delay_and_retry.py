"""Delay levels, and what becomes of a message a consumer gives back."""

import pytest

from cometmq.core.delay import DelayLevels
from cometmq.core.retry import (
    SendBack,
    decide_send_back,
    goes_to_dlq_on_send,
    max_reconsume_times,
)
from cometmq.errors import ConfigError
from cometmq.model.group import SubscriptionGroupConfig


def test_default_levels() -> None:
    """Eighteen levels from 1 s to 2 h; a larger level is the largest."""
    levels = DelayLevels()
    assert levels.max_level == 18
    assert levels.delay_ms(1) == 1000
    assert levels.delay_ms(3) == 10_000
    assert levels.delay_ms(18) == 7_200_000
    assert levels.clamp(99) == 18
    assert levels.table()[5] == 60_000
    assert levels.deliver_time_ms(2, 1_000_000) == 1_005_000


def test_units_and_faults() -> None:
    """s, m, h, d; anything else names the item."""
    assert DelayLevels("2s 3m 1h 1d").delays_ms == (2000, 180_000, 3_600_000, 86_400_000)
    for text in ("", "1x", "s", "1s -5s", "1 s"):
        with pytest.raises(ConfigError, match="messageDelayLevel"):
            DelayLevels(text)


def test_due_time_and_a_clock_set_back() -> None:
    """Further away than the level's own delay means the clock moved: deliver now."""
    levels = DelayLevels()
    assert levels.due_in_ms(1, 10_500, 10_000) == 500
    assert levels.due_in_ms(1, 9_000, 10_000) == 0
    assert levels.due_in_ms(1, 60_000, 10_000) == 0


@pytest.mark.parametrize(
    ("reconsumed", "most", "level", "expected"),
    [
        (0, 16, 0, SendBack(False, 3)),
        (4, 16, 0, SendBack(False, 7)),
        (15, 16, 0, SendBack(False, 18)),
        (0, 16, 5, SendBack(False, 5)),
        (16, 16, 0, SendBack(True, 0)),
        (0, 16, -1, SendBack(True, 0)),
        (0, 0, 0, SendBack(True, 0)),
        (0, -1, 0, SendBack(True, 0)),
    ],
)
def test_send_back(reconsumed: int, most: int, level: int, expected: SendBack) -> None:
    """3 + tries by default; dead at the limit or on request."""
    assert decide_send_back(reconsumed, most, level) == expected


def test_limit_comes_from_newer_clients_else_from_the_group() -> None:
    """Clients before 3.4.9 (121) are not asked."""
    group = SubscriptionGroupConfig("g", retry_max_times=5)
    assert max_reconsume_times(group, None, 493) == 5
    assert max_reconsume_times(group, 2, 493) == 2
    assert max_reconsume_times(group, 2, 120) == 5


def test_a_direct_retry_send_is_buried_one_try_later() -> None:
    """> on send where send-back has >=."""
    assert not goes_to_dlq_on_send(16, 16)
    assert goes_to_dlq_on_send(17, 16)
