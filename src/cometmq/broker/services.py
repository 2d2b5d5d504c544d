"""The parts of a running broker, built once from a loaded store, in the order of their needs."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from cometmq.broker.admin.clients import ClientListProcessor
from cometmq.broker.admin.config import ConfigProcessor, ConfigWriter
from cometmq.broker.admin.elsewhere import ElsewhereProcessor
from cometmq.broker.admin.progress import ProgressProcessor
from cometmq.broker.admin.queue import ConsumeQueueProcessor
from cometmq.broker.admin.stats import StatsProcessor
from cometmq.broker.admin.topics_and_groups import AdminProcessor
from cometmq.broker.backlog.processor import BacklogProcessor
from cometmq.broker.backlog.service import BacklogService
from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.base.state import BrokerState
from cometmq.broker.base.store_config import timer_rules
from cometmq.broker.clients.calls import ClientCallProcessor
from cometmq.broker.clients.heartbeats import ClientProcessor
from cometmq.broker.clients.queue_locks import QueueLockProcessor
from cometmq.broker.clients.send_back import SendBackProcessor
from cometmq.broker.delay.levels.delayed_send import DelayedKind
from cometmq.broker.delay.levels.schedule import ScheduleService
from cometmq.broker.delay.opening import open_timers
from cometmq.broker.delay.waiting_items import WaitingItems
from cometmq.broker.delay.wheel.counts import TimerCounts
from cometmq.broker.delay.wheel.recall import RecallProcessor
from cometmq.broker.delay.wheel.service import TimerService
from cometmq.broker.delay.wheel.timed_send import TimedKind
from cometmq.broker.extensions.bulk_pull import BulkPullProcessor
from cometmq.broker.extensions.growing import GrowingTopics
from cometmq.broker.extensions.log_range import LogRangeProcessor
from cometmq.broker.extensions.sequences import SequencedKind
from cometmq.broker.extensions.staging.ledger import Ledger
from cometmq.broker.extensions.staging.service import StagingService
from cometmq.broker.extensions.staging.tokens import StagedTokens
from cometmq.broker.extensions.why import WhyProcessor
from cometmq.broker.files.carrying import CarriedGoods, carry
from cometmq.broker.files.persistence import BrokerFiles, may_lose
from cometmq.broker.live_config import LiveConfig
from cometmq.broker.pull.filters import FilterService
from cometmq.broker.pull.lookup import LookupProcessor
from cometmq.broker.pull.offset import OffsetProcessor
from cometmq.broker.pull.pull import PullProcessor
from cometmq.broker.registration import RegistrationService
from cometmq.broker.replication.answers import ReplicationProcessor
from cometmq.broker.replication.following import Following
from cometmq.broker.replication.journal import StateFollower, StateJournal
from cometmq.broker.replication.master import ReplicaServer
from cometmq.broker.replication.refusals import slave_refusals
from cometmq.broker.replication.seat import Seat
from cometmq.broker.replication.set_answers import SetProcessor
from cometmq.broker.send.kinds import SendKind
from cometmq.broker.send.native_sends import NativeKinds
from cometmq.broker.send.reply import ReplyProcessor
from cometmq.broker.send.send import SendProcessor
from cometmq.broker.transaction.counts import TransactionCounts
from cometmq.broker.transaction.half_send import HalfKind
from cometmq.broker.transaction.resume import ResumeProcessor
from cometmq.broker.transaction.service import TransactionService
from cometmq.core.group.consumer_offsets import ConsumerOffsetTable
from cometmq.core.group.filter_shares import FilterShares
from cometmq.core.topic.topic_table import TopicTable, system_topics
from cometmq.model.names import is_system_topic
from cometmq.model.offsets import ConsumerOffset
from cometmq.model.topic import TopicConfig
from cometmq.net.env import Environment
from cometmq.net.server import Handler, ServerConnection
from cometmq.store.base.disk import Disk
from cometmq.store.message_store import MessageStore
from cometmq.wire.command.codes import RequestCode as Code
from cometmq.wire.extensions.bulk_pull import BulkPullCode
from cometmq.wire.extensions.log_range import LogRangeCode
from cometmq.wire.extensions.why import WhyCode

__all__ = ["Services", "build_services", "handlers"]

log = logging.getLogger("cometmq.broker")


@dataclass(frozen=True, slots=True)
class Services:
    """What one broker is made of; `Broker` starts and stops it."""

    store: MessageStore
    state: BrokerState
    files: BrokerFiles
    registration: RegistrationService
    schedule: ScheduleService
    timers: TimerService | None
    """None where ``timerWheelEnable`` is false."""
    timer_counts: TimerCounts | None
    carried: CarriedGoods
    """What the store holds for a Java broker."""
    transactions: TransactionService
    send: SendProcessor
    delayed: DelayedKind
    timed: TimedKind
    half: HalfKind
    growing: GrowingTopics
    filters: FilterService
    pull: PullProcessor
    bulk: BulkPullProcessor
    client: ClientProcessor
    queue_locks: QueueLockProcessor
    staging: StagingService
    backlog: BacklogService
    replicas: ReplicaServer | None
    """What sends the log to slaves; None where nothing listens for them."""
    following: Following | None
    """What copies the master's log and tables; None on a master."""
    seat: Seat | None
    """What a controller says of the broker; None without a controller."""
    journal: StateJournal | None
    """What takes changes of tables to other replicas; None without a controller, and on a slave."""
    state_follower: StateFollower | None
    """What gathers such changes, and knows which this broker has; None without a controller."""

    def native_kinds(self) -> NativeKinds:
        """The kinds of messages of which the native core tells Python."""
        return NativeKinds(self.delayed, self.timed, self.half, self.send.sequences)


