"""What a broker of ours tells members of a group whose subscriptions differ.

The answer to a heartbeat and NOTIFY_CONSUMER_IDS_CHANGED (40) carry the difference in an ext field,
which other clients ignore.  The answer may be about several groups, so there it is a JSON object
from group to text.  A broker refuses a member with SUBSCRIPTION_CONFLICT where the group is strict.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

__all__ = [
    "DIFFERENCES_FIELD",
    "DIFFERENCE_FIELD",
    "decode_differences",
    "encode_differences",
]

DIFFERENCE_FIELD: Final = "cometmqSubscriptionDifference"
"""Ext field of a notice to the members of one group."""
DIFFERENCES_FIELD: Final = "cometmqSubscriptionDifferences"
"""Ext field of the answer to a heartbeat."""


def encode_differences(texts: Mapping[str, str]) -> str:
    """Return the field's text for the differences by group."""
    return msgspec.json.encode(dict(texts)).decode()


def decode_differences(text: str | None) -> dict[str, str]:
    """Return the differences by group; none where the field is missing or unreadable."""
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, str])
    except msgspec.DecodeError:
        return {}
