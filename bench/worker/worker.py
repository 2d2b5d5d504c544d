"""Runs one load against one server: all rounds of a `WorkOrder`, timed, settled and verified.

The worker is a process on the generator's core (`python -m bench.worker.worker`, order as JSON on
stdin, rounds as JSON on stdout), so that garbage and imports of other rows do not affect it.
"""

from __future__ import annotations

import gc
import sys
import time
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from bench.base.control import create_topics, join_group
from bench.base.frames import MESSAGES_PER_FRAME_MAX, FrameRing, Targets
from bench.base.loads import Round, Rounds, WorkOrder
from bench.base.measure import Latency, ProcessReading, pin, read_process
from bench.worker.generator import SendRun, Sent
from bench.worker.pulls import Cursor, Follow, PullLoad, PullRun
from bench.worker.verify import (
    READER_GROUP,
    RecordReader,
    Verdict,
    VerifyFailed,
    acknowledged_rows,
    compare_with_acks,
    cursors_of,
    read_back,
)
from cometmq.errors import CometError
from cometmq.net.env import Environment, system_environment
from cometmq.net.loop import run

__all__ = ["Moment", "Work", "main", "make_round", "run_order"]

FILL_BATCH: int = 100
FILL_WINDOW: int = 4
FINISH_S_MAX: float = 60.0

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Moment:
    """Clocks and process readings at the beginning or the end of the timed part."""

    now_ns: int
    own_cpu_s: float
    server: ProcessReading | None

    @classmethod
    def take(cls, server_pid: int) -> Moment:
        """The readings at this moment."""
        server = read_process(server_pid) if server_pid else None
        return cls(time.perf_counter_ns(), time.process_time(), server)


def make_round(
    begin: Moment,
    end: Moment,
    *,
    done: int,
    messages_each: float,
    latency: Latency | None,
    verdict: Verdict | None,
) -> Round:
    """The figures between two moments for `done` units of `messages_each` messages."""
    seconds = (end.now_ns - begin.now_ns) / 1e9
    server_cpu = resident = anonymous = None
    if begin.server is not None and end.server is not None:
        server_cpu = end.server.cpu_s - begin.server.cpu_s
        resident, anonymous = end.server.resident_kb, end.server.anonymous_kb
    return Round(
        rate=done / seconds,
        messages_rate=done * messages_each / seconds,
        seconds=seconds,
        p50_us=latency.p50_us if latency else None,
        p99_us=latency.p99_us if latency else None,
        p999_us=latency.p999_us if latency else None,
        max_us=latency.max_us if latency else None,
        server_cpu_s=server_cpu,
        server_resident_kb=resident,
        server_anonymous_kb=anonymous,
        generator_cpu_s=end.own_cpu_s - begin.own_cpu_s,
        acknowledged=verdict.acknowledged if verdict else 0,
        read_back=verdict.read_back if verdict else 0,
        expired=verdict.expired if verdict else 0,
    )


