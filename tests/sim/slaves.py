"""A master with slaves on virtual time, senders, and the ledger of what was acknowledged how."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from tests.sim.single import NAME_SERVER_PORT

from cometmq import Message
from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.broker import Broker
from cometmq.client.producer.producer import Producer
from cometmq.codec.stored_message import decode_messages
from cometmq.errors import CometError
from cometmq.model import SendStatus
from cometmq.namesrv import NameServer, NameServerConfig
from cometmq.store.base.results import GetResult
from cometmq.store.message_store import MessageStore
from cometmq.testing.simulation import Node, World

__all__ = ["SlaveStage", "acknowledged_is_kept"]

PORT: Final = 10911
TOPIC: Final = "T"
QUEUES: Final = 2
SENDERS: Final = 3
REST_S: Final = 120.0
LINK_FAULTS_S: Final = (0.1, 6.0)
"""Some are longer than haHousekeepingInterval, after which both ends give the connection up."""


@dataclass
class SlaveStage:
    """One set: member 0 is the master.

    Args:
        slave_count: how many slaves follow it.
        settings: of all brokers.
    """

    world: World
    slave_count: int
    settings: dict[str, Any]
    brokers: dict[int, Broker] = field(default_factory=dict)
    ledger: dict[bytes, str | None] = field(default_factory=dict)
    """The barrier that each acknowledged message has passed, by body."""
    sent_count: int = 0
    faults: list[str] = field(default_factory=list)

    def node(self, number: int) -> Node:
        """The machine of a member."""
        return self.world.node(f"member-{number}")

    def store(self, number: int) -> MessageStore:
        """The store of a member, as its last broker has opened it."""
        return self.brokers[number].services.store

    async def start(self) -> None:
        """Start the name server and all members; wait until the slaves follow."""
        node = self.world.node("names")
        config = NameServerConfig(listen_port=NAME_SERVER_PORT, kv_config_path="/ns/kv.json")
        await node.run(NameServer(config, node.environment(), node.disk).start)
        for number in range(self.slave_count + 1):
            await self.boot(number)
        await self.until(lambda: self.following() == self.slave_count)

    async def boot(self, number: int, *, is_master: bool = False) -> None:
        """Start a member on what its disk has; with `is_master` a slave takes the master's role."""
        node = self.node(number)
        if not node.is_alive:
            node.restart()
        is_slave = number > 0 and not is_master
        config = BrokerConfig(
            scrub_bytes_per_second=0,
            broker_name="broker-a",
            broker_id=number if is_slave else 0,
            broker_role="SLAVE" if is_slave else self.settings["role"],
            broker_ip1=node.address,
            listen_port=PORT,
            namesrv_addr=f"{self.world.node('names').address}:{NAME_SERVER_PORT}",
            store_path_root_dir="/store",
            slave_read_enable=True,
            mapped_file_size_commit_log=65_536,
            mapped_file_size_consume_queue=20 * 1000,
            max_hash_slot_num=100,
            max_index_num=400,
            timer_wheel_enable=False,
            flush_disk_type=self.settings["flush"],
            in_sync_replicas=1 if is_master else self.settings["in_sync"],
            ha_housekeeping_interval=3000,
            ha_send_heartbeat_interval=500,
        )
        broker = Broker(config, node.environment(), node.disk)
        await node.run(broker.start)
        self.brokers[number] = broker

    def following(self) -> int:
        """How many slaves are connected to the master."""
        replicas = self.brokers[0].replicas
        return len(replicas.links()) if replicas is not None else 0

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait on virtual time until something holds."""
        end = self.world.loop.time() + REST_S
        while not holds():
            assert self.world.loop.time() < end, self.faults
            await asyncio.sleep(0.05)

    # -- traffic --------------------------------------------------------------------------------

    async def produce(self, seconds: float) -> None:
        """Send from several clients, each message once; note how each was acknowledged."""
        await asyncio.gather(*(self._produce(number, seconds) for number in range(SENDERS)))

    async def _produce(self, number: int, seconds: float) -> None:
        node = self.world.node(f"client-{number}")
        end = self.world.loop.time() + seconds

        async def send_all() -> None:
            async with Producer(
                f"P{number}",
                name_server=f"{self.world.node('names').address}:{NAME_SERVER_PORT}",
                env=node.environment(),
                client_ip=node.address,
                retries=0,
                timeout_ms=4000,
            ) as producer:
                while self.world.loop.time() < end:
                    await self._send(producer)

        await node.run(send_all)

    async def _send(self, producer: Producer) -> None:
        self.sent_count += 1
        body = b"%06d" % self.sent_count + bytes(self.world.chance.randrange(4000))
        try:
            result = await producer.send(Message(TOPIC, body))
        except CometError:
            await asyncio.sleep(0.1)
            return
        if result.status is SendStatus.SEND_OK:
            self.ledger[body] = result.barrier
            self._check_now(body, result.barrier)
        await asyncio.sleep(0.01)

    def _check_now(self, body: bytes, barrier: str | None) -> None:
        """A message that has passed slaves is in the log of a living one, if all live."""
        if barrier is None or "replicas=2" not in barrier or self.faults:
            return
        assert any(body in self.bodies(number) for number in range(1, self.slave_count + 1)), (
            f"{body[:6]!r} was acknowledged with {barrier}, and no slave has it"
        )

    # -- faults ---------------------------------------------------------------------------------

    async def trouble(self, chance: random.Random, count: int, *, spares_master: bool) -> None:
        """Kill members, cut their power or their links, one after the other.

        With ASYNC_FLUSH nothing promises to outlive a power cut, so there is none.
        """
        kinds = ["kill", "link", "one way"]
        if self.settings["flush"] == "SYNC_FLUSH":
            kinds.append("power")
        for _ in range(count):
            await asyncio.sleep(chance.uniform(0.2, 2))
            kind = chance.choice(kinds)
            number = chance.randrange(1 if spares_master else 0, self.slave_count + 1)
            self.faults.append(f"{kind} {number} at {self.world.loop.time():.2f}")
            if kind in {"link", "one way"}:
                pair = self.node(0).address, self.node(number or 1).address
                if chance.random() < 0.5:
                    pair = pair[1], pair[0]
                self.world.network.part(*pair, one_way=kind == "one way")
                await asyncio.sleep(chance.uniform(*LINK_FAULTS_S))
                self.world.network.heal(*pair)
                continue
            self.node(number).crash(power_cut=kind == "power")
            await asyncio.sleep(chance.uniform(0.05, 3))
            await self.boot(number)

    # -- what is there --------------------------------------------------------------------------

    def log(self, number: int) -> bytes:
        """A member's log."""
        store = self.store(number)
        at, parts = store.min_physical_offset, []
        while at < store.max_physical_offset:
            part = store.log_bytes(at, store.max_physical_offset - at)
            parts.append(part)
            at += len(part)
        return b"".join(parts)

    def bodies(self, number: int) -> list[bytes]:
        """The bodies in a member's queues."""
        store = self.store(number)
        bodies: list[bytes] = []
        for queue_id in range(16):
            queue_offset = 0
            while queue_offset < store.max_queue_offset(TOPIC, queue_id):
                result = store.get(TOPIC, queue_id, queue_offset, 32, allow_cold=True)
                assert isinstance(result, GetResult)
                bodies += [message.body for message in decode_messages(b"".join(result.chunks))]
                queue_offset = result.next_queue_offset
        return bodies

    async def rest(self) -> None:
        """Wait until every slave has the master's log; all logs are the same, byte for byte."""
        end = self.store(0).max_physical_offset
        slaves = range(1, self.slave_count + 1)
        await self.until(lambda: all(self.store(n).confirmed_offset >= end for n in slaves))
        assert all(self.log(number) == self.log(0) for number in slaves), self.faults


def acknowledged_is_kept(stage: SlaveStage, number: int, level: str) -> None:
    """Each message that was acknowledged with `level` is in a member's queues, once."""
    bodies = stage.bodies(number)
    promised = {body for body, barrier in stage.ledger.items() if level in (barrier or "")}
    lost = promised - set(bodies)
    assert not lost, f"{len(lost)} of {len(promised)} acknowledged are lost after {stage.faults}"
    assert len(bodies) == len(set(bodies)), stage.faults
