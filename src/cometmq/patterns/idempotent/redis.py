"""Claims in Redis or Valkey: one key each, which expires by itself.

    cometmq:claim:{group}:key    "p" token owner expires_ms, separated by blanks, or "d" for done
    cometmq:steps:{group}:key    a hash: name of a step -> its value as JSON

A failover of Redis may lose claims that were written just before; a message may then be handled
twice.
"""

import json
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from cometmq.patterns.idempotent.claims import Busy, Claim, Claimed, ClaimsStatus, Handled

__all__ = ["RELEASE", "TAKE_OVER", "RedisClaims"]

_DONE: Final = b"d"
_SCAN_COUNT: Final = 1_000
_STEPS_MS: Final = 7 * 24 * 3600 * 1000
RELEASE: Final = """
local value = redis.call('get', KEYS[1])
if value and string.sub(value, 1, #ARGV[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end
return 0
"""
"""Deletes a claim whose value begins with the argument: it is of this call."""
TAKE_OVER: Final = """
if redis.call('get', KEYS[1]) == ARGV[1] then
  redis.call('set', KEYS[1], ARGV[2], 'PX', ARGV[3])
  return 1
end
return 0
"""
"""Puts a claim in the place of another one, unless that has changed."""


class RedisClaims:
    """Claims in Redis or Valkey.

    Args:
        client: ``redis.Redis`` or ``redis.asyncio.Redis``; ``valkey``'s clients are the same.
        prefix: of the keys in Redis.
    """

    def __init__(self, client: Any, prefix: str = "cometmq") -> None:
        self._client = client
        self._prefix = prefix
        self.is_async = hasattr(client, "aclose")

    def _name(self, kind: str, group: str, key: str) -> str:
        return f"{self._prefix}:{kind}:{{{group}}}:{key}"

    def _run(self, pipeline: Any, then: Callable[[list[Any]], Any]) -> Any:
        """Execute a pipeline and pass its answers on, now or in a coroutine."""
        if not self.is_async:
            return then(pipeline.execute())

        async def run() -> Any:
            result = then(await pipeline.execute())
            return await result if hasattr(result, "__await__") else result

        return run()

    def claim(
        self,
        group: str,
        keys: Sequence[str],
        token: str,
        owner: str,
        now_ms: int,
        expires_ms: int,
        alive: Collection[str] | None,
    ) -> Any:
        """See `ClaimStore`."""
        value = f"p {token} {owner.replace(' ', '_')} {expires_ms}".encode()
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            name = self._name("claim", group, key)
            pipeline.set(name, value, nx=True, px=expires_ms - now_ms)
            pipeline.get(name)
            pipeline.hgetall(self._name("steps", group, key))

        def read(answers: list[Any]) -> Any:
            claims: dict[str, Claim] = {}
            orphans: list[tuple[str, bytes]] = []
            for number, key in enumerate(keys):
                current, steps = answers[3 * number + 1 : 3 * number + 3]
                claims[key] = _claim_of(current, value, steps, now_ms)
                claim = claims[key]
                if isinstance(claim, Busy) and alive is not None and claim.owner not in alive:
                    orphans.append((key, current))
            if not orphans:
                return [claims[key] for key in keys]
            return self._take_over(group, orphans, value, expires_ms - now_ms, claims, keys)

        return self._run(pipeline, read)

    def _take_over(
        self,
        group: str,
        orphans: list[tuple[str, bytes]],
        value: bytes,
        px: int,
        claims: dict[str, Claim],
        keys: Sequence[str],
    ) -> Any:
        """Claim the keys whose owners are no members any more."""
        pipeline = self._client.pipeline(transaction=False)
        for key, current in orphans:
            pipeline.eval(TAKE_OVER, 1, self._name("claim", group, key), current, value, px)
            pipeline.hgetall(self._name("steps", group, key))

        def read(answers: list[Any]) -> list[Claim]:
            for number, (key, _) in enumerate(orphans):
                if answers[2 * number]:
                    claims[key] = Claimed(_steps_of(answers[2 * number + 1]))
            return [claims[key] for key in keys]

        return self._run(pipeline, read)

    def finish(self, group: str, keys: Sequence[str], now_ms: int, keep_until_ms: int) -> Any:
        """See `ClaimStore`."""
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.set(self._name("claim", group, key), _DONE, px=keep_until_ms - now_ms)
            pipeline.delete(self._name("steps", group, key))
        return self._run(pipeline, lambda answers: None)

    def release(self, group: str, keys: Sequence[str], token: str) -> Any:
        """See `ClaimStore`; the steps stay."""
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.eval(RELEASE, 1, self._name("claim", group, key), f"p {token} ".encode())
        return self._run(pipeline, lambda answers: None)

    def save_step(self, group: str, key: str, token: str, name: str, value: str) -> Any:
        """See `ClaimStore`."""
        pipeline = self._client.pipeline(transaction=True)
        pipeline.hset(self._name("steps", group, key), name, value)
        pipeline.pexpire(self._name("steps", group, key), _STEPS_MS)
        return self._run(pipeline, lambda answers: None)

    def clean(self, now_ms: int) -> Any:
        """Redis deletes what has expired by itself."""
        pipeline = self._client.pipeline(transaction=False)
        return self._run(pipeline, lambda answers: 0)

    def status(self, group: str | None = None) -> Any:
        """The `ClaimsStatus` of a group, None: of all; a coroutine with an asyncio client.

        It reads all keys of the database.
        """
        name = "*" if group is None else re.sub(r"([*?\[\]\\])", r"\\\1", group)
        names = self._client.scan_iter(match=self._name("claim", name, "*"), count=_SCAN_COUNT)
        if self.is_async:
            return self._status_async(names)
        found = list(names)
        parts = [found[at : at + _SCAN_COUNT] for at in range(0, len(found), _SCAN_COUNT)]
        return _status_of([value for part in parts for value in self._client.mget(part)])

    async def _status_async(self, names: Any) -> ClaimsStatus:
        found = [name async for name in names]
        parts = [found[at : at + _SCAN_COUNT] for at in range(0, len(found), _SCAN_COUNT)]
        return _status_of([value for part in parts for value in await self._client.mget(part)])


def _status_of(values: Sequence[Any]) -> ClaimsStatus:
    """The status for these values; a key that has gone meanwhile has none."""
    present = [value for value in values if value is not None]
    done = sum(value in (_DONE, _DONE.decode()) for value in present)
    return ClaimsStatus(len(present) - done, 0, done, 0)


def _claim_of(current: Any, own: bytes, steps: Any, now_ms: int) -> Claim:
    text = current.encode() if isinstance(current, str) else current
    if text is None:
        return Busy("another call", now_ms)  # it ended between the two commands
    if text == _DONE:
        return Handled()
    if text == own:
        return Claimed(_steps_of(steps))
    _, _, owner, expires_ms = text.decode().split(" ")
    return Busy(owner, int(expires_ms))


def _steps_of(answer: Any) -> dict[str, Any]:
    return {
        name.decode() if isinstance(name, bytes) else name: json.loads(value)
        for name, value in answer.items()
    }
