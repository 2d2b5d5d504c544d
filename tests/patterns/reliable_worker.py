"""A program that prepares, operates and confirms, and dies at a named step: ``test_reliable.py``.

python reliable_worker.py URL NAME_SERVER STEP
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from sqlalchemy import create_engine, text

import cometmq
from cometmq.patterns.outbox import Outbox, Relay
from cometmq.patterns.reliable import ReliableMessages

_, URL, NAME_SERVER, STEP = sys.argv
engine = create_engine(URL)


def die_at(name: str) -> None:
    if name == STEP:
        print("hit", name, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def dying(reliable: ReliableMessages, name: str) -> None:
    """Die before and after the commit of a decision."""
    original: Callable[..., Any] = getattr(reliable, name)

    def decide(*arguments: Any) -> Any:
        die_at(f"before {name}")
        value = original(*arguments)
        die_at(f"after {name}")
        return value

    setattr(reliable, name, decide)


def check(message: cometmq.Message) -> bool:
    die_at("in the check")
    query = text("select count(*) from charged where name = :name")
    with engine.begin() as connection:
        return bool(connection.scalar(query, {"name": message.keys[0]}))


async def main() -> None:
    outbox = Outbox(engine)
    reliable = ReliableMessages(outbox, check, first_check_ms=50, pauses_ms=(200,), poll_ms=20)
    for name in ("prepare", "confirm", "_confirm", "drop", "_drop"):
        dying(reliable, name)
    if STEP != "-":
        for name in ("charged", "refused"):
            row = reliable.prepare(cometmq.Message("Charged", name.encode(), keys=(name,)))
            if name == "refused":
                reliable.drop(row)
                break
            die_at("before the operation")
            with engine.begin() as connection:
                connection.execute(text("insert into charged values (:name)"), {"name": name})
            die_at("after the operation")
            if STEP in ("in the check", "before _confirm", "after _confirm"):
                continue  # the check confirms
            reliable.confirm(row)
    async with (
        cometmq.Producer("charge", name_server=NAME_SERVER) as producer,
        Relay(outbox, producer, lease_ms=500, poll_ms=20, keep_ms=10**9),
        reliable,
    ):
        while True:
            await asyncio.sleep(0.02)
            status = outbox.status()
            if not status.prepared and not status.waiting:
                break
    print("decided", flush=True)


asyncio.run(main())
