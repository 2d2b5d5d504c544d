"""The arguments of every producer, declared once."""

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

from cometmq.client.base.arguments import check_count, check_ms, checked_group, checked_text
from cometmq.client.base.options import ClientOptions, Shareable
from cometmq.core.produce.batching import MESSAGE_BYTES_MAX
from cometmq.errors import ConfigError
from cometmq.net.env import Environment
from cometmq.net.tls import Tls

__all__ = ["ProducerSettings"]

DEFAULT_GROUP: Final = "DEFAULT_PRODUCER"
PRODUCER_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """The arguments of a producer; the docstring of `cometmq.Producer` explains each."""

    group: str = DEFAULT_GROUP
    _: KW_ONLY
    name_server: str | Sequence[str] | None = None
    timeout_ms: int = 10_000
    retries: int | None = None
    linger_ms: float | None = None
    batch_bytes_max: int = 128 * 1024
    compression: str = "ZLIB"
    compression_level: int = 5
    compress_above_bytes: int = 4_096
    max_message_bytes: int = MESSAGE_BYTES_MAX
    latency_fault: bool = True
    retry_when_not_ok: bool = False
    producer_id: str | None = None
    instance_name: str | None = None
    client_ip: str | None = None
    env: Environment | None = None
    access_key: str | None = None
    secret_key: str | None = None
    security_token: str | None = None
    tls: Tls | bool | None = None
    connection: Shareable | None = None
    namespace: str | None = None
    sandbox: str | None = None
    trace: bool | str | None = None

    def validate(self) -> None:
        """Refuse values that no producer can use.

        Raises:
            ConfigError: the text names the argument and its value.
        """
        checked_group(self.group)
        if self.linger_ms is not None:
            check_ms("linger_ms", self.linger_ms, may_be_zero=True)
        check_count("batch_bytes_max", self.batch_bytes_max)
        check_ms("timeout_ms", self.timeout_ms)
        if self.retries is not None:
            check_count("retries", self.retries, 0)
        if self.producer_id is not None and not PRODUCER_ID.fullmatch(self.producer_id):
            raise ConfigError(
                f"producer_id is {self.producer_id!r:.80}; give 1 to 100 letters, digits, '.', '_' "
                "and '-'"
            )
        checked_text("compression", self.compression)
        check_count("compression_level", self.compression_level, -1, 22)
        check_count("compress_above_bytes", self.compress_above_bytes, 0)
        check_count("max_message_bytes", self.max_message_bytes)

    def client_options(self) -> ClientOptions:
        """The options that producers share with other clients.

        Raises:
            ConfigError: an address, a key or a TLS setting is wrong.
        """
        return ClientOptions.of(
            self.name_server,
            env=self.env,
            instance_name=self.instance_name,
            client_ip=self.client_ip,
            access_key=self.access_key,
            secret_key=self.secret_key,
            security_token=self.security_token,
            tls=self.tls,
            connection=self.connection,
            namespace=self.namespace,
            sandbox=self.sandbox,
            trace=self.trace,
        )
