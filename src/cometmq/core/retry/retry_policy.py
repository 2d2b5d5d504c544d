"""A group's retry policy: how long a message waits for its next try.

The module reads, checks and makes the object ``groupRetryPolicy`` of a group, and computes delays
from it.  `cometmq.core.retry.retry` turns delays into delay levels.

Source: CustomizedRetryPolicy, ExponentialRetryPolicy and GroupRetryPolicy of RocketMQ 5.4.0.
RocketMQ uses the policy only in its proxy, which sends it to gRPC clients and delays unanswered
messages by it; a send-back of remoting clients (code 36) ignores it.  CometMQ uses it for
send-backs too, but only if the group has a policy of its own.  Every group begins with
``{"type": "CUSTOMIZED"}`` without times; with that the delay levels apply.

The first delay of a customised policy is its entry 2, because the default list is the table of
delay levels and remoting clients begin at level 3.  A list that is too short repeats its last
entry.  `customized_policy` puts two entries in front, so that its argument begins with the first
delay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cometmq.errors import ConfigError

__all__ = [
    "RetryPolicy",
    "check_policy",
    "customized_policy",
    "exponential_policy",
    "policy_of",
]

INITIAL_MS: Final = 5_000
MAX_MS: Final = 2 * 3_600_000
MULTIPLIER: Final = 2
_EXPONENT_MAX: Final = 32
_SKIPPED: Final = 2
_TYPES: Final = ("CUSTOMIZED", "EXPONENTIAL")
_TYPE_BY_ORDINAL: Final = {0: "CUSTOMIZED", 1: "EXPONENTIAL"}


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The delays of a group: a list in ms or, if the list is empty, an exponential sequence."""

    next_ms: tuple[int, ...] = ()
    initial_ms: int = INITIAL_MS
    max_ms: int = MAX_MS
    multiplier: int = MULTIPLIER

    def delay_ms(self, reconsume_times: int) -> int:
        """How long a message waits after it failed ``reconsume_times`` + 1 times."""
        times = max(0, reconsume_times)
        if self.next_ms:
            return self.next_ms[min(times + _SKIPPED, len(self.next_ms) - 1)]
        return int(min(self.max_ms, self.initial_ms * self.multiplier ** min(times, _EXPONENT_MAX)))


def policy_of(raw: Mapping[str, Any]) -> RetryPolicy | None:
    """The policy in a group's ``groupRetryPolicy``; None if the delay levels apply.

    EXPONENTIAL without its object has RocketMQ's defaults, as its proxy tells gRPC clients.  An
    object that `check_policy` would refuse (in a file written by hand) counts as no policy.
    """
    try:
        return check_policy(raw)
    except ConfigError:
        return None


def check_policy(raw: Mapping[str, Any]) -> RetryPolicy | None:
    """As `policy_of`, for an object that an operator sends.

    Raises:
        ConfigError: the type is unknown, or a time is not a number of ms.
    """
    kind = raw.get("type", "CUSTOMIZED")
    kind = _TYPE_BY_ORDINAL.get(kind, kind) if isinstance(kind, int) else kind
    if kind not in _TYPES:
        raise ConfigError(f"retry policy type {kind!r} is unknown: expected {' or '.join(_TYPES)}")
    if kind == "EXPONENTIAL":
        return _exponential(_object(raw, "exponentialRetryPolicy"))
    times = _object(raw, "customizedRetryPolicy").get("next")
    if times is None:
        return None
    if not isinstance(times, list | tuple) or not times:
        raise ConfigError(
            f"customizedRetryPolicy.next is {times!r:.60}: expected delays in ms, for example "
            "[1000, 5000, 10000, 60000]"
        )
    return RetryPolicy(
        tuple(
            _number(value, f"customizedRetryPolicy.next[{i}]", 0) for i, value in enumerate(times)
        )
    )


def _exponential(raw: Mapping[str, Any]) -> RetryPolicy:
    name = "exponentialRetryPolicy"
    return RetryPolicy(
        initial_ms=_number(raw.get("initial", INITIAL_MS), f"{name}.initial", 0),
        max_ms=_number(raw.get("max", MAX_MS), f"{name}.max", 0),
        multiplier=_number(raw.get("multiplier", MULTIPLIER), f"{name}.multiplier", 1),
    )


def _object(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = raw.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} is {value!r:.60}: expected a JSON object")
    return value


def _number(value: Any, name: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} is {value!r:.40}: expected a whole number of at least {least}")
    return value


def customized_policy(delays_ms: Sequence[int]) -> dict[str, Any]:
    """The object of a group whose first delay is ``delays_ms[0]``; the last one repeats.

    Raises:
        ConfigError: there is no delay, or a negative one.
    """
    times = [*list(delays_ms[:1]) * _SKIPPED, *delays_ms]
    raw = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": times}}
    check_policy(raw)
    return raw


def exponential_policy(
    initial_ms: int = INITIAL_MS, max_ms: int = MAX_MS, multiplier: int = MULTIPLIER
) -> dict[str, Any]:
    """The object of a group whose delays grow from ``initial_ms`` by ``multiplier`` to ``max_ms``.

    Raises:
        ConfigError: a time is below 0, or the multiplier below 1.
    """
    raw = {
        "type": "EXPONENTIAL",
        "exponentialRetryPolicy": {
            "initial": initial_ms,
            "max": max_ms,
            "multiplier": multiplier,
        },
    }
    check_policy(raw)
    return raw
