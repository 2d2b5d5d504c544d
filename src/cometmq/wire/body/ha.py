"""The answer to GET_BROKER_HA_STATUS 907: a broker's slaves, or its progress as a slave.

Source: ``HARuntimeInfo`` of RocketMQ 5.4.0 and its captured answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cometmq.wire.body.fields import (
    bool_field,
    each_object,
    int_field,
    object_field,
    optional_str_field,
    str_field,
)
from cometmq.wire.command.fastjson import dumps, loads_object

__all__ = ["HaClient", "HaConnection", "HaStatus", "decode_ha_status", "encode_ha_status"]


@dataclass(frozen=True, slots=True)
class HaConnection:
    """One slave of a master; positions are physical offsets."""

    address: str
    acknowledged: int
    behind_bytes: int
    is_in_sync: bool
    bytes_a_second: int
    sent_to: int


@dataclass(frozen=True, slots=True)
class HaClient:
    """A slave's connection to its master; `max_offset` is where its own log ends."""

    master_address: str | None = None
    bytes_a_second: int = 0
    max_offset: int = 0
    last_read_ms: int = 0
    last_write_ms: int = 0
    master_flush_offset: int = 0
    is_active: bool | None = False
    """Whether there is a connection; None where a broker does not say, as RocketMQ's slaves."""


@dataclass(frozen=True, slots=True)
class HaStatus:
    """Answer to 907."""

    is_master: bool
    max_offset: int
    in_sync_slave_count: int = 0
    connections: tuple[HaConnection, ...] = ()
    client: HaClient = field(default_factory=HaClient)


def encode_ha_status(status: HaStatus) -> bytes:
    """Return the body."""
    client = status.client
    runtime: dict[str, Any] = {
        "lastReadTimestamp": client.last_read_ms,
        "lastWriteTimestamp": client.last_write_ms,
        "masterFlushOffset": client.master_flush_offset,
        "maxOffset": client.max_offset,
        "transferredByteInSecond": client.bytes_a_second,
    }
    if client.master_address is not None:
        runtime["masterAddr"] = client.master_address
    if not status.is_master and client.is_active is not None:
        runtime["activated"] = client.is_active
    return dumps(
        {
            "haClientRuntimeInfo": runtime,
            "haConnectionInfo": [
                {
                    "addr": connection.address,
                    "diff": connection.behind_bytes,
                    "inSync": connection.is_in_sync,
                    "slaveAckOffset": connection.acknowledged,
                    "transferFromWhere": connection.sent_to,
                    "transferredByteInSecond": connection.bytes_a_second,
                }
                for connection in status.connections
            ],
            "inSyncSlaveNums": status.in_sync_slave_count,
            "master": status.is_master,
            "masterCommitLogMaxOffset": status.max_offset,
        }
    )


def decode_ha_status(raw: bytes) -> HaStatus:
    """Return the status of a body."""
    body = "HARuntimeInfo"
    data = loads_object(raw, body)
    client = object_field(data, body, "haClientRuntimeInfo")
    return HaStatus(
        bool_field(data, body, "master", default=True),
        int_field(data, body, "masterCommitLogMaxOffset"),
        int_field(data, body, "inSyncSlaveNums", 0),
        tuple(each_object(data, body, "haConnectionInfo", _connection)),
        HaClient(
            optional_str_field(client, body, "masterAddr"),
            int_field(client, body, "transferredByteInSecond", 0),
            int_field(client, body, "maxOffset", 0),
            int_field(client, body, "lastReadTimestamp", 0),
            int_field(client, body, "lastWriteTimestamp", 0),
            int_field(client, body, "masterFlushOffset", 0),
            bool_field(client, body, "activated", default=False) if "activated" in client else None,
        ),
    )


def _connection(data: Mapping[Any, Any]) -> HaConnection:
    body = "HAConnectionRuntimeInfo"
    return HaConnection(
        str_field(data, body, "addr"),
        int_field(data, body, "slaveAckOffset"),
        int_field(data, body, "diff"),
        bool_field(data, body, "inSync", default=False),
        int_field(data, body, "transferredByteInSecond"),
        int_field(data, body, "transferFromWhere"),
    )
