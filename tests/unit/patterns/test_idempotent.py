"""A handler with claims: done, busy, failed, expired and stepped keys, in SQLite."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, select
from sqlalchemy.pool import StaticPool
from tests.unit.patterns.stage import HandClock, async_engine, message_of, plain_engine

from cometmq import DeadLetter, PushConsumer, ReceivedMessage, RetryLater, StopConsuming
from cometmq.errors import ConfigError
from cometmq.patterns.idempotent import (
    SqlClaims,
    async_step,
    by_keys,
    by_message_id,
    idempotent,
    step,
)
from cometmq.patterns.idempotent.sql import CLAIMS


class Crash(BaseException):
    """The process ends here: no line after it runs."""


@pytest.fixture
def engine() -> Iterator[Engine]:
    memory = create_engine(
        "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}
    )
    SqlClaims(memory).create()
    yield memory
    memory.dispose()


def states(engine: Engine) -> dict[str, str]:
    with engine.begin() as connection:
        rows = connection.execute(select(CLAIMS.c.claim_key, CLAIMS.c.state))
        return {row.claim_key: row.state for row in rows}


def test_a_done_message_is_acknowledged_without_the_handler(engine: Engine) -> None:
    """Each group has its own claims."""
    effects: list[str] = []

    def handle(message: ReceivedMessage) -> None:
        effects.append(message.message_id)

    once = idempotent(SqlClaims(engine), group="g")(handle)
    assert once(message_of("a")) is None
    assert once(message_of("a", tries=1)) is None
    assert idempotent(SqlClaims(engine), group="other")(handle)(message_of("a")) is None
    assert effects == ["a", "a"]
    assert states(engine) == {"a": "done"}


@pytest.mark.parametrize("answer", [False, RetryLater(3), DeadLetter("no"), StopConsuming("wait")])
def test_a_failed_handler_frees_its_key(engine: Engine, answer: Any) -> None:
    """Returned or raised: the next try runs at once."""
    answers = [answer, RuntimeError("on purpose"), None]

    def handle(message: ReceivedMessage) -> Any:
        value = answers.pop(0)
        if isinstance(value, RuntimeError):
            raise value
        return value

    once = idempotent(SqlClaims(engine), group="g")(handle)
    assert once(message_of("a")) is answer
    assert states(engine) == {}
    with pytest.raises(RuntimeError, match="on purpose"):
        once(message_of("a"))
    assert states(engine) == {}
    assert once(message_of("a")) is None
    assert states(engine) == {"a": "done"}


def test_a_running_message_comes_again_when_its_claim_ends(engine: Engine) -> None:
    """A claim that nobody ended is taken over when it expires, and its owner's token is stale."""
    clock = HandClock()
    crashes = [Crash(), None]

    def handle(message: ReceivedMessage) -> Any:
        error = crashes.pop(0)
        if error is not None:
            raise error
        return None

    class Dying(SqlClaims):
        def release(self, group: str, keys: Sequence[str], token: str) -> Any:
            raise Crash

    with pytest.raises(Crash):
        idempotent(Dying(engine), group="g", owner="dead", expire_ms=5_000, clock=clock)(handle)(
            message_of("a")
        )
    once = idempotent(SqlClaims(engine), group="g", expire_ms=5_000, clock=clock)(handle)
    clock.now += 2_000
    answer = once(message_of("a"))
    assert isinstance(answer, RetryLater)
    assert (answer.delay_ms, str(answer)) == (3_000, "dead handles it now")
    assert len(crashes) == 1, "the handler did not run"
    clock.now += 3_000
    assert once(message_of("a")) is None
    assert crashes == []
    assert states(engine) == {"a": "done"}


