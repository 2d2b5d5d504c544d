"""The offset stores of a consumer: the brokers, or a local file for broadcasting.

A broadcasting consumer's file has the path of Java's, ``~/.rocketmq_offsets/<clientId>/<group>/
offsets.json``, and names the group and the topics as brokers do.  It is replaced atomically, and
the previous version stays as ``.bak``.
"""

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from cometmq.client.base.calls import BrokerCalls
from cometmq.client.base.namespace import NO_NAMESPACE, Namespace
from cometmq.client.base.routes import RouteBook
from cometmq.core.consume.offset_file import decode_offset_file, encode_offset_file
from cometmq.errors import CodecError, CometError, NoRoute
from cometmq.model import MessageQueue
from cometmq.model.offsets import ConsumerOffset

__all__ = ["BrokerOffsets", "Files", "LocalOffsets", "OffsetStore"]

log = logging.getLogger("cometmq.client")
FOLDER: Final = ".rocketmq_offsets"


class OffsetStore(Protocol):
    """Offsets of one group."""

    async def read(self, queue: MessageQueue) -> ConsumerOffset | None:
        """The stored offset, or None without one.

        Raises:
            CometError: the offset could not be read.
        """
        ...

    async def write(self, offsets: Mapping[MessageQueue, ConsumerOffset], *, wait: bool) -> None:
        """Store offsets; with ``wait`` returns when they are safe.

        Raises:
            CometError: with ``wait``, an offset was not stored.
        """
        ...


class BrokerOffsets:
    """Offsets at the brokers that own the queues (clustering)."""

    def __init__(self, group: str, calls: BrokerCalls, routes: RouteBook) -> None:
        self._group = group
        self._calls = calls
        self._routes = routes

    def _address(self, queue: MessageQueue) -> str:
        address = self._routes.any_address(queue.broker_name)
        if address is None:
            raise NoRoute(f"no address is known for the broker {queue.broker_name} of {queue}")
        return address

    async def read(self, queue: MessageQueue) -> ConsumerOffset | None:
        """The group's offset at the broker."""
        return await self._calls.consumer_offset(self._address(queue), self._group, queue)

    async def write(self, offsets: Mapping[MessageQueue, ConsumerOffset], *, wait: bool) -> None:
        """Commit each offset; a failing queue does not keep the others from being committed."""
        fault: CometError | None = None
        outages = self._routes.outages
        for queue, consumer_offset in offsets.items():
            try:
                await self._calls.commit(
                    self._address(queue), self._group, queue, consumer_offset, wait=wait
                )
            except CometError as error:
                outages.failed(f"commits of {queue}", f"offset {consumer_offset}: {error}")
                fault = error
            else:
                outages.ended(f"commits of {queue}")
        if wait and fault is not None:
            raise fault


class Files(Protocol):
    """The file system calls of an offset store; the simulator has its own implementation."""

    def makedirs(self, path: str) -> None:
        """Create a folder and its parents, unless they exist."""
        ...

    def sync_dir(self, path: str) -> None:
        """Sync the entries of a folder to stable storage."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""
        ...

    def is_dir(self, path: str) -> bool:
        """Whether there is such a folder."""
        ...

    def read_bytes(self, path: str) -> bytes:
        """Whole content; raises FileNotFoundError."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file, replacing the target."""
        ...

    def write_atomic(self, path: str, data: bytes) -> None:
        """Replace a file atomically; its content is synced when the call returns."""
        ...


class _RealFiles:
    """The files of this machine."""

    def makedirs(self, path: str) -> None:
        Path(path).mkdir(parents=True, exist_ok=True)

    def sync_dir(self, path: str) -> None:
        if os.name == "nt":
            return  # it opens no folders
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def is_dir(self, path: str) -> bool:
        return Path(path).is_dir()

    def read_bytes(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def rename(self, source: str, target: str) -> None:
        Path(source).replace(target)

    def write_atomic(self, path: str, data: bytes) -> None:
        fresh = Path(path).with_suffix(".json.tmp")
        with fresh.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)


class LocalOffsets:
    """Offsets in a file of this machine (broadcasting)."""

    def __init__(
        self,
        client_id: str,
        group: str,
        folder: str | None = None,
        files: Files | None = None,
        namespace: Namespace = NO_NAMESPACE,
    ) -> None:
        base = Path(folder) if folder is not None else Path.home() / FOLDER
        self.path = base / client_id / namespace.wrap(group) / "offsets.json"
        self._wrap = namespace.wrap_queue
        self._base = base
        self._is_named = False
        """Whether the entries of the folders are synced."""
        self._files = files or _RealFiles()
        self._offsets: dict[MessageQueue, ConsumerOffset] | None = None
        # Two threads that save at once would race for one file, and the older text might win.
        self._turn = asyncio.Lock()

    def _load(self) -> dict[MessageQueue, ConsumerOffset]:
        """The file's offsets; a damaged file falls back to the version before."""
        for path in (self.path, self.path.with_suffix(".json.bak")):
            try:
                return decode_offset_file(self._files.read_bytes(str(path)))
            except FileNotFoundError:
                continue
            except (CodecError, OSError) as error:
                log.warning("the offset file %s cannot be read: %s", path, error)
        return {}

    async def _loaded(self) -> dict[MessageQueue, ConsumerOffset]:
        """The present offsets; the file is read once.  The caller owns the lock."""
        if self._offsets is None:
            self._offsets = await asyncio.to_thread(self._load)
        return self._offsets

    async def read(self, queue: MessageQueue) -> ConsumerOffset | None:
        """The offset in the file."""
        async with self._turn:
            return (await self._loaded()).get(self._wrap(queue))

    async def write(self, offsets: Mapping[MessageQueue, ConsumerOffset], *, wait: bool) -> None:
        """Merge the offsets into the file; it holds them, synced, when this returns.

        Raises:
            CometError: with ``wait``, the file was not written; without, the log says so.
        """
        async with self._turn:
            stored = await self._loaded()
            stored.update({self._wrap(queue): offset for queue, offset in offsets.items()})
            try:
                await asyncio.to_thread(self._save, encode_offset_file(stored).encode())
            except (OSError, CometError) as error:
                log.warning("the offset file %s was not written: %s", self.path, error)
                if wait:
                    raise CometError(
                        f"the offset file {self.path} was not written: {error}"
                    ) from error

    def _save(self, text: bytes) -> None:
        path, folder = str(self.path), self.path.parent
        unsynced = {folder} if self._is_named else {folder, folder.parent, self._base}
        for directory in (folder, *folder.parents):
            if self._files.is_dir(str(directory)):
                break
            unsynced.add(directory.parent)
        self._files.makedirs(str(folder))
        if self._files.exists(path):
            self._files.rename(path, str(self.path.with_suffix(".json.bak")))
        self._files.write_atomic(path, text)
        # A power cut may undo a rename, or remove a new folder with all its synced files.
        for directory in sorted(unsynced):
            self._files.sync_dir(str(directory))
        self._is_named = True
