"""Load through RocketMQ's Java client: one JVM on the generator's core that takes commands.

The program (`Load.java`) loads both brokers in turn, so that its JIT-compiled code is the same for
both.  Acknowledged messages are read back over raw frames and compared one by one.  Messages that
its consumer received are compared with those that were sent.
"""

from __future__ import annotations

import json
import subprocess
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, cast

import msgspec
import numpy as np
import numpy.typing as npt

from bench.base.control import create_topics, wait_route
from bench.base.frames import ID_DIGITS, MESSAGES_PER_FRAME_MAX, FrameRing, Targets
from bench.base.loads import Load, Round, WorkOrder
from bench.base.measure import on_core, read_process
from bench.base.processes import Server
from bench.java.java_peer import load_program
from bench.worker.generator import Sent
from bench.worker.verify import Verdict, VerifyFailed, compare_rows, read_back
from bench.worker.worker import Work
from cometmq.errors import ClientError
from cometmq.net.env import system_environment
from cometmq.net.loop import run

__all__ = ["JavaBodies", "JavaCall", "JavaLoad", "start_java_load"]

DIGITS: Final = b"0123456789"
FILL_BATCH: Final = 100
CONSUME_S_MAX: Final = 120.0
Ints = npt.NDArray[np.int64]


class JavaCall(msgspec.Struct, frozen=True, kw_only=True):
    """A command to the Java client; `mode` is sync, async (32 per thread), batch or consume."""

    mode: str
    threads: int = 1
    body_bytes: int = 128
    batch_count: int = 1
    queues: int = 8


