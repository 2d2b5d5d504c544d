"""What slaves and tools ask a broker about replication: codes 60, 402 and 907."""

from __future__ import annotations

from collections.abc import Callable

from cometmq.broker.base.state import BrokerState, Refusal, answer, refusing
from cometmq.broker.replication.following import Following
from cometmq.broker.replication.master import ReplicaServer
from cometmq.codec.timer import (
    TIMER_CHECKPOINT_BODY_BYTES,
    TimerCheckpoint,
    encode_timer_checkpoint,
)
from cometmq.errors import ResponseCode
from cometmq.net.server import Handler, ServerConnection
from cometmq.wire.body.ha import HaClient, HaConnection, HaStatus, encode_ha_status
from cometmq.wire.command.codes import RequestCode as Code
from cometmq.wire.command.command import RemotingCommand

__all__ = ["ReplicationProcessor"]


class ReplicationProcessor:
    """The processors of codes 60, 402 and 907.

    Args:
        replicas: what sends the log to slaves; None where nothing listens for them.
        following: what follows a master; None on a master.
        timer_checkpoint: gives how far the timers are, as it is written; None without timers.
    """

    def __init__(
        self,
        state: BrokerState,
        replicas: ReplicaServer | None,
        following: Following | None,
        timer_checkpoint: Callable[[], TimerCheckpoint] | None,
    ) -> None:
        self._state = state
        self._replicas = replicas
        self._following = following
        self._timer_checkpoint = timer_checkpoint

    def handlers(self) -> dict[int, Handler]:
        """Map each code to its processor, with refusals turned into answers."""
        table: dict[int, Handler] = {
            Code.GET_TIMER_CHECK_POINT: self.timer_checkpoint,
            Code.GET_ALL_MESSAGE_REQUEST_MODE: self.request_modes,
            Code.GET_BROKER_HA_STATUS: self.ha_status,
        }
        return {code: refusing(handler) for code, handler in table.items()}

    def timer_checkpoint(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve GET_TIMER_CHECK_POINT (60): the 56 bytes of the file ``timercheck``.

        Raises:
            Refusal: this broker has no timers.
        """
        if self._timer_checkpoint is None:
            raise Refusal(ResponseCode.SYSTEM_ERROR, "The checkpoint is null")
        body = encode_timer_checkpoint(self._timer_checkpoint())[:TIMER_CHECKPOINT_BODY_BYTES]
        return answer(request, body=body)

    def request_modes(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve GET_ALL_MESSAGE_REQUEST_MODE (402): none, since every consumer pulls here."""
        return answer(request, body=b'{"messageRequestModeMap":{}}')

    def ha_status(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve GET_BROKER_HA_STATUS (907)."""
        return answer(request, body=encode_ha_status(self.status()))

    def status(self) -> HaStatus:
        """Return the slaves of this master, or this slave's progress."""
        end = self._state.store.max_physical_offset
        following = self._following
        if following is not None:
            log = following.log
            link = log.link
            return HaStatus(
                is_master=False,
                max_offset=end,
                client=HaClient(
                    log.address,
                    0,
                    end,
                    0 if link is None else link.read_ms,
                    0 if link is None else link.written_ms,
                    log.master_end,
                    is_active=link is not None,
                ),
            )
        replicas = self._replicas
        if replicas is None:
            return HaStatus(is_master=True, max_offset=end)
        gap_max = self._state.config.ha_max_gap_not_in_sync
        return HaStatus(
            is_master=True,
            max_offset=end,
            in_sync_slave_count=replicas.in_sync_count() - 1,
            connections=tuple(
                HaConnection(
                    peer,
                    link.acknowledged,
                    end - link.acknowledged,
                    end - link.acknowledged < gap_max,
                    link.bytes_a_second,
                    link.sent,
                )
                for peer, link in replicas.links()
            ),
        )
