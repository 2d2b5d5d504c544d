"""The name server's only durable state: small texts by namespace and key.

A worker writes the table to `kvConfig.json` after each change:

    {"configTable":{"ORDER_TOPIC_CONFIG":{"TopicTest":"broker-a:8;broker-b:8"}}}

A change is answered when the file has been replaced atomically.  Changes that come while a write
runs share the next one.  The version before stays beside the file as `.bak`, because a file from
another program may be cut off.  If neither can be read the start is refused, with the position of
the fault.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Final

import msgspec

from cometmq.errors import CometError, StoreCorrupt
from cometmq.net.env import WorkerPool
from cometmq.store.base.disk import Disk, make_durable_directory

__all__ = ["ORDER_TOPIC_NAMESPACE", "KvConfig"]

log = logging.getLogger("cometmq.namesrv")

ORDER_TOPIC_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"

Done = Callable[[Exception | None], None]


class _KvConfigFile(msgspec.Struct, rename="camel"):
    config_table: dict[str, dict[str, str]] = {}


class KvConfig:
    """Texts by namespace and key; `put` and `delete` report when they are durable."""

    def __init__(self, path: str, disk: Disk, workers: WorkerPool) -> None:
        self._path = path
        self._disk = disk
        self._workers = workers
        self._table: dict[str, dict[str, str]] = {}
        self._written: bytes | None = None
        self._writing: list[Done] = []
        self._waiting: list[Done] = []

    def load(self) -> None:
        """Read the file, or its `.bak`; a missing file is an empty table.  Blocks.

        Raises:
            StoreCorrupt: neither file can be read.
        """
        fault: StoreCorrupt | None = None
        for path in (self._path, self._path + ".bak"):
            if not self._disk.exists(path):
                continue
            data = self._disk.read_bytes(path)
            try:
                self._table = msgspec.json.decode(data, type=_KvConfigFile).config_table
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                log.warning("%s (%d bytes) cannot be read: %s", path, len(data), error)
                fault = fault or StoreCorrupt(
                    f"{path} ({len(data)} bytes) is not a KV configuration: {error}; "
                    "repair it, or remove it to start with an empty one"
                )
                continue
            if fault is not None:
                log.warning("KV configuration taken from %s instead", path)
            self._written = data
            return
        if fault is not None:
            raise fault

    def get(self, namespace: str, key: str) -> str | None:
        """Give a value, or None."""
        return self._table.get(namespace, {}).get(key)

    def table(self, namespace: str) -> dict[str, str] | None:
        """Give all keys and values of a namespace, or None if it never had one."""
        values = self._table.get(namespace)
        return None if values is None else dict(sorted(values.items()))

    def put(self, namespace: str, key: str, value: str, done: Done) -> None:
        """Set a value; calls `done(None)` when it is durable, or `done(error)`."""
        self._table.setdefault(namespace, {})[key] = value
        self._persist(done)

    def delete(self, namespace: str, key: str, done: Done) -> None:
        """Remove a value if there is one; calls `done` as `put` does."""
        self._table.get(namespace, {}).pop(key, None)
        self._persist(done)

    def _persist(self, done: Done) -> None:
        self._waiting.append(done)
        if not self._writing:
            self._write()

    def _write(self) -> None:
        self._writing, self._waiting = self._waiting, []
        data = msgspec.json.encode(_KvConfigFile(self._table), order="sorted")
        before = self._written
        disk, path = self._disk, self._path

        def work() -> None:
            make_durable_directory(disk, str(PurePosixPath(path).parent))
            if before is not None:
                disk.write_atomic(path + ".bak", before)
            disk.write_atomic(path, data)

        def written(result: BaseException | None) -> None:
            error: Exception | None = None
            if result is None:
                self._written = data
            else:
                log.error("%s could not be written: %s", path, result)
                error = CometError(f"{path} could not be written: {result}")
            finished, self._writing = self._writing, []
            if self._waiting:
                self._write()
            for done in finished:
                done(error)

        self._workers.submit(work, written)
