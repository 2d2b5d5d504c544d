"""The operations of the admin clients, as coroutines over `Io`.

They cover topics, groups, offsets, messages by id and key, and cluster information.  The asyncio
and the blocking `Admin` share them.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cometmq.client.admin.access import AccessCalls
from cometmq.client.admin.backlog import BacklogCalls
from cometmq.client.admin.checkup import CheckupCalls
from cometmq.client.admin.figures import FigureCalls
from cometmq.client.admin.lag_explained import LagCalls
from cometmq.client.admin.online_clients import OnlineCalls
from cometmq.client.admin.open_transactions import OpenTransaction, open_transactions_of
from cometmq.client.admin.replicas import Replica, has_whole_log, replicas_of
from cometmq.client.admin.traces import TraceCalls
from cometmq.client.admin.whereabouts import WhyCalls
from cometmq.client.base.arguments import check_count, checked_topic, name_list
from cometmq.client.base.calls import BrokerCalls
from cometmq.client.base.reading import QueueReader
from cometmq.client.base.routes import MASTER_ID, RouteBook
from cometmq.client.base.transport import Io
from cometmq.client.extensions.growing_admin import GrowthCalls
from cometmq.client.message.message import ReceivedMessage, split_messages
from cometmq.codec.ids import decode_offset_message_id
from cometmq.codec.java_properties import parse_properties
from cometmq.core.topic.selector import publish_queues, subscribe_queues
from cometmq.errors import (
    CodecError,
    CometError,
    ConfigError,
    NoRoute,
    QueryNotFound,
    RemoteError,
    RequestNotSupported,
    RequestTimeout,
    ResponseCode,
    TopicNotExist,
    remote_error,
)
from cometmq.model import (
    BrokerData,
    MessageQueue,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicRoute,
)
from cometmq.model.flags import PERM_READ, PERM_WRITE
from cometmq.model.names import (
    DEFAULT_TOPIC,
    is_system_group,
    is_system_topic,
    park_topic,
    retry_topic,
)
from cometmq.model.offsets import ConsumerOffset
from cometmq.wire.body.admin import (
    decode_consumer_offsets,
    decode_group_config_wrapper,
    decode_group_list,
    encode_group_config,
)
from cometmq.wire.body.client import ResetOffsetBody
from cometmq.wire.body.ha import HaStatus, decode_ha_status
from cometmq.wire.body.route import decode_cluster_info, decode_kv_table, decode_topic_list
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.extensions.step_down import STEP_DOWN, StepDownHeader
from cometmq.wire.header.admin import DeleteGroupHeader, TopicHeader
from cometmq.wire.header.controller import MasterHeader
from cometmq.wire.header.headers import (
    CreateTopicHeader,
    QueryMessageHeader,
    ResetOffsetHeader,
    ViewMessageHeader,
)
from cometmq.wire.header.namesrv import BrokerNameHeader

__all__ = ["AdminCalls", "ClusterInfo", "OffsetRange", "QueueProgress"]

NEVER_MS: Final = 2**63 - 1
LOOK_EVERY_MS: Final = 200
WRITES_ENDED_MS: Final = 900_000
"""An end of writes that is forgotten is over by itself."""
QUEUE_COUNT: Final = 8
"""Queues of a topic that is created without a number (``defaultTopicQueueNums``)."""


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """Brokers by name, and broker names by cluster."""

    brokers: dict[str, BrokerData]
    clusters: dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets of a queue's messages: from ``min_offset`` to before ``max_offset``."""

    min_offset: int
    max_offset: int

    @property
    def count(self) -> int:
        """Messages in the queue."""
        return max(0, self.max_offset - self.min_offset)


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """A group's progress in a queue; ``consumer_offset`` is None without a stored offset."""

    broker_offset: int
    consumer_offset: int | None

    @property
    def lag(self) -> int:
        """Messages the group has not consumed."""
        return max(0, self.broker_offset - (self.consumer_offset or 0))


