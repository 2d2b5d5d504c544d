"""The broker: opens the store, wires processors, listens, registers, and stops cleanly.

Job: order of start and stop, timers, and which processor serves which code.  It must not decide
anything about messages.

Start: lock and recover the store, load the tables, listen, register, begin the timers.
Stop: unregister, accept no more, close the connections, then write the tables and the store, so
that what was answered is on disk when `stop` returns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from cometmq.broker.admin.clients import ClientListProcessor
from cometmq.broker.admin.config import ConfigProcessor, ConfigWriter
from cometmq.broker.admin.progress import ProgressProcessor
from cometmq.broker.admin.queue import ConsumeQueueProcessor
from cometmq.broker.admin.stats import StatsProcessor
from cometmq.broker.admin.topics_and_groups import AdminProcessor
from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.base.state import BrokerState
from cometmq.broker.clients.calls import ClientCallProcessor
from cometmq.broker.clients.heartbeats import EXPIRY_SCAN_MS, ClientProcessor
from cometmq.broker.clients.queue_locks import QueueLockProcessor
from cometmq.broker.clients.send_back import SendBackProcessor
from cometmq.broker.delay.levels.schedule import ScheduleService
from cometmq.broker.delay.opening import open_timers
from cometmq.broker.delay.wheel.recall import RecallProcessor
from cometmq.broker.delay.wheel.service import TimerService
from cometmq.broker.extensions.bulk_pull import BulkPullProcessor
from cometmq.broker.extensions.staging.service import StagingService
from cometmq.broker.files.carrying import CarriedGoods, carry
from cometmq.broker.files.persistence import BrokerFiles
from cometmq.broker.live_config import LiveConfig
from cometmq.broker.pull.filters import FilterService
from cometmq.broker.pull.lookup import LookupProcessor
from cometmq.broker.pull.offset import OffsetProcessor
from cometmq.broker.pull.pull import PullProcessor
from cometmq.broker.registration import Registration
from cometmq.broker.send.reply import ReplyProcessor
from cometmq.broker.send.send import SendProcessor
from cometmq.broker.transaction.counts import TransactionCounts
from cometmq.broker.transaction.resume import ResumeProcessor
from cometmq.broker.transaction.service import TransactionService
from cometmq.codec.ids import HOST_V4_BYTES, encode_host
from cometmq.core.delay.levels import DelayLevels
from cometmq.core.topic.topic_table import TopicTable, system_topics
from cometmq.errors import CometError, ConfigError, LocalProtocolError
from cometmq.model.names import is_system_topic
from cometmq.model.topic import DataVersion, TopicConfig
from cometmq.net.env import Environment
from cometmq.net.network import format_address, local_ip
from cometmq.net.server import Handler, RemotingServer, ServerConnection
from cometmq.store.base.config import StoreConfig
from cometmq.store.base.disk import Disk
from cometmq.store.base.results import RecoveryReport
from cometmq.store.message_store import MessageStore
from cometmq.wire.body.bodies import (
    TopicConfigWrapper,
    encode_data_version,
    encode_register_broker_body,
)
from cometmq.wire.command.codes import RequestCode as Code
from cometmq.wire.extensions.bulk_pull import BulkPullCode
from cometmq.wire.header.fast_decode import EndCommand, SendCommand

__all__ = ["Broker"]

log = logging.getLogger("cometmq.broker")

Progress = Callable[[str, int, int], None]
CONFIG_WRITE_WAIT_S = 10.0
"""How long a stop waits for a configuration write that a worker has begun."""
_VIP_PORT_DISTANCE = 2
"""Clients up to 4.4.0 send to the port two below (wire.md 5.6)."""


class Broker:
    """One broker process' worth of everything; `await start()`, `await stop()`, each once.

    Args:
        config: what the operator said.
        env: clock, chance, network and workers.
        disk: where the store lives.
        config_path: the properties file that changes of the configuration are written to.
    """

    def __init__(
        self,
        config: BrokerConfig,
        env: Environment,
        disk: Disk,
        *,
        config_path: str | None = None,
    ) -> None:
        self.config = config
        self._config_path = config_path
        self.env = env
        self.recovery: RecoveryReport | None = None
        """What opening the store took, once started."""
        self.carried: CarriedGoods | None = None
        """What the store holds for a Java broker, once started."""
        self._disk = disk
        self._handlers: dict[int, Handler] = {}
        self._server = RemotingServer(
            env,
            self._handlers,
            on_open=self._opened,
            on_close=self._closed,
        )
        self._delay = DelayLevels(config.message_delay_level)
        self._files = BrokerFiles(config, disk, env.workers)
        self._port = 0
        self._address = ""
        self._store: MessageStore | None = None
        self._state: BrokerState | None = None
        self._schedule: ScheduleService | None = None
        self._pull: PullProcessor | None = None
        self._bulk: BulkPullProcessor | None = None
        self._client: ClientProcessor | None = None
        self._filters: FilterService | None = None
        self._was_killed = False
        self._queue_locks: QueueLockProcessor | None = None
        self._staging: StagingService | None = None
        self._timers: TimerService | None = None
        self._transactions: TransactionService | None = None
        self._send: SendProcessor | None = None
        self._registration: Registration | None = None
        self._expiry: asyncio.TimerHandle | None = None

    # -- what others ask ------------------------------------------------------------------

    @property
    def address(self) -> str:
        """``host:port`` that is announced to name servers and in message ids."""
        return self._address

    @property
    def port(self) -> int:
        """The bound port, also when 0 was configured."""
        return self._port

    @property
    def state(self) -> BrokerState:
        """Tables and store, once started; for tests and tools in the same process."""
        assert self._state is not None
        return self._state

    @property
    def filters(self) -> FilterService:
        """SQL92 filters, once started; for tests and tools in the same process."""
        assert self._filters is not None
        return self._filters

    @property
    def staging(self) -> StagingService:
        """Staged batches, once started; for tests and tools in the same process."""
        assert self._staging is not None
        return self._staging

    @property
    def timers(self) -> TimerService:
        """Exact timers, once started and switched on; for tests and tools in the same process."""
        assert self._timers is not None
        return self._timers

    @property
    def transactions(self) -> TransactionService:
        """Open transactions, once started; for tests and tools in the same process."""
        assert self._transactions is not None
        return self._transactions

    # -- start ----------------------------------------------------------------------------

    async def start(self, progress: Progress | None = None) -> None:
        """Open the store, listen and register.

        `progress` is told of long recoveries: what, done, total.

        Raises:
            StoreLocked: another process has the store directory; the text names it.
            StoreError: the store or a configuration file cannot be opened.
            ConnectFailed: the port cannot be bound.
            ConfigError: a setting fits no such machine (brokerIP1).
        """
        config = self.config
        ip = config.advertised_ip(local_ip())
        # With port 0 the address, which every message carries, is known only after binding.
        self._port = config.listen_port or await self._server.listen(config.bind_address, 0)
        try:
            self._address = format_address(ip, self._port)
            self._open_store(progress)
            self._build()
            if config.listen_port:
                await self._server.listen(config.bind_address, config.listen_port)
                await self._listen_vip()
            await self._begin()
        except BaseException:
            # Give back what was taken; nothing was acknowledged, so nothing is to be written.
            if self._state is not None:
                self._state.stats.stop()
            self._state = None
            await self.stop()
            if self._store is not None:
                self._store.close()
            raise

    def _open_store(self, progress: Progress | None) -> None:
        try:
            host = encode_host(self._address)
        except LocalProtocolError as error:
            raise ConfigError(
                f"brokerIP1={self.config.broker_ip1} is not accepted: expected an IP address"
            ) from error
        self._was_killed = self._disk.exists(f"{self.config.store_path()}/abort")
        self._store = MessageStore(
            _store_config(self.config, self._delay, host),
            self._disk,
            self.env.workers,
            self.env.clock.now_ms,
        )
        self.recovery = self._store.load(progress)

    def _build(self) -> None:
        """Load the tables and make the processors."""
        assert self._store is not None
        config, env, store = self.config, self.env, self._store
        now_ms = env.clock.now_ms()
        topics = self._files.load_topics()
        groups = self._files.load_groups()
        offsets = self._files.load_consumer_offsets()
        topics.seed(_system_topics(config), now_ms)
        if not self._files.are_topics_sound:
            _adopt_queues(topics, store, now_ms)
        groups.seed(now_ms)
        state = BrokerState(config, env, store, topics, groups, offsets, self._delay, self._address)
        self._state = state
        schedule = ScheduleService(state, *self._files.load_delay_offsets())
        self._schedule = schedule
        self._files.attach(topics, groups, offsets, schedule)
        opened = open_timers(state, self._disk, schedule)
        if opened is not None:
            self._timers, counts = opened
            counts.take(self._files.load_timer_counts())
            self._files.attach_timers(counts)
            self._handlers.update(counts.handlers())
        self.carried = carry(
            store, self._disk, schedule, self.env.workers, has_timers=self._timers is not None
        )
        self._send = SendProcessor(state, schedule, self._timers)
        self._transactions = TransactionService(state)
        self._send.half_added = self._transactions.added
        self._send.half_runs.added = self._transactions.added_kept
        halves, counted = self._transactions.halves, self._files.load_transaction_counts()
        self._files.attach_transactions(
            TransactionCounts(halves, counted, env.clock.now_ms, lambda name: name in topics.all())
        )
        filters = FilterService(
            lambda: state.config,
            self._files.load_filters(),
            now_ms,
            was_killed=self._was_killed,
        )
        self._filters = filters
        self._files.attach_filters(filters)
        if config.enable_consume_queue_ext and config.enable_calc_filter_bit_map:
            store.extend_queues(filters.bitmaps)
        self._pull = PullProcessor(state, filters)
        self._bulk = BulkPullProcessor(state, self._pull)
        self._client = ClientProcessor(state, filters)
        self._queue_locks = QueueLockProcessor(state)
        held = self._files.load_queue_locks()
        if held is not None:
            state.queue_locks.restore(held, now_ms)
        self._files.attach_queue_locks(state.queue_locks, self._queue_locks)
        staging = StagingService(
            state, self._files.load_staging(), self._pull.hold.grown, self._send.waiting
        )
        self._staging = staging
        self._files.attach_staging(staging)
        store.arrival_listener = self._pull.hold.arrived
        state.disk_usage = lambda: self._disk.usage(config.store_path())
        state.topics_written = self._files.topics_written
        state.when_topics_saved = self._files.when_saved("topics.json")
        state.when_groups_saved = self._files.when_saved("subscriptionGroup.json")
        state.when_offsets_saved = self._files.when_saved("consumerOffset.json")
        state.on_topic_changed = self._topic_changed
        state.on_topic_deleted = self._topic_deleted
        state.on_groups_changed = self._files.groups_changed
        self._handlers.update(self._processors(state, schedule))
        self._server.runs = {
            SendCommand: self._send.send_run,
            EndCommand: self._transactions.end_run,
        }

    def _processors(self, state: BrokerState, schedule: ScheduleService) -> dict[int, Handler]:
        assert self._send is not None
        assert self._pull is not None
        assert self._bulk is not None
        assert self._client is not None
        assert self._staging is not None
        assert self._transactions is not None
        offset = OffsetProcessor(state)
        lookup = LookupProcessor(state)
        send_back = SendBackProcessor(state, schedule, self._timers)
        reply = ReplyProcessor(state, self._send)
        handlers: dict[int, Handler] = {
            Code.SEND_MESSAGE: self._send.send_long,
            Code.SEND_MESSAGE_V2: self._send.send,
            Code.SEND_BATCH_MESSAGE: self._send.send_checked,
            Code.SEND_REPLY_MESSAGE: reply.reply,
            Code.SEND_REPLY_MESSAGE_V2: reply.reply,
            Code.PULL_MESSAGE: self._pull.pull,
            Code.LITE_PULL_MESSAGE: self._pull.pull,
            BulkPullCode.BULK_PULL: self._bulk.pull,
            Code.QUERY_CONSUMER_OFFSET: offset.query,
            Code.UPDATE_CONSUMER_OFFSET: offset.update,
            Code.SEARCH_OFFSET_BY_TIMESTAMP: offset.search,
            Code.GET_MAX_OFFSET: offset.max_offset,
            Code.GET_MIN_OFFSET: offset.min_offset,
            Code.GET_EARLIEST_MSG_STORETIME: offset.earliest_time,
            Code.HEART_BEAT: self._client.heartbeat,
            Code.UNREGISTER_CLIENT: self._client.unregister,
            Code.GET_CONSUMER_LIST_BY_GROUP: self._client.consumer_list,
            Code.CHECK_CLIENT_CONFIG: self._client.check_config,
            Code.CONSUMER_SEND_MSG_BACK: send_back.send_back,
            Code.QUERY_MESSAGE: lookup.query,
            Code.VIEW_MESSAGE_BY_ID: lookup.view,
            Code.END_TRANSACTION: self._transactions.end,
            Code.RESUME_CHECK_HALF_MESSAGE: ResumeProcessor(state, self._transactions.added).resume,
        }
        assert self._queue_locks is not None
        handlers.update(self._queue_locks.handlers())
        handlers.update(self._staging.handlers())
        handlers.update(RecallProcessor(state, self._send, self._timers).handlers())
        handlers.update(AdminProcessor(state, schedule).handlers())
        handlers.update(ProgressProcessor(state).handlers())
        handlers.update(ConsumeQueueProcessor(state, self.filters).handlers())
        handlers.update(ClientListProcessor(state).handlers())
        handlers.update(StatsProcessor(state, schedule, self._timers).handlers())
        handlers.update(self._config_processor(state, self._send.forget_topics).handlers())
        handlers.update(ClientCallProcessor(state, self._pull.hold.offset_moved).handlers())
        return handlers

    def _config_processor(
        self, state: BrokerState, forget_topics: Callable[[], None]
    ) -> ConfigProcessor:
        live = LiveConfig(
            state,
            self._files,
            forget_topics,
            lambda config: _store_config(config, self._delay, state.host),
            lambda: self._registration,
        )

        def apply(config: BrokerConfig, keys: frozenset[str]) -> None:
            self.config = config
            live.apply(config, keys)

        writer = ConfigWriter(self._disk, self._config_path, self.config.store_path())
        return ConfigProcessor(state, writer, apply)

    async def _listen_vip(self) -> None:
        """Listen on the port of old clients too; somebody else having it is no fault."""
        port = self._port - _VIP_PORT_DISTANCE
        if port <= 0:
            return
        try:
            await self._server.listen(self.config.bind_address, port)
        except CometError as error:
            log.info("not serving clients up to 4.4.0 on their port: %s", error)

    async def _begin(self) -> None:
        """Start timers and register; from here on the broker serves."""
        assert self._store is not None
        assert self._schedule is not None
        assert self._staging is not None
        assert self._transactions is not None
        assert self._state is not None
        loop = asyncio.get_running_loop()
        self._store.start(loop.call_later)
        self._schedule.start()
        if self._timers is not None:
            self._timers.start()
        self._staging.start()
        self._transactions.start()
        assert self._send is not None
        self._send.growing.start(self._transactions.halves)
        self._state.stats.start()
        self._files.start()
        self._files.topics_changed()
        self._files.groups_changed()
        self._registration = self._make_registration(self._state)
        self._state.when_registered = self._registration.when_told
        self._expiry = loop.call_later(EXPIRY_SCAN_MS / 1000, self._scan_clients)
        await self._registration.start()

    def _make_registration(self, state: BrokerState) -> Registration:
        config = self.config
        identity = {
            "brokerName": config.broker_name,
            "brokerAddr": self._address,
            "clusterName": config.broker_cluster_name,
            "brokerId": "0",
            # The field must be there; it is empty because nobody listens for replicas.
            "haServerAddr": "",
        }

        def encode(topics: Iterable[TopicConfig]) -> bytes:
            perm = self.config.broker_permission
            table = {topic.topic: _masked(topic, perm) for topic in topics}
            version = DataVersion(self.env.clock.now_ms())
            wrapper = TopicConfigWrapper(table, state.topics.version, version, {}, {})
            return encode_register_broker_body(wrapper)

        return Registration(
            self.env,
            config.name_servers(),
            identity,
            lambda: state.topics.all().values(),
            encode,
            lambda: encode_data_version(state.topics.version),
            period_ms=config.register_name_server_period,
            timeout_ms=config.register_broker_timeout_mills,
        )

    # -- stop -----------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop serving and write everything; safe to call after a failed start.

        Raises:
            StoreError, OSError: the disk did not take the last writes.
        """
        if self._registration is not None:
            await self._registration.stop()
        self._server.stop_listening()
        self._files.cancel()
        if self._expiry is not None:
            self._expiry.cancel()
        if self._pull is not None:
            self._pull.hold.stop()
        if self._send is not None:
            self._send.growing.stop()
        services = (self._bulk, self._queue_locks, self._schedule, self._timers, self._staging)
        for service in services:
            if service is not None:
                service.stop()
        await self._server.stop()
        state, self._state = self._state, None
        if state is None:
            return
        if self._transactions is not None:
            self._transactions.stop()
        state.stats.stop()
        try:
            await self._files.settle(CONFIG_WRITE_WAIT_S)
            self._files.stop()
            if self._timers is not None:
                await self._timers.finish()
        finally:
            state.store.close()

    # -- events ---------------------------------------------------------------------------

    def _opened(self, connection: ServerConnection) -> None:
        """Give a client with an IPv6 address a 4-byte born host: others cannot read 16."""
        if len(connection.peer_host) != HOST_V4_BYTES:
            mapped = connection.peer_host[:12] == b"\0" * 10 + b"\xff\xff"
            ip = connection.peer_host[12:16] if mapped else b"\0\0\0\0"
            connection.peer_host = ip + connection.peer_host[16:20]

    def _closed(self, connection: ServerConnection) -> None:
        if self._pull is not None:
            self._pull.hold.drop_connection(connection)
        if self._bulk is not None:
            self._bulk.drop_connection(connection)
        if self._client is not None and self._state is not None:
            self._client.connection_closed(connection)

    def _topic_changed(self, config: TopicConfig) -> None:
        assert self._send is not None
        self._send.forget_topics()
        self._send.growing.topic_changed(config)
        self._files.topics_changed()
        if self._registration is not None:
            self._registration.topic_changed(_masked(config, self.config.broker_permission))

    def _topic_deleted(self, topic: str) -> None:
        assert self._send is not None
        assert self._pull is not None
        self._send.forget_topics()
        self._send.growing.topic_deleted(topic)
        self.state.consumers.forget_topic(topic)
        self._pull.hold.drop_topic(topic)
        self._files.topics_changed()
        if self._registration is not None:
            self._registration.table_changed()

    def _scan_clients(self) -> None:
        assert self._client is not None
        self._expiry = asyncio.get_running_loop().call_later(
            EXPIRY_SCAN_MS / 1000, self._scan_clients
        )
        assert self._queue_locks is not None
        now_ms = self.env.clock.now_ms()
        self._client.drop_expired(now_ms)
        self._queue_locks.drop_expired(now_ms)


