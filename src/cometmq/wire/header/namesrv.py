"""Headers of the name server's codes (docs/internals/protocol.md#name-server) and of brokers among
themselves."""

from cometmq.wire.header.header import Header, Int32, Int64, wire_names

__all__ = [
    "AddWritePermResponseHeader",
    "BrokerHeartbeatHeader",
    "BrokerIdentityHeader",
    "BrokerMemberGroupHeader",
    "BrokerNameHeader",
    "ClusterHeader",
    "DeleteTopicInNamesrvHeader",
    "GetKvResponseHeader",
    "GetRouteHeader",
    "HaInfoHeader",
    "KvKeyHeader",
    "NamespaceHeader",
    "PutKvHeader",
    "QueryDataVersionResponseHeader",
    "RegisterBrokerHeader",
    "RegisterBrokerResponseHeader",
    "RegisterTopicHeader",
    "WipeWritePermResponseHeader",
]


class GetRouteHeader(Header):
    """GET_ROUTEINFO_BY_TOPIC 105; no topic means an unknown one."""

    topic: str | None = None
    accept_standard_json_only: bool | None = None


class PutKvHeader(Header):
    """PUT_KV_CONFIG 100."""

    namespace: str
    key: str
    value: str


class KvKeyHeader(Header):
    """GET_KV_CONFIG 101 and DELETE_KV_CONFIG 102."""

    namespace: str
    key: str


class GetKvResponseHeader(Header):
    """Answer to 101."""

    value: str | None = None


class NamespaceHeader(Header):
    """GET_KVLIST_BY_NAMESPACE 219."""

    namespace: str


class RegisterBrokerHeader(
    Header, rename=wire_names(heartbeat_timeout_ms="heartbeatTimeoutMillis")
):
    """REGISTER_BROKER 103; ``body_crc32`` 0 means unchecked."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    heartbeat_timeout_ms: Int64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int32 = 0


class RegisterBrokerResponseHeader(Header):
    """Answer to 103; both are for slaves whose master is known."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class BrokerIdentityHeader(Header):
    """UNREGISTER_BROKER 104 and QUERY_DATA_VERSION 322."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionResponseHeader(Header):
    """Answer to 322."""

    changed: bool


class BrokerHeartbeatHeader(
    Header, rename=wire_names(heartbeat_timeout_ms="heartbeatTimeoutMills")
):
    """BROKER_HEARTBEAT 904 (whose timeout is spelled differently from 103's)."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Int64 | None = None
    epoch: Int32 | None = None
    max_offset: Int64 | None = None
    confirm_offset: Int64 | None = None
    heartbeat_timeout_ms: Int64 | None = None
    election_priority: Int32 | None = None


class BrokerMemberGroupHeader(Header):
    """GET_BROKER_MEMBER_GROUP 901."""

    cluster_name: str
    broker_name: str


class BrokerNameHeader(Header):
    """WIPE_WRITE_PERM_OF_BROKER 205 and ADD_WRITE_PERM_OF_BROKER 327."""

    broker_name: str


class WipeWritePermResponseHeader(Header):
    """Answer to 205."""

    wipe_topic_count: Int32


class AddWritePermResponseHeader(Header):
    """Answer to 327."""

    add_topic_count: Int32


class ClusterHeader(Header):
    """GET_TOPICS_BY_CLUSTER 224."""

    cluster: str


class DeleteTopicInNamesrvHeader(Header):
    """DELETE_TOPIC_IN_NAMESRV 216."""

    topic: str
    cluster_name: str | None = None


class RegisterTopicHeader(Header):
    """REGISTER_TOPIC_IN_NAMESRV 217."""

    topic: str


class HaInfoHeader(Header):
    """EXCHANGE_BROKER_HA_INFO 906, both ways."""

    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None
