"""A controller: RocketMQ's protocol over documents that one controller at a time changes.

All changes go through one queue, one at a time: decide, record, answer, tell the brokers.  A broker
hears of nothing that is not recorded.  Heartbeats are in memory only, at every controller, so a
controller that begins to lead knows who is alive.

A broker is dead when it was silent for its own heartbeat timeout, or when its connection closed and
its port refuses a connection: a killed process is noticed in milliseconds, and a connection that
merely broke is no death.

Source: ControllerManager, ControllerRequestProcessor and DefaultBrokerHeartbeatManager of RocketMQ
5.4.0, and frames captured from them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cometmq.codec.java_properties import parse_properties
from cometmq.controller.answers import (
    DIAL_MS,
    HEARTBEAT_TIMEOUT_MS,
    UNKNOWN_PRIORITY,
    heard_replica,
    in_sync_body,
    is_listening,
    master_header,
    refused,
)
from cometmq.controller.changes import SetChange, SetDecision
from cometmq.controller.config import ControllerConfig, updated_config
from cometmq.controller.describing import describe_replicas, listed
from cometmq.controller.needs import CLUSTER, CONTROLLER_NEEDS
from cometmq.controller.stores.base import DocumentStore, Leadership
from cometmq.core.replication.live_replicas import LiveReplicas
from cometmq.core.replication.replica_set import (
    FIRST_ID,
    ElectionCandidate,
    ReplicaSet,
    SetRefusal,
    adopt,
    alter_in_sync,
    apply_id,
    clean,
    elect,
    register,
    without_master,
)
from cometmq.errors import (
    ConfigError,
    ConnectFailed,
    ControllerError,
    DocumentChanged,
    ResponseCode,
)
from cometmq.extras import require
from cometmq.net.channel import ChannelPool
from cometmq.net.env import Environment
from cometmq.net.network import format_address, local_ip
from cometmq.net.server import Handler, RemotingServer, ServerConnection
from cometmq.server.access.access import Access
from cometmq.server.access.guard import AccessGuard
from cometmq.wire.body.controller import (
    decode_broker_names,
    decode_sync_state_set,
    encode_election,
    encode_replicas_info,
    encode_sync_state_set,
)
from cometmq.wire.command.codes import RequestCode as Code
from cometmq.wire.command.command import RemotingCommand, encode_command
from cometmq.wire.extensions.adopt import ADOPT, AdoptHeader
from cometmq.wire.header.controller import (
    AlterSyncStateSetHeader,
    AlterSyncStateSetResponseHeader,
    ApplyBrokerIdHeader,
    CleanBrokerDataHeader,
    ControllerBrokerHeader,
    ControllerRegisterHeader,
    ControllerRegisterResponseHeader,
    ElectMasterHeader,
    MasterHeader,
    MetadataInfoHeader,
    NextBrokerIdResponseHeader,
    ReplicaInfoHeader,
    ReplicaInfoResponseHeader,
)
from cometmq.wire.header.namesrv import BrokerHeartbeatHeader

if TYPE_CHECKING:
    from cometmq.controller.metrics import ControllerMetrics

__all__ = ["Controller"]

log = logging.getLogger("cometmq.controller")

GROUP: Final = "cometmq"
FIRST_LOOK_MS: Final = 4_000
"""A new leader expects the first heartbeat of a master within this time: Java's brokers look for
controllers every 3 s."""

_Answer = RemotingCommand | None


class Controller:
    """One controller; `await start()`, `await stop()`, each once."""

    def __init__(self, config: ControllerConfig, env: Environment, store: DocumentStore) -> None:
        self.config = config
        self._env = env
        self._store = store
        self._live = LiveReplicas()
        self._sets: dict[str, ReplicaSet] = {}
        self._revisions: dict[str, int] = {}
        self._leadership: Leadership | None = None
        self._leads = asyncio.Event()
        self._leads_since = 0.0
        self.leader_address: str | None = None
        """Who leads; None if nobody does, as far as this controller knows."""
        self._restarted: dict[str, int] = {}
        """By broker name: the master that has registered again, whose mastership has ended."""
        self._changes: asyncio.Queue[SetChange] = asyncio.Queue()
        self._pool = ChannelPool(env, prepare=config.signer())
        self._tasks: set[asyncio.Task[None]] = set()
        self._dialling: set[tuple[str, int]] = set()
        self.server = RemotingServer(env, {}, on_close=self._connection_closed, limits=config)
        self._access = Access(config) if config.is_guarded else None
        self.guard: AccessGuard | None = None
        """What checks requests; None where nothing does, and before `start`."""
        self.elections: Counter[str] = Counter({"new_master_elected": 0, "no_master_elected": 0})
        """Changes of masters that this controller has recorded, by RocketMQ's names of results."""
        self.metrics: ControllerMetrics | None = None
        self._port = 0

    # -- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen, and lead as soon as possible: at once where no other controller can.

        Raises:
            StoreError: the store of the documents cannot be used.
            ConnectFailed: the port cannot be bound.
            ConfigError: a setting of the accounts is illegal, or there is no super user.
        """
        if self._access is None:
            self.server.handlers.update(self._handlers())
        else:
            # Its accounts are those of its settings alone: controllers have no disk in common.
            self._access.open(self._env)
            self.guard, table = self._access.guard(self._handlers(), CONTROLLER_NEEDS, CLUSTER)
            self.server.handlers.update(table)
            self._access.follow()
        if self.config.metrics_exporter_type == "PROM":
            require("metrics", "metricsExporterType=PROM")
            # h11, which it needs, is not imported where nobody asks for metrics.
            from cometmq.controller.metrics import ControllerMetrics

            self.metrics = ControllerMetrics(self, self._env)
            await self.metrics.listen()
        await self._store.open()
        self._port = await self.server.listen(self.config.bind_address, self.config.port())
        self._run(self._lead())
        self._run(self._look_around())
        if not self._store.is_shared:
            await self._leads.wait()
        log.info("controller listens on %s", self.address)

    async def stop(self) -> None:
        """Resign, so that another controller leads at once, and close every connection."""
        if self._access is not None:
            self._access.stop()
        if self.metrics is not None:
            self.metrics.close()
            self.metrics = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._leadership is not None:
            await self._leadership.resign()
        await self._store.close()
        await self._pool.close()
        await self.server.stop()

    @property
    def address(self) -> str:
        """``host:port`` for brokers and other controllers."""
        config = self.config
        announced = config.cometmq_controller_address or config.own_peer()
        if announced:
            return announced
        host = config.bind_address
        return format_address(local_ip() if host in {"0.0.0.0", "::", ""} else host, self._port)  # noqa: S104

    def recorded_sets(self) -> list[ReplicaSet]:
        """What is recorded of each broker set; nothing at a controller that does not lead."""
        return list(self._sets.values()) if self.is_leading else []

    def alive_count(self, broker_name: str) -> int:
        """How many brokers of a set send heartbeats."""
        return len(self._live.of(broker_name))

    @property
    def is_leading(self) -> bool:
        """Whether this controller decides."""
        return self._leadership is not None

    def _monotonic_ms(self) -> int:
        """Milliseconds for silences: a wall clock that is set kills no broker."""
        return int(self._env.clock.monotonic() * 1000)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a part of the controller has failed: %s", error, exc_info=error)

    async def _lead(self) -> None:
        """Lead, and campaign again whenever that ends."""
        while True:
            leadership = await self._store.lead(self.address)
            working: asyncio.Task[None] | None = None
            try:
                await self._load(leadership)
                self._leadership, self.leader_address = leadership, self.address
                self._leads_since = asyncio.get_running_loop().time()
                self._leads.set()
                log.info("this controller leads, with %d broker sets", len(self._sets))
                # Whoever led before may have recorded what it could not tell any more.
                for broker_name in self._sets:
                    self._tell(broker_name)
                working = asyncio.create_task(self._work(leadership))
                ended = asyncio.create_task(leadership.ended())
                await asyncio.wait({working, ended}, return_when=asyncio.FIRST_COMPLETED)
                ended.cancel()
                if working.done():
                    working.result()
            except ControllerError as error:
                log.warning("this controller cannot lead: %s", error)
            finally:
                self._leadership = self.leader_address = None
                self._leads.clear()
                if working is not None:
                    working.cancel()
                    await asyncio.gather(working, return_exceptions=True)
            self._fail_waiting()
            await leadership.resign()
            log.warning("this controller leads no more")

    async def _load(self, leadership: Leadership) -> None:
        documents = await leadership.read_all()
        self._sets = {
            name: msgspec.json.decode(document.data, type=ReplicaSet)
            for name, document in documents.items()
        }
        self._revisions = {name: document.revision for name, document in documents.items()}

    def _fail_waiting(self) -> None:
        while not self._changes.empty():
            self._changes.get_nowait().fail(ControllerError("this controller leads no more"))

    # -- changes ----------------------------------------------------------------------------

    async def _work(self, leadership: Leadership) -> None:
        """Record one change after the other; ends where the store does not take one."""
        while True:
            change = await self._changes.get()
            try:
                decision = await self._record(leadership, change)
            except ControllerError as error:
                change.fail(error)
                log.warning(
                    "a change of broker set %s is not recorded: %s", change.broker_name, error
                )
                return
            change.done(decision)

    async def _record(self, leadership: Leadership, change: SetChange) -> SetDecision:
        name = change.broker_name
        while True:
            recorded = self._sets.get(name)
            decision = change.decide(recorded)
            if isinstance(decision, SetRefusal) or decision == recorded:
                return decision
            data = None if decision is None else msgspec.json.encode(decision)
            try:
                revision = await leadership.swap(name, self._revisions.get(name, 0), data)
            except DocumentChanged:
                # An answer of the store was lost: what it did is in the documents.
                before = self._sets
                await self._load(leadership)
                for changed in self._sets.keys() & before.keys():
                    if self._sets[changed].master_epoch != before[changed].master_epoch:
                        self._tell(changed)
                continue
            if decision is None:
                del self._sets[name], self._revisions[name]
            else:
                self._sets[name], self._revisions[name] = decision, revision
            if decision is not None and recorded is not None:
                self._changed(recorded, decision)
            return decision

    def _changed(self, before: ReplicaSet, after: ReplicaSet) -> None:
        """Say and tell what is recorded now."""
        name = after.broker_name
        if after.in_sync != before.in_sync:
            log.info("in-sync replicas of %s: %s", name, list(after.in_sync))
        if after.master_epoch == before.master_epoch:
            return
        self._restarted.pop(name, None)
        self.elections[
            "no_master_elected" if after.master_id is None else "new_master_elected"
        ] += 1
        if after.master_id is None:
            log.error(
                "broker set %s has no master: the in-sync replicas %s are gone; start one of them",
                name,
                list(after.in_sync),
            )
            return
        log.warning(
            "master of %s: broker %d at %s, epoch %d",
            name,
            after.master_id,
            after.address_of(after.master_id),
            after.master_epoch,
        )
        self._tell(name)

    def _tell(self, broker_name: str) -> None:
        """Tell every living broker of a set who the master is (1008)."""
        recorded = self._sets[broker_name]
        if recorded.master_id is None or not self.config.notify_broker_role_changed:
            return
        header = MasterHeader(
            recorded.master_id,
            recorded.address_of(recorded.master_id),
            recorded.master_epoch,
            recorded.in_sync_epoch,
        )
        body = encode_sync_state_set(recorded.in_sync, recorded.in_sync_epoch)
        for replica in self._live.of(broker_name).values():
            self._run(self._tell_one(replica.address, header.to_ext(), body))

    async def _tell_one(self, address: str, ext: dict[str, str], body: bytes) -> None:
        request = RemotingCommand.request(Code.NOTIFY_BROKER_ROLE_CHANGED, ext, body)
        try:
            (await self._pool.get(address)).oneway(request)
        except ConnectFailed as error:
            # The broker asks every few seconds by itself.
            log.info("the broker at %s is not told its role: %s", address, error)

    def _change(
        self,
        request: RemotingCommand,
        connection: ServerConnection,
        broker_name: str,
        decide: Callable[[ReplicaSet | None], SetDecision],
        respond: Callable[[SetDecision], RemotingCommand],
    ) -> _Answer:
        """Answer a request when its change is recorded."""
        if not self.is_leading:
            return self._not_leading(request)

        def done(decision: SetDecision) -> None:
            if not request.is_oneway:
                connection.send(encode_command(respond(decision)))

        def fail(error: ControllerError) -> None:
            connection.send(
                encode_command(request.answer(ResponseCode.CONTROLLER_NOT_LEADER, str(error), {}))
            )

        self._changes.put_nowait(SetChange(broker_name, decide, done, fail))
        return None

    def _not_leading(self, request: RemotingCommand) -> RemotingCommand:
        return request.answer(
            ResponseCode.CONTROLLER_NOT_LEADER,
            f"this controller does not lead, {self.leader_address or 'none'} does",
            {},
        )

    # -- who is alive -----------------------------------------------------------------------

    def _connection_closed(self, connection: ServerConnection) -> None:
        for broker_name, broker_id in self._live.disconnected(connection):
            self._suspect(broker_name, broker_id)

    def _suspect(self, broker_name: str, broker_id: int) -> None:
        if (broker_name, broker_id) not in self._dialling:
            self._dialling.add((broker_name, broker_id))
            self._run(self._dial(broker_name, broker_id))

    async def _dial(self, broker_name: str, broker_id: int) -> None:
        """Find out whether a broker whose connection is closed still listens.

        A stopping broker listens for a while, so it is dialled until it sends heartbeats again.
        """
        key = broker_name, broker_id
        try:
            while True:
                replica = self._live.get(*key)
                if replica is None or replica.connection is not None:
                    return
                if not await is_listening(self._env, replica.address):
                    self._died(broker_name, broker_id, "closed its connection and its port")
                    return
                await asyncio.sleep(DIAL_MS / 1000)
        finally:
            self._dialling.discard(key)

    def _died(self, broker_name: str, broker_id: int, how: str) -> None:
        log.warning("broker %d of %s is dead: it %s", broker_id, broker_name, how)
        self._live.forget(broker_name, broker_id)
        recorded = self._sets.get(broker_name)
        if self.is_leading and recorded is not None and recorded.master_id == broker_id:
            self._replace_master(broker_name)

    async def _look_around(self) -> None:
        """Drop silent brokers, and look for sets whose master is dead."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.config.scan_not_active_broker_interval / 1000)
            for broker_name, broker_id in self._live.silent(self._monotonic_ms()):
                self._died(broker_name, broker_id, "was silent")
            if not self.is_leading:
                try:
                    self.leader_address = await self._store.leader()
                except ControllerError:
                    self.leader_address = None
                continue
            waited_ms = (loop.time() - self._leads_since) * 1000
            if waited_ms > FIRST_LOOK_MS:
                await self._look_at_masters(is_patient=waited_ms < HEARTBEAT_TIMEOUT_MS)

    async def _look_at_masters(self, *, is_patient: bool) -> None:
        for recorded in list(self._sets.values()):
            name, master_id = recorded.broker_name, recorded.master_id
            if not recorded.master_epoch:
                continue
            if master_id is None:
                if self._can_elect(recorded):
                    self._replace_master(name)
                continue
            if self._live.get(name, master_id) is not None or not self._live.of(name):
                continue
            address = recorded.address_of(master_id)
            if is_patient and address is not None and await is_listening(self._env, address):
                continue
            if self.is_leading and self._live.get(name, master_id) is None:
                self._replace_master(name)

    def _can_elect(self, recorded: ReplicaSet) -> bool:
        decision = self._elect(recorded, None, is_designated=False)
        return not isinstance(decision, SetRefusal)

    def _elect(
        self, recorded: ReplicaSet | None, asker: int | None, *, is_designated: bool
    ) -> SetDecision:
        name = "" if recorded is None else recorded.broker_name
        alive = self._live.candidates(name)
        if asker is not None and not is_designated:
            # Java's broker may ask before its first heartbeat is here; whoever asks is alive.
            alive.setdefault(asker, ElectionCandidate(-1, 0, UNKNOWN_PRIORITY))
        return elect(
            recorded,
            alive,
            asker=asker,
            is_designated=is_designated,
            is_master_gone=recorded is not None and self._restarted.get(name) == recorded.master_id,
            is_unclean=self.config.enable_elect_unclean_master,
        )

    def _replace_master(self, broker_name: str) -> None:
        """Elect another master for a set whose master is dead; without one the set has none."""

        def decide(recorded: ReplicaSet | None) -> SetDecision:
            decision = self._elect(recorded, None, is_designated=False)
            if (
                isinstance(decision, SetRefusal)
                and recorded is not None
                and recorded.master_id is not None
                and self._live.get(broker_name, recorded.master_id) is None
            ):
                return without_master(recorded)
            return decision

        self._changes.put_nowait(
            SetChange(broker_name, decide, lambda decision: None, lambda error: None)
        )

    # -- requests ---------------------------------------------------------------------------

    def _handlers(self) -> dict[int, Handler]:
        return {
            Code.BROKER_HEARTBEAT: self.heartbeat,
            Code.CONTROLLER_ALTER_SYNC_STATE_SET: self.alter_sync_state_set,
            Code.CONTROLLER_ELECT_MASTER: self.elect_master,
            Code.CONTROLLER_REGISTER_BROKER: self.register_broker,
            Code.CONTROLLER_GET_REPLICA_INFO: self.replica_info,
            Code.CONTROLLER_GET_METADATA_INFO: self.metadata_info,
            Code.CONTROLLER_GET_SYNC_STATE_DATA: self.sync_state_data,
            Code.UPDATE_CONTROLLER_CONFIG: self.update_config,
            Code.GET_CONTROLLER_CONFIG: self.get_config,
            Code.CLEAN_BROKER_DATA: self.clean_broker_data,
            Code.CONTROLLER_GET_NEXT_BROKER_ID: self.next_broker_id,
            Code.CONTROLLER_APPLY_BROKER_ID: self.apply_broker_id,
            ADOPT: self.adopt,
        }

    def heartbeat(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> _Answer:
        """904, at every controller."""
        header = BrokerHeartbeatHeader.from_command(request)
        if header.broker_id is None:
            return request.answer(
                ResponseCode.CONTROLLER_INVALID_REQUEST, "Heart beat with empty brokerId"
            )
        replica = heard_replica(header, self._monotonic_ms(), connection)
        self._live.heard(header.broker_name, header.broker_id, replica)
        return request.answer(ResponseCode.SUCCESS, "Heart beat success")

    def alter_sync_state_set(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> _Answer:
        """1001: the master's in-sync replicas have changed."""
        header = AlterSyncStateSetHeader.from_command(request)
        wanted = decode_sync_state_set(request.body)

        def decide(recorded: ReplicaSet | None) -> SetDecision:
            return alter_in_sync(
                recorded,
                master_id=header.master_broker_id,
                master_epoch=header.master_epoch,
                in_sync=wanted.members,
                in_sync_epoch=wanted.epoch,
                alive=self._live.of(header.broker_name),
            )

        def respond(decision: SetDecision) -> RemotingCommand:
            if not isinstance(decision, ReplicaSet):
                return refused(request, decision)
            answer = AlterSyncStateSetResponseHeader(decision.in_sync_epoch)
            return request.answer(
                ResponseCode.SUCCESS, None, answer.to_ext(), body=in_sync_body(decision)
            )

        return self._change(request, connection, header.broker_name, decide, respond)

    def elect_master(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> _Answer:
        """1002: a broker without a master asks, or a person names the next master."""
        header = ElectMasterHeader.from_command(request)
        name, asker = header.broker_name, header.broker_id
        if asker is not None and asker < FIRST_ID:
            asker = None

        def decide(recorded: ReplicaSet | None) -> SetDecision:
            return self._elect(recorded, asker, is_designated=header.designate_elect)

        def respond(decision: SetDecision) -> RemotingCommand:
            if isinstance(decision, ReplicaSet):
                addresses = {id_: replica.address for id_, replica in decision.replicas.items()}
                body = encode_election(decision.cluster, name, addresses, decision.in_sync)
                return request.answer(
                    ResponseCode.SUCCESS, None, master_header(decision).to_ext(), body=body
                )
            recorded = self._sets.get(name)
            if decision is None or recorded is None:
                return refused(request, decision)
            is_there = decision.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
            # Java's brokers take a master that is still there as a success, with these fields.
            ext = master_header(recorded).to_ext() if is_there else {}
            body = in_sync_body(recorded) if is_there else b""
            return request.answer(decision.code, decision.remark, ext, body=body)

        return self._change(request, connection, name, decide, respond)

    def register_broker(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> _Answer:
        """1003: a broker has started, or the controller has lost it."""
        header = ControllerRegisterHeader.from_command(request)
        name = header.broker_name

        def decide(recorded: ReplicaSet | None) -> SetDecision:
            return register(
                recorded,
                name,
                header.broker_id,
                header.broker_address,
                is_unclean=bool(header.cometmq_unclean),
            )

        def respond(decision: SetDecision) -> RemotingCommand:
            if not isinstance(decision, ReplicaSet):
                return refused(request, decision)
            if decision.master_id == header.broker_id:
                # Only a broker that starts registers: it begins a new epoch, or another one leads.
                self._restarted[name] = header.broker_id
            is_led = (
                decision.master_id is not None
                and self._restarted.get(name) != decision.master_id
                and self._live.get(name, decision.master_id) is not None
            )
            master = master_header(decision) if is_led else MasterHeader()
            answer = ControllerRegisterResponseHeader(
                master.master_broker_id,
                master.master_address,
                master.master_epoch,
                master.sync_state_set_epoch,
                header.cluster_name,
                name,
            )
            return request.answer(
                ResponseCode.SUCCESS, None, answer.to_ext(), body=in_sync_body(decision)
            )

        return self._change(request, connection, name, decide, respond)

    def replica_info(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> _Answer:
        """1004: brokers ask every few seconds who the master is."""
        header = ReplicaInfoHeader.from_command(request)
        if not self.is_leading:
            return self._not_leading(request)
        recorded = self._sets.get(header.broker_name)
        if recorded is None:
            return request.answer(
                ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
                "Broker metadata is not existed",
                {},
            )
        restarted = self._restarted.get(header.broker_name)  # it leads after an election only
        leads = None if recorded.master_id == restarted else recorded.master_id
        answer = ReplicaInfoResponseHeader(leads, recorded.address_of(leads), recorded.master_epoch)
        return request.answer(
            ResponseCode.SUCCESS, None, answer.to_ext(), body=in_sync_body(recorded)
        )

    def metadata_info(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> _Answer:
        """1005, at every controller: who leads."""
        leader = self.leader_address
        addresses = dict.fromkeys([leader or self.address, self.address])
        peers = self.config.peers() or {address: address for address in addresses}
        names = {address: name for name, address in peers.items()}
        answer = MetadataInfoHeader(
            GROUP,
            None if leader is None else names.get(leader, leader),
            leader,
            self.is_leading,
            "".join(f"{name}:{address};" for name, address in peers.items()),
        )
        return request.answer(ResponseCode.SUCCESS, None, answer.to_ext())

    def sync_state_data(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> _Answer:
        """1006: all about some broker sets, for tools; about every set where no name is given."""
        if not self.is_leading:
            return self._not_leading(request)
        wanted = decode_broker_names(request.body) or sorted(self._sets)
        recorded = {name: self._sets[name] for name in wanted if name in self._sets}
        body = encode_replicas_info(
            {name: listed(each, self._live.of(name)) for name, each in recorded.items()}
        )
        return request.answer(ResponseCode.SUCCESS, body=body)

    def next_broker_id(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> _Answer:
        """1012: the id that the next new broker of a set would get."""
        header = ControllerBrokerHeader.from_command(request)
        if not self.is_leading:
            return self._not_leading(request)
        recorded = self._sets.get(header.broker_name)
        answer = NextBrokerIdResponseHeader(
            header.cluster_name,
            header.broker_name,
            FIRST_ID if recorded is None else recorded.next_id,
        )
        return request.answer(ResponseCode.SUCCESS, None, answer.to_ext())

    def apply_broker_id(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> _Answer:
        """1013: a new broker takes an id."""
        header = ApplyBrokerIdHeader.from_command(request)

        def decide(recorded: ReplicaSet | None) -> SetDecision:
            return apply_id(
                recorded,
                header.cluster_name,
                header.broker_name,
                header.applied_broker_id,
                header.register_check_code,
            )

        def respond(decision: SetDecision) -> RemotingCommand:
            if not isinstance(decision, ReplicaSet):
                return refused(request, decision)
            answer = ControllerBrokerHeader(header.cluster_name, header.broker_name)
            return request.answer(ResponseCode.SUCCESS, None, answer.to_ext())

        return self._change(request, connection, header.broker_name, decide, respond)

    def clean_broker_data(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> _Answer:
        """1011: forget brokers that are gone for good."""
        header = CleanBrokerDataHeader.from_command(request)
        texts = (header.broker_ids_to_clean or "").split(";")
        try:
            broker_ids = {int(text) for text in texts if text.strip()}
        except ValueError:
            return request.answer(
                ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA,
                f"brokerControllerIdsToClean={header.broker_ids_to_clean} is no list of ids",
                {},
            )

        def decide(recorded: ReplicaSet | None) -> SetDecision:
            return clean(
                recorded,
                header.broker_name,
                broker_ids,
                alive=self._live.of(header.broker_name),
                is_living_too=header.is_clean_living_broker,
            )

        def respond(decision: SetDecision) -> RemotingCommand:
            if isinstance(decision, SetRefusal):
                return refused(request, decision)
            return request.answer(ResponseCode.SUCCESS)

        return self._change(request, connection, header.broker_name, decide, respond)

    def adopt(self, request: RemotingCommand, connection: ServerConnection, now_ms: int) -> _Answer:
        """31024: a set whose document is lost is recorded anew."""
        self._run(self._adopt(request, connection))
        return None

    async def _adopt(self, request: RemotingCommand, connection: ServerConnection) -> None:
        header = AdoptHeader.from_command(request)
        name, count = header.broker_name, header.replica_count
        views = await describe_replicas(self._pool, self._live.of(name))
        is_unclean = self.config.enable_elect_unclean_master

        def decide(recorded: ReplicaSet | None) -> SetDecision:
            return adopt(recorded, name, views, replica_count=count, is_unclean=is_unclean)

        def respond(decision: SetDecision) -> RemotingCommand:
            if not isinstance(decision, ReplicaSet):
                return refused(request, decision)
            self._tell(name)
            body = encode_replicas_info({name: listed(decision, self._live.of(name))})
            return request.answer(ResponseCode.SUCCESS, body=body)

        answer = self._change(request, connection, name, decide, respond)
        if answer is not None:
            connection.send(encode_command(answer))

    def update_config(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> _Answer:
        """1009: until the next start, in memory."""
        changes = parse_properties(request.body.decode("utf-8", "replace"))
        if self.config.black_list() & changes.keys():
            return request.answer(
                ResponseCode.NO_PERMISSION, "Can not update config in black list."
            )
        try:
            self.config = updated_config(self.config, changes)
        except ConfigError as error:
            return request.answer(ResponseCode.INVALID_PARAMETER, str(error))
        log.info("configuration changed by %s: %s", connection.peer, changes)
        return request.answer(ResponseCode.SUCCESS)

    def get_config(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> _Answer:
        """1010."""
        return request.answer(ResponseCode.SUCCESS, body=self.config.properties_text().encode())