def build_services(
    config: BrokerConfig,
    env: Environment,
    disk: Disk,
    store: MessageStore,
    address: str,
    *,
    was_killed: bool,
    is_whole: bool,
    replicas: ReplicaServer | None = None,
    seat: Seat | None = None,
) -> Services:
    """Load the tables and make the parts.  Blocks; starts nothing.

    Args:
        store: loaded.
        address: ``host:port`` to announce.
        replicas: what sends the log to slaves; None where nothing listens for them.
        seat: what a controller says of the broker; None without a controller.
        was_killed: the broker that had the store before did not stop in order.
        is_whole: the store still has all that this broker wrote.

    Raises:
        StoreError: a configuration file cannot be read.
    """
    now_ms = env.clock.now_ms()
    journal, state_follower = _open_journal(config, env, disk, store, seat)
    files = BrokerFiles(config, disk, env.workers, journal.file if journal else _no_journal)
    topics, groups = files.load_topics(), files.load_groups()
    offsets = _load_offsets(config, files, store, now_ms, is_whole=is_whole)
    shares = _load_shares(files, offsets, now_ms)
    _seed_topics(config, files, topics, store, now_ms)
    groups.seed(now_ms)
    registration = RegistrationService(env, config, address, topics, replicas, _epoch_of(seat))
    state = BrokerState(
        config,
        env,
        store,
        topics,
        groups,
        offsets,
        shares,
        address,
        files=files.tables(),
        disk_usage=lambda: disk.usage(config.store_path()),
        when_registered=registration.when_announced,
    )
    schedule = ScheduleService(state, *files.load_delay_offsets())
    files.attach_delays(schedule)
    rules = timer_rules(config)
    timers, timer_counts = open_timers(state, disk, schedule, rules, files.load_timer_counts) or (
        None,
        None,
    )
    if timer_counts is not None:
        files.attach_timers(timer_counts)
    is_served = timers is not None or config.is_slave
    carried = carry(store, disk, schedule, env.workers, has_timers=is_served)
    transactions = TransactionService(state)
    growing = GrowingTopics(state, transactions.halves)
    delayed, timed = DelayedKind(state, schedule), TimedKind(state, rules, timers)
    half = HalfKind(state, transactions.added)
    waiting = WaitingItems(state, delayed, timed, schedule, timers)
    send = _make_send(state, files, (delayed, half, timed), waiting, growing)
    _count_transactions(state, files, transactions)
    filters = FilterService(
        lambda: state.config, files.load_filters(), now_ms, was_killed=was_killed
    )
    files.attach_filters(filters)
    if config.enable_consume_queue_ext and config.enable_calc_filter_bit_map:
        store.extend_queues(filters.bitmaps)
    pull = PullProcessor(state, filters)
    # The hold reads the store, so the store cannot be made with it.
    store.arrival_listener = pull.hold.arrived

    _restore_queue_locks(state, files, seat, replicas)
    staging = _make_staging(state, files, send, waiting, pull)

    _watch_topics(state, files, registration, send, growing, pull)
    following = None
    if config.is_slave:
        following = Following(state, registration, schedule, disk, seat, state_follower)
    return Services(
        store=store,
        state=state,
        files=files,
        registration=registration,
        schedule=schedule,
        timers=timers,
        timer_counts=timer_counts,
        carried=carried,
        transactions=transactions,
        send=send,
        delayed=delayed,
        timed=timed,
        half=half,
        growing=growing,
        filters=filters,
        pull=pull,
        bulk=BulkPullProcessor(state, pull),
        client=_make_client(state, files, filters, pull),
        queue_locks=QueueLockProcessor(state, *files.attach_queue_locks(state.queue_locks)),
        staging=staging,
        backlog=_make_backlog(state, files),
        replicas=replicas,
        following=following,
        seat=seat,
        journal=journal,
        state_follower=state_follower,
    )


