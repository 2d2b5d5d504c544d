"""Keyword arguments of every producer, as a type.

Job: let producers that build on `Producer` pass its arguments on, checked.
Must not: hold defaults; `Producer` does.
"""

from collections.abc import Sequence

from cometmq.client.base.security import SecurityOptions
from cometmq.net.env import Environment

__all__ = ["ProducerOptions"]


class ProducerOptions(SecurityOptions, total=False):
    """What `Producer` takes besides the group; its docstring explains each."""

    name_server: str | Sequence[str] | None
    timeout_ms: int
    retries: int
    linger_ms: float | None
    batch_bytes_max: int
    compression: str
    compression_level: int
    compress_above_bytes: int
    max_message_bytes: int
    latency_fault: bool
    retry_when_not_ok: bool
    instance_name: str | None
    client_ip: str | None
    env: Environment | None
