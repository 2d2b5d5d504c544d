"""Bugs planted by hand: each is the product with one function changed while a block runs.

No plant is in the product: a plant replaces what a class has under a name, and puts it back.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest import mock

import msgspec
from sqlalchemy import delete, update

import cometmq.broker.files.persistence as persistence_module
import cometmq.broker.pull.offset as offset_module
import cometmq.broker.pull.pull as pull_module
import cometmq.broker.pull.pull_plans as pull_plans_module
import cometmq.client.message.checks as checks_module
import cometmq.core.retry.retry as retry_module
import cometmq.patterns.idempotent.redis as redis_module
import cometmq.patterns.idempotent.transaction as transaction_module
import cometmq.patterns.outbox.relay as relay_module
import cometmq.store.append.appender as appender_module
import cometmq.store.offline.verify as verify_module
import cometmq.store.recovery.log_scan as log_scan_module
import cometmq.store.recovery.recovery as recovery_module
from cometmq.broker.backlog.copying import BacklogCopier
from cometmq.broker.base.state import answer
from cometmq.broker.clients.heartbeats import ClientProcessor
from cometmq.broker.clients.send_back import SendBackProcessor
from cometmq.broker.delay.levels.schedule import ScheduleService
from cometmq.broker.delay.wheel.recall import RecallProcessor
from cometmq.broker.delay.wheel.timed_send import TimedKind
from cometmq.broker.extensions.sequences import SequencedSends
from cometmq.broker.extensions.why import WhyProcessor
from cometmq.broker.pull.hold import PullHold
from cometmq.broker.registration import RegistrationService
from cometmq.broker.transaction.service import TransactionService
from cometmq.client.consumer.group.group_consumer import GroupConsumer
from cometmq.client.consumer.orderly_consumer import OrderlyConsumer
from cometmq.client.extensions.parking.parking import Parking
from cometmq.client.handling.lanes import Lanes
from cometmq.client.producer.request_reply import OpenRequests
from cometmq.client.producer.sender import Sender
from cometmq.client.queue.locks import QueueLockKeeper
from cometmq.client.queue.offsets import LocalOffsets
from cometmq.client.queue.pull_loop import PullLoop
from cometmq.core.consume.process_queue import ProcessQueue
from cometmq.core.delay.levels import DelayLevels
from cometmq.core.extensions.growing import ALL_MOVED, QueueDrain
from cometmq.core.extensions.producer_sequences import ProducerSequences
from cometmq.core.group.consumer_group import ConsumerGroups
from cometmq.core.group.consumer_offsets import ConsumerOffsetTable
from cometmq.core.group.filter_shares import FilterShares
from cometmq.core.group.queue_locks import QueueLocks
from cometmq.core.group.skipped_ranges import SkippedRanges
from cometmq.errors import StoreFailed
from cometmq.gateway.gateway import DelayGateway
from cometmq.patterns.idempotent import Fence, RedisClaims, SqlClaims
from cometmq.patterns.idempotent.claims import Busy
from cometmq.patterns.idempotent.fence import StaleMember
from cometmq.patterns.outbox import Relay
from cometmq.patterns.outbox.table import OUTBOX, SHARD_COUNT
from cometmq.patterns.reliable import ReliableMessages
from cometmq.patterns.saga import Sagas, TccBranch
from cometmq.patterns.saga.table import SAGAS
from cometmq.server.config_file import ConfigFile
from cometmq.store.append.appender import Appender
from cometmq.store.base.results import PutResult
from cometmq.store.index.service import IndexService
from cometmq.store.log.flush import Flusher
from cometmq.store.log.reader import LogReader
from cometmq.store.message_store import MessageStore
from cometmq.store.queue.search import QueueSearch
from cometmq.store.recovery.log_scan import LogScan
from cometmq.store.retention.retention import Retention
from cometmq.store.timer.book import TimerBook
from cometmq.wire.extensions.why import PullOutcome

__all__ = ["PLANTS", "Plant"]

Make = Callable[[Any], Any]


@dataclass(frozen=True)
class Plant:
    """A bug: what holds a name, the name, and what makes the wrong one of the right one."""

    name: str
    changes: tuple[tuple[Any, str, Make], ...]
    kind: str = ""
    """The only kind of message that runs its code; "" for a plant that more than one runs."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The bug is in the product while the block runs."""
        patches = [
            mock.patch.object(holder, name, make(vars(holder)[name]))
            for holder, name, make in self.changes
        ]
        for patch in patches:
            patch.start()
        try:
            yield
        finally:
            for patch in reversed(patches):
                patch.stop()

    def __str__(self) -> str:
        return self.name


