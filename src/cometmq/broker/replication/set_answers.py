"""What controllers, replicas and tools ask a broker of a replica set: codes 906,
1007, 1008, 31023 and 31025."""

from __future__ import annotations

import asyncio

from cometmq.broker.base.state import BrokerState, Refusal, answer, refusing
from cometmq.broker.replication.master import ReplicaServer
from cometmq.broker.replication.seat import Seat
from cometmq.errors import CometError, ResponseCode
from cometmq.net.server import Handler, ServerConnection
from cometmq.wire.body.controller import decode_sync_state_set, encode_epoch_cache
from cometmq.wire.command.codes import RequestCode as Code
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.extensions.adopt import DESCRIBE_REPLICA, ReplicaView
from cometmq.wire.extensions.step_down import STEP_DOWN, StepDownHeader
from cometmq.wire.header.controller import MasterHeader
from cometmq.wire.header.namesrv import HaInfoHeader

__all__ = ["SetProcessor"]


class SetProcessor:
    """The processors of codes 906, 1007, 1008, 31023 and 31025.

    Args:
        replicas: what sends the log to slaves; None on a slave.
    """

    def __init__(self, state: BrokerState, seat: Seat, replicas: ReplicaServer | None) -> None:
        self._state = state
        self._seat = seat
        self._replicas = replicas
        self._stepping: asyncio.Task[None] | None = None

    def handlers(self) -> dict[int, Handler]:
        """Map each code to its processor, with refusals turned into answers."""
        table: dict[int, Handler] = {
            Code.EXCHANGE_BROKER_HA_INFO: self.ha_info,
            Code.GET_BROKER_EPOCH_CACHE: self.epochs,
            Code.NOTIFY_BROKER_ROLE_CHANGED: self.role_changed,
            STEP_DOWN: self.step_down,
            DESCRIBE_REPLICA: self.describe,
        }
        return {code: refusing(handler) for code, handler in table.items()}

    def ha_info(self, request: RemotingCommand, connection: ServerConnection, now_ms: int) -> bytes:
        """Serve EXCHANGE_BROKER_HA_INFO (906): where a master sends its log."""
        if self._replicas is None:
            return answer(request)
        store = self._state.store
        header = HaInfoHeader(self._replicas.address, store.flushed_offset, self._state.address)
        return answer(request, ext=header.to_ext())

    def epochs(self, request: RemotingCommand, connection: ServerConnection, now_ms: int) -> bytes:
        """Serve GET_BROKER_EPOCH_CACHE (1007)."""
        config, end = self._state.config, self._state.store.max_physical_offset
        body = encode_epoch_cache(
            config.broker_cluster_name,
            config.broker_name,
            config.member_id,
            self._seat.epochs.up_to(end).entries or self._seat.epochs.entries[:1],
            end,
        )
        return answer(request, body=body)

    def describe(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve DESCRIBE_REPLICA (31025)."""
        config, seat, end = self._state.config, self._seat, self._state.store.max_physical_offset
        view = ReplicaView(
            config.broker_cluster_name,
            seat.is_master,
            seat.master_epoch,
            seat.epochs.up_to(end).last,
            end,
            seat.in_sync.members,
            config.min_in_sync_replicas,
        )
        return answer(request, body=view.encode())

    def role_changed(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve NOTIFY_BROKER_ROLE_CHANGED (1008)."""
        header = MasterHeader.from_command(request)
        self._seat.noticed(header, decode_sync_state_set(request.body))
        return answer(request)

    def step_down(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes | None:
        """Serve STEP_DOWN (31023)."""
        if not self._seat.is_master:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"this broker is no master, the master is at {self._seat.master_address}: ask it",
            )
        if self._stepping is not None and not self._stepping.done():
            raise Refusal(ResponseCode.SYSTEM_ERROR, "the mastership is being handed over already")
        wanted = StepDownHeader.from_command(request).broker_id

        async def step_down() -> None:
            try:
                master = await self._seat.step_down(wanted)
            except CometError as error:
                connection.send(answer(request, ResponseCode.SYSTEM_ERROR, str(error)))
            else:
                connection.send(answer(request, ext=master.to_ext()))

        self._stepping = asyncio.create_task(step_down())
        return None
