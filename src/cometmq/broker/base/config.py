"""Broker configuration: RocketMQ's property names, from a file, the environment and flags.

Turns ``broker.conf`` (Java properties) or TOML, ``COMETMQ_BROKER_*`` variables, ``NAMESRV_ADDR``
and ``key=value`` flags into one validated `BrokerConfig`.  Later sources win: defaults, file,
environment, flags.

Four kinds of keys exist.  *Effective* keys are the fields of `BrokerConfig`.  *Demands* may ask for
replication, protection or a store that this version does not have: values that ask for nothing are
accepted, all others end the start.  *Ignored* keys are the others that RocketMQ knows
(`cometmq.broker.base.config_keys`): they have no effect here, and are listed once at start.  Any
other key is refused with the nearest known name.

Environment: ``COMETMQ_BROKER_<KEY>`` with the key in upper case and optional underscores, for
example ``COMETMQ_BROKER_LISTEN_PORT`` for ``listenPort``; a key that begins with ``broker`` may
drop it (``COMETMQ_BROKER_NAME`` is ``brokerName``).  ``NAMESRV_ADDR`` is ``namesrvAddr``.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from cometmq.broker.base.config_keys import ROCKETMQ_KEYS
from cometmq.codec.java_properties import format_properties
from cometmq.core.base.settings import (
    TLS_DEMANDS,
    Demand,
    SettingTable,
    parse_settings,
    setting_text,
    unknown_key,
    values_of,
    with_tls_file,
)
from cometmq.errors import ConfigError
from cometmq.server.access.settings import AccessSettings

__all__ = [
    "DEMANDS",
    "ENVIRONMENT_PREFIX",
    "SMALL_LOG_FILE_BYTES",
    "BrokerConfig",
    "LoadedConfig",
    "changed_config",
    "effective_keys",
    "ignored_keys",
    "load_config",
    "parse_assignments",
]

ENVIRONMENT_PREFIX: Final = "COMETMQ_BROKER_"
SMALL_LOG_FILE_BYTES: Final = 64 << 20
"""mappedFileSizeCommitLog of new stores on a laptop: a log file takes all its blocks at once."""
_DEFAULT_DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_BLACK_LISTED_KEYS: Final = frozenset(
    {
        "brokerConfigPath",
        "configBlackList",
        "rocketmqHome",
        *AccessSettings.__struct_encode_fields__,
    }
)
_ANY_ADDRESS: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - recognised, not bound
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
_FALSE: Final = ("", "false")
_ONE: Final = ("0", "1")
_CONTROLLER: Final = "replica sets with a controller are not part of this version"
DEMANDS: Final[Mapping[str, Demand]] = {
    "totalReplicas": Demand(_ONE, _CONTROLLER, "set 1", value="1"),
    "allAckInSyncStateSet": Demand(
        ("", "false", "true"),
        "it is true in every replica set, whatever is written",
        "set true",
        value="false",
    ),
    "duplicationEnable": Demand(
        _FALSE,
        "a log that is written twice is not part of this version",
        "set false",
        value="false",
    ),
    "enableSlaveActingMaster": Demand(
        _FALSE,
        "slaves that act as masters are not part of this version",
        "set false",
        value="false",
    ),
    "enableDLegerCommitLog": Demand(
        _FALSE, "DLedger is not part of this version", "set false", value="false"
    ),
    "storeType": Demand(
        ("", "default"), "RocksDB queues are not supported", "set default", value="default"
    ),
    **TLS_DEMANDS,
}
"""Keys that may ask for what is not here; a broker that starts must do what its file says."""

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Count = Annotated[int, msgspec.Meta(ge=1, le=_INT32_MAX)]
Millis = Annotated[int, msgspec.Meta(ge=1, le=_INT32_MAX)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=127, pattern=r"^[%|a-zA-Z0-9_.-]+$")]
FileBytes = Annotated[int, msgspec.Meta(ge=4096, le=_INT32_MAX)]
Ratio = Annotated[int, msgspec.Meta(ge=1, le=99)]


def _java_name(field: str) -> str:
    """Give the RocketMQ spelling of a field: camel case, with its one irregular name."""
    if field == "broker_ip1":
        return "brokerIP1"
    if field == "broker_ip2":
        return "brokerIP2"
    if field == "check_crc_on_recover":
        return "checkCRCOnRecover"
    if field == "enabled_append_prop_crc":
        return "enabledAppendPropCRC"
    if field == "force_verify_prop_crc":
        return "forceVerifyPropCRC"
    head, *words = field.split("_")
    return head + "".join(word.capitalize() for word in words)


class BrokerConfig(AccessSettings, frozen=True, kw_only=True, rename=_java_name):
    """Everything a broker can be told; field names are RocketMQ's keys in snake case.

    Units are RocketMQ's: intervals in milliseconds, `file_reserved_time` in hours, sizes in
    bytes, ratios in percent.  `listen_port` 0 lets the system choose.  `staged_timeout_minutes`,
    `rebalance_lock_max_live_time`, `strict_subscriptions`, `absent_filter_retain_time` and
    `timer_deliver_rate` (messages a second, 0 for as many as possible) and `free_memory_min`
    (bytes) are our own.
    """

    # Who we are
    broker_cluster_name: Name = "DefaultCluster"
    broker_name: Name = "DEFAULT_BROKER"
    broker_ip1: str = ""
    listen_port: Port = 10911
    bind_address: str = "0.0.0.0"  # noqa: S104 - RocketMQ's default; README says how to narrow it
    namesrv_addr: str = ""
    region_id: str = "DefaultRegion"
    config_black_list: str = "configBlackList;brokerConfigPath"
    # Replication
    broker_role: Literal["", "ASYNC_MASTER", "SYNC_MASTER", "SLAVE"] = ""
    broker_id: Annotated[int, msgspec.Meta(ge=-1, le=_INT32_MAX)] = 0
    broker_ip2: str = ""
    ha_listen_port: Annotated[int, msgspec.Meta(ge=-1, le=65535)] = 0
    ha_master_address: str = ""
    ha_send_heartbeat_interval: Millis = 5000
    ha_housekeeping_interval: Millis = 20000
    ha_transfer_batch_size: Annotated[int, msgspec.Meta(ge=1, le=4194291)] = 32768
    ha_max_gap_not_in_sync: Count = 268435456
    ha_tls: bool = False
    in_sync_replicas: Annotated[int, msgspec.Meta(ge=0, le=_INT32_MAX)] = 1
    min_in_sync_replicas: Annotated[int, msgspec.Meta(ge=0, le=_INT32_MAX)] = 1
    slave_timeout: Millis = 3000
    slave_read_enable: bool = False
    access_message_in_memory_max_ratio: Ratio = 40
    # Replica sets with a controller
    enable_controller_mode: bool = False
    controller_addr: str = ""
    ha_max_time_slave_not_catchup: Millis = 2000
    broker_heartbeat_interval: Millis = 500
    controller_heart_beat_timeout_mills: Millis = 2000
    sync_broker_metadata_period: Millis = 1000
    broker_election_priority: Annotated[int, msgspec.Meta(ge=0, le=_INT32_MAX)] = _INT32_MAX
    # What clients may do
    broker_permission: Annotated[int, msgspec.Meta(ge=0, le=7)] = 6
    auto_create_topic_enable: bool = True
    auto_create_subscription_group: bool = True
    default_topic_queue_nums: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 8
    cluster_topic_enable: bool = True
    broker_topic_enable: bool = True
    trace_topic_enable: bool = False
    msg_trace_topic_name: Name = "RMQ_SYS_TRACE_TOPIC"
    trace_on: bool = True
    revive_queue_num: Count = 8
    start_accept_send_request_time_stamp: Annotated[int, msgspec.Meta(ge=0, le=_INT64_MAX)] = 0
    reject_transaction_message: bool = False
    lite_pull_message_enable: bool = True
    store_reply_message_enable: bool = True
    use_server_side_reset_offset: bool = True
    # Sizes
    max_message_size: Annotated[int, msgspec.Meta(ge=1, le=16 * 1024 * 1024)] = 4194304
    default_query_max_num: Count = 32
    max_transfer_bytes_on_message_in_memory: Count = 262144
    max_transfer_count_on_message_in_memory: Count = 32
    # Timers
    long_polling_enable: bool = True
    short_polling_time_mills: Millis = 1000
    notify_consumer_ids_changed_enable: bool = True
    channel_expired_timeout: Millis = 120000
    rebalance_lock_max_live_time: Millis = 60000
    strict_subscriptions: bool = False
    absent_filter_retain_time: Millis = 300000
    register_name_server_period: Annotated[int, msgspec.Meta(ge=10000, le=60000)] = 30000
    register_broker_timeout_mills: Millis = 24000
    flush_consumer_offset_interval: Millis = 5000
    consumer_offset_update_version_step: Count = 500
    flush_delay_offset_interval: Millis = 10000
    delay_offset_update_version_step: Count = 200
    message_delay_level: str = _DEFAULT_DELAY_LEVELS
    timer_wheel_enable: bool = True
    timer_precision_ms: Millis = 1000
    timer_roll_window_slot: Annotated[int, msgspec.Meta(ge=0, le=_INT32_MAX)] = 172800
    timer_max_delay_sec: Count = 31622400
    timer_flush_interval_ms: Millis = 1000
    timer_congest_num_each_slot: Annotated[int, msgspec.Meta(ge=1, le=_INT32_MAX)] = _INT32_MAX
    timer_deliver_rate: Annotated[int, msgspec.Meta(ge=0, le=_INT32_MAX)] = 0
    recall_message_enable: bool = True
    transaction_time_out: Millis = 6000
    transaction_check_max: Count = 15
    transaction_check_interval: Millis = 30000
    transaction_op_msg_max_size: Annotated[int, msgspec.Meta(ge=1, le=1048576)] = 4096
    transaction_op_batch_interval: Millis = 3000
    staged_timeout_minutes: Count = 1440
    # Store
    store_path_root_dir: str = "~/store"
    store_path_commit_log: str = ""
    mapped_file_size_commit_log: FileBytes = 1073741824
    mapped_file_size_timer_log: Annotated[int, msgspec.Meta(ge=4096, le=_INT32_MAX)] = 104857600
    mapped_file_size_consume_queue: Annotated[int, msgspec.Meta(ge=20, le=_INT32_MAX)] = 6000000
    flush_disk_type: Literal["ASYNC_FLUSH", "SYNC_FLUSH"] = "ASYNC_FLUSH"
    flush_interval_commit_log: Millis = 500
    flush_interval_consume_queue: Millis = 1000
    sync_flush_timeout: Millis = 5000
    message_index_enable: bool = True
    max_hash_slot_num: Count = 5000000
    max_index_num: Count = 20000000
    file_reserved_time: Annotated[int, msgspec.Meta(ge=1, le=1000000)] = 72
    delete_when: Annotated[str, msgspec.Meta(pattern=r"^\d{1,2}(;\d{1,2})*$")] = "04"
    disk_max_used_space_ratio: Annotated[int, msgspec.Meta(ge=10, le=95)] = 75
    disk_space_clean_forcibly_ratio: Ratio = 85
    disk_space_warning_level_ratio: Ratio = 90
    clean_file_forcibly_enable: bool = True
    clean_resource_interval: Millis = 10000
    delete_file_batch_max: Annotated[int, msgspec.Meta(ge=1, le=50)] = 10
    scrub_bytes_per_second: Annotated[int, msgspec.Meta(ge=0, le=10_000_000_000)] = 20_000_000
    scrub_interval_hours: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 168
    # Filters
    enable_property_filter: bool = True
    enable_calc_filter_bit_map: bool = False
    enable_consume_queue_ext: bool = False
    mapped_file_size_consume_queue_ext: FileBytes = 50331648
    expect_consumer_num_use_filter: Count = 32
    max_error_rate_of_bloom_filter: Ratio = 20
    filter_data_clean_time_span: Millis = 86400000
    filter_support_retry: bool = False
    free_memory_min: Annotated[int, msgspec.Meta(ge=0, le=_INT64_MAX)] = 67108864
    # Metrics and health checks
    metrics_exporter_type: Literal["DISABLE", "PROM"] = "DISABLE"
    metrics_prom_exporter_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 5557
    metrics_prom_exporter_host: str = "127.0.0.1"
    metrics_label: str = ""
    metrics_otel_cardinality_limit: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 50000
    # Records
    check_crc_on_recover: bool = True
    enabled_append_prop_crc: bool = False
    force_verify_prop_crc: bool = False

    def name_servers(self) -> tuple[str, ...]:
        """Split `namesrv_addr` into ``host:port`` items, without blanks and repeats."""
        items = re.split(r"[;,\s]+", self.namesrv_addr)
        return tuple(dict.fromkeys(item for item in items if item))

    def black_list(self) -> frozenset[str]:
        """Give the keys that no UPDATE_BROKER_CONFIG may touch."""
        own = (key.strip() for key in self.config_black_list.split(";"))
        return _BLACK_LISTED_KEYS.union(key for key in own if key)

    @property
    def is_slave(self) -> bool:
        """Whether the broker copies a master's log."""
        return self.broker_role == "SLAVE"

    @property
    def awaited_slave_count(self) -> int:
        """How many slaves must have a message before its send is answered; 1 stands for a set."""
        if self.enable_controller_mode:
            return int(self.broker_role == "SYNC_MASTER")
        return max(0, self.in_sync_replicas - 1) if self.broker_role == "SYNC_MASTER" else 0

    @property
    def member_id(self) -> int:
        """The id among the brokers of one name: 0 for a master, as in RocketMQ."""
        return self.broker_id if self.is_slave else 0

    def store_path(self) -> str:
        """Give the absolute store directory: ``~`` and ``${user.home}`` expanded."""
        return _absolute(self.store_path_root_dir)

    def commit_log_path(self) -> str | None:
        """Give the absolute commit-log directory, or None for the one in the store."""
        return _absolute(self.store_path_commit_log) if self.store_path_commit_log else None

    def advertised_ip(self, local_ip: str) -> str:
        """Give the address to announce: brokerIP1, else the one listened on, else `local_ip`."""
        if self.broker_ip1:
            return self.broker_ip1
        return local_ip if self.bind_address in _ANY_ADDRESS else self.bind_address

    def to_properties(self) -> dict[str, str]:
        """Give the value of every effective key as text."""
        # Without a role the broker is what RocketMQ calls an asynchronous master.
        own = {"brokerRole": self.broker_role or "ASYNC_MASTER", "brokerId": str(self.member_id)}
        return _TABLE.texts(self) | own

    def properties_text(self) -> str:
        """Give what holds for all but ignored keys as lines, as GET_BROKER_CONFIG answers them."""
        return format_properties(self.masked(self.to_properties()) | values_of(DEMANDS))


