"""The delay gateway: consumes messages of a foreign cluster and delivers them there on time.

It consists of a consumer of the foreign cluster, a private broker with timers, and a producer for
the foreign cluster.

No message is lost: the foreign offset moves when the private broker has the message on disk (it
flushes before it answers), and the private offset moves when the foreign broker has answered.  A
crash before that repeats the step, so a message may be delivered twice; both copies have the same
``GATEWAY_ID``.  While the foreign cluster is unreachable or busy, the gateway sends the message
again every second.  A message whose topic does not exist returns to the store for a while, so that
it delays no other.  A message that the cluster never accepts goes to the dead-letter topic.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from cometmq.broker.base.config import SMALL_LOG_FILE_BYTES, BrokerConfig, load_config
from cometmq.client.admin.admin import Admin
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.errors import (
    AccessDenied,
    CometError,
    InvalidParameter,
    LocalProtocolError,
    MessageRefused,
    NoPermission,
    NoRoute,
    SendFailed,
    TopicNotExist,
)
from cometmq.gateway.contract import (
    DEAD_LETTER_TOPIC,
    DUE_MS,
    GATEWAY_TOPIC,
    Broken,
    Incoming,
    PlannedDelivery,
    plan,
    released,
)
from cometmq.model import FLUSHED_CODES, Message, SendStatus
from cometmq.net.env import Environment, system_environment
from cometmq.standalone import Standalone
from cometmq.store.base.disk import Disk, RealDisk

__all__ = ["DelayGateway", "GatewayStatus", "read_status"]

log = logging.getLogger("cometmq.gateway")

GROUP: Final = "DELAY_GATEWAY"
HELD_TOPIC: Final = "HELD"
RETRY_PAUSE_S: Final = 1.0
LATER_MS: Final = 10_000
"""Pause before a message for a topic that does not exist is sent again."""
LOG_EVERY: Final = 10
"""Tries between two log lines of one message."""
FOR_EVER: Final = 2**31 - 1
STATUS_FILE: Final = "gateway.json"
STATUS_INTERVAL_S: Final = 1.0
METRICS_INTERVAL_S: Final = 10.0
CONCURRENCY: Final = 64
# The clients of the private broker use no keys and no TLS, whatever the environment says.
_OPEN: Final[dict[str, Any]] = {
    "access_key": "",
    "secret_key": "",
    "security_token": "",
    "tls": False,
}


@dataclass(slots=True)
class GatewayStatus:
    """The counters of a gateway since its start; times in ms."""

    foreign: str = ""
    topic: str = ""
    started_ms: int = 0
    written_ms: int = 0
    accepted: int = 0
    delivered: int = 0
    dead: int = 0
    retries: int = 0
    postponed: int = 0
    overdue: int = 0
    late_ms_max: int = 0
    last_error: str = ""

    def line(self) -> str:
        """One line for a log, from which a metrics collector can read every number."""
        return (
            f"accepted={self.accepted} delivered={self.delivered} dead={self.dead} "
            f"retries={self.retries} postponed={self.postponed} overdue={self.overdue} "
            f"late_ms_max={self.late_ms_max}"
        )

    def table(self) -> dict[str, object]:
        """The values by name, as in the status file."""
        return {name: getattr(self, name) for name in self.__slots__}


def read_status(store_path: str) -> dict[str, object] | None:
    """The last status of the gateway with this store; None if no gateway has used the store."""
    try:
        status: dict[str, object] = json.loads((Path(store_path) / STATUS_FILE).read_text())
    except FileNotFoundError:
        return None
    return status


class DelayGateway:
    """A gateway between a foreign cluster and a private store; ``async with`` runs it.

    Args:
        name_server: of the foreign cluster.
        store_path: directory of the private store.
        topic: the foreign topic that the gateway consumes.
        dead_letter_topic: the foreign topic for messages that cannot be delivered.
        group: consumer and producer group at the foreign cluster.
        settings: keys of the private broker, by RocketMQ's names.
        client_ip: the address in the client ids; the machine's by default.
        env: clock, chance, network and workers; the machine's by default.
        disk: where the private store lives; the machine's by default.
        at: called between the steps of a move, where a message is in both clusters; tests end the
            process there.
        security: keys and TLS of the foreign cluster, as for `Producer`.
    """

    def __init__(
        self,
        name_server: str,
        store_path: str,
        *,
        topic: str = GATEWAY_TOPIC,
        dead_letter_topic: str = DEAD_LETTER_TOPIC,
        group: str = GROUP,
        settings: dict[str, Any] | None = None,
        client_ip: str | None = None,
        env: Environment | None = None,
        disk: Disk | None = None,
        at: Callable[[str], None] = lambda step: None,
        **security: Any,
    ) -> None:
        self._name_server = name_server
        self._store_path = store_path
        self._topic = topic
        self._dead_letter_topic = dead_letter_topic
        self._group = group
        self._settings = settings or {}
        self._env = env if env is not None else system_environment()
        self._disk = disk if disk is not None else RealDisk()
        # The clients use this environment too, with its network.
        self._foreign_options = {"name_server": name_server, "env": env, **security}
        self._own_options: dict[str, Any] = {"env": env, **_OPEN}
        self._client_ip = client_ip
        self._at = at
        self._stops = contextlib.AsyncExitStack()
        self._is_stopping = asyncio.Event()
        self._reporter: asyncio.Task[None] | None = None
        self.status = GatewayStatus(name_server, topic)

    # -- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store, deliver overdue messages, and begin to consume.

        Raises:
            StoreError: the store cannot be opened.
            ClientError: the foreign cluster cannot be reached, or refuses the client.
        """
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        self.status.started_ms = self._env.clock.now_ms()
        store = self.store = Standalone(
            _private(self._store_path, self._settings),
            name_server_port=0,
            env=self._env,
            disk=self._disk,
        )
        self._stops.push_async_callback(store.stop)
        await store.start()
        self._own_options["name_server"] = store.name_server_address
        async with Admin(**self._own_options) as admin:
            await admin.create_topic(HELD_TOPIC, queue_count=8)
        async with Admin(**self._foreign_options) as admin:
            present_topics = await admin.topic_list()
            for topic in (self._topic, self._dead_letter_topic):
                if topic not in present_topics:
                    await admin.create_topic(topic)
        own = {"client_ip": self._client_ip, **self._own_options}
        foreign = {"client_ip": self._client_ip, **self._foreign_options}
        # A send is tried once: the gateway repeats what failed, and says so in its status.
        producers = _Producers(
            Producer("GATEWAY_IN", retries=0, **own), Producer(self._group, retries=0, **foreign)
        )
        for producer in producers:
            self._stops.push_async_callback(producer.shutdown)
            await producer.start()
        out = PushConsumer(
            "GATEWAY_OUT",
            {HELD_TOPIC: "*"},
            partial(self._deliver, producers),
            consume_from="first",
            concurrency=CONCURRENCY,
            max_reconsume_times=FOR_EVER,
            **own,
        )
        taking = PushConsumer(
            self._group,
            {self._topic: "*"},
            partial(self._accept, producers),
            consume_from="first",
            concurrency=CONCURRENCY,
            max_reconsume_times=FOR_EVER,
            **foreign,
        )
        for consumer in (out, taking):
            self._stops.push_async_callback(consumer.shutdown)
            await consumer.start()
        self._reporter = asyncio.create_task(self._report())

    async def stop(self) -> None:
        """Finish the deliveries under way and close; waiting messages stay in the store.

        If a part fails to stop, the others are stopped nevertheless and its error is raised then.
        """
        self._is_stopping.set()
        reporter, self._reporter = self._reporter, None
        if reporter is not None:
            # It ends by itself; two reports at once would write one file.
            await reporter
        try:
            await self._stops.aclose()
        finally:
            if reporter is not None:
                # With the deliveries that ended while the parts stopped.
                await self._save_status()

    async def __aenter__(self) -> "DelayGateway":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # -- in ---------------------------------------------------------------------------------

    async def _accept(self, producers: "_Producers", message: ReceivedMessage) -> None:
        """Store a message of the foreign cluster; its offset moves when this returns."""
        incoming = _incoming(message)
        planned = plan(incoming, frozenset({self._topic, self._dead_letter_topic}))
        self._at("taken")
        if isinstance(planned, Broken):
            await self._bury(producers.foreign, incoming, planned.reason)
        elif (refusal := await self._hold(producers.own, incoming, planned)) is not None:
            await self._bury(producers.foreign, incoming, refusal)
        self._at("held")
        self.status.accepted += 1

    async def _hold(
        self, own: Producer, incoming: Incoming, planned: PlannedDelivery
    ) -> str | None:
        """Write a message to the private store; the reason if the store refuses the message."""
        now_ms = self._env.clock.now_ms()
        self.status.overdue += planned.due_ms <= now_ms
        message = planned.for_store(incoming, HELD_TOPIC, now_ms)

        async def send() -> str | None:
            try:
                await _put(own, message)
            except (MessageRefused, LocalProtocolError) as error:
                return f"the gateway cannot hold it: {error}"
            return None

        refusal: str | None = await self._retry(send, f"hold {incoming.stable_id}")
        return refusal

    # -- out --------------------------------------------------------------------------------

    async def _deliver(self, producers: "_Producers", message: ReceivedMessage) -> None:
        """Send a message that is due to its topic; its offset moves when this returns."""
        incoming = _incoming(message)
        due_ms = int(incoming.properties[DUE_MS])
        outgoing = released(incoming)
        self._at("due")
        own, foreign = producers
        fault = await self._retry(
            lambda: _send(foreign, outgoing),
            f"bring {incoming.stable_id} to {outgoing.topic}",
        )
        if isinstance(fault, _Later):
            # The store waits for the topic, because a message that waits here holds up others.
            self.status.postponed += 1
            log.warning(
                "%s is tried again in %d ms: %s", incoming.stable_id, LATER_MS, fault.reason
            )
            again = PlannedDelivery(outgoing.topic, self._env.clock.now_ms() + LATER_MS)
            stored = again.for_store(incoming, HELD_TOPIC, 0)
            stored.properties = {**incoming.outgoing(HELD_TOPIC, {}).properties}
            await self._retry(lambda: _put(own, stored), f"hold {incoming.stable_id} again")
            return
        if fault is not None:
            await self._bury(foreign, incoming, fault)
            return
        self._at("brought")
        self.status.delivered += 1
        if incoming.properties.get("TIMER_OUT_MS"):
            late_ms = self._env.clock.now_ms() - due_ms
            self.status.late_ms_max = max(self.status.late_ms_max, late_ms)

    async def _bury(self, foreign: Producer, incoming: Incoming, reason: str) -> None:
        """Send a message to the dead-letter topic."""
        message = incoming.dead(self._dead_letter_topic, reason)
        log.warning("dead letter %s: %s", incoming.stable_id, reason)

        await self._retry(lambda: _store(foreign, message), f"bury {incoming.stable_id}")
        self.status.dead += 1

    async def _retry(self, work: Callable[[], Awaitable[Any]], purpose: str) -> Any:
        """Repeat `work` until it succeeds; when the gateway stops, raise its error.

        `purpose` completes "cannot ..." in the log.
        """
        tries = 0
        while True:
            try:
                return await work()
            except CometError as error:
                self.status.last_error = f"{purpose}: {error}"
                if self._is_stopping.is_set():
                    raise
                if tries % LOG_EVERY == 0:
                    log.warning("cannot %s, trying every %g s: %s", purpose, RETRY_PAUSE_S, error)
                tries += 1
                self.status.retries += 1
            try:
                await asyncio.wait_for(self._is_stopping.wait(), RETRY_PAUSE_S)
            except TimeoutError:
                continue

    # -- status -----------------------------------------------------------------------------

    async def _report(self) -> None:
        every = max(1, int(METRICS_INTERVAL_S / STATUS_INTERVAL_S))
        logged, turn = "", 0
        while not self._is_stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_stopping.wait(), STATUS_INTERVAL_S)
            if self._is_stopping.is_set():
                return
            await self._save_status()
            turn += 1
            if turn % every == 0 and (line := self.status.line()) != logged:
                log.info("%s", line)
                logged = line

    async def _save_status(self) -> None:
        """Write the status file in a worker, because the disk syncs it."""
        saved: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(_: object) -> None:
            if not saved.done():
                saved.set_result(None)

        self._env.workers.submit(self._write_status, done)
        await saved

    def _write_status(self) -> None:
        self.status.written_ms = self._env.clock.now_ms()
        path = f"{self._store_path}/{STATUS_FILE}"
        try:
            self._disk.write_atomic(path, json.dumps(self.status.table(), indent=2).encode())
        except (OSError, CometError) as error:
            log.warning("the status file %s cannot be written: %s", path, error)


