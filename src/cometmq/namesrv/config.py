"""Name server configuration: RocketMQ's property names, from a file and from flags.

Turns `namesrv.conf` (Java properties) or TOML and `key=value` flags into one validated
`NameServerConfig`.  Later sources win: defaults, file, flags.  With enableControllerInNamesrv the
file also has the settings of a controller (controller/config.py).

Four kinds of keys exist.  *Effective* keys are the fields of `NameServerConfig`.  *Demands* may ask
for what this version does not have: values that ask for nothing are accepted, all others end the
start.  *Ignored* keys are the others that RocketMQ knows: they have no effect here, and are listed
once at start.  Any other key is refused with the nearest known name.
Source: `NamesrvConfig`, `NettyServerConfig`, `NettyClientConfig` and `ControllerConfig` of RocketMQ
5.4.0, all of which read the name server's file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from cometmq.codec.java_properties import format_properties
from cometmq.controller.config import controller_keys
from cometmq.core.base.settings import (
    TLS_DEMANDS,
    Demand,
    SettingTable,
    parse_settings,
    values_of,
    with_tls_file,
)
from cometmq.errors import ConfigError
from cometmq.server.access.settings import AccessSettings

__all__ = [
    "DEMANDS",
    "FIXED_KEYS",
    "IGNORED_KEYS",
    "LoadedNameServerConfig",
    "NameServerConfig",
    "load_name_server_config",
    "updated_config",
]

_INT32_MAX: Final = 2**31 - 1

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Millis = Annotated[int, msgspec.Meta(ge=1, le=_INT32_MAX)]

CONTROLLER_KEYS: Final = controller_keys() - {
    "bindAddress",
    "configBlackList",
    "metricsExporterType",
    "metricsLabel",
    "metricsPromExporterHost",
    "metricsPromExporterPort",
    "rocketmqHome",
    "scanNotActiveBrokerInterval",
}
"""Keys of the controller inside a name server; those left out mean the name server."""
IGNORED_KEYS: Final = CONTROLLER_KEYS | frozenset(
    {
        "channelNotActiveInterval",
        "clientAsyncSemaphoreValue",
        "clientCallbackExecutorThreads",
        "clientChannelMaxIdleTimeSeconds",
        "clientCloseSocketIfTimeout",
        "clientOnewaySemaphoreValue",
        "clientPooledByteBufAllocatorEnable",
        "clientRequestThreadPoolNums",
        "clientRequestThreadPoolQueueCapacity",
        "clientSocketRcvBufSize",
        "clientSocketSndBufSize",
        "clientWorkerThreads",
        "connectTimeoutMillis",
        "defaultThreadPoolNums",
        "defaultThreadPoolQueueCapacity",
        "disableCallbackExecutor",
        "disableNettyWorkerGroup",
        "enableReconnectForGoAway",
        "enableShutdownGracefully",
        "maxReconnectIntervalTimeSeconds",
        "metricGrpcExporterIntervalInMills",
        "metricGrpcExporterTimeOutInMills",
        "metricLoggingExporterIntervalInMills",
        "metricsGrpcExporterHeader",
        "metricsGrpcExporterTarget",
        "metricsInDelta",
        "notifyMinBrokerIdChanged",
        "productEnvName",
        "rocketmqHome",
        "scanAvailableNameSrv",
        "serverAsyncSemaphoreValue",
        "serverCallbackExecutorThreads",
        "serverChannelMaxIdleTimeSeconds",
        "serverNettyWorkerGroupEnable",
        "serverOnewaySemaphoreValue",
        "serverPooledByteBufAllocatorEnable",
        "serverSelectorThreads",
        "serverSocketBacklog",
        "serverSocketRcvBufSize",
        "serverSocketSndBufSize",
        "serverWorkerThreads",
        "shutdownWaitTimeSeconds",
        "socksProxyConfig",
        "unRegisterBrokerQueueCapacity",
        "useEpollNativeSelector",
        "writeBufferHighWaterMark",
        "writeBufferLowWaterMark",
    }
)
DEMANDS: Final[Mapping[str, Demand]] = {
    "clusterTest": Demand(
        ("", "false"),
        "product environments are not part of this version",
        "set false",
        value="false",
    ),
    **TLS_DEMANDS,
}
"""Keys that may ask for what is not here."""
# Set by whoever starts the process; a change from afar would point it at another file or port.
FIXED_KEYS: Final = frozenset(
    {
        "bindAddress",
        "enableControllerInNamesrv",
        "listenPort",
        "metricsExporterType",
        "metricsLabel",
        "metricsPromExporterHost",
        "metricsPromExporterPort",
        *AccessSettings.__struct_encode_fields__,
    }
)
_BLACK_LISTED_KEYS: Final = frozenset(
    {"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"}
)


class NameServerConfig(AccessSettings, frozen=True, kw_only=True, rename="camel"):
    """Everything a name server can be told; fields are RocketMQ's keys in snake case.

    Units are RocketMQ's: intervals in milliseconds.  `listen_port` 0 lets the system choose.
    """

    listen_port: Port = 9876
    bind_address: str = "0.0.0.0"  # noqa: S104 - RocketMQ's default; README says how to narrow it
    kv_config_path: str = "~/namesrv/kvConfig.json"
    config_store_path: str = "~/namesrv/namesrv.properties"
    config_black_list: str = "configBlackList;configStorePath;kvConfigPath"
    order_message_enable: bool = False
    return_order_topic_config_to_broker: bool = True
    scan_not_active_broker_interval: Millis = 5000
    support_acting_master: bool = False
    enable_all_topic_list: bool = True
    enable_topic_list: bool = True
    need_wait_for_service: bool = False
    wait_seconds_for_service: Annotated[int, msgspec.Meta(ge=0, le=86400)] = 45
    delete_topic_with_broker_registration: bool = False
    enable_controller_in_namesrv: bool = False
    metrics_exporter_type: Literal["DISABLE", "PROM"] = "DISABLE"
    metrics_prom_exporter_port: Port = 5558
    metrics_prom_exporter_host: str = "127.0.0.1"
    metrics_label: str = ""

    def black_list(self) -> frozenset[str]:
        """The keys that UPDATE_NAMESRV_CONFIG may not touch."""
        own = (key.strip() for key in self.config_black_list.split(";"))
        return _BLACK_LISTED_KEYS.union(key for key in own if key)

    def properties_text(self) -> str:
        """What holds for all but ignored keys as lines, as GET_NAMESRV_CONFIG answers them."""
        return format_properties(self.masked(_TABLE.texts(self)) | values_of(DEMANDS))


class LoadedNameServerConfig(msgspec.Struct, frozen=True):
    """A configuration, and what its reader has to say to the operator."""

    config: NameServerConfig
    ignored: dict[str, str]
    """Keys that were accepted without effect, with the values given for them."""
    unprotected: dict[str, str]
    """Demands for protection that `is_insecure` waived, with the values given for them."""
    controller: dict[str, Any]
    """The settings of the controller inside, with enableControllerInNamesrv."""


_TABLE: Final = SettingTable(NameServerConfig, IGNORED_KEYS, DEMANDS)


def load_name_server_config(
    path: str | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    is_insecure: bool = False,
) -> LoadedNameServerConfig:
    """Read, merge and validate a configuration.

    Args:
        path: a Java properties file, or TOML when it ends in ``.toml``; None for none.  Changes
            at run time are written to a properties file.
        overrides: keys and values that win over the file, for example from `--set`.
        is_insecure: accept settings that ask for protection this version does not have.

    Raises:
        ConfigError: an unreadable file, an unknown key, a value out of its range, or a setting
            that asks for what this version does not have.
    """
    merged: dict[str, tuple[str, Any]] = {}
    if path is not None and not path.endswith(".toml"):
        # Changes are written to the file they would be read from, as RocketMQ does.
        merged["configStorePath"] = (path, path)
    if path is not None:
        merged.update({key: (path, value) for key, value in _read_file(path).items()})
    merged.update({key: ("--set", value) for key, value in (overrides or {}).items()})
    return _validate(with_tls_file(merged, _read_file), is_insecure=is_insecure)


def updated_config(config: NameServerConfig, changes: Mapping[str, str]) -> NameServerConfig:
    """`config` with the changes of an UPDATE_NAMESRV_CONFIG request.

    Raises:
        ConfigError: an unknown key, one that only a restart can change, a bad value, or one that
            asks for what this version does not have.
    """
    for key in changes:
        if key in FIXED_KEYS:
            raise ConfigError(f"{key} cannot change while the name server runs; restart it instead")
    checked = _validate({key: ("update", value) for key, value in changes.items()}).config
    fields = [_TABLE.field_of_key[key] for key in changes if key in _TABLE.field_of_key]
    return msgspec.structs.replace(config, **{name: getattr(checked, name) for name in fields})


def _read_file(path: str) -> dict[str, Any]:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read configuration file {path}: {error.strerror}") from error
    return parse_settings(data, path)


def _validate(
    merged: Mapping[str, tuple[str, Any]], *, is_insecure: bool = False
) -> LoadedNameServerConfig:
    values, ignored, unprotected = _TABLE.check(merged, is_insecure=is_insecure)
    config = msgspec.convert(values, NameServerConfig)
    config.check_tls()
    config.check_access()
    controller: dict[str, Any] = {}
    if config.enable_controller_in_namesrv:
        inside = (CONTROLLER_KEYS | {"bindAddress"}) & merged.keys()
        controller = {key: merged[key][1] for key in inside}
        ignored = {key: text for key, text in ignored.items() if key not in inside}
    elif own := sorted(key for key in ignored if key.startswith("cometmq")):
        raise ConfigError(
            f"{own[0]} sets up a controller: set enableControllerInNamesrv=true as well"
        )
    return LoadedNameServerConfig(config, ignored, unprotected, controller)
