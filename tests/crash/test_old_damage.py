"""Asynchronous flush, an old log file damaged under the live store, then a kill.

The page cache outlives the process, so every record that was put is still there, flushed or not,
and damage in an old file may cost that file's messages only.  What the side file says of flushing
must not end the log at the damage: nothing behind it may be flushed yet, and the record by which
the side file knows the log may lie in the damage itself.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest
from tests.crash.test_kill9 import BrokerProcess
from tests.raw_client import RawClient
from tests.request_fields import pull_fields, send_fields
from tests.unit.store.stores import Rig

from cometmq.codec.stored_message import decode_messages_lenient

if TYPE_CHECKING:
    from pathlib import Path

NEVER_MS = 1 << 40
MESSAGE_COUNT = 400
FILE_BYTES = 65_536
SEEDS = range(int(os.environ.get("OLD_DAMAGE_SEEDS", "10")))


def fill(rig: Rig, chance: random.Random) -> list[int]:
    """Put the messages with turns of the timer between them; the physical offset of each."""
    offsets = []
    pause_ms, turn_every = chance.choice((0, 1, 5)), chance.choice((1, 10, 100, 1_000))
    for number in range(MESSAGE_COUNT):
        body = b"%d/" % number + bytes(chance.randrange(100, 800))
        offsets.append(rig.put(body=body).physical_offset)
        rig.now_ms += pause_ms
        if number % turn_every == turn_every - 1:
            rig.tick(chance.choice((1, 100, 700)))
    for _ in range(chance.choice((0, 1, 3, 30))):
        rig.tick(chance.choice((100, 700)))
    return offsets


def read(rig: Rig) -> set[int]:
    """Numbers of all messages that can be read and decoded, walking from first to last."""
    found: set[int] = set()
    at = rig.store.min_queue_offset("T", 0)
    while at < rig.store.max_queue_offset("T", 0):
        result = rig.get("T", 0, at)
        assert result.next_queue_offset > at
        at = result.next_queue_offset
        for chunk in result.chunks:
            for message in decode_messages_lenient(chunk)[0]:
                head = message.body.split(b"/")[0]
                if head.isdigit():
                    found.add(int(head))
    return found


def old_log_files(rig: Rig) -> list[str]:
    """Paths of all log files but the one that is written."""
    return sorted(path for path in rig.disk.tree() if "/commitlog/" in path)[:-1]


def damage(rig: Rig, path: str, kind: str, chance: random.Random) -> None:
    """Cut the file short or to nothing, or flip bits in it."""
    if kind == "flips":
        for _ in range(chance.choice((1, 40))):
            rig.disk.flip_bit(path, chance.randrange(FILE_BYTES), chance.randrange(8))
    else:
        rig.disk.cut(path, FILE_BYTES // 8 if kind == "short" else 0)


@pytest.mark.parametrize("kind", ["short", "nothing"])
@pytest.mark.parametrize("turns", [0, 3, 30])
@pytest.mark.parametrize("place", [0, 1])
def test_nothing_was_flushed(place: int, turns: int, kind: str) -> None:
    """Whether units are in their files yet or not, only the damaged file's messages are lost."""
    rig = Rig(flush_interval_ms=NEVER_MS, flush_thorough_interval_ms=NEVER_MS)
    offsets = [rig.put(body=b"%d/" % n + bytes(500)).physical_offset for n in range(MESSAGE_COUNT)]
    for _ in range(turns):
        rig.tick(100)
    assert rig.store.flushed_offset == 0
    path = old_log_files(rig)[place]
    damage(rig, path, kind, random.Random(1))
    rig.kill()
    sound = {n for n, at in enumerate(offsets) if at // FILE_BYTES != place}
    assert 100 < len(sound) < MESSAGE_COUNT
    assert read(rig) >= sound
    assert rig.store.max_queue_offset("T", 0) == MESSAGE_COUNT
    assert any(path in damage for damage in rig.report.damages)


def test_the_mark_of_the_side_file_is_in_the_damage() -> None:
    """Recovery goes Java's way then, and still knows that this machine did not restart."""
    rig = Rig(flush_interval_ms=NEVER_MS, flush_thorough_interval_ms=NEVER_MS)
    offsets = []
    for number in range(MESSAGE_COUNT):
        offsets.append(rig.put(body=b"%d/" % number + bytes(500)).physical_offset)
        rig.tick(100)
    damage(rig, old_log_files(rig)[0], "nothing", random.Random(1))
    rig.kill()
    assert rig.report.mode == "abnormal"
    assert "the log changed" in rig.report.reason
    assert read(rig) >= {n for n, at in enumerate(offsets) if at >= FILE_BYTES}


@pytest.mark.parametrize("seed", SEEDS)
def test_any_damage_at_any_moment(seed: int) -> None:
    """Seeds draw pace, flushing, file and kind of damage; a second life goes on and agrees."""
    chance = random.Random(seed)
    rig = Rig(
        flush_interval_ms=chance.choice((500, NEVER_MS)),
        flush_thorough_interval_ms=chance.choice((10_000, NEVER_MS)),
    )
    offsets = fill(rig, chance)
    paths = old_log_files(rig)
    place = chance.randrange(len(paths))
    damage(rig, paths[place], chance.choice(("short", "nothing", "flips")), chance)
    rig.now_ms += 1
    rig.kill()
    sound = {n for n, at in enumerate(offsets) if at // FILE_BYTES != place}
    # A flipped length hides the other records of the same answer from who decodes it.
    hidden_most = 32
    assert len(sound - read(rig)) <= hidden_most, f"seed {seed}: {rig.report}"
    end = rig.store.max_queue_offset("T", 0)
    assert end == MESSAGE_COUNT
    assert rig.put(body=b"%d/" % end).queue_offset == end
    rig.reopen()
    assert end in read(rig)


@pytest.mark.processes
@pytest.mark.timeout(120)
def test_a_real_broker(tmp_path: Path) -> None:
    """1,000 messages within a second or so, the oldest file cut, SIGKILL, restart."""
    count, size = 1_000, 8_000
    store = tmp_path / "store"
    broker = BrokerProcess(store, "ASYNC_FLUSH")
    broker.wait_until_ready()
    with RawClient(broker.address) as client:
        for number in range(count):
            assert client.call(310, send_fields("Old"), b"%d/" % number + bytes(size)).code == 0
    oldest = min((store / "commitlog").iterdir())
    in_oldest = oldest.stat().st_size // size + 1
    os.truncate(oldest, oldest.stat().st_size // 8)
    broker.kill()
    broker = BrokerProcess(store, "ASYNC_FLUSH")
    broker.wait_until_ready()
    found: set[bytes] = set()
    damaged = 0
    with RawClient(broker.address) as client:
        at = 0
        while at < count:
            answer = client.call(11, pull_fields("Old", at))
            # 20: skip on; 21: the queue begins later, its first file is gone.
            assert answer.code in {0, 20, 21}, f"at {at}: {answer.code} {answer.remark}"
            at = int(answer.ext_fields["nextBeginOffset"])
            if answer.code == 0:
                messages, broken = decode_messages_lenient(answer.body)
                # The cut goes through one record.  Where the log was flushed before, a start does
                # not read it again, and whoever decodes it finds the damage.
                assert not broken or at < in_oldest
                damaged += len(broken)
                found |= {message.body.split(b"/")[0] for message in messages}
    assert broker.stop() == 0
    assert damaged <= 1
    assert len(found) >= count - in_oldest, f"{len(found)} of {count} are left"
    assert {b"%d" % number for number in range(in_oldest, count)} <= found
