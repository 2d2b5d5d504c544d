"""A simulated cluster: name servers, brokers and client machines that restart after a crash.

It keeps the clients' roles running, checks the promises, and ends the simulation at the first
broken one.  `faults` has the kinds of faults, `workloads` the kinds of message.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cometmq.errors import CometError
from cometmq.namesrv import NameServer, NameServerConfig
from cometmq.testing.simulate.broker_part import (
    BROKER_PORT,
    QUEUE_COUNT,
    BrokerPart,
    CheckFailed,
    Group,
    Position,
    Seen,
    place_of,
)
from cometmq.testing.simulate.holders import Holders
from cometmq.testing.simulate.hooks import Hooks
from cometmq.testing.simulate.lives import lock_life_ms, session_life_ms
from cometmq.testing.simulation import Node, NodeGone, World

if TYPE_CHECKING:
    from cometmq.testing.simulate.plan import Plan

__all__ = ["Cluster", "Role"]

NAME_SERVER_PORT: Final = 9876
CLIENT_COUNT: Final = 2
OBSERVE_EVERY_S: Final = 0.05
STARTS_IN_PEACE_MAX: Final = 20


@dataclass(slots=True)
class Role:
    """Work of a client machine, started again after each crash until it is done."""

    node: Node
    work: Callable[[], Coroutine[Any, Any, None]]
    name: str
    task: asyncio.Task[None] | None = None
    life: int = 0
    is_done: bool = False
    again_s: float = 0.0


class Cluster:
    """All machines of one simulation, and the first broken promise."""

    def __init__(
        self, world: World, plan: Plan, broker_settings: Mapping[str, object] | None = None
    ) -> None:
        self.world = world
        self.plan = plan
        self.hooks = Hooks(self._observe_step)
        self.injected: Counter[str] = Counter()
        self.expired_files = 0
        """Log files that went in the calm, when everything was consumed."""
        self.chance = random.Random(f"{plan.seed}/cluster")
        self.name_servers = [world.node("name-server")]
        self._serving: dict[str, NameServer] = {}
        """The name server that runs on each of `name_servers`, by the node's name."""
        nodes = [world.node(f"broker-{number}") for number in range(plan.brokers)]
        self.clients = [world.node(f"client-{number}") for number in range(CLIENT_COUNT)]
        for number in range(1, plan.name_servers):
            self.name_servers.append(world.node(f"name-server-{number}"))
        settings: dict[str, object] = {
            "flush_disk_type": plan.flush,
            "namesrv_addr": self.name_server_address,
            "rebalance_lock_max_live_time": lock_life_ms(plan.lives),
            "channel_expired_timeout": session_life_ms(plan.lives),
        }
        settings |= broker_settings or {}
        self.brokers = [
            BrokerPart(
                node, self.hooks, dict(settings), node.clock.now_ms, self._appears, self._lost
            )
            for node in nodes
        ]
        self.ended = asyncio.Event()
        """Set when the clients must stop."""
        self.failure: asyncio.Future[None] = world.loop.create_future()
        self.is_peace = False
        self.on_observed: list[Callable[[], None]] = []
        """Called after each observation; a kind of message checks across queues here."""
        self.on_loss: list[Callable[[str, int, list[Seen]], None]] = []
        """Called after a power cut with ASYNC_FLUSH: broker, end of its log, what readers saw and
        is gone."""
        self.loss_counts: Counter[str] = Counter()
        """By broker: after how many power cuts it may have lost acknowledged messages."""
        self.holders = Holders(self.fail)
        self._roles: list[Role] = []
        self._down_until: dict[str, float] = {}
        self._starts_in_peace = 0
        self._on_topic: dict[str, Callable[[Seen], None]] = {}
        self.sent: dict[bytes, dict[str, str]] = {}
        """Every body that a client has sent or may have sent, with properties that must come."""
        self._only_sent: set[str] = set()
        self.observe_every_s = OBSERVE_EVERY_S

    @property
    def name_server_address(self) -> str:
        """The name servers' addresses, as clients configure them."""
        return ";".join(f"{server.address}:{NAME_SERVER_PORT}" for server in self.name_servers)

    def broker(self, name: str) -> BrokerPart:
        """Return the broker of this name."""
        return next(part for part in self.brokers if part.name == name)

    # -- for the kinds of message ----------------------------------------------------------------

    def watch(
        self,
        topic: str,
        on_seen: Callable[[Seen], None] | None = None,
        queue_count: int = QUEUE_COUNT,
        *,
        is_sent: bool = True,
    ) -> None:
        """Follow a topic's queues from now on; `on_seen` receives each message that appears.

        Args:
            is_sent: whether only messages of `sent` may appear there.
        """
        if is_sent:
            self._only_sent.add(topic)
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
        has_locks: bool = False,
        may_go_back_to: Callable[[Position], bool] = lambda position: False,
    ) -> Group:
        """Follow a group's committed offsets from now on."""
        group = Group(name, wants, is_alone, may_go_back_to, has_locks)
        for part in self.brokers:
            part.groups.append(group)
        return group

    def role(self, name: str, node: Node, work: Callable[[], Coroutine[Any, Any, None]]) -> Role:
        """Run `work` on a client machine until it is done, again after each crash."""
        role = Role(node, work, name)
        self._roles.append(role)
        return role

    def messages(self, topic: str) -> list[Seen]:
        """Return every message that readers have seen in a topic."""
        return [
            seen
            for part in self.brokers
            for (name, _), queue in part.seen.items()
            if name == topic
            for seen in queue
        ]

    def at(self, position: Position) -> Seen | None:
        """Return the message that readers saw at a position, None if there is none."""
        broker_name, topic, queue_id, queue_offset = position
        queue = self.broker(broker_name).seen.get((topic, queue_id), [])
        return queue[queue_offset] if queue_offset < len(queue) else None

    def service_options(self, name: str) -> dict[str, Any]:
        """Return the arguments of a `SimService` that fails while there are faults."""

        def note() -> None:
            self.injected[name] += 1

        return {"is_calm": lambda: self.is_peace, "on_break": note}

    def keep_down(self, node: Node, seconds: float) -> None:
        """Restart a crashed machine only after `seconds`."""
        self._down_until[node.name] = self.world.loop.time() + seconds

    def fail(self, text: str) -> None:
        """End the simulation with a broken promise."""
        if not self.failure.done():
            self.failure.set_exception(CheckFailed(text))

    # -- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start all servers."""
        for node in self.name_servers:
            await self._start_name_server(node)
        for part in self.brokers:
            await self._start_broker(part)

    async def _start_name_server(self, node: Node) -> None:
        config = NameServerConfig(listen_port=NAME_SERVER_PORT, kv_config_path="/ns/kv.json")

        async def begin() -> None:
            server = self._serving[node.name] = NameServer(config, node.environment(), node.disk)
            await server.start()

        await node.run(begin)

    async def _start_broker(self, part: BrokerPart) -> None:
        try:
            await part.start()
            self.world.record("serves", node=part.name)
        except NodeGone:
            return
        except (CometError, OSError) as error:
            self.world.record("not started", type(error).__name__, node=part.name)
            self._starts_in_peace += self.is_peace
            if self._starts_in_peace > STARTS_IN_PEACE_MAX:
                raise CheckFailed(f"{part.name} does not start: {error!r}") from error
            part.node.crash(power_cut=False)

    async def operate(self) -> None:
        """Restart machines that are down, run the roles and check, until cancelled."""
        try:
            while True:
                await asyncio.sleep(self.observe_every_s)
                for node in self.world.nodes.values():
                    await self._restart(node)
                for role in self._roles:
                    self._run_role(role)
                self.observe()
        except Exception as error:
            # Includes errors of the checks themselves: nobody awaits this task.
            if not self.failure.done():
                self.failure.set_exception(error)

    async def _restart(self, node: Node) -> None:
        for part in self.brokers:
            if part.node is node and part.has_failed:
                # The broker refuses writes until it is restarted.
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

    def _run_role(self, role: Role) -> None:
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

    def check_routes(self) -> None:
        """Check at rest that every name server names each living broker, and nothing else.

        Raises:
            CheckFailed: one does not.
        """
        living = {part.name: f"{part.node.address}:{BROKER_PORT}" for part in self.brokers}
        for name, server in self._serving.items():
            members, _ = server.routes.cluster_info()
            named = {broker: data.broker_addrs.get(0) for broker, data in members.items()}
            if named != living:
                raise CheckFailed(f"{name} names the brokers {named}, and these live: {living}")
            for part in self.brokers:
                self._check_queues(name, server, part)

    @staticmethod
    def _check_queues(name: str, server: NameServer, part: BrokerPart) -> None:
        """Check that a name server has the topics of one broker as the broker has them."""
        assert part.broker is not None
        for topic, config in part.broker.state.topics.all().items():
            route = server.routes.route(topic)
            counts = [
                (queues.read_queue_count, queues.write_queue_count)
                for queues in (route.queue_datas if route is not None else ())
                if queues.broker_name == part.name
            ]
            if counts != [(config.read_queue_count, config.write_queue_count)]:
                raise CheckFailed(
                    f"{name} has {counts} queues of {topic} at {part.name}, the broker has "
                    f"{config.read_queue_count} and {config.write_queue_count}"
                )

    def senders_done(self) -> bool:
        """Whether every sender of the calm has finished."""
        return all(role.is_done for role in self._roles if role.name.endswith(" calm"))

    def roles_done(self) -> bool:
        """Whether every client has finished."""
        return all(role.is_done for role in self._roles)

    def observe(self) -> None:
        """Read what readers can see, and check every promise that holds at any time."""
        for part in self.brokers:
            part.observe()
        self.holders.check()
        for check in self.on_observed:
            check()

    def _observe_step(self, node: Node) -> None:
        """Check a broker at one of its steps; a broken promise ends only the simulation."""
        if self.failure.done():
            return
        try:
            for part in self.brokers:
                if part.node is node:
                    part.observe()
        except CheckFailed as error:
            self.failure.set_exception(error)

    def _appears(self, seen: Seen) -> None:
        broker_name = seen.position[0]
        self.world.record("visible", place_of(seen.position), node=broker_name, body=seen.body)
        if seen.position[1] in self._only_sent:
            self._check_sent(seen)
        on_seen = self._on_topic.get(seen.position[1])
        if on_seen is not None:
            on_seen(seen)

    def _lost(self, part: BrokerPart, end: int, lost: list[Seen]) -> None:
        """Note what a power cut took: promises about it have ended."""
        self.world.record("lost", f"{part.name} {len(lost)} from {end}")
        self.loss_counts[part.name] += 1
        for seen in lost:
            for group in part.groups:
                group.decided.discard(seen.position)
        for on_loss in self.on_loss:
            on_loss(part.name, end, lost)

    def _check_sent(self, seen: Seen) -> None:
        """Check that somebody sent the message, and that its properties are those that he sent."""
        expected = self.sent.get(seen.body)
        if expected is None:
            self.fail(f"nobody sent {seen.body[:60]!r}, which is at {seen.position}")
            return
        for name, value in expected.items():
            if seen.properties.get(name) != value:
                self.fail(
                    f"{seen.body[:30]!r} at {seen.position} was sent with {name}={value!r} and has "
                    f"{seen.properties.get(name)!r}"
                )
