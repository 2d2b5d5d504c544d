"""What tools ask controllers: who leads, the replicas of broker sets, another master."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Self, Unpack

from cometmq.client.base.security import Security, SecurityOptions
from cometmq.errors import ConnectFailed, ResponseCode, remote_error
from cometmq.net.channel import ChannelPool
from cometmq.net.env import system_environment
from cometmq.net.tls import TlsNetwork
from cometmq.wire.body.controller import SetReplicas, decode_replicas_info, encode_broker_names
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.extensions.adopt import ADOPT, AdoptHeader
from cometmq.wire.header.controller import ElectMasterHeader, MasterHeader, MetadataInfoHeader

__all__ = ["ControllerAdmin", "ControllerStatus"]

ADDRESS_TIMEOUT_MS: Final = 3000


@dataclass(frozen=True, slots=True)
class ControllerStatus:
    """The controller that leads, and its broker sets by name."""

    leader: str
    sets: dict[str, SetReplicas]


class ControllerAdmin:
    """Asks the controller that leads; `async with` closes the connections.

    Args:
        addresses: ``host:port`` of one or more controllers.
        timeout_ms: of one request.
        security: keys and TLS, else from the environment.

    Every method raises ConnectFailed where no controller leads, and RemoteError where it refuses.
    """

    def __init__(
        self, addresses: Sequence[str], timeout_ms: int, **security: Unpack[SecurityOptions]
    ) -> None:
        secured = Security.of(**security)
        env = system_environment()
        if secured.tls is not None:
            env = replace(env, network=TlsNetwork(secured.tls))
        self._env = env
        self._addresses = addresses
        self._timeout_ms = timeout_ms
        self._pool = ChannelPool(env, prepare=secured.prepare)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._pool.close()

    async def status(self, broker_names: Sequence[str]) -> ControllerStatus:
        """Return the replicas of broker sets; without names of all sets, which RocketMQ's
        controllers answer with none."""
        leader = await self._find_leader()
        answer = await self._ask(
            leader,
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
            body=encode_broker_names(broker_names),
        )
        return ControllerStatus(leader, decode_replicas_info(answer.body))

    async def elect(self, cluster: str, broker_name: str, broker_id: int) -> MasterHeader:
        """Make one in-sync replica the master, also while another one lives; return who is it then.

        It is refused where the replica is not in sync, or not alive.
        """
        header = ElectMasterHeader(cluster, broker_name, broker_id, True, self._env.clock.now_ms())
        answer = await self._ask(
            await self._find_leader(),
            RequestCode.CONTROLLER_ELECT_MASTER,
            header.to_ext(),
            also=ResponseCode.CONTROLLER_MASTER_STILL_EXIST,
        )
        return MasterHeader.from_command(answer)

    async def adopt(self, broker_name: str, replica_count: int | None = None) -> SetReplicas:
        """Have the controller record a set from what its living brokers say; return it.

        Args:
            replica_count: how many brokers the set has; given where its master is dead, so that
                the replica with the longest log is elected.
        """
        header = AdoptHeader(broker_name, replica_count)
        answer = await self._ask(await self._find_leader(), ADOPT, header.to_ext())
        return decode_replicas_info(answer.body)[broker_name]

    async def _find_leader(self) -> str:
        faults = []
        for address in self._addresses:
            try:
                answer = await self._ask(address, RequestCode.CONTROLLER_GET_METADATA_INFO)
            except OSError as error:
                faults.append(f"{address}: {error}")
                continue
            leader = MetadataInfoHeader.from_command(answer).controller_leader_address
            if leader:
                return leader
            faults.append(f"{address} knows no leader")
        raise ConnectFailed(f"no controller leads: {'; '.join(faults)}")

    async def _ask(
        self,
        address: str,
        code: int,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        also: int = 0,
    ) -> RemotingCommand:
        channel = await self._pool.get(address, min(self._timeout_ms, ADDRESS_TIMEOUT_MS))
        request = RemotingCommand.request(code, ext or {}, body)
        answer = await channel.request(request, self._timeout_ms)
        if answer.code not in (ResponseCode.SUCCESS, also):
            raise remote_error(answer.code, answer.remark)
        return answer