class AdminCalls(
    GrowthCalls,
    OnlineCalls,
    CheckupCalls,
    AccessCalls,
    FigureCalls,
    LagCalls,
    WhyCalls,
    BacklogCalls,
    TraceCalls,
):
    """Administration of the cluster that a list of name servers knows."""

    def __init__(self, io: Io, routes: RouteBook, timeout_ms: int) -> None:
        self._io = io
        self._routes = routes
        self._calls = BrokerCalls(io, timeout_ms)

    async def _ask_name_server(self, command: RemotingCommand) -> RemotingCommand:
        answer = await self._routes.ask(command)
        if answer.code != 0:
            raise remote_error(answer.code, answer.remark)
        return answer

    # -- cluster ----------------------------------------------------------------------------

    async def cluster_info(self) -> ClusterInfo:
        """All brokers and clusters."""
        answer = await self._ask_name_server(
            RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO)
        )
        brokers, clusters = decode_cluster_info(answer.body)
        return ClusterInfo(brokers, clusters)

    async def _masters(
        self, cluster: str | None = None, broker_name: str | None = None
    ) -> dict[str, str]:
        """Addresses of masters by broker name, of one cluster or one broker if given."""
        info = await self.cluster_info()
        wanted = set(info.brokers)
        if cluster is not None:
            if cluster not in info.clusters:
                raise ConfigError(
                    f"no cluster is called {cluster}; there are {', '.join(info.clusters)}"
                )
            wanted &= set(info.clusters[cluster])
        if broker_name is not None:
            if broker_name not in wanted:
                raise ConfigError(
                    f"no broker is called {broker_name}; there are {', '.join(sorted(wanted))}"
                )
            wanted = {broker_name}
        masters = {
            name: address
            for name in sorted(wanted)
            if (address := info.brokers[name].master_address) is not None
        }
        if not masters:
            raise NoRoute(
                "no broker with a master is registered at "
                f"{';'.join(self._routes.name_servers)}; start one with cometmq broker"
            )
        return masters

    async def broker_runtime_info(self, broker_name: str) -> dict[str, str]:
        """A broker's figures by RocketMQ's names (``brokerStatus``).

        Raises:
            ConfigError: no broker has this name.
        """
        return await self.runtime_info_at(
            (await self._masters(broker_name=broker_name))[broker_name]
        )

    async def runtime_info_at(self, address: str) -> dict[str, str]:
        """The figures of the broker, master or slave, at an address."""
        answer = await self._calls.ask(
            address, RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO)
        )
        return decode_kv_table(answer.body)

    async def replicas(self, broker_name: str | None = None) -> list[Replica]:
        """Masters and slaves of one broker name, or of all: where each log ends, who follows.

        A broker that does not answer has a row that says so.

        Raises:
            ConfigError: no broker has this name.
        """
        brokers = (await self.cluster_info()).brokers
        if broker_name is not None and broker_name not in brokers:
            raise ConfigError(
                f"no broker is called {broker_name}; there are {', '.join(sorted(brokers))}"
            )
        request = RemotingCommand.request(RequestCode.GET_BROKER_HA_STATUS)
        rows: list[Replica] = []
        for name in sorted(brokers) if broker_name is None else [broker_name]:
            addresses = brokers[name].broker_addrs
            answers: dict[int, HaStatus | Exception] = {}
            for broker_id, address in addresses.items():
                try:
                    answer = await self._calls.ask(address, request)
                    answers[broker_id] = decode_ha_status(answer.body)
                except CometError as error:
                    answers[broker_id] = error
            rows += replicas_of(name, addresses, answers)
        return rows

    async def end_writes(self, broker_name: str, *, wait_ms: int = 60_000) -> list[Replica]:
        """End the writes at a master, and wait until a slave has its whole log.

        Name servers no longer show the master to producers (``wipeWritePerm``).  The master refuses
        sends, which producers try again elsewhere or later, for `WRITES_ENDED_MS`
        (``startAcceptSendRequestTimeStamp``), and messages that consumers send back
        (``brokerPermission=4``).

        Returns the rows of the last look (`replicas`).

        Raises:
            ConfigError: no broker has this name.
            NoRoute: no slave follows the master; nothing was changed.
            RequestTimeout: no slave has everything in time; writes are ended nevertheless, and
                `allow_writes` allows them again.
        """
        rows = await self.replicas(broker_name)
        if not any(row.state == "following" for row in rows):
            states = ", ".join(f"id {row.broker_id} is {row.state}" for row in rows)
            raise NoRoute(
                f"no slave follows the master of {broker_name} ({states}); nothing was changed."
                " Start a slave and wait until cometmq replica status shows it as following"
            )
        until_ms = int(time.time() * 1000) + WRITES_ENDED_MS  # noqa: TID251 - the broker compares
        await self._change_writes(
            broker_name, PERM_READ, until_ms, RequestCode.WIPE_WRITE_PERM_OF_BROKER
        )
        last_end: int | None = None
        for _ in range(max(2, wait_ms // LOOK_EVERY_MS)):
            rows = await self.replicas(broker_name)
            # Sends that were under way when writes ended may come in between two looks.
            if has_whole_log(rows, last_end):
                return rows
            last_end = next((row.log_end for row in rows if row.state == "master"), None)
            await self._io.sleep(LOOK_EVERY_MS / 1000)
        states = ", ".join(f"id {row.broker_id} is {row.state} at {row.log_end}" for row in rows)
        raise RequestTimeout(
            f"after {wait_ms} ms no slave of {broker_name} has the master's whole log ({states});"
            " writes are ended: end them again to wait longer, or allow them"
        )

    async def step_down(self, broker_name: str, broker_id: int | None = None) -> MasterHeader:
        """Have the master of a replica set hand its mastership over; return who is the master.

        Requests wait until the in-sync replica has everything, and its sends until it serves.

        Args:
            broker_id: the replica that is to be the master; None for any that is in sync.

        Raises:
            ConfigError: no broker has this name.
            RemoteError: it stays the master; the text says why.
        """
        address = (await self._masters(broker_name=broker_name))[broker_name]
        request = RemotingCommand.request(STEP_DOWN, StepDownHeader(broker_id).to_ext())
        return MasterHeader.from_command(await self._calls.ask(address, request))

    async def allow_writes(self, broker_name: str) -> None:
        """Undo `end_writes`: the master takes sends, and name servers show it.

        Raises:
            ConfigError: no broker has this name.
        """
        await self._change_writes(
            broker_name, PERM_READ | PERM_WRITE, 0, RequestCode.ADD_WRITE_PERM_OF_BROKER
        )

    async def _change_writes(
        self, broker_name: str, permission: int, refused_until_ms: int, code: int
    ) -> None:
        settings = {
            "brokerPermission": str(permission),
            "startAcceptSendRequestTimeStamp": str(refused_until_ms),
        }
        # With another permission the broker registers its topics again.
        await self.change_broker_config(broker_name, settings)
        for name_server in self._routes.name_servers:
            fields = BrokerNameHeader(broker_name).to_ext()
            await self._calls.ask(name_server, RemotingCommand.request(code, fields))

    async def broker_config(self, broker_name: str) -> str:
        """A broker's configuration as properties text.

        Raises:
            ConfigError: no broker has this name.
        """
        address = (await self._masters(broker_name=broker_name))[broker_name]
        answer = await self._calls.ask(
            address, RemotingCommand.request(RequestCode.GET_BROKER_CONFIG)
        )
        return answer.body.decode()

    async def open_transactions(self) -> list[OpenTransaction]:
        """The half messages of all brokers that wait for their end, oldest first.

        Raises:
            CometError: a broker does not answer, or refuses.
        """
        matches: list[OpenTransaction] = []
        reader = self.queue_reader()
        for name, address in (await self._masters()).items():
            self._routes.learn_addresses([BrokerData("", name, {MASTER_ID: address})])
            settings = parse_properties(await self.broker_config(name))
            matches += await open_transactions_of(name, address, reader, settings)
        return sorted(matches, key=lambda transaction: transaction.born_ms)

    # -- topics -----------------------------------------------------------------------------

    async def create_topic(
        self,
        topic: str,
        *,
        queue_count: int = QUEUE_COUNT,
        read_queue_count: int | None = None,
        write_queue_count: int | None = None,
        perm: int = PERM_READ | PERM_WRITE,
        order: bool = False,
        attributes: str | None = None,
        cluster: str | None = None,
        broker_name: str | None = None,
    ) -> None:
        """Create or change a topic on every master (of a cluster), or on one broker.

        The topic is in the routes when this returns.

        Raises:
            ConfigError: an illegal name or number of queues.
            RemoteError: a broker refused.
        """
        topic = checked_topic(topic)
        check_count("queue_count", queue_count, 0)
        reads = queue_count if read_queue_count is None else read_queue_count
        writes = queue_count if write_queue_count is None else write_queue_count
        if reads < 0 or writes < 0 or max(reads, writes) == 0:
            raise ConfigError(
                f"the topic {topic} needs at least one queue; asked for {reads} to read and "
                f"{writes} to write"
            )
        header = CreateTopicHeader(
            topic,
            DEFAULT_TOPIC,
            reads,
            writes,
            perm,
            order=order,
            topic_sys_flag=0,
            attributes=attributes,
        )
        masters = await self._masters(cluster, broker_name)
        for address in masters.values():
            command = RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())
            await self._calls.ask(address, command)
        self._routes.forget(topic)

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic with its messages on all brokers and name servers.

        Raises:
            TopicNotExist: no name server has the topic.
        """
        if await self._routes.fetch(topic) is None:
            raise TopicNotExist(ResponseCode.TOPIC_NOT_EXIST, f"the topic {topic} does not exist")
        ext = TopicHeader(topic).to_ext()
        for address in (await self._masters(cluster)).values():
            await self._calls.ask(
                address, RemotingCommand.request(RequestCode.DELETE_TOPIC_IN_BROKER, dict(ext))
            )
        for address in self._routes.name_servers:
            await self._calls.ask(
                address, RemotingCommand.request(RequestCode.DELETE_TOPIC_IN_NAMESRV, dict(ext))
            )
        self._routes.forget(topic)

    async def topic_list(self, *, include_system: bool = False) -> list[str]:
        """Sorted names of all topics; retry, dead-letter and system topics only on request."""
        answer = await self._ask_name_server(
            RemotingCommand.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        )
        topics = sorted(decode_topic_list(answer.body).topics)
        if include_system:
            return topics
        info = await self.cluster_info()
        own = set(info.clusters) | set(info.brokers)
        own |= {f"{cluster}_REPLY_TOPIC" for cluster in info.clusters}
        return [
            topic
            for topic in topics
            if not is_system_topic(topic) and not topic.startswith("%") and topic not in own
        ]

    async def topic_route(self, topic: str) -> TopicRoute:
        """The brokers of a topic and their numbers of queues.

        Raises:
            NoRoute: the topic does not exist.
        """
        self._routes.forget(topic)
        return await self._routes.find(topic)

    async def topic_config(self, topic: str) -> dict[str, TopicConfig]:
        """The topic's settings by broker name.

        Raises:
            NoRoute: the topic does not exist.
        """
        route = await self.topic_route(topic)
        configs: dict[str, TopicConfig] = {}
        for broker in route.broker_datas:
            if broker.master_address is None:
                continue
            config = await self._calls.topic_config(broker.master_address, topic)
            if config is not None:
                configs[broker.broker_name] = config
        return configs

    async def topic_at_masters(
        self, topic: str, *, cluster: str | None = None, broker_name: str | None = None
    ) -> dict[str, TopicConfig | None]:
        """The topic's settings at every master (of a cluster), or at one; None where it is missing.

        Raises:
            ConfigError: the cluster or the broker does not exist.
        """
        configs: dict[str, TopicConfig | None] = {}
        for name, address in (await self._masters(cluster, broker_name)).items():
            try:
                configs[name] = await self._calls.topic_config(address, topic)
            except RequestNotSupported:  # an old broker of RocketMQ 4
                configs[name] = await self._routed_config(topic, name)
        return configs

    async def _routed_config(self, topic: str, broker_name: str) -> TopicConfig | None:
        """The topic's queues and permission at a broker by its route, without further settings."""
        try:
            route = await self.topic_route(topic)
        except NoRoute:
            return None
        for data in route.queue_datas:
            if data.broker_name == broker_name:
                return TopicConfig(topic, data.read_queue_count, data.write_queue_count, data.perm)
        return None

    async def topic_groups(self, topic: str) -> list[str]:
        """Consumer groups that are online on the topic or have stored offsets of it.

        Raises:
            NoRoute: the topic does not exist.
        """
        groups: set[str] = set()
        ext = TopicHeader(topic).to_ext()
        for broker in (await self.topic_route(topic)).broker_datas:
            if broker.master_address is not None:
                command = RemotingCommand.request(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, ext)
                answer = await self._calls.ask(broker.master_address, command)
                groups |= set(decode_group_list(answer.body))
        return sorted(groups)

    async def topic_offsets(self, topic: str) -> dict[MessageQueue, OffsetRange]:
        """The offsets of each queue's messages.

        Raises:
            NoRoute: the topic does not exist.
        """
        route = await self.topic_route(topic)
        queues = sorted(set(subscribe_queues(topic, route)) | set(publish_queues(topic, route)))
        return {
            queue: OffsetRange(await self.min_offset(queue), await self.max_offset(queue))
            for queue in queues
        }

    # -- queues -----------------------------------------------------------------------------

    async def _address(self, queue: MessageQueue) -> str:
        address = self._routes.any_address(queue.broker_name)
        if address is None:
            await self._routes.find(queue.topic)
            address = self._routes.any_address(queue.broker_name)
        if address is None:
            raise NoRoute(f"no address is known for the broker {queue.broker_name} of {queue}")
        return address

    async def max_offset(self, queue: MessageQueue) -> int:
        """The next offset to be written."""
        return await self._calls.max_offset(await self._address(queue), queue)

    async def min_offset(self, queue: MessageQueue) -> int:
        """The smallest offset that still has its message."""
        return await self._calls.min_offset(await self._address(queue), queue)

    async def search_offset(
        self, queue: MessageQueue, timestamp_ms: int, *, boundary: str = "LOWER"
    ) -> int:
        """First offset stored at or after a time (LOWER), or the last at it (UPPER)."""
        address = await self._address(queue)
        return await self._calls.search_offset(address, queue, timestamp_ms, boundary)

    async def earliest_store_time(self, queue: MessageQueue) -> int:
        """When the oldest message was stored, ms since 1970; -1 for an empty queue."""
        return await self._calls.earliest_store_time(await self._address(queue), queue)

    # -- groups -----------------------------------------------------------------------------

    async def group_list(self, *, include_system: bool = False) -> list[str]:
        """Sorted names of all consumer groups."""
        groups: set[str] = set()
        for address in (await self._masters()).values():
            answer = await self._calls.ask(
                address, RemotingCommand.request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            )
            groups |= set(decode_group_config_wrapper(answer.body).groups)
        if include_system:
            return sorted(groups)
        return sorted(group for group in groups if not is_system_group(group))

    async def group_configs(self, group: str) -> dict[str, SubscriptionGroupConfig]:
        """The group's settings by broker name; empty if no broker knows the group."""
        configs: dict[str, SubscriptionGroupConfig] = {}
        for name, address in (await self._masters()).items():
            answer = await self._calls.ask(
                address, RemotingCommand.request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            )
            config = decode_group_config_wrapper(answer.body).groups.get(group)
            if config is not None:
                configs[name] = config
        return configs

    async def create_group(
        self,
        config: SubscriptionGroupConfig,
        *,
        cluster: str | None = None,
        broker_name: str | None = None,
    ) -> None:
        """Create or change a consumer group on every master, those of a cluster, or one.

        ``config.attributes`` are changes (``{"+name": "value"}``, ``{"-name": ""}``).
        """
        for address in (await self._masters(cluster, broker_name)).values():
            command = RemotingCommand.request(
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, encode_group_config(config)
            )
            await self._calls.ask(address, command)

    async def delete_group(self, group: str, *, clean_offsets: bool = False) -> None:
        """Delete a consumer group on every master."""
        for address in (await self._masters()).values():
            header = DeleteGroupHeader(group, clean_offsets)
            await self._calls.ask(
                address,
                RemotingCommand.request(RequestCode.DELETE_SUBSCRIPTIONGROUP, header.to_ext()),
            )

    async def consumer_list(self, group: str) -> list[str]:
        """Client ids of the group's members that are online."""
        members: set[str] = set()
        for address in (await self._masters()).values():
            members |= set(await self._calls.consumer_ids(address, group))
        return sorted(members)

    async def group_topics(self, group: str) -> list[str]:
        """Topics for which the group has stored offsets; its retry and parking topics left out."""
        topics: set[str] = set()
        for address in (await self._masters()).values():
            answer = await self._calls.ask(
                address, RemotingCommand.request(RequestCode.GET_ALL_CONSUMER_OFFSET)
            )
            for key in decode_consumer_offsets(answer.body).offsets:
                topic, _, owner = key.partition("@")
                if owner == group and topic not in (retry_topic(group), park_topic(group)):
                    topics.add(topic)
        return sorted(topics)

    async def group_offsets(
        self, group: str, topics: Iterable[str] | None = None
    ) -> dict[MessageQueue, QueueProgress]:
        """The group's progress by queue, in these topics or in all that it has offsets for."""
        progress: dict[MessageQueue, QueueProgress] = {}
        for topic in (
            sorted(name_list(topics)) if topics is not None else await self.group_topics(group)
        ):
            route = await self.topic_route(topic)
            for queue in subscribe_queues(topic, route):
                address = await self._address(queue)
                progress[queue] = QueueProgress(
                    await self._calls.max_offset(address, queue),
                    await self._calls.consumer_offset(address, group, queue),
                )
        return progress

    async def commit_offsets(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Store offsets for a group whose members are offline; members would overwrite them."""
        for queue, queue_offset in offsets.items():
            await self._calls.commit(
                await self._address(queue), group, queue, ConsumerOffset(queue_offset), wait=True
            )

    async def reset_offsets(
        self, group: str, topic: str, *, timestamp_ms: int | None = None
    ) -> dict[MessageQueue, int]:
        """Move a group to a time (None: to the end) in every queue, and return the new offsets.

        The brokers tell the members (INVOKE_BROKER_TO_RESET_OFFSET), which continue at the new
        offsets at once.  Where a broker refuses and the group has no members, the offsets are
        stored.  A broker that has just started and does not know the members yet tells them with
        their next pull.  Until then it keeps the order in memory and refuses commits of the group.

        Raises:
            NoRoute: the topic does not exist.
            RemoteError: a broker refused although the group has members there.
        """
        route = await self.topic_route(topic)
        moment = -1 if timestamp_ms is None else timestamp_ms
        ext = ResetOffsetHeader(topic, group, moment, is_force=True).to_ext()
        offsets: dict[MessageQueue, int] = {}
        for data in route.broker_datas:
            address = data.broker_addrs[MASTER_ID]
            command = RemotingCommand.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)
            try:
                answer = await self._calls.ask(address, command)
            except RemoteError:
                # Brokers before 5.0 move only groups that have members.
                if await self._calls.consumer_ids(address, group):
                    raise
            else:
                offsets |= ResetOffsetBody.decode(answer.body).offsets
                continue
            for queue in subscribe_queues(topic, route):
                if queue.broker_name != data.broker_name:
                    continue
                if timestamp_ms is None:
                    offsets[queue] = await self.max_offset(queue)
                else:
                    offsets[queue] = await self.search_offset(queue, timestamp_ms)
                await self.commit_offsets(group, {queue: offsets[queue]})
        return offsets

    async def reset_queue_offsets(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Move a group to an offset in each of these queues; online members continue there.

        Raises:
            ConfigError: the group has online members, and their broker moves groups by time only.
            RemoteError: a broker refused, for example an offset that the queue does not have.
        """
        by_time_only: dict[str, bool] = {}
        for queue, queue_offset in offsets.items():
            name, address = queue.broker_name, await self._address(queue)
            if name not in by_time_only:
                # Such a broker ignores queue and offset of the request and moves all queues.
                settings = parse_properties(await self.broker_config(name))
                by_time_only[name] = settings.get("useServerSideResetOffset") != "true"
                if by_time_only[name] and await self._calls.consumer_ids(address, group):
                    raise ConfigError(
                        f"the broker {name} (useServerSideResetOffset=false) moves group {group} "
                        "in all queues of a topic only while members are online: stop the members"
                    )
            if by_time_only[name]:
                await self.commit_offsets(group, {queue: queue_offset})
                continue
            header = ResetOffsetHeader(queue.topic, group, -1, True, queue.queue_id, queue_offset)
            await self._calls.ask(
                address,
                RemotingCommand.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header.to_ext()),
            )

    # -- messages ---------------------------------------------------------------------------

    def queue_reader(self) -> QueueReader:
        """A reader of whole queues, over this client's connections."""
        return QueueReader(self._io, self._calls, self._routes)

    async def view_message(self, message_id: str, topic: str | None = None) -> ReceivedMessage:
        """A message by its offset message id, or, with ``topic``, by its unique id.

        Raises:
            QueryNotFound: there is no such message.
        """
        try:
            address, physical_offset = decode_offset_message_id(message_id)
        except CodecError:
            if topic is None:
                raise
        else:
            matches = await self._view_by_offset(address, physical_offset, topic)
            if matches is not None:
                return matches
        if topic is not None:
            messages = await self.query_message(topic, message_id, is_unique_id=True)
            if messages:
                return messages[0]
        raise QueryNotFound(ResponseCode.QUERY_NOT_FOUND, f"no message has the id {message_id}")

    async def _view_by_offset(
        self, address: str, physical_offset: int, topic: str | None
    ) -> ReceivedMessage | None:
        # A unique id has the length of an offset id, so only known brokers are contacted.
        info = await self.cluster_info()
        known = {
            member: broker.broker_name
            for broker in info.brokers.values()
            for member in broker.broker_addrs.values()
        }
        if address not in known:
            return None
        header = ViewMessageHeader(physical_offset, topic)
        command = RemotingCommand.request(RequestCode.VIEW_MESSAGE_BY_ID, header.to_ext())
        try:
            answer = await self._calls.ask(address, command)
        except RemoteError as error:
            if error.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.QUERY_NOT_FOUND):
                return None
            raise
        return _messages(answer.body, known[address])[0]

    async def query_message(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = 32,
        begin_ms: int = 0,
        end_ms: int = NEVER_MS,
        is_unique_id: bool = False,
    ) -> list[ReceivedMessage]:
        """Messages of a topic with a key (or unique id), oldest first."""
        route = await self.topic_route(topic)
        matches: list[ReceivedMessage] = []
        header = QueryMessageHeader(
            topic,
            key,
            count_max,
            begin_ms,
            end_ms,
            "U" if is_unique_id else "K",
            unique_key_query=is_unique_id,
        )
        for broker in route.broker_datas:
            address = self._routes.any_address(broker.broker_name)
            if address is None:
                continue
            command = RemotingCommand.request(RequestCode.QUERY_MESSAGE, header.to_ext())
            try:
                answer = await self._calls.ask(address, command)
            except QueryNotFound:
                continue
            for message in _messages(answer.body, broker.broker_name):
                # The index compares hashes, so compare the texts here.
                if is_unique_id and message.message_id != key:
                    continue
                if not is_unique_id and key not in message.keys:
                    continue
                matches.append(message)
        matches.sort(key=lambda message: message.store_timestamp_ms)
        return matches[:count_max]


def _messages(body: bytes, broker_name: str) -> list[ReceivedMessage]:
    """The messages of an answer, each with the queue that its record names."""
    messages = split_messages(body, MessageQueue("", broker_name, 0))
    for message in messages:
        stored = message.stored
        message.message_queue = MessageQueue(stored.topic, broker_name, stored.queue_id)
    return messages
