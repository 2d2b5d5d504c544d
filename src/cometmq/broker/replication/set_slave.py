"""A slave of a replica set: it follows the master that the controller names.

The epochs of both logs are compared before the first byte (core/replication/epochs.py).  A log that
has more than the point where the two part has to be cut there first: the owner of the broker hears
of it, stops the broker, cuts, and starts it again.  A log that ends before the master's begins is
of no use any more: its owner empties the store, and the log is copied from the master's begin on.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.registration import RegistrationService
from cometmq.broker.replication.autoswitch import AutoSwitchSlaveLink, encode_greeting
from cometmq.broker.replication.seat import Seat
from cometmq.broker.replication.slave import LogsDiffer, ReplicaClient
from cometmq.core.replication.epochs import EpochList, parting_point
from cometmq.errors import ConnectFailed
from cometmq.net.byte_stream import ByteStream
from cometmq.net.channel import ChannelPool
from cometmq.net.env import Environment
from cometmq.net.network import parse_address
from cometmq.store.message_store import MessageStore
from cometmq.wire.body.route import decode_kv_table
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.header.namesrv import HaInfoHeader

__all__ = ["SetReplicaClient"]

log = logging.getLogger("cometmq.broker")

SET_RETRY_S: Final = 0.1
"""Pause before the next attempt: a new master's sends may wait for this replica."""
SET_REPORT_MS: Final = 500
"""A replica reports so often though nothing has changed: a master of which it hears nothing may be
cut off, and grants no queue locks (`ReplicaServer.is_surely_master`)."""
GREETING_S: Final = 5.0
"""So long a master may take to answer the handshake."""


class SetReplicaClient(ReplicaClient):
    """Follows the master of a replica set."""

    def __init__(
        self,
        config: BrokerConfig,
        env: Environment,
        store: MessageStore,
        registration: RegistrationService,
        pool: ChannelPool,
        seat: Seat,
    ) -> None:
        super().__init__(config, env, store, registration, pool)
        self._retry_s = SET_RETRY_S
        self._check_s, self._report_ms = SET_REPORT_MS / 1000, SET_REPORT_MS
        self.is_journaled = False
        """Whether the master writes what it changes in its tables into the log (`journal`)."""
        self._seat = seat
        self._greeted = asyncio.Event()

    async def _follow_once(self) -> None:
        """Connect and follow until the connection ends.

        Raises:
            LogsDiffer: the two logs have no epoch in common.
            CometError: why there is no connection any more.
        """
        seat, store = self._seat, self._store
        master = seat.master_address
        if master is None or seat.is_master:
            raise ConnectFailed(
                f"the controller names no master of broker name {self._config.broker_name}"
            )
        answer = await self._ask(master, RequestCode.EXCHANGE_BROKER_HA_INFO)
        address = HaInfoHeader.from_command(answer).master_ha_address
        if not address:
            raise ConnectFailed(f"the master {master} announces no address for its log (HA port)")
        await self._durable()
        begin = await self._begin_of(master)
        plain_start: int | None = None
        if not seat.epochs.up_to(store.max_physical_offset).entries:
            # The log is from before the set, or empty: compared as a plain slave does.
            plain_start = await self._compare(master)
        self._ended.clear()
        self._greeted.clear()
        self._fault = None
        host, port = parse_address(address)
        link = AutoSwitchSlaveLink(self._env.clock.now_ms())
        self.link = link
        stream = await self._env.network.connect(host, port, self._made_stream)
        self._stream = stream
        self.address, self.master = address, master
        try:
            stream.write([encode_greeting(seat.broker_id)])
            epochs = await self._master_epochs(link)
            start = self._first_byte(epochs, link.master_end, begin, plain_start)
            await seat.save_epochs(epochs)
            seat.epochs = epochs
            link.begin(start)
            log.info("following %s from physical offset %d on", address, start)
            self._last_fault = ""
            self._send_report()
            self.on_connected()
            await self._until_ended()
        finally:
            self.link = self._stream = self.master = None
            store.replica.forget_partial()
            stream.close()
        raise self._fault or ConnectFailed(f"the master {address} has closed the connection")

    def _made_stream(self) -> ByteStream:
        stream = ByteStream()
        stream.on_data = self._received
        stream.on_lost = self._lost
        return stream

    def _lost(self) -> None:
        self._ended.set()
        self._greeted.set()

    def _received(self, data: bytes) -> None:
        super()._received(data)
        link = self.link
        if isinstance(link, AutoSwitchSlaveLink) and link.epochs is not None:
            self._greeted.set()
            if link.expected >= 0:
                self._store.copied(link.confirmed)

    async def _master_epochs(self, link: AutoSwitchSlaveLink) -> EpochList:
        try:
            async with asyncio.timeout(GREETING_S):
                await self._greeted.wait()
        except TimeoutError:
            raise ConnectFailed("the master has not answered the handshake") from None
        if link.epochs is None:
            raise self._fault or ConnectFailed("the master has closed the connection")
        return link.epochs

    async def _begin_of(self, master: str) -> int:
        """Ask where the master's log begins."""
        answer = await self._ask(master, RequestCode.GET_BROKER_RUNTIME_INFO)
        info = decode_kv_table(answer.body)
        # RocketMQ's brokers do not scrub.
        self.is_journaled = "scrubBlocksRead" in info
        return int(info["commitLogMinOffset"])

    def _first_byte(
        self, theirs: EpochList, their_end: int, their_begin: int, plain_start: int | None
    ) -> int:
        """Return the physical offset to follow from.

        Raises:
            LogsDiffer: the two logs have no epoch in common.
            ConnectFailed: the log has to be cut first, which its owner does.
        """
        store, seat = self._store, self._seat
        end = store.max_physical_offset
        if store.min_physical_offset == end:
            return end
        own = seat.epochs.up_to(end)
        if not own.entries:
            if plain_start is None:
                raise ConnectFailed("the epochs of the log are cut; compared again")
            return end
        point = parting_point(own, end, theirs, their_end)
        if end < their_begin and point in (None, end):
            seat.cut(0)
            raise ConnectFailed(
                f"the log here ends at {end}, and the master's begins at {their_begin}: what is"
                " between has expired there, so the log is copied anew"
            )
        if point is None:
            raise LogsDiffer(
                f"the epochs of the log here are {_texts(own)}, and none of them is among the"
                f" master's, {_texts(theirs)}: this is no copy of the master's log, and nothing is"
                f" cut; if it has nothing that you miss, stop this broker, move"
                f" {self._config.store_path()} away, and start it: it copies the whole log"
            )
        if point < end:
            seat.cut(point)
            raise ConnectFailed(
                f"the log here ends at {end} and parts from the master's at {point}: what is"
                " behind was not acknowledged, and is cut"
            )
        return end


def _texts(epochs: EpochList) -> str:
    """Return the last epochs with the physical offsets where they begin."""
    return ", ".join(f"{number} from {start} on" for number, start in epochs.entries[-5:])
