"""A broker for FastStream: subscribers, publishers, routers and a test broker over RocketMQ.

    from faststream import FastStream
    from cometmq.integrations.faststream import CometBroker

    broker = CometBroker("127.0.0.1:9876")
    app = FastStream(broker)

    @broker.subscriber("Orders", group="billing")
    async def bill(order: Order) -> None: ...

Needs the extra ``faststream``.
"""

from cometmq.extras import require

require("faststream", "cometmq.integrations.faststream")

from cometmq.integrations.faststream.annotations import CometMessage  # noqa: E402
from cometmq.integrations.faststream.broker import CometBroker  # noqa: E402
from cometmq.integrations.faststream.response import (  # noqa: E402
    CometPublishCommand,
    CometResponse,
)
from cometmq.integrations.faststream.router import (  # noqa: E402
    CometPublisher,
    CometRoute,
    CometRouter,
)
from cometmq.integrations.faststream.testing import TestCometBroker  # noqa: E402

__all__ = [
    "CometBroker",
    "CometMessage",
    "CometPublishCommand",
    "CometPublisher",
    "CometResponse",
    "CometRoute",
    "CometRouter",
    "TestCometBroker",
]
