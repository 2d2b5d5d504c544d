"""Wraps a handler so that it handles each key once.

Before the handler the call claims the keys of its messages; a done message is acknowledged at once,
and one that another call handles comes again when that claim ends.  After the handler the keys are
done, and those of failed messages are free again.

The handler's effects and the key are two things: a crash between them leaves the claim, and after
its end the handler runs again.  `exactly_once` commits both in one transaction.
"""

import functools
import logging
import os
import platform
import uuid
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from cometmq import ReceivedMessage, RetryLater
from cometmq.errors import ConfigError
from cometmq.patterns.base.clock import Clock, now_ms
from cometmq.patterns.base.flow import (
    Call,
    Flow,
    Query,
    is_coroutine_function,
    run_async,
    run_plain,
)
from cometmq.patterns.idempotent.claims import Busy, Claim, Claimed, ClaimStore, Handled
from cometmq.patterns.idempotent.keys import KeyOf, by_message_id, keys_of
from cometmq.patterns.idempotent.steps import StepBook, current_steps

__all__ = ["Members", "OnLastTry", "idempotent"]

log = logging.getLogger("cometmq.patterns")

Members: TypeAlias = Callable[[], Collection[str] | Awaitable[Collection[str]]]
"""Returns the client ids of the group's members, such as ``lambda: admin.consumer_list(group)``."""
OnLastTry: TypeAlias = Callable[[ReceivedMessage, str], None]
"""Called with a message that has failed and has one try left, and the reason of the failure."""

EXPIRE_MS: Final = 15 * 60 * 1000
"""As long as a push consumer lets a handler run (``consume_timeout_ms``)."""
KEEP_MS: Final = 7 * 24 * 3600 * 1000
CLEAN_INTERVAL_MS: Final = 10 * 60 * 1000
BUSY_MS_MIN: Final = 1_000
TRIES: Final = 16


