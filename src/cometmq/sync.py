"""The clients without asyncio: equal names and signatures, blocking calls.

    import cometmq.sync

    with cometmq.sync.Producer("billing") as producer:
        producer.send(cometmq.Message("Bills", b"bill 1"))

Sends and admin calls use blocking sockets in the calling thread; consumers, heartbeats and routes
run on one background thread.  `App` sends on its event loop.
"""

from cometmq.app.serializers import SchemaError
from cometmq.app.sync_app import App
from cometmq.client.admin.sync_admin import Admin
from cometmq.client.base.sync_connection import Connection
from cometmq.client.consumer.sync_consumers import PullConsumer, PushConsumer
from cometmq.client.extensions.staging.sync import PublishResult, PublishState, StagedPart, Staging
from cometmq.client.handling.handlers import DeadLetter, RetryLater, StopConsuming
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.sync_producer import Producer
from cometmq.client.transaction.sync_producer import TransactionProducer
from cometmq.client.transaction.values import Transaction, TransactionOutcome, TransactionResult
from cometmq.core.filter.subscription import Sql92
from cometmq.model.message import Message
from cometmq.model.queue import MessageQueue

__all__ = [
    "Admin",
    "App",
    "Connection",
    "DeadLetter",
    "Message",
    "MessageQueue",
    "Producer",
    "PublishResult",
    "PublishState",
    "PullConsumer",
    "PushConsumer",
    "ReceivedMessage",
    "RetryLater",
    "SchemaError",
    "Sql92",
    "StagedPart",
    "Staging",
    "StopConsuming",
    "Transaction",
    "TransactionOutcome",
    "TransactionProducer",
    "TransactionResult",
]
