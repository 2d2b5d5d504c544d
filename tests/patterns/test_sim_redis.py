"""The Redis of the test kit answers as a real one, with the commands and scripts that it has."""

import random
from typing import Any

import pytest
from tests.patterns.conftest import Databases

from cometmq.patterns.idempotent import RedisClaims
from cometmq.patterns.idempotent.redis import RELEASE, TAKE_OVER
from cometmq.testing.sim_redis import SimRedis
from cometmq.testing.simulation import World, simulate

pytestmark = pytest.mark.full

STRINGS = ("a", "b", "n")
HASHES = ("g", "h")


def draw(chance: random.Random) -> tuple[Any, ...]:
    """A command with its arguments."""
    text, fields = chance.choice(STRINGS), chance.choice(HASHES)
    value = chance.choice(["1", "2", b"1", "p one me 5", "p two me 5"])
    commands: list[tuple[Any, ...]] = [
        ("set", text, value),
        ("set", text, value, None, 60_000, True),
        ("set", text, value, 60, None, False, True),
        ("get", text),
        ("mget", list(STRINGS)),
        ("exists", "a", "b", "g", "none"),
        ("delete", text, fields),
        ("hset", fields, chance.choice("xy"), value),
        ("hget", fields, chance.choice("xy")),
        ("hgetall", fields),
        ("hdel", fields, "x", "y"),
        ("pexpire", text, 60_000),
        ("expire", fields, 60),
        ("incr", "count"),
        ("ping",),
        ("eval", RELEASE, 1, text, chance.choice(["p one ", "p two "])),
        ("eval", TAKE_OVER, 1, text, "p one me 5", "p two me 5", 60_000),
    ]
    return chance.choice(commands)


@pytest.mark.parametrize("seed", range(5))
def test_its_answers_are_those_of_a_real_one(databases: Databases, seed: int) -> None:
    """A thousand commands from a seed, one by one and in pipelines."""
    import redis

    async def main(world: World) -> None:
        chance = random.Random(f"redis {seed}")
        mine = SimRedis(world, is_calm=lambda: True).plain_client()
        for _ in range(300):
            pipelines = [client.pipeline(transaction=False) for client in (real, mine)]
            for command in [draw(chance) for _ in range(chance.randint(1, 6))]:
                for pipeline in pipelines:
                    getattr(pipeline, command[0])(*command[1:])
            answers = [pipeline.execute() for pipeline in pipelines]
            assert answers[0] == answers[1]
            for name in (*STRINGS, *HASHES):
                left_ms = [client.pttl(name) for client in (real, mine)]
                # The real one's time passes; no key of this test lives to its end.
                assert left_ms[0] == left_ms[1] or 0 < left_ms[0] < left_ms[1], left_ms
        assert sorted(real.scan_iter(match="[a-g]*")) == sorted(mine.scan_iter(match="[a-g]*"))

    with redis.Redis.from_url(databases.redis_url()) as real:
        real.flushdb()
        simulate(seed, main)


def test_claims_are_counted(databases: Databases) -> None:
    """Over the plain client, for all groups and for one whose name has a pattern's signs."""
    import redis

    with redis.Redis.from_url(databases.redis_url()) as client:
        claims = RedisClaims(client, prefix="counted")
        for group, keys in (("g*", ["a", "b"]), ("gg", ["c"])):
            claims.claim(group, keys, "t", "me", 0, 60_000, None)
        claims.finish("g*", ["a"], 0, 60_000)
        found = [claims.status(group) for group in (None, "g*", "none")]
        assert [(one.processing, one.done) for one in found] == [(2, 1), (1, 1), (0, 0)]
