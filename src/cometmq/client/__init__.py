"""Producer, push and pull consumers and admin client, for asyncio and for synchronous programs.

Imports neither numpy nor the broker nor the store, so that it starts light.  The names are
imported on first use: a process that only sends does not load the consumers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from cometmq.client.admin.admin import Admin as Admin
    from cometmq.client.admin.calls import ClusterInfo as ClusterInfo
    from cometmq.client.admin.calls import OffsetRange as OffsetRange
    from cometmq.client.admin.calls import QueueProgress as QueueProgress
    from cometmq.client.base.instance import Connection as Connection
    from cometmq.client.consumer.pull_consumer import PullConsumer as PullConsumer
    from cometmq.client.consumer.push_consumer import PushConsumer as PushConsumer
    from cometmq.client.handling.handlers import DeadLetter as DeadLetter
    from cometmq.client.handling.handlers import RetryLater as RetryLater
    from cometmq.client.handling.handlers import StopConsuming as StopConsuming
    from cometmq.client.message.message import ReceivedMessage as ReceivedMessage
    from cometmq.client.producer.producer import Producer as Producer
    from cometmq.client.transaction.producer import TransactionProducer as TransactionProducer
    from cometmq.client.transaction.values import Transaction as Transaction
    from cometmq.client.transaction.values import TransactionOutcome as TransactionOutcome
    from cometmq.client.transaction.values import TransactionResult as TransactionResult
    from cometmq.core.consume.process_queue import FlowLimits as FlowLimits
    from cometmq.core.filter.subscription import Sql92 as Sql92
    from cometmq.core.group.allocate import AllocateAveragely as AllocateAveragely
    from cometmq.core.group.allocate import AllocateAveragelyByCircle as AllocateAveragelyByCircle
    from cometmq.core.group.allocate import AllocateByConfig as AllocateByConfig
    from cometmq.core.group.allocate import AllocateConsistentHash as AllocateConsistentHash
    from cometmq.core.group.allocate import AllocateMachineRoomNearby as AllocateMachineRoomNearby
    from cometmq.model.group import ConsumeFromWhere as ConsumeFromWhere
    from cometmq.model.group import MessageModel as MessageModel
    from cometmq.model.message import Message as Message
    from cometmq.model.queue import MessageQueue as MessageQueue
    from cometmq.model.result import SendResult as SendResult
    from cometmq.model.result import SendStatus as SendStatus

__all__ = [
    "Admin",
    "AllocateAveragely",
    "AllocateAveragelyByCircle",
    "AllocateByConfig",
    "AllocateConsistentHash",
    "AllocateMachineRoomNearby",
    "ClusterInfo",
    "Connection",
    "ConsumeFromWhere",
    "DeadLetter",
    "FlowLimits",
    "Message",
    "MessageModel",
    "MessageQueue",
    "OffsetRange",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "QueueProgress",
    "ReceivedMessage",
    "RetryLater",
    "SendResult",
    "SendStatus",
    "Sql92",
    "StopConsuming",
    "Transaction",
    "TransactionOutcome",
    "TransactionProducer",
    "TransactionResult",
]

_HOMES: Final = {
    "Admin": "cometmq.client.admin.admin",
    "AllocateAveragely": "cometmq.core.group.allocate",
    "AllocateAveragelyByCircle": "cometmq.core.group.allocate",
    "AllocateByConfig": "cometmq.core.group.allocate",
    "AllocateConsistentHash": "cometmq.core.group.allocate",
    "AllocateMachineRoomNearby": "cometmq.core.group.allocate",
    "ClusterInfo": "cometmq.client.admin.calls",
    "Connection": "cometmq.client.base.instance",
    "ConsumeFromWhere": "cometmq.model.group",
    "DeadLetter": "cometmq.client.handling.handlers",
    "FlowLimits": "cometmq.core.consume.process_queue",
    "Message": "cometmq.model.message",
    "MessageModel": "cometmq.model.group",
    "MessageQueue": "cometmq.model.queue",
    "OffsetRange": "cometmq.client.admin.calls",
    "Producer": "cometmq.client.producer.producer",
    "PullConsumer": "cometmq.client.consumer.pull_consumer",
    "PushConsumer": "cometmq.client.consumer.push_consumer",
    "QueueProgress": "cometmq.client.admin.calls",
    "ReceivedMessage": "cometmq.client.message.message",
    "RetryLater": "cometmq.client.handling.handlers",
    "SendResult": "cometmq.model.result",
    "SendStatus": "cometmq.model.result",
    "Sql92": "cometmq.core.filter.subscription",
    "StopConsuming": "cometmq.client.handling.handlers",
    "Transaction": "cometmq.client.transaction.values",
    "TransactionOutcome": "cometmq.client.transaction.values",
    "TransactionProducer": "cometmq.client.transaction.producer",
    "TransactionResult": "cometmq.client.transaction.values",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'cometmq.client' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
