"""Where a consumer's offsets are kept: at the brokers, or in a local file for broadcasting.

Job: read, remember and store offsets of queues.
Must not: decide what may be committed; `ProcessQueue` does.

A broadcasting consumer's file lies where Java's does, ``~/.rocketmq_offsets/<clientId>/<group>/
offsets.json``, and is replaced atomically with the version before kept as ``.bak``.
"""

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from cometmq.client.calls import BrokerCalls
from cometmq.client.routes import RouteBook
from cometmq.core.offset_file import decode_offset_file, encode_offset_file
from cometmq.errors import CodecError, CometError, NoRoute
from cometmq.model import MessageQueue

__all__ = ["BrokerOffsets", "LocalOffsets", "OffsetStore"]

log = logging.getLogger("cometmq.client")
FOLDER: Final = ".rocketmq_offsets"


class OffsetStore(Protocol):
    """Offsets of one group."""

    async def read(self, queue: MessageQueue) -> int | None:
        """The stored offset, or None where there is none; errors are raised, not guessed."""
        ...

    async def write(self, offsets: Mapping[MessageQueue, int], *, wait: bool) -> None:
        """Store offsets; with ``wait`` only returns when they are safe, or raises."""
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

    async def read(self, queue: MessageQueue) -> int | None:
        """The group's offset at the broker."""
        return await self._calls.consumer_offset(self._address(queue), self._group, queue)

    async def write(self, offsets: Mapping[MessageQueue, int], *, wait: bool) -> None:
        """Commit each offset; a failing queue does not keep the others from being committed."""
        fault: CometError | None = None
        for queue, consumer_offset in offsets.items():
            try:
                await self._calls.commit(
                    self._address(queue), self._group, queue, consumer_offset, wait=wait
                )
            except CometError as error:
                log.warning("offset %d of %s was not committed: %s", consumer_offset, queue, error)
                fault = error
        if wait and fault is not None:
            raise fault


class LocalOffsets:
    """Offsets in a file of this machine (broadcasting)."""

    def __init__(self, client_id: str, group: str, folder: str | None = None) -> None:
        base = Path(folder) if folder is not None else Path.home() / FOLDER
        self.path = base / client_id / group / "offsets.json"
        self._offsets: dict[MessageQueue, int] | None = None

    def _load(self) -> dict[MessageQueue, int]:
        """The file's offsets; a damaged file falls back to the version before."""
        for path in (self.path, self.path.with_suffix(".json.bak")):
            try:
                return decode_offset_file(path.read_bytes())
            except FileNotFoundError:
                continue
            except (CodecError, OSError) as error:
                log.warning("the offset file %s cannot be read: %s", path, error)
        return {}

    async def read(self, queue: MessageQueue) -> int | None:
        """The offset in the file."""
        if self._offsets is None:
            self._offsets = await asyncio.to_thread(self._load)
        return self._offsets.get(queue)

    async def write(self, offsets: Mapping[MessageQueue, int], *, wait: bool) -> None:
        """Merge the offsets into the file."""
        if self._offsets is None:
            self._offsets = await asyncio.to_thread(self._load)
        self._offsets.update(offsets)
        text = encode_offset_file(self._offsets)
        try:
            await asyncio.to_thread(self._save, text)
        except OSError as error:
            log.warning("the offset file %s was not written: %s", self.path, error)
            if wait:
                raise CometError(f"the offset file {self.path} was not written: {error}") from error

    def _save(self, text: str) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".json.tmp")
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if self.path.exists():
            self.path.replace(self.path.with_suffix(".json.bak"))
        fresh.replace(self.path)