def _drop(original: Any) -> Any:
    """Nothing is done."""
    return lambda self, *arguments, **named: None


def _swapped(original: Any) -> Any:
    def pack_units(*arguments: Any) -> bytes:
        units: bytes = original(*arguments)
        return units[20:40] + units[:20] + units[40:] if len(units) >= 40 else units

    return pack_units


def _without_hold(original: Any) -> Any:
    def hold_queue(self: MessageStore, topic: str, queue_id: int, limit: int | None = None) -> int:
        held: int = original(self, topic, queue_id, limit)
        self.release_queue(topic, queue_id)
        return held

    return hold_queue


def _early(original: Any) -> Any:
    def due_in_ms(self: DelayLevels, level: int, deliver_time_ms: int, now_ms: int) -> int:
        wait_ms: int = original(self, level, deliver_time_ms, now_ms)
        return wait_ms - 40

    return due_in_ms


def _short_batch(original: Any) -> Any:
    def put_batch(self: Appender, topic: str, queue_id: int, items: Any, **how: Any) -> PutResult:
        result: PutResult = original(self, topic, queue_id, items[:-1] or items, **how)
        missing = len(items) - len(result.physical_offsets)
        places = result.physical_offsets + result.physical_offsets[-1:] * missing
        return msgspec.structs.replace(result, physical_offsets=places)

    return put_batch


def _shows_at_once(original: Any) -> Any:
    def request(self: Flusher) -> None:
        self._on_flushed(self._log.wrote)
        original(self)

    return request


def _moves_back(original: Any) -> Any:
    def commit(
        self: ConsumerOffsetTable, group: str, topic: str, queue_id: int, offset: int, now_ms: int
    ) -> None:
        back = 1 if offset % 3 == 0 and offset else 0
        original(self, group, topic, queue_id, offset - back * 2, now_ms)

    return commit


def _never_stored(original: Any) -> Any:
    def store(self: SendBackProcessor, request: Any, *arguments: Any) -> bytes:
        return answer(request)

    return store


class _Oldest(dict[str, Any]):
    """Whatever is looked for, the first is found."""

    def get(self, key: str, default: Any = None) -> Any:
        return next(iter(self.values()), default)


def _to_the_oldest(original: Any) -> Any:
    def serve(self: OpenRequests, command: Any) -> Any:
        kept, self._waiting = self._waiting, _Oldest(self._waiting)
        try:
            return original(self, command)
        finally:
            self._waiting = kept

    return serve


def _not_held(original: Any) -> Any:
    async def hold(self: DelayGateway, *arguments: Any) -> None:
        """As if it were: one of them in four is not."""
        if self.status.accepted % 4 == 3:
            return None
        refusal: None = await original(self, *arguments)
        return refusal

    return hold


def _one_early(original: Any) -> Any:
    def reset(
        self: ConsumerOffsetTable, group: str, topic: str, queue_id: int, offset: int, now_ms: int
    ) -> None:
        original(self, group, topic, queue_id, max(0, offset - 1), now_ms)

    return reset


def _confirms_all(original: Any) -> Any:
    return lambda self, target: original(self, self._log.wrote)


def _believed(original: Any) -> Any:
    def sync(self: Flusher, files: Any) -> None:
        with suppress(StoreFailed):
            original(self, files)

    return sync


def _one_late(original: Any) -> Any:
    def write(self: ConfigFile, build: Any) -> None:
        before = vars(self).get("_before", build)
        vars(self)["_before"] = build
        original(self, before)

    return write


def _without_crc(original: Any) -> Any:
    return lambda *arguments, **named: original(*arguments, **{**named, "is_crc_checked": False})


def _same_level(original: Any) -> Any:
    def decide(times: int, most: int, level: int, policy: Any = None) -> Any:
        decision = original(times, most, level, policy)
        return decision if decision.is_dead else original(0, most + 1, level, policy)

    return decide


def _once_more(original: Any) -> Any:
    return lambda times, most, level, policy=None: original(times, most + 1, level, policy)


