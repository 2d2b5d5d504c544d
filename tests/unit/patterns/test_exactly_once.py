"""Key and effects in one transaction: committed together, rolled back together, fenced."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import StaticPool
from tests.unit.patterns.stage import async_engine, message_of, plain_engine

from cometmq import MessageQueue, PushConsumer, ReceivedMessage, RetryLater
from cometmq.errors import ConfigError, ConfigTypeError
from cometmq.patterns.idempotent import Fence, SqlClaims, exactly_once, is_first
from cometmq.patterns.idempotent.fence import StaleMember

ADD = text("insert into effects values (:name)")


@pytest.fixture
def engine() -> Iterator[Engine]:
    memory = create_engine(
        "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}
    )
    SqlClaims(memory).create()
    with memory.begin() as connection:
        connection.execute(text("create table effects (name text)"))
    yield memory
    memory.dispose()


def effects(engine: Engine) -> list[str]:
    with engine.begin() as connection:
        return list(connection.scalars(text("select name from effects order by name")))


def test_key_and_effects_are_committed_together(engine: Engine) -> None:
    """A failure rolls both back, a duplicate changes nothing."""
    answers: list[Any] = [RuntimeError("on purpose"), RetryLater(3), None]

    @exactly_once(sessionmaker(engine), group="g")
    def handle(message: ReceivedMessage, session: Session) -> Any:
        session.execute(ADD, {"name": message.message_id})
        answer = answers.pop(0)
        if isinstance(answer, RuntimeError):
            raise answer
        return answer

    with pytest.raises(RuntimeError, match="on purpose"):
        handle(message_of("a"))
    assert isinstance(handle(message_of("a")), RetryLater)
    assert effects(engine) == []
    assert handle(message_of("a")) is None
    assert handle(message_of("a", tries=3)) is None
    assert effects(engine) == ["a"]
    PushConsumer("g", {"t": "*"}, handle)


def test_lists_share_a_transaction(engine: Engine) -> None:
    """Duplicates are left out; where one message fails, all come again."""
    bad = {"b"}

    @exactly_once(sessionmaker(engine), group="g")
    def handle(messages: list[ReceivedMessage], session: Session) -> Any:
        for message in messages:
            session.execute(ADD, {"name": message.message_id})
        return [False if message.message_id in bad else None for message in messages]

    def answers(*names: str) -> list[Any]:
        values = handle([message_of(name) for name in names])
        assert isinstance(values, list)
        return values

    first = answers("a", "b")
    assert (type(first[0]), first[1]) == (RetryLater, False)
    assert effects(engine) == []
    bad.clear()
    assert answers("a", "b", "a") == [None, None, None]
    assert answers("c", "a") == [None, None]
    assert effects(engine) == ["a", "b", "c"]
    assert PushConsumer("g", {"t": "*"}, handle)._list_count(handle) == 32


def test_inside_the_programs_own_transaction(engine: Engine) -> None:
    """`is_first` inserts the key and leaves the commit to the program."""
    with Session(engine) as session:
        assert is_first(session, message_of("a"), group="g") is True
        session.rollback()
    with Session(engine) as session:
        assert is_first(session, message_of("a"), group="g") is True
        session.execute(ADD, {"name": "a"})
        session.commit()
    with Session(engine) as session:
        assert is_first(session, message_of("a"), group="g") is False
    assert effects(engine) == ["a"]


def test_async_sessions(tmp_path: Path) -> None:
    """The same for ``async def`` handlers."""

    async def run() -> None:
        engine = async_engine(tmp_path)
        await SqlClaims(engine).create()
        sessions = async_sessionmaker(engine)
        async with engine.begin() as connection:
            await connection.execute(text("create table effects (name text)"))
        failures = [True, False]

        @exactly_once(sessions, group="g")
        async def handle(message: ReceivedMessage, session: AsyncSession) -> Any:
            await session.execute(ADD, {"name": message.message_id})
            return not failures.pop(0)

        assert await handle(message_of("a")) is False
        assert await handle(message_of("a")) is True
        assert await handle(message_of("a")) is None
        async with sessions() as session:
            assert await is_first(session, message_of("a"), group="g") is False
            assert await session.scalar(text("select count(*) from effects")) == 1
        await engine.dispose()

    asyncio.run(run())


def fenced(engine: Engine, fence: Fence) -> Any:
    @exactly_once(sessionmaker(engine), group="g", fence=fence)
    def handle(message: ReceivedMessage, session: Session) -> None:
        session.execute(ADD, {"name": message.message_id})

    return handle


def test_a_stale_member_commits_nothing(engine: Engine) -> None:
    """It did not notice that its queue has another owner, whose epoch is higher."""
    old, new = Fence(engine, "g"), Fence(engine, "g")
    old.create()
    queue = MessageQueue("t", "broker-a", 3)
    with pytest.raises(StaleMember, match="the epoch of t@broker-a:3 is raised only now"):
        fenced(engine, old)(message_of("a", queue=queue))  # before its listener was called
    fenced(engine, old)(message_of("a", queue=queue))
    old.rebalanced([queue], [])
    fenced(engine, old)(message_of("b", queue=queue))
    new.rebalanced([queue], [])
    with pytest.raises(StaleMember, match="another member has t@broker-a:3"):
        fenced(engine, old)(message_of("c", queue=queue))
    fenced(engine, new)(message_of("c", queue=queue))
    new.rebalanced([], [queue])
    with pytest.raises(StaleMember):
        fenced(engine, new)(message_of("d", queue=queue))
    old.rebalanced([queue], [])
    fenced(engine, old)(message_of("d", queue=queue))
    assert effects(engine) == ["a", "b", "c", "d"]


def test_a_fence_lets_the_member_in_that_has_the_queue(engine: Engine) -> None:
    """A stale member raised the epoch; the next handler of the owner proves that it has the queue.

    The simulator's kind ``ledger`` found owners that were shut out until the next rebalance.
    """
    owner, stale = Fence(engine, "g"), Fence(engine, "g")
    owner.create()
    queue = MessageQueue("t", "broker-a", 3)
    owner.rebalanced([queue], [])
    stale.take(["t@broker-a:3"])
    for reason in ("another member has", "is raised only now"):
        with pytest.raises(StaleMember, match=reason):
            fenced(engine, owner)(message_of("a", queue=queue))
    fenced(engine, owner)(message_of("a", queue=queue))
    assert effects(engine) == ["a"]


def test_a_handler_counts_with_the_epoch_of_its_begin(engine: Engine) -> None:
    """An epoch that is raised while it waits belongs to a later handler."""
    fence, other = Fence(engine, "g"), Fence(engine, "g")
    fence.create()
    queue = MessageQueue("t", "broker-a", 3)
    fence.rebalanced([queue], [])
    message = message_of("a", queue=queue)
    epochs = fence.enter([message])
    other.rebalanced([queue], [])
    fence.take(["t@broker-a:3"])
    with engine.begin() as connection:
        with pytest.raises(StaleMember):
            fence.check(connection, epochs)
        fence.check(connection, fence.enter([message]))


def test_a_listener_passes_over_a_database_that_is_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first handler raises the epoch, over both kinds of engine and from a loop."""
    queue = MessageQueue("t", "broker-a", 3)

    async def run(engine: Any) -> None:
        fence = Fence(engine, "g")
        await fence.rebalanced([queue], [])  # there is no table
        await fence.create() if fence.is_async else fence.create()
        await fence.take_async(fence.missing([message_of("a", queue=queue)], {}))
        assert fence.enter([message_of("a", queue=queue)]) == {"t@broker-a:3": 1}
        await fence.rebalanced([queue], [])
        assert fence.enter([message_of("a", queue=queue)]) == {"t@broker-a:3": 2}
        if fence.is_async:
            await engine.dispose()

    with plain_engine(tmp_path) as engine:
        Fence(engine, "g").rebalanced([queue], [])
        asyncio.run(run(engine))
    asyncio.run(run(async_engine(tmp_path)))
    assert caplog.text.count("are not raised, their first handlers do") == 3


def test_sessions_and_handler_are_of_one_kind(engine: Engine, tmp_path: Path) -> None:
    """Refused before the first message."""

    async def handle_async(message: ReceivedMessage, session: AsyncSession) -> None:
        return None

    def handle(message: ReceivedMessage, session: Session) -> None:
        return None

    with pytest.raises(ConfigError, match="give an async_sessionmaker"):
        exactly_once(sessionmaker(engine), group="g")(handle_async)
    with pytest.raises(ConfigError, match="is a plain function and the sessions come from"):
        exactly_once(async_sessionmaker(async_engine(tmp_path)), group="g")(handle)
    with pytest.raises(ConfigTypeError, match="the fence of a plain handler needs a plain engine"):
        fence = Fence(async_engine(tmp_path), "g")
        exactly_once(sessionmaker(engine), group="g", fence=fence)(handle)
