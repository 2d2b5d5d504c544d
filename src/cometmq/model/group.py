"""Consumer groups and subscriptions.

Enum members carry the wire spelling as their name; C++ and Python clients send the ordinals,
which are the values here.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

__all__ = [
    "SUBSCRIBE_ALL",
    "ConsumeFromWhere",
    "ConsumeType",
    "MessageModel",
    "SubscriptionData",
    "SubscriptionGroupConfig",
]

SUBSCRIBE_ALL = "*"


class ConsumeType(IntEnum):
    """How a consumer gets its messages (``ConsumeType``)."""

    CONSUME_ACTIVELY = 0
    CONSUME_PASSIVELY = 1
    CONSUME_POP = 2


class MessageModel(IntEnum):
    """Whether the members of a group share the messages or each get all of them."""

    BROADCASTING = 0
    CLUSTERING = 1


class ConsumeFromWhere(IntEnum):
    """Where a group without a stored offset begins."""

    CONSUME_FROM_LAST_OFFSET = 0
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = 1
    CONSUME_FROM_MIN_OFFSET = 2
    CONSUME_FROM_MAX_OFFSET = 3
    CONSUME_FROM_FIRST_OFFSET = 4
    CONSUME_FROM_TIMESTAMP = 5


@dataclass(frozen=True, slots=True)
class SubscriptionData:
    """One topic of a group's subscription.

    ``tags_set`` is empty for "all"; ``code_set`` holds the Java hash of each tag.
    ``sub_version`` orders two subscriptions of one group: ms from Java, ns from Go.
    """

    topic: str
    sub_string: str = SUBSCRIBE_ALL
    tags_set: frozenset[str] = frozenset()
    code_set: frozenset[int] = frozenset()
    sub_version: int = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False


@dataclass(frozen=True, slots=True)
class SubscriptionGroupConfig:
    """A consumer group as its broker stores it in ``subscriptionGroup.json``."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_count: int = 1
    retry_max_times: int = 16
    group_retry_policy: dict[str, Any] = field(default_factory=lambda: {"type": "CUSTOMIZED"})
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    subscription_data_set: tuple[dict[str, Any], ...] | None = None
    attributes: dict[str, str] = field(default_factory=dict)
