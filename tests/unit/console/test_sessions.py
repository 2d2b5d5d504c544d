"""Sessions end, and attempts to sign in are counted."""

import asyncio
from dataclasses import dataclass

from cometmq.client import Admin
from cometmq.console.sessions import (
    ATTEMPTS_MAX,
    IDLE_S_MAX,
    KEYS_MAX,
    LIFE_S_MAX,
    SESSIONS_MAX,
    WINDOW_S,
    Sessions,
    SignInLimit,
)
from cometmq.console.settings import ConsoleSettings


@dataclass
class HandClock:
    """A clock that a test moves."""

    at_s: float = 0.0

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return round(self.at_s * 1000)

    def monotonic(self) -> float:
        """Seconds."""
        return self.at_s


KEYS = ConsoleSettings("127.0.0.1:1").client_options("alice", "secret")


async def opened(sessions: Sessions, user: str) -> str:
    """A session with a client that never connects."""
    return await sessions.open(user, Admin(**KEYS), KEYS, is_super=False)


def test_a_session_ends_when_it_is_idle_or_old() -> None:
    """Half an hour without a request, or twelve hours after its begin."""

    async def story() -> None:
        clock = HandClock()
        sessions = Sessions(clock)
        secret = await opened(sessions, "alice")
        while clock.at_s + IDLE_S_MAX < LIFE_S_MAX:
            clock.at_s += IDLE_S_MAX
            session = await sessions.get(secret)
            assert session is not None
            assert session.user == "alice"
        clock.at_s = LIFE_S_MAX + 1
        assert await sessions.get(secret) is None
        idle = await opened(sessions, "bob")
        clock.at_s += IDLE_S_MAX + 1
        assert await sessions.get(idle) is None
        assert len(sessions) == 0

    asyncio.run(story())


def test_sessions_are_bounded() -> None:
    """The one that was idle for longest ends; old ones go when another begins."""

    async def story() -> None:
        clock = HandClock()
        sessions = Sessions(clock)
        first = await opened(sessions, "first")
        clock.at_s += 1
        second = await opened(sessions, "second")
        for _ in range(SESSIONS_MAX - 2):
            await opened(sessions, "others")
        clock.at_s += 1
        assert await sessions.get(first) is not None
        await opened(sessions, "one more")
        assert len(sessions) == SESSIONS_MAX
        assert await sessions.get(first) is not None
        assert await sessions.get(second) is None
        clock.at_s += IDLE_S_MAX + 1
        await opened(sessions, "later")
        assert len(sessions) == 1
        await sessions.close_all()

    asyncio.run(story())


def test_attempts_to_sign_in_are_limited_by_each_key() -> None:
    """Five a minute; the sixth is told how long it waits, and a right one forgets the others."""
    clock = HandClock()
    limit = SignInLimit(clock)
    for _ in range(ATTEMPTS_MAX):
        assert limit.take(["user a", "address x"]) == 0
        clock.at_s += 1
    assert limit.take(["user a", "address y"]) == WINDOW_S - ATTEMPTS_MAX
    assert limit.take(["user b", "address x"]) == WINDOW_S - ATTEMPTS_MAX
    assert limit.take(["user b", "address y"]) == 0
    clock.at_s += WINDOW_S - ATTEMPTS_MAX
    assert limit.take(["user a", "address x"]) == 0
    limit.succeeded(["user a", "address x"])
    for _ in range(ATTEMPTS_MAX):
        assert limit.take(["user a"]) == 0
    assert limit.take(["user a"]) > 0


def test_counted_keys_are_bounded() -> None:
    """Names that somebody makes up do not fill the memory."""
    limit = SignInLimit(HandClock())
    for number in range(KEYS_MAX + 10):
        limit.take([f"user {number}"])
    assert len(limit._attempts) == KEYS_MAX
