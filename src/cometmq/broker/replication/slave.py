"""The slave's end: follows a master's log.

Before each connection the slave compares the two logs, since the protocol itself never does: the
size of the files, both ends, and the bytes of its own last record.  A log that is longer than the
master's, or different, is kept as it is: the slave says so and stops following.

A fresh RocketMQ slave gets only the last file of the log.  This one gets all of it: it asks for the
physical offset at which the master's log begins.  0 would mean the last file, so it asks for 1
there, and puts the missing first byte itself: it is the top byte of a record's size, which is
below 16 MiB, hence 0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.registration import RegistrationService
from cometmq.broker.replication.autoswitch import AutoSwitchSlaveLink
from cometmq.broker.replication.links import SlaveLink
from cometmq.codec.java_properties import parse_properties
from cometmq.errors import (
    CometError,
    ConnectFailed,
    ResponseCode,
    StoreCorrupt,
    remote_error,
)
from cometmq.net.byte_stream import ByteStream
from cometmq.net.channel import ChannelPool
from cometmq.net.env import Environment
from cometmq.net.network import parse_address
from cometmq.net.tls_server import replication_network
from cometmq.store.message_store import MessageStore
from cometmq.wire.body.route import decode_kv_table
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand

__all__ = ["LogsDiffer", "ReplicaClient"]

log = logging.getLogger("cometmq.broker")

RETRY_S: Final = 1.0
"""Pause before the next attempt; RocketMQ's slave waits 5 s."""
CHECK_S: Final = 1.0
ASK_TIMEOUT_MS: Final = 5000
UNSEEN_MAX: Final = 5
"""A record that the master does not show so often in a row is not in its log."""
WHOLE_LOG: Final = 1
"""The first report that asks for a log from physical offset 0 on."""


class LogsDiffer(CometError):
    """The log here is no copy of a part of the master's; the text says how it differs."""


