"""The echo server answers every request, and the loads run against it as processes."""

from pathlib import Path

import msgspec
import pytest
from bench.base.frames import FrameRing, Targets
from bench.base.headers import OPAQUE_BASE
from bench.base.loads import RAW_LOADS, Load, Rounds, WorkOrder
from bench.base.processes import run_worker, start_echo
from bench.worker.echo import PULL_COUNT, EchoConnection, pull_body

from cometmq.codec.stored_message import decode_messages
from cometmq.errors import ClientError
from cometmq.wire.frame.framing import FrameReader


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.writes = 0

    def write(self, data: bytes) -> None:
        """Keep one more write."""
        self.written += data
        self.writes += 1


def test_every_frame_is_answered_in_order_with_one_write() -> None:
    """A burst of sends gets as many answers with code 0, queue and offset, in one write."""
    connection, wire = EchoConnection(pull_body(16)), Wire()
    connection.connection_made(wire)  # type: ignore[arg-type]
    ring = FrameRing(Targets("T", 1, 4), body_bytes=32)
    connection.data_received(ring.burst(10, 1))
    answers = FrameReader().receive(wire.written)
    assert wire.writes == 1
    assert [a.opaque for a in answers] == [OPAQUE_BASE + n for n in range(10)]
    assert [a.ext_fields["queueId"] for a in answers[:5]] == ["0", "1", "2", "3", "0"]
    assert all(a.code == 0 and a.is_response for a in answers)


def test_a_pull_is_answered_with_thirty_two_readable_messages() -> None:
    """The prepared answer to a pull decodes to 32 messages."""
    messages = decode_messages(pull_body(100))
    assert len(messages) == PULL_COUNT
    assert all(len(m.body) == 100 for m in messages)


@pytest.mark.processes
def test_loads_run_against_an_echo_process(tmp_path: Path) -> None:
    """An echo process starts, serves a worker process and stops."""
    loads = [load for load in RAW_LOADS if load.name in {"send 4x64", "pull32 x4"}]
    with start_echo(tmp_path) as server:
        for load in loads:
            order = WorkOrder(
                load=load, address=server.address, server_pid=server.pid,
                rounds=1, seconds=0.1, warm_up_s=0.02, verify=False,
            )  # fmt: skip
            answer = run_worker("bench.worker.worker", msgspec.json.encode(order), None)
            (one,) = msgspec.json.decode(answer, type=Rounds).rounds
            assert one.rate > 0
            assert one.p50_us is not None
            assert one.generator_cpu_s > 0
    assert server.process.poll() is not None


@pytest.mark.processes
def test_a_worker_that_fails_says_why() -> None:
    """Where no server listens, the parent gets a sentence instead of a traceback."""
    order = WorkOrder(load=Load(name="x", kind="send"), address="127.0.0.1:1", rounds=1)
    with pytest.raises(ClientError, match=r"127\.0\.0\.1:1"):
        run_worker("bench.worker.worker", msgspec.json.encode(order), None)