class Work:
    """The work on one order."""

    def __init__(self, order: WorkOrder, env: Environment) -> None:
        self.order = order
        self.load = order.load
        self.env = env

    def _targets(self, number: int) -> Targets:
        prefix = f"Bench{self.order.seed % 1_000_000:06d}R{number:03d}T"
        return Targets(prefix, self.load.topics, self.load.queues)

    async def prepare(
        self, number: int, batch_count: int, *, is_grouped: bool = False
    ) -> FrameRing:
        """Create topics and group, and render the ring of a round."""
        targets = self._targets(number)
        if self.order.verify:
            await create_topics(self.env, self.order.address, targets)
            await join_group(self.env, self.order.address, READER_GROUP, targets)
        return FrameRing(
            targets,
            body_bytes=self.load.body_bytes,
            batch_count=batch_count,
            broker_name=self.order.broker_name,
            seed=self.order.seed * 1000 + number,
            is_grouped=is_grouped,
            form=self.load.form,
        )

    async def round(self, number: int) -> Round:
        """Run one round of the order's kind."""
        if self.load.kind == "pull":
            return await self._pull_round(number)
        if self.load.kind == "end-to-end":
            return await self._end_to_end_round(number)
        if self.load.kind == "fill":
            return await self._fill_round(number)
        if self.load.kind == "check":
            return await self._check_round(number)
        return await self._send_round(number)

    async def _timed(self, part: SendRun | PullRun) -> tuple[Moment, Moment]:
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            part.start()
            await part.run_for(self.order.warm_up_s)
            begin = Moment.take(self.order.server_pid)
            await part.run_for(self.order.seconds)
            return begin, Moment.take(self.order.server_pid)
        finally:
            gc.enable()
            gc.unfreeze()

    async def _send_round(self, number: int) -> Round:
        ring = await self.prepare(number, self.load.batch_count)
        sends = SendRun(ring, self.load.connections, self.load.window, self.env.clock)
        await sends.open(self.order.address)
        begin, end = await self._timed(sends)
        await sends.stop()
        sent = sends.settle()
        verdict = None
        if self.order.verify:
            reader = await read_back(ring, self.order.address, acknowledged_rows(ring, sent))
            verdict = compare_with_acks(ring, sent, reader, may_expire=self.load.may_expire)
        elif sent.refused:
            raise VerifyFailed(f"the server refused requests: {dict(sent.refused)}")
        return make_round(
            begin,
            end,
            done=sent.answered_between(begin.now_ns, end.now_ns) * self._units_per_frame,
            messages_each=1,
            latency=Latency.of(sent.latency_ns(begin.now_ns, end.now_ns)),
            verdict=verdict,
        )

    @property
    def _units_per_frame(self) -> int:
        return self.load.batch_count or 1

    # -- pulls --------------------------------------------------------------------------------

    async def fill(self, ring: FrameRing) -> Sent:
        """Send batches until every queue holds its share."""
        fill = SendRun(ring, 1, FILL_WINDOW, self.env.clock)
        await fill.open(self.order.address)
        fill.start()
        frames = max(self.order.fill_messages // ring.messages_per_frame, ring.targets.queues)
        while ring.sent < frames:
            await fill.run_for(0.01)
        await fill.stop()
        return fill.settle()

    async def _pull_round(self, number: int) -> Round:
        targets = self._targets(number)
        cursors = cursors_of(targets)
        verdict = None
        table: Ints | None = None
        ring: FrameRing | None = None
        if self.order.verify:
            ring = await self.prepare(number, FILL_BATCH)
            sent = await self.fill(ring)
            reader = await read_back(ring, self.order.address, acknowledged_rows(ring, sent))
            verdict = compare_with_acks(ring, sent, reader)
            table = reader.table()
            ends = np.bincount(table[:, 0], minlength=len(cursors))
            for cursor in cursors:
                cursor.queue_offset_end = int(ends[cursor.index])
        else:
            for cursor in cursors:
                cursor.queue_offset_end = 1 << 30
        plan = PullLoad()
        pulls = PullRun(
            plan,
            cursors,
            connections=self.load.connections,
            group=READER_GROUP,
            pull_count=self.load.pull_count,
            form=self.load.form,
        )
        await pulls.open(self.order.address)
        begin, end = await self._timed(pulls)
        pulls.stop()
        await pulls.finish(FINISH_S_MAX)
        rows = plan.table()
        if table is not None and ring is not None:
            check_pulls(plan, rows, table, ring, cursors)
        inside = rows[(rows[:, 5] >= begin.now_ns) & (rows[:, 5] < end.now_ns)]
        messages = int((inside[:, 2] - inside[:, 1]).sum())
        return make_round(
            begin,
            end,
            done=len(inside),
            messages_each=messages / max(len(inside), 1),
            latency=Latency.of(inside[:, 5] - inside[:, 4]),
            verdict=verdict,
        )

    # -- restart ------------------------------------------------------------------------------

    async def _fill_round(self, number: int) -> Round:
        """Fill the queues and save the acknowledgements for `_check_round` of another process."""
        ring = await self.prepare(number, self.load.batch_count)
        begin = Moment.take(self.order.server_pid)
        sent = await self.fill(ring)
        np.savez(
            self.order.state_path,
            frame_number=sent.frame_number,
            queue_id=sent.queue_id,
            queue_offset=sent.queue_offset,
        )
        if sent.refused:
            raise VerifyFailed(f"the server refused requests: {dict(sent.refused)}")
        done = ring.sent * ring.messages_per_frame
        end = Moment.take(self.order.server_pid)
        return make_round(begin, end, done=done, messages_each=1, latency=None, verdict=None)

    async def _check_round(self, number: int) -> Round:
        """Read back what the server acknowledged in `_fill_round` before it was killed."""
        ring = await self.prepare(number, self.load.batch_count)
        with np.load(self.order.state_path) as state:
            frames = state["frame_number"]
            nothing = np.zeros(len(frames), np.int64)
            sent = Sent(frames, state["queue_id"], state["queue_offset"], nothing, nothing)
        ring.sent = int(frames.max(initial=-1)) + 1
        begin = Moment.take(self.order.server_pid)
        reader = await read_back(ring, self.order.address, acknowledged_rows(ring, sent))
        verdict = compare_with_acks(ring, sent, reader)
        end = Moment.take(self.order.server_pid)
        return make_round(
            begin, end, done=verdict.read_back, messages_each=1, latency=None, verdict=verdict
        )

    # -- end to end ---------------------------------------------------------------------------

    async def _end_to_end_round(self, number: int) -> Round:
        ring = await self.prepare(number, self.load.batch_count)
        cursors = cursors_of(ring.targets)
        plan = Follow()
        follow = PullRun(plan, cursors, connections=1, group=READER_GROUP, active=len(cursors))
        await follow.open(self.order.address)
        follow.start()
        sends = SendRun(ring, self.load.connections, self.load.window, self.env.clock)
        await sends.open(self.order.address)
        begin, end = await self._timed(sends)
        await sends.stop()
        wanted = ring.sent * ring.messages_per_frame
        deadline = time.monotonic() + self.order.catch_up_s
        while plan.messages < wanted and time.monotonic() < deadline:
            await follow.run_for(0.005)
        follow.close()
        sent = sends.settle()
        reader = RecordReader(ring)
        arrived: list[Ints] = []
        for now_ns, index, body in plan.answers:
            records = reader.read(cursors[index], body)
            arrived.append(np.full(records, now_ns, np.int64))
        verdict = compare_with_acks(ring, sent, reader)
        arrived_ns = np.concatenate(arrived) if arrived else np.empty(0, np.int64)
        frames = np.array(reader.message_ids, np.int64) // MESSAGES_PER_FRAME_MAX
        sent_ns = np.zeros(ring.sent, np.int64)
        sent_ns[sent.frame_number] = sent.sent_ns
        inside = (arrived_ns >= begin.now_ns) & (arrived_ns < end.now_ns)
        durations = (arrived_ns - sent_ns[frames])[inside]
        return make_round(
            begin,
            end,
            done=int(inside.sum()),
            messages_each=1,
            latency=Latency.of(durations),
            verdict=verdict,
        )


def check_pulls(
    plan: PullLoad, rows: Ints, table: Ints, ring: FrameRing, cursors: list[Cursor]
) -> None:
    """Check that every timed pull had exactly the bytes of its records, and that samples are whole.

    `rows` are those of `PullLoad.table`; `table` is `RecordReader.table` of an untimed reading of
    the same queues.
    """
    if plan.empty_count:
        raise VerifyFailed(f"{plan.empty_count} pulls of filled queues came back empty")
    ends = np.bincount(table[:, 0], minlength=len(cursors))
    starts = np.concatenate([[0], np.cumsum(ends)])
    bytes_before = np.concatenate([[0], np.cumsum(table[:, 3])])
    first = starts[rows[:, 0]] + rows[:, 1]
    last = starts[rows[:, 0]] + rows[:, 2]
    if bool((rows[:, 2] > ends[rows[:, 0]]).any() or (rows[:, 2] <= rows[:, 1]).any()):
        raise VerifyFailed("a pull's nextBeginOffset lies outside its queue")
    wrong = int((bytes_before[last] - bytes_before[first] != rows[:, 3]).sum())
    if wrong:
        raise VerifyFailed(f"{wrong} of {len(rows)} pulls carried other bytes than their records")
    samples = RecordReader(ring)
    picked = rows[plan.sample_every - 1 :: plan.sample_every]
    for row, body in zip(picked.tolist(), plan.samples, strict=True):
        samples.read(cursors[row[0]], body)
    if samples.fault_count:
        raise VerifyFailed("a pulled body is wrong: " + "; ".join(samples.faults))


async def run_order(order: WorkOrder, env: Environment | None = None) -> Rounds:
    """Run all rounds of an order, each right after a round against the echo server."""
    environment = env or system_environment()
    work = Work(order, environment)
    yardstick = (
        Work(
            msgspec.structs.replace(
                order, address=order.echo_address, server_pid=order.echo_pid, verify=False
            ),
            environment,
        )
        if order.echo_address
        else None
    )
    rounds: list[Round] = []
    echo: list[Round] = []
    for number in range(order.rounds):
        if yardstick is not None:
            echo.append(await yardstick.round(number))
        rounds.append(await work.round(number))
    return Rounds(rounds=rounds, echo=echo)


def main() -> int:
    """Run the worker process."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=WorkOrder)
    pin(order.core)
    try:
        rounds = run(run_order(order))
    except CometError as error:
        print(error, file=sys.stderr)
        return 1
    sys.stdout.buffer.write(msgspec.json.encode(rounds))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
