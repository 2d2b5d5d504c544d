"""A plan says what one simulation does: everything that follows from a seed, as a value.

A plan is drawn from a seed, written as the command that replays it, parsed from that command, and
reduced to the smaller plans that shrinking tries.  It names kinds of message, faults with their
times, steps and flush explicitly, so a recorded plan keeps its meaning when new kinds of message or
faults change what seeds draw.
"""

from __future__ import annotations

import random
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cometmq.errors import ConfigError
from cometmq.testing.simulate.settings import draw_settings

__all__ = ["COMMAND", "FLUSHES", "FaultAt", "Plan"]

COMMAND: Final = "python -m cometmq.testing.simulate"
FLUSHES: Final = ("SYNC_FLUSH", "ASYNC_FLUSH")
LIVES: Final = (1, 10, 30)
"""By how much lives may be shorter; the last leaves locks too little to spare for wrong clocks."""
STEPS: Final = 12
FAULTS_MIN, FAULTS_MAX = 3, 9
BUSY_S: Final = 7.0
"""Faults begin within this many virtual seconds."""
POWER_KINDS: Final = frozenset({"blackout", "broker-power", "slow-power", "step-power"})
ROT_PROOF: Final = frozenset(
    {
        *("backlog", "bitmaps", "delayed", "filtered", "global-order", "group-ordered", "ordered"),
        *("plain", "timed"),
    }
)
"""Kinds of message whose handlers pass over what a disk has changed."""
LOSS_PROOF: Final = ROT_PROOF | {"asked", "numbered", "queue-order"}
"""Kinds of message whose checks know what a power cut may take with asynchronous flush; others are
not drawn with it."""
RARITIES: Final = ("index-rot", "lost-answers", "silent-power")
RARE_KINDS: Final = frozenset({"files-go-early", "queue-rot", *RARITIES})
"""Kinds of faults that are drawn apart from the others."""
_PROVING: Final = ("consume_queue_flush_interval_ms",)
"""How often the side file becomes durable: only with it a start knows that damage is no end."""
ORDERED: Final = frozenset({"global-order", "group-ordered", "ordered"})
"""Kinds of message whose members lock queues, and lose them when they are cut off."""
WAITING: Final = frozenset({"recalled", "timed", "transactions"})
"""Kinds of message that wait in the log, and are appended again before their log file goes."""
CLOCK_SHY: Final = frozenset({"gateway", "recalled", "reset", "transactions"})
"""Kinds of message whose checks compare times of two machines: clocks stay right beside them."""


@dataclass(frozen=True, slots=True, order=True)
class FaultAt:
    """One fault and the virtual time in ms at which it begins."""

    at_ms: int
    kind: str

    def __str__(self) -> str:
        return f"{self.kind}@{self.at_ms}"

    @classmethod
    def parse(cls, text: str) -> FaultAt:
        """Parse ``kind@milliseconds``, the form that ``str`` writes.

        Raises:
            ConfigError: the text has another form.
        """
        kind, at, time = text.partition("@")
        if not at or not time.isdigit():
            raise ConfigError(f"a fault is kind@milliseconds, not {text!r}")
        return cls(int(time), kind)


