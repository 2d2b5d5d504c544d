"""The suite `scale`: many topics and queues, many clients, many idle connections.

topics        10,000 topics of 10 queues are created; registrations to a name server that counts;
              memory for each topic; route lookups of all of them; a first message to every queue
clients       consumers that join and send heartbeats
connections   sends beside 5,000 idle connections
pulls         sends beside 2,000 held pulls

Rounds of sends with a crowd and without one alternate against one broker. The result is the
broker's CPU time for each send, which other load on the machine changes least.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.base.control import create_topics
from bench.base.frames import Targets
from bench.base.loads import SCALE_STEPS, Load, Round, Rounds, WorkOrder
from bench.base.measure import ProcessReading, read_process
from bench.base.processes import Server, run_worker, start_broker
from bench.suites.crowd import Background, CountingNameServer, Crowd, look_up
from bench.suites.report import Fact, Row, cpu_us_each
from bench.suites.suite import Settings
from cometmq.errors import CometError
from cometmq.net.env import system_environment
from cometmq.net.loop import allow_open_files

__all__ = ["Sizes", "measure_scale"]

REGISTER_BROKER, QUERY_DATA_VERSION = 103, 322
QUEUES_EACH: Final = 10
PERIOD_MS: Final = 10_000
SETTLE_S: Final = 2.0
CROWD_COST_LIMIT: Final = 1.05
REGISTRATION_BYTES_LIMIT: Final = 1000.0
PULLS_PER_CONNECTION: Final = 20
CLIENTS_PER_GROUP: Final = 50
SEND: Final = Load(name="send 4x64", kind="send", connections=4, has_echo=False)
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of the crowds."""

    topics: int = 10_000
    clients: int = 2_000
    connections: int = 5_000
    pulls: int = 2_000

    def smaller(self, divisor: int) -> Sizes:
        """The sizes divided by ``divisor``."""
        return Sizes(
            *(
                max(count // divisor, 1)
                for count in (self.topics, self.clients, self.connections, self.pulls)
            )
        )


@dataclass(slots=True)
class _Stage:
    """A running broker, the crowd's loop, and the rows and facts to report."""

    settings: Settings
    sizes: Sizes
    say: Say
    server: Server
    background: Background
    counter: CountingNameServer
    rows: list[Row]
    facts: list[Fact]

    def reading(self) -> ProcessReading:
        """The broker's CPU time and memory at this moment."""
        found = read_process(self.server.pid)
        if found is None:
            raise CometError("this system has no /proc to read a process's memory from")
        return found

    def fact(self, name: str, value: float, unit: str, note: str = "", **bound: float) -> None:
        """Add a figure to the facts."""
        self.facts.append(Fact(name, value, unit, note=note, **bound))


@contextlib.contextmanager
def _stage(settings: Settings, sizes: Sizes, say: Say) -> Iterator[_Stage]:
    store = settings.folder / f"scale-{time.monotonic_ns()}"
    counter = CountingNameServer()
    allow_open_files()  # each connection of a crowd is an open file
    try:
        with Background() as background:
            address = background.run(counter.listen())
            wanted = {
                "namesrvAddr": address,
                "registerNameServerPeriod": str(PERIOD_MS),
                **settings.broker_settings,
            }
            with start_broker(store, core=settings.server_core, settings=wanted) as server:
                yield _Stage(settings, sizes, say, server, background, counter, [], [])
            background.run(counter.close())
    finally:
        shutil.rmtree(store, ignore_errors=True)
        store.with_suffix(".log").unlink(missing_ok=True)


def _topics(stage: _Stage) -> None:
    count = stage.sizes.topics
    targets = Targets("Scale", count, QUEUES_EACH)
    env = system_environment()
    stage.say(f"creating {count:,} topics of {QUEUES_EACH} queues")
    stage.counter.forget()
    before, begin = stage.reading(), time.monotonic()
    stage.background.run(create_topics(env, stage.server.address, targets))
    seconds = time.monotonic() - begin
    created = stage.counter.request_bytes[REGISTER_BROKER]
    time.sleep(SETTLE_S)
    after = stage.reading()
    cpu_us = (after.cpu_s - before.cpu_s) * 1e6 / count
    stage.fact(
        f"{count:,} topics created", seconds, "s", f"{cpu_us:.0f} us of CPU each, files included"
    )
    stage.fact(
        "registration for each", created / count, "bytes",
        f"{stage.counter.requests[REGISTER_BROKER]:,} requests",
        limit=REGISTRATION_BYTES_LIMIT,
    )  # fmt: skip
    grown = (after.anonymous_kb - before.anonymous_kb) * 1024
    stage.fact(
        "memory for each topic", grown / count, "bytes",
        f"anonymous memory, {QUEUES_EACH} queues without messages each",
    )  # fmt: skip
    stage.say("waiting for the next regular registration")
    stage.counter.forget()
    time.sleep(PERIOD_MS / 1000 + SETTLE_S)
    codes = (REGISTER_BROKER, QUERY_DATA_VERSION)
    stage.fact(
        "regular registration, nothing changed",
        sum(stage.counter.request_bytes[code] for code in codes)
        / max(sum(stage.counter.requests[code] for code in codes), 1),
        "bytes",
        f"a whole one is about {created:,}",
        limit=REGISTRATION_BYTES_LIMIT,
    )
    stage.say("looking up every route")
    before, begin = stage.reading(), time.monotonic()
    size = stage.background.run(
        look_up(stage.server.name_server, [targets.topic(index) for index in range(count)])
    )
    seconds = time.monotonic() - begin
    cpu_us = (stage.reading().cpu_s - before.cpu_s) * 1e6 / count
    stage.fact(
        "route lookups", count / seconds, "lookups/s", f"{cpu_us:.0f} us of CPU, {size:.0f} bytes"
    )
    _first_messages(stage, targets)


def _first_messages(stage: _Stage, targets: Targets) -> None:
    """Send one message to every queue, which creates its files; measure memory and time."""
    count = targets.queues
    stage.say(f"a first message to each of {count:,} queues")
    before, begin = stage.reading(), time.monotonic()
    order = _order(stage, 0.0)
    load = msgspec.structs.replace(
        order.load, kind="fill", topics=targets.topic_count, queues=QUEUES_EACH
    )
    order = msgspec.structs.replace(order, load=load, fill_messages=count, state_path=_state(stage))
    run_worker("bench.worker.worker", msgspec.json.encode(order), stage.settings.generator_core)
    Path(order.state_path).unlink(missing_ok=True)
    seconds = time.monotonic() - begin
    time.sleep(SETTLE_S)
    after = stage.reading()
    cpu_us = (after.cpu_s - before.cpu_s) * 1e6 / count
    stage.fact(
        f"first messages to {count:,} queues", seconds, "s",
        f"with as many new topics and files; {cpu_us:.0f} us of CPU each",
    )  # fmt: skip
    grown = (after.anonymous_kb - before.anonymous_kb) * 1024
    stage.fact("memory for each queue in use", grown / count, "bytes", "anonymous memory")


def _state(stage: _Stage) -> str:
    return str(stage.settings.folder / f"scale-{time.monotonic_ns()}.npz")


def _clients(stage: _Stage) -> None:
    count = stage.sizes.clients
    groups = max(count // CLIENTS_PER_GROUP, 1)
    targets = Targets("Clients", 1, QUEUES_EACH)
    stage.background.run(create_topics(system_environment(), stage.server.address, targets))
    stage.say(f"{count:,} consumers in {groups} groups join")
    crowd = stage.background.run(Crowd.to(stage.server.address))
    before, begin = stage.reading(), time.monotonic()
    stage.background.run(crowd.join(count, groups, targets.topic(0)))
    seconds = time.monotonic() - begin
    time.sleep(SETTLE_S)
    joined = stage.reading()
    grown = (joined.anonymous_kb - before.anonymous_kb) * 1024
    stage.fact(
        f"{count:,} consumers joined", seconds, "s",
        f"{groups} groups of {count // groups}; {_cpu_us(before, joined, count):.0f} us of CPU "
        "each, notices to the members included",
    )  # fmt: skip
    stage.fact("memory for each consumer", grown / count, "bytes", "anonymous, connection included")
    begin = time.monotonic()
    stage.background.run(crowd.heartbeat())
    seconds = time.monotonic() - begin
    beaten = stage.reading()
    stage.fact(
        "heartbeats", count / seconds, "heartbeats/s",
        f"{_cpu_us(joined, beaten, count):.0f} us of CPU each; each client sends one in 30 s",
    )  # fmt: skip
    stage.background.run(crowd.close())
    time.sleep(SETTLE_S)


def _cpu_us(before: ProcessReading, after: ProcessReading, count: int) -> float:
    return (after.cpu_s - before.cpu_s) * 1e6 / count


def _connections(stage: _Stage) -> None:
    count = stage.sizes.connections

    async def gather(crowd: Crowd) -> None:
        await crowd.connect(count)

    name = f"{count:,} idle connections"
    memory = _crowded(stage, name, gather)
    stage.fact("memory for each connection", memory / count, "bytes", "anonymous memory")


def _pulls(stage: _Stage) -> None:
    count = stage.sizes.pulls
    topics = Targets("Held", max(count // QUEUES_EACH, 1), QUEUES_EACH)
    stage.background.run(create_topics(system_environment(), stage.server.address, topics))

    async def gather(crowd: Crowd) -> None:
        await crowd.hold(count, topics, PULLS_PER_CONNECTION)

    memory = _crowded(stage, f"{count:,} held pulls", gather)
    stage.fact("memory for each held pull", memory / count, "bytes", "anonymous memory")


def _crowded(
    stage: _Stage, name: str, gather: Callable[[Crowd], Coroutine[Any, Any, None]]
) -> float:
    """Alternate rounds of sends without and with a crowd; return the crowd's memory in bytes."""
    rows = [
        Row(msgspec.structs.replace(SEND, name=f"send 4x64, {name}")),
        Row(msgspec.structs.replace(SEND, name=f"send 4x64, without {name}")),
    ]
    memory = _memory_of(stage, gather)
    _round(stage)
    for number in range(stage.settings.rounds):
        stage.say(f"sends without and with {name}, round {number + 1} of {stage.settings.rounds}")
        rows[1].rounds += _round(stage)
        crowd = stage.background.run(Crowd.to(stage.server.address))
        stage.background.run(gather(crowd))
        time.sleep(SETTLE_S)
        rows[0].rounds += _round(stage)
        stage.background.run(crowd.close())
        time.sleep(SETTLE_S)
    stage.rows += rows
    with_us, without_us = (cpu_us_each(row.rounds) for row in rows)
    if with_us and without_us:
        stage.fact(
            f"cost of a send beside {name}", with_us / without_us, "x",
            f"{with_us:.1f} and {without_us:.1f} us of CPU", limit=CROWD_COST_LIMIT,
        )  # fmt: skip
    return memory


def _memory_of(stage: _Stage, gather: Callable[[Crowd], Coroutine[Any, Any, None]]) -> float:
    """The memory in bytes that a crowd takes of a fresh broker, whose heap has no gaps yet."""
    crowd = stage.background.run(Crowd.to(stage.server.address))
    before = stage.reading()
    stage.background.run(gather(crowd))
    time.sleep(SETTLE_S)
    after = stage.reading()
    stage.background.run(crowd.close())
    time.sleep(SETTLE_S)
    return (after.anonymous_kb - before.anonymous_kb) * 1024.0


def _order(stage: _Stage, seconds: float) -> WorkOrder:
    settings = stage.settings
    return WorkOrder(
        load=SEND,
        address=stage.server.address,
        server_pid=stage.server.pid,
        core=settings.generator_core,
        rounds=1,
        seconds=seconds,
        warm_up_s=settings.warm_up_s,
        broker_name=settings.broker_name,
        seed=time.time_ns() // 1_000_000 % 1_000_000_000,  # noqa: TID251
    )


def _round(stage: _Stage) -> list[Round]:
    order = msgspec.json.encode(_order(stage, stage.settings.seconds))
    answer = run_worker("bench.worker.worker", order, stage.settings.generator_core)
    return msgspec.json.decode(answer, type=Rounds).rounds


_STEPS: Final = dict(zip(SCALE_STEPS, (_topics, _clients, _connections, _pulls), strict=True))


def measure_scale(
    name: str, settings: Settings, say: Say, sizes: Sizes
) -> tuple[list[Row], list[Fact]]:
    """Rows and facts of one step; a failure becomes the error of a row."""
    try:
        with _stage(settings, sizes, say) as stage:
            _STEPS[name](stage)
            return stage.rows, stage.facts
    except (CometError, OSError) as error:
        return [Row(Load(name=f"scale {name}", kind="send"), error=str(error))], []