@dataclass(slots=True)
class JavaBodies:
    """The bodies of the Java program, which need no ring: an id, then repeated digits."""

    targets: Targets
    body_bytes: int
    sent: int = 10**9
    messages_per_frame: int = MESSAGES_PER_FRAME_MAX
    _tail: bytes = field(default=b"", init=False)

    def __post_init__(self) -> None:
        size = self.body_bytes - ID_DIGITS
        self._tail = (DIGITS * (size // len(DIGITS) + 1))[:size]

    def body_crc(self, message_id: int) -> int:
        """CRC-32 (31 bits) of the body with an id."""
        return zlib.crc32(self._tail, zlib.crc32(b"%012d" % message_id)) & 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class _Timed:
    """The result of a command, and the costs between its `begin` and its `end`."""

    done: dict[str, Any]
    server_cpu_s: float | None
    resident_kb: int | None
    anonymous_kb: int | None
    generator_cpu_s: float

    @property
    def seconds(self) -> float:
        return float(self.done["nanos"]) / 1e9

    def round(self, verdict: Verdict, latencies: bool) -> Round:
        rate = self.done["done"] / self.seconds

        def us(name: str) -> float | None:
            return self.done[name] / 1e3 if latencies else None

        return Round(
            rate=rate,
            messages_rate=rate,
            seconds=self.seconds,
            p50_us=us("p50"),
            p99_us=us("p99"),
            p999_us=us("p999"),
            max_us=us("max"),
            server_cpu_s=self.server_cpu_s,
            server_resident_kb=self.resident_kb,
            server_anonymous_kb=self.anonymous_kb,
            generator_cpu_s=self.generator_cpu_s,
            acknowledged=verdict.acknowledged,
            read_back=verdict.read_back,
        )


class JavaLoad:
    """The running Java program."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self._process = process
        self._folder = folder
        self._number = 0

    @property
    def pid(self) -> int:
        """Process id, for /proc readings."""
        return self._process.pid

    def round(
        self, call: JavaCall, server: Server, *, seconds: float, warm_up_s: float, messages: int
    ) -> Round:
        """Run one verified round against one broker.

        `messages` is the size of a backlog.

        Raises:
            ClientError: the program failed; the text has its last lines.
            VerifyFailed: the broker has, or the consumer received, other messages.
        """
        self._number += 1
        prefix = f"BenchJ{time.time_ns() // 1_000_000 % 1_000_000_000:09d}T"  # noqa: TID251
        targets = Targets(prefix, 1, call.queues)
        if call.mode == "consume":
            return self._consume(call, server, targets, messages)
        env = system_environment()
        run(create_topics(env, server.address, targets))
        run(wait_route(env, server.name_server, targets.topic(0)))
        out = self._folder / f"acks-{self._number}"
        timed = self._command(
            server, out, do="send", topic=targets.topic(0), mode=call.mode, threads=call.threads,
            body=call.body_bytes, batch=call.batch_count, seconds=seconds, warmUp=warm_up_s,
        )  # fmt: skip
        acknowledged = _expanded(_longs(out, 3), call.batch_count if call.mode == "batch" else 1)
        verdict = _verified(acknowledged, JavaBodies(targets, call.body_bytes), server)
        return timed.round(verdict, latencies=True)

    def _consume(self, call: JavaCall, server: Server, targets: Targets, messages: int) -> Round:
        seed = int(targets.prefix[6:15])
        order = WorkOrder(
            load=Load(
                name="fill", kind="fill", body_bytes=call.body_bytes, batch_count=FILL_BATCH,
                queues=call.queues,
            ),
            address=server.address,
            fill_messages=messages,
            seed=seed,
        )  # fmt: skip
        ring, sent = run(_fill(order))
        wanted = len(sent.frame_number) * ring.messages_per_frame
        out = self._folder / f"received-{self._number}"
        timed = self._command(
            server, out, do="consume", topic=ring.targets.topic(0), group=f"bench_java_{seed}",
            messages=wanted, seconds=CONSUME_S_MAX,
        )  # fmt: skip
        received = _longs(out, 2)
        check_received(received, ring, wanted)
        return timed.round(Verdict(wanted, len(received)), latencies=False)

    def _command(self, server: Server, out: Path, **words: object) -> _Timed:
        process = self._process
        assert process.stdin is not None
        given = {**words, "nameServer": server.name_server, "out": out}
        line = " ".join(f"{key}={value}" for key, value in given.items())
        process.stdin.write(line.encode() + b"\n")
        process.stdin.flush()
        readings: dict[str, Any] = {}
        while True:
            event = self._event()
            name = event["event"]
            if name in {"begin", "end"}:
                readings[name] = (read_process(server.pid), read_process(process.pid))
                continue
            if name == "error" or event["faults"] or not {"begin", "end"} <= readings.keys():
                raise ClientError(
                    f"the Java client against {server.address}: "
                    f"{event.get('text') or event.get('fault')}; server says: {server.log_tail()}"
                )
            break
        begin, end = readings["begin"], readings["end"]
        has_cpu = begin[0] is not None and end[0] is not None
        return _Timed(
            event,
            end[0].cpu_s - begin[0].cpu_s if has_cpu else None,
            end[0].resident_kb if has_cpu else None,
            end[0].anonymous_kb if has_cpu else None,
            end[1].cpu_s - begin[1].cpu_s if begin[1] and end[1] else 0.0,
        )

    def _event(self) -> dict[str, Any]:
        stdout = cast("IO[bytes]", self._process.stdout)
        for line in stdout:
            # The client's logging may write to the same stream.
            if line.startswith(b'{"event"'):
                return cast("dict[str, Any]", json.loads(line))
        raise ClientError(
            f"the Java load program ended with code {self._process.wait()}; "
            f"see {self._folder / 'load.log'}"
        )

    def close(self) -> None:
        """End the program."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


async def _fill(order: WorkOrder) -> tuple[FrameRing, Sent]:
    work = Work(order, system_environment())
    ring = await work.prepare(0, order.load.batch_count)
    sent = await work.fill(ring)
    if sent.refused:
        raise VerifyFailed(f"the fill was refused: {dict(sent.refused)}")
    return ring, sent


def _verified(acknowledged: Ints, bodies: JavaBodies, server: Server) -> Verdict:
    """Check that acknowledged messages exist."""
    try:
        return compare_rows(acknowledged, run(read_back(bodies, server.address, acknowledged)))
    except VerifyFailed as error:
        raise VerifyFailed(f"{server.address}: {error}") from error


def _longs(path: Path, columns: int) -> Ints:
    table = np.fromfile(path, ">i8").astype(np.int64).reshape(-1, columns)
    path.unlink()
    return table


def _expanded(rows: Ints, count: int) -> Ints:
    """A row (queue id, queue offset, message id) per message of rows (id, queue id, offset)."""
    steps = np.arange(count, dtype=np.int64)
    places = np.repeat(rows[:, 1], count)
    offsets = (rows[:, 2][:, None] + steps).ravel()
    ids = (rows[:, 0][:, None] + steps).ravel()
    order = np.lexsort((offsets, places))
    return np.stack([places[order], offsets[order], ids[order]], axis=1)


def check_received(received: Ints, ring: FrameRing, wanted: int) -> None:
    """Check rows of (message id, CRC-32): each message came once with its body.

    Raises:
        VerifyFailed: a message is missing, repeated or changed.
    """
    distinct = len(np.unique(received[:, 0]))
    if len(received) != wanted or distinct != wanted:
        raise VerifyFailed(
            f"{wanted} messages were sent; the Java consumer got {len(received)}, {distinct} of "
            "them different"
        )
    for message_id, crc in received.tolist():
        if ring.body_crc(message_id) != crc & 0x7FFFFFFF:
            raise VerifyFailed(f"the Java consumer got message {message_id} with another body")


@contextmanager
def start_java_load(
    folder: Path, *, core: int | None = None, is_binary: bool = False
) -> Iterator[JavaLoad]:
    """Run the program on a core until the context ends; its requests have binary or JSON headers.

    Raises:
        PeerMissing: Java, its compiler, Maven or the jars are missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = load_program(folder.resolve(), is_binary=is_binary)
    with (folder / "load.log").open("ab") as errors, on_core(core):
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=folder,
        )
    load = JavaLoad(process, folder)
    try:
        yield load
    finally:
        load.close()