def _a_moment_later(original: Any) -> Any:
    def add(self: PullHold, pull: Any) -> None:
        asyncio.get_running_loop().call_later(0.002, original, self, pull)

    return add


def _gives_up(*, stops: bool, drops: bool) -> Make:
    def make(original: Any) -> Any:
        async def give_up(self: GroupConsumer, queue: Any) -> None:
            assignment = self._assignments.pop(queue)
            if stops:
                assignment.loop.stop()
            changed = self._changed_offsets([assignment], wait=False)
            assignment.process_queue.dropped = drops
            self._removed(assignment)
            if changed:
                await self._ready().offsets.write(changed, wait=False)

        return give_up

    return make


def _never_lost(original: Any) -> Any:
    async def renew(self: QueueLockKeeper) -> set[Any]:
        kept = dict(self._granted)
        await original(self)
        self._granted = {**kept, **self._granted}
        return set()

    return renew


def _one_file_more(original: Any) -> Any:
    def drop_files(self: Retention, count: int, **how: Any) -> None:
        original(self, count + 1 if count else 0, **how)

    return drop_files


def _slot_before(original: Any) -> Any:
    return lambda self, time_ms: original(self, time_ms - 1_000)


def _two_later(original: Any) -> Any:
    return lambda self, time_ms: original(self, time_ms + 2_000)


def _of_no_group(original: Any) -> Any:
    def unregister(self: ClientProcessor, request: Any, connection: Any, now_ms: int) -> bytes:
        if request.ext_fields.get("consumerGroup") is None:
            raise KeyError("consumerGroup")
        answered: bytes = original(self, request, connection, now_ms)
        return answered

    return unregister


def _first_heartbeat_counts(original: Any) -> Any:
    def join(self: ConsumerGroups[Any], group: Any, key: Any, member: Any) -> bool:
        present = group.members.get(key)
        return bool(original(self, group, key, present or member))

    return join


def _without_last(original: Any) -> Any:
    def snapshot(table: ConsumerOffsetTable) -> Any:
        class Part:
            version = table.version

            def all(self) -> Any:
                return dict(list(table.all().items())[:-1])

        return original(Part())

    return snapshot


def _content_only(original: Any) -> Any:
    def sync(self: Flusher, files: Any) -> None:
        for file in files:
            file.is_name_synced = True
        original(self, files)

    return sync


def _without_filtered(original: Any) -> Any:
    def run_woken(self: PullHold) -> None:
        self._examined.clear()
        original(self)

    return run_woken


def _not_counted(original: Any) -> Any:
    def store(
        self: SendBackProcessor,
        request: Any,
        header: Any,
        settings: Any,
        message: Any,
        connection: Any,
    ) -> Any:
        less = replace(message, reconsume_times=max(0, message.reconsume_times - 1))
        return original(self, request, header, settings, less, connection)

    return store


def _one_further(original: Any) -> Any:
    def commit_hint(self: GroupConsumer, loop: Any) -> int:
        hint: int = original(self, loop)
        return hint + 1 if hint > 0 and loop.process_queue.count else hint

    return commit_hint


def _settles_at_once(original: Any) -> Any:
    def settle(self: ScheduleService, cursor: Any) -> None:
        cursor.safe_offset = cursor.next_offset
        cursor.unflushed.clear()

    return settle


def _passes_holes(original: Any) -> Any:
    def skip_damage(self: LogScan, reader: Any, rebuild: Any) -> Any:
        self.proof.end = self._log.end_of_files
        return original(self, reader, rebuild)

    return skip_damage


def _keeps(original: Any) -> Any:
    async def release(self: QueueLockKeeper, queues: Any) -> None:
        for queue in queues:
            self._granted.pop(queue, None)

    return release


def _twice(original: Any) -> Any:
    def matching(self: PullLoop, messages: Any) -> Any:
        chosen = original(self, messages)
        return [*chosen, *chosen[-1:]]

    return matching


def _never(original: Any) -> Any:
    async def stop(self: RegistrationService) -> None:
        """Leave everything as it is."""

    return stop


def _one_behind(original: Any) -> Any:
    def take(self: TimerBook, read_ms: int, queue_offset: int, now_ms: int) -> Any:
        return original(self, read_ms, max(0, queue_offset - 1), now_ms)

    return take


