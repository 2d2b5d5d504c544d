"""The master's end: listens on the HA port and sends the log to every slave that connects.

While slaves are connected, a timer looks for new bytes every `POLL_MS`; a send that waits for
slaves has them sent at once (`kick`).  So a message costs nothing here, and a broker without slaves
has no timer.  Bytes in memory go out from the loop, a worker reads all others.  A slow slave holds
no memory but its position: what it has not taken is read again when it is ready.

With SYNC_FLUSH only flushed bytes are sent.  RocketMQ sends what is written; after a power cut its
slave may have records that the master has lost, and then the two logs differ.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from cometmq.broker.base.barrier import SendBarrier
from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.replication.autoswitch import AutoSwitchMasterLink
from cometmq.broker.replication.links import MasterLink
from cometmq.broker.replication.set_master import SetMaster
from cometmq.errors import CometError, RemoteProtocolError, ReplicasMissing, StoreError
from cometmq.net.byte_stream import ByteStream
from cometmq.net.env import Environment
from cometmq.net.network import Listener
from cometmq.net.tls_server import replication_network
from cometmq.store.message_store import MessageStore

__all__ = ["ReplicaServer"]

log = logging.getLogger("cometmq.broker")

POLL_MS: Final = 5
"""How late an asynchronous slave hears of a message; RocketMQ's waits up to 100 ms."""
SET_CHECK_MS: Final = 100
"""How often a set without slaves is looked at."""
CHECK_MS: Final = 1000
"""How often heartbeats and silence are looked at, as in RocketMQ."""
SILENT_MS: Final = 1000
"""A replica that is silent for longer may follow another master."""
PIECE_BYTES: Final = 1 << 20
"""Sent in one turn of the loop: below a millisecond of work, so sends have their turn."""


class _Slave:
    """One connected slave."""

    def __init__(self, stream: ByteStream, link: MasterLink) -> None:
        self.stream = stream
        self.link = link
        self.is_reading = False
        """Whether a worker reads bytes for it."""
        self.is_due = False
        """Whether its next turn is scheduled."""


