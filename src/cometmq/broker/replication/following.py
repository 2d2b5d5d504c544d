"""A slave's work: it follows the master's log and copies the master's tables."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from cometmq.broker.base.state import BrokerState
from cometmq.broker.delay.levels.schedule import ScheduleService
from cometmq.broker.registration import RegistrationService
from cometmq.broker.replication.journal import StateFollower
from cometmq.broker.replication.seals import SealComparer
from cometmq.broker.replication.seat import Seat
from cometmq.broker.replication.set_slave import SetReplicaClient
from cometmq.broker.replication.slave import ReplicaClient
from cometmq.broker.replication.tables import TableCopier
from cometmq.errors import CometError, StoreFollows
from cometmq.net.channel import ChannelPool
from cometmq.store.base.disk import Disk

__all__ = ["Following"]

log = logging.getLogger("cometmq.broker")

POSITIONS_S: Final = 3.0
"""How old the positions of consumers and deliveries are when this broker becomes the master: so
much may be delivered again."""
SET_POSITIONS_S: Final = 1.0
"""The same in a replica set, where the change comes without warning."""
TABLES_EVERY: Final = 4
"""Topics and groups are copied with every so many copies of the positions."""


class Following:
    """Follows one master.  From its making on the store refuses everything but the master's log.

    Args:
        seat: what a controller says of the broker; None where the name servers name the master.
        journal: gathers what the master writes into the log of its tables; None without a seat.
    """

    def __init__(
        self,
        state: BrokerState,
        registration: RegistrationService,
        schedule: ScheduleService,
        disk: Disk,
        seat: Seat | None = None,
        journal: StateFollower | None = None,
    ) -> None:
        config = state.config
        self._pool = ChannelPool(state.env, prepare=state.config.signer())
        self._journal = journal
        self._state = state
        self._pause_s = POSITIONS_S if seat is None else SET_POSITIONS_S
        self._task: asyncio.Task[None] | None = None
        self._connected = asyncio.Event()
        parts = config, state.env, state.store, registration, self._pool
        self.log = ReplicaClient(*parts) if seat is None else SetReplicaClient(*parts, seat)
        self.log.on_connected = self._connected.set
        self.tables = TableCopier(state, schedule, disk, self._pool)
        self.seals = SealComparer(state, self._pool)
        state.follows_master = lambda: self.log.master is not None
        state.store.refuse_puts(
            StoreFollows(
                f"this broker is a slave (brokerId={config.broker_id}) of {config.broker_name}:"
                " send to the master, brokerId=0"
            )
        )

    def start(self) -> None:
        """Follow from now on."""
        self.log.start()
        self._task = asyncio.create_task(self._copy_tables())

    async def stop(self) -> None:
        """Follow no more."""
        await self.log.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._pool.close()

    async def _copy_tables(self) -> None:
        """Copy the tables while the log is followed: only then the two brokers belong together."""
        turn = 0
        is_failing = False
        while True:
            await self._connected.wait()
            master = self.log.master
            if master is None:
                self._connected.clear()
                turn = 0
                continue
            try:
                if turn % TABLES_EVERY == 0 or self._has_new_topic():
                    await self.tables.copy(master)
                else:
                    await self.tables.copy_positions(master)
                await self._follow_journal()
                await self.seals.compare(master)
                is_failing = False
            except CometError as error:
                if not is_failing:
                    log.warning("the tables of the master %s are not copied: %s", master, error)
                is_failing = True
            except Exception:
                log.exception("the tables of the master %s are not copied", master)
            turn += 1
            await asyncio.sleep(self._pause_s)

    async def _follow_journal(self) -> None:
        """Gather what the master has written of its tables; RocketMQ's masters write nothing."""
        journal, log_client = self._journal, self.log
        if journal is None or not isinstance(log_client, SetReplicaClient):
            return
        work = journal.follow if log_client.is_journaled else journal.skip
        await journal.in_worker(self._state.env.workers, work)
        journal.tell()

    def _has_new_topic(self) -> bool:
        """Return whether the log has messages of a topic whose settings are not here yet."""
        topics = self._state.topics
        return any(topic not in topics for topic in self._state.store.topics())