def _no_journal(name: str) -> None:
    return None


def _count_transactions(
    state: BrokerState, files: BrokerFiles, transactions: TransactionService
) -> None:
    counts = TransactionCounts(
        transactions.halves,
        files.load_transaction_counts(),
        state.env.clock.now_ms,
        lambda name: name in state.topics.all(),
    )
    files.attach_transactions(counts)


def _restore_queue_locks(
    state: BrokerState, files: BrokerFiles, seat: Seat | None, replicas: ReplicaServer | None
) -> None:
    if replicas is not None:
        state.is_surely_master = replicas.is_surely_master
    owners = files.load_queue_locks()
    # A slave of a set grants none, so its file changes only with what the master says.
    if owners is not None and (seat is None or not state.config.is_slave):
        state.queue_locks.restore(owners, state.env.clock.now_ms())


def _open_journal(
    config: BrokerConfig,
    env: Environment,
    disk: Disk,
    store: MessageStore,
    seat: Seat | None,
) -> tuple[StateJournal | None, StateFollower | None]:
    """Put into the files of tables what masters have said of them, before they are read."""
    if seat is None:
        return None, None
    follower = StateFollower(disk, f"{config.store_path()}/config", store)
    follower.follow()
    follower.put_into_files()
    if config.is_slave:
        return None, follower
    return StateJournal(store, env, seat.master_epoch), follower


def _epoch_of(seat: Seat | None) -> int:
    return 0 if seat is None else seat.master_epoch


def _make_send(
    state: BrokerState,
    files: BrokerFiles,
    kinds: tuple[SendKind, ...],
    waiting: WaitingItems,
    growing: GrowingTopics,
) -> SendProcessor:
    sequences = files.open_sequences(state.store)
    return SendProcessor(state, (SequencedKind(sequences), *kinds), waiting, growing, sequences)


def _make_client(
    state: BrokerState, files: BrokerFiles, filters: FilterService, pull: PullProcessor
) -> ClientProcessor:
    when_saved = files.attach_shares(state.shares)
    return ClientProcessor(state, filters, pull.hold.group_changed, when_saved)


