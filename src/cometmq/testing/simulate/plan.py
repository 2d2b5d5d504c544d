"""What one simulation is to do: everything that follows from a seed, as a value.

Job: draw a plan from a seed, write it as the one command that replays it, read it back, and give
the smaller plans that shrinking tries.  Must not: run anything.

A plan is explicit: kinds of message, faults with their times, steps, flush.  So a failing one can
be made smaller without changing what is left of it, and still means the same when new kinds of
message or faults are added and seeds draw other plans.
"""

from __future__ import annotations

import random
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cometmq.errors import ConfigError

__all__ = ["COMMAND", "FLUSHES", "FaultAt", "Plan"]

COMMAND: Final = "python -m cometmq.testing.simulate"
FLUSHES: Final = ("SYNC_FLUSH", "ASYNC_FLUSH")
STEPS: Final = 12
FAULTS_MIN, FAULTS_MAX = 3, 9
BUSY_S: Final = 7.0
"""Faults begin within this many virtual seconds."""
POWER_KINDS: Final = frozenset({"broker-power", "slow-power", "step-power"})
"""With asynchronous flush a power cut may take what was acknowledged: nothing to check then."""


@dataclass(frozen=True, slots=True, order=True)
class FaultAt:
    """One fault and the virtual time in ms at which it begins."""

    at_ms: int
    kind: str

    def __str__(self) -> str:
        return f"{self.kind}@{self.at_ms}"

    @classmethod
    def parse(cls, text: str) -> FaultAt:
        """As ``str`` gives it: ``kind@milliseconds``."""
        kind, at, time = text.partition("@")
        if not at or not time.isdigit():
            raise ConfigError(f"a fault is kind@milliseconds, not {text!r}")
        return cls(int(time), kind)


@dataclass(frozen=True, slots=True)
class Plan:
    """One simulation: `steps` is how many messages (or batches) each kind sends at least."""

    seed: int
    flush: str
    brokers: int
    steps: int
    workloads: tuple[str, ...]
    faults: tuple[FaultAt, ...]
    name_servers: int = 1

    @classmethod
    def of(cls, seed: int, workloads: Sequence[str], kinds: Sequence[str]) -> Plan:
        """What a seed draws from these kinds of message and of faults."""
        chance = random.Random(f"{seed}/plan")
        flush = chance.choice(FLUSHES)
        usable = [kind for kind in kinds if flush == "SYNC_FLUSH" or kind not in POWER_KINDS]
        usable = [kind for kind in usable if not kind.startswith("gateway-")]
        # Named steps are many, and the places where faults of recovery hide.
        usable += 3 * [kind for kind in usable if kind.startswith("step-")]
        chosen = chance.sample(sorted(workloads), k=min(len(workloads), chance.randint(2, 4)))
        if "gateway" in chosen:
            # It has a store of its own, which is as often in trouble as all brokers together.
            usable += [kind for kind in kinds if kind.startswith("gateway-")]
            usable += 2 * ["gateway-step-kill", "gateway-step-power"]
        faults = [
            FaultAt(int(chance.uniform(200, BUSY_S * 1000)), chance.choice(usable))
            for _ in range(chance.randint(FAULTS_MIN, FAULTS_MAX))
        ]
        return cls(
            seed,
            flush,
            chance.choice([1, 1, 1, 2]),
            STEPS,
            tuple(sorted(chosen)),
            tuple(sorted(faults)),
            chance.choice([1, 1, 2]),
        )

    def arguments(self) -> str:
        """The options that mean exactly this plan."""
        faults = ",".join(str(fault) for fault in self.faults)
        return (
            f"--seed {self.seed} --flush {self.flush} --brokers {self.brokers} "
            f"--name-servers {self.name_servers} --steps {self.steps} "
            f"--workloads {','.join(self.workloads)} --faults {shlex.quote(faults)}"
        )

    def command(self) -> str:
        """The one command that replays it."""
        return f"{COMMAND} {self.arguments()}"

    def smaller(self) -> Iterator[Plan]:
        """Plans with less in them, those that leave out most first."""
        if len(self.workloads) > 1:
            for name in self.workloads:
                yield replace(self, workloads=(name,))
        half = len(self.faults) // 2
        if half > 1:
            yield replace(self, faults=self.faults[:half])
            yield replace(self, faults=self.faults[half:])
        if len(self.workloads) > 2:
            for name in self.workloads:
                rest = tuple(other for other in self.workloads if other != name)
                yield replace(self, workloads=rest)
        for place in range(len(self.faults)):
            yield replace(self, faults=self.faults[:place] + self.faults[place + 1 :])
        if self.brokers > 1:
            yield replace(self, brokers=1)
        if self.name_servers > 1:
            yield replace(self, name_servers=1)
        for steps in (self.steps // 4, self.steps // 2, self.steps - 1):
            if 0 < steps < self.steps:
                yield replace(self, steps=steps)
