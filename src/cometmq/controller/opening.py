"""Makes a controller with the store that its configuration names."""

from __future__ import annotations

from pathlib import Path

from cometmq.controller.config import ControllerConfig
from cometmq.controller.server import Controller
from cometmq.controller.stores.base import DocumentStore
from cometmq.controller.stores.etcd import EtcdStore
from cometmq.controller.stores.file import FileStore
from cometmq.extras import require
from cometmq.net.env import Environment
from cometmq.net.tls import Tls
from cometmq.net.tls_server import secured
from cometmq.store.base.disk import Disk

__all__ = ["open_controller"]


def open_controller(config: ControllerConfig, env: Environment, disk: Disk) -> Controller:
    """Return a controller, not started.

    Raises:
        ConfigError: the extra `etcd` is not installed, or a file of certificates cannot be read.
    """
    return Controller(config, secured(env, config), _store(config, env, disk))


def _store(config: ControllerConfig, env: Environment, disk: Disk) -> DocumentStore:
    endpoints = config.etcd_endpoints()
    if not endpoints:
        folder = str(Path(config.controller_store_path).expanduser())
        return FileStore(folder, disk, env.workers)
    require("etcd", "cometmqEtcd")
    from cometmq.controller.stores.gateway import EtcdGateway

    gateway = EtcdGateway(
        endpoints,
        tls=Tls(
            ca_file=config.cometmq_etcd_ca_file or None,
            cert_file=config.cometmq_etcd_cert_file or None,
            key_file=config.cometmq_etcd_key_file or None,
        ),
        user=config.cometmq_etcd_user,
        password=config.cometmq_etcd_password,
    )
    return EtcdStore(gateway.call, config.cometmq_controller_cluster, gateway.close)