class _Producers(NamedTuple):
    """The producers of a running gateway: for its own store, and for the foreign cluster."""

    own: Producer
    foreign: Producer


@dataclass(frozen=True, slots=True)
class _Later:
    """The reason why a message cannot be delivered now, though other messages can."""

    reason: str


async def _put(own: Producer, message: Message) -> None:
    """Send once to the gateway's own store."""
    result = await own.send(message)
    if result.status is not SendStatus.SEND_OK:
        raise CometError(f"the gateway's store answered {result.status.name}")


async def _send(foreign: Producer, message: Message) -> str | _Later | None:
    """Send once to the foreign cluster; None, or why it does not accept the message."""
    try:
        await _store(foreign, message)
    except CometError as error:
        cause = error.__cause__ if isinstance(error, SendFailed) else error
        if isinstance(cause, (NoRoute, TopicNotExist)):
            return _Later(str(cause))
        is_final = isinstance(
            cause, (MessageRefused, NoPermission, InvalidParameter, LocalProtocolError)
        )
        if is_final and not isinstance(cause, AccessDenied):
            return f"the cluster refused it: {cause}"
        raise
    return None


async def _store(foreign: Producer, message: Message) -> None:
    """Send once to the foreign cluster; a message that its broker may not have on disk is none.

    A message without its copy at a slave is on the master's disk, and a cluster without slaves
    would answer so for ever.

    Raises:
        CometError: the broker has not flushed the message; a power cut would lose it.
    """
    result = await foreign.send(message)
    if result.status not in FLUSHED_CODES:
        raise CometError(f"{message.topic}: the broker answered {result.status.name}")
    if result.status is not SendStatus.SEND_OK:
        log.warning("%s was stored with %s", message.topic, result.status.name)


def _incoming(message: ReceivedMessage) -> Incoming:
    return Incoming(
        message.body,
        message.tags,
        message.keys,
        message.message_group,
        message.flag,
        dict(message.properties),
        message.message_id,
        message.born_timestamp_ms,
    )


def _private(store_path: str, settings: dict[str, Any]) -> BrokerConfig:
    """Configure the private broker: reachable on this machine only, flushes before it answers."""
    overrides = {
        "brokerName": "delay-gateway",
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": 0,
        "namesrvAddr": "",
        "flushDiskType": "SYNC_FLUSH",
        "autoCreateTopicEnable": False,
        "mappedFileSizeCommitLog": SMALL_LOG_FILE_BYTES,
        "storePathRootDir": store_path,
        **settings,
    }
    return load_config(overrides=overrides, environment={}).config
