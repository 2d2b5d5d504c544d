"""What is said of a retry policy that somebody asks for, and which decision uses it."""

import pytest

from cometmq.core.retry.retry import SendBackDecision, decide_send_back
from cometmq.core.retry.retry_policy import RetryPolicy, check_policy
from cometmq.errors import ConfigError


def test_a_custom_policy_without_delays_is_the_usual_back_off() -> None:
    """None: the broker's levels decide."""
    assert check_policy({"type": "CUSTOMIZED", "customizedRetryPolicy": {}}) is None
    assert check_policy({}) is None


def test_a_policy_that_is_no_object() -> None:
    """The error names the field."""
    with pytest.raises(ConfigError, match="customizedRetryPolicy is 5: expected a JSON object"):
        check_policy({"customizedRetryPolicy": 5})


def test_the_groups_policy_decides_where_no_level_was_asked_for() -> None:
    """Its time stands in the decision; a level of the consumer's goes before it."""
    policy = RetryPolicy((1_000, 5_000))
    assert decide_send_back(1, 16, 0, policy) == SendBackDecision(False, 0, 5_000)
    assert decide_send_back(1, 16, 4, policy) == SendBackDecision(False, 4)


def test_an_unknown_type_is_refused_with_the_types() -> None:
    """The error lists the types."""
    with pytest.raises(ConfigError, match=r"type 'LINEAR' is unknown: expected .* or "):
        check_policy({"type": "LINEAR"})
