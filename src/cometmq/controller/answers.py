"""Parts of a controller's answers, and the connection by which it sees that a broker listens."""

from __future__ import annotations

import asyncio
from typing import Final

from cometmq.core.replication.replica_set import ReplicaSet, SetRefusal
from cometmq.errors import ConnectFailed
from cometmq.net.env import Environment
from cometmq.net.network import parse_address
from cometmq.wire.body.controller import encode_sync_state_set
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.controller import MasterHeader

__all__ = ["DIAL_MS", "in_sync_body", "is_listening", "master_header", "refused"]

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
