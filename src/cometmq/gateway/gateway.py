"""The delay gateway: takes messages from a foreign cluster, holds them, brings them on time.

Job: a consumer of the foreign cluster, a private broker with timers, a producer of the foreign
cluster, and who may forget a message when.  It must not know the wire or the store.

Nothing is lost: the foreign offset moves when the private broker has the message on disk (it
flushes before it answers), and the private offset moves when the foreign broker has answered.
A crash between the two repeats the step, so a message may come out twice; both have the same
``GATEWAY_ID``.  What the foreign cluster does not take now (unreachable, busy) is tried again
every second; a topic that does not exist is tried again later, so that it holds up nobody; what it
will never take goes to the dead-letter topic.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cometmq.broker.base.config import BrokerConfig, load_config
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
    Carried,
    Incoming,
    plan,
    released,
)
from cometmq.model import Message, SendStatus
from cometmq.net.env import Environment, system_environment
from cometmq.standalone import Standalone
from cometmq.store.base.disk import Disk, RealDisk

__all__ = ["DelayGateway", "GatewayStatus", "read_status"]

log = logging.getLogger("cometmq.gateway")

GROUP: Final = "DELAY_GATEWAY"
HELD_TOPIC: Final = "HELD"
RETRY_PAUSE_S: Final = 1.0
LATER_MS: Final = 10_000
"""When a message for a topic that does not exist is tried again."""
LOG_EVERY: Final = 10
"""Tries between two log lines of one message."""
FOR_EVER: Final = 2**31 - 1
STATUS_FILE: Final = "gateway.json"
STATUS_INTERVAL_S: Final = 1.0
METRICS_INTERVAL_S: Final = 10.0
CONCURRENCY: Final = 64
# The private broker is reached without keys and TLS, whatever the environment says.
_OPEN: Final[dict[str, Any]] = {
    "access_key": "",
    "secret_key": "",
    "security_token": "",
    "tls": False,
}


@dataclass(slots=True)
class GatewayStatus:
    """What the gateway has done since it started; times in ms."""

    foreign: str = ""
    topic: str = ""
    started_ms: int = 0
    written_ms: int = 0
    taken: int = 0
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
            f"taken={self.taken} delivered={self.delivered} dead={self.dead} "
            f"retries={self.retries} postponed={self.postponed} overdue={self.overdue} "
            f"late_ms_max={self.late_ms_max}"
        )

    def table(self) -> dict[str, object]:
        """By name, as in the status file."""
        return {name: getattr(self, name) for name in self.__slots__}


def read_status(store_path: str) -> dict[str, object] | None:
    """What a gateway with this store last wrote of itself; None if none ever ran."""
    try:
        found: dict[str, object] = json.loads((Path(store_path) / STATUS_FILE).read_text())
    except FileNotFoundError:
        return None
    return found


class DelayGateway:
    """A gateway between a foreign cluster and a private store; ``async with`` runs it.

    Args:
        name_server: of the foreign cluster.
        store_path: directory of the private store.
        topic: the foreign topic to take messages from.
        dead_letter_topic: the foreign topic for messages that cannot be carried.
        group: consumer and producer group at the foreign cluster.
        settings: keys of the private broker, by RocketMQ's names.
        client_ip: what the clients say their address is; the machine's by default.
        env: clock, chance, network and workers; the machine's by default.
        disk: where the private store lives; the machine's by default.
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
        # An environment of one's own brings its network to the clients, not only to the store.
        self._foreign_options = {"name_server": name_server, "env": env, **security}
        self._own_options: dict[str, Any] = {"env": env, **_OPEN}
        self._client_ip = client_ip
        self.at: Callable[[str], None] = lambda step: None
        """Told the steps between which a message is in two places; a test may end us there."""
        self._stops = contextlib.AsyncExitStack()
        self._foreign: Producer | None = None
        self._own: Producer | None = None
        self._is_stopping = asyncio.Event()
        self._reporter: asyncio.Task[None] | None = None
        self.status = GatewayStatus(name_server, topic)

    # -- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store, deliver what is overdue, and begin to take messages.

        Raises:
            StoreError: the store cannot be opened.
            ClientError: the foreign cluster cannot be reached, or does not let us in.
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
            known = await admin.topic_list()
            for topic in (self._topic, self._dead_letter_topic):
                if topic not in known:
                    await admin.create_topic(topic)
        own = {"client_ip": self._client_ip, **self._own_options}
        foreign = {"client_ip": self._client_ip, **self._foreign_options}
        self._own = Producer("GATEWAY_IN", **own)
        self._foreign = Producer(self._group, **foreign)
        for producer in (self._own, self._foreign):
            self._stops.push_async_callback(producer.shutdown)
            await producer.start()
        out = PushConsumer(
            "GATEWAY_OUT",
            {HELD_TOPIC: "*"},
            self._bring,
            consume_from="first",
            concurrency=CONCURRENCY,
            max_reconsume_times=FOR_EVER,
            **own,
        )
        taking = PushConsumer(
            self._group,
            {self._topic: "*"},
            self._take,
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
        """Finish what is under way, and close; what is held stays in the store.

        A part that cannot stop in order leaves no other running; its error is raised at the end.
        """
        self._is_stopping.set()
        if self._reporter is not None:
            # It ends by itself with a last report; two at once would write the same file.
            await self._reporter
            self._reporter = None
        await self._stops.aclose()

    async def __aenter__(self) -> "DelayGateway":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # -- in ---------------------------------------------------------------------------------

    async def _take(self, message: ReceivedMessage) -> None:
        """Hold a message of the foreign cluster; its offset moves when this returns."""
        incoming = _incoming(message)
        planned = plan(incoming, frozenset({self._topic, self._dead_letter_topic}))
        self.at("taken")
        if isinstance(planned, Broken):
            await self._bury(incoming, planned.reason)
        elif (refusal := await self._hold(incoming, planned)) is not None:
            await self._bury(incoming, refusal)
        self.at("held")
        self.status.taken += 1

    async def _hold(self, incoming: Incoming, planned: Carried) -> str | None:
        """Bring a message to the private store's disk; why it cannot be held, if it cannot."""
        own = self._own
        assert own is not None
        now_ms = self._env.clock.now_ms()
        self.status.overdue += planned.due_ms <= now_ms
        message = planned.held(incoming, HELD_TOPIC, now_ms)

        async def send() -> str | None:
            try:
                result = await own.send(message)
            except (MessageRefused, LocalProtocolError) as error:
                return f"the gateway cannot hold it: {error}"
            if result.status is not SendStatus.SEND_OK:
                raise CometError(f"the gateway's store answered {result.status.name}")
            return None

        refusal: str | None = await self._insist(send, f"hold {incoming.stable_id}")
        return refusal

    # -- out --------------------------------------------------------------------------------

    async def _bring(self, message: ReceivedMessage) -> None:
        """Bring a message that is due to its topic; it is done when this returns."""
        incoming = _incoming(message)
        due_ms = int(incoming.properties[DUE_MS])
        outgoing = released(incoming)
        self.at("due")
        fault = await self._insist(
            lambda: self._send(outgoing), f"bring {incoming.stable_id} to {outgoing.topic}"
        )
        if isinstance(fault, _Later):
            # The store waits for the topic; a message in hand would hold up the others.
            self.status.postponed += 1
            log.warning("%s is tried again in %d ms: %s", incoming.stable_id, LATER_MS, fault.why)
            again = Carried(outgoing.topic, self._env.clock.now_ms() + LATER_MS)
            held = again.held(incoming, HELD_TOPIC, 0)
            held.properties = {**incoming.outgoing(HELD_TOPIC, {}).properties}
            await self._insist(lambda: self._put(held), f"hold {incoming.stable_id} again")
            return
        if fault is not None:
            await self._bury(incoming, fault)
            return
        self.at("brought")
        self.status.delivered += 1
        if incoming.properties.get("TIMER_OUT_MS"):
            late_ms = self._env.clock.now_ms() - due_ms
            self.status.late_ms_max = max(self.status.late_ms_max, late_ms)

    async def _put(self, message: Message) -> None:
        assert self._own is not None
        result = await self._own.send(message)
        if result.status is not SendStatus.SEND_OK:
            raise CometError(f"the gateway's store answered {result.status.name}")

    async def _send(self, message: Message) -> "str | _Later | None":
        """One try at the foreign cluster: None when it has it, or why it never or not yet will."""
        assert self._foreign is not None
        try:
            result = await self._foreign.send(message)
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
        if result.status is not SendStatus.SEND_OK:
            log.warning("%s was stored with %s", message.topic, result.status.name)
        return None

    async def _bury(self, incoming: Incoming, reason: str) -> None:
        """Bring a message to the dead-letter topic."""
        message = incoming.dead(self._dead_letter_topic, reason)
        log.warning("dead letter %s: %s", incoming.stable_id, reason)

        async def send() -> None:
            assert self._foreign is not None
            await self._foreign.send(message)

        await self._insist(send, f"bury {incoming.stable_id}")
        self.status.dead += 1

    async def _insist(self, work: Callable[[], Awaitable[Any]], what: str) -> Any:
        """Do something until it succeeds or the gateway stops; then what was not done stays."""
        tries = 0
        while True:
            try:
                return await work()
            except CometError as error:
                self.status.last_error = f"{what}: {error}"
                if self._is_stopping.is_set():
                    raise
                if tries % LOG_EVERY == 0:
                    log.warning("cannot %s, trying every %g s: %s", what, RETRY_PAUSE_S, error)
                tries += 1
                self.status.retries += 1
            try:
                await asyncio.wait_for(self._is_stopping.wait(), RETRY_PAUSE_S)
            except TimeoutError:
                continue

    # -- what it says of itself -------------------------------------------------------------

    async def _report(self) -> None:
        every = max(1, int(METRICS_INTERVAL_S / STATUS_INTERVAL_S))
        said, turn = "", 0
        while not self._is_stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_stopping.wait(), STATUS_INTERVAL_S)
            await self._save_status()
            turn += 1
            if turn % every == 0 and (line := self.status.line()) != said:
                log.info("%s", line)
                said = line

    async def _save_status(self) -> None:
        """In a worker, for the disk syncs it."""
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


@dataclass(frozen=True, slots=True)
class _Later:
    """Not now, and nobody shall wait for it."""

    why: str


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
    """The private broker: on this machine only, and on disk before it answers."""
    overrides = {
        "brokerName": "delay-gateway",
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": 0,
        "namesrvAddr": "",
        "flushDiskType": "SYNC_FLUSH",
        "autoCreateTopicEnable": False,
        "storePathRootDir": store_path,
        **settings,
    }
    return load_config(overrides=overrides, environment={}).config
