"""Options of the client's classes that an App passes through, for type checkers and editors.

`cometmq.PushConsumer` and `cometmq.Producer` explain each.  A test compares these names with the
arguments of those classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.client import FlowLimits, MessageModel
    from cometmq.client.base.options import Shareable
    from cometmq.client.consumer.group.first_offset import StartFrom
    from cometmq.client.consumer.group.group_consumer import RebalanceListener
    from cometmq.client.consumer.pausing import OnStopped
    from cometmq.client.extensions.parking.parking import OnParked
    from cometmq.core.group.allocate import AllocateStrategy
    from cometmq.net.env import Environment
    from cometmq.net.tls import Tls

__all__ = ["AppConnection", "ConsumerOptions", "ProducerOptions", "ValueFields"]


class AppConnection(TypedDict, total=False):
    """What all clients of an App share, besides the name servers."""

    instance_name: str | None
    client_ip: str | None
    env: Environment | None
    access_key: str | None
    secret_key: str | None
    security_token: str | None
    tls: Tls | bool | None
    connection: Shareable | None
    namespace: str | None
    sandbox: str | None
    trace: bool | str | None


class ConsumerOptions(TypedDict, total=False):
    """Options of `cometmq.PushConsumer`; the handlers of one group have equal ones."""

    consume_from: StartFrom
    concurrency: int
    message_model: MessageModel
    max_reconsume_times: int | None
    order: Literal["none", "queue", "group"]
    suspend_ms: int
    park_after: int | None
    on_parked: OnParked | None
    on_stopped: OnStopped | None
    flow_limits: FlowLimits | None
    strategy: AllocateStrategy | str
    rebalance_listener: RebalanceListener | None
    drain_timeout_ms: int
    consume_timeout_ms: int
    pull_count_max: int
    offset_folder: str | None
    low_priority_share: float | None


class ProducerOptions(TypedDict, total=False):
    """Options of `cometmq.Producer`."""

    group: str
    timeout_ms: int
    retries: int
    linger_ms: float | None
    batch_bytes_max: int
    compression: str
    compression_level: int
    compress_above_bytes: int
    max_message_bytes: int
    latency_fault: bool
    producer_id: str | None
    retry_when_not_ok: bool


class ValueFields(TypedDict, total=False):
    """Fields of `cometmq.Message` besides topic and body."""

    tags: str | None
    keys: tuple[str, ...] | str
    properties: Mapping[str, str]
    flag: int
    delay_level: int
    message_group: str | None
    wait_store_ok: bool
    deliver_time_ms: int | None
    delay_ms: int | None
