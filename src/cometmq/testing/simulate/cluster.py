"""A simulated cluster: name server, brokers and client machines that come back when they ended.

Job: start everything, bring back what crashed, keep the clients' roles running, look at the
promises, and end the simulation at the first one that is broken.  Must not: inject faults, and
must not know kinds of message.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cometmq.errors import CometError
from cometmq.namesrv import NameServer, NameServerConfig
from cometmq.testing.simulate.broker_part import (
    QUEUE_COUNT,
    BrokerPart,
    CheckFailed,
    Group,
    Seen,
)
from cometmq.testing.simulate.holders import Holders
from cometmq.testing.simulate.hooks import Hooks
from cometmq.testing.simulate.workloads import WORKLOADS
from cometmq.testing.simulation import Node, NodeGone, World

if TYPE_CHECKING:
    from cometmq.testing.simulate.plan import Plan

__all__ = ["Cluster", "Role"]

NAME_SERVER_PORT: Final = 9876
CLIENT_COUNT: Final = 2
LOOK_EVERY_S: Final = 0.05
STARTS_IN_PEACE_MAX: Final = 20


@dataclass(slots=True)
class Role:
    """Something a client machine does until it is done, begun again after each crash of it."""

    node: Node
    work: Callable[[], Coroutine[Any, Any, None]]
    name: str
    task: asyncio.Task[None] | None = None
    life: int = 0
    is_done: bool = False
    again_s: float = 0.0


class Cluster:
    """Everything in one simulation, and whether a promise was broken."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self.hooks = Hooks()
        self.hooks.on_step = self._look_at_step
        self.injected: Counter[str] = Counter()
        self.chance = random.Random(f"{plan.seed}/cluster")
        self.name_servers = [world.node("name-server")]
        nodes = [world.node(f"broker-{number}") for number in range(plan.brokers)]
        self.clients = [world.node(f"client-{number}") for number in range(CLIENT_COUNT)]
        for number in range(1, plan.name_servers):
            self.name_servers.append(world.node(f"name-server-{number}"))
        settings: dict[str, object] = {
            "flush_disk_type": plan.flush,
            "namesrv_addr": self.name_server_address,
        }
        for name in plan.workloads:
            settings |= WORKLOADS[name].settings
        self.brokers = [
            BrokerPart(node, self.hooks, dict(settings), world.clock.now_ms) for node in nodes
        ]
        for part in self.brokers:
            part.on_seen = self._seen
        self.ended = asyncio.Event()
        """The clients are to leave."""
        self.failure: asyncio.Future[None] = world.loop.create_future()
        self.is_peace = False
        self.on_look: list[Callable[[], None]] = []
        """Called after every look; a kind of message checks across queues here."""
        self.holders = Holders(self.fail)
        self._roles: list[Role] = []
        self._down_until: dict[str, float] = {}
        self._starts_in_peace = 0
        self._on_topic: dict[str, Callable[[Seen], None]] = {}

    @property
    def name_server_address(self) -> str:
        """Where clients ask for routes."""
        return ";".join(f"{server.address}:{NAME_SERVER_PORT}" for server in self.name_servers)

    def broker(self, name: str) -> BrokerPart:
        """The broker of this name."""
        return next(part for part in self.brokers if part.name == name)

    # -- what kinds of message ask for -----------------------------------------------------------

    def watch(
        self,
        topic: str,
        on_seen: Callable[[Seen], None] | None = None,
        queue_count: int = QUEUE_COUNT,
    ) -> None:
        """Follow a topic's queues from now on; `on_seen` is told each message that appears."""
        for part in self.brokers:
            part.topics[topic] = queue_count
        if on_seen is not None:
            self._on_topic[topic] = on_seen

    def watch_group(
        self,
        name: str,
        wants: Callable[[Seen], bool] = lambda seen: True,
        *,
        is_alone: bool = False,
    ) -> Group:
        """Follow a group's committed offsets from now on."""
        group = Group(name, wants, is_alone)
        for part in self.brokers:
            part.groups.append(group)
        return group

    def role(self, name: str, node: Node, work: Callable[[], Coroutine[Any, Any, None]]) -> Role:
        """Let a client machine do this until it is done, over its crashes."""
        role = Role(node, work, name)
        self._roles.append(role)
        return role

    def messages(self, topic: str) -> list[Seen]:
        """Everything readers have seen in a topic."""
        return [
            seen
            for part in self.brokers
            for (name, _), queue in part.seen.items()
            if name == topic
            for seen in queue
        ]

    def at(self, place: tuple[str, str, int, int]) -> Seen | None:
        """What readers saw at a place."""
        broker_name, topic, queue_id, queue_offset = place
        queue = self.broker(broker_name).seen.get((topic, queue_id), [])
        return queue[queue_offset] if queue_offset < len(queue) else None

    def keep_down(self, node: Node, seconds: float) -> None:
        """A machine that ended comes back only then."""
        self._down_until[node.name] = self.world.loop.time() + seconds

    def fail(self, text: str) -> None:
        """A promise is broken: the simulation ends with this."""
        if not self.failure.done():
            self.failure.set_exception(CheckFailed(text))

    # -- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """All servers."""
        for node in self.name_servers:
            await self._start_name_server(node)
        for part in self.brokers:
            await self._start_broker(part)

    async def _start_name_server(self, node: Node) -> None:
        config = NameServerConfig(listen_port=NAME_SERVER_PORT, kv_config_path="/ns/kv.json")
        await node.run(lambda: NameServer(config, node.environment(), node.disk).start())

    async def _start_broker(self, part: BrokerPart) -> None:
        try:
            await part.start()
        except NodeGone:
            return
        except (CometError, OSError) as error:
            self.world.record("not started", f"{part.name} {type(error).__name__}")
            self._starts_in_peace += self.is_peace
            if self._starts_in_peace > STARTS_IN_PEACE_MAX:
                raise CheckFailed(f"{part.name} does not start: {error!r}") from error
            part.node.crash(power_cut=False)

    async def operate(self) -> None:
        """Bring back what is down, keep the roles going, look; until it is cancelled."""
        try:
            while True:
                await asyncio.sleep(LOOK_EVERY_S)
                for node in self.world.nodes.values():
                    await self._mind(node)
                for role in self._roles:
                    self._mind_role(role)
                self.look()
        except Exception as error:
            # Also a fault of a look itself: nobody awaits the operator.
            if not self.failure.done():
                self.failure.set_exception(error)

    async def _mind(self, node: Node) -> None:
        for part in self.brokers:
            if part.node is node and part.has_failed:
                # It refuses writes until somebody restarts it, which the log asks for.
                self.injected["sync-failure"] += 1
                node.crash(power_cut=False)
        if node.is_alive:
            return
        now_s = self.world.loop.time()
        until_s = self._down_until.setdefault(node.name, now_s + self.chance.uniform(0.05, 1.5))
        if now_s < until_s:
            return
        del self._down_until[node.name]
        node.restart()
        if node in self.name_servers:
            await self._start_name_server(node)
        for part in self.brokers:
            if part.node is node:
                part.broker = None
                await self._start_broker(part)

    def _mind_role(self, role: Role) -> None:
        if role.is_done or not role.node.is_alive or self.world.loop.time() < role.again_s:
            return
        if role.task is not None and role.life == role.node.lifetime.number:
            if not role.task.done():
                return
            error = None if role.task.cancelled() else role.task.exception()
            if error is None:
                role.is_done = True
                return
            if not isinstance(error, CometError):
                raise CheckFailed(f"{role.name} ended with {error!r}") from error
            self.world.record("again", f"{role.name} {type(error).__name__}")
            role.task = None
            role.again_s = self.world.loop.time() + 0.3
            return
        role.life = role.node.lifetime.number
        role.task = role.node.spawn(role.work)

    def roles_done(self) -> bool:
        """Whether nothing is left to do for any client."""
        return all(role.is_done for role in self._roles)

    def look(self) -> None:
        """Every promise that can be checked at any time."""
        for part in self.brokers:
            part.look()
        self.holders.look()
        for look in self.on_look:
            look()

    def _look_at_step(self, node: Node) -> None:
        """A broker is at a step: what is broken there must not end its code, but the simulation."""
        if self.failure.done():
            return
        try:
            for part in self.brokers:
                if part.node is node:
                    part.look()
        except CheckFailed as error:
            self.failure.set_exception(error)

    def _seen(self, seen: Seen) -> None:
        told = self._on_topic.get(seen.place[1])
        if told is not None:
            told(seen)
