"""What a controller says of itself and of its broker sets (codes 1005 and 1006).

Requests are signed with the keys of the environment, if it has any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cometmq.client.base.security import Security
from cometmq.errors import ConnectFailed, ResponseCode, remote_error
from cometmq.net.channel import ChannelPool
from cometmq.net.env import Environment
from cometmq.wire.body.controller import SetReplicas, decode_replicas_info, encode_broker_names
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.controller import ElectMasterHeader, MasterHeader, MetadataInfoHeader

__all__ = ["ControllerStatus", "controller_status", "elect_master"]

ADDRESS_TIMEOUT_MS: Final = 3000


@dataclass(frozen=True, slots=True)
class ControllerStatus:
    """The controller that leads, and its broker sets by name."""

    leader: str
    sets: dict[str, SetReplicas]


async def controller_status(
    env: Environment, addresses: Sequence[str], broker_names: Sequence[str], timeout_ms: int
) -> ControllerStatus:
    """Ask the controllers in turn who leads, and the leader about broker sets.

    Args:
        addresses: ``host:port`` of one or more controllers.
        broker_names: the sets; none means all, which RocketMQ's controllers answer with none.

    Raises:
        ConnectFailed: no controller answers, or none of them leads.
        RemoteError: the leader refuses.
    """
    pool = ChannelPool(env, prepare=Security.of().prepare)
    try:
        leader = await _find_leader(pool, addresses, timeout_ms)
        request = RemotingCommand.request(
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=encode_broker_names(broker_names)
        )
        answer = await (await pool.get(leader)).request(request, timeout_ms)
        if answer.code != ResponseCode.SUCCESS:
            raise remote_error(answer.code, answer.remark)
        return ControllerStatus(leader, decode_replicas_info(answer.body))
    finally:
        await pool.close()


async def elect_master(
    env: Environment,
    addresses: Sequence[str],
    cluster: str,
    broker_name: str,
    broker_id: int,
    timeout_ms: int,
) -> MasterHeader:
    """Make one in-sync replica the master, also while another one lives; return who is it then.

    Raises:
        ConnectFailed: no controller answers, or none of them leads.
        RemoteError: the leader refuses: the replica is not in sync, or not alive.
    """
    pool = ChannelPool(env, prepare=Security.of().prepare)
    try:
        leader = await _find_leader(pool, addresses, timeout_ms)
        header = ElectMasterHeader(cluster, broker_name, broker_id, True, env.clock.now_ms())
        request = RemotingCommand.request(RequestCode.CONTROLLER_ELECT_MASTER, header.to_ext())
        answer = await (await pool.get(leader)).request(request, timeout_ms)
        if answer.code not in (
            ResponseCode.SUCCESS,
            ResponseCode.CONTROLLER_MASTER_STILL_EXIST,
        ):
            raise remote_error(answer.code, answer.remark)
        return MasterHeader.from_command(answer)
    finally:
        await pool.close()


async def _find_leader(pool: ChannelPool, addresses: Sequence[str], timeout_ms: int) -> str:
    faults = []
    for address in addresses:
        try:
            channel = await pool.get(address, min(timeout_ms, ADDRESS_TIMEOUT_MS))
            request = RemotingCommand.request(RequestCode.CONTROLLER_GET_METADATA_INFO)
            answer = await channel.request(request, timeout_ms)
        except OSError as error:
            faults.append(f"{address}: {error}")
            continue
        if answer.code != ResponseCode.SUCCESS:
            faults.append(f"{address}: {answer.remark}")
            continue
        leader = MetadataInfoHeader.from_command(answer).controller_leader_address
        if leader:
            return leader
        faults.append(f"{address} knows no leader")
    raise ConnectFailed(f"no controller leads: {'; '.join(faults)}")
