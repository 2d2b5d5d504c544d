"""Messages without a broker, engines of SQLite, and a clock that a test moves."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from cometmq import MessageQueue, ReceivedMessage
from cometmq.client.message.message import split_messages
from cometmq.codec.ids import encode_host
from cometmq.codec.properties import encode_properties
from cometmq.codec.stored_message import encode_message

HOST = encode_host("127.0.0.1:10911")
QUEUE = MessageQueue("t", "broker-a", 0)
_offsets = count()


class HandClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


def message_of(
    name: str, *, tries: int = 0, keys: str = "", queue: MessageQueue = QUEUE, body: bytes = b""
) -> ReceivedMessage:
    """A message as a consumer gets it, with the message id ``name``."""
    properties = {"UNIQ_KEY": name} | ({"KEYS": keys} if keys else {})
    record = encode_message(
        queue.topic,
        body,
        encode_properties(properties),
        queue_id=queue.queue_id,
        queue_offset=next(_offsets),
        physical_offset=0,
        born_host=HOST,
        store_host=HOST,
        reconsume_times=tries,
    )
    return split_messages(record, queue)[0]


@contextmanager
def plain_engine(path: Path, name: str = "plain.db") -> Iterator[Engine]:
    """SQLite in a file."""
    engine = create_engine(f"sqlite:///{path / name}")
    try:
        yield engine
    finally:
        engine.dispose()


def async_engine(path: Path, **options: Any) -> AsyncEngine:
    """SQLite in a file, for asyncio."""
    return create_async_engine(f"sqlite+aiosqlite:///{path / 'async.db'}", **options)
