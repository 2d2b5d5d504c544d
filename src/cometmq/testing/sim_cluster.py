"""A whole cluster in a simulation with one call, for a program's own handlers and checks.

    async def main(cluster: SimCluster) -> None:
        async with cluster.producer("shop") as producer:
            await producer.send(Message("Orders", b"1"))
        async with cluster.consumer("ship", {"Orders": "*"}, ship):
            await cluster.until(lambda: shipped)

    run_seeds(main, range(50))

Name server, broker and clients are the real ones, on virtual time: an hour takes milliseconds.
Plain handlers run in virtual time too, one after the other.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, Final, TypeVar

from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.broker import Broker
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.producer.producer import Producer
from cometmq.errors import CometError
from cometmq.namesrv import NameServer, NameServerConfig
from cometmq.testing.network import NetworkFaults
from cometmq.testing.simulation import Node, NodeGone, Outcome, World, simulate

__all__ = ["SeedFailed", "SimCluster", "run_seed", "run_seeds"]

T = TypeVar("T")
NAME_SERVER_PORT: Final = 9876
CHECK_EVERY_S: Final = 0.05
END_S: Final = 60.0
"""Virtual seconds in which a scenario that has failed leaves its clients."""
NO_CHECK_S: Final = 60.0
DOWN_S: Final = (0.1, 2.0)
CRASH_EVERY_S: Final = (0.5, 3.0)
SMALL_STORE: Final[Mapping[str, Any]] = {
    "flush_disk_type": "SYNC_FLUSH",
    "mapped_file_size_commit_log": 1024 * 1024,
    "mapped_file_size_consume_queue": 20 * 300,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}


class SeedFailed(AssertionError):
    """A scenario failed; the text names the seed that repeats it."""


class SimCluster:
    """A name server, brokers, and machines for clients.

    Args:
        world: of the simulation.
        brokers: how many.
        settings: fields of `BrokerConfig` for all brokers.
    """

    def __init__(
        self, world: World, *, brokers: int = 1, settings: Mapping[str, Any] | None = None
    ) -> None:
        self.world = world
        self.brokers = [f"broker-{number}" for number in range(brokers)]
        """Their names, which are also those of their machines."""
        self._settings = {**SMALL_STORE, **(settings or {})}
        self._names = world.node("name-server")
        self._checks: list[Callable[[], object]] = []
        self._failed: asyncio.Future[None] = world.loop.create_future()
        self._clients = 0

    @property
    def name_server_address(self) -> str:
        """The name server's address."""
        return f"{self._names.address}:{NAME_SERVER_PORT}"

    async def start(self) -> None:
        """Start all servers."""
        config = NameServerConfig(listen_port=NAME_SERVER_PORT, kv_config_path="/ns/kv.json")
        node = self._names
        await node.run(lambda: NameServer(config, node.environment(), node.disk).start())
        for name in self.brokers:
            await self._start_broker(name)

    async def _start_broker(self, name: str) -> None:
        node = self.world.node(name)
        config = BrokerConfig(
            broker_name=name,
            broker_ip1=node.address,
            namesrv_addr=self.name_server_address,
            store_path_root_dir="/store",
            **self._settings,
        )
        await node.run(lambda: Broker(config, node.environment(), node.disk).start())

    # -- clients --------------------------------------------------------------------------------

    def options(self, machine: str = "client") -> dict[str, Any]:
        """The arguments of any client of this cluster that runs on this machine."""
        node = self.world.node(machine)
        self._clients += 1
        return {
            "name_server": self.name_server_address,
            "client_ip": node.address,
            "instance_name": f"{machine}-{self._clients}",
            "env": node.environment(),
        }

    def producer(self, group: str, *, machine: str = "client", **options: Any) -> Producer:
        """A producer on a machine, with further arguments of `Producer`."""
        return Producer(group, **{**self.options(machine), **options})

    def consumer(
        self,
        group: str,
        subscriptions: Mapping[str, Any],
        handler: Callable[[Any], Any],
        *,
        machine: str = "client",
        **options: Any,
    ) -> PushConsumer:
        """A push consumer on a machine, with further arguments of `PushConsumer`.

        It begins with the first message.  A plain handler runs in virtual time: not in a thread.
        """
        given = {"consume_from": "first", **self.options(machine), **options}
        return PushConsumer(group, dict(subscriptions), _on_loop(handler), **given)

    async def serve(self, machine: str, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run `work()` as a machine's code, again in its next life after each crash."""
        node = self.world.node(machine)
        while True:
            try:
                await node.run(work)
            except NodeGone:
                await self._alive(node)
            else:
                return

    @staticmethod
    async def _alive(node: Node) -> None:
        while not node.is_alive:  # noqa: ASYNC110 - a machine tells nobody
            await asyncio.sleep(CHECK_EVERY_S)

    # -- faults -----------------------------------------------------------------------------------

    def crash(self, machine: str, *, power_cut: bool = True) -> None:
        """End everything on a machine; with a power cut its disk keeps only what was synced."""
        self.world.node(machine).crash(power_cut=power_cut)

    async def restart(self, machine: str) -> None:
        """Begin the next life of a machine, with its broker where it had one."""
        self.world.node(machine).restart()
        if machine in self.brokers:
            await self._start_broker(machine)

    async def disturb(self, seconds: float, machines: Iterable[str] | None = None) -> None:
        """Crash machines at times from the seed, and restart them; all live at the end.

        Args:
            seconds: of virtual time.
            machines: their names; None: the brokers.
        """
        chance, loop = self.world.chance, self.world.loop
        names = self.brokers if machines is None else list(machines)
        end_s = loop.time() + seconds
        while loop.time() < end_s:
            await asyncio.sleep(chance.uniform(*CRASH_EVERY_S))
            name = chance.choice(names)
            self.crash(name, power_cut=chance.random() < 0.5)
            await asyncio.sleep(chance.uniform(*DOWN_S))
            await self.restart(name)

    def move_clocks(self, seconds: float) -> None:
        """Set the clocks of all machines forward, as if so much time had passed at once.

        Brokers deliver what is due by then, and forget locks and clients that were silent so long.
        """
        for node in self.world.nodes.values():
            node.clock.skew_ms += int(seconds * 1000)

    # -- checks -----------------------------------------------------------------------------------

    def check(self, function: Callable[[], object]) -> None:
        """Call a function of the program's every 50 ms and at the end; it raises what is wrong."""
        self._checks.append(function)

    async def until(self, condition: Callable[[], object], timeout_s: float = 3_600) -> None:
        """Wait in virtual time until a condition holds.

        Raises:
            SeedFailed: it does not hold in time.
        """
        begin_s = self.world.loop.time()
        while not condition():
            waited_s = self.world.loop.time() - begin_s
            if waited_s > timeout_s:
                raise SeedFailed(f"{_name(condition)} does not hold after {timeout_s:.0f} s")
            # Who waits for hours wants no answer within milliseconds.
            await asyncio.sleep(max(CHECK_EVERY_S, waited_s / 100))

    async def run(self, main: Callable[[SimCluster], Awaitable[T]]) -> T:
        """Start, run a scenario with the checks beside it, and check once more at the end."""
        await self.start()
        running = asyncio.ensure_future(main(self))
        checking = asyncio.ensure_future(self._check_forever())
        try:
            await asyncio.wait([running, checking], return_when=asyncio.FIRST_COMPLETED)
            if checking.done():
                checking.result()
            value = await running
        finally:
            for task in (running, checking):
                task.cancel()
            await asyncio.wait([running, checking], timeout=END_S)
        self._check_once()
        return value

    async def _check_forever(self) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY_S if self._checks else NO_CHECK_S)
            self._check_once()

    def _check_once(self) -> None:
        for function in self._checks:
            function()