def _copy_stays(original: Any) -> Any:
    def write(self: ConfigFile, build: Any) -> None:
        original(self, build)
        self._disk.write_atomic(f"{self._path}.tmp", self._disk.read_bytes(self._path))

    return write


def _without_last_group(original: Any) -> Any:
    def snapshot(locks: QueueLocks) -> Any:
        class Part:
            def snapshot(self) -> Any:
                whole = locks.snapshot()
                return replace(whole, owners=dict(list(whole.owners.items())[:-1]))

        return original(Part())

    return snapshot


def _without_colour(original: Any) -> Any:
    def encode(properties: Any) -> str:
        text: str = original({k: value for k, value in properties.items() if k != "colour"})
        return text

    return encode


def _without_one_topic(original: Any) -> Any:
    def encode(self: RegistrationService, topics: Any) -> bytes:
        topics = list(topics)
        raw: bytes = original(self, topics[:-1] if len(topics) > 1 else topics)
        return raw

    return encode


def _back_and_forth(original: Any) -> Any:
    calls = itertools.count()

    def min_of(self: QueueSearch, queue: Any) -> int:
        least: int = original(self, queue)
        return max(0, least - next(calls) % 2)

    return min_of


def _noted_early(original: Any) -> Any:
    def earlier(self: SequencedSends, number: Any) -> Any:
        physical_offset = self.table.find(number)
        if physical_offset < 0:
            self.table.note(number, self._store.max_physical_offset)
            return None
        return next(self._store.records_from(physical_offset, physical_offset + 1), None)

    return earlier


def _nothing_done(original: Any) -> Any:
    async def nothing() -> None:
        await asyncio.sleep(0)

    return lambda self, *arguments: nothing()


def _all(original: Any) -> Any:
    def insert_keys(session: Any, group: str, keys: Any, keep_until_ms: int) -> set[str]:
        original(session, group, keys, keep_until_ms)
        return set(keys)

    return insert_keys


def _deletes_first(original: Any) -> Any:
    async def send(self: Relay, chain: Any, sent: list[int], failed: Any) -> None:
        ids = [row.id for row in chain]
        deleting = delete(OUTBOX).where(OUTBOX.c.id.in_(ids))
        await self._outbox.database.wait(lambda connection: connection.execute(deleting))
        await original(self, chain, sent, failed)

    return send


def _true(self: Any, connection: Any, key: str) -> bool:
    return True


def _without_token(original: Any) -> Any:
    async def write(self: Sagas, row: Any, token: str, changed: dict[str, Any]) -> None:
        changing = update(SAGAS).where(SAGAS.c.saga_id == row.saga_id).values(**changed)
        await self._database.wait(lambda connection: connection.execute(changing))

    return write


def _takes_none(original: Any) -> Any:
    return lambda self, connection: []


def _confirms(original: Any) -> Any:
    def drop(self: ReliableMessages, connection: Any, row_id: int) -> bool:
        self._confirm(connection, row_id)
        return True

    return drop


def _drops(original: Any) -> Any:
    def confirm(self: ReliableMessages, connection: Any, row_id: int) -> None:
        self._drop(connection, row_id)

    return confirm


def _takes_all(original: Any) -> Any:
    return lambda connection, relay, now_ms, lease_ms: list(range(SHARD_COUNT))


def _for_ever(original: Any) -> Any:
    def check(self: Fence, connection: Any, epochs: Any) -> None:
        try:
            original(self, connection, epochs)
        except StaleMember:
            self._lost.update(epochs)
            raise

    return check


def _is_ours(original: Any) -> Any:
    def claim_of(current: Any, own: bytes, steps: Any, now_ms: int) -> Any:
        claim = original(current, own, steps, now_ms)
        return original(own, own, steps, now_ms) if isinstance(claim, Busy) else claim

    return claim_of


def _anywhere(original: Any) -> Any:
    def try_again(self: Sender, sending: Any, pause_s: float) -> None:
        sending.pinned = None
        original(self, sending, pause_s)

    return try_again


def _taken_for_timely(original: Any) -> Any:
    return lambda *arguments: False


