"""A relay in a process of its own, which dies at a named step: see ``test_outbox.py``.

python relay_worker.py NAME_SERVER URL STEP
"""

import asyncio
import os
import signal
import sys
from typing import Any

from sqlalchemy.ext.asyncio import create_async_engine

import cometmq
from cometmq.patterns.outbox import Outbox, Relay

_, NAME_SERVER, URL, STEP = sys.argv


def die_at(name: str) -> None:
    if name == STEP:
        print("hit", name, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


async def main() -> None:
    async with cometmq.Producer("relay", name_server=NAME_SERVER) as producer:

        class Dying:
            async def send(self, message: cometmq.Message) -> Any:
                die_at("before send")
                result = await producer.send(message)
                die_at("after send")
                return result

        outbox = Outbox(create_async_engine(URL))
        relay = Relay(outbox, Dying(), lease_ms=1_000, poll_ms=100)
        settle = relay._settle

        def dying_settle(*arguments: Any) -> None:
            settle(*arguments)
            die_at("before commit of the delete")

        relay._settle = dying_settle  # type: ignore[assignment]
        async with relay:
            count = 0
            while True:
                await asyncio.sleep(0.01)
                if relay.sent_count > count:
                    count = relay.sent_count
                    die_at("after delete")
                    print("sent", count, flush=True)


asyncio.run(main())
