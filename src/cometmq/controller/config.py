"""Controller configuration: RocketMQ's property names, from a file and from flags.

The same file may be a name server's, which then runs a controller too.  RocketMQ's controllers find
each other by `controllerDLegerPeers`; here etcd does, and a list of several peers is refused
without it.
Source: `ControllerConfig` of RocketMQ 5.4.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from cometmq.codec.java_properties import format_properties
from cometmq.core.base.settings import TLS_DEMANDS, SettingTable, parse_settings, with_tls_file
from cometmq.errors import ConfigError
from cometmq.server.access.settings import AccessSettings

__all__ = [
    "FIXED_KEYS",
    "IGNORED_KEYS",
    "ControllerConfig",
    "LoadedControllerConfig",
    "controller_keys",
    "load_controller_config",
    "updated_config",
]

_INT32_MAX: Final = 2**31 - 1
Millis = Annotated[int, msgspec.Meta(ge=1, le=_INT32_MAX)]
Port = Annotated[int, msgspec.Meta(ge=-1, le=65535)]

DEFAULT_PORT: Final = 9877
IGNORED_KEYS: Final = frozenset(
    {
        "controllerDLegerGroup",
        "controllerRequestThreadPoolQueueCapacity",
        "controllerThreadPoolNums",
        "controllerType",
        "electMasterMaxRetryCount",
        "jraftConfig",
        "mappedFileSize",
        "processReadEvent",
        "rocketmqHome",
        "scanInactiveMasterInterval",
    }
)
FIXED_KEYS: Final = frozenset(
    {
        "bindAddress",
        "cometmqControllerAddress",
        "cometmqControllerCluster",
        "cometmqEtcdCaFile",
        "cometmqEtcdCertFile",
        "cometmqEtcdKeyFile",
        "cometmqEtcdPassword",
        "cometmqEtcdUser",
        "cometmqEtcd",
        "controllerDLegerPeers",
        "controllerDLegerSelfId",
        "controllerPort",
        "controllerStorePath",
        "metricsExporterType",
        "metricsLabel",
        "metricsPromExporterHost",
        "metricsPromExporterPort",
        *AccessSettings.__struct_encode_fields__,
    }
)
"""Set by whoever starts the process."""


class ControllerConfig(AccessSettings, frozen=True, kw_only=True, rename="camel"):
    """Everything a controller can be told; fields are RocketMQ's keys in snake case.

    `controller_port` 0 lets the system choose; with -1 the port is that of the own entry of
    `controller_dleger_peers`, else 9877.
    """

    bind_address: str = "0.0.0.0"  # noqa: S104 - RocketMQ's default; the manual says how to narrow it
    controller_port: Port = -1
    controller_dleger_peers: str = msgspec.field(default="", name="controllerDLegerPeers")
    controller_dleger_self_id: str = msgspec.field(default="", name="controllerDLegerSelfId")
    controller_store_path: str = "~/cometmqController"
    scan_not_active_broker_interval: Millis = 500
    enable_elect_unclean_master: bool = False
    notify_broker_role_changed: bool = True
    config_black_list: str = "configBlackList;configStorePath"
    metrics_exporter_type: Literal["DISABLE", "PROM"] = "DISABLE"
    metrics_prom_exporter_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 5559
    metrics_prom_exporter_host: str = "127.0.0.1"
    metrics_label: str = ""
    cometmq_etcd: str = ""
    """``http://host:port`` of each member of etcd, joined by semicolons; empty: a local file."""
    cometmq_etcd_user: str = ""
    cometmq_etcd_password: str = ""
    cometmq_etcd_ca_file: str = ""
    cometmq_etcd_cert_file: str = ""
    cometmq_etcd_key_file: str = ""
    cometmq_controller_cluster: str = "default"
    cometmq_controller_address: str = ""
    """``host:port`` that brokers are to use, where it is not the bound one."""

    def black_list(self) -> frozenset[str]:
        """The keys that UPDATE_CONTROLLER_CONFIG may not touch."""
        own = (key.strip() for key in self.config_black_list.split(";"))
        return frozenset(key for key in own if key) | {"configBlackList"}

    def etcd_endpoints(self) -> list[str]:
        """The members of etcd."""
        return [part.strip() for part in self.cometmq_etcd.split(";") if part.strip()]

    def peers(self) -> dict[str, str]:
        """The entries of controllerDLegerPeers: id to ``host:port``.

        Raises:
            ConfigError: an entry has another form.
        """
        peers = {}
        for entry in self.controller_dleger_peers.split(";"):
            name, separator, address = entry.strip().partition("-")
            if not separator and name:
                raise ConfigError(
                    f"controllerDLegerPeers={self.controller_dleger_peers}: the entry {entry!r} is"
                    " not of the form id-host:port"
                )
            if name:
                peers[name] = address
        return peers

    def own_peer(self) -> str | None:
        """The own entry's ``host:port``; None without one."""
        peers = self.peers()
        if not self.controller_dleger_self_id and len(peers) == 1:
            return next(iter(peers.values()))
        return peers.get(self.controller_dleger_self_id)

    def port(self) -> int:
        """The port to listen on."""
        if self.controller_port >= 0:
            return self.controller_port
        peer = self.own_peer()
        return int(peer.rpartition(":")[2]) if peer else DEFAULT_PORT

    def properties_text(self) -> str:
        """What holds as lines, as GET_CONTROLLER_CONFIG answers them; without the password."""
        texts = self.masked(_TABLE.texts(self))
        texts["cometmqEtcdPassword"] = "******" if self.cometmq_etcd_password else ""
        return format_properties(texts)


