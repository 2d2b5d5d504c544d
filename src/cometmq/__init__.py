"""CometMQ: a broker, name server and client that speak RocketMQ's protocol and read its store.

The public names below are imported on first use, so that `import cometmq` costs next to nothing.
`cometmq.sync` has the same clients without asyncio.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from cometmq.client.admin import Admin as Admin
    from cometmq.client.handlers import DeadLetter as DeadLetter
    from cometmq.client.handlers import RetryLater as RetryLater
    from cometmq.client.message import ReceivedMessage as ReceivedMessage
    from cometmq.client.producer import Producer as Producer
    from cometmq.client.pull_consumer import PullConsumer as PullConsumer
    from cometmq.client.push_consumer import PushConsumer as PushConsumer
    from cometmq.client.request_reply import Reply as Reply
    from cometmq.client.staging_async import Staging as Staging
    from cometmq.client.staging_calls import PublishResult as PublishResult
    from cometmq.client.staging_calls import PublishState as PublishState
    from cometmq.client.staging_calls import StagedPart as StagedPart
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
    from cometmq.model.group import SubscriptionGroupConfig as SubscriptionGroupConfig
    from cometmq.model.message import Message as Message
    from cometmq.model.queue import MessageQueue as MessageQueue
    from cometmq.model.result import SendResult as SendResult
    from cometmq.model.result import SendStatus as SendStatus
    from cometmq.net.tls import Tls as Tls

__all__ = [
    "Admin",
    "AllocateAveragely",
    "AllocateAveragelyByCircle",
    "AllocateByConfig",
    "AllocateConsistentHash",
    "AllocateMachineRoomNearby",
    "ConsumeFromWhere",
    "DeadLetter",
    "FlowLimits",
    "Message",
    "MessageModel",
    "MessageQueue",
    "Producer",
    "PublishResult",
    "PublishState",
    "PullConsumer",
    "PushConsumer",
    "ReceivedMessage",
    "Reply",
    "RetryLater",
    "SendResult",
    "SendStatus",
    "Sql92",
    "StagedPart",
    "Staging",
    "SubscriptionGroupConfig",
    "Tls",
    "Transaction",
    "TransactionOutcome",
    "TransactionProducer",
    "TransactionResult",
    "__version__",
]

__version__: Final = "0.1.0"

_HOMES: Final = {
    "Admin": "cometmq.client.admin",
    "AllocateAveragely": "cometmq.core.allocate",
    "AllocateAveragelyByCircle": "cometmq.core.allocate",
    "AllocateByConfig": "cometmq.core.allocate",
    "AllocateConsistentHash": "cometmq.core.allocate",
    "AllocateMachineRoomNearby": "cometmq.core.allocate",
    "ConsumeFromWhere": "cometmq.model.group",
    "DeadLetter": "cometmq.client.handlers",
    "FlowLimits": "cometmq.core.process_queue",
    "Message": "cometmq.model.message",
    "MessageModel": "cometmq.model.group",
    "MessageQueue": "cometmq.model.queue",
    "Producer": "cometmq.client.producer",
    "PublishResult": "cometmq.client.staging_calls",
    "PublishState": "cometmq.client.staging_calls",
    "PullConsumer": "cometmq.client.pull_consumer",
    "PushConsumer": "cometmq.client.push_consumer",
    "ReceivedMessage": "cometmq.client.message",
    "Reply": "cometmq.client.request_reply",
    "RetryLater": "cometmq.client.handlers",
    "SendResult": "cometmq.model.result",
    "SendStatus": "cometmq.model.result",
    "Sql92": "cometmq.core.subscription",
    "StagedPart": "cometmq.client.staging_calls",
    "Staging": "cometmq.client.staging_async",
    "SubscriptionGroupConfig": "cometmq.model.group",
    "Tls": "cometmq.net.tls",
    "Transaction": "cometmq.client.transaction",
    "TransactionOutcome": "cometmq.client.transaction",
    "TransactionProducer": "cometmq.client.transaction_producer",
    "TransactionResult": "cometmq.client.transaction",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its room on first use (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'cometmq' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
