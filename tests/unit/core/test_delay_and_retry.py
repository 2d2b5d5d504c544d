"""Delay levels, and what becomes of a message a consumer gives back."""

import pytest

from cometmq.core.delay.levels import DelayLevels
from cometmq.core.retry.retry import (
    SendBackDecision,
    decide_send_back,
    goes_to_dlq_on_send,
    level_not_before,
    max_reconsume_times,
)
from cometmq.core.retry.retry_policy import (
    RetryPolicy,
    customized_policy,
    exponential_policy,
    policy_of,
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
        (0, 16, 0, SendBackDecision(False, 3)),
        (4, 16, 0, SendBackDecision(False, 7)),
        (15, 16, 0, SendBackDecision(False, 18)),
        (0, 16, 5, SendBackDecision(False, 5)),
        (16, 16, 0, SendBackDecision(True, 0)),
        (0, 16, -1, SendBackDecision(True, 0)),
        (0, 0, 0, SendBackDecision(True, 0)),
        (0, -1, 0, SendBackDecision(True, 0)),
    ],
)
def test_send_back(reconsumed: int, most: int, level: int, expected: SendBackDecision) -> None:
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


def test_level_not_before() -> None:
    """The shortest that is long enough; 0 for none; the longest where all are too short."""
    delays = DelayLevels().delays_ms
    assert [level_not_before(ms, delays) for ms in (-1, 0, 1, 1000, 1001, 61_000)] == [
        0,
        0,
        1,
        1,
        2,
        6,
    ]
    assert level_not_before(10**9, delays) == 18
    assert level_not_before(1500, DelayLevels("1h 5s 2s").delays_ms) == 3
    assert level_not_before(10**9, DelayLevels("1h 5s 2s").delays_ms) == 1


def test_customised_policy_begins_at_its_third_entry() -> None:
    """As CustomizedRetryPolicy.nextDelayDuration: index tries + 2, the last one repeats."""
    policy = policy_of({"customizedRetryPolicy": {"next": [1, 2, 3, 4]}})
    assert policy is not None
    assert [policy.delay_ms(times) for times in (-1, 0, 1, 2, 99)] == [3, 3, 4, 4, 4]
    own = policy_of(customized_policy([10, 20, 30]))
    assert own is not None
    assert [own.delay_ms(times) for times in range(4)] == [10, 20, 30, 30]


def test_exponential_policy_grows_to_its_maximum() -> None:
    """As ExponentialRetryPolicy.nextDelayDuration, without its overflow."""
    policy = policy_of(exponential_policy(5000, 60_000, 2))
    assert policy is not None
    assert [policy.delay_ms(times) for times in (-1, 0, 1, 3, 4, 99)] == [
        5000,
        5000,
        10_000,
        40_000,
        60_000,
        60_000,
    ]
    assert policy_of({"type": "EXPONENTIAL"}) == RetryPolicy(initial_ms=5000, max_ms=7_200_000)
    assert exponential_policy(1, 10**18, 10**6) == {
        "type": "EXPONENTIAL",
        "exponentialRetryPolicy": {"initial": 1, "max": 10**18, "multiplier": 10**6},
    }


def test_no_policy_of_its_own() -> None:
    """What a new group has, and what no broker could follow, leaves the delay levels."""
    assert policy_of({"type": "CUSTOMIZED"}) is None
    assert policy_of({}) is None
    assert policy_of({"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": "1s"}}) is None
    with pytest.raises(ConfigError, match="at least 1"):
        exponential_policy(multiplier=0)
    with pytest.raises(ConfigError, match="expected delays"):
        customized_policy([])
