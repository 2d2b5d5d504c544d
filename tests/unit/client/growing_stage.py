"""A stage for topics that grow: brokers over real sockets, and a consumer made of offsets.

Job: a name server and brokers that may stop and start again, producers that share message groups,
and consumer groups that read the queues at their own pace and write down what they saw.
Must not: assert; the tests do.
"""

import asyncio
import contextlib
import functools
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any, Self

from cometmq import Admin, Message, Producer
from cometmq.broker.base.config import load_config
from cometmq.broker.broker import Broker
from cometmq.codec.stored_message import decode_message
from cometmq.errors import CometError
from cometmq.model.offsets import ConsumerOffset
from cometmq.namesrv.config import NameServerConfig
from cometmq.namesrv.name_server import NameServer
from cometmq.net.env import system_environment
from cometmq.store.base.disk import RealDisk
from cometmq.testing.cluster import SMALL_STORE

TOPIC = "Grown"
LIMIT_S = 60.0


class Stage:
    """A cluster whose brokers come and go; they keep their ports."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.brokers: dict[str, Broker] = {}
        self._ports: dict[str, int] = {}
        self._names = NameServer(
            NameServerConfig(
                listen_port=0,
                bind_address="127.0.0.1",
                kv_config_path=str(root / "kv.json"),
                config_store_path=str(root / "namesrv.properties"),
            ),
            system_environment(),
            RealDisk(),
        )

    @property
    def name_server(self) -> str:
        return self._names.address

    async def start(self, *names: str) -> None:
        await self._names.start()
        for name in names:
            await self.start_broker(name)

    async def start_broker(self, name: str) -> Broker:
        settings = {
            **SMALL_STORE,
            "brokerName": name,
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": self._ports.get(name, 0),
            "namesrvAddr": self.name_server,
            "storePathRootDir": str(self.root / name),
            "autoCreateTopicEnable": False,
        }
        config = load_config(overrides=settings, environment={}).config
        broker = Broker(config, system_environment(), RealDisk())
        await broker.start()
        self._ports[name] = broker.port
        self.brokers[name] = broker
        return broker

    async def stop_broker(self, name: str) -> None:
        await self.brokers.pop(name).stop()

    async def stop(self) -> None:
        for name in list(self.brokers):
            await self.stop_broker(name)
        await self._names.stop()

    def queues(self) -> list[tuple[str, int]]:
        """Every queue of the topic that can be read now."""
        found: list[tuple[str, int]] = []
        for name, broker in sorted(self.brokers.items()):
            config = broker.state.topics.get(TOPIC)
            if config is not None:
                found += [(name, queue_id) for queue_id in range(config.read_queue_count)]
        return found

    def bodies(
        self, name: str, queue_id: int, first: int = 0, count_max: int = 10_000
    ) -> list[str]:
        """What a queue holds from an offset on."""
        store = self.brokers[name].state.store
        found: list[str] = []
        for unit in store.units(TOPIC, queue_id, first, count_max):
            record = store.message_at(unit.physical_offset)
            assert record is not None
            found.append(decode_message(bytes(record), 0).body.decode())
        return found


@contextlib.asynccontextmanager
async def stage(root: Path, *names: str) -> AsyncIterator[tuple[Stage, Admin]]:
    """A running stage and an admin client for it."""
    running = Stage(root)
    try:
        await running.start(*names)
        async with Admin(name_server=running.name_server) as admin:
            yield running, admin
    finally:
        await running.stop()


class Readers:
    """A consumer group that reads each queue in steps of its own, and commits what it has read."""

    def __init__(self, stage: Stage, group: str, chance: Random) -> None:
        self.seen: dict[str, list[int]] = defaultdict(list)
        """Numbers by message group, in the order in which they were consumed the first time."""
        self.where: dict[str, list[tuple[str, int]]] = defaultdict(list)
        self.is_paused = False
        self._stage = stage
        self._group = group
        self._chance = chance
        self._offsets: dict[tuple[str, int], int] = {}

    def step(self) -> int:
        """Consume some messages of a queue chosen by chance; how many that were."""
        queues = self._stage.queues()
        if not queues or self.is_paused:
            return 0
        name, queue_id = self._chance.choice(queues)
        offset = self._offsets.get((name, queue_id), 0)
        bodies = self._stage.bodies(name, queue_id, offset, self._chance.randint(1, 20))
        for body in bodies:
            group, _, number = body.partition(":")
            self.seen[group].append(int(number))
            self.where[group].append((name, queue_id))
        self._offsets[name, queue_id] = offset + len(bodies)
        state = self._stage.brokers[name].state
        state.offsets.commit(self._group, TOPIC, queue_id, ConsumerOffset(offset + len(bodies)), 0)
        return len(bodies)

    def consume_all(self) -> None:
        """Consume whatever is there."""
        self.is_paused = False
        for _ in range(2_000):
            self.step()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Step on meanwhile."""
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()

    async def _run(self) -> None:
        while True:
            self.step()
            await asyncio.sleep(0.001)


class Traffic:
    """Message groups whose numbers are sent one after the other, each by any of the producers."""

    def __init__(
        self,
        producers: list[Producer],
        groups: list[str],
        chance: Random,
        *,
        pause_s: float = 0.2,
    ) -> None:
        self.pause_s = pause_s
        self.sent: dict[str, int] = dict.fromkeys(groups, 0)
        self.refused: list[CometError] = []
        self.producers = producers
        self._chance = chance
        self._tasks: list[asyncio.Task[None]] = []

    async def _send(self, group: str) -> None:
        while True:
            producer = self._chance.choice(self.producers)
            message = Message(TOPIC, f"{group}:{self.sent[group]}".encode())
            try:
                await producer.send(message, message_group=group, timeout_ms=20_000)
            except CometError as error:
                self.refused.append(error)
                await asyncio.sleep(0.05)
            else:
                self.sent[group] += 1
                await asyncio.sleep(self._chance.uniform(0, self.pause_s))

    async def __aenter__(self) -> Self:
        for producer in self.producers:
            await producer.start()
        self._tasks = [asyncio.create_task(self._send(group)) for group in self.sent]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        for producer in self.producers:
            await producer.shutdown()

    async def sends(self, count: int) -> None:
        """Return once each group has sent so many more."""
        before = dict(self.sent)
        await until(lambda: all(self.sent[group] >= before[group] + count for group in before))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def on_loop(story: Callable[[Path], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """Make a test of a coroutine that takes the folder for its stores."""

    @functools.wraps(story)
    def test(tmp_path: Path) -> None:
        asyncio.run(story(tmp_path))

    return test


async def until(condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Return once the condition holds."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - conditions of any kind, in tests only
            await asyncio.sleep(0.02)


async def until_grown(admin: Admin, limit_s: float = LIMIT_S) -> None:
    """Return once the topic's growth is complete."""
    async with asyncio.timeout(limit_s):
        while not (await admin.topic_growth(TOPIC)).is_complete:  # noqa: ASYNC110 - in tests only
            await asyncio.sleep(0.05)
