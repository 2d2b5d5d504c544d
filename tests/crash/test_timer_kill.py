"""A real broker process that ends itself by SIGKILL at a named step of its timers.

The same steps as on virtual time (`tests/sim/test_timers.py`), with a real disk, real sockets and
the ordinary client: each acknowledged message arrives once, and not before its time.
"""

import time
from pathlib import Path

import pytest
from tests.crash.stepping import Life, read_queue
from tests.raw_client import RawClient

from cometmq.errors import CometError
from cometmq.model import Message
from cometmq.sync import Producer

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

TOPIC = "Later"
COUNT = 60
WAIT_S = 60
SETTINGS: dict[str, object] = {
    "defaultTopicQueueNums": 1,
    "timerFlushIntervalMs": 200,
    "timerRollWindowSlot": 3,
    "mappedFileSizeTimerLog": 4096,
}


def send(life: Life) -> dict[bytes, int]:
    """Send until all are acknowledged or the broker is gone; bodies and times of those."""
    acked: dict[bytes, int] = {}
    with Producer("g", name_server=life.name_server, retries=0, timeout_ms=5000) as producer:
        for number in range(COUNT):
            body = f"{life.pid}-{number}".encode()
            due_ms = time.time_ns() // 1_000_000 + 200 + number * 97  # noqa: TID251 - its clock
            try:
                producer.send(Message(TOPIC, body, deliver_time_ms=due_ms))
            except CometError:
                break
            acked[body] = due_ms
    return acked


@pytest.mark.parametrize(
    ("step", "hit"),
    [("timer.log_synced", 6), ("timer.placed", 50)],
)
def test_a_kill_at_a_step_loses_and_repeats_nothing(step: str, hit: int, tmp_path: Path) -> None:
    """The next life delivers what the first had not."""
    first = Life(tmp_path, "timers", SETTINGS, step, hit)
    try:
        acked = send(first)
        first.check_killed()
    finally:
        first.close()
    second = Life(tmp_path, "timers", SETTINGS)
    try:
        acked |= send(second)
        deadline = time.monotonic() + WAIT_S
        while True:
            with RawClient(second.address) as client:
                found = list(read_queue(client, TOPIC, 0))
            bodies = [bytes(message.body) for message in found]
            if acked.keys() <= set(bodies):
                break
            assert time.monotonic() < deadline, f"never arrived: {acked.keys() - set(bodies)}"
            time.sleep(0.1)
        assert len(set(bodies)) == len(bodies), "twice"
        for message in found:
            due_ms = acked.get(bytes(message.body))
            assert due_ms is None or message.store_timestamp_ms >= due_ms, "too early"
    finally:
        second.close()