def _watch_topics(
    state: BrokerState,
    files: BrokerFiles,
    registration: RegistrationService,
    send: SendProcessor,
    growing: GrowingTopics,
    pull: PullProcessor,
) -> None:
    """Tell everybody who keeps something about topics of their changes."""
    state.watch_topics(
        changed=lambda _: send.forget_topics(), deleted=lambda _: send.forget_topics()
    )
    state.watch_topics(changed=growing.topic_changed, deleted=growing.topic_deleted)
    state.watch_topics(deleted=pull.hold.drop_topic)
    state.watch_topics(
        changed=lambda _: files.topics_changed(), deleted=lambda _: files.topics_changed()
    )
    state.watch_topics(changed=registration.topic_changed, deleted=registration.topic_deleted)


def _make_staging(
    state: BrokerState,
    files: BrokerFiles,
    send: SendProcessor,
    waiting: WaitingItems,
    pull: PullProcessor,
) -> StagingService:
    ledger_file, tokens = files.load_staging(), StagedTokens()
    ledger = Ledger(ledger_file)
    is_saved, save = files.attach_staging(ledger, lambda: tokens.first_needed_offset(state.store))
    return StagingService(
        state, send, waiting, ledger_file, ledger, tokens, is_saved, save, pull.hold.grown
    )


def _make_backlog(state: BrokerState, files: BrokerFiles) -> BacklogService:
    saved = files.load_skipped()
    if saved is not None:
        state.skipped.restore(saved.skips(state.store.end_of_queue))
    service = BacklogService(state)
    state.when_skipped_saved = files.attach_skipped(state.skipped, service.revision)
    written = state.groups_changed

    def groups_changed() -> None:
        written()
        service.soon()

    state.groups_changed = groups_changed
    return service


def handlers(services: Services, disk: Disk, config_path: str | None) -> dict[int, Handler]:
    """Map each request code to its processor.

    `config_path` is the properties file that changes of the configuration are written to.
    """
    state, send, pull = services.state, services.send, services.pull
    client, transactions = services.client, services.transactions
    offset = OffsetProcessor(state)
    lookup = LookupProcessor(state)
    send_back = SendBackProcessor(state, send, services.delayed, services.timed)
    reply = ReplyProcessor(state, send)
    live_config = LiveConfig(state, services.files, services.registration, send.forget_topics)
    writer = ConfigWriter(disk, config_path, state.config.store_path())
    table: dict[int, Handler] = {
        Code.SEND_MESSAGE: send.send_long,
        Code.SEND_MESSAGE_V2: send.send,
        Code.SEND_BATCH_MESSAGE: send.send_checked,
        Code.SEND_REPLY_MESSAGE: reply.reply,
        Code.SEND_REPLY_MESSAGE_V2: reply.reply,
        Code.PULL_MESSAGE: pull.pull,
        Code.LITE_PULL_MESSAGE: pull.pull,
        BulkPullCode.BULK_PULL: services.bulk.pull,
        WhyCode.WHY: WhyProcessor(state, pull, offset.acknowledgements).why,
        LogRangeCode.READ_LOG_RANGE: LogRangeProcessor(state).read,
        LogRangeCode.LOG_DIGEST: LogRangeProcessor(state).digest,
        Code.QUERY_CONSUMER_OFFSET: offset.query,
        Code.UPDATE_CONSUMER_OFFSET: offset.update,
        Code.SEARCH_OFFSET_BY_TIMESTAMP: offset.search,
        Code.GET_MAX_OFFSET: offset.max_offset,
        Code.GET_MIN_OFFSET: offset.min_offset,
        Code.GET_EARLIEST_MSG_STORETIME: offset.earliest_time,
        Code.HEART_BEAT: client.heartbeat,
        Code.UNREGISTER_CLIENT: client.unregister,
        Code.GET_CONSUMER_LIST_BY_GROUP: client.consumer_list,
        Code.CHECK_CLIENT_CONFIG: client.check_config,
        Code.CONSUMER_SEND_MSG_BACK: send_back.send_back,
        Code.QUERY_MESSAGE: lookup.query,
        Code.VIEW_MESSAGE_BY_ID: lookup.view,
        Code.END_TRANSACTION: transactions.end,
        Code.RESUME_CHECK_HALF_MESSAGE: ResumeProcessor(state, transactions.added_again).resume,
    }
    for codes in (
        services.queue_locks.handlers(),
        services.staging.handlers(),
        RecallProcessor(state, send, services.timed).handlers(),
        AdminProcessor(state, services.schedule).handlers(),
        ProgressProcessor(state).handlers(),
        BacklogProcessor(state, services.backlog).handlers(),
        ConsumeQueueProcessor(state, services.filters).handlers(),
        ClientListProcessor(state).handlers(),
        StatsProcessor(state, services.schedule, services.timers).handlers(),
        ElsewhereProcessor(state).handlers(),
        ConfigProcessor(state, writer, live_config.apply).handlers(),
        ClientCallProcessor(state, pull.hold.offset_moved).handlers(),
        {} if services.timer_counts is None else services.timer_counts.handlers(),
    ):
        table.update(codes)
    timers = services.timers
    replication = ReplicationProcessor(
        state,
        services.replicas,
        services.following,
        None if timers is None else lambda: timers.checkpoint,
    )
    table.update(replication.handlers())
    if services.seat is not None:
        table.update(SetProcessor(state, services.seat, services.replicas).handlers())
    if services.following is not None:
        table.update(slave_refusals(state.config))
    return table