@dataclass(frozen=True, slots=True)
class Plan:
    """One simulation; each kind of message sends at least `steps` messages or batches."""

    seed: int
    flush: str
    brokers: int
    steps: int
    workloads: tuple[str, ...]
    faults: tuple[FaultAt, ...]
    name_servers: int = 1
    lives: int = 1
    """By how much the lives of queue locks and sessions are shorter than usual."""
    settings: tuple[str, ...] = ()
    """Settings of brokers and stores as ``name=value``: see `simulate.settings`."""

    @classmethod
    def of(
        cls,
        seed: int,
        workloads: Sequence[str],
        kinds: Sequence[str],
        *,
        kinds_min: int = 2,
        kinds_max: int = 4,
        often: Mapping[str, float] | None = None,
    ) -> Plan:
        """Draw a plan from a seed and these kinds of message and of faults.

        Args:
            kinds_min: the least number of kinds of message in the plan.
            kinds_max: the largest that is drawn.
            often: kinds that are added with a chance of their own.
        """
        chance = random.Random(f"{seed}/plan")
        flush = chance.choice(FLUSHES)
        may_lose = flush == "ASYNC_FLUSH" and chance.random() < 0.4
        may_lose = may_lose and not LOSS_PROOF.isdisjoint(workloads)
        has_power = may_lose or flush == "SYNC_FLUSH"
        usable = [kind for kind in kinds if has_power or kind not in POWER_KINDS]
        usable = [kind for kind in usable if not kind.startswith(("gateway-", "clock-"))]
        usable = [kind for kind in usable if kind not in RARE_KINDS]
        if may_lose:
            workloads = [name for name in workloads if name in LOSS_PROOF]
            usable += 6 * [kind for kind in usable if kind in POWER_KINDS]
        # There are many named steps, and bugs of recovery show at them.
        usable += 3 * [kind for kind in usable if kind.startswith(("step-", "copy-"))]
        count = chance.randint(kinds_min, kinds_max)
        chosen = chance.sample(sorted(workloads), k=min(len(workloads), count))
        if not ROT_PROOF.issuperset(chosen):
            usable = [kind for kind in usable if kind != "bit-rot"]
        if not CLOCK_SHY.intersection(chosen):
            usable += [kind for kind in kinds if kind.startswith("clock-")]
        if "gateway" in chosen:
            # The gateway's own store fails as often as all brokers together.
            usable += [kind for kind in kinds if kind.startswith("gateway-")]
            usable += 2 * ["gateway-step-kill", "gateway-step-power"]
        faults = [
            FaultAt(int(chance.uniform(200, BUSY_S * 1000)), chance.choice(usable))
            for _ in range(chance.randint(FAULTS_MIN, FAULTS_MAX))
        ]
        plan = cls(
            seed,
            flush,
            chance.choice([1, 1, 1, 2]),
            STEPS,
            tuple(sorted(chosen)),
            tuple(sorted(faults)),
            chance.choice([1, 1, 2]),
            chance.choice(LIVES if CLOCK_SHY.intersection(chosen) else LIVES[:2]),
            draw_settings(chance, _PROVING if any(f.kind == "bit-rot" for f in faults) else ()),
        )
        return plan._with_more(workloads, often or {})._with_rarities()

    def _with_more(self, workloads: Sequence[str], often: Mapping[str, float]) -> Plan:
        """Add kinds of message, by a chance of its own."""
        chance = random.Random(f"{self.seed}/more")
        more = {name for name, share in often.items() if chance.random() < share}
        chosen = more.intersection(workloads).union(self.workloads)
        return replace(self, workloads=tuple(sorted(chosen)))

    def _with_rarities(self) -> Plan:
        """Add what few seeds draw otherwise: the unit journal, files that go early, rot of queues,
        and what the promises of some kinds of message are about.

        A chance of its own draws them, so everything else of a seed stays as it was.
        """
        chance = random.Random(f"{self.seed}/rarities")
        settings = dict(setting.split("=") for setting in self.settings)
        faults, lives = self.faults, self.lives
        if chance.random() < 0.25:
            settings.setdefault("unit_journal_queues_min", str(chance.choice([0, 2])))
            # Only what a killed broker has left in the journal is read again.
            kill = FaultAt(chance.randint(1_500, 4_500), "broker-kill")
            faults = tuple(sorted([*faults, kill]))
        if WAITING.intersection(self.workloads) and chance.random() < 0.5:
            settings.setdefault("mapped_file_size_commit_log", str(20 * 1024))
            files_go = FaultAt(chance.randint(2_500, int(BUSY_S * 1000)), "files-go-early")
            faults = tuple(sorted([*faults, files_go]))
        if chance.random() < 0.2:
            rot = FaultAt(chance.randint(1_500, int(BUSY_S * 1000)), "queue-rot")
            faults = tuple(sorted([*faults, rot]))
        added = [kind for kind in RARITIES if chance.random() < 0.15]
        if "numbered" in self.workloads:
            # Repetitions of what is stored, and of what a full disk refused: log files are small.
            added += ["lost-answers", "lost-answers", "full-disk"]
            settings.setdefault("mapped_file_size_commit_log", str(20 * 1024))
        if ORDERED.intersection(self.workloads) and chance.random() < 0.25:
            added.append(chance.choice(["island", "long-part"]))
            lives = max(lives, 10)
        if "ledger" in self.workloads:
            # A member loses its queue, and its session too, while its handler runs.
            added += chance.choices(["island", "long-part", "pause"], k=2)
            if not any(fault.kind.startswith("clock-") for fault in faults):
                lives = chance.choice(LIVES[1:])
        faults = tuple(
            sorted([*faults, *[FaultAt(chance.randint(300, 6_500), kind) for kind in added]])
        )
        written = tuple(f"{name}={value}" for name, value in sorted(settings.items()))
        return replace(self, faults=faults, lives=lives, settings=written)

    def arguments(self) -> str:
        """Return the options that mean exactly this plan."""
        faults = ",".join(str(fault) for fault in self.faults)
        settings = f" --settings {','.join(self.settings)}" if self.settings else ""
        return (
            f"--seed {self.seed} --flush {self.flush} --brokers {self.brokers} "
            f"--name-servers {self.name_servers} --lives {self.lives} --steps {self.steps} "
            f"--workloads {','.join(self.workloads)} --faults {shlex.quote(faults)}"
            f"{settings}"
        )

    def command(self) -> str:
        """Return the command that replays the plan."""
        return f"{COMMAND} {self.arguments()}"

    def smaller(self) -> Iterator[Plan]:
        """Yield smaller plans, those that leave out most first."""
        if len(self.workloads) > 1:
            for name in self.workloads:
                yield replace(self, workloads=(name,))
        half = len(self.faults) // 2
        if half > 1:
            yield replace(self, faults=self.faults[:half])
            yield replace(self, faults=self.faults[half:])
        if len(self.workloads) > 2:
            for name in self.workloads:
                others = tuple(other for other in self.workloads if other != name)
                yield replace(self, workloads=others)
        for index in range(len(self.faults)):
            yield replace(self, faults=self.faults[:index] + self.faults[index + 1 :])
        yield from self._more_usual()
        for steps in (self.steps // 4, self.steps // 2, self.steps - 1):
            if 0 < steps < self.steps:
                yield replace(self, steps=steps)

    def _more_usual(self) -> Iterator[Plan]:
        """Yield plans with less that is unusual."""
        if self.brokers > 1:
            yield replace(self, brokers=1)
        if self.name_servers > 1:
            yield replace(self, name_servers=1)
        if self.lives > 1:
            yield replace(self, lives=1)
        for setting in self.settings:
            yield replace(self, settings=tuple(one for one in self.settings if one != setting))
