"""The suite `kinds`: the broker's cost of each kind of message, compared with a plain one.

All kinds run against one broker, a round of each in turn, so that a slow minute of the machine
affects all of them.  The cost is the broker's processor time from the send of a message to its
pull, including its commit, lock or wait (`kind_worker`).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import Final

import msgspec

from bench.base.loads import KIND_LOADS, Load, Round, Rounds, WorkOrder
from bench.base.measure import median_of, read_machine, shares_of_others
from bench.base.processes import Server, run_worker, start_broker
from bench.suites.report import Fact, Row
from bench.suites.suite import Settings
from cometmq.errors import CometError

__all__ = ["KIND_SETTINGS", "kind_round", "measure_kinds"]

KIND_SETTINGS: Final[dict[str, str]] = {"enablePropertyFilter": "true"}
"""What a broker needs for all of them; RocketMQ refuses SQL92 without."""
COST_LIMIT: Final = 2.0
TRANSACTION_COST_LIMIT: Final = 4.0
WARM_UP_S: Final = 0.3
Say = Callable[[str], None]


def kind_round(settings: Settings, load: Load, server: Server, seconds: float) -> Round:
    """One verified round of one kind against a running broker."""
    order = WorkOrder(
        load=load,
        address=server.address,
        name_server=server.name_server,
        broker_name=settings.broker_name,
        server_pid=server.pid,
        core=settings.generator_core,
        rounds=1,
        seconds=seconds,
        # Each round has a topic of its own, named for it.
        seed=time.time_ns() // 1_000_000 % 1_000_000_000,  # noqa: TID251
    )
    answer = run_worker(
        "bench.worker.kind_worker", msgspec.json.encode(order), settings.generator_core
    )
    return msgspec.json.decode(answer, type=Rounds).rounds[0]


def measure_kinds(
    settings: Settings, say: Say, loads: tuple[Load, ...] = KIND_LOADS
) -> tuple[list[Row], list[Fact]]:
    """A row for each kind, and its cost relative to the first kind, the plain message."""
    rows = [Row(load) for load in loads]
    store = settings.folder / f"kinds-{time.monotonic_ns()}"
    before = read_machine()
    try:
        wanted = {**KIND_SETTINGS, **settings.broker_settings}
        with start_broker(store, core=settings.server_core, settings=wanted) as server:
            for row in rows:
                say(f"warming up: {row.load.name}")
                kind_round(settings, row.load, server, WARM_UP_S)
            for number in range(settings.rounds):
                for row in rows:
                    if row.error:
                        continue
                    say(f"{row.load.name}, round {number + 1} of {settings.rounds}")
                    try:
                        one = kind_round(settings, row.load, server, settings.seconds)
                    except CometError as error:
                        row.error = str(error)
                    else:
                        row.rounds.append(one)
    except CometError as error:
        rows[0].error = str(error)
    finally:
        shutil.rmtree(store, ignore_errors=True)
        store.with_suffix(".log").unlink(missing_ok=True)
    shares = shares_of_others(before, read_machine())
    for row in rows:
        row.stolen_share, row.others_share = shares
    return rows, [fact for row in rows[1:] if (fact := _cost(rows[0], row)) is not None]


def _cost(plain: Row, row: Row) -> Fact | None:
    whole, base = _us(row.rounds), _us(plain.rounds)
    if not whole or not base or row.error or plain.error:
        return None
    phases = ", ".join(
        f"{name} {us:.1f}" for name in row.rounds[0].phases_cpu_s if (us := _us(row.rounds, name))
    )
    note = f"{whole:.1f} and {base:.1f} us of CPU; {phases}"
    is_transaction = row.load.program == "transactional"
    limit = TRANSACTION_COST_LIMIT if is_transaction else COST_LIMIT
    return Fact(f"cost of {row.load.name} to plain", whole / base, "x", limit, note)


def _us(rounds: list[Round], phase: str = "") -> float | None:
    """Microseconds of the broker for each message, the median round."""
    return median_of(
        [
            (one.phases_cpu_s.get(phase, 0.0) if phase else one.server_cpu_s)
            * 1e6
            / one.acknowledged
            for one in rounds
            if one.server_cpu_s is not None
        ]
    )
