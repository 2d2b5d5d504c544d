"""Name server and broker in one process.

The broker registers with the name server over a real connection, so clients see no difference to
two processes.  The name server's two files lie in the folder `namesrv` of the store directory, a
name that RocketMQ ignores.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

import msgspec

from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.broker import Broker
from cometmq.errors import ConfigError
from cometmq.namesrv.config import NameServerConfig
from cometmq.namesrv.name_server import NameServer
from cometmq.net.env import Environment, system_environment
from cometmq.server.access.access import Access
from cometmq.server.access.settings import AccessSettings
from cometmq.store.base.disk import Disk, RealDisk
from cometmq.wire.frame.acl import Credentials

__all__ = ["Standalone"]


class Standalone:
    """One name server and one broker; `await start()`, `await stop()`, each once.

    Args:
        config: the broker's; it registers with our own name server and with those of
            `namesrv_addr`.
        config_path: the properties file that changes of the broker's configuration go to.
        name_server_port: 0 lets the system choose.
        name_server_host: the address the name server listens on.
        env: clock, chance, network and workers; the machine's by default.
        broker_env: the same for the broker alone; by default `env`.
        disk: where the store lives; the machine's by default.

    Raises:
        ConfigError: the broker could not talk to a name server that demands TLS.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        config_path: str | None = None,
        name_server_port: int = 9876,
        name_server_host: str = "127.0.0.1",
        env: Environment | None = None,
        broker_env: Environment | None = None,
        disk: Disk | None = None,
    ) -> None:
        if config.tls_server_mode == "enforcing" and not config.connects_with_tls:
            raise ConfigError(
                "tls.server.mode=enforcing holds for the name server too, to which the broker"
                " connects in clear text: set tls.enable=true and tls.client.trustCertPath"
            )
        self._access: Access | None = None
        if config.is_guarded:
            config, inner = _with_inner_account(config)
            # One set of accounts for both: who may do something at one may at the other.
            self._access = Access(config, inner)
        self._config = config
        self._config_path = config_path
        self._env = env if env is not None else system_environment()
        self._broker_env = self._env if broker_env is None else broker_env
        self._disk = disk if disk is not None else RealDisk()
        folder = f"{config.store_path()}/namesrv"
        self.name_server = NameServer(
            NameServerConfig(
                listen_port=name_server_port,
                bind_address=name_server_host,
                kv_config_path=f"{folder}/kvConfig.json",
                config_store_path=f"{folder}/namesrv.properties",
                **{field: getattr(config, field) for field in AccessSettings.__struct_fields__},
            ),
            self._env,
            self._disk,
            access=self._access,
        )
        self._broker: Broker | None = None

    @property
    def name_server_address(self) -> str:
        """`host:port` of the name server."""
        return self.name_server.address

    @property
    def broker(self) -> Broker:
        """The broker, once started.

        Raises:
            RuntimeError: it was not started.
        """
        if self._broker is None:
            raise RuntimeError("the broker was not started")
        return self._broker

    @property
    def broker_address(self) -> str:
        """`host:port` that the broker announces."""
        return self.broker.address

    async def start(self, progress: Callable[[str, int, int], None] | None = None) -> None:
        """Start the name server, then the broker, which registers before this returns.

        `progress` hears of a long recovery of the store: of what, done, total.

        Raises:
            ConnectFailed: a port cannot be bound.
            StoreError: the store cannot be opened.
        """
        await self.name_server.start()
        addresses = (self.name_server_address, *self._config.name_servers())
        config = msgspec.structs.replace(self._config, namesrv_addr=";".join(addresses))
        self._broker = Broker(
            config,
            self._broker_env,
            self._disk,
            config_path=self._config_path,
            access=self._access,
        )
        await self._broker.start(progress)

    async def stop(self) -> None:
        """Stop the broker, then the name server; everything acknowledged is on disk then."""
        try:
            if self._broker is not None:
                await self._broker.stop()
        finally:
            await self.name_server.stop()


def _with_inner_account(config: BrokerConfig) -> tuple[BrokerConfig, Credentials | None]:
    """Give the broker an account for its own requests, of this run alone, if it has none."""
    if config.inner_client_authentication_credentials:
        return config, None
    inner = Credentials(f"inner-{secrets.token_hex(4)}", secrets.token_hex(32))
    text = msgspec.json.encode({"accessKey": inner.access_key, "secretKey": inner.secret_key})
    return msgspec.structs.replace(
        config, inner_client_authentication_credentials=text.decode()
    ), inner