def _absolute(path: str) -> str:
    return str(Path(path.replace("${user.home}", "~")).expanduser().absolute())


class LoadedConfig(msgspec.Struct, frozen=True):
    """A configuration, and what its reader has to say to the operator."""

    config: BrokerConfig
    ignored: dict[str, str]
    """Keys that were accepted without effect, with the values given for them."""
    unprotected: dict[str, str]
    """Demands for protection that `is_insecure` waived, with the values given for them."""
    path: str | None = None
    """The properties file it was read from; changes at run time are written to it."""


_TABLE: Final = SettingTable(BrokerConfig, ROCKETMQ_KEYS, DEMANDS)
_FIELD_DEFAULTS: Final[dict[str, Any]] = dict(
    zip(BrokerConfig.__struct_fields__, BrokerConfig.__struct_defaults__, strict=True)
)


def effective_keys() -> dict[str, tuple[str, str]]:
    """Map each effective key to (default, accepted values), both as text."""
    return {
        key: (setting_text(_FIELD_DEFAULTS[field]), _TABLE.accepted(key))
        for key, field in _TABLE.field_of_key.items()
    }


def ignored_keys() -> tuple[str, ...]:
    """List the keys RocketMQ knows that are accepted here without effect, sorted."""
    return _TABLE.ignored()