class ReplicaServer:
    """Sends one store's log to slaves.

    Args:
        members: the replica set that this broker is the master of; None for plain HA.
    """

    def __init__(
        self,
        config: BrokerConfig,
        env: Environment,
        store: MessageStore,
        members: SetMaster | None = None,
    ) -> None:
        self._config = config
        self._members = members
        self._env = env
        self._store = store
        self._is_sync_flush = store.config.is_sync_flush
        self._slaves: dict[ByteStream, _Slave] = {}
        self._listener: Listener | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._check_ms = 0
        self._polled_ms = 0
        self._kicked = False
        self._own_end = store.max_physical_offset
        """A slave may ask for the log from here on at most: the end of the log when this life
        began, or what this life has sent."""
        self.port = 0
        """The bound port; 0 while nothing listens."""
        self.address = ""
        """``host:port`` to announce."""
        self._barrier: SendBarrier | None = None
        self._is_short = False
        """Whether fewer replicas are in sync than minInSyncReplicas."""

    def serve(self, barrier: SendBarrier) -> None:
        """Tell the barrier of sends from now on what slaves have."""
        self._barrier = barrier
        barrier.kick = self.kick
        if self._members is not None:
            self._members.serve(barrier)
            self._poll()
        self._acknowledged()

    async def listen(self, host: str, port: int) -> None:
        """Accept slaves from now on.

        Raises:
            ConnectFailed: the port cannot be bound.
        """
        network = replication_network(self._env.network, is_encrypted=self._config.ha_tls)
        self._listener = await network.listen(host, port, lambda: ByteStream(self._opened))
        self.port = self._listener.port

    def stop(self) -> None:
        """Accept no more slaves, and drop those that are connected."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._timer is not None:
            self._timer.cancel()
        if self._members is not None:
            self._members.stop()
        for stream in list(self._slaves):
            stream.close()

    # -- what others ask ------------------------------------------------------------------

    @property
    def end(self) -> int:
        """Physical offset up to which slaves get the log."""
        store = self._store
        return store.flushed_offset if self._is_sync_flush else store.max_physical_offset

    def links(self) -> list[tuple[str, MasterLink]]:
        """Return peer and link of each slave that has made its first report."""
        return [
            (slave.stream.peer, slave.link)
            for slave in self._slaves.values()
            if slave.link.sent >= 0
        ]

    def is_surely_master(self) -> bool:
        """Whether no other broker can be the master of the set now: every in-sync replica follows
        this one, by what it has reported within a second.

        RocketMQ's replicas report every 5 s while nothing happens, so with them it is a guess.
        """
        members, now_ms = self._members, self._env.clock.now_ms()
        if members is None:
            return True
        if now_ms - self._polled_ms > SILENT_MS:
            # This process stood still, and what comes from the connections may be old.
            return False
        followed = {
            link.broker_id
            for _, link in self.links()
            if isinstance(link, AutoSwitchMasterLink)
            and (not link.is_frequent or now_ms - link.read_ms <= SILENT_MS)
        }
        return members.state.union <= followed | {members.state.own_id}

    def acknowledged(self, slave_count: int) -> int:
        """Return the physical offset up to which so many slaves have the log, -1 without them."""
        ends = sorted((link.acknowledged for _, link in self.links()), reverse=True)
        return ends[slave_count - 1] if len(ends) >= slave_count else -1

    def in_sync_count(self) -> int:
        """Count this broker and the slaves that are at most haMaxGapNotInSync behind, or the
        in-sync replicas of a set."""
        if self._members is not None:
            return len(self._members.state.members)
        least = self.end - self._config.ha_max_gap_not_in_sync
        return 1 + sum(link.acknowledged > least for _, link in self.links())

    def _acknowledged(self) -> None:
        """Let sends pass that enough slaves have; refuse sends while too few are in sync."""
        if self._members is not None:
            links = [link for _, link in self.links()]
            self._members.acknowledged(
                [link for link in links if isinstance(link, AutoSwitchMasterLink)], self.end
            )
            return
        barrier, least = self._barrier, self._config.min_in_sync_replicas
        if barrier is None:
            return
        if barrier.slave_count:
            barrier.acknowledged(self.acknowledged(barrier.slave_count))
        if least <= 1 or self._config.broker_role != "SYNC_MASTER":
            return
        count = self.in_sync_count()
        if (count < least) != self._is_short:
            self._is_short = count < least
            text = f"in-sync replicas not enough: {count} of minInSyncReplicas={least}"
            log.warning("%s, this broker included", text if self._is_short else "enough replicas")
            self._store.refuse_puts(
                ReplicasMissing(f"{text} with this broker; nothing was stored")
                if self._is_short
                else None
            )

    def kick(self) -> None:
        """Send what is new at the end of this turn of the loop."""
        if not self._kicked and self._slaves:
            self._kicked = True
            asyncio.get_running_loop().call_soon(self._pump)

    # -- one slave ------------------------------------------------------------------------

    def _opened(self, stream: ByteStream) -> None:
        now_ms = self._env.clock.now_ms()
        link = (
            MasterLink(
                self._store.config.commit_log_file_bytes,
                self._config.ha_transfer_batch_size,
                now_ms,
            )
            if self._members is None
            else self._members.new_link(now_ms)
        )
        slave = self._slaves[stream] = _Slave(stream, link)
        stream.on_data = lambda data: self._received(slave, data)
        stream.on_drained = lambda: self._turn(slave)
        stream.on_lost = lambda: self._lost(slave)
        if self._timer is None or self._members is not None:
            if self._timer is not None:
                self._timer.cancel()
            self._poll()

    def _lost(self, slave: _Slave) -> None:
        del self._slaves[slave.stream]
        if slave.link.sent >= 0:
            log.warning(
                "slave %s is gone: it has the log up to %d, this broker up to %d",
                slave.stream.peer,
                slave.link.acknowledged,
                self.end,
            )
        self._acknowledged()

    def _received(self, slave: _Slave, data: bytes) -> None:
        link = slave.link
        is_new = link.sent < 0
        try:
            link.receive(data, self.end, self._env.clock.now_ms())
            if isinstance(link, AutoSwitchMasterLink):
                self._greet(slave, link)
            if is_new and link.sent >= 0:
                self._check_request(link)
                log.info(
                    "slave %s follows from physical offset %d on", slave.stream.peer, link.sent
                )
        except RemoteProtocolError as error:
            log.error("slave %s is refused: %s", slave.stream.peer, error)
            link.sent = -1
            slave.stream.close()
            return
        self._turn(slave)
        self._acknowledged()

    def _greet(self, slave: _Slave, link: AutoSwitchMasterLink) -> None:
        """Answer a handshake; an earlier connection of the same replica ends with it."""
        answer = link.take_answer()
        if not answer:
            return
        slave.stream.write([answer])
        for other in list(self._slaves.values()):
            if other is slave or not isinstance(other.link, AutoSwitchMasterLink):
                continue
            if other.link.broker_id == link.broker_id:
                log.info("replica %s is here again from %s", link.broker_id, slave.stream.peer)
                other.stream.close()

    def _check_request(self, link: MasterLink) -> None:
        begin = self._store.min_physical_offset
        if isinstance(link, AutoSwitchMasterLink) and link.sent == 0:
            # A replica without a log wants all of it.
            link.sent = link.acknowledged = begin
        # Our slave asks for 1 when it wants the whole of a log that begins at 0.
        if link.sent < begin:
            raise RemoteProtocolError(
                f"it asks for the log from physical offset {link.sent} on, and the log here begins"
                f" at {begin}; empty its store, then it begins anew"
            )
        if link.requested > max(self._own_end, 1):
            raise RemoteProtocolError(
                f"its log ends at {link.requested}, and this broker has never had more than"
                f" {self._own_end} bytes that it could have from here: the logs differ; compare"
                " them, then empty the store of the one that is to follow"
            )

    # -- sending --------------------------------------------------------------------------

    def _poll(self) -> None:
        self._timer = None
        if self._listener is None or not (self._slaves or self._members):
            return
        # A set is looked at without slaves too: those that are gone leave it.
        wait_ms = POLL_MS if self._slaves else SET_CHECK_MS
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._poll)
        self._polled_ms = now_ms = self._env.clock.now_ms()
        if now_ms - self._check_ms >= CHECK_MS or now_ms < self._check_ms:
            self._check_ms = now_ms
            self._check_silence(now_ms)
        elif self._members is not None:
            self._acknowledged()
        self._pump()

    def _check_silence(self, now_ms: int) -> None:
        config = self._config
        for slave in list(self._slaves.values()):
            link = slave.link
            link.measure(now_ms)
            if now_ms - link.read_ms > config.ha_housekeeping_interval:
                log.warning(
                    "slave %s was silent for %d ms: its connection is closed",
                    slave.stream.peer,
                    now_ms - link.read_ms,
                )
                slave.stream.close()
            elif now_ms - link.written_ms >= config.ha_send_heartbeat_interval and (
                heartbeat := link.heartbeat(now_ms)
            ):
                slave.stream.write([heartbeat])
        self._acknowledged()

    def _pump(self) -> None:
        self._kicked = False
        for slave in list(self._slaves.values()):
            self._turn(slave)

    def _turn(self, slave: _Slave) -> None:
        """Send the next piece, and schedule another turn if there is more."""
        slave.is_due = False
        stream, link = slave.stream, slave.link
        if stream.is_closed or stream.is_paused or slave.is_reading:
            return
        position, size = link.next_span(self.end)
        if not size:
            self._confirm(slave)
            return
        store = self._store
        if position < store.min_physical_offset:
            log.error(
                "slave %s needs the log from physical offset %d on, and its file has expired here;"
                " empty its store, then it begins anew",
                stream.peer,
                position,
            )
            stream.close()
            return
        size = min(size, PIECE_BYTES)
        try:
            data = store.resident_log(position, size)
        except StoreError:
            # The store is being closed.
            return
        if data is None:
            self._read(slave, position, size)
        elif data:
            self._write(slave, data)

    def _confirm(self, slave: _Slave) -> None:
        """Tell a replica that has everything up to where all have it: its readers end there."""
        link, members = slave.link, self._members
        if (
            members is not None
            and isinstance(link, AutoSwitchMasterLink)
            and link.sent_confirmed < members.confirmed
            and (heartbeat := link.heartbeat(self._env.clock.now_ms()))
        ):
            slave.stream.write([heartbeat])

    def _write(self, slave: _Slave, data: memoryview) -> None:
        buffers = slave.link.encode(data, self._env.clock.now_ms())
        self._own_end = max(self._own_end, slave.link.sent)
        slave.stream.write(buffers)
        if slave.link.sent < self.end and not slave.is_due:
            slave.is_due = True
            asyncio.get_running_loop().call_soon(self._turn, slave)

    def _read(self, slave: _Slave, position: int, size: int) -> None:
        """Have a worker read a piece that is not in memory."""
        slave.is_reading = True
        store = self._store

        def done(result: memoryview | BaseException) -> None:
            slave.is_reading = False
            if slave.stream.is_closed:
                return
            if isinstance(result, memoryview) and result:
                self._write(slave, result)
            elif not isinstance(result, CometError):
                log.error(
                    "slave %s gets nothing: reading the log at %d failed: %s",
                    slave.stream.peer,
                    position,
                    result,
                )
                slave.stream.close()

        self._env.workers.submit(lambda: memoryview(store.log_bytes(position, size)), done)
