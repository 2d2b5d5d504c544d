"""An outbox in SQLite: what a commit decides, order per key, next tries, dead rows, two relays."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session
from tests.unit.client.waiting import until
from tests.unit.patterns.stage import HandClock, async_engine, plain_engine

from cometmq import Message, SendStatus
from cometmq.errors import ConfigError, LocalProtocolError
from cometmq.patterns.outbox import Outbox, OutboxRow, OutboxStatus, Relay
from cometmq.patterns.outbox.table import OUTBOX, RELAYS


class Broker:
    """A transport that stores messages, and refuses bodies on request."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.refused: dict[bytes, Exception] = {}
        self.status: SendStatus | None = None

    async def send(self, message: Message) -> Any:
        await asyncio.sleep(0)
        if message.body in self.refused:
            raise self.refused[message.body]
        self.messages.append(message)
        return self if self.status is not None else None

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


@asynccontextmanager
async def an_outbox(path: Path, clock: HandClock) -> AsyncIterator[Outbox]:
    engine = async_engine(path)
    outbox = Outbox(engine, clock=clock)
    await outbox.create()
    yield outbox
    await engine.dispose()


def session_of(outbox: Outbox) -> AsyncSession:
    assert isinstance(outbox.database.engine, AsyncEngine)
    return AsyncSession(outbox.database.engine)


async def add(outbox: Outbox, *messages: Message) -> None:
    async with session_of(outbox) as session:
        for message in messages:
            outbox.add(session, message)
        await session.commit()


def grouped(name: str, group: str | None = None) -> Message:
    return Message("t", name.encode(), message_group=group)


def test_only_a_commit_sends(tmp_path: Path) -> None:
    """Every field travels, with the id of the row; a rollback leaves nothing."""

    async def run() -> None:
        async with an_outbox(tmp_path, HandClock()) as outbox:
            broker = Broker()
            relay = Relay(outbox, broker)
            message = Message(
                "t",
                b"\x00body",
                tags="tag",
                keys=("k1", "k2"),
                properties={"colour": "red"},
                flag=3,
                message_group="g",
                delay_ms=5_000,
            )
            async with session_of(outbox) as session:
                outbox.add(session, message)
                await session.rollback()
            assert await relay.run_once() == 0
            await add(outbox, message)
            assert await outbox.status() == OutboxStatus(1, 0, 0, 0)
            assert await relay.run_once() == 1
            (sent,) = broker.messages
            assert len(sent.properties["OUTBOX_ID"]) == 32
            sent.properties = {"colour": "red"}
            assert sent == message
            assert await outbox.status() == OutboxStatus(0, 0, 0, 0)
            assert relay.sent_count == 1

    asyncio.run(run())


def test_a_failed_row_waits_and_its_key_waits_behind_it(tmp_path: Path) -> None:
    """Other keys and rows without one go on; the pauses double; the order per key stays."""

    async def run() -> None:
        clock = HandClock()
        async with an_outbox(tmp_path, clock) as outbox:
            broker = Broker()
            broker.refused[b"a1"] = ConnectionError("no broker")
            relay = Relay(outbox, broker, pause_ms=1_000, lease_ms=10**9)
            await add(outbox, *[grouped(name, name[0]) for name in ("a1", "a2", "b1", "a3")])
            await add(outbox, grouped("free"))
            await relay.run_once()
            assert sorted(broker.bodies) == [b"b1", b"free"]
            assert await relay.run_once() == 0
            clock.now += 1_000
            await relay.run_once()
            clock.now += 1_999
            assert await relay.run_once() == 0, "the second pause is two seconds"
            assert await outbox.status() == OutboxStatus(3, 1, 0, 2_999)
            assert await relay._wait_ms() == 1
            broker.refused.clear()
            clock.now += 1
            for _ in range(2):  # the row that failed goes alone
                await relay.run_once()
            assert broker.bodies[2:] == [b"a1", b"a2", b"a3"]

    asyncio.run(run())


