"""What a broker asks and tells its controllers: RocketMQ's protocol, from the broker's side.

The leader answers; heartbeats go to every controller, each over one connection that stays open,
because a RocketMQ controller takes a closed connection for a death.

Source: BrokerOuterAPI and ReplicasManager of RocketMQ 5.4.0, and frames captured from its brokers.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Final

from cometmq.errors import CometError, ConnectFailed, ResponseCode, remote_error
from cometmq.net.channel import ChannelPool
from cometmq.net.env import Environment
from cometmq.wire.body.controller import SyncStateSet, decode_sync_state_set, encode_sync_state_set
from cometmq.wire.command.codes import RequestCode as Code
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.controller import (
    AlterSyncStateSetHeader,
    ApplyBrokerIdHeader,
    ControllerBrokerHeader,
    ControllerRegisterHeader,
    ElectMasterHeader,
    MasterHeader,
    MetadataInfoHeader,
    NextBrokerIdResponseHeader,
    ReplicaInfoHeader,
)
from cometmq.wire.header.namesrv import BrokerHeartbeatHeader

__all__ = ["Controllers", "MasterNews"]

log = logging.getLogger("cometmq.broker")

ASK_TIMEOUT_MS: Final = 3000
DIAL_TIMEOUT_MS: Final = 1000

MasterNews = tuple[MasterHeader, SyncStateSet]
"""Who the master is, and which replicas are in sync."""


class Controllers:
    """The controllers that `controllerAddr` names, for one broker; `sign` signs what it asks."""

    def __init__(
        self,
        env: Environment,
        addresses: str,
        cluster: str,
        broker_name: str,
        sign: Callable[[RemotingCommand], None] | None = None,
    ) -> None:
        self._env = env
        self._addresses = [part for part in re.split(r"[;,\s]+", addresses) if part]
        self._cluster, self._broker_name = cluster, broker_name
        self._pool = ChannelPool(env, prepare=sign)
        self._leader: str | None = None
        self._dialling: dict[str, asyncio.Task[None]] = {}

    async def close(self) -> None:
        """Close every connection, which the controllers notice."""
        for task in list(self._dialling.values()):
            task.cancel()
        await self._pool.close()

    async def get_id(self, address: str, check_code: str) -> int:
        """Get an id for a broker that has none.

        Raises:
            CometError: no controller leads, or the leader refuses.
        """
        ask = ControllerBrokerHeader(self._cluster, self._broker_name)
        answer = await self._ask(Code.CONTROLLER_GET_NEXT_BROKER_ID, ask.to_ext())
        broker_id = NextBrokerIdResponseHeader.from_command(answer).next_broker_id
        wanted = ApplyBrokerIdHeader(self._cluster, self._broker_name, broker_id, check_code)
        await self._ask(Code.CONTROLLER_APPLY_BROKER_ID, wanted.to_ext())
        return broker_id

    async def register(self, broker_id: int, address: str, *, is_unclean: bool) -> MasterNews:
        """Say that the broker has started; the master's fields are absent where there is none.

        Args:
            is_unclean: it may have lost what it had acknowledged.

        Raises:
            CometError: no controller leads, or the leader refuses.
        """
        header = ControllerRegisterHeader(
            self._cluster,
            self._broker_name,
            broker_id,
            address,
            self._env.clock.now_ms(),
            is_unclean or None,
        )
        answer = await self._ask(Code.CONTROLLER_REGISTER_BROKER, header.to_ext())
        return MasterHeader.from_command(answer), decode_sync_state_set(answer.body)

    async def elect(self, broker_id: int, *, is_designated: bool = False) -> MasterHeader:
        """Ask for an election; return who is the master.

        Args:
            is_designated: this broker is to be the master, also while another one lives.

        Raises:
            CometError: no controller leads, or nobody can be elected.
        """
        header = ElectMasterHeader(
            self._cluster, self._broker_name, broker_id, is_designated, self._env.clock.now_ms()
        )
        answer = await self._ask(
            Code.CONTROLLER_ELECT_MASTER,
            header.to_ext(),
            also=ResponseCode.CONTROLLER_MASTER_STILL_EXIST,
        )
        return MasterHeader.from_command(answer)

    async def master(self) -> MasterNews:
        """Ask who the master is.

        Raises:
            CometError: no controller leads, or the set is not known there.
        """
        header = ReplicaInfoHeader(self._broker_name)
        answer = await self._ask(Code.CONTROLLER_GET_REPLICA_INFO, header.to_ext())
        return MasterHeader.from_command(answer), decode_sync_state_set(answer.body)

    async def alter(
        self, broker_id: int, master_epoch: int, members: frozenset[int], epoch: int
    ) -> SyncStateSet:
        """Ask for other in-sync replicas; return what is recorded.

        Raises:
            RemoteError: the leader refuses.
            CometError: no answer: it may be recorded or not.
        """
        header = AlterSyncStateSetHeader(
            self._broker_name, broker_id, master_epoch, self._env.clock.now_ms()
        )
        body = encode_sync_state_set(members, epoch)
        answer = await self._ask(Code.CONTROLLER_ALTER_SYNC_STATE_SET, header.to_ext(), body)
        return decode_sync_state_set(answer.body)

    def heartbeat(self, header: BrokerHeartbeatHeader) -> None:
        """Tell every controller that the broker lives; none waits for one that is away."""
        request = RemotingCommand.request(Code.BROKER_HEARTBEAT, header.to_ext())
        for address in self._addresses:
            channel = self._pool.open_channel(address)
            if channel is not None:
                channel.oneway(request)
            elif address not in self._dialling:
                self._dialling[address] = asyncio.create_task(self._dial(address, request))

    async def _dial(self, address: str, request: RemotingCommand) -> None:
        try:
            (await self._pool.get(address, DIAL_TIMEOUT_MS)).oneway(request)
        except ConnectFailed as error:
            log.debug("controller %s hears no heartbeat: %s", address, error)
        finally:
            del self._dialling[address]

    async def _ask(
        self, code: int, ext: dict[str, str], body: bytes = b"", *, also: int = 0
    ) -> RemotingCommand:
        """Ask the leader; a leader that is none any more is looked for once."""
        answer = await self._ask_leader(code, ext, body)
        if answer.code == ResponseCode.CONTROLLER_NOT_LEADER:
            answer = await self._ask_leader(code, ext, body)
        if answer.code not in (ResponseCode.SUCCESS, also):
            raise remote_error(answer.code, answer.remark)
        return answer

    async def _ask_leader(self, code: int, ext: dict[str, str], body: bytes) -> RemotingCommand:
        leader = self._leader or await self._find_leader()
        self._leader = None
        channel = await self._pool.get(leader, DIAL_TIMEOUT_MS)
        request = RemotingCommand.request(code, ext, body)
        answer = await channel.request(request, ASK_TIMEOUT_MS)
        if answer.code != ResponseCode.CONTROLLER_NOT_LEADER:
            self._leader = leader
        return answer

    async def _find_leader(self) -> str:
        faults = []
        for address in self._addresses:
            request = RemotingCommand.request(Code.CONTROLLER_GET_METADATA_INFO)
            try:
                channel = await self._pool.get(address, DIAL_TIMEOUT_MS)
                answer = await channel.request(request, ASK_TIMEOUT_MS)
            except CometError as error:
                faults.append(f"{address}: {error}")
                continue
            leader = MetadataInfoHeader.from_command(answer).controller_leader_address
            if leader:
                return leader
            faults.append(f"{address} knows no leader")
        raise ConnectFailed(f"no controller leads: {'; '.join(faults)}")
