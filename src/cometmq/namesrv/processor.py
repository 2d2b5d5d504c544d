"""The name server's answers: one method for each request code.

Each method decodes a request, asks `core.RouteTable` or `KvConfig`, and encodes the answer.  None
of them blocks.

Java writes numbers as map keys without quotes (`{0:"host:port"}`), which is not JSON.  Clients that
announce version 401 (4.9.4) or `acceptStandardJsonOnly` get quoted keys in routes; older clients,
and all other bodies, keep Java's form.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from cometmq.codec.crc import body_crc
from cometmq.codec.java_properties import parse_properties
from cometmq.core.topic.route_table import (
    BROKER_TIMEOUT_MS,
    BrokerMember,
    BrokerRegistration,
    RouteTable,
)
from cometmq.errors import ConfigError, ResponseCode
from cometmq.model.topic import BrokerData, DataVersion, TopicConfig
from cometmq.namesrv.config import NameServerConfig, updated_config
from cometmq.namesrv.kv_config import ORDER_TOPIC_NAMESPACE, KvConfig
from cometmq.net.server import Handler, ServerConnection
from cometmq.wire.body.route import (
    decode_data_version,
    decode_register_broker_body,
    decode_topic_route,
    encode_cluster_info,
    encode_data_version,
    encode_kv_table,
    encode_member_group,
    encode_topic_list,
    encode_topic_route,
)
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand, encode_command
from cometmq.wire.header.namesrv import (
    AddWritePermResponseHeader,
    BrokerHeartbeatHeader,
    BrokerIdentityHeader,
    BrokerMemberGroupHeader,
    BrokerNameHeader,
    ClusterHeader,
    DeleteTopicInNamesrvHeader,
    GetKvResponseHeader,
    GetRouteHeader,
    KvKeyHeader,
    NamespaceHeader,
    PutKvHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerHeader,
    RegisterBrokerResponseHeader,
    RegisterTopicHeader,
    WipeWritePermResponseHeader,
)

__all__ = ["NameServerProcessor"]

log = logging.getLogger("cometmq.namesrv")

_Answer = RemotingCommand | None
SaveConfig = Callable[
    [NameServerConfig, Mapping[str, str], Callable[[Exception | None], None]], None
]
"""``(config, changed keys, done)``."""

# 4.9.4 is the first client that reads routes with a strict JSON parser.
QUOTED_KEYS_VERSION: Final = 401
EMPTY: Final[dict[str, str]] = {}
FAQ: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
"""The hint that RocketMQ appends to a remark; clients show it to people."""


class NameServerProcessor:
    """Answers on one `RouteTable` and one `KvConfig`."""

    def __init__(
        self,
        config: NameServerConfig,
        routes: RouteTable,
        kv_config: KvConfig,
        *,
        started_ms: int,
        save_config: SaveConfig,
    ) -> None:
        self.config = config
        self._routes = routes
        self._kv = kv_config
        self._started_ms = started_ms
        self._save_config = save_config

    def handlers(self) -> dict[int, Handler]:
        """Map each code to its method; the server answers every other code with 3."""
        return {
            RequestCode.PUT_KV_CONFIG: self.put_kv,
            RequestCode.GET_KV_CONFIG: self.get_kv,
            RequestCode.DELETE_KV_CONFIG: self.delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self.get_kv_list,
            RequestCode.REGISTER_BROKER: self.register_broker,
            RequestCode.UNREGISTER_BROKER: self.unregister_broker,
            RequestCode.QUERY_DATA_VERSION: self.query_data_version,
            RequestCode.BROKER_HEARTBEAT: self.broker_heartbeat,
            RequestCode.GET_BROKER_MEMBER_GROUP: self.get_member_group,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.get_cluster_info,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.get_route,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.get_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.get_topics_of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.get_system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self.get_unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self.get_unit_sub_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self.get_unit_sub_ununit_topics,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self.register_topic,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self.wipe_write_perm,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self.add_write_perm,
            RequestCode.UPDATE_NAMESRV_CONFIG: self.update_config,
            RequestCode.GET_NAMESRV_CONFIG: self.get_config,
        }

    # -- routes -------------------------------------------------------------------------------

    def get_route(self, request: RemotingCommand, _: ServerConnection, now_ms: int) -> _Answer:
        """105: 17 for an unknown topic, which makes clients ask for TBW102."""
        header = GetRouteHeader.from_command(request)
        config = self.config
        if config.need_wait_for_service:
            ready_ms = self._started_ms + config.wait_seconds_for_service * 1000
            if now_ms < ready_ms:
                return request.answer(ResponseCode.SYSTEM_ERROR, "name server not ready")
        topic = header.topic or ""
        route = self._routes.route(topic)
        if route is None:
            return request.answer(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {header.topic or 'null'}{FAQ}",
            )
        order_conf = None
        if config.order_message_enable:
            order_conf = self._kv.get(ORDER_TOPIC_NAMESPACE, topic)
        quoted = bool(header.accept_standard_json_only) or request.version >= QUOTED_KEYS_VERSION
        return request.answer(
            ResponseCode.SUCCESS,
            body=encode_topic_route(route, order_conf, quoted_keys=quoted),
        )

    def get_topics(self, request: RemotingCommand, _: ServerConnection, __: int) -> _Answer:
        """206: every topic with a queue, system topics included."""
        if not self.config.enable_all_topic_list:
            return request.answer(ResponseCode.SYSTEM_ERROR, "disable")
        return _topic_list(request, self._routes.topics())

    def get_topics_of_cluster(
        self, request: RemotingCommand, _: ServerConnection, __: int
    ) -> _Answer:
        """224."""
        header = ClusterHeader.from_command(request)
        return self._list_or_refuse(request, lambda: self._routes.topics_of_cluster(header.cluster))

    def get_system_topics(self, request: RemotingCommand, _: ServerConnection, __: int) -> _Answer:
        """304: names of clusters and brokers, which every broker registers as topics."""
        names, address = self._routes.system_topics()
        return _topic_list(request, names, address)

    def get_unit_topics(self, request: RemotingCommand, _: ServerConnection, __: int) -> _Answer:
        """311."""
        return self._list_or_refuse(request, lambda: self._routes.topics_by_unit(unit=True))

    def get_unit_sub_topics(
        self, request: RemotingCommand, _: ServerConnection, __: int
    ) -> _Answer:
        """312."""
        return self._list_or_refuse(request, lambda: self._routes.topics_by_unit(unit_sub=True))

    def get_unit_sub_ununit_topics(
        self, request: RemotingCommand, _: ServerConnection, __: int
    ) -> _Answer:
        """313."""
        return self._list_or_refuse(
            request, lambda: self._routes.topics_by_unit(unit=False, unit_sub=True)
        )

    def register_topic(self, request: RemotingCommand, _: ServerConnection, __: int) -> _Answer:
        """217: answered 0 in any case, as Java does; a broker that is unknown adds nothing."""
        header = RegisterTopicHeader.from_command(request)
        if request.body:
            queue_datas = decode_topic_route(request.body).queue_datas
            if not self._routes.register_topic(header.topic, queue_datas):
                log.warning("topic %s not registered: unknown broker", header.topic)
        return request.answer(ResponseCode.SUCCESS)

    def delete_topic(self, request: RemotingCommand, _: ServerConnection, __: int) -> _Answer:
        """216."""
        header = DeleteTopicInNamesrvHeader.from_command(request)
        self._routes.delete_topic(header.topic, header.cluster_name)
        return request.answer(ResponseCode.SUCCESS)

    # -- brokers ------------------------------------------------------------------------------

    def register_broker(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> _Answer:
        """103: over this connection; when it closes, the broker is gone."""
        header = RegisterBrokerHeader.from_command(request)
        if header.body_crc32 and header.body_crc32 != body_crc(request.body):
            return request.answer(ResponseCode.SYSTEM_ERROR, "crc32 not match", EMPTY)
        version, topics = _registered_topics(request, compressed=header.compressed)
        member = BrokerMember(
            header.cluster_name, header.broker_name, header.broker_id, header.broker_addr
        )
        timeout_ms = header.heartbeat_timeout_ms
        registration = BrokerRegistration(
            member,
            header.ha_server_addr,
            version,
            topics,
            BROKER_TIMEOUT_MS if timeout_ms is None else timeout_ms,
            header.enable_acting_master,
        )
        is_new = self._routes.data_version(member.cluster, member.address) is None
        result = self._routes.register(registration, connection, now_ms)
        if not result.accepted:
            return request.answer(ResponseCode.SYSTEM_ERROR, "register broker failed", EMPTY)
        if is_new:
            log.info("broker registered: %s with %d topics", member, len(topics))
        body = b""
        if self.config.return_order_topic_config_to_broker:
            order_table = self._kv.table(ORDER_TOPIC_NAMESPACE)
            if order_table is not None:
                body = encode_kv_table(order_table)
        answer = RegisterBrokerResponseHeader(result.ha_address, result.master_address)
        return request.answer(ResponseCode.SUCCESS, None, answer.to_ext(), body)

    def unregister_broker(self, request: RemotingCommand, _: ServerConnection, __: int) -> _Answer:
        """104."""
        header = BrokerIdentityHeader.from_command(request)
        member = BrokerMember(
            header.cluster_name, header.broker_name, header.broker_id, header.broker_addr
        )
        self._routes.unregister(member)
        log.info("broker unregistered: %s", member)
        return request.answer(ResponseCode.SUCCESS)

    def query_data_version(
        self, request: RemotingCommand, _: ServerConnection, now_ms: int
    ) -> _Answer:
        """322: whether the broker should register again; a sign of life as well."""
        header = BrokerIdentityHeader.from_command(request)
        cluster, address = header.cluster_name, header.broker_addr
        changed = self._routes.is_changed(cluster, address, decode_data_version(request.body))
        self._routes.touch(cluster, address, now_ms)
        version = self._routes.data_version(cluster, address)
        body = b"" if version is None else encode_data_version(version)
        answer = QueryDataVersionResponseHeader(changed)
        return request.answer(ResponseCode.SUCCESS, None, answer.to_ext(), body)

    def broker_heartbeat(
        self, request: RemotingCommand, _: ServerConnection, now_ms: int
    ) -> _Answer:
        """904."""
        header = BrokerHeartbeatHeader.from_command(request)
        self._routes.touch(header.cluster_name, header.broker_addr, now_ms)
        return request.answer(ResponseCode.SUCCESS)

    def get_member_group(self, request: RemotingCommand, _: ServerConnection, __: int) -> _Answer:
        """901: with the remark of Java's answer."""
        header = BrokerMemberGroupHeader.from_command(request)
        group = BrokerData(
            header.cluster_name, header.broker_name, self._routes.member_group(header.broker_name)
        )
        return request.answer(
            ResponseCode.SUCCESS,
            "not set any response code",
            body=encode_member_group(group),
        )

    def get_cluster_info(self, request: RemotingCommand, _: ServerConnection, __: int) -> _Answer:
        """106."""
        brokers, clusters = self._routes.cluster_info()
        return request.answer(ResponseCode.SUCCESS, body=encode_cluster_info(brokers, clusters))

    def wipe_write_perm(self, request: RemotingCommand, _: ServerConnection, __: int) -> _Answer:
        """205: an unknown broker has no topics, so its count is 0."""
        header = BrokerNameHeader.from_command(request)
        count = self._routes.wipe_write_perm(header.broker_name)
        log.info("write permission of %s wiped from %d topics", header.broker_name, count)
        return request.answer(
            ResponseCode.SUCCESS, None, WipeWritePermResponseHeader(count).to_ext()
        )

    def add_write_perm(self, request: RemotingCommand, _: ServerConnection, __: int) -> _Answer:
        """327."""
        header = BrokerNameHeader.from_command(request)
        count = self._routes.add_write_perm(header.broker_name)
        log.info("write permission of %s given back to %d topics", header.broker_name, count)
        return request.answer(
            ResponseCode.SUCCESS, None, AddWritePermResponseHeader(count).to_ext()
        )

    # -- KV and configuration -----------------------------------------------------------------

    def put_kv(self, request: RemotingCommand, connection: ServerConnection, _: int) -> _Answer:
        """100: answered when the file is on disk."""
        header = PutKvHeader.from_command(request)
        self._kv.put(header.namespace, header.key, header.value, _answer_later(request, connection))
        return None

    def get_kv(self, request: RemotingCommand, _: ServerConnection, __: int) -> _Answer:
        """101."""
        header = KvKeyHeader.from_command(request)
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            return request.answer(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace} Key: {header.key}",
                EMPTY,
            )
        return request.answer(ResponseCode.SUCCESS, None, GetKvResponseHeader(value).to_ext())

    def delete_kv(self, request: RemotingCommand, connection: ServerConnection, _: int) -> _Answer:
        """102: 0 also for what was never there."""
        header = KvKeyHeader.from_command(request)
        self._kv.delete(header.namespace, header.key, _answer_later(request, connection))
        return None

    def get_kv_list(self, request: RemotingCommand, _: ServerConnection, __: int) -> _Answer:
        """219."""
        header = NamespaceHeader.from_command(request)
        table = self._kv.table(header.namespace)
        if table is None:
            return request.answer(
                ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace}"
            )
        return request.answer(ResponseCode.SUCCESS, body=encode_kv_table(table))

    def update_config(
        self, request: RemotingCommand, connection: ServerConnection, _: int
    ) -> _Answer:
        """318: all of the given keys or none; Java silently ignores bad values."""
        changes = parse_properties(request.body.decode("utf-8", "replace"))
        if self.config.black_list() & changes.keys():
            return request.answer(
                ResponseCode.NO_PERMISSION, "Can not update config in black list."
            )
        try:
            self.config = updated_config(self.config, changes)
        except ConfigError as error:
            return request.answer(ResponseCode.INVALID_PARAMETER, str(error))
        log.info("configuration changed by %s: %s", connection.peer, changes)
        self._routes.support_acting_master = self.config.support_acting_master
        self._routes.delete_missing_topics = self.config.delete_topic_with_broker_registration
        self._save_config(self.config, changes, _answer_later(request, connection))
        return None

    def get_config(self, request: RemotingCommand, _: ServerConnection, __: int) -> _Answer:
        """319."""
        return request.answer(ResponseCode.SUCCESS, body=self.config.properties_text().encode())

    # -- helpers ------------------------------------------------------------------------------

    def _list_or_refuse(
        self, request: RemotingCommand, topics: Callable[[], tuple[str, ...]]
    ) -> RemotingCommand:
        if not self.config.enable_topic_list:
            return request.answer(ResponseCode.SYSTEM_ERROR, "disable")
        return _topic_list(request, topics())


def _registered_topics(
    request: RemotingCommand, *, compressed: bool
) -> tuple[DataVersion, tuple[TopicConfig, ...]]:
    """Give data version and topics of a registration of any client version."""
    if not request.body:
        return DataVersion(), ()
    wrapper = decode_register_broker_body(
        request.body, compressed=compressed, version=request.version
    )
    return wrapper.data_version, tuple(wrapper.topics.values())


def _topic_list(
    request: RemotingCommand, topics: tuple[str, ...], address: str | None = None
) -> RemotingCommand:
    return request.answer(ResponseCode.SUCCESS, body=encode_topic_list(topics, address))


def _answer_later(
    request: RemotingCommand, connection: ServerConnection
) -> Callable[[Exception | None], None]:
    """Make a callback that answers `request` when a file is written."""

    def done(error: Exception | None) -> None:
        if request.is_oneway:
            return
        if error is None:
            connection.send(encode_command(request.answer(ResponseCode.SUCCESS)))
        else:
            connection.send(encode_command(request.answer(ResponseCode.SYSTEM_ERROR, str(error))))

    return done
