"""The broker's own tables on disk, in the files and the JSON that a Java broker uses.

They are loaded at the start and written each at its own pace: topics and groups on every change,
consumer offsets every ``flushConsumerOffsetInterval``, delay offsets every
``flushDelayOffsetInterval``, SQL92 filters every ten seconds, and all of them at the stop.

================================ ==============================================
config/topics.json            dataVersion, topicConfigTable
config/subscriptionGroup.json dataVersion, forbiddenTable, subscriptionGroupTable
config/consumerOffset.json    dataVersion, groupTopicMap, offsetTable
config/delayOffset.json       dataVersion, offsetTable
config/consumerFilter.json    filterDataByTopic
config/transactionMetrics     dataVersion, transactionCount (`transaction.counts`)
config/timermetrics           dataVersion, timingCount (`delay.wheel.counts`)
config/cometmqStaging.json    sinks, decisionNext, stagedNext: our own (`staging.ledger`)
config/cometmqQueueLocks.json renewedUntil, locks: our own (`clients.queue_locks`)
config/cometmqSubscriptions.json groups, offsetTable: our own (`clients.shares_file`)
config/cometmqSkipped.json    groups: our own (`backlog.file`)
config/cometmqSequences.json  logFrom, producers: our own (`extensions.sequences`)
config/cometmqLoss.json       untilMs: our own (`BrokerFiles.note_start`)
================================ ==============================================

The file rule is that of `cometmq.server.config_file`.  Files that are not in this list are
never touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import msgspec

from cometmq.broker.backlog.file import SkippedFile, skipped_snapshot
from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.base.state import TableFiles, WhenSaved
from cometmq.broker.base.topic_counts import CountsFile, decode_counts
from cometmq.broker.clients.queue_locks import QueueLockFile, queue_lock_snapshot
from cometmq.broker.clients.shares_file import SharesFile, shares_snapshot
from cometmq.broker.delay.levels.schedule import ScheduleService
from cometmq.broker.delay.wheel.counts import TIMING_COUNT, TimerCounts
from cometmq.broker.extensions.sequences import SequencedSends, SequenceFile
from cometmq.broker.extensions.staging.ledger import Ledger, LedgerFile
from cometmq.broker.pull.filters import FilterService
from cometmq.broker.transaction.counts import TRANSACTION_COUNT, TransactionCounts
from cometmq.core.filter.consumer_filter import ConsumerFilter, decode_filter_file
from cometmq.core.group.consumer_offsets import ENDS_KEPT_MS, ConsumerOffsetTable
from cometmq.core.group.filter_shares import FilterShares
from cometmq.core.group.group_table import SubscriptionGroupTable
from cometmq.core.group.queue_locks import LockSnapshot, QueueLocks
from cometmq.core.group.skipped_ranges import SkippedRanges
from cometmq.core.topic.attributes import (
    GROUP_ATTRIBUTES,
    TOPIC_ATTRIBUTES,
    Attribute,
    unserved_attributes,
)
from cometmq.core.topic.topic_table import TopicTable
from cometmq.errors import CodecError, StoreCorrupt, StoreError
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.topic import DataVersion, TopicConfig
from cometmq.net.env import WorkerPool
from cometmq.net.server import ServerConnection
from cometmq.server.config_file import (
    ConfigFile,
    ForeignKeys,
    Journal,
    load_config_file,
)
from cometmq.store.base.disk import Disk, make_durable_directory
from cometmq.store.message_store import MessageStore
from cometmq.wire.body.admin import (
    GroupConfigWrapper,
    decode_consumer_offsets,
    decode_delay_offsets,
    decode_group_config_wrapper,
    encode_group_config_wrapper,
    group_config_to_json,
)
from cometmq.wire.body.route import (
    data_version_to_json,
    decode_topic_config_wrapper,
    topic_config_to_json,
)

__all__ = ["BrokerFiles", "group_snapshot", "may_lose", "note_loss"]

log = logging.getLogger("cometmq.broker")

_SETTLE_STEP_S = 0.005
_STAGING = "cometmqStaging.json"
_LOCKS = "cometmqQueueLocks.json"
_SHARES = "cometmqSubscriptions.json"
_SEQUENCES = "cometmqSequences.json"
_SKIPPED = "cometmqSkipped.json"
_LOSS = "cometmqLoss.json"
_FILTERS = "consumerFilter.json"
_FILTERS_INTERVAL_MS = 10_000
"""RocketMQ writes filters at this pace and, by default (transactionMetricFlushInterval), its counts
of half messages."""
_JOURNAL_INTERVAL_MS = 1_000
"""How old offsets are for a replica that becomes the master without warning."""
_TRANSACTIONS = "transactionMetrics"
_TIMERS = "timermetrics"
T = TypeVar("T")
Encode = Callable[[], bytes]


def may_lose(config: BrokerConfig) -> bool:
    """Whether a power cut may take messages that clients know."""
    return config.flush_disk_type == "ASYNC_FLUSH" and not config.is_slave


def note_loss(config: BrokerConfig, disk: Disk, now_ms: int) -> None:
    """Note for the starts of the next time that a power cut may have taken messages.  Blocks."""
    folder = f"{config.store_path()}/config"
    make_durable_directory(disk, folder)
    until_ms = now_ms + ENDS_KEPT_MS
    disk.write_atomic(f"{folder}/{_LOSS}", msgspec.json.encode({"untilMs": until_ms}))


def _consumer_offset_snapshot(table: ConsumerOffsetTable) -> Encode:
    offsets = {key: dict(queues) for key, queues in table.all().items()}
    version = table.version

    def encode() -> bytes:
        topics_of: dict[str, list[str]] = {}
        for key in offsets:
            topic, _, group = key.partition("@")
            topics_of.setdefault(group, []).append(topic)
        return msgspec.json.encode(
            {
                "dataVersion": data_version_to_json(version),
                "groupTopicMap": topics_of,
                "offsetTable": offsets,
            }
        )

    return encode


def group_snapshot(table: SubscriptionGroupTable) -> Encode:
    """Copy the groups; the result encodes the copy (also the answer to code 201)."""
    wrapper = GroupConfigWrapper(
        dict(table.all()),
        table.version,
        {group: dict(topics) for group, topics in table.forbidden.items()},
    )
    return lambda: encode_group_config_wrapper(wrapper)


def _topic_snapshot(table: TopicTable) -> Encode:
    topics, version = dict(table.all()), table.version

    def encode() -> bytes:
        return msgspec.json.encode(
            {
                "dataVersion": data_version_to_json(version),
                "topicConfigTable": {
                    name: topic_config_to_json(config) for name, config in topics.items()
                },
            }
        )

    return encode


def _delay_snapshot(schedule: ScheduleService) -> Encode:
    offsets, version = schedule.offsets(), schedule.version
    return lambda: msgspec.json.encode(
        {"dataVersion": data_version_to_json(version), "offsetTable": offsets}
    )


def _warn_unserved(
    kind: str,
    rules: Mapping[str, Attribute],
    configs: Mapping[str, TopicConfig] | Mapping[str, SubscriptionGroupConfig],
) -> None:
    """Say which attributes, left by a Java broker, have no effect here."""
    for name, config in configs.items():
        unserved = unserved_attributes(rules, config.attributes)
        if unserved:
            log.warning(
                "%s %s has attributes that have no effect in CometMQ: %s",
                kind,
                name,
                ", ".join(unserved),
            )


def _settle(saved: asyncio.Future[None], failure: StoreError | None) -> None:
    if saved.done():
        return
    if failure is None:
        saved.set_result(None)
    else:
        saved.set_exception(failure)


class _LossFile(msgspec.Struct, rename="camel"):
    """Until when clients may come back that know lost messages."""

    until_ms: int

    @classmethod
    def decode(cls, raw: bytes) -> int:
        """Return the time.

        Raises:
            CodecError: the bytes are not those of such a file.
        """
        try:
            return msgspec.json.decode(raw, type=cls).until_ms
        except msgspec.DecodeError as error:
            raise CodecError(f"{_LOSS}: {error}") from error


class BrokerFiles:
    """The files of one broker.

    The tables of topics, groups and consumer offsets are written from their load on.  Any other
    file is written once the part that was built from it is attached.

    Args:
        journal_of: by the name of a file, what takes its changes to other replicas; None for no
            journal.
    """

    def __init__(
        self,
        config: BrokerConfig,
        disk: Disk,
        workers: WorkerPool,
        journal_of: Callable[[str], Journal | None] = lambda name: None,
    ) -> None:
        self.config = config
        self._journal_of = journal_of
        self._disk = disk
        self._workers = workers
        self._folder = f"{config.store_path()}/config"
        self._files: dict[str, ConfigFile] = {}
        self._foreign = {
            "topics.json": ForeignKeys(
                ("dataVersion", "topicConfigTable"),
                "topicConfigTable",
                topic_config_to_json(TopicConfig("")),
            ),
            "subscriptionGroup.json": ForeignKeys(
                ("dataVersion", "forbiddenTable", "subscriptionGroupTable"),
                "subscriptionGroupTable",
                (*group_config_to_json(SubscriptionGroupConfig("")), "subscriptionDataSet"),
            ),
            "consumerOffset.json": ForeignKeys(("dataVersion", "groupTopicMap", "offsetTable")),
            "delayOffset.json": ForeignKeys(("dataVersion", "offsetTable")),
            _FILTERS: ForeignKeys(("filterDataByTopic",)),
            _TRANSACTIONS: ForeignKeys(("dataVersion", TRANSACTION_COUNT)),
            _TIMERS: ForeignKeys(("dataVersion", TIMING_COUNT)),
            _STAGING: ForeignKeys(LedgerFile.__struct_encode_fields__),
            _LOCKS: ForeignKeys(QueueLockFile.__struct_encode_fields__),
            _SHARES: ForeignKeys(SharesFile.__struct_encode_fields__),
            _SEQUENCES: ForeignKeys(SequenceFile.__struct_encode_fields__),
            _SKIPPED: ForeignKeys(SkippedFile.__struct_encode_fields__),
            _LOSS: ForeignKeys(_LossFile.__struct_encode_fields__),
        }
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.are_topics_sound = True
        """Whether topics.json itself was read: topics that it lacks were deleted."""

    # -- loading --------------------------------------------------------------------------

    def load_topics(self) -> TopicTable:
        """Read topics.json.  Blocks.

        Raises:
            StoreCorrupt: the file and its .bak are damaged; the same holds for the others.
        """
        path = f"{self._folder}/topics.json"
        content = self._load("topics.json", decode_topic_config_wrapper)
        # A damaged file has been renamed by now, and its .bak may lack the newest topics.
        self.are_topics_sound = self._disk.exists(path)
        if content is None:
            table = TopicTable()
        else:
            _warn_unserved("topic", TOPIC_ATTRIBUTES, content.topics)
            table = TopicTable(content.topics, content.data_version)
        self._add("topics.json", lambda: table.revision, lambda: _topic_snapshot(table))
        return table

    def load_groups(self) -> SubscriptionGroupTable:
        """Read subscriptionGroup.json.  Blocks."""
        auto_create = self.config.auto_create_subscription_group
        content = self._load("subscriptionGroup.json", decode_group_config_wrapper)
        if content is None:
            table = SubscriptionGroupTable(auto_create=auto_create)
        else:
            _warn_unserved("group", GROUP_ATTRIBUTES, content.groups)
            table = SubscriptionGroupTable(
                content.groups,
                content.data_version,
                auto_create=auto_create,
                forbidden=content.forbidden,
            )
        self._add("subscriptionGroup.json", lambda: table.revision, lambda: group_snapshot(table))
        return table

    def load_consumer_offsets(self) -> ConsumerOffsetTable:
        """Read consumerOffset.json.  Blocks."""
        step = self.config.consumer_offset_update_version_step
        content = self._load("consumerOffset.json", decode_consumer_offsets)
        if content is None:
            table = ConsumerOffsetTable(version_step=step)
        else:
            table = ConsumerOffsetTable(content.offsets, content.data_version, version_step=step)
        self._add(
            "consumerOffset.json",
            lambda: table.revision,
            lambda: _consumer_offset_snapshot(table),
        )
        return table

    def load_delay_offsets(self) -> tuple[Mapping[int, int], DataVersion]:
        """Read delayOffset.json.  Blocks."""
        content = self._load("delayOffset.json", decode_delay_offsets)
        return ({}, DataVersion()) if content is None else content

    def load_filters(self) -> list[ConsumerFilter] | None:
        """Read consumerFilter.json; None if nobody ever filtered.  Blocks.

        Consumers send their filters again, so without the file nothing is lost.
        """
        try:
            return self._load(_FILTERS, decode_filter_file)
        except StoreCorrupt as error:
            log.warning("going on without the former SQL filters: %s", error)
            return None

    def load_transaction_counts(self) -> CountsFile | None:
        """Read transactionMetrics; None if there never was a transaction.  Blocks.

        The open half messages are counted anew anyway.
        """
        try:
            return self._load(_TRANSACTIONS, lambda raw: decode_counts(raw, TRANSACTION_COUNT))
        except StoreCorrupt as error:
            log.warning("going on without the former counts of half messages: %s", error)
            return None

    def load_timer_counts(self) -> CountsFile | None:
        """Read timermetrics; None if there never was a timer.  Blocks.

        The pending messages are counted anew anyway.
        """
        try:
            return self._load(_TIMERS, lambda raw: decode_counts(raw, TIMING_COUNT))
        except StoreCorrupt as error:
            log.warning("going on without the former counts of timers: %s", error)
            return None

    def load_staging(self) -> LedgerFile:
        """Read cometmqStaging.json; a blank ledger if nothing was ever staged.  Blocks."""
        return self._load(_STAGING, LedgerFile.decode) or LedgerFile()

    def load_queue_locks(self) -> LockSnapshot | None:
        """Read cometmqQueueLocks.json; None if nobody ever locked a queue.  Blocks.

        Without the file a restart loses the locks, as RocketMQ's does.
        """
        try:
            return self._load(_LOCKS, QueueLockFile.decode)
        except StoreCorrupt as error:
            log.warning("going on without the former queue locks: %s", error)
            return None

    def load_shares(self) -> SharesFile | None:
        """Read cometmqSubscriptions.json; None if there is none.  Blocks.

        Without the file a group begins as if its members had joined just now.
        """
        try:
            return self._load(_SHARES, SharesFile.decode)
        except StoreCorrupt as error:
            log.warning("going on without what groups wanted: %s", error)
            return None

    def load_skipped(self) -> SkippedFile | None:
        """Read cometmqSkipped.json; None if no group ever passed over messages.  Blocks.

        Raises:
            StoreCorrupt: it cannot be read, and without it groups would lose messages.
        """
        return self._load(_SKIPPED, SkippedFile.decode)

    def note_start(self, now_ms: int, *, is_whole: bool) -> bool:
        """Return whether clients may come back that know messages which a power cut took.  Blocks.

        The file lets a start say so that follows soon after the first one behind the power cut.

        Args:
            is_whole: whether the store has all that the broker wrote in its life before.
        """
        if not is_whole:
            note_loss(self.config, self._disk, now_ms)
            return True
        until_ms = 0
        with contextlib.suppress(StoreCorrupt):
            until_ms = self._load(_LOSS, _LossFile.decode) or 0
        return now_ms < until_ms

    def _load(self, name: str, decode: Callable[[bytes], T]) -> T | None:
        # The files are synced, but a power cut could take a folder that is new.
        make_durable_directory(self._disk, self._folder)
        for temporary in (f"{self._folder}/{name}.tmp", f"{self._folder}/{name}.bak.tmp"):
            if self._disk.exists(temporary):
                self._disk.remove(temporary)  # of a broker that ended while it wrote

        def decode_and_remember(raw: bytes) -> T:
            content = decode(raw)
            self._foreign[name].remember(raw)
            return content

        return load_config_file(self._disk, f"{self._folder}/{name}", decode_and_remember)

    # -- writing --------------------------------------------------------------------------

    def tables(self) -> TableFiles:
        """Give processors access to the files of topics, groups and offsets, once loaded."""
        topics = self._files["topics.json"]
        groups = self._files["subscriptionGroup.json"]
        return TableFiles(
            topics_written=lambda: topics.written,
            when_topics_saved=topics.when_saved,
            when_groups_saved=groups.when_saved,
            when_offsets_saved=self._files["consumerOffset.json"].when_saved,
            groups_changed=groups.save_if_changed,
        )

    def attach_delays(self, schedule: ScheduleService) -> None:
        """Write the positions of the delay levels from now on."""
        self._add("delayOffset.json", lambda: schedule.revision, lambda: _delay_snapshot(schedule))

    def attach_filters(self, filters: FilterService) -> None:
        """Write SQL92 filters from now on."""
        self._add(_FILTERS, lambda: filters.table.revision, filters.snapshot)

    def attach_transactions(self, counts: TransactionCounts) -> None:
        """Write the numbers of open half messages from now on."""
        self._add(_TRANSACTIONS, lambda: counts.revision, counts.snapshot)

    def attach_timers(self, counts: TimerCounts) -> None:
        """Write the numbers of pending timers from now on."""
        self._add(_TIMERS, lambda: counts.revision, counts.snapshot)

    def attach_staging(
        self, ledger: Ledger, staged_next: Callable[[], int]
    ) -> tuple[Callable[[], bool], Callable[[], None]]:
        """Write the ledger of staged batches from now on.

        `staged_next` is the offset in the staged queue from which the next start reads.  Returns
        whether the file has the ledger as it is, and what has it written if it has changed.
        """
        self._add(_STAGING, lambda: ledger.revision, lambda: ledger.snapshot(staged_next()))
        file = self._files[_STAGING]
        return lambda: file.is_saved, file.save_if_changed

    def attach_queue_locks(self, locks: QueueLocks) -> tuple[Callable[[], int], WhenSaved]:
        """Write queue locks from now on.

        Returns the revision that is written, and what waits for the present one.
        """
        self._add(_LOCKS, lambda: locks.revision, lambda: queue_lock_snapshot(locks))
        file = self._files[_LOCKS]
        return lambda: file.written, file.when_saved

    def attach_shares(self, shares: FilterShares[ServerConnection]) -> WhenSaved:
        """Write what groups want from now on; return what waits for the present state."""
        self._add(
            _SHARES, lambda: shares.revision + shares.own.revision, lambda: shares_snapshot(shares)
        )
        return self._files[_SHARES].when_saved

    def attach_skipped(self, skipped: SkippedRanges, revision: Callable[[], int]) -> WhenSaved:
        """Write what groups pass over from now on; return what waits for the present state."""
        self._add(_SKIPPED, revision, lambda: skipped_snapshot(skipped))
        return self._files[_SKIPPED].when_saved

    def open_sequences(self, store: MessageStore) -> SequencedSends:
        """Read cometmqSequences.json and what the log has behind it; write it from now on.  Blocks.

        There is no file if no producer ever used sequences.
        """
        sequences = SequencedSends(store, self._load(_SEQUENCES, SequenceFile.decode))
        self._add(_SEQUENCES, lambda: sequences.revision, sequences.snapshot)
        file = self._files[_SEQUENCES]
        sequences.attach(lambda: file.written, file.when_saved)
        if sequences.is_behind:
            file.save_now()
        return sequences

    def _add(self, name: str, revision: Callable[[], int], snapshot: Callable[[], Encode]) -> None:
        path = f"{self._folder}/{name}"
        foreign = self._foreign[name]

        def complete() -> Encode:
            encode = snapshot()
            return lambda: foreign.add_to(encode())

        journal = self._journal_of(name)
        self._files[name] = ConfigFile(self._disk, self._workers, path, revision, complete, journal)

    def add(self, name: str, file: ConfigFile) -> None:
        """Write another file as well, which somebody else has loaded."""
        self._files[name] = file

    def start(self) -> None:
        """Begin the periodic writes."""
        for name in self._files:
            self._schedule(name)

    def _schedule(self, name: str) -> None:
        # Topics and groups are written on change; this repeats a write that failed.
        interval_ms = self.config.flush_consumer_offset_interval
        if name == "delayOffset.json":
            interval_ms = self.config.flush_delay_offset_interval
        elif name in (_FILTERS, _TRANSACTIONS, _TIMERS, _SEQUENCES):
            interval_ms = _FILTERS_INTERVAL_MS
        if self._files[name].journal is not None:
            interval_ms = min(interval_ms, _JOURNAL_INTERVAL_MS)
        self._timers[name] = asyncio.get_running_loop().call_later(
            interval_ms / 1000, self._due, name
        )

    def _due(self, name: str) -> None:
        self._schedule(name)
        self._files[name].save_if_changed()

    def journaled_before(self, end: int) -> int:
        """Return the position in the journal below which the files have everything.

        Args:
            end: where the journal ends now.
        """
        return min(
            (
                end if file.is_saved else file.journal.next
                for file in self._files.values()
                if file.journal is not None
            ),
            default=end,
        )

    async def journaled(self) -> None:
        """Wait until other replicas have all that was changed.

        Raises:
            StoreError: a file cannot be written, or the broker stops.
        """
        waiting: list[asyncio.Future[None]] = []
        for file in self._files.values():
            if file.journal is None or file.is_saved:
                continue
            saved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiting.append(saved)
            file.when_saved(partial(_settle, saved))
        await asyncio.gather(*waiting)

    def topics_changed(self) -> None:
        """Write topics.json soon."""
        self._files["topics.json"].save_if_changed()

    def groups_changed(self) -> None:
        """Write subscriptionGroup.json soon."""
        self._files["subscriptionGroup.json"].save_if_changed()

    async def settle(self, timeout_s: float) -> None:
        """Wait for the writes that workers have begun."""
        waited_s = 0.0
        while waited_s < timeout_s and any(file.is_writing for file in self._files.values()):
            await asyncio.sleep(_SETTLE_STEP_S)
            waited_s += _SETTLE_STEP_S

    def cancel(self) -> None:
        """End the periodic writes."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def stop(self) -> None:
        """Write all changed tables.  Blocks.

        Raises:
            StoreError, OSError: of the first file that could not be written; all were tried.
        """
        failures: list[Exception] = []
        for file in self._files.values():
            try:
                file.save_now()
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]