def test_a_hopeless_row_is_dead_and_can_be_sent_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After its last try, or at once where no try can succeed; later rows of its key go on."""

    async def run() -> None:
        clock = HandClock()
        async with an_outbox(tmp_path, clock) as outbox:
            broker = Broker()
            broker.refused[b"a1"] = ConnectionError("no broker")
            broker.refused[b"big"] = LocalProtocolError("too large")
            died: list[tuple[bytes, str]] = []

            def on_dead(row: OutboxRow, error: str) -> None:
                died.append((row.body, error))
                raise RuntimeError("no pager")

            relay = Relay(outbox, broker, tries_max=2, on_dead=on_dead)
            await add(outbox, grouped("a1", "a"), grouped("a2", "a"), grouped("big"))
            await relay.run_once()
            clock.now += 10_000
            await relay.run_once()
            await relay.run_once()
            assert died == [
                (b"big", "LocalProtocolError: too large"),
                (b"a1", "ConnectionError: no broker"),
            ]
            assert broker.bodies == [b"a2"]
            dead = await outbox.dead_rows()
            assert [(row.topic, row.tries) for row in dead] == [("t", 2), ("t", 1)]
            status = await outbox.status()
            assert "cometmq_outbox_dead 2\n" in status.metrics()
            broker.refused.clear()
            assert await outbox.retry_dead([dead[0].id]) == 1
            await relay.run_once()
            assert broker.bodies == [b"a2", b"a1"]
            assert await outbox.delete_dead() == 1
            assert await outbox.status() == OutboxStatus(0, 0, 0, 0)

    asyncio.run(run())
    assert "is dead after 2 tries" in caplog.text


def test_an_answer_without_a_flush_is_no_success(tmp_path: Path) -> None:
    """The message may be lost by a power cut, so it is sent again."""

    async def run() -> None:
        clock = HandClock()
        async with an_outbox(tmp_path, clock) as outbox:
            broker = Broker()
            broker.status = SendStatus.FLUSH_DISK_TIMEOUT
            relay = Relay(outbox, broker)
            await add(outbox, grouped("a"))
            await relay.run_once()
            assert (await outbox.status()).retrying == 1
            broker.status = SendStatus.SEND_OK
            clock.now += 5_000
            await relay.run_once()
            assert len({message.properties["OUTBOX_ID"] for message in broker.messages}) == 1
            assert (await outbox.status()).waiting == 0

    asyncio.run(run())


def test_relays_share_the_rows(tmp_path: Path) -> None:
    """Each row has one relay; what a dead relay had goes to the others when its lease ends."""

    async def run() -> None:
        clock = HandClock()
        async with an_outbox(tmp_path, clock) as outbox:
            first, second = Broker(), Broker()
            relays = [
                Relay(outbox, first, name="first", lease_ms=3_000),
                Relay(outbox, second, name="second", lease_ms=3_000),
            ]
            for _ in range(3):  # they meet, the first gives up half, the second takes it
                for relay in relays:
                    await relay.run_once()
                clock.now += 1_000
            assert [len(relay._shards) for relay in relays] == [8, 8]
            names = [f"m{number}" for number in range(40)]
            await add(outbox, *[grouped(name, name) for name in names])
            for relay in relays:
                await relay.run_once()
            both = first.bodies + second.bodies
            assert sorted(both) == sorted(name.encode() for name in names)
            assert first.bodies
            assert second.bodies
            await add(outbox, *[grouped(name, name) for name in names])
            clock.now += 3_001  # the first one does not come again
            await relays[1].run_once()
            await relays[1].run_once()
            assert len(second.bodies) + len(first.bodies) == 80

    asyncio.run(run())


def test_a_relay_that_is_late_sends_nothing(tmp_path: Path) -> None:
    """Its lease ended during the pass, so another relay may have its shards."""

    async def run() -> None:
        clock = HandClock()
        async with an_outbox(tmp_path, clock) as outbox:
            broker = Broker()
            relay = Relay(outbox, broker, lease_ms=1_000)
            await add(outbox, grouped("a1", "a"), grouped("a2", "a"))

            async def send_slowly(message: Message) -> None:
                clock.now += 1_000
                await broker.send(message)

            relay._transport = type("Slow", (), {"send": staticmethod(send_slowly)})()
            await relay.run_once()
            assert broker.bodies == [b"a1"]
            await relay.run_once()
            assert broker.bodies == [b"a1", b"a2"]

    asyncio.run(run())


@pytest.mark.parametrize("is_plain", [False, True])
def test_a_commit_wakes_the_relay_of_its_process(tmp_path: Path, is_plain: bool) -> None:
    """Long before the next poll, also from another thread; the end gives up the shards."""

    async def run() -> None:
        with plain_engine(tmp_path) as plain:
            engine: Any = plain if is_plain else async_engine(tmp_path)
            outbox = Outbox(engine)
            await asyncio.to_thread(outbox.create) if is_plain else await outbox.create()
            broker = Broker()
            async with Relay(outbox, broker, name="r", poll_ms=10**7, lease_ms=10**8):
                await until(lambda: outbox.wakers)
                if is_plain:

                    def write() -> None:
                        with Session(plain) as session:
                            outbox.add(session, grouped("a"))
                            outbox.add(session, grouped("b"))
                            session.commit()
                            outbox.add(session, grouped("c"))
                            session.commit()

                    await asyncio.to_thread(write)
                else:
                    await add(outbox, grouped("a"), grouped("b"))
                    await add(outbox, grouped("c"))
                await until(lambda: len(broker.messages) == 3)
            assert not outbox.wakers
            count = await outbox.database.wait(
                lambda connection: len(connection.execute(RELAYS.select()).all())
            )
            assert count == 0
            if not is_plain:
                await engine.dispose()

    asyncio.run(run())


def test_a_crash_between_send_and_delete_sends_the_row_again(tmp_path: Path) -> None:
    """With the same id, by which consumers know it; never is a row deleted that was not sent."""

    async def run() -> None:
        clock = HandClock()
        async with an_outbox(tmp_path, clock) as outbox:
            broker = Broker()
            relay = Relay(outbox, broker)
            await add(outbox, grouped("a"))

            class Crash(BaseException):
                pass

            def crash(*arguments: Any) -> None:
                raise Crash

            relay._settle = crash  # type: ignore[assignment]
            with pytest.raises(Crash):
                await relay.run_once()
            clock.now += 60_000
            await Relay(outbox, broker).run_once()
            ids = {message.properties["OUTBOX_ID"] for message in broker.messages}
            assert (len(broker.messages), len(ids)) == (2, 1)

    asyncio.run(run())


def test_a_row_that_is_not_a_message_is_dead(tmp_path: Path) -> None:
    """Somebody has changed the table by hand."""

    async def run() -> None:
        async with an_outbox(tmp_path, HandClock()) as outbox:
            await add(outbox, grouped("a"))
            await outbox.database.wait(
                lambda connection: connection.execute(update(OUTBOX).values(topic="no topic"))
            )
            await Relay(outbox, Broker()).run_once()
            assert (await outbox.status()).dead == 1
            with pytest.raises(ConfigError, match="tries_max of a Relay is 0"):
                Relay(outbox, Broker(), tries_max=0)

    asyncio.run(run())
