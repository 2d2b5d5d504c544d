"""Queue files that are cut, removed or changed under a live store are derived from the log again.

The loop only learns that it has to wait; a worker walks the log.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.store.stores import HeldWorkers, Rig

from cometmq.codec.stored_message import decode_messages_lenient
from cometmq.errors import StoreError
from cometmq.model.offsets import QueueOffset
from cometmq.store.base.results import ColdRead, GetResult, GetStatus, TimeBoundary
from cometmq.store.offline.verify import verify_store

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT = 500
FILE_UNITS = 100


class Crash(BaseException):
    """Raised where nothing may come."""


def filled(**config: Any) -> Rig:
    """Five full queue files of `T`, with messages of other queues between."""
    rig = Rig(commit_log_file_bytes=1 << 20, consume_queue_file_bytes=FILE_UNITS * 20, **config)
    for number in range(COUNT):
        rig.put(body=b"%d/" % number, tags_code=code_of(number), properties=tags_of(number))
        rig.put("Other", number % 3, b"other")
    rig.tick(1_000)
    rig.tick(1_000)
    rig.put(body=b"%d/" % COUNT, tags_code=code_of(COUNT), properties=tags_of(COUNT))
    return rig


def tags_of(number: int) -> bytes:
    return b"TAGS\x01%s\x02" % (b"A" if number % 2 else b"B")


def code_of(number: int) -> int:
    return ord("A") if number % 2 else ord("B")


def queue_file(place: int) -> str:
    return f"/store/consumequeue/T/0/{place * FILE_UNITS * 20:020d}"


def read(rig: Rig, codes: frozenset[int] | None = None) -> list[int]:
    """Numbers of all messages, as a broker reads: a cold read is warmed, then asked again."""
    found: list[int] = []
    at = rig.store.min_queue_offset("T", 0)
    while at < rig.store.max_queue_offset("T", 0):
        result = rig.store.get("T", 0, at, 32, codes=codes)
        if isinstance(result, ColdRead):
            result.warm()
            result = rig.store.get("T", 0, at, 32, codes=codes, allow_cold=True)
        assert isinstance(result, GetResult)
        assert result.next_queue_offset > at
        at = result.next_queue_offset
        for chunk in result.chunks:
            found += [int(m.body.split(b"/")[0]) for m in decode_messages_lenient(chunk)[0]]
    return found


def cut(rig: Rig) -> None:
    rig.disk.cut(queue_file(2), 77)


def cut_to_nothing(rig: Rig) -> None:
    rig.disk.cut(queue_file(0), 0)


def remove(rig: Rig) -> None:
    rig.disk.remove(queue_file(1))
    rig.disk.remove(queue_file(3))


def zero(rig: Rig) -> None:
    rig.disk.open_random(queue_file(4), 0, create=False).write(500, bytes(700))


def flip(rig: Rig) -> None:
    chance = random.Random(3)
    for _ in range(60):
        place = chance.randrange(5)
        # Place and size of a unit; a code only decides who gets the message (see recovery).
        position = chance.randrange(FILE_UNITS) * 20 + chance.randrange(12)
        rig.disk.flip_bit(queue_file(place), position, chance.randrange(8))


DAMAGES = [cut, cut_to_nothing, remove, zero, flip]


@pytest.mark.parametrize("codes", [None, frozenset({ord("A")})], ids=["all", "filtered"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_readers_get_everything(
    damage: Callable[[Rig], None], codes: frozenset[int] | None, caplog: pytest.LogCaptureFixture
) -> None:
    """At the same queue offsets, at once, and the files are right again."""
    rig = filled()
    damage(rig)
    rig.store._queues.forget_files("/store/consumequeue")
    wanted = [n for n in range(COUNT + 1) if codes is None or code_of(n) in codes]
    assert read(rig, codes) == wanted
    assert "derived from the log again" in caplog.text
    # A filter looks at no unit of other tags.
    assert read(rig) == list(range(COUNT + 1))
    caplog.clear()
    assert read(rig) == list(range(COUNT + 1))
    assert read(rig, codes) == wanted
    assert caplog.text == ""
    rig.put(body=b"%d/" % (COUNT + 1))
    assert read(rig) == list(range(COUNT + 2))
    rig.store.close()
    assert verify_store(rig.disk, "/store").findings == []


def test_the_loop_reads_no_log() -> None:
    """Who asks gets ColdRead; what was derived is there for who asks next."""
    workers = HeldWorkers()
    rig = filled(workers=workers)
    while workers.run():
        rig.tick(1_000)
    cut_to_nothing(rig)
    rig.store._queues.forget_files("/store/consumequeue")
    rig.disk.at("read", path_contains="/commitlog/", action=rig.disk.fail_with(Crash()))
    first = rig.store.get("T", 0, 10, 32)
    assert isinstance(first, ColdRead)
    with pytest.raises(Crash):
        first.warm()
    first.warm()
    again = rig.store.get("T", 0, 10, 32)
    assert isinstance(again, GetResult)
    assert again.count == 32


@pytest.mark.parametrize("damage", DAMAGES)
def test_where_the_log_is_damaged_too(
    damage: Callable[[Rig], None], caplog: pytest.LogCaptureFixture
) -> None:
    """What is lost is skipped, once searched for and not again; all else is there."""
    rig = filled()
    for queue_offset in (5, 6, 120, 250, 251, 252, 499, COUNT):
        unit = rig.store._queues.unit(rig.store._queues.topics["T"][0], QueueOffset(queue_offset))
        assert unit is not None
        rig.disk.flip_bit("/store/commitlog/" + "0" * 20, unit.physical_offset + 30, 3)
    damage(rig)
    rig.store._queues.forget_files("/store/consumequeue")
    lost = {5, 6, 120, 250, 251, 252, 499, COUNT}
    found = read(rig)
    # In a run of adjacent records a flipped head may take its neighbours from who decodes.
    assert set(range(COUNT + 1)) - set(found) <= lost
    assert found == sorted(found)
    assert caplog.text.count("/store/commitlog/" + "0" * 20 + ", position ") >= len(lost) - 2
    assert "are lost and skipped" in caplog.text
    reads = rig.disk.counts["read"]
    assert read(rig) == found
    assert rig.disk.counts["read"] - reads < 400
    result = rig.store.get("T", 0, 5, 1)
    assert isinstance(result, GetResult)
    assert result.status is GetStatus.MESSAGE_WAS_REMOVING


def test_a_deleted_topic_stays_deleted() -> None:
    """A walk that was under way when the topic went makes no file."""
    rig = filled()
    cut_to_nothing(rig)
    rig.store._queues.forget_files("/store/consumequeue")
    cold = rig.store.get("T", 0, 10, 32)
    assert isinstance(cold, ColdRead)
    rig.store.delete_topic("T")
    rig.tick(1_000)
    cold.warm()
    assert not rig.disk.exists("/store/consumequeue/T")


def test_a_search_by_time_passes_over_no_message() -> None:
    """Incident of 2026-11-28: a reset to a time led behind messages, since one unit was changed."""
    rig = Rig()
    times = []
    for number in range(60):
        rig.now_ms += 10
        times.append(rig.now_ms)
        rig.put(body=b"%d" % number)
    rig.tick(2_000)
    rig.reopen()
    path = queue_file(0)
    for spoilt in range(60):
        rig.disk.flip_bit(path, spoilt * 20 + 2)
        rig.store._queues.forget_files("/store/consumequeue")
        for number, time_ms in enumerate(times):
            lower = rig.store.queue_offset_by_time("T", 0, time_ms, TimeBoundary.LOWER)
            assert number - (spoilt < number) <= lower <= number, (spoilt, number)
        rig.disk.flip_bit(path, spoilt * 20 + 2)


def test_a_changed_unit_hides_no_message_before_it() -> None:
    """It may lead before the log's begin, as units of expired messages do."""
    rig = Rig()
    for number in range(90):
        rig.put(body=b"%d" % number + bytes(2_000))
    rig.tick(2_000)
    rig.store._writer.sync_round()
    rig.store._retention.drop_files(1)
    rig.tick(2_000)
    first = rig.store.min_queue_offset("T", 0)
    assert first > 20
    for spoilt in range(first, 90):
        path, position = queue_file(0), spoilt * 20
        leading = rig.disk.read_bytes(path)[position : position + 8]
        rig.disk.spoil(path, position, (1).to_bytes(8, "big"))
        rig.disk.kill()
        rig.open()
        assert rig.store.min_queue_offset("T", 0) == first, spoilt
        rig.disk.spoil(path, position, leading)


def test_a_block_that_the_disk_does_not_give_is_named() -> None:
    """Messages before and behind it are read, and its own is not passed over in silence."""
    rig = Rig()
    for number in range(60):
        rig.put(body=b"%d" % number + bytes(1_000))
    rig.tick(2_000)
    rig.reopen()
    unit = rig.store._queues.unit(rig.store._queues.topics["T"][0], QueueOffset(20))
    assert unit is not None
    rig.disk.lose_block("/store/commitlog/" + "0" * 20, unit.physical_offset + 300)
    read, refused, texts, at = [], [], [], 0
    while at < 60:
        try:
            result = rig.get("T", 0, at)
        except StoreError as error:
            refused.append(at)
            texts.append(str(error))
            at += 1
            continue
        read += list(range(at, at + result.count))
        at = result.next_queue_offset
    assert 20 in refused
    for queue_offset, text in zip(refused, texts, strict=True):
        assert f"T/0 at {queue_offset}, /store/commitlog/{'0' * 20}, position " in text
    assert len(refused) <= 6
    assert sorted(read + refused) == list(range(60))
