"""Parts of a controller's answers, what a heartbeat says, and the connection by which a controller
sees that a broker listens."""

from __future__ import annotations

import asyncio
from typing import Final

from cometmq.core.replication.live_replicas import HeardReplica
from cometmq.core.replication.replica_set import ElectionCandidate, ReplicaSet, SetRefusal
from cometmq.errors import ConnectFailed
from cometmq.net.env import Environment
from cometmq.net.network import parse_address
from cometmq.net.server import ServerConnection
from cometmq.wire.body.controller import encode_sync_state_set
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.controller import MasterHeader
from cometmq.wire.header.namesrv import BrokerHeartbeatHeader

__all__ = [
    "DIAL_MS",
    "HEARTBEAT_TIMEOUT_MS",
    "UNKNOWN_PRIORITY",
    "heard_replica",
    "in_sync_body",
    "is_listening",
    "master_header",
    "refused",
]

HEARTBEAT_TIMEOUT_MS: Final = 10_000
"""A broker that names no timeout of its own is dead after so long, as in RocketMQ."""
UNKNOWN_PRIORITY: Final = 2**31 - 1

DIAL_MS: Final = 300
"""A port that does not answer in this time counts as closed."""


class _Probe(asyncio.Protocol):
    """A connection that only shows that somebody listens."""

    def __init__(self) -> None:
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def is_listening(env: Environment, address: str) -> bool:
    """Whether somebody accepts a connection there in time."""
    try:
        probe = await env.network.connect(*parse_address(address), _Probe, DIAL_MS)
    except ConnectFailed:
        return False
    probe.close()
    return True


def heard_replica(
    header: BrokerHeartbeatHeader, now_ms: int, connection: ServerConnection
) -> HeardReplica:
    """Return what a heartbeat says of its broker."""
    priority = header.election_priority
    return HeardReplica(
        header.broker_addr,
        ElectionCandidate(
            -1 if header.epoch is None else header.epoch,
            header.max_offset or 0,
            UNKNOWN_PRIORITY if priority is None else priority,
        ),
        header.heartbeat_timeout_ms or HEARTBEAT_TIMEOUT_MS,
        now_ms,
        connection,
    )


def master_header(recorded: ReplicaSet) -> MasterHeader:
    return MasterHeader(
        recorded.master_id,
        recorded.address_of(recorded.master_id),
        recorded.master_epoch,
        recorded.in_sync_epoch,
    )


def in_sync_body(recorded: ReplicaSet) -> bytes:
    return encode_sync_state_set(recorded.in_sync, recorded.in_sync_epoch)


def refused(request: RemotingCommand, refusal: SetRefusal | None) -> RemotingCommand:
    assert refusal is not None
    return request.answer(refusal.code, refusal.remark, {})
