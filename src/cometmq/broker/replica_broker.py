"""A broker of a replica set: it does what the controller says, as master or as slave.

A role lasts as long as one `Broker`: at a change of role the broker is stopped and another one is
made on the same store, in the same process and on the same ports.  Clients see a closed connection
and ask for the route.  Between the two, the log is cut where that is due.

::

    storePathRootDir/brokerIdentity        cluster#broker name#id, once the id is ours
    storePathRootDir/epochFileCheckpoint   the epochs of the log (codec/epoch_file.py)
    storePathRootDir/cometmqSet.boot       the boot id of a broker that runs; absent after a stop

A broker that comes up in another boot than the one in its file may have lost, with asynchronous
flush, what it had acknowledged.  It says so when it registers, and our controller then takes it out
of the in-sync replicas first.

Source: ReplicasManager of RocketMQ 5.4.0, and files that its brokers wrote.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.broker import Broker, ReportProgress
from cometmq.broker.replication.controllers import Controllers, MasterNews
from cometmq.broker.replication.seat import Seat
from cometmq.codec.epoch_file import decode_epochs, encode_epochs
from cometmq.core.replication.epochs import EpochList
from cometmq.errors import (
    CodecError,
    CometError,
    ControllerError,
    RemoteError,
    ResponseCode,
    StoreCorrupt,
)
from cometmq.net.env import Environment
from cometmq.net.network import format_address, local_ip
from cometmq.net.tls_server import secured
from cometmq.store.base.disk import Disk, make_durable_directory
from cometmq.store.base.results import RecoveryReport
from cometmq.store.offline.cut import cut_store, empty_store
from cometmq.wire.body.controller import SyncStateSet
from cometmq.wire.header.controller import MasterHeader
from cometmq.wire.header.namesrv import BrokerHeartbeatHeader

__all__ = ["ReplicaBroker"]

log = logging.getLogger("cometmq.broker")

T = TypeVar("T")

EPOCHS_FILE: Final = "epochFileCheckpoint"
IDENTITY_FILE: Final = "brokerIdentity"
BOOT_FILE: Final = "cometmqSet.boot"
RETRY_S: Final = 1.0
OPENING_TIMEOUT_MS: Final = 60_000
"""So long a controller is asked to wait for heartbeats while the store is opened, which stops them:
else it would take a large store for a death, and elect again and again.  A process that ends
meanwhile closes its connection."""
HAND_OVER_S: Final = 1.0
"""So long a stopping master waits for a controller to name another one."""
_UNSETTLED: Final = frozenset(
    {
        ResponseCode.CONTROLLER_NOT_LEADER,
        ResponseCode.SYSTEM_ERROR,
    }
)
"""Answers after which a change may still be recorded."""

_NOT_RECORDED: Final = frozenset(
    {
        ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
        ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
    }
)
"""Answers of controllers that do not know the set, or not this broker."""


class ReplicaBroker:
    """One broker of a replica set; `await start()`, `await stop()`, each once."""

    def __init__(
        self,
        config: BrokerConfig,
        env: Environment,
        disk: Disk,
        *,
        config_path: str | None = None,
    ) -> None:
        self._config = config
        self._env = env
        self._disk = disk
        self._config_path = config_path
        self._root = config.store_path()
        self._controllers = Controllers(
            secured(env, config),
            config.controller_addr,
            config.broker_cluster_name,
            config.broker_name,
            config.signer(),
        )
        self._seat = Seat(0, EpochList())
        self._broker: Broker | None = None
        self._address = ""
        self._news: MasterNews | None = None
        self._cut: int | None = None
        self._log_end = 0
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_unclean = False
        self.role_changes = 0
        """How often the role has changed since the start."""

    # -- what others ask ------------------------------------------------------------------

    @property
    def broker(self) -> Broker:
        """The broker in its present role.

        Raises:
            RuntimeError: it is being exchanged.
        """
        if self._broker is None:
            raise RuntimeError("the broker changes its role")
        return self._broker

    @property
    def address(self) -> str:
        """``host:port`` that is announced."""
        return self._address

    @property
    def recovery(self) -> RecoveryReport | None:
        """What opening the store took, once started."""
        return None if self._broker is None else self._broker.recovery

    @property
    def is_master(self) -> bool:
        """Whether this broker is the master of its set, and serves."""
        return self._broker is not None and self._broker.config.broker_role == "SYNC_MASTER"

    # -- life -----------------------------------------------------------------------------

    async def start(self, progress: ReportProgress | None = None) -> None:
        """Open the store as a slave's; the role comes from the controller, as soon as one leads.

        Raises:
            CometError: as `Broker.start`, or the list of epochs is spoilt.
        """
        epochs = await self._work(self._read_epochs)
        self._seat = Seat(
            0,
            epochs,
            alter=self._alter,
            noticed=self._noticed,
            step_down=self._step_down,
            cut=self._cut_at,
            save_epochs=self._save_epochs,
        )
        ip = self._config.advertised_ip(local_ip())
        self._address = format_address(ip, self._config.listen_port)
        self._seat.broker_id = await self._work(self._read_identity)
        if not self._seat.broker_id:
            await self._get_id()
        self._is_unclean = await self._work(self._is_other_boot)
        await self._open("SLAVE", progress)
        await self._work(self._write_boot)
        self._tasks = [
            asyncio.create_task(self._beat()),
            asyncio.create_task(self._ask_around()),
            asyncio.create_task(self._play()),
        ]

    async def stop(self) -> None:
        """Hand the mastership over, leave the controllers, then stop the broker.

        Raises:
            StoreError, OSError: the disk did not take the last writes.
        """
        if self.is_master:
            try:
                await self._hand_over(None)
            except (CometError, TimeoutError) as error:
                log.warning("the mastership is not handed over: %s", error)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._controllers.close()
        broker, self._broker = self._broker, None
        if broker is not None:
            await broker.stop()
        await self._work(lambda: self._disk.remove(f"{self._root}/{BOOT_FILE}"))

    async def _step_down(self, broker_id: int | None) -> MasterHeader:
        """Hand the mastership over, and go on as a slave.

        Raises:
            CometError: this broker is still the master; the text says why.
        """
        try:
            news = await self._hand_over(broker_id)
        except TimeoutError:
            raise ControllerError(
                f"no controller named another master within {HAND_OVER_S:g} s; ask again, and look"
                " at cometmq controller status"
            ) from None
        # The answer leaves first.
        asyncio.get_running_loop().call_soon(self._take, news)
        return news[0]

    async def _hand_over(self, broker_id: int | None) -> MasterNews:
        """Have another in-sync replica elected, which has everything; return who it is.

        Requests wait meanwhile.  Clients send them again to the new master when this broker has
        closed their connections.

        Raises:
            CometError, TimeoutError: this broker is still the master, and serves.
        """
        seat, broker = self._seat, self.broker
        others = [member for member in seat.in_sync.members if member != seat.broker_id]
        if broker_id is not None and broker_id not in others:
            raise ControllerError(
                f"replica {broker_id} of {self._config.broker_name} is not in sync, so it may lack"
                f" acknowledged messages; the others in sync are {sorted(others)}"
            )
        if not others:
            raise ControllerError(f"no other replica of {self._config.broker_name} is in sync")
        wanted = min(others) if broker_id is None else broker_id
        try:
            async with asyncio.timeout(HAND_OVER_S):
                await broker.hold()
                await self._controllers.elect(wanted, is_designated=True)
                news = await self._controllers.master()
        except BaseException:
            broker.go_on()
            raise
        if news[0].master_broker_id == seat.broker_id:
            broker.go_on()
            raise ControllerError("the controller has elected this broker again")
        return news

    async def _open(self, role: str, progress: ReportProgress | None = None) -> None:
        """Make the broker of a role and start it."""
        config = msgspec.structs.replace(
            self._config,
            broker_role=role,
            broker_id=0 if role == "SYNC_MASTER" else max(1, self._seat.broker_id),
        )
        broker = Broker(
            config, self._env, self._disk, config_path=self._config_path, seat=self._seat
        )
        await broker.start(progress)
        self._broker = broker
        self._log_end = broker.state.store.max_physical_offset

    async def _close(self) -> None:
        broker, self._broker = self._broker, None
        if broker is not None:
            store = broker.state.store
            self._log_end = store.max_physical_offset
            self._seat.confirmed = max(self._seat.confirmed, store.confirmed_offset)
            await broker.stop()
            # What was changed while it ran holds for the next role too.
            self._config = broker.config

    # -- what the controller says -----------------------------------------------------------

    async def _ask_around(self) -> None:
        """Get an id, register, and then ask regularly who the master is."""
        is_registered = False
        fault = ""
        while True:
            try:
                if not is_registered:
                    await self._register()
                    is_registered = True
                news = await self._controllers.master()
                if news[0].master_broker_id is None:
                    await self._controllers.elect(self._seat.broker_id)
                    news = await self._controllers.master()
                self._take(news)
                fault = ""
            except RemoteError as error:
                text = str(error)
                if error.code in _NOT_RECORDED:
                    text += "; if the controllers have lost it, cometmq controller adopt"
                fault = self._report(text, fault)
            except CometError as error:
                fault = self._report(str(error), fault)
            except Exception:
                log.exception("asking the controllers failed; next try soon")
            await asyncio.sleep(self._config.sync_broker_metadata_period / 1000)

    def _report(self, fault: str, before: str) -> str:
        if fault != before:
            log.warning("the controllers give no role, trying again: %s", fault)
        return fault

    async def _get_id(self) -> None:
        """Get an id in the set; without one the broker cannot be told from the others."""
        seat, fault = self._seat, ""
        check_code = f"{self._address};{self._env.clock.now_ms()}"
        while not seat.broker_id:
            try:
                seat.broker_id = await self._controllers.get_id(self._address, check_code)
            except CometError as error:
                fault = self._report(str(error), fault)
                await asyncio.sleep(RETRY_S)
        await self._work(self._write_identity)
        log.info("this broker is replica %d of %s", seat.broker_id, self._config.broker_name)

    async def _register(self) -> None:
        await self._controllers.register(
            self._seat.broker_id, self._address, is_unclean=self._is_unclean
        )
        self._is_unclean = False
        self._controllers.heartbeat(self._heartbeat())

    def _noticed(self, header: MasterHeader, members: SyncStateSet) -> None:
        self._take((header, members))

    def _take(self, news: MasterNews) -> None:
        """Take what a controller says of the set, unless newer is known."""
        header, members = news
        epoch = header.master_epoch
        if epoch is None or header.master_broker_id is None or epoch < self._seat.master_epoch:
            return
        if epoch == self._seat.master_epoch:
            if members.epoch >= self._seat.in_sync.epoch:
                self._seat.in_sync = members
            return
        if self._news is None or (self._news[0].master_epoch or 0) < epoch:
            self._news = news
            self._wake.set()

    def _cut_at(self, end: int) -> None:
        self._cut = end
        self._wake.set()

    async def _alter(self, members: frozenset[int], epoch: int) -> SyncStateSet | None:
        """Ask for other in-sync replicas; None while it is unknown what is recorded."""
        seat = self._seat
        try:
            return await self._controllers.alter(seat.broker_id, seat.master_epoch, members, epoch)
        except RemoteError as error:
            log.warning("in-sync replicas %s are not recorded: %s", sorted(members), error)
            return None if error.code in _UNSETTLED else seat.in_sync
        except CometError as error:
            log.warning("no controller has recorded the replicas %s: %s", sorted(members), error)
            return None

    async def _beat(self) -> None:
        while True:
            self._controllers.heartbeat(self._heartbeat())
            await asyncio.sleep(self._config.broker_heartbeat_interval / 1000)

    def _heartbeat(self) -> BrokerHeartbeatHeader:
        config, seat = self._config, self._seat
        timeout_ms = OPENING_TIMEOUT_MS
        if self._broker is not None:
            self._log_end = self._broker.state.store.max_physical_offset
            timeout_ms = config.controller_heart_beat_timeout_mills
        return BrokerHeartbeatHeader(
            config.broker_cluster_name,
            self._address,
            config.broker_name,
            seat.broker_id,
            seat.epochs.up_to(self._log_end).last,
            self._log_end,
            self._log_end,
            timeout_ms,
            config.broker_election_priority,
        )

    # -- roles ----------------------------------------------------------------------------

    async def _play(self) -> None:
        """Change the role, or cut the log, whenever that is due."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._change()
            except Exception:
                log.exception("changing the role failed; next try soon")
                self._wake.set()
                await asyncio.sleep(RETRY_S)

    async def _change(self) -> None:
        seat, news = self._seat, self._news
        cut, self._cut = self._cut, None
        if news is not None:
            header, members = news
            was_master = seat.is_master and self._broker is not None
            seat.master_epoch = header.master_epoch or 0
            seat.master_id, seat.master_address = header.master_broker_id, header.master_address
            seat.in_sync = members
            self._news = None
            if not seat.is_master and not was_master and cut is None and self._broker is not None:
                log.info("the master is broker %s at %s", seat.master_id, seat.master_address)
                self._broker.follow_anew()
                return
        elif cut is None and self._broker is not None:
            return
        await self._close()
        if cut is not None and not seat.is_master:
            await self._cut_log(cut)
        if seat.is_master:
            epochs = seat.epochs.up_to(self._log_end).began(seat.master_epoch, self._log_end)
            await self._work(lambda: self._write_epochs(epochs))
            seat.epochs = epochs
        self._controllers.heartbeat(self._heartbeat())
        # The heartbeat leaves at the end of this turn; opening the store holds the loop up.
        await asyncio.sleep(0)
        await self._open("SYNC_MASTER" if seat.is_master else "SLAVE")
        self._controllers.heartbeat(self._heartbeat())
        self.role_changes += 1
        log.warning(
            "this broker is the %s of %s, epoch %d",
            "master" if seat.is_master else "slave",
            self._config.broker_name,
            seat.master_epoch,
        )

    async def _cut_log(self, end: int) -> None:
        log_end = self._log_end
        if not end:
            self._seat.epochs, self._seat.confirmed = EpochList(), 0
            await self._work(self._empty_store)
            log.warning(
                "the store is emptied: its log ended at %d, before the master's begins", log_end
            )
            return
        if end < self._seat.confirmed:
            log.error(
                "the log is cut at %d, and consumers may have read it up to %d: the master was"
                " elected from replicas that were not in sync, or its machine lost what it had",
                end,
                self._seat.confirmed,
            )
            self._seat.confirmed = end
        epochs = self._seat.epochs.up_to(end)
        await self._work(lambda: self._write_epochs(epochs))
        self._seat.epochs = epochs
        path = await self._work(lambda: cut_store(self._disk, self._root, end, log_end))
        log.warning(
            "the log is cut from %d to %d, where it parted from the master's: the %d bytes are in"
            " %s",
            log_end,
            end,
            log_end - end,
            path,
        )

    # -- files ----------------------------------------------------------------------------

    def _read_epochs(self) -> EpochList:
        path = f"{self._root}/{EPOCHS_FILE}"
        if not self._disk.exists(path):
            return EpochList()
        try:
            return EpochList(decode_epochs(self._disk.read_bytes(path)))
        except CodecError as error:
            raise StoreCorrupt(
                f"{path}: {error}; restore it from {EPOCHS_FILE}.bak, or begin with an empty store"
            ) from error

    def _write_epochs(self, epochs: EpochList) -> None:
        path = f"{self._root}/{EPOCHS_FILE}"
        make_durable_directory(self._disk, self._root)
        if self._disk.exists(path):
            self._disk.write_atomic(f"{path}.bak", self._disk.read_bytes(path))
        self._disk.write_atomic(path, encode_epochs(epochs.entries))

    async def _save_epochs(self, epochs: EpochList) -> None:
        """Write the epochs that a slave has got from its master."""
        await self._work(lambda: self._write_epochs(epochs))

    def _empty_store(self) -> None:
        # The epochs go last: without a log they say nothing.
        empty_store(self._disk, self._root)
        for name in (EPOCHS_FILE, f"{EPOCHS_FILE}.bak"):
            if self._disk.exists(f"{self._root}/{name}"):
                self._disk.remove(f"{self._root}/{name}")
        self._disk.sync_dir(self._root)

    def _is_other_boot(self) -> bool:
        """Return whether the broker that had the store last ended with its machine."""
        path = f"{self._root}/{BOOT_FILE}"
        if self._config.flush_disk_type == "SYNC_FLUSH" or not self._disk.exists(path):
            return False
        return self._disk.read_bytes(path) != self._disk.boot_id().encode()

    def _write_boot(self) -> None:
        self._disk.write_atomic(f"{self._root}/{BOOT_FILE}", self._disk.boot_id().encode())

    def _read_identity(self) -> int:
        path = f"{self._root}/{IDENTITY_FILE}"
        if not self._disk.exists(path):
            return 0
        config = self._config
        cluster, _, rest = self._disk.read_bytes(path).decode("utf-8", "replace").partition("#")
        name, _, number = rest.strip().rpartition("#")
        if (cluster, name) != (config.broker_cluster_name, config.broker_name) or not (
            number.isdigit()
        ):
            raise StoreCorrupt(
                f"{path} belongs to broker {name!r} of cluster {cluster!r}, not to"
                f" {config.broker_name!r} of {config.broker_cluster_name!r}: set that name, or"
                " begin with an empty store"
            )
        return int(number)

    def _write_identity(self) -> None:
        config = self._config
        make_durable_directory(self._disk, self._root)
        text = f"{config.broker_cluster_name}#{config.broker_name}#{self._seat.broker_id}"
        self._disk.write_atomic(f"{self._root}/{IDENTITY_FILE}", text.encode())

    async def _work(self, work: Callable[[], T]) -> T:
        """Run blocking work in a worker."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def finish(result: Any) -> None:
            if done.done():
                return
            if isinstance(result, BaseException):
                done.set_exception(result)
            else:
                done.set_result(result)

        self._env.workers.submit(work, finish)
        return await done