class LoadedControllerConfig(msgspec.Struct, frozen=True):
    """A configuration, and what its reader has to say to the operator."""

    config: ControllerConfig
    ignored: dict[str, str]


_TABLE: Final = SettingTable(ControllerConfig, IGNORED_KEYS, TLS_DEMANDS)


def controller_keys() -> frozenset[str]:
    """Every key that a controller's configuration may have."""
    return frozenset(_TABLE.field_of_key) | IGNORED_KEYS


def load_controller_config(
    path: str | None = None, *, overrides: Mapping[str, Any] | None = None
) -> LoadedControllerConfig:
    """Read, merge and validate a configuration.

    Args:
        path: a Java properties file, or TOML when it ends in ``.toml``; None for none.
        overrides: keys and values that win over the file, for example from `--set`.

    Raises:
        ConfigError: an unreadable file, an unknown key, a value out of its range, or several
            controllers without etcd.
    """
    merged: dict[str, tuple[str, Any]] = {}
    if path is not None:
        merged.update({key: (path, value) for key, value in _read_file(path).items()})
    merged.update({key: ("--set", value) for key, value in (overrides or {}).items()})
    checked = _TABLE.check(with_tls_file(merged, _read_file))
    config = msgspec.convert(checked.values, ControllerConfig)
    config.check_tls()
    config.check_access()
    if len(config.peers()) > 1 and not config.cometmq_etcd:
        raise ConfigError(
            f"controllerDLegerPeers={config.controller_dleger_peers} names several controllers,"
            " which share their state through etcd: set cometmqEtcd=http://host:2379, or name"
            " this controller alone"
        )
    if config.cometmq_etcd_key_file and not config.cometmq_etcd_cert_file:
        raise ConfigError(
            f"cometmqEtcdKeyFile={config.cometmq_etcd_key_file} has no effect without"
            " cometmqEtcdCertFile: name the file of the certificate too"
        )
    for endpoint in config.etcd_endpoints():
        if not endpoint.startswith(("http://", "https://")):
            raise ConfigError(f"cometmqEtcd: {endpoint} does not begin with http:// or https://")
    return LoadedControllerConfig(config, checked.ignored)


def _read_file(path: str) -> dict[str, Any]:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read configuration file {path}: {error.strerror}") from error
    return parse_settings(data, path)


def updated_config(config: ControllerConfig, changes: Mapping[str, str]) -> ControllerConfig:
    """`config` with the changes of an UPDATE_CONTROLLER_CONFIG request.

    Raises:
        ConfigError: an unknown key, one that only a restart can change, or a bad value.
    """
    for key in changes:
        if key in FIXED_KEYS:
            raise ConfigError(f"{key} cannot change while the controller runs; restart it instead")
    checked = _TABLE.check({key: ("update", value) for key, value in changes.items()})
    fields = {_TABLE.field_of_key[key]: value for key, value in checked.values.items()}
    return msgspec.structs.replace(config, **fields)
