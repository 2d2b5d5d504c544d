"""Store directories with real records, of days and topics a test chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from cometmq.codec.java_hash import tags_code
from cometmq.codec.properties import encode_properties
from cometmq.store.base.config import StoreConfig
from cometmq.store.base.disk import RealDisk
from cometmq.store.message_store import MessageStore

DAY_MS = 86_400_000
#: 2013-01-01, when the demo's flights begin.
NEW_YEAR_MS = 1_356_998_400_000


class Inline:
    """A worker pool that works at once."""

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None] | None = None) -> None:
        """Do it."""
        result = work()
        if done is not None:
            done(result)


class Put(NamedTuple):
    """One message to be stored."""

    topic: str
    queue_id: int
    body: bytes
    store_ms: int
    tag: str | None = None
    key: str | None = None


def fill(root: Path, puts: Iterable[Put]) -> str:
    """Append messages to the store in ``root``, made where there is none; the path as text."""
    config = StoreConfig(root=str(root), commit_log_file_bytes=4 << 20)
    store = MessageStore(config, RealDisk(), Inline(), lambda: NEW_YEAR_MS)
    store.load()
    for put in puts:
        named = {"TAGS": put.tag, "KEYS": put.key}
        properties = {name: value for name, value in named.items() if value is not None}
        store.put(
            put.topic,
            put.queue_id,
            put.body,
            encode_properties(properties),
            tags_code=tags_code(put.tag) if put.tag else 0,
            store_ms=put.store_ms,
        )
    store.close()
    return str(root)


def some_days(
    count: int, *, topic: str = "Flights", queues: int = 3, start: int = 0, days: int = 2
) -> list[Put]:
    """``count`` messages over queues and days, in the order of time."""
    return [
        Put(
            topic,
            number % queues,
            b'{"number": %d, "carrier": "%s"}' % (number, (b"UA", b"AA")[number % 2]),
            NEW_YEAR_MS + number * days * DAY_MS // max(1, start + count),
            ("UA", None, "AA")[number % 3],
            f"key{number}" if number % 5 else None,
        )
        for number in range(start, start + count)
    ]
