"""Commits a message's key and its handler's effects in one SQL transaction.

The key is a row of ``cometmq_claims``, inserted as done at the beginning of the transaction.  A
second transaction with the key waits for the first, and then finds the row, or its own insert where
the first was rolled back.  So the effects exist once, however often the message comes, as long as
they are in this database.
"""

import functools
import inspect
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session

from cometmq import ReceivedMessage, RetryLater
from cometmq.errors import ConfigError, ConfigTypeError
from cometmq.patterns.base.clock import Clock, now_ms
from cometmq.patterns.base.flow import is_coroutine_function
from cometmq.patterns.base.sql import insert_keys, short_key
from cometmq.patterns.idempotent.fence import AGAIN_MS, Fence, StaleMember
from cometmq.patterns.idempotent.handler import KEEP_MS, is_success
from cometmq.patterns.idempotent.keys import KeyOf, by_message_id, keys_of
from cometmq.patterns.idempotent.sql import CLAIMS, DONE

__all__ = ["exactly_once", "is_first"]


def exactly_once(
    sessions: Callable[[], Session] | Callable[[], AsyncSession],
    *,
    group: str,
    key: KeyOf = by_message_id,
    fence: Fence | None = None,
    keep_ms: int = KEEP_MS,
    clock: Clock = now_ms,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator for a handler ``(message, session)`` or ``(messages, session)``.

    The session's transaction has the keys of the messages.  It is committed when the handler has
    succeeded, and rolled back when it fails; the handler does neither.

    Args:
        sessions: a ``sessionmaker``, or an ``async_sessionmaker`` for ``async def`` handlers.
        group: the consumer group; groups handle a key independently.
        key: the key of a message: `by_message_id`, `by_keys` or a function.
        fence: keeps out a member that has lost the message's queue.
        keep_ms: how long a key is remembered; longer than a message may come again.
        clock: milliseconds since 1970.

    Raises:
        ConfigError: the handler and the sessions are not of one kind.
        ConfigTypeError: a plain handler has a fence of an asyncio engine.
    """
    unit = _Unit(group, key, fence, keep_ms, clock)

    def decorate(handler: Callable[..., Any]) -> Callable[..., Any]:
        is_async = is_coroutine_function(handler)
        if is_async != isinstance(sessions, async_sessionmaker):
            kind = "async def" if is_async else "a plain function"
            raise ConfigError(
                f"the handler {handler!r:.100} is {kind} and the sessions come from "
                f"{type(sessions).__name__}; give an async_sessionmaker to async def, and a "
                "sessionmaker to a plain function"
            )
        if fence is not None and fence.is_async and not is_async:
            raise ConfigTypeError("the fence of a plain handler needs a plain engine")
        if is_async:
            return _async_handler(handler, partial(unit.run_async, handler, sessions))
        return _plain_handler(handler, partial(unit.run_plain, handler, sessions))

    return decorate


def _async_handler(handler: Callable[..., Any], run: Callable[[Any], Any]) -> Callable[..., Any]:
    async def handle(work: Any) -> Any:
        return await run(work)

    return _named_after(handler, handle)


def _plain_handler(handler: Callable[..., Any], run: Callable[[Any], Any]) -> Callable[..., Any]:
    def handle(work: Any) -> Any:
        return run(work)

    return _named_after(handler, handle)


def _named_after(handler: Callable[..., Any], handle: Callable[..., Any]) -> Callable[..., Any]:
    """Give a handler of the message alone the name and the annotation of the program's own."""
    functools.update_wrapper(handle, handler)
    signature = inspect.signature(handler)
    first = next(iter(signature.parameters.values()))
    handle.__signature__ = signature.replace(parameters=[first])  # type: ignore[attr-defined]
    return handle


class _Unit:
    """One transaction around each call of a handler."""

    def __init__(
        self, group: str, key: KeyOf, fence: Fence | None, keep_ms: int, clock: Clock
    ) -> None:
        self._group = group
        self._key = key
        self._fence = fence
        self._keep_ms = keep_ms
        self._clock = clock

    async def run_async(self, handler: Callable[..., Any], sessions: Any, work: Any) -> Any:
        messages = work if isinstance(work, list) else [work]
        keys, first = keys_of(messages, self._key)
        value: Any = None
        epochs = self._enter(messages)
        if self._fence is not None and (missing := self._fence.missing(messages, epochs)):
            await self._fence.take_async(missing)
            raise _raised(missing)
        async with sessions() as session:
            new = await session.run_sync(self.admit, first, epochs)
            if new:
                value = await handler(new if isinstance(work, list) else new[0], session)
            if _is_committed(value):
                await session.commit()
            # Without a commit the session's end rolls back.
        return _answers(work, keys, first, new, value)

    def run_plain(self, handler: Callable[..., Any], sessions: Any, work: Any) -> Any:
        messages = work if isinstance(work, list) else [work]
        keys, first = keys_of(messages, self._key)
        value: Any = None
        epochs = self._enter(messages)
        if self._fence is not None and (missing := self._fence.missing(messages, epochs)):
            self._fence.take(missing)
            raise _raised(missing)
        with sessions() as session:
            new = self.admit(session, first, epochs)
            if new:
                value = handler(new if isinstance(work, list) else new[0], session)
            if _is_committed(value):
                session.commit()
        return _answers(work, keys, first, new, value)

    def _enter(self, messages: Sequence[ReceivedMessage]) -> dict[str, int]:
        return {} if self._fence is None else self._fence.enter(messages)

    def admit(
        self, session: Session, first: dict[str, ReceivedMessage], epochs: Mapping[str, int]
    ) -> list[ReceivedMessage]:
        """Insert the keys of messages, and return the messages whose key is new."""
        if not first:
            return []
        if self._fence is not None:
            self._fence.check(session.connection(), epochs)
        keep_until_ms = self._clock() + self._keep_ms
        new = _insert_keys(session, self._group, list(map(short_key, first)), keep_until_ms)
        return [message for key, message in first.items() if short_key(key) in new]


def _raised(names: Sequence[str]) -> StaleMember:
    """The answer to a message whose handler has raised the epoch of its queue."""
    return StaleMember(reason=f"the epoch of {names[0]} is raised only now", delay_ms=AGAIN_MS)


def _insert_keys(session: Session, group: str, keys: Sequence[str], keep_until_ms: int) -> set[str]:
    """Insert keys as done; returns those that did not exist."""
    connection = session.connection()
    token = uuid.uuid4().hex
    values = {
        "group_name": group,
        "state": DONE,
        "token": token,
        "owner": "",
        "expires_ms": keep_until_ms,
        "steps": "",
    }
    inserted = insert_keys(connection, CLAIMS.c.claim_key, sorted(keys), values)
    if inserted is not None:
        return inserted
    query = select(CLAIMS.c.claim_key).where(
        CLAIMS.c.group_name == group, CLAIMS.c.claim_key.in_(keys), CLAIMS.c.token == token
    )
    return set(connection.scalars(query))


def _is_committed(value: Any) -> bool:
    values = value if isinstance(value, (list, tuple)) else [value]
    return all(map(is_success, values))


def _answers(
    work: Any,
    keys: list[str | RetryLater],
    first: dict[str, ReceivedMessage],
    new: list[ReceivedMessage],
    value: Any,
) -> Any:
    """The answers for the client: done, or again for all messages of a transaction that failed."""
    values = value if isinstance(value, (list, tuple)) else [value] * len(new)
    if len(values) != len(new):
        reason = f"the handler returned {len(values)} results for {len(new)} messages"
        values = [RetryLater(reason=reason)] * len(new)
    if not _is_committed(values):
        again = RetryLater(reason="another message of its transaction has failed")
        values = [again if is_success(result) else result for result in values]
    by_identity = dict(zip(map(id, new), values, strict=True))
    answers = [by_identity.get(id(first[key])) if isinstance(key, str) else key for key in keys]
    return answers if isinstance(work, list) else answers[0]


def is_first(
    session: Session | AsyncSession,
    message: ReceivedMessage,
    *,
    group: str,
    key: KeyOf = by_message_id,
    keep_ms: int = KEEP_MS,
    clock: Clock = now_ms,
) -> Any:
    """Insert the message's key in a transaction of the program's own; False for a duplicate.

    With an `AsyncSession` the result is a coroutine.  The program commits key and effects together.
    """
    unit = _Unit(group, key, None, keep_ms, clock)
    if isinstance(session, AsyncSession):
        return _is_first_async(session, unit, {key(message): message})
    return bool(unit.admit(session, {key(message): message}, {}))


async def _is_first_async(
    session: AsyncSession, unit: _Unit, first: dict[str, ReceivedMessage]
) -> bool:
    return bool(await session.run_sync(unit.admit, first, {}))
