"""Compares the broker's cost of a transaction (half message and commit) with that of a plain send.

    nice .venv/bin/python -m bench.transactions [--messages 20000] [--rounds 5]

One connection keeps 64 requests in flight, single messages of 1 KiB.  The cost is the processor
time of the broker's process, user and system, for each message, so other programs on the machine
disturb it little.  The rounds of both kinds alternate; the median is printed.  The target is at
most four times an ordinary message.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from tests.raw_client import RawClient

from bench.base.measure import read_process
from bench.base.processes import Server, start_broker
from cometmq.codec.stored_message import decode_messages
from cometmq.net.env import SystemClock
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand

CLOCK = SystemClock()
WINDOW = 64
BODY = b"x" * 1024
GROUP = "bench"
TIMES_MAX = 4.0
Request = tuple[int, dict[str, str], bytes]


def send_request(number: int, more: str = "") -> Request:
    """The request by which Java's client sends a message."""
    ext = {
        "a": GROUP, "b": "Bench", "c": "TBW102", "d": "4", "e": str(number % 4), "f": "0",
        "g": str(CLOCK.now_ms()), "h": "0", "j": "0", "k": "false", "m": "false",
        "i": f"UNIQ_KEY\x017F000001006930946E0969A1{number:08X}\x02WAIT\x01true\x02{more}",
    }  # fmt: skip
    return RequestCode.SEND_MESSAGE_V2, ext, BODY


def half_request(number: int) -> Request:
    """A half message."""
    return send_request(number, f"TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02")


def end_request(half: RemotingCommand) -> Request:
    """The commit of the half message whose send had the answer ``half``."""
    given = half.ext_fields
    ext = {
        "producerGroup": GROUP,
        "tranStateTableOffset": given["queueOffset"],
        "commitLogOffset": str(int(given["msgId"][16:], 16)),
        "commitOrRollback": "8",
        "fromTransactionCheck": "false",
        "msgId": given["transactionId"],
    }
    return RequestCode.END_TRANSACTION, ext, b""


def exchange(client: RawClient, requests: list[Request]) -> Iterator[RemotingCommand]:
    """Send in windows and yield the answers, whose code must be 0."""
    for first in range(0, len(requests), WINDOW):
        window = requests[first : first + WINDOW]
        client.send(b"".join([client.frame(*request) for request in window]))
        for _ in window:
            answer = client.receive()
            assert answer.code == 0, answer.remark
            yield answer


def processor_us(server: Server) -> float:
    """Processor time the broker has used, in microseconds."""
    reading = read_process(server.pid)
    assert reading is not None
    return reading.cpu_s * 1e6


def measure(server: Server, client: RawClient, count: int, *, is_transaction: bool) -> float:
    """The broker's CPU microseconds for each message of one round."""
    make = half_request if is_transaction else send_request
    requests = [make(number) for number in range(count)]
    before = processor_us(server)
    answers = list(exchange(client, requests))
    used = processor_us(server) - before
    if is_transaction:
        ends = [end_request(answer) for answer in answers]
        before = processor_us(server)
        for _ in exchange(client, ends):
            pass
        used += processor_us(server) - before
    return used / count


def delivered(client: RawClient) -> int:
    """The number of messages that readers see in the first queue."""
    ext = {
        "consumerGroup": "g", "topic": "Bench", "queueId": "0", "queueOffset": "0",
        "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subscription": "*", "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip
    answer = client.call(RequestCode.PULL_MESSAGE, ext)
    assert decode_messages(answer.body)
    return int(answer.ext_fields["maxOffset"])


def main() -> None:
    """Run the rounds and print their costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    costs: dict[bool, list[float]] = {False: [], True: []}
    with (
        tempfile.TemporaryDirectory(prefix="bench-transactions-") as folder,
        start_broker(Path(folder) / "store") as server,
        RawClient(server.address) as client,
    ):
        for is_transaction in (False, True):
            measure(server, client, 2_000, is_transaction=is_transaction)
        for number in range(given.rounds):
            for is_transaction in (False, True):
                cost = measure(server, client, given.messages, is_transaction=is_transaction)
                costs[is_transaction].append(cost)
            print(f"round {number + 1}: send {costs[False][-1]:.1f} us, "
                  f"half and commit {costs[True][-1]:.1f} us")  # fmt: skip
        expected = 2 * (given.rounds * given.messages + 2_000) // 4
        assert delivered(client) == expected, "not every message was delivered"
    plain, whole = median(costs[False]), median(costs[True])
    print(f"send {plain:.1f} us, half and commit {whole:.1f} us of the broker's processor time")
    print(f"{whole / plain:.2f} times an ordinary message; asked: at most {TIMES_MAX:.0f}")


if __name__ == "__main__":
    main()
