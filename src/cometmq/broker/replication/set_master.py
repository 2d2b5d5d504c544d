"""A master of a replica set: which replicas it waits for, and whom it asks the controller for.

`ReplicaServer` sends the log; this decides what its acknowledgements mean.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from cometmq.broker.base.barrier import SendBarrier
from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.replication.autoswitch import AutoSwitchMasterLink
from cometmq.broker.replication.seat import Seat
from cometmq.core.replication.sync_state import SyncState
from cometmq.errors import ReplicasMissing
from cometmq.net.env import Environment
from cometmq.store.message_store import MessageStore

__all__ = ["SetMaster"]

log = logging.getLogger("cometmq.broker")

EVERYTHING: Final = 1 << 62
"""What is acknowledged, and visible, while the master is alone in its set."""


JOIN_MS: Final = 2000
"""So long a new master takes sends while its replicas are expected; a send waits for 3 s."""
ASK_AGAIN_S: Final = 0.2
"""Pause after a controller that has not answered."""


class SetMaster:
    """The set of one mastership."""

    def __init__(
        self, config: BrokerConfig, env: Environment, store: MessageStore, seat: Seat
    ) -> None:
        self._config = config
        self._env = env
        self._store = store
        self._seat = seat
        self._barrier: SendBarrier | None = None
        self._asking: asyncio.Task[None] | None = None
        self._is_short = False
        self._waits_until_ms = self._now_ms() + JOIN_MS
        self._confirmed = 0
        self.state = SyncState(
            seat.broker_id,
            config.ha_max_time_slave_not_catchup,
            config.min_in_sync_replicas,
            self._now_ms(),
        )
        self.state.recorded(frozenset(seat.in_sync.members), seat.in_sync.epoch)

    def _now_ms(self) -> int:
        return int(self._env.clock.monotonic() * 1000)

    def serve(self, barrier: SendBarrier) -> None:
        """Tell the barrier of sends from now on what the set has."""
        self._barrier = barrier

    def stop(self) -> None:
        """Ask for nothing more."""
        if self._asking is not None:
            self._asking.cancel()

    def new_link(self, now_ms: int) -> AutoSwitchMasterLink:
        """Make the state of a connection that was just opened."""
        return AutoSwitchMasterLink(
            self._store.config.commit_log_file_bytes,
            self._config.ha_transfer_batch_size,
            now_ms,
            self._seat.epochs,
            lambda: self._confirmed,
        )

    def acknowledged(self, links: Sequence[AutoSwitchMasterLink], end: int) -> None:
        """Let sends pass that the set has, and ask the controller for what has changed.

        Args:
            links: the replicas that have made their first report.
            end: up to where replicas get the log.
        """
        state, seat, now_ms = self.state, self._seat, self._now_ms()
        state.recorded(frozenset(seat.in_sync.members), seat.in_sync.epoch)
        ends = {
            link.broker_id: link.acknowledged
            for link in links
            if link.broker_id is not None and link.broker_id > 0
        }
        state.noticed(end, ends, now_ms)
        wanted = state.propose(end, ends, now_ms)
        confirmed = state.confirmed(end, ends)
        is_enough = len(state.members) >= self._config.min_in_sync_replicas
        if confirmed is not None and is_enough:
            self._confirmed = max(self._confirmed, confirmed)
        is_alone = is_enough and state.union == {seat.broker_id}
        copied = EVERYTHING if is_alone else self._confirmed
        self._store.copied(copied)
        if self._barrier is not None:
            self._barrier.acknowledged(copied)
        self._check_minimum(now_ms)
        if wanted is not None and (self._asking is None or self._asking.done()):
            self._asking = asyncio.create_task(self._ask(wanted))

    @property
    def confirmed(self) -> int:
        """Physical offset up to which every in-sync replica has the log."""
        return self._confirmed

    def _check_minimum(self, now_ms: int) -> None:
        """Refuse sends while fewer replicas are in sync than every message must have.

        A new master is alone in its set: its first sends wait for the replicas to join.
        """
        least = self._config.min_in_sync_replicas
        count = self.state.in_sync_count(now_ms)
        if count >= least:
            self._waits_until_ms = now_ms
        if (count < least) == self._is_short or now_ms < self._waits_until_ms:
            return
        self._is_short = count < least
        text = f"in-sync replicas not enough: {count} of minInSyncReplicas={least}"
        log.warning("%s, this broker included", text if self._is_short else "enough replicas")
        self._store.refuse_puts(
            ReplicasMissing(f"{text} with this broker; nothing was stored")
            if self._is_short
            else None
        )

    async def _ask(self, wanted: frozenset[int]) -> None:
        epoch = self.state.epoch
        recorded = await self._seat.alter(wanted, epoch)
        if recorded is None:
            # Unknown: the union stands, and the same is asked for again.
            await asyncio.sleep(ASK_AGAIN_S)
            return
        self._seat.in_sync = recorded
        if recorded.epoch == epoch:
            self.state.refused()
        self.state.recorded(frozenset(recorded.members), recorded.epoch)
        log.info("in-sync replicas: %s", sorted(recorded.members))
