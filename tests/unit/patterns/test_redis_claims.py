"""Claims in Redis, over the one of the test kit; ``make patterns`` runs a real one."""

import asyncio
from typing import Any

import pytest
from tests.unit.patterns.stage import HandClock, message_of

from cometmq import ReceivedMessage, RetryLater
from cometmq.patterns.idempotent import RedisClaims, async_step, idempotent
from cometmq.patterns.idempotent.claims import Busy, Claimed, Handled
from cometmq.testing.sim_redis import SimRedis
from cometmq.testing.simulation import World, simulate


def test_a_message_is_handled_once_and_its_steps_too() -> None:
    """A failed handler frees its key and keeps its steps; a done key is acknowledged."""

    async def main(world: World) -> list[str]:
        redis = SimRedis(world, is_calm=lambda: True)
        effects: list[str] = []
        failures: list[Any] = [ValueError("on purpose"), None]

        async def handle(message: ReceivedMessage) -> None:
            await async_step("charge", lambda: effects.append("charge"))
            effects.append("mail")
            error = failures.pop(0)
            if error is not None:
                raise error

        once = idempotent(RedisClaims(redis.client()), group="g")(handle)
        with pytest.raises(ValueError, match="on purpose"):
            await once(message_of("a"))
        assert await once(message_of("a")) is None
        assert await once(message_of("a")) is None
        return effects

    assert simulate(1, main).value == ["charge", "mail", "mail"]


def test_plain_handlers() -> None:
    """Over the client without asyncio, in lists."""

    async def main(world: World) -> list[str]:
        redis = SimRedis(world, is_calm=lambda: True)
        handled: list[str] = []

        def handle(messages: list[ReceivedMessage]) -> list[Any]:
            handled.extend(message.message_id for message in messages)
            return [False if message.message_id == "b" else None for message in messages]

        once = idempotent(RedisClaims(redis.plain_client()), group="g")(handle)
        assert once([message_of("a"), message_of("b")]) == [None, False]
        assert once([message_of("a"), message_of("b")]) == [None, False]
        return handled

    assert simulate(1, main).value == ["a", "b", "b"]


def test_a_late_release_leaves_the_claim_of_the_next_call() -> None:
    """The first call took too long; a call of the same process has the key when it fails."""

    async def main(world: World) -> list[Any]:
        redis = SimRedis(world, is_calm=lambda: True)
        claims = RedisClaims(redis.client())

        def claim(token: str, now_ms: int, alive: Any = None) -> Any:
            return claims.claim("g", ["k"], token, "me", now_ms, now_ms + 1_000, alive)

        begin_ms = world.clock.now_ms()
        answers = [await claim("one", begin_ms)]
        await asyncio.sleep(2)
        answers.append(await claim("two", begin_ms + 2_000))
        await claims.release("g", ["k"], "one")
        answers.append(await claim("three", begin_ms + 2_000))
        answers.append(await claim("four", begin_ms + 2_000, ["other"]))
        await claims.release("g", ["k"], "four")
        answers.append(await claim("five", begin_ms + 2_000))
        await claims.finish("g", ["k"], begin_ms, begin_ms + 10_000)
        return [claim for (claim,) in [*answers, await claim("six", begin_ms + 2_000)]]

    found = simulate(1, main).value
    assert list(map(type, found)) == [Claimed, Claimed, Busy, Claimed, Claimed, Handled]


def test_what_another_call_has_comes_again_when_its_claim_ends() -> None:
    """The answer names the owner, and the time until then."""
    clock = HandClock()

    async def main(world: World) -> Any:
        clock.now = world.clock.now_ms()
        claims = RedisClaims(SimRedis(world, is_calm=lambda: True).client())
        await claims.claim("g", ["k"], "t", "a b", clock.now, clock.now + 9_000, None)
        return await idempotent(claims, group="g", clock=clock)(handle)(message_of("k"))

    async def handle(message: ReceivedMessage) -> None:
        raise AssertionError("nobody may come here")

    answer = simulate(1, main).value
    assert isinstance(answer, RetryLater)
    assert (answer.delay_ms, str(answer)) == (9_000, "a_b handles it now")
