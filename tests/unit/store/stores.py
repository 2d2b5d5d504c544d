"""Small stores for tests: a simulated disk, a clock that stands still, workers on demand."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from cometmq.codec.stored_message import StoredMessage, decode_messages
from cometmq.store.base.config import StoreConfig
from cometmq.store.base.results import ColdRead, GetResult
from cometmq.store.message_store import MessageStore
from cometmq.testing.disk import SimDisk

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.store.base.disk import Disk
    from cometmq.store.base.results import RecoveryReport

HOST = b"\x0a\x00\x00\x07\x00\x00*\x9f"
START_MS = 1_700_000_000_000


class InlineWorkers:
    """Does the work at once, in the caller."""

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None] | None = None) -> None:
        try:
            result = work()
        except Exception as error:
            result = error
        if done is not None:
            done(result)


class HeldWorkers:
    """Keeps work until `run` is called: what is under way stays under way."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any], None] | None]] = []

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None] | None = None) -> None:
        self.jobs.append((work, done))

    def run(self) -> int:
        """Do what waits now (not what that submits); how much it was."""
        jobs, self.jobs = self.jobs, []
        for work, done in jobs:
            InlineWorkers().submit(work, done)
        return len(jobs)


class Rig:
    """A store with everything it is given."""

    def __init__(self, disk: Disk | None = None, *, workers: Any = None, **config: Any) -> None:
        self.now_ms = START_MS
        self.disk: Any = disk or SimDisk(random.Random(1), lambda: self.now_ms)
        self.workers = workers or InlineWorkers()
        settings: dict[str, Any] = {
            "root": "/store",
            "commit_log_file_bytes": 65_536,
            "consume_queue_file_bytes": 2_000,
            "index_slot_count": 50,
            "index_entry_count": 400,
            "window_bytes": 16_384,
            "file_reserved_hours": 1_000_000,
        }
        self.config = StoreConfig(**{**settings, **config})
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.report: RecoveryReport
        self.open()

    def open(self) -> MessageStore:
        """A new life on the same disk."""
        self.timers = []
        self.store = MessageStore(self.config, self.disk, self.workers, lambda: self.now_ms)
        self.report = self.store.load()
        self.store.start(lambda seconds, callback: self.timers.append((seconds, callback)))
        return self.store

    def reopen(self) -> MessageStore:
        """Close in peace, open again."""
        self.store.close()
        return self.open()

    def kill(self) -> MessageStore:
        """The process dies and a new one opens the store."""
        self.disk.kill()
        return self.open()

    def tick(self, ms: int = 100) -> None:
        """Let time pass and the timers run."""
        self.now_ms += ms
        due, self.timers = self.timers, []
        for _, callback in due:
            callback()

    def put(self, topic: str = "T", queue_id: int = 0, body: bytes = b"body", **more: Any) -> Any:
        """Put one message."""
        properties = more.pop("properties", b"")
        more.setdefault("born_host", HOST)
        more.setdefault("store_ms", self.now_ms)
        return self.store.put(topic, queue_id, body, properties, **more)

    def get(self, topic: str, queue_id: int, queue_offset: int, count: int = 32) -> GetResult:
        """Get, waiting for cold bytes."""
        found = self.store.get(topic, queue_id, queue_offset, count)
        if isinstance(found, ColdRead):
            found.warm()
            found = self.store.get(topic, queue_id, queue_offset, count, allow_cold=True)
        assert isinstance(found, GetResult)
        return found

    def read(self, topic: str = "T", queue_id: int = 0) -> list[StoredMessage]:
        """All messages of a queue."""
        offset = self.store.min_queue_offset(topic, queue_id)
        messages: list[StoredMessage] = []
        while offset < self.store.max_queue_offset(topic, queue_id):
            found = self.get(topic, queue_id, offset)
            messages += decode_messages(b"".join(found.chunks))
            assert found.next_queue_offset > offset
            offset = found.next_queue_offset
        return messages

    def bodies(self, topic: str = "T", queue_id: int = 0) -> list[bytes]:
        """Bodies of all messages of a queue."""
        return [message.body for message in self.read(topic, queue_id)]