def _from_the_answer(original: Any) -> Any:
    async def ask(self: QueueLockKeeper, queues: Any, *, renews: bool = False) -> Any:
        granted, refused = await original(self, queues, renews=renews)
        for queue in granted & self._granted.keys():
            self._granted[queue] = self._monotonic(), self._now_ms()
        return granted, refused

    return ask


def _to_the_end(original: Any) -> Any:
    """After its first copies a range counts as copied."""
    return lambda self, item, next_offset: original(self, item, item.end)


def _looks_nowhere(original: Any) -> Any:
    """Copies of the life before are not looked for."""

    def look(self: BacklogCopier, group: str, copying: Any) -> None:
        copying.is_known = True

    return look


def _highest(original: Any) -> Any:
    """Lower lanes have no share."""

    def popleft(self: Lanes) -> Any:
        self._credit = -1.0
        return original(self)

    return popleft


def _delivers(original: Any) -> Any:
    """The filter of the member does not count."""

    def dry_pull(self: WhyProcessor, *arguments: Any) -> tuple[PullOutcome, str]:
        outcome, reason = original(self, *arguments)
        is_filtered = outcome is PullOutcome.FILTERED
        return (PullOutcome.DELIVERS, "") if is_filtered else (outcome, reason)

    return dry_pull


