"""Bugs planted into replica sets, and the search for them: `make planted` runs it.

Each is looked for from seed 0 on in rough times (`tests.sim.replica_sets.run_rough`), and has to
turn a seed red that is sound without it.

    python -m tests.planted.replica_sets [--only TEXT] [--first SEED] [--seeds 300]
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.planted.plants import Plant
from tests.sim.replica_sets import run_rough

import cometmq.controller.server as controller_module
from cometmq.broker.replication.set_slave import SetReplicaClient
from cometmq.broker.replication.slave import ReplicaClient
from cometmq.controller.server import Controller
from cometmq.core.replication.epochs import EpochList
from cometmq.core.replication.replica_set import ReplicaSet
from cometmq.core.replication.sync_state import SyncState
from cometmq.store.append.confirmation import Confirmation

__all__ = ["FOUND_BY", "REPLICA_PLANTS"]

SEEDS_MAX: Final = 300
EVERYTHING: Final = 1 << 62


def _without_absent(original: Any) -> Any:
    def confirmed(self: SyncState, own_end: int, ends: Mapping[int, int]) -> int:
        return min([own_end, *(ends[member] for member in self.union if member in ends)])

    return confirmed


def _second_largest(original: Any) -> Any:
    def confirmed(self: SyncState, own_end: int, ends: Mapping[int, int]) -> int | None:
        known = [own_end, *(ends[member] for member in self.union if member in ends)]
        return sorted(known)[-2] if len(known) > 1 else original(self, own_end, ends)

    return confirmed


def _keeps_equal_start(original: Any) -> Any:
    def began(self: EpochList, number: int, start: int) -> EpochList:
        entries = self.entries
        if entries and entries[-1].start >= start:
            return self
        epochs: EpochList = original(self, number, start)
        return epochs

    return began


def _reports_unflushed(original: Any) -> Any:
    def send_report(self: ReplicaClient) -> None:
        link, stream = self.link, self._stream
        if link is not None and stream is not None and link.expected >= 0:
            end = self._store.max_physical_offset
            report = link.report(end, self._env.clock.now_ms(), self._report_ms)
            if report:
                stream.write([report])

    return send_report


def _never_cut(original: Any) -> Any:
    def first_byte(self: SetReplicaClient, *arguments: Any) -> int:
        return self._store.max_physical_offset

    return first_byte


def _tells_first(original: Any) -> Any:
    async def record(self: Controller, leadership: Any, change: Any) -> Any:
        name = change.broker_name
        before = self._sets.get(name)
        decision = change.decide(before)
        if isinstance(decision, ReplicaSet) and before is not None:
            self._sets[name] = decision
            self._tell(name)
            self._sets[name] = before
        return await original(self, leadership, change)

    return record


def _with(**changes: Any) -> Callable[[Any], Any]:
    """Make a function that is called with other arguments by name."""

    def make(original: Any) -> Any:
        return lambda *arguments, **named: original(*arguments, **{**named, **changes})

    return make


REPLICA_PLANTS: Final = (
    Plant(
        "a replica whose connection is closed is not waited for",
        ((SyncState, "confirmed", _without_absent),),
    ),
    Plant(
        "one slave of two is waited for",
        ((SyncState, "confirmed", _second_largest),),
    ),
    Plant(
        "a replica that joins is not waited for",
        ((SyncState, "union", lambda _: property(lambda self: self.members)),),
    ),
    Plant(
        "epochs behind the end of a log that was cut stay",
        ((EpochList, "up_to", lambda _: lambda self, end: self),),
    ),
    Plant(
        "an epoch that begins where the one before did is not noted",
        ((EpochList, "began", _keeps_equal_start),),
    ),
    Plant(
        "a mastership begins no epoch",
        (
            (
                EpochList,
                "began",
                lambda original: (
                    lambda self, number, start: (
                        self if self.entries else original(self, number, start)
                    )
                ),
            ),
        ),
    ),
    Plant(
        "a slave acknowledges before its disk has it",
        ((ReplicaClient, "_send_report", _reports_unflushed),),
    ),
    Plant(
        "a log that parts from its master's is not cut",
        ((SetReplicaClient, "_first_byte", _never_cut),),
    ),
    Plant(
        "readers see what other replicas may lack",
        ((Confirmation, "copied", lambda original: lambda self, end: original(self, EVERYTHING)),),
    ),
    Plant(
        "a replica that is not in sync is elected",
        ((controller_module, "elect", _with(is_unclean=True)),),
    ),
    Plant(
        "a replica that may have lost its end stays in sync",
        ((controller_module, "register", _with(is_unclean=False)),),
    ),
    Plant(
        "brokers hear of a master that is not recorded",
        ((Controller, "_record", _tells_first),),
    ),
)

FOUND_BY: Final[Mapping[str, int]] = {}
"""By plant: the first seed that finds it."""


def failure_of(seed: int) -> str | None:
    """Run a seed; return how it failed."""
    try:
        run_rough(seed)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:150]}"
    return None


def main() -> int:
    """Look for each."""
    parser = argparse.ArgumentParser(description="Look for each bug planted into replica sets.")
    parser.add_argument("--only", default="", help="plants whose name has this text")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="seeds for each plant")
    options = parser.parse_args()
    logging.getLogger("cometmq").propagate = False
    missed = []
    for plant in REPLICA_PLANTS:
        if options.only not in plant.name:
            continue
        began_s = time.process_time()
        for seed in range(options.first, options.first + options.seeds):
            with plant.planted():
                failure = failure_of(seed)
            if failure is None:
                continue
            if (own := failure_of(seed)) is not None:
                print(f"  seed {seed} fails without the plant: {own}", flush=True)
                continue
            seconds = time.process_time() - began_s
            print(f"{seed:4d}, {seconds:5.1f} s: {plant}: {failure}", flush=True)
            break
        else:
            missed.append(plant.name)
            print(f"MISSED by {options.seeds} seeds: {plant}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