def load_config(
    path: str | None = None,
    *,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    environment: Mapping[str, str] | None = None,
    defaults: Mapping[str, Any] | None = None,
    is_insecure: bool = False,
) -> LoadedConfig:
    """Read, merge and validate a configuration.

    Args:
        path: a Java properties file, or TOML when it ends in ``.toml``; None for none.
        overrides: ``key=value`` texts or a mapping; they win over everything else.
        environment: variables to read; None for the process environment.
        defaults: values in place of `BrokerConfig`'s own; everything else wins over them.
        is_insecure: accept settings that ask for protection this version does not have.

    Raises:
        ConfigError: an unreadable file, an unknown key, a value out of its range, or a setting
            that asks for what this version does not have.
    """
    merged: dict[str, tuple[str, Any]] = {
        key: ("default", value) for key, value in (defaults or {}).items()
    }
    if path is not None:
        merged.update({key: (path, value) for key, value in _read_file(path).items()})
    variables = os.environ if environment is None else environment
    merged.update(_from_environment(variables))
    flags = overrides if isinstance(overrides, Mapping) else parse_assignments(overrides)
    merged.update({key: ("--set", value) for key, value in flags.items()})
    loaded = _validate(with_tls_file(merged, _read_file), is_insecure=is_insecure)
    if path is None or path.endswith(".toml"):
        return loaded
    return msgspec.structs.replace(loaded, path=str(Path(path).absolute()))


