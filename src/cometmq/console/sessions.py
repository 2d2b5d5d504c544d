"""Who is signed in, and how often somebody may try to.

A session ends after half an hour without a request, and twelve hours after it began.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cometmq.client import Admin
from cometmq.console.settings import ClientKeywords
from cometmq.net.env import Clock

__all__ = ["ConsoleSession", "Sessions", "SignInLimit"]

IDLE_S_MAX: Final = 30 * 60
LIFE_S_MAX: Final = 12 * 60 * 60
SESSIONS_MAX: Final = 1_000
"""The one that was idle for longest ends when another begins."""

ATTEMPTS_MAX: Final = 5
WINDOW_S: Final = 60.0
KEYS_MAX: Final = 10_000
"""Addresses and user names whose attempts are counted; the oldest is forgotten first."""


@dataclass(slots=True)
class ConsoleSession:
    """One signed-in visitor; `keys` make further clients of his, times are monotonic seconds."""

    user: str
    is_super: bool
    admin: Admin
    keys: ClientKeywords
    begun_s: float
    seen_s: float


class Sessions:
    """The sessions of a console, by the secret that a visitor's cookie has."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sessions: dict[str, ConsoleSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    async def open(self, user: str, admin: Admin, keys: ClientKeywords, *, is_super: bool) -> str:
        """Begin a session, and return its secret."""
        await self._end_old()
        if len(self._sessions) >= SESSIONS_MAX:
            await self.close(min(self._sessions, key=lambda key: self._sessions[key].seen_s))
        secret = secrets.token_urlsafe(32)
        now = self._clock.monotonic()
        self._sessions[secret] = ConsoleSession(user, is_super, admin, keys, now, now)
        return secret

    async def get(self, secret: str) -> ConsoleSession | None:
        """The session of a cookie, if it still runs; it is seen now."""
        session = self._sessions.get(secret)
        if session is None:
            return None
        if self._is_over(session):
            await self.close(secret)
            return None
        session.seen_s = self._clock.monotonic()
        return session

    async def close(self, secret: str) -> None:
        """End a session, and disconnect its client."""
        session = self._sessions.pop(secret, None)
        if session is not None:
            await session.admin.shutdown()

    async def close_all(self) -> None:
        """End every session."""
        for secret in list(self._sessions):
            await self.close(secret)

    async def _end_old(self) -> None:
        for secret, session in list(self._sessions.items()):
            if self._is_over(session):
                await self.close(secret)

    def _is_over(self, session: ConsoleSession) -> bool:
        now = self._clock.monotonic()
        return now - session.seen_s > IDLE_S_MAX or now - session.begun_s > LIFE_S_MAX


class SignInLimit:
    """At most `ATTEMPTS_MAX` attempts to sign in within `WINDOW_S`, by address and by user name."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._attempts: dict[str, deque[float]] = {}

    def take(self, keys: Iterable[str]) -> float:
        """Count an attempt, and return 0; or the seconds until the next one is allowed.

        It is counted before it is made, so that attempts side by side count too.
        """
        names = list(keys)
        now = self._clock.monotonic()
        wait_s = max((self._wait_s(name, now) for name in names), default=0.0)
        if wait_s > 0:
            return wait_s
        for name in names:
            if name not in self._attempts and len(self._attempts) >= KEYS_MAX:
                del self._attempts[next(iter(self._attempts))]
            self._attempts.setdefault(name, deque(maxlen=ATTEMPTS_MAX)).append(now)
        return 0.0

    def succeeded(self, keys: Iterable[str]) -> None:
        """Forget the attempts: the last one was right."""
        for name in keys:
            self._attempts.pop(name, None)

    def _wait_s(self, name: str, now: float) -> float:
        attempts = self._attempts.get(name)
        if attempts is None or len(attempts) < ATTEMPTS_MAX:
            return 0.0
        return max(0.0, attempts[0] + WINDOW_S - now)