def _system_topics(config: BrokerConfig) -> list[TopicConfig]:
    return system_topics(
        cluster=config.broker_cluster_name,
        broker_name=config.broker_name,
        default_queue_count=config.default_topic_queue_nums,
        revive_queue_count=config.revive_queue_num,
        auto_create=config.auto_create_topic_enable,
        cluster_topic=config.cluster_topic_enable,
        broker_topic=config.broker_topic_enable,
        trace_topic=config.msg_trace_topic_name if config.trace_topic_enable else None,
        timer=config.timer_wheel_enable,
    )


def _load_offsets(
    config: BrokerConfig, files: BrokerFiles, store: MessageStore, now_ms: int, *, is_whole: bool
) -> ConsumerOffsetTable:
    """Read the consumer offsets; send groups back to them where the log may have lost its end."""
    offsets = files.load_consumer_offsets()
    if not may_lose(config) or not files.note_start(now_ms, is_whole=is_whole):
        return offsets
    ends = {
        (topic, queue_id): ConsumerOffset(store.end_of_queue(topic, queue_id))
        for topic in store.topics()
        for queue_id in store.queues(topic)
    }
    count = offsets.begin_again(ends, now_ms)
    log.info("the power was cut: groups go on from their committed offsets in %d queues", count)
    return offsets


def _load_shares(
    files: BrokerFiles, offsets: ConsumerOffsetTable, now_ms: int
) -> FilterShares[ServerConnection]:
    """Read what the groups want, and how far each of their shares has read."""
    saved = files.load_shares()
    if saved is None:
        return FilterShares(offsets, ConsumerOffsetTable())
    own = ConsumerOffsetTable() if offsets.is_after_loss else saved.offsets()
    shares = FilterShares[ServerConnection](offsets, own)
    shares.restore(saved.shares(), now_ms)
    return shares


def _seed_topics(
    config: BrokerConfig, files: BrokerFiles, topics: TopicTable, store: MessageStore, now_ms: int
) -> None:
    """Create the topics that every broker has, and those that a damaged file has lost."""
    topics.seed(_system_topics(config), now_ms)
    if not files.are_topics_sound:
        _adopt_queues(topics, store, now_ms)


def _adopt_queues(topics: TopicTable, store: MessageStore, now_ms: int) -> None:
    """Create the topics anew that have queues but no configuration, after topics.json was lost.

    Their acknowledged messages must stay readable.  With a sound topics.json a topic without an
    entry was deleted, and its queues come from older records that recovery found in the log.
    """
    for topic in store.topics():
        queues = store.queues(topic)
        if topic in topics or is_system_topic(topic) or not queues:
            continue
        count = max(queues) + 1
        log.warning(
            "topic %s has %d queues with messages but is not in topics.json: created again",
            topic,
            count,
        )
        topics.put(TopicConfig(topic, count, count), now_ms)
