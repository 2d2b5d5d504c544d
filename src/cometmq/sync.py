"""The clients without asyncio: equal names and signatures, blocking calls.

    import cometmq.sync

    with cometmq.sync.Producer("billing") as producer:
        producer.send(cometmq.Message("Bills", b"bill 1"))

Sends and admin calls use blocking sockets in the calling thread; consumers, heartbeats and routes
run on one background thread.
"""

from cometmq.client.handlers import DeadLetter, RetryLater
from cometmq.client.message import ReceivedMessage
from cometmq.client.sync_admin import Admin
from cometmq.client.sync_consumers import PullConsumer, PushConsumer
from cometmq.client.sync_producer import Producer
from cometmq.model.message import Message
from cometmq.model.queue import MessageQueue

__all__ = [
    "Admin",
    "DeadLetter",
    "Message",
    "MessageQueue",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "ReceivedMessage",
    "RetryLater",
]
