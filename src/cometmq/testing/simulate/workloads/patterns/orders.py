"""A shop: orders with an outbox, charges that are asked about, handlers that run once.

Two machines each add orders, run a relay, ask for undecided charges and handle the messages.  The
database is a machine of its own; every call may fail before it or after its commit.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter, defaultdict
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, ClassVar, Final

from cometmq.client.message.message import ReceivedMessage
from cometmq.model import Message
from cometmq.testing.markers import override
from cometmq.testing.simulate.broker_part import Seen
from cometmq.testing.simulate.workloads.patterns.answering import AnsweringWorkload, MailAway

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from cometmq.patterns.outbox import Outbox
    from cometmq.testing.simulation import Node

__all__ = ["OrdersWorkload"]

PLACED: Final = "Placed"
CHARGED: Final = "Charged"
KEYS: Final = ("a", "b", "c")
EXPIRE_MS: Final = 4_000
LEASE_MS: Final = 2_000
CALM_STEPS: Final = 6
OPERATION_S_MAX: Final = 2.0
UNDECIDED_MS: Final = 4_000
"""A charge that is older than this and not in the database will not come."""


class OrdersWorkload(AnsweringWorkload):
    """An order's message arrives, its effects exist once, and a charge means a message."""

    name: ClassVar[str] = "orders"

    def start(self) -> None:
        from cometmq.patterns.idempotent import SqlClaims
        from cometmq.patterns.idempotent.sql import CLAIMS
        from cometmq.patterns.outbox.table import OUTBOX, RELAYS, SHARD_COUNT, SHARDS
        from cometmq.testing.sim_database import SimDatabase

        cluster = self.cluster
        self.database = SimDatabase(cluster.world, self.name, **cluster.service_options("database"))
        for table in (OUTBOX, SHARDS, RELAYS, CLAIMS):
            table.create(self.database.quiet)
        for number in range(SHARD_COUNT):
            self.database.write(
                "insert into cometmq_outbox_shards values (:number, '', 0)", number=number
            )
        for name in ("orders", "charges", "shipped"):
            self.database.write(f"create table {name} (name text)")
        self._arrived: Counter[str] = Counter()
        self._in_queues: defaultdict[tuple[Any, str | None], list[str]] = defaultdict(list)
        """By queue and message group: the orders, as their messages came first."""
        self._mailing: dict[str, float] = {}
        self._mailed: set[str] = set()
        self._claims = SqlClaims(self.database.engine)
        for topic in (PLACED, CHARGED):
            cluster.watch(topic, self._arrives, is_sent=False)
        self._shipping = self.watch_answers("ship", is_sent=False)
        self._mails = self.watch_answers("mail", is_sent=False)
        for number, node in enumerate(cluster.clients):
            roles = {
                "add": self._add,
                "charge": self._charge,
                "relay": self._relay,
                "ship": self._ship,
                "mail": self._mail,
            }
            for name, work in roles.items():
                cluster.role(f"orders {name} {number}", node, functools.partial(work, node, number))

    def _outbox(self) -> Outbox:
        from cometmq.patterns.outbox import Outbox

        return Outbox(self.database.engine, clock=self.now_ms)

    @property
    @override
    def acknowledged_count(self) -> int:
        return len(self.database.read("select name from orders"))

    def _is_over(self) -> bool:
        return self.cluster.is_peace and self.acknowledged_count >= self.steps

    async def _try(self, step: Awaitable[Any]) -> bool:
        """Take a step that the database may fail."""
        from sqlalchemy.exc import OperationalError

        try:
            await step
        except OperationalError:
            return False
        return True

    # -- orders with an outbox --------------------------------------------------------------

    async def _add(self, node: Node, number: int) -> None:
        outbox = self._outbox()
        while not self._is_over():
            self.tries += 1
            await self._try(self._store_order(outbox, f"{self.tries}"))
            await asyncio.sleep(self.chance.uniform(0, 0.9))

    async def _store_order(self, outbox: Outbox, name: str) -> None:
        """Store an order and its message in one transaction."""
        from sqlalchemy import text
        from sqlalchemy.ext.asyncio import AsyncSession

        key = self.chance.choice(KEYS)
        message = Message(PLACED, f"{name}/{key}".encode(), message_group=key)
        async with AsyncSession(self.database.engine) as session:
            await session.execute(text("insert into orders values (:name)"), {"name": name})
            outbox.add(session, message)
            await session.commit()

    async def _relay(self, node: Node, number: int) -> None:
        from cometmq.patterns.outbox import Relay

        outbox = self._outbox()
        async with self.producer(node, 50 + number) as producer:
            relay = Relay(
                outbox,
                producer,
                poll_ms=1_000,
                lease_ms=LEASE_MS,
                pause_ms=200,
                pause_ms_max=1_000,
                tries_max=1_000,
            )
            running = asyncio.ensure_future(relay.run())
            await self.cluster.ended.wait()
            relay._is_stopping = True
            relay._wake.set()
            await running

    def _arrives(self, seen: Seen) -> None:
        name = seen.body.decode().partition("/")[0]
        self._arrived[name] += 1
        if self._arrived[name] == 1:
            self._in_queues[seen.position[:3], seen.properties.get("__SHARDINGKEY")].append(name)

    def _check_order(self) -> None:
        """Check that messages of one group came into a queue in the order of their commits."""
        rows = self.database.read("select name from orders order by rowid")
        order = {name: number for number, (name,) in enumerate(rows)}
        for (queue, key), names in self._in_queues.items():
            numbers = [order[name] for name in names if name in order]
            if numbers != sorted(numbers):
                self.cluster.fail(f"orders: {queue} has the messages of {key} as {names}")

    # -- the calm ---------------------------------------------------------------------------------

    @override
    def begin_calm(self) -> None:
        node = self.cluster.clients[0]
        self.cluster.role("orders calm", node, self._add_calmly)

    async def _add_calmly(self) -> None:
        outbox = self._outbox()
        for _ in range(CALM_STEPS):
            await self._store_order(outbox, f"calm {self.tries}")
            self.tries += 1
            await asyncio.sleep(self.chance.uniform(0, 0.5))

    @override
    def check_calm(self) -> None:
        super().check_calm()
        for name, count in self._arrived.items():
            if name.startswith("calm") and count != 1:
                self.cluster.fail(f"orders: {name} was sent {count} times without any fault")

    # -- charges that are asked about -------------------------------------------------------

    async def _charge(self, node: Node, number: int) -> None:
        from sqlalchemy.exc import OperationalError

        from cometmq.patterns.reliable import MessageDropped, ReliableMessages

        outbox = self._outbox()
        now_s = self.cluster.world.loop.time

        async def check(message: Message) -> bool | None:
            name = message.body.decode()
            async with self.database.engine.begin() as connection:
                if (name,) in list(await connection.exec_driver_sql("select name from charges")):
                    return True
            age_ms = now_s() * 1000 - float(message.properties["at"])
            return False if age_ms > UNDECIDED_MS else None

        reliable = ReliableMessages(
            outbox, check, first_check_ms=500, pauses_ms=(500, 1_000), poll_ms=1_000
        )
        asking = asyncio.ensure_future(reliable.run())
        while not self._is_over():
            self.tries += 1
            name = f"charge {self.tries}"
            begin_s = now_s()
            message = Message(CHARGED, name.encode(), properties={"at": f"{begin_s * 1000:.0f}"})
            try:
                row = await reliable.prepare(message)
                await asyncio.sleep(self.chance.uniform(0, 0.4))
                if self.chance.random() < 0.2:
                    await reliable.drop(row)
                elif now_s() - begin_s < OPERATION_S_MAX:
                    # It is the bank's call, which does not fail for us.
                    self.database.write("insert into charges values (:name)", name=name)
                    await asyncio.sleep(self.chance.choice([0, 0, 3.0]))
                    await reliable.confirm(row)
            except OperationalError:
                pass
            except MessageDropped as error:
                self.cluster.fail(f"orders: {name} was charged and dropped: {error}")
            await asyncio.sleep(self.chance.uniform(0.2, 1.5))
        await self.cluster.ended.wait()
        reliable._is_stopping = True
        reliable._wake.set()
        await asking

    # -- handlers that run once -------------------------------------------------------------

    async def _ship(self, node: Node, number: int) -> None:
        """Effects and key in one transaction."""
        from sqlalchemy import text
        from sqlalchemy.orm import sessionmaker

        from cometmq.patterns.idempotent import exactly_once

        def ship(message: ReceivedMessage, session: Session) -> None:
            name = message.body.decode().partition("/")[0]
            session.execute(text("insert into shipped values (:name)"), {"name": name})

        once = exactly_once(sessionmaker(self.database.plain), group="ship", clock=self.now_ms)(
            ship
        )

        async def answer(message: ReceivedMessage) -> Any:
            value = once(message)
            await asyncio.sleep(self.chance.uniform(0, 0.2))
            return value

        async def handle(message: ReceivedMessage) -> None:
            await self.take_answer(self._shipping, message, answer(message))

        await self.consume(self.consumer(node, number, PLACED, handle, self._shipping))

    async def _mail(self, node: Node, number: int) -> None:
        """Claims around an effect that is elsewhere."""
        from cometmq.patterns.idempotent import idempotent

        now_s = self.cluster.world.loop.time
        alive = node.lifetime

        async def mail(message: ReceivedMessage) -> object:
            name = message.body.decode()
            if name in self._mailed:
                self.cluster.fail(f"orders: mail {name} is handled again after it was done")
            if self._mailing.get(name, 0.0) > now_s():
                self.cluster.fail(f"orders: mail {name} is handled twice at once")
            # The claim is a little older than its handler.
            self._mailing[name] = now_s() + EXPIRE_MS / 1000 - 0.5
            await asyncio.sleep(self.chance.uniform(0, 0.3))
            if not self.cluster.is_peace and self.chance.random() < 0.2:
                self._mailing.pop(name, None)
                raise MailAway
            return None

        guarded = idempotent(
            self._claims, group="mail", owner=node.name, expire_ms=EXPIRE_MS, clock=self.now_ms
        )(mail)

        async def handle(message: ReceivedMessage) -> None:
            handler = message.properties["OUTBOX_ID"], node.name, node.lifetime.number
            self.handlers[handler] += 1
            try:
                await self.take_answer(self._mails, message, guarded(message))
            except MailAway:
                if self.handlers[handler] == 1:
                    self._check_released(*handler[:2])
                raise
            finally:
                self.handlers[handler] -= 1
            if alive.alive:
                self._mailed.add(message.body.decode())

        await self.consume(self.consumer(node, number, PLACED, handle, self._mails))

    def _check_released(self, key: str, owner: str) -> None:
        """Check that a handler that has failed leaves no claim."""
        claims = self.database.read(
            "select claim_key, owner from cometmq_claims where state = 'processing'"
        )
        if (key, owner) in map(tuple, claims):
            self.cluster.fail(f"orders: a failed handler of {owner} leaves its claim of {key}")

    # -- promises ------------------------------------------------------------------------------

    def unsettled(self) -> str | None:
        if not self._is_over():
            return "not every order is placed"
        waiting = self.database.read("select state, count(*) from cometmq_outbox group by state")
        waiting = [row for row in waiting if row[0] != "dropped"]
        if waiting:
            return f"the outbox has {waiting}"
        orders = {name for (name,) in self.database.read("select name from orders")}
        missing = orders - self._arrived.keys()
        if missing:
            return f"the message of order {min(missing)} is missing"
        late = orders - {name for (name,) in self.database.read("select name from shipped")}
        if late:
            return f"order {min(late)} is not shipped"
        mailed = {name.partition("/")[0] for name in self._mailed}
        return f"order {min(orders - mailed)} has no mail" if orders - mailed else self.awaited()

    @override
    def check(self) -> None:
        self._check_order()
        orders = {name for (name,) in self.database.read("select name from orders")}
        charges = {name for (name,) in self.database.read("select name from charges")}
        arrived = set(self._arrived)
        if arrived != orders | charges:
            different = sorted(arrived ^ (orders | charges))
            self.cluster.fail(f"orders: messages and rows differ in {different[:3]}")
        shipped = Counter(name for (name,) in self.database.read("select name from shipped"))
        twice = [name for name, count in shipped.items() if count > 1]
        if twice or set(shipped) != orders:
            self.cluster.fail(f"orders: shipped twice: {twice[:3]}, of {len(orders)} orders")
