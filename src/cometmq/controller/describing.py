"""What a controller shows of a set, and what the living brokers of a set know of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Final

from cometmq.core.replication.live_replicas import HeardReplica
from cometmq.core.replication.replica_set import ReplicaSet
from cometmq.errors import CometError, ResponseCode, remote_error
from cometmq.net.channel import ChannelPool
from cometmq.wire.body.controller import ReplicaIdentity, SetReplicas
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.extensions.adopt import DESCRIBE_REPLICA, ReplicaView

__all__ = ["describe_replicas", "listed"]

log = logging.getLogger("cometmq.controller")

DESCRIBE_MS: Final = 2_000
"""A broker that does not say in this time what it knows of its set counts as missing."""


def listed(recorded: ReplicaSet, alive: Collection[int]) -> SetReplicas:
    """Return a set for tools; `alive` has the ids of the brokers that send heartbeats."""
    identities = {
        broker_id: ReplicaIdentity(
            recorded.broker_name, broker_id, replica.address, broker_id in alive
        )
        for broker_id, replica in sorted(recorded.replicas.items())
    }
    return SetReplicas(
        recorded.master_id,
        recorded.address_of(recorded.master_id),
        recorded.master_epoch,
        recorded.in_sync_epoch,
        tuple(each for id_, each in identities.items() if id_ in recorded.in_sync),
        tuple(each for id_, each in identities.items() if id_ not in recorded.in_sync),
    )


async def describe_replicas(
    pool: ChannelPool, heard: Mapping[int, HeardReplica]
) -> dict[int, tuple[str, ReplicaView]]:
    """Return address and view by id of the replicas that answer."""
    views = await asyncio.gather(*(_view_of(pool, each.address) for each in heard.values()))
    return {
        broker_id: (replica.address, view)
        for (broker_id, replica), view in zip(heard.items(), views, strict=True)
        if view is not None
    }


async def _view_of(pool: ChannelPool, address: str) -> ReplicaView | None:
    try:
        channel = await pool.get(address, DESCRIBE_MS)
        answer = await channel.request(RemotingCommand.request(DESCRIBE_REPLICA), DESCRIBE_MS)
        if answer.code != ResponseCode.SUCCESS:
            raise remote_error(answer.code, answer.remark)
        return ReplicaView.decode(answer.body)
    except CometError as error:
        log.warning("the broker at %s does not say what it knows of its set: %s", address, error)
        return None
