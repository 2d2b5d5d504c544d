"""A Redis for simulations: what the clients of ``redis`` offer for keys and hashes, with faults.

    redis = SimRedis(world, "redis")
    handler = idempotent(RedisClaims(redis.client()), group="mailing")(handle)

Commands run one after the other.  A connection breaks before the commands of a call, between two of
them or behind the last one.  A failover forgets what was written just before it.

It has the commands that the patterns use and a few more; any other is refused.  A script of
``eval`` is a Python function in `scripts`.
"""

from __future__ import annotations

import asyncio
import importlib
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from cometmq.errors import ConfigError
from cometmq.patterns.idempotent.redis import RELEASE, TAKE_OVER
from cometmq.testing.markers import override
from cometmq.testing.sim_service import DELAY_S_MAX, FAULT_CHANCE, SimService

if TYPE_CHECKING:
    from cometmq.testing.simulation import World

__all__ = ["SimRedis"]

Script: TypeAlias = Callable[["RedisKeys", Sequence[str], Sequence[bytes]], Any]
"""What a script does: with the keys, and the names and arguments that it is given."""
Text: TypeAlias = bytes | str | int | float


def _bytes(value: Text) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _name(name: Text) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


_GLOB_PART: Final = re.compile(r"\\(.)|\*|\?|\[[^]]*\]|.", re.DOTALL)
"""A part of a pattern of names: an escaped character, a wildcard, a set or a character."""


def _regex(part: re.Match[str]) -> str:
    """A part as a regular expression."""
    text = part.group()
    if text in ("*", "?"):
        return ".*" if text == "*" else "."
    return text if text[0] == "[" else re.escape(part.group(1) or text)


def _connection_error() -> type[Exception]:
    """The error that the client of ``redis`` raises; Python's own where it is not installed."""
    try:
        found: type[Exception] = importlib.import_module("redis.exceptions").ConnectionError
    except ImportError:
        return ConnectionError
    return found


@dataclass(slots=True)
class _RedisValue:
    text: bytes | None = None
    fields: dict[bytes, bytes] = field(default_factory=dict)
    end_ms: int | None = None


def _copy(value: _RedisValue | None) -> _RedisValue | None:
    return None if value is None else _RedisValue(value.text, dict(value.fields), value.end_ms)


