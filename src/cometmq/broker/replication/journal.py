"""State that is not messages, in the log: what a replica set's master changes in its tables.

A broker's tables are JSON files (files/persistence.py).  Whoever changes a table has the answer
wait for its file (`when_saved`): topics, groups, queue locks, producers of numbers, accounts.  In a
replica set the master also writes the change into the topic `STATE_TOPIC`, and the file counts as
saved when every in-sync replica has that record.  So a change that was answered is known to every
broker that can be elected.  Consumer offsets and positions of deliveries go there once in a second.

::

    record   {"file": name, "epoch": mastership, "isWhole": bool, "patch": {...}}

A mastership, and each log file, begins with all of every file; after that come differences
(core/replication/json_patch.py).

A slave gathers the patches in ``config/cometmqState.json`` and leaves its files alone, which have
what it copies itself (`tables`).  When a broker is opened in either role, the patches go into the
files before these are read.  RocketMQ's brokers keep the topic like any other and write nothing
there: behind such a master the copied tables are newer, and the patches are dropped.

Accounts have passwords, and so has the topic: where signatures are checked only super users may
read it (server/access/needs.py).  A slave takes changed accounts over at once (`watch`), since it
checks requests too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from cometmq.codec.stored_message import decode_message
from cometmq.core.replication.json_patch import JsonObject, difference, patched, pieces
from cometmq.errors import StoreClosed, StoreError
from cometmq.model.names import STATE_TOPIC
from cometmq.net.env import Environment, WorkerPool
from cometmq.server.access.access import ACCOUNTS_FILE
from cometmq.store.base.disk import Disk, make_durable_directory
from cometmq.store.message_store import MessageStore

__all__ = ["JOURNALED_FILES", "StateFollower", "StateJournal"]

log = logging.getLogger("cometmq.broker")

JOURNALED_FILES: Final = frozenset(
    {
        "topics.json",
        "subscriptionGroup.json",
        "consumerOffset.json",
        "delayOffset.json",
        "consumerFilter.json",
        "cometmqQueueLocks.json",
        "cometmqSequences.json",
        "cometmqSkipped.json",
        "cometmqStaging.json",
        "cometmqSubscriptions.json",
        ACCOUNTS_FILE,
    }
)
STATE_FILE: Final = "cometmqState.json"
RECORD_BYTES_MAX: Final = 1 << 20
"""A record stays far below maxMessageSize, and one turn of the loop copies it."""
RETRY_S: Final = 0.1
"""Pause before a record that the store refuses is offered again: too few replicas are in sync, or
the disk is full."""
READ_COUNT: Final = 256
_HOST: Final = bytes(8)


class _StateRecord(msgspec.Struct, rename="camel"):
    file: str
    epoch: int
    is_whole: bool
    patch: JsonObject


class _Patches(msgspec.Struct, rename="camel"):
    """What is to be done to one file."""

    is_whole: bool = False
    patch: JsonObject = {}


class _State(msgspec.Struct, rename="camel"):
    """The content of ``cometmqState.json``: patches from records before queue offset `next`."""

    next: int = 0
    files: dict[str, _Patches] = {}


class StateJournal:
    """Writes the journal of one mastership."""

    def __init__(self, store: MessageStore, env: Environment, epoch: int) -> None:
        self._store = store
        self._env = env
        self._epoch = epoch
        self._is_stopped = False

    def file(self, name: str) -> _FileJournal | None:
        """Return the journal of one file; None for a file that says nothing to other brokers."""
        return _FileJournal(self, name, self._epoch) if name in JOURNALED_FILES else None

    @property
    def log_file(self) -> int:
        """The number of the log file that is written now."""
        return self._store.max_physical_offset // self._store.config.commit_log_file_bytes

    def stop(self) -> None:
        """Append no more; what waits for that has failed."""
        self._is_stopped = True

    def append(
        self,
        records: list[bytes],
        done: Callable[[int, StoreError | None], None],
        following: int = 0,
    ) -> None:
        """Append records in order; `done` hears when every in-sync replica has the last one, of
        the queue offset `following` it.

        A store that refuses is asked again until the journal is stopped.
        """
        store = self._store
        end = store.confirmed_offset
        now_ms = self._env.clock.now_ms()
        while records:
            try:
                result = store.put(
                    STATE_TOPIC, 0, records[0], b"",
                    born_ms=now_ms, born_host=_HOST, store_ms=now_ms,
                )  # fmt: skip
            except StoreError as error:
                if self._is_stopped or isinstance(error, StoreClosed):
                    done(0, error)
                else:
                    asyncio.get_running_loop().call_later(
                        RETRY_S, self.append, records, done, following
                    )
                return
            end, following = result.end_offset, result.queue_offset + 1
            del records[0]
        store.when_confirmed(
            end,
            lambda is_copied: done(following, None if is_copied else StoreClosed("it is stopped")),
        )


class _FileJournal:
    """Journals one file."""

    def __init__(self, journal: StateJournal, name: str, epoch: int) -> None:
        self._journal = journal
        self._name = name
        self._epoch = epoch
        self._before: JsonObject | None = None
        self._log_file = -1
        self.next = 0
        """The queue offset behind the last record that every in-sync replica has."""

    @property
    def is_behind(self) -> bool:
        """Whether the present log file lacks the file's content."""
        return self._before is not None and self._journal.log_file != self._log_file

    def append(self, records: list[bytes], done: Callable[[StoreError | None], None]) -> None:
        """See `StateJournal.append`."""

        def copied(following: int, failure: StoreError | None) -> None:
            self.next = max(self.next, following)
            done(failure)

        self._journal.append(records, copied)

    def changes(self, data: bytes) -> list[bytes]:
        """Return the records for a new content of the file.  For a worker, one call at a time."""
        after: JsonObject = msgspec.json.decode(data)
        log_file = self._journal.log_file
        is_whole = self._before is None or log_file != self._log_file
        patch = after if is_whole else difference(self._before or {}, after)
        self._before, self._log_file = after, log_file
        if not is_whole and not patch:
            return []
        return [
            msgspec.json.encode(
                _StateRecord(self._name, self._epoch, is_whole and number == 0, piece)
            )
            for number, piece in enumerate(pieces(patch, RECORD_BYTES_MAX))
        ]