def _masked(config: TopicConfig, broker_permission: int) -> TopicConfig:
    """Give the topic as name servers shall see it: the broker's own permission limits it."""
    if config.perm & broker_permission & 6 == config.perm & 6:
        return config
    perm = config.perm & (broker_permission | ~6)
    return TopicConfig(
        config.topic,
        config.read_queue_count,
        config.write_queue_count,
        perm,
        config.topic_filter_type,
        config.topic_sys_flag,
        config.order,
        config.attributes,
    )


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


def _adopt_queues(topics: TopicTable, store: MessageStore, now_ms: int) -> None:
    """Give topics that have queues but no configuration one again, after topics.json was lost.

    Their acknowledged messages must stay readable.  With a sound topics.json a topic without an
    entry was deleted, and its queues come from records of before that recovery found in the log.
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


def _store_config(config: BrokerConfig, delay: DelayLevels, host: bytes) -> StoreConfig:
    """Translate RocketMQ's keys into the store's settings."""
    return StoreConfig(
        root=config.store_path(),
        commit_log_path=config.commit_log_path(),
        commit_log_file_bytes=config.mapped_file_size_commit_log,
        consume_queue_file_bytes=config.mapped_file_size_consume_queue,
        consume_queue_ext_file_bytes=config.mapped_file_size_consume_queue_ext,
        index_slot_count=config.max_hash_slot_num,
        index_entry_count=config.max_index_num,
        is_index_enabled=config.message_index_enable,
        store_host=host,
        message_bytes_max=config.max_message_size,
        delays_ms=delay.delays_ms,
        is_sync_flush=config.flush_disk_type == "SYNC_FLUSH",
        sync_flush_timeout_ms=config.sync_flush_timeout,
        flush_interval_ms=config.flush_interval_commit_log,
        consume_queue_write_interval_ms=config.flush_interval_consume_queue,
        transfer_count_max=config.max_transfer_count_on_message_in_memory,
        transfer_bytes_max=config.max_transfer_bytes_on_message_in_memory,
        is_crc_appended=config.enabled_append_prop_crc,
        is_crc_checked_on_recover=config.check_crc_on_recover,
        is_record_crc_forced=config.force_verify_prop_crc,
        file_reserved_hours=config.file_reserved_time,
        delete_when=tuple(int(hour) for hour in config.delete_when.split(";")),
        delete_batch_max=config.delete_file_batch_max,
        clean_interval_ms=config.clean_resource_interval,
        disk_used_percent_max=config.disk_max_used_space_ratio,
        disk_clean_forcibly_percent=config.disk_space_clean_forcibly_ratio,
        disk_warning_percent=config.disk_space_warning_level_ratio,
        is_clean_forced=config.clean_file_forcibly_enable,
    )