class RedisKeys:
    """The keys and the commands on them, with the names and answers of the ``redis`` clients."""

    def __init__(self, now_ms: Callable[[], int], scripts: dict[str, Script]) -> None:
        self._now_ms = now_ms
        self._scripts = scripts
        self._values: dict[str, _RedisValue] = {}
        self._before: list[tuple[int, str, _RedisValue | None]] = []
        """Time and name of each change, with what the key was before it."""

    def _live(self, name: str) -> _RedisValue | None:
        value = self._values.get(name)
        if value is not None and value.end_ms is not None and value.end_ms <= self._now_ms():
            del self._values[name]
            return None
        return value

    def _changing(self, name: str) -> _RedisValue:
        """The value of a key, which is made where it is missing."""
        self._before.append((self._now_ms(), name, _copy(self._live(name))))
        return self._values.setdefault(name, _RedisValue())

    def forget(self, since_ms: int) -> set[str]:
        """Undo what was written since then: the names of its keys."""
        names = set()
        while self._before and self._before[-1][0] >= since_ms:
            _, name, value = self._before.pop()
            names.add(name)
            if value is None:
                self._values.pop(name, None)
            else:
                self._values[name] = value
        return names

    def ping(self) -> bool:
        return True

    def get(self, name: Text) -> bytes | None:
        value = self._live(_name(name))
        return None if value is None else value.text

    def mget(self, names: Sequence[Text]) -> list[bytes | None]:
        return [self.get(name) for name in names]

    def keys(self, pattern: str = "*") -> list[bytes]:
        matching = re.compile(_GLOB_PART.sub(_regex, pattern), re.DOTALL)
        names = [name for name in list(self._values) if self._live(name) is not None]
        return [name.encode() for name in names if matching.fullmatch(name)]

    def set(
        self,
        name: str,
        value: Text,
        ex: float | None = None,
        px: int | None = None,
        nx: bool = False,
        xx: bool = False,
    ) -> bool | None:
        exists = self._live(name) is not None
        if (nx and exists) or (xx and not exists):
            return None
        live_ms = px if ex is None else int(ex * 1000)
        changing = self._changing(name)
        changing.text, changing.fields = _bytes(value), {}
        changing.end_ms = None if live_ms is None else self._now_ms() + live_ms
        return True

    def delete(self, *names: str) -> int:
        count = 0
        for name in names:
            if self._live(name) is not None:
                self._changing(name)
                del self._values[name]
                count += 1
        return count

    def exists(self, *names: str) -> int:
        return sum(self._live(name) is not None for name in names)

    def incr(self, name: str, amount: int = 1) -> int:
        value = self._changing(name)
        number = int(value.text or 0) + amount
        value.text = _bytes(number)
        return number

    def pexpire(self, name: str, time: int) -> bool:
        if self._live(name) is None:
            return False
        self._changing(name).end_ms = self._now_ms() + time
        return True

    def expire(self, name: str, time: int) -> bool:
        return self.pexpire(name, time * 1000)

    def pttl(self, name: str) -> int:
        value = self._live(name)
        if value is None:
            return -2
        return -1 if value.end_ms is None else value.end_ms - self._now_ms()

    def hset(self, name: str, key: Text, value: Text) -> int:
        fields = self._changing(name).fields
        is_new = _bytes(key) not in fields
        fields[_bytes(key)] = _bytes(value)
        return int(is_new)

    def hget(self, name: str, key: Text) -> bytes | None:
        value = self._live(name)
        return None if value is None else value.fields.get(_bytes(key))

    def hgetall(self, name: str) -> dict[bytes, bytes]:
        value = self._live(name)
        return {} if value is None else dict(value.fields)

    def hdel(self, name: str, *keys: Text) -> int:
        if self._live(name) is None:
            return 0
        fields = self._changing(name).fields
        count = sum(fields.pop(_bytes(key), None) is not None for key in keys)
        if not fields:
            del self._values[name]
        return count

    def eval(self, script: str, numkeys: int, *keys_and_args: Text) -> Any:
        """Run the function that stands for a script.

        Raises:
            ConfigError: there is none.
        """
        function = self._scripts.get(script)
        if function is None:
            raise ConfigError(
                f"the simulated Redis runs no Lua; put a function for {script[:60]!r} into scripts"
            )
        names = [str(name) for name in keys_and_args[:numkeys]]
        return function(self, names, list(map(_bytes, keys_and_args[numkeys:])))


COMMANDS: Final = frozenset(
    name for name in vars(RedisKeys) if not name.startswith("_") and name != "forget"
)


def _release(keys: RedisKeys, names: Sequence[str], arguments: Sequence[bytes]) -> int:
    is_ours = (keys.get(names[0]) or b"").startswith(arguments[0])
    return keys.delete(names[0]) if is_ours else 0


def _take_over(keys: RedisKeys, names: Sequence[str], arguments: Sequence[bytes]) -> int:
    if keys.get(names[0]) != arguments[0]:
        return 0
    keys.set(names[0], arguments[1], px=int(arguments[2]))
    return 1


