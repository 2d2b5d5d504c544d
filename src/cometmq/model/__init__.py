"""Frozen values that every room shares: messages, queues, topics, groups, results.

They do no I/O, read no clock, and compute only from their own fields.
"""

from cometmq.model.group import (
    SUBSCRIBE_ALL,
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from cometmq.model.message import Message
from cometmq.model.queue import MessageQueue
from cometmq.model.result import FLUSHED_CODES, PullStatus, SendResult, SendStatus
from cometmq.model.topic import BrokerData, DataVersion, QueueData, TopicConfig, TopicRoute

__all__ = [
    "FLUSHED_CODES",
    "SUBSCRIBE_ALL",
    "BrokerData",
    "ConsumeFromWhere",
    "ConsumeType",
    "DataVersion",
    "Message",
    "MessageModel",
    "MessageQueue",
    "PullStatus",
    "QueueData",
    "SendResult",
    "SendStatus",
    "SubscriptionData",
    "SubscriptionGroupConfig",
    "TopicConfig",
    "TopicRoute",
]
