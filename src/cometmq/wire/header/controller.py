"""Headers of the controller's codes (docs/internals/protocol.md#controller).

Source: the header classes in ``header.controller`` of RocketMQ 5.4.0, and frames captured from its
brokers, controller and mqadmin.  ``invokeTime`` is for controllers that replicate by jRaft.
"""

from cometmq.wire.header.header import Header, Int32, Int64, wire_names

__all__ = [
    "AlterSyncStateSetHeader",
    "AlterSyncStateSetResponseHeader",
    "ApplyBrokerIdHeader",
    "CleanBrokerDataHeader",
    "ControllerBrokerHeader",
    "ControllerRegisterHeader",
    "ControllerRegisterResponseHeader",
    "ElectMasterHeader",
    "MasterHeader",
    "MetadataInfoHeader",
    "NextBrokerIdResponseHeader",
    "ReplicaInfoHeader",
    "ReplicaInfoResponseHeader",
]


class AlterSyncStateSetHeader(Header):
    """CONTROLLER_ALTER_SYNC_STATE_SET 1001; the members are in the body."""

    broker_name: str
    master_broker_id: Int64
    master_epoch: Int32
    invoke_time_ms: Int64 | None = None


class AlterSyncStateSetResponseHeader(Header):
    """Answer to 1001."""

    new_sync_state_set_epoch: Int32


class ElectMasterHeader(Header):
    """CONTROLLER_ELECT_MASTER 1002; no id, or -1, when the controller elects by itself."""

    cluster_name: str
    broker_name: str
    broker_id: Int64 | None = None
    designate_elect: bool = False
    invoke_time_ms: Int64 | None = None


class MasterHeader(Header):
    """Answer to 1002, also with code 2011, and NOTIFY_BROKER_ROLE_CHANGED 1008."""

    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None


class ControllerRegisterHeader(Header):
    """CONTROLLER_REGISTER_BROKER 1003; ``cometmqUnclean`` is ours: the broker may have lost what it
    had acknowledged."""

    cluster_name: str
    broker_name: str
    broker_id: Int64
    broker_address: str
    invoke_time_ms: Int64 | None = None
    cometmq_unclean: bool | None = None


class ControllerRegisterResponseHeader(MasterHeader):
    """Answer to 1003; the fields of a master only while one is alive."""

    cluster_name: str | None = None
    broker_name: str | None = None


class ReplicaInfoHeader(Header):
    """CONTROLLER_GET_REPLICA_INFO 1004."""

    broker_name: str


class ReplicaInfoResponseHeader(Header):
    """Answer to 1004; the epoch of the SyncStateSet is in the body."""

    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None


class MetadataInfoHeader(Header):
    """Answer to CONTROLLER_GET_METADATA_INFO 1005: who leads; each peer ends with a semicolon."""

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str | None = None


class CleanBrokerDataHeader(
    Header, rename=wire_names(broker_ids_to_clean="brokerControllerIdsToClean")
):
    """CLEAN_BROKER_DATA 1011; ids are joined by semicolons, none means the whole set."""

    broker_name: str
    cluster_name: str | None = None
    broker_ids_to_clean: str | None = None
    is_clean_living_broker: bool = False
    invoke_time_ms: Int64 | None = None


class ControllerBrokerHeader(Header):
    """CONTROLLER_GET_NEXT_BROKER_ID 1012, and the answer to 1013."""

    cluster_name: str
    broker_name: str


class NextBrokerIdResponseHeader(Header):
    """Answer to 1012."""

    cluster_name: str
    broker_name: str
    next_broker_id: Int64


class ApplyBrokerIdHeader(Header):
    """CONTROLLER_APPLY_BROKER_ID 1013; the check code is ``host:port;milliseconds``."""

    cluster_name: str
    broker_name: str
    applied_broker_id: Int64
    register_check_code: str
