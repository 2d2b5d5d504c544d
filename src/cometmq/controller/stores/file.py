"""Documents in one local file: for one controller on one machine.

::

    controllerStorePath/lock        the running controller's lock
    controllerStorePath/sets.json   {"revision": n, "documents": {name: [revision, base64]}}

The file is written anew with each change, beside its name, synced, and renamed.

It protects from a killed process and from a power failure.  It does not protect from the loss of
the machine or its disk, and while the controller is down no master is replaced.  Brokers go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from cometmq.controller.stores.base import StoredDocument
from cometmq.errors import ControllerError, DocumentChanged, LeadershipLost, StoreCorrupt
from cometmq.net.env import WorkerPool
from cometmq.store.base.disk import Disk, StoreLock, make_durable_directory

__all__ = ["FileStore"]

T = TypeVar("T")

FILE: Final = "sets.json"


class _Content(msgspec.Struct):
    """The file: the last revision given, and each document with its own."""

    revision: int
    documents: dict[str, tuple[int, bytes]]


class FileStore:
    """The store, and its only leadership.

    Args:
        folder: controllerStorePath; made where it is missing.
    """

    is_shared = False

    def __init__(self, folder: str, disk: Disk, workers: WorkerPool) -> None:
        self._folder = folder
        self._disk = disk
        self._workers = workers
        self._lock: StoreLock | None = None
        self._address: str | None = None
        self._content = _Content(0, {})
        self._end = asyncio.Event()

    async def open(self) -> None:
        """Lock the folder and read the file.

        Raises:
            StoreLocked: another controller runs in this folder.
            StoreCorrupt: the file is no such file.
        """
        await self._work(self._open)

    async def lead(self, address: str) -> FileStore:
        """Return the leadership, which lasts until the store is closed or resigned from."""
        if self._lock is None:
            await self._work(self._open)
        self._address = address
        self._end.clear()
        return self

    async def leader(self) -> str | None:
        """Return the own address while this controller leads."""
        return self._address

    async def close(self) -> None:
        """Unlock the folder."""
        await self.resign()

    async def read_all(self) -> dict[str, StoredDocument]:
        """Return the documents of the file."""
        return {
            name: StoredDocument(data, revision)
            for name, (revision, data) in self._content.documents.items()
        }

    async def swap(self, name: str, revision: int, data: bytes | None) -> int:
        """Write the file with a changed document.

        Raises:
            DocumentChanged: the document has another revision.
            LeadershipLost: the store is closed.
            ControllerError: the file cannot be written.
        """
        if self._lock is None:
            raise LeadershipLost(f"{self._folder} is not locked by this controller any more")
        present, _ = self._content.documents.get(name, (0, b""))
        if present != revision:
            raise DocumentChanged(f"{name} has revision {present}, not {revision}")
        documents = dict(self._content.documents)
        grown = self._content.revision + 1
        documents.pop(name, None)
        if data is not None:
            documents[name] = grown, data
        content = _Content(grown, documents)
        try:
            await self._work(lambda: self._write(content))
        except OSError as error:
            raise ControllerError(f"{self._folder}/{FILE} was not written: {error}") from error
        self._content = content
        return grown

    async def ended(self) -> None:
        """Return when the store is closed."""
        await self._end.wait()

    async def resign(self) -> None:
        """Unlock the folder."""
        lock, self._lock, self._address = self._lock, None, None
        if lock is not None:
            lock.release()
        self._end.set()

    def _open(self) -> None:
        disk, folder = self._disk, self._folder
        make_durable_directory(disk, folder)
        self._lock = disk.lock(f"{folder}/lock")
        path = f"{folder}/{FILE}"
        if disk.exists(path):
            try:
                self._content = msgspec.json.decode(disk.read_bytes(path), type=_Content)
            except msgspec.MsgspecError as error:
                self._lock.release()
                self._lock = None
                raise StoreCorrupt(
                    f"{path} is not a controller's file: {error}; restore it from a copy, or remove"
                    " it and register the brokers anew (their messages stay)"
                ) from error

    def _write(self, content: _Content) -> None:
        self._disk.write_atomic(f"{self._folder}/{FILE}", msgspec.json.encode(content))

    async def _work(self, work: Callable[[], T]) -> T:
        """Run blocking work in a worker."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def finish(result: T | BaseException) -> None:
            if done.done():
                return
            if isinstance(result, BaseException):
                done.set_exception(result)
            else:
                done.set_result(result)

        self._workers.submit(work, finish)
        return await done
