"""CometMQ: a broker, name server and client that speak RocketMQ's protocol and read its store.

The public names below are imported on first use, so that `import cometmq` costs next to nothing.
`cometmq.sync` has the same clients without asyncio.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from cometmq import errors as errors
    from cometmq import sync as sync
    from cometmq.app.app import App as App
    from cometmq.app.serializers import SchemaError as SchemaError
    from cometmq.client.admin.admin import Admin as Admin
    from cometmq.client.base.instance import Connection as Connection
    from cometmq.client.consumer.pull_consumer import PullConsumer as PullConsumer
    from cometmq.client.consumer.push_consumer import PushConsumer as PushConsumer
    from cometmq.client.extensions.staging.batches import Staging as Staging
    from cometmq.client.extensions.staging.calls import PublishResult as PublishResult
    from cometmq.client.extensions.staging.calls import PublishState as PublishState
    from cometmq.client.extensions.staging.calls import StagedPart as StagedPart
    from cometmq.client.handling.handlers import DeadLetter as DeadLetter
    from cometmq.client.handling.handlers import RetryLater as RetryLater
    from cometmq.client.handling.handlers import StopConsuming as StopConsuming
    from cometmq.client.message.message import ReceivedMessage as ReceivedMessage
    from cometmq.client.producer.producer import Producer as Producer
    from cometmq.client.producer.request_reply import Reply as Reply
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
    "App",
    "Connection",
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
    "SchemaError",
    "SendResult",
    "SendStatus",
    "Sql92",
    "StagedPart",
    "Staging",
    "StopConsuming",
    "SubscriptionGroupConfig",
    "Tls",
    "Transaction",
    "TransactionOutcome",
    "TransactionProducer",
    "TransactionResult",
    "__version__",
    "errors",
    "sync",
]

__version__: Final = "0.1.0"

_HOMES: Final = {
    "Admin": "cometmq.client.admin.admin",
    "AllocateAveragely": "cometmq.core.group.allocate",
    "AllocateAveragelyByCircle": "cometmq.core.group.allocate",
    "AllocateByConfig": "cometmq.core.group.allocate",
    "AllocateConsistentHash": "cometmq.core.group.allocate",
    "AllocateMachineRoomNearby": "cometmq.core.group.allocate",
    "App": "cometmq.app.app",
    "Connection": "cometmq.client.base.instance",
    "ConsumeFromWhere": "cometmq.model.group",
    "DeadLetter": "cometmq.client.handling.handlers",
    "FlowLimits": "cometmq.core.consume.process_queue",
    "Message": "cometmq.model.message",
    "MessageModel": "cometmq.model.group",
    "MessageQueue": "cometmq.model.queue",
    "Producer": "cometmq.client.producer.producer",
    "PublishResult": "cometmq.client.extensions.staging.calls",
    "PublishState": "cometmq.client.extensions.staging.calls",
    "PullConsumer": "cometmq.client.consumer.pull_consumer",
    "PushConsumer": "cometmq.client.consumer.push_consumer",
    "ReceivedMessage": "cometmq.client.message.message",
    "Reply": "cometmq.client.producer.request_reply",
    "RetryLater": "cometmq.client.handling.handlers",
    "SchemaError": "cometmq.app.serializers",
    "SendResult": "cometmq.model.result",
    "SendStatus": "cometmq.model.result",
    "Sql92": "cometmq.core.filter.subscription",
    "StagedPart": "cometmq.client.extensions.staging.calls",
    "Staging": "cometmq.client.extensions.staging.batches",
    "StopConsuming": "cometmq.client.handling.handlers",
    "SubscriptionGroupConfig": "cometmq.model.group",
    "Tls": "cometmq.net.tls",
    "Transaction": "cometmq.client.transaction.values",
    "TransactionOutcome": "cometmq.client.transaction.values",
    "TransactionProducer": "cometmq.client.transaction.producer",
    "TransactionResult": "cometmq.client.transaction.values",
}
_MODULES: Final = frozenset({"errors", "sync"})


def __getattr__(name: str) -> Any:
    """Import a public name from its room on first use (PEP 562)."""
    if name in _MODULES:
        return import_module(f"cometmq.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'cometmq' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
