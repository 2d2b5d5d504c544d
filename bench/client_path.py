"""What our client pays for a message between a program and the socket, native and in Python.

    python -m bench.client_path --bursts 300

Sends: a message is encoded into its frame, the frame's answer is read from a burst of 64, and makes
the result.  Received messages: a pull answer of 32 is cut, and every body is read, or body and tag.
Bursts of both forms take turns in one process; figures are processor time, the median and the
fastest tenth of the bursts.  Nothing is sent: the event loop and the system calls come on top.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

from cometmq import native
from cometmq.client.message import message as received
from cometmq.client.message import send_codec
from cometmq.client.message.message import split_messages
from cometmq.client.message.send_codec import SendCodec, result_of
from cometmq.codec.stored_message import encode_message
from cometmq.errors import ConfigError
from cometmq.model import Message, MessageQueue, SendStatus
from cometmq.net.channel import SendToken
from cometmq.wire.frame.connection import Connection
from cometmq.wire.frame.framing import FrameReader
from cometmq.wire.header.fast_decode import PlainSendAnswer
from cometmq.wire.header.fast_encode import SendResponseEncoder

IN_FLIGHT = 64
PULLED = 32
QUEUE = MessageQueue("BenchTopic", "broker-a", 3)
BODY = bytes(range(128))
IDS = ("7F00000100002A9F000000000012D687", "7F00000100002A9F0000000000000001")


class _Sent(SendToken):
    """A send in flight."""


@contextmanager
def _in_python() -> Iterator[None]:
    """Let Python do the work, as in an installation without the core."""
    names = ("_cut_natively", "_body_natively", "_property_natively", "_decode_natively")
    kept = {name: getattr(received, name) for name in names}
    encode = send_codec._encode_natively
    for name in names:
        setattr(received, name, None)
    send_codec._encode_natively = None  # type: ignore[misc]
    try:
        yield
    finally:
        for name, function in kept.items():
            setattr(received, name, function)
        send_codec._encode_natively = encode  # type: ignore[misc]


def _sender() -> tuple[Callable[[], None], Callable[[bool], None]]:
    """The work on 64 frames, and on their 64 answers."""
    codec = SendCodec("bench_producer", lambda: IDS[1], lambda: 1_700_000_000_000)
    prepared = codec.prepare(Message("BenchTopic", BODY, tags="TagA", keys=("k1234",)))
    answers = SendResponseEncoder()
    opaques = range(1000, 1000 + IN_FLIGHT)
    data = b"".join(answers.encode(opaque, 0, 3, 123_456, *IDS) for opaque in opaques)
    token = _Sent()

    def send() -> None:
        for opaque in opaques:
            codec.frame(prepared, QUEUE, opaque)

    def answer(is_native: bool) -> None:
        connection: Connection[object, object] = Connection(FrameReader())  # type: ignore[arg-type]
        for opaque in opaques:
            connection.start_request(opaque, token, 1.0)
        data_now, end = connection.join_data(data), 0
        if is_native:
            taken: list[tuple[SendToken, PlainSendAnswer]] = []
            take = native.take_send_answers
            assert take is not None
            end = connection.take_answers(
                lambda raw, waiting: take(raw, waiting, taken, SendToken, PlainSendAnswer), data_now
            )
            for _, fields in taken:
                result_of(SendStatus.SEND_OK, prepared, QUEUE, fields)
        for command in connection.parse_data(data_now, end):
            connection.take_request(command.opaque)  # type: ignore[attr-defined]
            codec.result(prepared, QUEUE, command)  # type: ignore[arg-type]

    return send, answer


def _pulled() -> bytes:
    properties = (
        f"KEYS\x01k1234\x02UNIQ_KEY\x01{IDS[1]}\x02WAIT\x01true\x02TAGS\x01TagA\x02".encode()
    )
    return encode_message("BenchTopic", BODY, properties, queue_id=3) * PULLED


def loads() -> dict[str, tuple[int, Callable[[bool], object]]]:
    """Messages of a burst and its work by name; the work is told whether the core may help."""
    send, answer = _sender()
    body = _pulled()

    def bodies(is_native: bool) -> None:
        for message in split_messages(body, QUEUE):
            assert message.body is not None

    def tags(is_native: bool) -> None:
        for message in split_messages(body, QUEUE):
            assert (message.body, message.tags) is not None

    return {
        "send, frame": (IN_FLIGHT, lambda _: send()),
        "send, answer and result": (IN_FLIGHT, answer),
        "received, cut": (PULLED, lambda _: split_messages(body, QUEUE)),
        "received, with body": (PULLED, bodies),
        "received, with body and tag": (PULLED, tags),
    }


def measure(work: Callable[[bool], object], count: int, bursts: int) -> list[list[float]]:
    """Microseconds of processor time for a message of each burst, in Python and native."""
    found: list[list[float]] = [[], []]
    for _ in range(bursts):
        for is_native in (False, True):
            if is_native:
                found[1].append(_burst(work, count, is_native=True))
            else:
                with _in_python():
                    found[0].append(_burst(work, count, is_native=False))
    return found


def _burst(work: Callable[[bool], object], count: int, *, is_native: bool) -> float:
    begin = time.process_time_ns()
    for _ in range(10):
        work(is_native)
    return (time.process_time_ns() - begin) / 1e3 / count / 10


def main() -> int:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bursts", type=int, default=300)
    bursts = parser.parse_args().bursts
    if native.take_send_answers is None:
        raise ConfigError(f"there is no core to compare with: {native.describe()}")
    print(f"{'us a message: median, fastest tenth':36} {'Python':>13} {'native':>13} {'ratio':>6}")
    for name, (count, work) in loads().items():
        python, core = (sorted(one) for one in measure(work, count, bursts))
        cells = [
            f"{median(one):6.2f} {median(one[: bursts // 10 + 1]):6.2f}" for one in (python, core)
        ]
        ratio = median(python[: bursts // 10 + 1]) / median(core[: bursts // 10 + 1])
        print(f"{name:36} {cells[0]} {cells[1]} {ratio:6.1f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
