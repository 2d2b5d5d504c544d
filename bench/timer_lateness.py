"""Measures how late an otherwise idle broker delivers timed messages.

    .venv/bin/python -m bench.timer_lateness [--messages 2000] [--seconds 40] [--precision 1000]

Messages are stored first, with random times in the following seconds.  The lateness of a message is
its store time in its topic minus the requested time, both in whole milliseconds of one clock.
Other programs on the machine add to it, so the load is printed.  The longest oversleep of this
process shows the machine's own share.  The target: no message early, none more than 100 ms late.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import threading
import time
from pathlib import Path

from tests.raw_client import RawClient

from bench.base.processes import start_broker
from cometmq.codec.stored_message import StoredMessage, decode_messages
from cometmq.net.env import SystemClock
from cometmq.wire.command.codes import RequestCode

CLOCK = SystemClock()
AHEAD_MS = 5_000
LATE_MS_MAX = 100
WINDOW = 64


def store(client: RawClient, times_ms: list[int]) -> None:
    """Send one message for each time; the code of every answer must be 0."""
    for first in range(0, len(times_ms), WINDOW):
        window = times_ms[first : first + WINDOW]
        frames = []
        for number, due_ms in enumerate(window, first):
            key = f"7F000001006930946E0969A1{number:08X}"
            ext = {
                "a": "bench", "b": "Late", "c": "TBW102", "d": "1", "e": "0", "f": "0",
                "g": str(CLOCK.now_ms()), "h": "0", "j": "0", "k": "false", "m": "false",
                "i": f"UNIQ_KEY\x01{key}\x02TIMER_DELIVER_MS\x01{due_ms}\x02",
            }  # fmt: skip
            frames.append(client.frame(RequestCode.SEND_MESSAGE_V2, ext, b"x" * 100))
        client.send(b"".join(frames))
        for _ in window:
            answer = client.receive()
            assert answer.code == 0, answer.remark


def delivered(client: RawClient, queue_offset: int) -> list[StoredMessage]:
    """The messages that readers see from an offset on."""
    ext = {
        "consumerGroup": "g", "topic": "Late", "queueId": "0", "queueOffset": str(queue_offset),
        "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subscription": "*", "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip
    answer = client.call(RequestCode.PULL_MESSAGE, ext)
    return decode_messages(answer.body) if answer.code == 0 else []


class Sleeper(threading.Thread):
    """Sleeps 5 ms again and again, and notes the longest oversleep."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.longest_ms = 0.0
        self.is_over = False

    def run(self) -> None:
        """Sleep until told to stop."""
        while not self.is_over:
            begun = time.perf_counter()
            time.sleep(0.005)
            self.longest_ms = max(self.longest_ms, (time.perf_counter() - begun) * 1000 - 5)


def main() -> None:
    """Store the messages, wait for them, and print their lateness."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=2_000)
    parser.add_argument("--seconds", type=int, default=40)
    parser.add_argument("--precision", type=int, default=1_000)
    given = parser.parse_args()
    chance = random.Random(7)
    with (
        tempfile.TemporaryDirectory(prefix="bench-lateness-") as folder,
        start_broker(
            Path(folder) / "store", settings={"timerPrecisionMs": str(given.precision)}
        ) as server,
        RawClient(server.address) as client,
    ):
        begin_ms = CLOCK.now_ms() + AHEAD_MS
        times_ms = [
            begin_ms + chance.randrange(given.seconds * 1000) for _ in range(given.messages)
        ]
        store(client, times_ms)
        assert CLOCK.now_ms() < begin_ms, "the machine took too long to store them"
        sleeper = Sleeper()
        sleeper.start()
        time.sleep(max(times_ms) / 1000 + 3 - CLOCK.now_ms() / 1000)
        sleeper.is_over = True
        found: list[StoredMessage] = []
        while more := delivered(client, len(found)):
            found += more
    assert len(found) == given.messages, f"{len(found)} of {given.messages} were delivered"
    late_ms = sorted(
        message.store_timestamp_ms - int(message.properties["TIMER_DELIVER_MS"])
        for message in found
    )
    assert late_ms[0] >= 0, f"{-late_ms[0]} ms early"
    p99 = late_ms[len(late_ms) * 99 // 100]
    print(
        f"{given.messages} messages in {given.seconds} s: median {late_ms[len(late_ms) // 2]} ms"
        f" late, p99 {p99} ms, most {late_ms[-1]} ms; asked: at most {LATE_MS_MAX}"
    )
    print(
        f"load {os.getloadavg()[0]:.1f}; the machine kept a sleeping thread up to"
        f" {sleeper.longest_ms:.0f} ms"
    )


if __name__ == "__main__":
    main()
