"""A consumer in a process of its own, which dies at a named step: see ``test_kills.py``.

    python worker.py NAME_SERVER URL KIND STEP

It prints ``hit STEP`` before it dies, and ``handled`` for each message that is done.
"""

import asyncio
import os
import signal
import sys
from functools import partial
from typing import Any

from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.orm import Session, sessionmaker

import cometmq
from cometmq.patterns.idempotent import RedisClaims, SqlClaims, exactly_once, idempotent, step

_, NAME_SERVER, URL, REDIS_URL, KIND, STEP = sys.argv
ADD = text("insert into effects (kind, name) values (:kind, :name)")


def die_at(name: str) -> None:
    if name == STEP:
        print("hit", name, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def dying(store: Any) -> Any:
    """A store that dies before and after each operation."""
    for name in ("claim", "finish", "release", "save_step"):
        setattr(store, name, partial(call, getattr(store, name), name))
    return store


def call(method: Any, name: str, *arguments: Any) -> Any:
    die_at(f"before {name}")
    value = method(*arguments)
    die_at(f"after {name}")
    return value


def effect(engine: Engine, name: str) -> None:
    with engine.begin() as connection:
        connection.execute(ADD, {"kind": KIND, "name": name})


def handler_of(engine: Engine) -> Any:
    if KIND == "transaction":
        event.listen(engine, "commit", lambda connection: die_at("before commit"))

        @exactly_once(sessionmaker(engine), group=KIND)
        def handle(message: cometmq.ReceivedMessage, session: Session) -> None:
            die_at("before effect")
            session.execute(ADD, {"kind": KIND, "name": message.body.decode()})
            die_at("after effect")

        def watched(message: cometmq.ReceivedMessage) -> Any:
            answer = handle(message)
            die_at("after commit")
            return answer

        return watched

    def work(message: cometmq.ReceivedMessage) -> None:
        die_at("before effect")
        step("effect", lambda: effect(engine, message.body.decode()))
        die_at("after effect")

    store: Any = SqlClaims(engine)
    if KIND == "redis":
        import redis

        store = RedisClaims(redis.Redis.from_url(REDIS_URL))
    return idempotent(dying(store), group=KIND, expire_ms=1_000)(work)


async def main() -> None:
    handle = handler_of(create_engine(URL))

    def watched(message: cometmq.ReceivedMessage) -> Any:
        answer = handle(message)
        if answer is None:
            print("handled", message.body.decode(), flush=True)
        return answer

    async with cometmq.PushConsumer(
        KIND, {"t": "*"}, watched, name_server=NAME_SERVER, consume_from="first", concurrency=1
    ):
        await asyncio.Event().wait()


asyncio.run(main())