PLANTS: Final = (
    Plant("a flush is dropped", ((Flusher, "_sync", _drop),)),
    Plant("two units of a batch change places", ((appender_module, "pack_units", _swapped),)),
    Plant(
        "readers see a batch while it is published", ((MessageStore, "hold_queue", _without_hold),)
    ),
    Plant(
        "offsets are committed before messages are handled",
        ((ProcessQueue, "commit_offset", lambda _: property(lambda self: self.pull_offset)),),
    ),
    Plant("a delayed message comes 40 ms early", ((DelayLevels, "due_in_ms", _early),)),
    Plant("a half message stays open after its end", ((TransactionService, "_close", _drop),)),
    Plant(
        "the last message of a batch is lost",
        ((appender_module, "encode_packed", _drop), (Appender, "put_batch", _short_batch)),
    ),
    Plant(
        "the index keeps entries behind the log's end",
        ((IndexService, "cut", lambda _: lambda self, offset, *_: self.end),),
    ),
    Plant("readers see what is not flushed", ((Flusher, "request", _shows_at_once),)),
    Plant("a committed offset moves back", ((ConsumerOffsetTable, "commit", _moves_back),)),
    Plant("a message sent back is not stored", ((SendBackProcessor, "_store", _never_stored),)),
    Plant(
        "a queue is locked for two consumers at once",
        ((QueueLocks, "_is_expired", lambda _: lambda self, held, now_ms: True),),
    ),
    Plant("recovery leaves what lies behind the log's end", ((recovery_module, "cut_log", _drop),)),
    Plant(
        "later messages of a parked group are handled",
        ((Parking, "is_closed", lambda _: lambda self, message: False),),
    ),
    Plant(
        "a growing topic lets groups go before they are consumed",
        ((QueueDrain, "drained", lambda _: lambda self, consumed, moved: ALL_MOVED & ~moved),),
    ),
    Plant(
        "what is taken back is delivered all the same",
        ((RecallProcessor, "recall", lambda _: lambda self, request, *_: answer(request)),),
    ),
    Plant(
        "a gateway lets go of messages that it does not hold", ((DelayGateway, "_hold", _not_held),)
    ),
    Plant(
        "a broadcasting member forgets where it was",
        ((LocalOffsets, "_load", lambda _: lambda self: {}),),
    ),
    Plant(
        "an offset is reset to the message before", ((ConsumerOffsetTable, "reset", _one_early),)
    ),
    Plant(
        "consumers are not told that their offset was reset",
        ((ConsumerOffsetTable, "deliver_reset", _drop),),
    ),
    Plant("a reply goes to whoever has waited longest", ((OpenRequests, "serve", _to_the_oldest),)),
    # What an audit of the simulator planted and it had missed, or had found late.
    Plant("a sync confirms more than it covered", ((Flusher, "_advance", _confirms_all),)),
    Plant("a failed fdatasync is believed", ((Flusher, "_sync", _believed),)),
    Plant("the snapshot before is written", ((ConfigFile, "_write", _one_late),)),
    Plant(
        "a torn last record is believed after a kill",
        ((LogReader, "check_crc", lambda _: lambda self, record: True),),
    ),
    Plant(
        "torn records are believed after a power cut",
        ((log_scan_module, "LogReader", _without_crc),),
    ),
    Plant(
        "tags are compared by their hash alone",
        ((PullLoop, "_matching", lambda _: lambda self, messages: messages),),
    ),
    Plant("a retry keeps its delay level", ((retry_module, "decide_send_back", _same_level),)),
    Plant("one try too many", ((retry_module, "decide_send_back", _once_more),)),
    Plant("an arrival between look and park is lost", ((PullHold, "add", _a_moment_later),)),
    Plant("an arrival wakes no held pull", ((PullHold, "arrived", _drop),)),
    Plant(
        "the old owner of a queue goes on consuming",
        ((GroupConsumer, "_give_up", _gives_up(stops=True, drops=False)),),
    ),
    Plant(
        "the old owner of a queue goes on pulling",
        ((GroupConsumer, "_give_up", _gives_up(stops=False, drops=True)),),
    ),
    Plant(
        "a lost lock stops no consumer",
        (
            (QueueLockKeeper, "is_fresh", lambda _: lambda self, queue: queue in self._granted),
            (QueueLockKeeper, "renew", _never_lost),
        ),
    ),
    Plant("one log file too many goes", ((Retention, "drop_files", _one_file_more),)),
    Plant("a timed message comes early", ((TimedKind, "out_ms", _slot_before),)),
    Plant("a timed message comes late", ((TimedKind, "out_ms", _two_later),)),
    Plant("a request ends with an exception", ((ClientProcessor, "unregister", _of_no_group),)),
    # Lives of sessions and locks.
    Plant(
        "heartbeats do not keep a session alive",
        ((ConsumerGroups, "_join", _first_heartbeat_counts),),
    ),
    Plant(
        "a member relies on a lock that it could not renew",
        ((QueueLockKeeper, "is_fresh", lambda _: lambda self, queue: queue in self._granted),),
    ),
    # Found by machines that are cut off.
    Plant("a lock's age counts from the answer", ((QueueLockKeeper, "_ask", _from_the_answer),)),
    Plant(
        "a commit counts whose member has lost the queue",
        (
            (offset_module, "is_late", _taken_for_timely),
            (pull_module, "is_late", _taken_for_timely),
            (pull_plans_module, "is_late", _taken_for_timely),
            (OrderlyConsumer, "commit_hint", lambda _: GroupConsumer.commit_hint),
        ),
    ),
    Plant(
        "a lock outlives its member",
        ((QueueLocks, "_is_expired", lambda _: lambda self, held, now_ms: False),),
    ),
    Plant(
        "a group's offsets are left out of the file",
        ((persistence_module, "_consumer_offset_snapshot", _without_last),),
    ),
    # Our own.
    Plant("the name of a new log file is not synced", ((Flusher, "_sync", _content_only),)),
    Plant("filtered pulls do not wake", ((PullHold, "_run_woken", _without_filtered),)),
    Plant("a retry forgets how often it failed", ((SendBackProcessor, "_store", _not_counted),)),
    Plant("a commit is one too far", ((GroupConsumer, "commit_hint", _one_further),)),
    Plant(
        "pulls of a client that left stay held",
        ((PullHold, "drop_connection", _drop),),
    ),
    Plant("a leaving member keeps its locks", ((QueueLockKeeper, "release", _keeps),)),
    # Found by power cuts with ASYNC_FLUSH.
    Plant(
        "after a loss groups go on behind the end of a queue",
        ((ConsumerOffsetTable, "begin_again", lambda _: lambda self, ends, now_ms: 0),),
    ),
    Plant(
        "a delivery counts before it is flushed",
        ((ScheduleService, "_settle", _settles_at_once),),
    ),
    Plant(
        "a hole that a power cut left is passed over",
        ((LogScan, "_skip_damage", _passes_holes),),
    ),
    # Found by disks that change what was written.
    Plant(
        "the store's check does not look at bodies",
        ((verify_module, "LogReader", _without_crc),),
    ),
    # Found by drawn settings alone.
    Plant("units of the journal are not filed", ((recovery_module, "file_saved_units", _drop),)),
    Plant("members do not learn that their group changed", ((ClientProcessor, "_notify", _drop),)),
    Plant("a handler gets a message twice", ((PullLoop, "_matching", _twice),)),
    Plant("a task outlives its broker's stop", ((RegistrationService, "stop", _never),)),
    Plant("the timers' file is a message behind", ((TimerBook, "take", _one_behind),)),
    Plant("a temporary file stays", ((ConfigFile, "_write", _copy_stays),)),
    Plant(
        "a group's locks are left out of the file",
        ((persistence_module, "queue_lock_snapshot", _without_last_group),),
    ),
    Plant(
        "a property is left out of the message",
        ((checks_module, "encode_properties_text", _without_colour),),
    ),
    Plant("a least offset moves back", ((QueueSearch, "min_of", _back_and_forth),)),
    Plant(
        "a registration leaves a topic out", ((RegistrationService, "_encode", _without_one_topic),)
    ),
    Plant(
        "numbers behind their file are not read",
        ((SequencedSends, "_replay", _drop),),
        kind="numbered",
    ),
    Plant(
        "numbers of a run are not noted", ((ProducerSequences, "note_run", _drop),), kind="numbered"
    ),
    Plant(
        "numbers are noted before their messages are stored",
        ((SequencedSends, "earlier", _noted_early), (ProducerSequences, "note_run", _drop)),
        kind="numbered",
    ),
    Plant(
        "a repetition goes to another broker", ((Sender, "try_again", _anywhere),), kind="numbered"
    ),
    # Members that want different messages.
    Plant(
        "queues go to members that do not want the topic",
        ((FilterShares, "twins", _drop),),
        kind="released",
    ),
    Plant("a member's filter is forgotten", ((FilterShares, "part", _drop),), kind="released"),
    Plant("fresh first skips the middle", ((SkippedRanges, "copied", _to_the_end),), kind="fresh"),
    Plant(
        "copies are made again after a crash",
        ((BacklogCopier, "_look_for_copies", _looks_nowhere),),
        kind="fresh",
    ),
    Plant("a low lane is starved", ((Lanes, "popleft", _highest),), kind="priority"),
    Plant(
        "why says that a filtered message is delivered",
        ((WhyProcessor, "dry_pull", _delivers),),
        kind="why",
    ),
    # Around the broker: the patterns.
    Plant(
        "a failed handler keeps its claim", ((SqlClaims, "release", _nothing_done),), kind="orders"
    ),
    Plant("a done key is not remembered", ((SqlClaims, "finish", _nothing_done),), kind="orders"),
    Plant(
        "keys are written and not compared",
        ((transaction_module, "_insert_keys", _all),),
        kind="orders",
    ),
    Plant(
        "a relay deletes rows before it sends them",
        ((Relay, "_send", _deletes_first),),
        kind="orders",
    ),
    Plant(
        "two relays serve every row", ((relay_module, "lease_shards", _takes_all),), kind="orders"
    ),
    Plant(
        "an undecided operation is forgotten",
        ((ReliableMessages, "_take", _takes_none),),
        kind="orders",
    ),
    Plant(
        "a check says no and the message is sent",
        ((ReliableMessages, "_drop", _confirms),),
        kind="orders",
    ),
    Plant("a charge has no message", ((ReliableMessages, "_confirm", _drops),), kind="orders"),
    Plant("a stale member commits", ((Fence, "check", _drop),), kind="ledger"),
    Plant(
        "a fence shuts out the member that has the queue",
        ((Fence, "check", _for_ever),),
        kind="ledger",
    ),
    Plant(
        "a failed handler keeps its claim in Redis",
        ((RedisClaims, "release", _nothing_done),),
        kind="mails",
    ),
    Plant(
        "a done key is not remembered in Redis",
        ((RedisClaims, "finish", _nothing_done),),
        kind="mails",
    ),
    Plant(
        "a claim of another call is ours",
        ((redis_module, "_claim_of", _is_ours),),
        kind="mails",
    ),
    Plant("a step is not recorded", ((RedisClaims, "save_step", _nothing_done),), kind="mails"),
    Plant("a runner writes after its lease", ((Sagas, "_write", _without_token),), kind="flows"),
    Plant("a flow is taken back twice", ((TccBranch, "_cancel", lambda _: _true),), kind="flows"),
    Plant(
        "a try is allowed after its cancel", ((TccBranch, "_try", lambda _: _true),), kind="flows"
    ),
)