class StateFollower:
    """Gathers what the journal says, and puts it into the files when a broker is opened.

    Its methods may block; `in_worker` has a worker call them.
    """

    def __init__(self, disk: Disk, folder: str, store: MessageStore) -> None:
        self._disk = disk
        self._folder = folder
        self._path = f"{folder}/{STATE_FILE}"
        self._store = store
        self._working: asyncio.Future[None] | None = None
        self._watchers: dict[str, Callable[[JsonObject], None]] = {}
        self._changed: dict[str, JsonObject] = {}
        """New contents of watched files, which their watchers have not heard of."""
        self._state = _State()
        if disk.exists(self._path):
            try:
                self._state = msgspec.json.decode(disk.read_bytes(self._path), type=_State)
            except msgspec.DecodeError as error:
                log.warning("%s is read again from the log: %s", self._path, error)
        self._state.next = min(self._state.next, store.end_of_queue(STATE_TOPIC, 0))

    async def in_worker(self, workers: WorkerPool, work: Callable[[], None]) -> None:
        """Have a worker call one of the methods, when its last call is done.

        Raises:
            CometError, OSError: of the method.
        """
        await self.settle()
        working: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(result: BaseException | None) -> None:
            if isinstance(result, BaseException):
                working.set_exception(result)
            else:
                working.set_result(None)

        self._working = working
        workers.submit(work, done)
        await asyncio.shield(working)

    async def settle(self) -> None:
        """Wait for what a worker does."""
        if self._working is not None:
            await asyncio.gather(self._working, return_exceptions=True)

    def watch(self, name: str, take: Callable[[JsonObject], None]) -> None:
        """Have `tell` call `take` with a file's new content when the master has changed it."""
        self._watchers[name] = take

    def tell(self) -> None:
        """Call those who watch a file that `follow` has found changed; on the loop."""
        changed, self._changed = self._changed, {}
        for name, content in changed.items():
            self._watchers[name](content)

    def follow(self) -> None:
        """Gather the records that readers see and that were not gathered, and save them."""
        store, start = self._store, self._state.next
        gathered: set[str] = set()
        while units := store.units(STATE_TOPIC, 0, self._state.next, READ_COUNT):
            for unit in units:
                raw = store.message_at(unit.physical_offset)
                if raw is not None:
                    record = msgspec.json.decode(decode_message(raw).body, type=_StateRecord)
                    self._take(record)
                    gathered.add(record.file)
                elif unit.physical_offset >= store.min_physical_offset:
                    return
                self._state.next += 1
        if self._state.next > start:
            self._save()
        for name in gathered & self._watchers.keys():
            content = self._content(name)
            if content is not None:
                self._changed[name] = content

    def skip(self) -> None:
        """Forget what was gathered: the tables that are copied from the master are newer."""
        end = self._store.max_queue_offset(STATE_TOPIC, 0)
        if self._state.files or self._state.next != end:
            self._state = _State(end)
            self._save()

    def put_into_files(self) -> None:
        """Change the files as the journal says.

        Raises:
            OSError: the disk does not take them.
        """
        for name in self._state.files:
            content = self._content(name)
            if content is not None:
                self._disk.write_atomic(
                    f"{self._folder}/{name}",
                    msgspec.json.encode(content),
                    is_private=name == ACCOUNTS_FILE,
                )
        if self._state.files:
            self._state = _State(self._state.next)
            self._save()

    def _content(self, name: str) -> JsonObject | None:
        """Return a file's content as the journal says; None where the file is damaged."""
        path, patches = f"{self._folder}/{name}", self._state.files[name]
        before: JsonObject = {}
        if not patches.is_whole and self._disk.exists(path):
            try:
                before = msgspec.json.decode(self._disk.read_bytes(path))
            except msgspec.DecodeError:
                # Its .bak is read, and what is patched here comes again with the next master.
                log.warning("%s is damaged, and is not changed as the master said", path)
                return None
        return patched(before, patches.patch)

    def mark(self, queue_offset: int) -> None:
        """On a master: note that the files have what the journal has below a queue offset."""
        if queue_offset > self._state.next:
            self._state = _State(queue_offset)
            self._save()

    def _take(self, record: _StateRecord) -> None:
        if record.file not in JOURNALED_FILES:
            # A later version's.
            return
        known = _Patches() if record.is_whole else self._state.files.get(record.file, _Patches())
        self._state.files[record.file] = _Patches(
            known.is_whole or record.is_whole,
            patched(known.patch, record.patch, keeps_removals=True),
        )

    def _save(self) -> None:
        make_durable_directory(self._disk, self._folder)
        self._disk.write_atomic(self._path, msgspec.json.encode(self._state), is_private=True)