class ReplicaClient:
    """Follows the master that the name servers, or haMasterAddress, name."""

    def __init__(
        self,
        config: BrokerConfig,
        env: Environment,
        store: MessageStore,
        registration: RegistrationService,
        pool: ChannelPool,
    ) -> None:
        self._config = config
        self._env = env
        self._store = store
        self._registration = registration
        self._pool = pool
        self._retry_s = RETRY_S
        self._check_s = CHECK_S
        self._report_ms = config.ha_send_heartbeat_interval
        self._task: asyncio.Task[None] | None = None
        self._stream: ByteStream | None = None
        self._ended = asyncio.Event()
        self._fault: Exception | None = None
        self._last_fault = ""
        self._unseen_count = 0
        self._is_anew = asyncio.Event()
        self.link: SlaveLink | AutoSwitchSlaveLink | None = None
        """The connection's state; None without one."""
        self.address: str | None = None
        """``host:port`` at which the master sends its log, as last dialled."""
        self.master: str | None = None
        """``host:port`` of the master that is followed; None without a connection."""
        self.on_connected: Callable[[], None] = lambda: None
        self.master_end = 0
        """Physical offset up to which the master is known to have the log."""
        self.stopped: str | None = None
        """Why this slave follows no more; None while it does."""

    def start(self) -> None:
        """Follow the master from now on."""
        self._task = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        """Follow no more; what was received is in the log."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._stream is not None:
            self._stream.close()

    def follow_anew(self) -> None:
        """End the connection, and look for the master again; another one may have the same log."""
        self._is_anew.set()
        self._end(ConnectFailed("another broker may be the master"))

    async def _follow(self) -> None:
        while True:
            try:
                await self._follow_once()
            except LogsDiffer as error:
                self.stopped = str(error)
                log.error("this slave follows no more: %s", error)
                self._is_anew.clear()
                await self._is_anew.wait()
                self.stopped = None
            except (CometError, OSError) as error:
                self._report(str(error))
            except Exception:
                log.exception("following the master failed; next try soon")
            self._registration.ask_for_master()
            await asyncio.sleep(self._retry_s)

    def _report(self, fault: str) -> None:
        """Log the first of equal faults in a row only."""
        if fault != self._last_fault:
            self._last_fault = fault
            log.warning("not following the master, trying again: %s", fault)

    async def _follow_once(self) -> None:
        """Connect and follow until the connection ends.

        Raises:
            LogsDiffer: following would mix two logs.
            CometError: why there is no connection any more.
        """
        master = self._registration.master_address
        if master is None:
            raise ConnectFailed(
                f"no name server of {self._config.namesrv_addr!r} knows a live master (id 0) of"
                f" broker name {self._config.broker_name}"
            )
        address = self._config.ha_master_address or self._registration.master_ha_address
        if not address:
            raise ConnectFailed(f"the master {master} announces no address for its log (HA port)")
        expected = await self._compare(master)
        host, port = parse_address(address)
        self._ended.clear()
        self._fault = None
        network = replication_network(self._env.network, is_encrypted=self._config.ha_tls)
        stream = await network.connect(host, port, lambda: self._made(expected))
        self._stream = stream
        self.address, self.master = address, master
        try:
            log.info(
                "following %s from physical offset %d on", address, self._store.replica.received
            )
            self._last_fault = ""
            self._send_report()
            self.on_connected()
            await self._until_ended()
        finally:
            self.link = self._stream = self.master = None
            self._store.replica.forget_partial()
            stream.close()
        raise self._fault or ConnectFailed(f"the master {address} has closed the connection")

    def _made(self, expected: int) -> ByteStream:
        self.link = SlaveLink(expected, self._env.clock.now_ms())
        stream = ByteStream()
        stream.on_data = self._received
        stream.on_lost = self._ended.set
        return stream

    async def _until_ended(self) -> None:
        """Send heartbeats, and watch for a master that is silent, until the connection ends."""
        while True:
            try:
                async with asyncio.timeout(self._check_s):
                    await self._ended.wait()
                return
            except TimeoutError:
                link = self.link
                silent_ms = self._env.clock.now_ms() - (link.read_ms if link else 0)
                if silent_ms > self._config.ha_housekeeping_interval:
                    self._fault = ConnectFailed(f"the master was silent for {silent_ms} ms")
                    return
                self._send_report()

    # -- the stream -----------------------------------------------------------------------

    def _received(self, data: bytes) -> None:
        link, stream, replica = self.link, self._stream, self._store.replica
        if link is None or self._fault is not None:
            return
        is_first = link.expected == WHOLE_LOG and replica.received == 0
        try:
            for body in link.receive(data, self._env.clock.now_ms()):
                for text in replica.receive(b"\0" + body if is_first else body):
                    log.warning("%s", text)
                is_first = False
        except StoreCorrupt as error:
            self._end(LogsDiffer(str(error)))
            return
        except (CometError, OSError) as error:
            self._end(error)
            return
        self.master_end = max(self.master_end, link.expected)
        if stream is None:
            # The connection is so new that `_follow_once` has not reported yet.
            return
        if self._store.config.is_sync_flush:
            self._store.when_durable(
                self._store.max_physical_offset, lambda is_durable: self._send_report()
            )
        self._send_report()

    def _end(self, fault: Exception) -> None:
        self._fault = fault
        self._ended.set()

    def _send_report(self) -> None:
        """Report the end of the log if it has moved, or if the last report is long ago.

        With SYNC_FLUSH a slave acknowledges what is on its stable storage.
        """
        link, stream, store = self.link, self._stream, self._store
        if link is None or stream is None:
            return
        end = store.flushed_offset if store.config.is_sync_flush else store.max_physical_offset
        if link.expected == WHOLE_LOG:
            end = WHOLE_LOG
        report = link.report(end, self._env.clock.now_ms(), self._report_ms)
        if report:
            stream.write([report])

    # -- before the first byte --------------------------------------------------------------

    async def _compare(self, master: str) -> int:
        """Compare the logs; return the physical offset to ask for.

        Raises:
            LogsDiffer: the log here is not a part of the master's.
            CometError: the master does not answer.
        """
        store = self._store
        await self._durable()
        file_bytes = store.config.commit_log_file_bytes
        settings = parse_properties(
            (await self._ask(master, RequestCode.GET_BROKER_CONFIG)).body.decode()
        )
        theirs = settings.get("mappedFileSizeCommitLog", "")
        if theirs and int(theirs) != file_bytes:
            raise LogsDiffer(
                f"log files have {file_bytes} bytes here and {theirs} at the master {master}; set"
                f" mappedFileSizeCommitLog={theirs} and begin with an empty store"
            )
        info = decode_kv_table((await self._ask(master, RequestCode.GET_BROKER_RUNTIME_INFO)).body)
        begin, end = int(info["commitLogMinOffset"]), int(info["commitLogMaxOffset"])
        self.master_end = end
        own_end = store.max_physical_offset
        if store.min_physical_offset == own_end:
            if begin > 0:
                begin -= begin % file_bytes
                if own_end != begin:
                    store.replica.start_at(begin)
                return begin
            return WHOLE_LOG if own_end == 0 else own_end
        if own_end > end:
            raise LogsDiffer(
                f"the log here ends at {own_end}, the one of the master {master} at {end}:"
                f" {own_end - end} bytes here are not at the master, which may have lost them;"
                " nothing is cut"
            )
        if own_end < begin:
            raise LogsDiffer(
                f"the log here ends at {own_end}, the one of the master {master} begins at"
                f" {begin}: what is between has expired; begin with an empty store"
            )
        await self._compare_last_record(master, begin)
        return own_end

    async def _durable(self) -> None:
        """With SYNC_FLUSH, wait until the log is flushed: the first report counts as acknowledged.

        Raises:
            CometError: the disk did not take it in time.
        """
        store = self._store
        if not store.config.is_sync_flush:
            return
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        store.when_durable(
            store.max_physical_offset, lambda ok: None if done.done() else done.set_result(ok)
        )
        if not await done:
            raise ConnectFailed("the log here is not flushed in time")

    async def _compare_last_record(self, master: str, begin: int) -> None:
        store = self._store
        done: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()

        find_last = store.prepare_last_record()

        def read() -> tuple[int, bytes]:
            last = find_last()
            record = store.message_at(last) if last >= 0 else None
            return last, b"" if record is None else bytes(record)

        def finish(result: tuple[int, bytes] | BaseException) -> None:
            if done.cancelled():
                return
            if isinstance(result, BaseException):
                done.set_exception(result)
            else:
                done.set_result(result)

        self._env.workers.submit(read, finish)
        last, record = await done
        if last < begin or not record:
            return
        request = RemotingCommand.request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(last)})
        answer = await self._request(master, request)
        if answer.code != ResponseCode.SUCCESS and self._unseen_count < UNSEEN_MAX:
            # A master with SYNC_FLUSH shows a record once it is flushed.
            self._unseen_count += 1
            raise ConnectFailed(f"the master does not show its record at {last}: {answer.remark}")
        self._unseen_count = 0
        if answer.code != ResponseCode.SUCCESS or bytes(answer.body) != record:
            raise LogsDiffer(
                f"the record at physical offset {last} is not the same here and at the master"
                f" {master}: the logs differ, nothing is cut"
            )

    async def _ask(self, master: str, code: int) -> RemotingCommand:
        answer = await self._request(master, RemotingCommand.request(code))
        if answer.code != ResponseCode.SUCCESS:
            raise remote_error(answer.code, answer.remark)
        return answer

    async def _request(self, master: str, request: RemotingCommand) -> RemotingCommand:
        channel = await self._pool.get(master)
        return await channel.request(request, ASK_TIMEOUT_MS)