def test_a_claim_ends_with_its_owner(engine: Engine) -> None:
    """The group's members are asked only where a message is busy."""
    asked: list[int] = []
    members = ["me", "other"]

    def alive() -> list[str]:
        asked.append(1)
        return members

    def handle(message: ReceivedMessage) -> None:
        return None

    store = SqlClaims(engine)
    store.claim("g", ["a", "b"], "t" * 32, "other", 0, 2**45, None)
    once = idempotent(store, group="g", owner=lambda: "me", members=alive)(handle)
    assert once(message_of("free")) is None
    assert not asked
    assert isinstance(once(message_of("a")), RetryLater)
    members.remove("other")
    assert once(message_of("a")) is None
    assert len(asked) == 2
    with pytest.raises(ConfigError, match="members needs owner"):
        idempotent(store, group="g", members=alive)


def test_lists_are_claimed_together(engine: Engine) -> None:
    """Done and busy messages are left out, copies share an answer, failed ones free their keys."""
    calls: list[list[str]] = []

    def handle(messages: list[ReceivedMessage]) -> list[Any]:
        calls.append([message.message_id for message in messages])
        return [False if message.message_id == "bad" else None for message in messages]

    store = SqlClaims(engine)
    store.claim("g", ["busy"], "t" * 32, "other", 0, 2**45, None)
    store.claim("g", ["done"], "u" * 32, "other", 0, 2**45, None)
    store.finish("g", ["done"], 0, 2**45)
    once = idempotent(store, group="g")(handle)
    names = ["new", "done", "bad", "busy", "new"]
    answers = once([message_of(name) for name in names])
    assert calls == [["new", "bad"]]
    assert [isinstance(answer, RetryLater) for answer in answers] == [0, 0, 0, 1, 0]
    assert answers[2] is False
    assert states(engine) == {"busy": "processing", "done": "done", "new": "done"}
    assert PushConsumer("g", {"t": "*"}, once)._list_count(once) == 32, "it is still a list handler"


def test_a_repetition_skips_the_steps_that_are_done(engine: Engine) -> None:
    """A failed handler keeps its steps, and the next try gets their values."""
    charged: list[str] = []
    errors = [RuntimeError("no mail"), None]

    def charge() -> dict[str, int]:
        charged.append("charge")
        return {"amount": 5}

    def handle(message: ReceivedMessage) -> None:
        amount = step("charge", charge)
        assert amount == {"amount": 5}
        error = errors.pop(0)
        if error is not None:
            raise error

    once = idempotent(SqlClaims(engine), group="g")(handle)
    with pytest.raises(RuntimeError, match="no mail"):
        once(message_of("a"))
    assert once(message_of("a")) is None
    assert charged == ["charge"]
    assert states(engine) == {"a": "done"}
    with pytest.raises(ConfigError, match="inside a handler"):
        step("charge", charge)


def test_steps_of_a_list_name_their_message(engine: Engine) -> None:
    """Each message has its own steps."""
    sent: list[str] = []

    def handle(messages: list[ReceivedMessage]) -> None:
        with pytest.raises(ConfigError, match="needs message="):
            step("mail", lambda: None)
        for message in messages:
            name = message.message_id
            step("mail", lambda name=name: sent.append(name), message=message)  # type: ignore[misc]

    idempotent(SqlClaims(engine), group="g")(handle)([message_of("a"), message_of("b")])
    assert sent == ["a", "b"]


def test_business_keys(engine: Engine) -> None:
    """The same order sent twice is handled once; a message without keys is a dead letter."""
    effects: list[str] = []

    def handle(messages: list[ReceivedMessage]) -> None:
        effects.extend(message.message_id for message in messages)

    once = idempotent(SqlClaims(engine), group="g", key=by_keys)(handle)
    long = "k" * 400
    first = once([message_of("a", keys="order-1"), message_of("b"), message_of("c", keys=long)])
    assert isinstance(first[1], DeadLetter)
    once([message_of("d", keys="order-1"), message_of("e", keys=long)])
    assert effects == ["a", "c"]
    assert by_message_id(message_of("a")) == "a"


