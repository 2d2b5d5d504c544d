"""Old log files go under a live broker process: by their age, and when the disk fills up."""

import os
import time
from datetime import datetime
from pathlib import Path

import pytest
from tests.crash.test_full_disk import DISK_BYTES, SEND, TOPIC, small_disk
from tests.crash.test_kill9 import BrokerProcess
from tests.raw_client import RawClient
from tests.request_fields import pull_fields

from cometmq.codec.stored_message import decode_messages

__all__ = ["small_disk"]

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

QUEUE = {"topic": TOPIC, "queueId": "0"}


def offset(client: RawClient, code: int) -> int:
    """Largest (30) or smallest (31) offset of the queue."""
    return int(client.call(code, QUEUE).ext_fields["offset"])


def check_rest(client: RawClient) -> int:
    """From the queue's smallest offset on everything is there, in its place; how much it is."""
    first, end = offset(client, 31), offset(client, 30)
    at = first
    while at < end:
        answer = client.call(11, pull_fields(TOPIC, at))
        if answer.code == 21 and offset(client, 31) > at:
            # More files went while we read: the rest begins later.
            first = at = int(answer.ext_fields["nextBeginOffset"])
            continue
        assert answer.code == 0, f"offset {at} of {first} to {end}: {answer.code} {answer.remark}"
        for message in decode_messages(answer.body):
            assert message.queue_offset == at
            assert bytes(message.body).startswith(b"%d/" % at)
            at += 1
    return end - first


def send(client: RawClient, number: int) -> None:
    """One message that says its own offset."""
    answer = client.call(310, SEND, b"%d/" % number + bytes(8_000))
    assert answer.code == 0, f"{answer.code} {answer.remark}"
    assert answer.ext_fields["queueOffset"] == str(number)


@pytest.mark.parametrize("is_hour", [True, False], ids=["at its hour", "at another hour"])
def test_files_go_by_age(tmp_path: Path, is_hour: bool) -> None:
    """What is left is whole, who asks for more is told where it begins, a restart agrees."""
    store = tmp_path / "store"
    # Across the turn of an hour both neighbours count as now.
    now_hour = datetime.now().astimezone().hour
    hours = {now_hour, (now_hour + 1) % 24} if is_hour else {(now_hour + 12) % 24}
    when = ";".join(f"{hour:02d}" for hour in sorted(hours))
    more = ["cleanResourceInterval=100", "fileReservedTime=1", f"deleteWhen={when}"]
    broker = BrokerProcess(store, "ASYNC_FLUSH", more)
    broker.wait_until_ready()
    with RawClient(broker.address) as client:
        for number in range(1_000):
            send(client, number)
        files = sorted((store / "commitlog").iterdir())
        assert len(files) == 4
        # Several rounds of looking: nothing is an hour old.
        time.sleep(0.5)
        assert sorted((store / "commitlog").iterdir()) == files
        two_hours_ago = time.clock_gettime(time.CLOCK_REALTIME) - 7_200
        for path in files[:2]:
            os.utime(path, (two_hours_ago, two_hours_ago))
        deadline = time.monotonic() + (20 if is_hour else 0.5)
        while files[0].exists() or files[1].exists():
            if time.monotonic() >= deadline:
                assert not is_hour, "no file was deleted"
                break
            time.sleep(0.05)
        left = files[2:] if is_hour else files
        assert sorted((store / "commitlog").iterdir()) == left
        assert (offset(client, 31) > 0) is is_hour
        count = check_rest(client)
        early = client.call(11, pull_fields(TOPIC, 1))
        # 21: the offset is not there, go on at the one in the answer.
        assert early.code == (21 if is_hour else 0)
        if is_hour:
            assert early.ext_fields["nextBeginOffset"] == str(1_000 - count)
        send(client, 1_000)
    broker.kill()
    broker = BrokerProcess(store, "ASYNC_FLUSH", more)
    broker.wait_until_ready()
    with RawClient(broker.address) as client:
        assert check_rest(client) == count + 1
        send(client, 1_001)
    assert broker.stop() == 0


def test_files_go_when_the_disk_fills_up(small_disk: Path) -> None:
    """Three times what the disk holds is sent: the oldest files make room, whatever their age."""
    store = small_disk / "store"
    more = [
        "cleanResourceInterval=50",
        "diskMaxUsedSpaceRatio=50",
        "diskSpaceCleanForciblyRatio=60",
    ]
    broker = BrokerProcess(store, "ASYNC_FLUSH", more)
    broker.wait_until_ready()
    with RawClient(broker.address) as client:
        for number in range(3 * DISK_BYTES // 8_000):
            send(client, number)
            if number % 50 == 0:
                # Slower than a disk fills, as watermarks are meant for.
                time.sleep(0.01)
        assert offset(client, 31) > 0
        assert check_rest(client) > 100
    assert broker.stop() == 0
