"""A consumer in order with a `Fence`, in a process of its own: see ``test_fence.py``.

    python fence_worker.py NAME_SERVER URL LIVES NAME HOW STEP

Its locks live `LIVES` times shorter than usual.  At the named step it prints ``hit STEP`` and kills
itself, or stops until somebody wakes it.  It prints ``handled BODY`` for each message that it has
committed, and ``stale BODY`` for each one whose queue another member has.  Its keys differ from
those of other workers, so that nothing but the fence keeps it from repeating what another one has
committed.
"""

import asyncio
import signal
import sys
import threading
from functools import partial
from typing import Any

from sqlalchemy import create_engine, event, text
from sqlalchemy.orm import Session, sessionmaker

import cometmq
from cometmq.patterns.idempotent import Fence, exactly_once
from cometmq.testing.simulate.lives import shorter_lives

_, NAME_SERVER, URL, LIVES, NAME, HOW, STEP = sys.argv
ADD = text("insert into effects (worker, name) values (:worker, :name)")
SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP, "unfenced": signal.SIGSTOP}
hit = False


def step(name: str) -> None:
    global hit
    if name == STEP and not hit:
        hit = True
        print("hit", name, flush=True)
        # To this thread: one to the process may let it run on until another thread takes it.
        signal.pthread_kill(threading.get_ident(), SIGNALS[HOW])


def around(name: str, method: Any, *arguments: Any) -> Any:
    step(f"before {name}")
    value = method(*arguments)
    step(f"after {name}")
    return value


async def main() -> None:
    engine = create_engine(URL)
    fence = Fence(engine, "g")
    for name in ("_raise_all", "check"):
        setattr(fence, name, partial(around, name.strip("_"), getattr(fence, name)))
    event.listen(engine, "commit", lambda connection: step("before commit"))

    @exactly_once(
        sessionmaker(engine),
        group="g",
        key=lambda message: f"{message.message_id} {NAME}",
        fence=None if HOW == "unfenced" else fence,
    )
    def handle(message: cometmq.ReceivedMessage, session: Session) -> None:
        step("before effect")
        session.execute(ADD, {"worker": NAME, "name": message.body.decode()})

    def watched(message: cometmq.ReceivedMessage) -> Any:
        try:
            answer = handle(message)
        except cometmq.RetryLater as error:
            what = "stale" if "another member" in str(error) else "raised"
            print(what, message.body.decode(), flush=True)
            raise
        print("handled", message.body.decode(), flush=True)
        return answer

    async with cometmq.PushConsumer(
        "g",
        {"t": "*"},
        watched,
        name_server=NAME_SERVER,
        instance_name=NAME,
        order="queue",
        consume_from="first",
        concurrency=1,
        # A raise in another thread would stop with the process, and keep its lock in the database.
        rebalance_listener=fence.rebalanced if HOW == "killed" else None,
    ):
        await asyncio.Event().wait()


with shorter_lives(int(LIVES)):
    asyncio.run(main())