def test_one_try_before_the_limit_is_announced(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """By a line in the log and by the program's own function, which may fail."""
    seen: list[tuple[str, str]] = []

    def last_try(message: ReceivedMessage, reason: str) -> None:
        seen.append((message.message_id, reason))
        raise RuntimeError("no pager")

    def handle(message: ReceivedMessage) -> None:
        raise ValueError("no such account")

    once = idempotent(SqlClaims(engine), group="g", tries_max=3, on_last_try=last_try)(handle)
    for tries in range(3):
        with pytest.raises(ValueError, match="no such account"):
            once(message_of("a", tries=tries))
    assert seen == [("a", "ValueError: no such account")]
    lines = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(lines) == 1
    assert "has failed 2 times; one try is left" in lines[0]


def test_old_keys_are_deleted(engine: Engine) -> None:
    """Ten minutes after the last time, and only those whose time is over."""
    clock = HandClock()
    done = 0

    def handle(message: ReceivedMessage) -> None:
        nonlocal done
        done += 1

    once = idempotent(SqlClaims(engine), group="g", keep_ms=300_000, clock=clock)(handle)
    once(message_of("old"))
    clock.now += 500_000
    once(message_of("new"))
    assert set(states(engine)) == {"old", "new"}
    clock.now += 100_000
    once(message_of("last"))
    assert set(states(engine)) == {"new", "last"}
    assert done == 3


@pytest.mark.parametrize("is_async_store", [False, True])
def test_async_handlers(tmp_path: Path, is_async_store: bool) -> None:
    """With an asyncio engine, or a plain one in threads; calls race for one key."""

    async def run(store: SqlClaims) -> None:
        created = store.create()
        if created is not None:
            await created
        effects: list[str] = []
        inside, ending = asyncio.Event(), asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            await async_step("one", lambda: asyncio.sleep(0))
            await async_step("two", lambda: effects.append(message.message_id))
            inside.set()
            await ending.wait()

        once = idempotent(store, group="g", owner="me")(handle)
        first = asyncio.create_task(once(message_of("a")))
        await inside.wait()
        assert isinstance(await once(message_of("a")), RetryLater)
        ending.set()
        assert await first is None
        assert await once(message_of("a")) is None
        assert effects == ["a"]

    async def with_async_engine() -> None:
        engine = async_engine(tmp_path)
        try:
            await run(SqlClaims(engine))
        finally:
            await engine.dispose()

    if is_async_store:
        asyncio.run(with_async_engine())
    else:
        with plain_engine(tmp_path) as plain:
            asyncio.run(run(SqlClaims(plain)))


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    """A plain handler cannot wait for an asyncio engine."""

    def handle(message: ReceivedMessage) -> None:
        return None

    with pytest.raises(ConfigError, match="the claims are for asyncio"):
        idempotent(SqlClaims(async_engine(tmp_path)), group="g")(handle)
    with pytest.raises(ConfigError, match="create_async_engine"):
        SqlClaims("sqlite://")  # type: ignore[arg-type]


def test_the_status_counts_claims(engine: Engine) -> None:
    """Of a group or of all, with those whose owner has not ended them in time."""
    clock = HandClock()
    store = SqlClaims(engine)
    idempotent(store, group="g", clock=clock)(lambda message: None)(message_of("a"))
    store.claim("g", ["b", "c"], "t", "owner", clock.now, clock.now + 1_000, None)
    store.claim("other", ["b"], "t", "owner", clock.now, clock.now + 10_000, None)
    status = store.status("g", clock=clock)
    assert (status.processing, status.expired, status.done, status.oldest_expired_ms) == (
        2,
        0,
        1,
        0,
    )
    clock.now += 4_000
    status = store.status(clock=clock)
    assert (status.processing, status.expired, status.oldest_expired_ms) == (3, 2, 3_000)
    assert "cometmq_claims_oldest_expired_seconds 3.0\n" in status.metrics()
    assert store.status("none", clock=clock).done == 0