def parse_assignments(items: Iterable[str]) -> dict[str, str]:
    """Split ``key=value`` flags.

    Raises:
        ConfigError: an item without ``=``.
    """
    result: dict[str, str] = {}
    for item in items:
        key, separator, value = item.partition("=")
        if not separator or not key.strip():
            raise ConfigError(
                f"--set {item!r} is not of the form key=value; write listenPort=10911"
            )
        result[key.strip()] = value.strip()
    return result


def _read_file(path: str) -> dict[str, Any]:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read configuration file {path}: {error.strerror}") from error
    return parse_settings(data, path)


def _from_environment(variables: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    result: dict[str, tuple[str, str]] = {}
    if variables.get("NAMESRV_ADDR"):
        result["namesrvAddr"] = ("NAMESRV_ADDR", variables["NAMESRV_ADDR"])
    keys = {key.replace(".", "").lower(): key for key in _TABLE.all_keys()}
    for variable, value in variables.items():
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        wanted = variable.removeprefix(ENVIRONMENT_PREFIX).replace("_", "").lower()
        key = keys.get(wanted) or keys.get("broker" + wanted)
        if key is None:
            raise ConfigError(unknown_key(variable, wanted, keys.values()))
        result[key] = (variable, value)
    return result


def changed_config(config: BrokerConfig, changes: Mapping[str, str]) -> BrokerConfig:
    """Give `config` with other values for some keys, as UPDATE_BROKER_CONFIG brings them.

    Raises:
        ConfigError: a key that is unknown or has no effect here, a bad value, or one that asks
            for what this version does not have.
    """
    loaded = _validate({key: ("update", value) for key, value in changes.items()})
    if loaded.ignored:
        keys = ", ".join(sorted(loaded.ignored))
        raise ConfigError(f"{keys} has no effect in CometMQ, so it cannot be changed")
    fields = [_TABLE.field_of_key[key] for key in changes if key in _TABLE.field_of_key]
    return msgspec.structs.replace(
        config, **{field: getattr(loaded.config, field) for field in fields}
    )


def _validate(merged: Mapping[str, tuple[str, Any]], *, is_insecure: bool = False) -> LoadedConfig:
    values, ignored, unprotected = _TABLE.check(merged, is_insecure=is_insecure)
    if not values.get("brokerName"):
        values["brokerName"] = _host_name()
    config = msgspec.convert(values, BrokerConfig)
    _check_together(config)
    return LoadedConfig(config, ignored, unprotected)


def _check_together(config: BrokerConfig) -> None:
    """Refuse values that are fine alone but not as a whole."""
    config.check_tls()
    config.check_access()
    if config.enable_controller_mode and config.is_guarded and not config.signer():
        raise ConfigError(
            "a broker of a replica set that checks requests needs"
            " innerClientAuthenticationCredentials: its replicas and controllers sign with them"
        )
    is_set = config.enable_controller_mode
    if is_set and config.authentication_enabled and not config.authorization_enabled:
        raise ConfigError(
            "authenticationEnabled=true is not accepted with enableControllerMode=true unless"
            " authorizationEnabled=true too: the accounts travel in the log, and any user could"
            " read them there"
        )
    if config.mapped_file_size_consume_queue % 20:
        raise ConfigError(
            f"mappedFileSizeConsumeQueue={config.mapped_file_size_consume_queue} is not accepted: "
            "expected a multiple of 20, the size of one unit"
        )
    if not config.store_path_root_dir.strip():
        # A script's variable that is not set would put the store into the working directory.
        raise ConfigError("storePathRootDir is empty; name the directory of the store (--store)")
    for address in config.name_servers():
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ConfigError(
                f"namesrvAddr={config.namesrv_addr} is not accepted: {address!r} is not host:port; "
                "expected host:port;host:port with ports 1-65535"
            )
    for hour in config.delete_when.split(";"):
        if int(hour) > 23:
            raise ConfigError(
                f"deleteWhen={config.delete_when} is not accepted: expected hours 00-23 joined by ;"
            )
    _check_replication(config)


def _check_replication(config: BrokerConfig) -> None:
    """Refuse roles and numbers of copies that do not hold."""
    if config.enable_controller_mode:
        if not config.controller_addr.strip():
            raise ConfigError(
                "enableControllerMode=true needs controllerAddr=host:port, the address of the"
                " controllers"
            )
        if not config.listen_port:
            raise ConfigError("enableControllerMode=true needs a listenPort that stays the same")
        return
    if config.is_slave and config.broker_id <= 0:
        raise ConfigError(
            f"brokerRole=SLAVE with brokerId={config.broker_id} is not accepted: a slave needs an"
            " id of its own above 0, since 0 is the master's"
        )
    for key, count in (
        ("inSyncReplicas", config.in_sync_replicas),
        ("minInSyncReplicas", config.min_in_sync_replicas),
    ):
        if count > 1 and config.broker_role in ("", "ASYNC_MASTER"):
            raise ConfigError(
                f"{key}={count} is not accepted with brokerRole={config.broker_role}: no send of"
                " such a broker waits for slaves; set brokerRole=SYNC_MASTER"
            )


def _host_name() -> str:
    name = re.sub(r"[^%|a-zA-Z0-9_.-]", "_", platform.node())[:127]
    return name or "DEFAULT_BROKER"
