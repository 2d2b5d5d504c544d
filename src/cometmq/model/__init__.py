"""Frozen values that every room shares: messages, queues, topics, groups, results.

Pure: no I/O, no clock, no behaviour beyond answering questions about themselves.
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
from cometmq.model.result import PullStatus, SendResult, SendStatus
from cometmq.model.topic import BrokerData, DataVersion, QueueData, TopicConfig, TopicRoute

__all__ = [
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