def _on_loop(handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """An ``async def`` handler that runs a plain one on the loop."""
    call = getattr(handler, "__call__", handler)  # noqa: B004 - the method, to examine its kind
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call):
        return handler

    @functools.wraps(handler)
    async def handle(work: Any) -> Any:
        return await asyncio.to_thread(handler, work)

    return handle


def _name(function: Callable[..., object]) -> str:
    return getattr(function, "__name__", repr(function))


def run_seed(
    main: Callable[[SimCluster], Awaitable[T]],
    seed: int,
    *,
    brokers: int = 1,
    settings: Mapping[str, Any] | None = None,
    faults: NetworkFaults | None = None,
) -> Outcome[T]:
    """Simulate a scenario on a cluster of its own.

    Args:
        main: gets the started cluster.
        seed: equal seeds give equal runs.
        brokers: how many.
        settings: fields of `BrokerConfig`.
        faults: what the network does: see `NetworkFaults`.

    Raises:
        SeedFailed: the scenario or a check of it has failed; its cause is the error.
    """
    try:
        return simulate(
            seed,
            lambda world: SimCluster(world, brokers=brokers, settings=settings).run(main),
            faults=faults,
        )
    except (AssertionError, CometError) as error:
        raise SeedFailed(f"seed {seed}: {type(error).__name__}: {error}") from error


def run_seeds(
    main: Callable[[SimCluster], Awaitable[T]], seeds: Iterable[int], **options: Any
) -> list[T]:
    """Simulate a scenario from each of these seeds: the values; options as for `run_seed`.

    Raises:
        SeedFailed: the first seed that fails.
    """
    return [run_seed(main, seed, **options).value for seed in seeds]
