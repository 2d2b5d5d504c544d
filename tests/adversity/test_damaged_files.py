"""Store files that are cut or changed behind the back of a live broker process.

A read or a write beyond the end of a mapped file raises SIGBUS, which no Python handler
sees. The tests therefore watch a broker process. The broker serves what is not damaged, names in
its log what is damaged, goes on taking sends, and a restart opens the store.
"""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.test_kill9 import BrokerProcess
from tests.raw_client import RawClient
from tests.request_fields import pull_fields, send_fields

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

TOPIC = "Damaged"
MESSAGE_COUNT = 600
QUEUE = {"topic": TOPIC, "queueId": "0"}


def body_of(number: int) -> bytes:
    """Make a body of 8 KB that no other message has; a log file of 2 MiB holds about 250."""
    return b"%d/" % number + bytes([number % 251]) * 8_000


def send(client: RawClient, number: int) -> int:
    """Send one message and return its queue offset."""
    answer = client.call(310, send_fields(TOPIC, f"KEYS\x01key{number}\x02"), body_of(number))
    assert answer.code == 0, f"{answer.code} {answer.remark}"
    return int(answer.ext_fields["queueOffset"])


def read_on(client: RawClient) -> set[int]:
    """Read the queue from 0 to its end as a client does; return offsets with the right body."""
    sound: set[int] = set()
    end = int(client.call(30, QUEUE).ext_fields["offset"])
    at = 0
    while at < end:
        answer = client.call(11, pull_fields(TOPIC, at))
        following = int(answer.ext_fields["nextBeginOffset"])
        if answer.code == 0:
            for number in range(at, following):
                if body_of(number) in answer.body:
                    sound.add(number)
        else:
            # 20: nothing there, ask on; 21: that place is gone.
            assert answer.code in {20, 21}, f"{answer.code} {answer.remark}"
        assert following > at, f"no way on from {at}: {answer.code} {answer.remark}"
        at = following
    return sound


def ask_all_else(client: RawClient) -> None:
    """Send queries by key, time and physical offset, and check that each gets some answer."""
    for number in range(0, MESSAGE_COUNT, 37):
        query = {"topic": TOPIC, "key": f"key{number}", "maxNum": "4", "beginTimestamp": "0"}
        assert client.call(12, {**query, "endTimestamp": str(1 << 60)}).code in {0, 1, 22}
        assert client.call(33, {"offset": str(number * 8_100)}).code in {0, 1}
    for timestamp in (0, 1 << 40, 1 << 60):
        assert client.call(29, {**QUEUE, "timestamp": str(timestamp)}).code == 0
    assert client.call(32, QUEUE).code == 0


def cut_short(path: Path) -> None:
    """Cut a file to an eighth of its size, which removes data from every kind of file."""
    os.truncate(path, path.stat().st_size // 8)


def cut_to_nothing(path: Path) -> None:
    """Empty a file."""
    os.truncate(path, 0)


def flip(path: Path) -> None:
    """Flip one bit in each of several written parts of a file."""
    chance = random.Random(7)
    with path.open("r+b") as file:
        for _ in range(400):
            position = chance.randrange(min(path.stat().st_size, 2_000_000))
            file.seek(position)
            [old] = file.read(1) or [0]
            file.seek(position)
            file.write(bytes([old ^ 1 << chance.randrange(8)]))


def log_file(place: int) -> Callable[[Path], list[Path]]:
    """Return the path of the n-th log file."""
    return lambda store: [sorted((store / "commitlog").iterdir())[place]]


FILES: dict[str, Callable[[Path], list[Path]]] = {
    "oldest log file": log_file(0),
    "active log file": log_file(-1),
    "queue": lambda store: sorted((store / "consumequeue" / TOPIC / "0").iterdir()),
    "index and checkpoints": lambda store: [
        *(store / "index").iterdir(),
        store / "checkpoint",
        store / "cometmq.checkpoint",
    ],
}
# Log files hold at most so many of the messages.
IN_ONE_FILE = 260


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *(("oldest log file", damage) for damage in (cut_short, cut_to_nothing, flip)),
        *(("active log file", damage) for damage in (cut_short, cut_to_nothing, flip)),
        ("queue", cut_short),
        ("queue", cut_to_nothing),
        ("queue", flip),
        ("index and checkpoints", cut_to_nothing),
        ("index and checkpoints", flip),
    ],
)
def test_the_broker_goes_on(tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    """The broker goes on serving, whichever file is damaged and wherever."""
    store = tmp_path / "store"
    broker = BrokerProcess(store, "ASYNC_FLUSH")
    broker.wait_until_ready()
    with RawClient(broker.address) as client:
        for number in range(MESSAGE_COUNT):
            assert send(client, number) == number
        ask_all_else(client)
        # Units and entries are in their files a moment later. Where a file gets them after its
        # damage, the broker goes on all the same, with less damage.
        deadline = time.monotonic() + 20
        while not (store / "consumequeue" / TOPIC / "0").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(1)
        paths = FILES[name](store)
        for path in paths:
            damage(path)
        sound = read_on(client)
        is_log = "log file" in name
        lost_most = IN_ONE_FILE if is_log else 0
        assert len(sound) >= MESSAGE_COUNT - lost_most, f"{len(sound)} of {MESSAGE_COUNT} are left"
        ask_all_else(client)
        first = send(client, MESSAGE_COUNT)
        assert [send(client, first + number) for number in range(1, 20)] == [
            first + number for number in range(1, 20)
        ]
        if is_log and damage is not flip:
            assert paths[0].name in broker.log()
        if name == "queue":
            assert "derived from the log again" in broker.log()
    broker.kill()
    broker = BrokerProcess(store, "ASYNC_FLUSH")
    broker.wait_until_ready()
    with RawClient(broker.address) as client:
        again = read_on(client)
        lost_most = IN_ONE_FILE if is_log else 0
        assert len(again) >= MESSAGE_COUNT - lost_most, f"{len(again)} are left"
        ask_all_else(client)
        send(client, 0)
    assert broker.stop() == 0
    assert "Traceback" not in broker.log()