def idempotent(
    store: ClaimStore,
    *,
    group: str,
    key: KeyOf = by_message_id,
    expire_ms: int = EXPIRE_MS,
    keep_ms: int = KEEP_MS,
    owner: str | Callable[[], str | None] | None = None,
    members: Members | None = None,
    tries_max: int = TRIES,
    on_last_try: OnLastTry | None = None,
    clock: Clock = now_ms,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator for a handler, ``async def`` or plain, of messages or of lists of them.

    Args:
        store: `SqlClaims` or `RedisClaims`.
        group: the consumer group; groups handle a key independently.
        key: the key of a message: `by_message_id`, `by_keys` or a function.
        expire_ms: how long a claim counts when its owner does not end it; longer than the handler.
        keep_ms: how long a done key is remembered; longer than a message may come again.
        owner: this consumer's ``client_id``, or a function that returns it.
        members: the group's members now. A claim whose owner is none of them ends at once.
        tries_max: tries of a message in this group, for ``on_last_try``.
        on_last_try: called when one try is left; the log has a line in any case.
        clock: milliseconds since 1970.

    Raises:
        ConfigError: a plain handler has an asyncio store, or ``members`` is without ``owner``.
    """
    if members is not None and owner is None:
        raise ConfigError("members needs owner=: the client_id of this consumer, as members has it")
    guard = _Guard(store, group, key, expire_ms, keep_ms, owner, members, clock)
    guard.tries_max = tries_max
    guard.on_last_try = on_last_try

    def decorate(handler: Callable[..., Any]) -> Callable[..., Any]:
        if is_coroutine_function(handler):

            @functools.wraps(handler)
            async def handle_async(work: Any) -> Any:
                return await run_async(guard.run(handler, work))

            return handle_async
        if store.is_async:
            raise ConfigError(
                f"the handler {handler!r:.100} is a plain function and the claims are for asyncio; "
                "give a plain engine or client, or declare the handler with async def"
            )

        @functools.wraps(handler)
        def handle(work: Any) -> Any:
            return run_plain(guard.run(handler, work))

        return handle

    return decorate


class _Guard:
    """Claims before a handler and their end after it."""

    tries_max: int = TRIES
    on_last_try: OnLastTry | None = None

    def __init__(
        self,
        store: ClaimStore,
        group: str,
        key: KeyOf,
        expire_ms: int,
        keep_ms: int,
        owner: str | Callable[[], str | None] | None,
        members: Members | None,
        clock: Clock,
    ) -> None:
        self._store = store
        self._group = group
        self._key = key
        self._expire_ms = expire_ms
        self._keep_ms = keep_ms
        self._owner = owner or f"{_machine()}@{os.getpid()}"
        self._members = members
        self._clock = clock
        self._cleaned_ms = clock()

    def _query(self, method: Callable[..., Any], *arguments: Any) -> Query:
        return Query(partial(method, *arguments), not self._store.is_async)

    def run(self, handler: Callable[[Any], Any], work: Any) -> Flow[Any]:
        """One call of the handler: its messages, its value."""
        is_list = isinstance(work, list)
        messages: list[ReceivedMessage] = work if is_list else [work]
        token = uuid.uuid4().hex
        keys, first = keys_of(messages, self._key)
        claims = yield from self._claim(list(first), token)
        results: dict[str, Any] = {
            key: None if isinstance(claim, Handled) else self._busy(claim)
            for key, claim in claims.items()
            if not isinstance(claim, Claimed)
        }
        own = [message for key, message in first.items() if key not in results]
        if own:
            yield from self._handle(handler, own, is_list, first, claims, results, token)
        yield from self._clean()
        answers = [results[key] if isinstance(key, str) else key for key in keys]
        return answers if is_list else answers[0]

    def _claim(self, keys: list[str], token: str) -> Flow[dict[str, Claim]]:
        owner = self._owner if isinstance(self._owner, str) else self._owner() or ""
        alive: Collection[str] | None = None
        if not keys:
            return {}
        now = self._clock()
        request = (self._group, keys, token, owner, now, now + self._expire_ms)
        claims: list[Claim] = yield self._query(self._store.claim, *request, None)
        if self._members is not None and any(isinstance(claim, Busy) for claim in claims):
            alive = {owner, *(yield Call(self._members))}
            claims = yield self._query(self._store.claim, *request, alive)
        return dict(zip(keys, claims, strict=True))

    def _busy(self, claim: Claim) -> RetryLater:
        assert isinstance(claim, Busy)
        delay_ms = max(BUSY_MS_MIN, claim.expires_ms - self._clock())
        return RetryLater(reason=f"{claim.owner} handles it now", delay_ms=delay_ms)

    def _handle(
        self,
        handler: Callable[[Any], Any],
        own: list[ReceivedMessage],
        is_list: bool,
        first: dict[str, ReceivedMessage],
        claims: dict[str, Claim],
        results: dict[str, Any],
        token: str,
    ) -> Flow[None]:
        """Run the handler on the messages whose keys are ours, and end the claims."""
        keys = {id(message): key for key, message in first.items()}
        steps = {keys[id(message)]: _steps_of(claims[keys[id(message)]]) for message in own}
        book = StepBook(self._store, self._group, token, steps)
        book.keys = keys
        mine = list(steps)
        entered = current_steps.set(book)
        try:
            value = yield Call(partial(handler, own if is_list else own[0]))
        except BaseException as error:
            for message in own:
                self._failed(message, f"{type(error).__name__}: {error}")
            yield self._query(self._store.release, self._group, mine, token)
            raise
        finally:
            current_steps.reset(entered)
        values = _values_of(value, len(own))
        results.update(zip(mine, values, strict=True))
        done = [key for key in mine if is_success(results[key])]
        failed = [key for key in mine if not is_success(results[key])]
        for key in failed:
            self._failed(first[key], str(results[key]))
        if done:
            now = self._clock()
            yield self._query(self._store.finish, self._group, done, now, now + self._keep_ms)
        if failed:
            yield self._query(self._store.release, self._group, failed, token)

    def _failed(self, message: ReceivedMessage, reason: str) -> None:
        """Say that a message has one try left."""
        if message.reconsume_times + 2 != self.tries_max:
            return
        log.warning(
            "group %s: message %s of topic %s has failed %d times; one try is left before it is a "
            "dead letter: %s",
            self._group,
            message.message_id,
            message.topic,
            message.reconsume_times + 1,
            reason,
        )
        if self.on_last_try is not None:
            try:
                self.on_last_try(message, reason)
            except Exception:
                log.exception("on_last_try of group %s failed", self._group)

    def _clean(self) -> Flow[None]:
        now = self._clock()
        if now - self._cleaned_ms >= CLEAN_INTERVAL_MS:
            self._cleaned_ms = now
            count = yield self._query(self._store.clean, now)
            log.debug("group %s: %s old keys deleted", self._group, count)


def is_success(value: Any) -> bool:
    """Whether a handler's value means that its message is done."""
    return not (value is False or isinstance(value, Exception))


def _steps_of(claim: Claim) -> dict[str, Any]:
    assert isinstance(claim, Claimed)
    return dict(claim.steps)


def _values_of(value: Any, count: int) -> Sequence[Any]:
    """The value for each message; a sequence of another length fails all of them."""
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) == count:
        return value
    reason = f"the handler returned {len(value)} results for {count} messages"
    return [RetryLater(reason=reason)] * count


def _machine() -> str:
    """This machine's name."""
    return platform.node()
