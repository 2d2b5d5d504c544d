"""Producer, push and pull consumers, admin: asyncio first, a synchronous face beside it.

Imports neither numpy nor the broker nor the store, so that it starts light.  The names are
imported on first use: a process that only sends does not load the consumers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from cometmq.client.admin import Admin as Admin
    from cometmq.client.admin_calls import ClusterInfo as ClusterInfo
    from cometmq.client.admin_calls import OffsetRange as OffsetRange
    from cometmq.client.admin_calls import QueueProgress as QueueProgress
    from cometmq.client.handlers import DeadLetter as DeadLetter
    from cometmq.client.handlers import RetryLater as RetryLater
    from cometmq.client.message import ReceivedMessage as ReceivedMessage
    from cometmq.client.producer import Producer as Producer
    from cometmq.client.pull_consumer import PullConsumer as PullConsumer
    from cometmq.client.push_consumer import PushConsumer as PushConsumer
    from cometmq.client.transaction import Transaction as Transaction
    from cometmq.client.transaction import TransactionOutcome as TransactionOutcome
    from cometmq.client.transaction import TransactionResult as TransactionResult
    from cometmq.client.transaction_producer import TransactionProducer as TransactionProducer
    from cometmq.core.allocate import AllocateAveragely as AllocateAveragely
    from cometmq.core.allocate import AllocateAveragelyByCircle as AllocateAveragelyByCircle
    from cometmq.core.allocate import AllocateByConfig as AllocateByConfig
    from cometmq.core.allocate import AllocateConsistentHash as AllocateConsistentHash
    from cometmq.core.allocate import AllocateMachineRoomNearby as AllocateMachineRoomNearby
    from cometmq.core.process_queue import FlowLimits as FlowLimits
    from cometmq.core.subscription import Sql92 as Sql92
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
    "Transaction",
    "TransactionOutcome",
    "TransactionProducer",
    "TransactionResult",
]

_HOMES: Final = {
    "Admin": "cometmq.client.admin",
    "AllocateAveragely": "cometmq.core.allocate",
    "AllocateAveragelyByCircle": "cometmq.core.allocate",
    "AllocateByConfig": "cometmq.core.allocate",
    "AllocateConsistentHash": "cometmq.core.allocate",
    "AllocateMachineRoomNearby": "cometmq.core.allocate",
    "ClusterInfo": "cometmq.client.admin_calls",
    "ConsumeFromWhere": "cometmq.model.group",
    "DeadLetter": "cometmq.client.handlers",
    "FlowLimits": "cometmq.core.process_queue",
    "Message": "cometmq.model.message",
    "MessageModel": "cometmq.model.group",
    "MessageQueue": "cometmq.model.queue",
    "OffsetRange": "cometmq.client.admin_calls",
    "Producer": "cometmq.client.producer",
    "PullConsumer": "cometmq.client.pull_consumer",
    "PushConsumer": "cometmq.client.push_consumer",
    "QueueProgress": "cometmq.client.admin_calls",
    "ReceivedMessage": "cometmq.client.message",
    "RetryLater": "cometmq.client.handlers",
    "SendResult": "cometmq.model.result",
    "SendStatus": "cometmq.model.result",
    "Sql92": "cometmq.core.subscription",
    "Transaction": "cometmq.client.transaction",
    "TransactionOutcome": "cometmq.client.transaction",
    "TransactionProducer": "cometmq.client.transaction_producer",
    "TransactionResult": "cometmq.client.transaction",
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