class SimRedis(SimService):
    """A Redis that fails; the arguments are those of `SimService`."""

    def __init__(
        self,
        world: World,
        name: str = "redis",
        *,
        fault_chance: float = FAULT_CHANCE,
        delay_s_max: float = DELAY_S_MAX,
        is_calm: Callable[[], bool] | None = None,
        on_break: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(
            world,
            name,
            fault_chance=fault_chance,
            delay_s_max=delay_s_max,
            is_calm=is_calm,
            on_break=on_break,
        )
        self.scripts: dict[str, Script] = {RELEASE: _release, TAKE_OVER: _take_over}
        self.keys = RedisKeys(world.clock.now_ms, self.scripts)
        """For the scenario itself: without delay and without faults."""
        self.error = _connection_error()
        """What a caller gets whose connection breaks."""

    def client(self) -> _AsyncClient:
        """What ``redis.asyncio.Redis`` is, for ``async def`` code."""
        return _AsyncClient(self)

    def plain_client(self) -> _Client:
        """What ``redis.Redis`` is; a call takes no virtual time."""
        return _Client(self)

    def fail_over(self, lost_ms: int) -> set[str]:
        """Let a replica without the last writes take over: the names of the keys that they had."""
        names = self.keys.forget(self.world.clock.now_ms() - lost_ms)
        self.world.record(self.name, f"fails over, {len(names)} keys are as before")
        return names

    def run(self, commands: Sequence[Callable[[], Any]], *, is_transaction: bool) -> list[Any]:
        """Run the commands of one call."""
        self._travel("before a call")
        answers: list[Any] = []
        for number, command in enumerate(commands):
            if number and not is_transaction:
                self._travel("between two commands")
            answers.append(command())
        return answers

    def arrive(self) -> None:
        """Bring answers back."""
        self._travel("behind a call")

    def _travel(self, when: str) -> None:
        if self.breaks(when):
            raise self.error(f"the connection broke {when}")


class _Commands:
    """Makes a command of a method's name."""

    def __init__(self, redis: SimRedis) -> None:
        self._redis = redis

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in COMMANDS:
            raise AttributeError(
                f"the simulated Redis has no {name}; there are {', '.join(sorted(COMMANDS))}"
            )
        method = getattr(self._redis.keys, name)

        def give(*arguments: Any, **named: Any) -> Any:
            return self._give(lambda: method(*arguments, **named))

        return give

    def _give(self, command: Callable[[], Any]) -> Any:
        raise AssertionError("a subclass implements _give")


class _Pipeline(_Commands):
    def __init__(self, redis: SimRedis, *, is_transaction: bool) -> None:
        super().__init__(redis)
        self._is_transaction = is_transaction
        self._waiting: list[Callable[[], Any]] = []

    @override
    def _give(self, command: Callable[[], Any]) -> _Pipeline:
        self._waiting.append(command)
        return self

    def execute(self) -> Any:
        """Run what was given: the answers."""
        commands, self._waiting = self._waiting, []
        answers = self._redis.run(commands, is_transaction=self._is_transaction)
        self._redis.arrive()
        return answers


class _AsyncPipeline(_Pipeline):
    @override
    async def execute(self) -> Any:
        await asyncio.sleep(self._redis.delay_s())
        commands, self._waiting = self._waiting, []
        answers = self._redis.run(commands, is_transaction=self._is_transaction)
        await asyncio.sleep(self._redis.delay_s())
        self._redis.arrive()
        return answers


class _Client(_Commands):
    def pipeline(self, transaction: bool = True) -> _Pipeline:
        """Gather commands for one call."""
        return _Pipeline(self._redis, is_transaction=transaction)

    def close(self) -> None:
        """End the connection."""

    def scan_iter(self, match: str = "*", count: int = 10) -> Iterator[bytes]:
        """The names that match, with one call."""
        yield from self.keys(match)

    @override
    def _give(self, command: Callable[[], Any]) -> Any:
        answers = self._redis.run([command], is_transaction=True)
        self._redis.arrive()
        return answers[0]


class _AsyncClient(_Commands):
    def pipeline(self, transaction: bool = True) -> _AsyncPipeline:
        """Gather commands for one call."""
        return _AsyncPipeline(self._redis, is_transaction=transaction)

    async def aclose(self) -> None:
        """End the connection."""

    async def scan_iter(self, match: str = "*", count: int = 10) -> AsyncIterator[bytes]:
        """The names that match, with one call."""
        for name in await self.keys(match):
            yield name

    @override
    async def _give(self, command: Callable[[], Any]) -> Any:
        pipeline = self.pipeline()._give(command)
        return (await pipeline.execute())[0]
