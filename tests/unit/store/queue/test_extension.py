"""Extensions of consume queues: written with the units, read as hints, never believed blindly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.golden.store.java_stores import expectation, open_store, unpack
from tests.unit.store.stores import Rig

from cometmq.codec.consume_queue import decode_cq_ext_address, is_cq_ext_address
from cometmq.codec.cq_ext import BitmapHint, units_that_may_match, walk_cq_ext
from cometmq.codec.properties import decode_properties, encode_properties
from cometmq.codec.stored_message import decode_message, decode_messages, properties_of
from cometmq.core.filter.bloom_filter import BloomFilter
from cometmq.core.filter.consumer_filter import decode_filter_file
from cometmq.core.filter.filter_table import FilterTable
from cometmq.core.filter.property_filter import PropertyFilter
from cometmq.store.base.results import ColdRead, GetResult, GetStatus

if TYPE_CHECKING:
    from pathlib import Path

    from cometmq.codec.properties import Needle
    from cometmq.store.message_store import MessageStore

FOLDER = "/store/consumequeue_ext/T/0"
FILE_BYTES = 1024


class Filtered:
    """A store with one group's filter, and how many records were looked at for it."""

    def __init__(self, text: str = "n = '3'", **config: Any) -> None:
        self.rig = Rig(**{"consume_queue_ext_file_bytes": FILE_BYTES, **config})
        self.table = FilterTable(BloomFilter())
        self.table.register("T", "g", text, 1, self.rig.now_ms - 1)
        self.looked = 0
        self.extend()

    def extend(self) -> None:
        """Have a life's units extended."""
        self.rig.store.extend_queues(
            lambda topic: (
                (lambda raw: self.table.bitmap(topic, decode_properties(raw)))
                if self.table.is_filtered(topic)
                else None
            )
        )

    def fill(self, count: int, first: int = 0, **more: Any) -> None:
        """Messages n = 0 to 9 again and again."""
        for number in range(first, first + count):
            raw = encode_properties({"n": str(number % 10)})
            self.rig.put(body=b"%d" % number, properties=raw, **more)

    def save(self) -> None:
        """Let the units go to their files."""
        for _ in range(12):
            self.rig.tick(100)

    def filter(self) -> PropertyFilter:
        one = self.table.get("T", "g")
        assert one is not None
        found = PropertyFilter.of(one)
        assert found is not None
        return found

    def read(self, *, with_hint: bool = True) -> list[int]:
        """Numbers of all messages that match, read in turns."""
        return [int(message.body) for message in self.messages(with_hint=with_hint)]

    def messages(self, *, with_hint: bool = True, with_needles: bool = False) -> list[Any]:
        wanted, store = self.filter(), self.rig.store
        offset, found = store.min_queue_offset("T", 0), []
        self.looked = 0

        def match(record: memoryview) -> bool:
            self.looked += 1
            return wanted.matches(record)

        while offset < store.max_queue_offset("T", 0):
            result = self.get(
                store,
                offset,
                match,
                wanted.hint if with_hint else None,
                wanted.needles if with_needles else (),
            )
            assert result.next_queue_offset > offset
            assert (result.status is GetStatus.FOUND) is bool(result.chunks)
            found += decode_messages(b"".join(result.chunks))
            offset = result.next_queue_offset
        return found

    @staticmethod
    def get(
        store: MessageStore,
        offset: int,
        match: Any,
        hint: BitmapHint | None,
        needles: tuple[Needle, ...] = (),
    ) -> GetResult:
        result = store.get("T", 0, offset, 32, match=match, hint=hint, needles=needles)
        if isinstance(result, ColdRead):
            result.warm()
            result = store.get(
                "T", 0, offset, 32, match=match, hint=hint, needles=needles, allow_cold=True
            )
        assert isinstance(result, GetResult)
        return result

    def addresses(self) -> list[int]:
        """Positions the queue's units lead to, -1 for those without."""
        return [
            decode_cq_ext_address(unit.tags_code) if is_cq_ext_address(unit.tags_code) else -1
            for unit in self.rig.store.units("T", 0, 0, 1 << 20)
        ]


def expected(count: int) -> list[int]:
    return [number for number in range(count) if number % 10 == 3]


def test_only_records_that_may_match_are_read() -> None:
    """Units in files have bitmaps; those in memory are decided by their records."""
    store = Filtered()
    store.fill(500)
    assert store.read() == expected(500)
    assert store.looked == 500
    store.save()
    assert store.read() == expected(500)
    assert store.looked == 50
    assert store.read(with_hint=False) == expected(500)
    assert store.looked == 500
    store.fill(100, 500)
    assert store.read() == expected(600)
    assert store.looked == 50 + 100


def test_the_files_are_in_rocketmq_s_format() -> None:
    """Units one behind the other, an end blank where the next did not fit, addresses that hold."""
    store = Filtered()
    store.fill(100, tags_code=77)
    store.save()
    names = sorted(store.rig.disk.listdir(FOLDER))
    walked = [
        one
        for name in names
        for one in walk_cq_ext(store.rig.disk.read_bytes(f"{FOLDER}/{name}"), int(name))
    ]
    assert [one.file_position for one in walked] == store.addresses()
    assert len(names) == 4
    per_file = (FILE_BYTES - 4) // 34
    assert walked[per_file].file_position == FILE_BYTES
    first = store.rig.disk.read_bytes(f"{FOLDER}/{names[0]}")
    assert len(first) == FILE_BYTES
    assert first[per_file * 34 :][:2] == b"\xff\xff"
    one = store.table.get("T", "g")
    assert one is not None
    for number, placed in enumerate(walked):
        assert placed.unit.tags_code == 77
        assert placed.unit.store_time_ms == decode_messages_time(store, number)
        assert store.table.may_match(one, placed.unit) is (number % 10 == 3)


def decode_messages_time(store: Filtered, number: int) -> int:
    found = store.rig.get("T", 0, number, 1)
    return decode_message(found.chunks[0]).store_timestamp_ms


def test_topics_nobody_filters_have_none() -> None:
    """No directory, no address, and no cost."""
    store = Filtered()
    for _ in range(20):
        store.rig.put("U")
    store.save()
    assert not store.rig.disk.is_dir("/store/consumequeue_ext")
    assert {unit.tags_code for unit in store.rig.store.units("U", 0, 0, 20)} == {0}


@pytest.mark.parametrize("end", ["close", "kill", "power_cut"])
def test_the_next_life_goes_on_behind(end: str) -> None:
    """No address is given twice, and none leads to another message's unit."""
    store = Filtered()
    store.fill(75)
    store.save()
    before = store.addresses()
    assert -1 not in before
    if end == "close":
        store.rig.store.close()
    elif end == "kill":
        store.rig.disk.kill()
    else:
        store.rig.disk.power_cut()
    store.rig.open()
    kept = [address for address in store.addresses() if address >= 0]
    assert kept == before[: len(kept)]
    assert len(kept) == 75 or end == "power_cut"
    # What came between the lives matches anew.
    store.extend()
    count = len(store.addresses())
    store.fill(75, count)
    store.save()
    assert store.read() == expected(count + 75)
    behind = [address for address in store.addresses()[count:] if address >= 0]
    assert len(behind) == 75
    assert not kept or behind[0] > kept[-1]
    assert behind == sorted(set(behind))


@pytest.mark.parametrize("damage", ["zeros", "noise", "no file", "no files", "cut"])
def test_a_damaged_extension_loses_nothing(damage: str) -> None:
    """Records decide where bitmaps are gone; nothing ever stands in a lost one's place."""
    store = Filtered()
    store.fill(100)
    store.save()
    disk = store.rig.disk
    store.rig.store.close()
    names = sorted(disk.listdir(FOLDER))
    if damage == "zeros":
        disk.open_random(f"{FOLDER}/{names[-1]}", FILE_BYTES, create=False).write(0, bytes(512))
    elif damage == "noise":
        # A unit's size, and so everything behind it in its file.
        disk.open_random(f"{FOLDER}/{names[1]}", FILE_BYTES, create=False).write(34, b"\x7f\x7f")
        disk.open_random(f"{FOLDER}/{names[-1]}", FILE_BYTES, create=False).write(34, b"\x7f")
    elif damage == "cut":
        disk.cut(f"{FOLDER}/{names[-1]}", 40)
    else:
        for name in names if damage == "no files" else names[:1]:
            disk.remove(f"{FOLDER}/{name}")
    store.rig.open()
    store.extend()
    lost = store.addresses()
    assert store.read() == expected(100)
    assert 10 <= store.looked <= 100
    store.fill(100, 100)
    store.save()
    assert store.read() == expected(200)
    assert min(store.addresses()[100:]) > max(lost)


def test_a_filter_that_came_later_looks_at_records() -> None:
    """Bitmaps say nothing about filters that are younger than their messages."""
    store = Filtered()
    store.fill(60)
    store.save()
    store.rig.now_ms += 5
    store.table.register("T", "g", "n = '4'", 2, store.rig.now_ms)
    assert store.read() == [number + 1 for number in expected(60)]
    assert store.looked == 60
    store.rig.now_ms += 5
    store.fill(60, 60)
    store.save()
    assert store.read() == [number + 1 for number in expected(120)]
    assert store.looked == 66


def test_messages_of_mixed_kinds() -> None:
    """Units with and without an extension side by side: each is decided by what it has."""
    store = Filtered()
    for begin in range(0, 300, 100):
        store.fill(60, begin)
        store.save()
        store.rig.store._ext.bitmaps = None
        store.fill(40, begin + 60)
        store.save()
        store.extend()
    assert store.read() == expected(300)
    assert store.looked == 3 * (6 + 40)


def test_tags_are_found_through_addresses() -> None:
    """A tag filter of the same topic reads the codes in the extension."""
    store = Filtered()
    for number in range(90):
        store.rig.put(properties=b"n\x01%d\x02" % number, tags_code=number % 3)
    store.save()
    assert -1 not in store.addresses()
    found = store.rig.store.get("T", 0, 0, 32, codes=frozenset({2}))
    assert isinstance(found, GetResult)
    assert [m.queue_offset for m in decode_messages(b"".join(found.chunks))] == list(
        range(2, 90, 3)
    )
    # Where they are gone the consumer looks.
    for name in store.rig.disk.listdir(FOLDER):
        store.rig.disk.remove(f"{FOLDER}/{name}")
    store.rig.reopen()
    found = store.rig.store.get("T", 0, 0, 32, codes=frozenset({2}))
    assert isinstance(found, GetResult)
    assert found.count == 32


def test_a_filtered_read_is_bounded() -> None:
    """Without bitmaps 800 records are looked at, with them thousands of units."""
    store = Filtered("n = 'none'", consume_queue_ext_file_bytes=1 << 20)
    store.fill(3000)
    wanted = store.filter()
    for hint in (None, wanted.hint):
        result = Filtered.get(store.rig.store, 0, wanted.matches, hint)
        assert (result.status, result.next_queue_offset) == (GetStatus.NO_MATCHED_MESSAGE, 800)
    store.save()
    result = Filtered.get(store.rig.store, 0, wanted.matches, wanted.hint)
    assert (result.status, result.next_queue_offset) == (GetStatus.NO_MATCHED_MESSAGE, 3000)


def test_needles_spare_records() -> None:
    """What cannot match is not evaluated, and more of it is passed by in one read."""
    store = Filtered(commit_log_file_bytes=1 << 20)
    store.fill(3000)
    assert [int(one.body) for one in store.messages(with_needles=True)] == expected(3000)
    assert store.looked == 300
    result = Filtered.get(store.rig.store, 0, store.filter().matches, None, (b"n\x01x",))
    assert (result.status, result.next_queue_offset) == (GetStatus.NO_MATCHED_MESSAGE, 3000)


def test_a_lost_record_is_not_passed_by_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    """A page of zeros among adjacent records has no needle either; it is found all the same."""
    store = Filtered()
    store.fill(200)
    found = store.messages()
    lost = found[5]
    (path,) = [path for path in store.rig.disk.tree() if "/commitlog/" in path]
    log = store.rig.disk.open_random(path, 0, create=False)
    log.write(lost.physical_offset, bytes(lost.total_size))
    wanted = [one.queue_offset for one in found if one is not lost]
    caplog.clear()
    assert [one.queue_offset for one in store.messages(with_needles=True)] == wanted
    assert f"{lost.queue_offset}" in caplog.text


def test_cold_bytes_are_read_by_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither bitmaps nor records make the loop wait, and what was read is used."""
    from cometmq.testing.disk import SimRandomFile

    store = Filtered()
    store.fill(1200)
    store.save()
    store.rig.reopen()
    monkeypatch.setattr(SimRandomFile, "read_resident", lambda *_: None)
    wanted = store.filter()
    found = store.rig.store.get("T", 0, 0, 32, match=wanted.matches, hint=wanted.hint)
    assert isinstance(found, ColdRead)
    assert store.read() == expected(1200)


def test_files_go_with_their_messages() -> None:
    """Retention deletes what is in front of the first unit; a deleted topic leaves nothing."""
    store = Filtered(commit_log_file_bytes=8192, window_bytes=8192)
    store.fill(300)
    store.save()
    before = store.rig.disk.listdir(FOLDER)
    store.rig.store._retention.drop_files(3)
    store.rig.tick(100)
    least = store.rig.store.min_queue_offset("T", 0)
    assert least > 50
    left = sorted(store.rig.disk.listdir(FOLDER))
    assert len(left) < len(before)
    (first,) = store.rig.store.units("T", 0, least, 1)
    address = decode_cq_ext_address(first.tags_code)
    assert int(left[0]) <= address < int(left[0]) + FILE_BYTES
    assert store.read() == [number for number in expected(300) if number >= least]
    store.rig.store.delete_topic("T")
    store.save()
    assert not store.rig.disk.is_dir("/store/consumequeue_ext/T")


def test_a_java_broker_s_bitmaps(tmp_path: Path) -> None:
    """Its extension spares us records, its own filters find what evaluating everything finds."""
    root = unpack("ext", tmp_path)
    filters = decode_filter_file((root / "config/consumerFilter.json").read_bytes())
    records = [one for one in expectation("ext")["records"] if one["topic"] == "TopicSql"]
    store, _ = open_store("ext", root)
    try:
        for one in filters:
            wanted = PropertyFilter.of(one)
            assert wanted is not None
            looked: list[bytes] = []

            def match(record: memoryview, wanted: PropertyFilter = wanted) -> bool:
                looked.append(properties_of(record))  # noqa: B023 - used within this turn
                return wanted.matches(record)

            found: list[int] = []
            for queue_id in store.queues("TopicSql"):
                offset = 0
                while offset < store.max_queue_offset("TopicSql", queue_id):
                    result = store.get(
                        "TopicSql",
                        queue_id,
                        offset,
                        32,
                        match=match,
                        hint=wanted.hint,
                        allow_cold=True,
                    )
                    assert isinstance(result, GetResult)
                    found += [m.physical_offset for m in decode_messages(b"".join(result.chunks))]
                    offset = result.next_queue_offset
            assert sorted(found) == [
                record["physicalOffset"]
                for record in records
                if wanted.expression.matches(record["properties"])
            ]
            assert len(found) <= len(looked) < len(records)
    finally:
        store.close()


def test_places_by_columns_and_one_by_one_agree() -> None:
    """Columns of bytes say the same as each unit for itself, for any bits and times."""
    import random

    from cometmq.codec.consume_queue import CqExtUnit, encode_cq_ext_unit

    chance = random.Random(5)
    for _ in range(200):
        count = chance.randrange(1, 70)
        size = chance.choice((1, 14, 77))
        positions = tuple(chance.randrange(8 * size) for _ in range(chance.randrange(1, 4)))
        hint = BitmapHint(positions, size, chance.choice((0, 50, 200)))
        units = [
            CqExtUnit(chance.randrange(9), time_ms, chance.randbytes(size))
            for time_ms in sorted(chance.randrange(100) for _ in range(count))
        ]
        raw = b"".join(encode_cq_ext_unit(*unit) for unit in units)
        places = [place for place, unit in enumerate(units) if hint.may_match(unit)]
        assert units_that_may_match(raw, count, hint) == places
        odd = raw[:-1] + b""
        assert units_that_may_match(odd, count, hint) is None
        assert hint.may_match(None)
        assert hint.may_match(CqExtUnit(0, 1 << 40, b""))


@pytest.mark.parametrize("seed", range(12))
def test_no_message_is_missed_over_any_crashes(seed: int) -> None:
    """Filters change, processes die and power fails: reads by bitmaps find what records say."""
    import random

    chance = random.Random(seed)
    store = Filtered()
    version = total = 1
    lives = faults = hits = 0
    store.fill(1)
    for _ in range(40):
        step = chance.randrange(8)
        if step < 4:
            count = chance.randrange(1, 120)
            store.fill(count, total)
            total += count
        elif step < 6:
            for _ in range(chance.randrange(1, 15)):
                store.rig.tick(100)
        elif step == 6:
            version += 1
            store.rig.now_ms += 2
            store.table.register(
                "T", "g", f"n = '{chance.randrange(10)}'", version, store.rig.now_ms
            )
            store.rig.now_ms += 2
        else:
            end = chance.choice(["close", "kill", "power_cut"])
            faults += end != "close"
            lives += 1
            if end == "close":
                store.rig.store.close()
            else:
                getattr(store.rig.disk, end)()
            store.rig.open()
            store.extend()
            total = store.rig.store.max_queue_offset("T", 0)
        found = [message.queue_offset for message in store.messages()]
        hits += total - store.looked
        wanted = [message.queue_offset for message in store.messages(with_hint=False)]
        assert found == wanted, (seed, total)
        for with_hint in (True, False):
            searched = store.messages(with_hint=with_hint, with_needles=True)
            assert [message.queue_offset for message in searched] == wanted, (seed, total)
    assert total > 50
    assert hits or not lives


@pytest.mark.parametrize("hit", [1, 2, 5])
@pytest.mark.parametrize("place", ["consumequeue_ext/", "consumequeue/"])
def test_a_full_disk_between_units_and_extension(place: str, hit: int) -> None:
    """What was not written is written again, with other addresses; nothing is missed."""
    from cometmq.errors import DiskFull

    store = Filtered()
    store.fill(150)
    faults: list[str] = []

    def fail() -> None:
        faults.append(place)
        raise DiskFull("no space left")

    store.rig.disk.at("write", path_contains=place, hit=hit, action=fail)
    for _ in range(3):
        store.save()
        store.fill(50, len(store.addresses()))
        assert store.read() == expected(len(store.addresses()))
    store.save()
    assert faults == [place]
    assert store.read() == expected(300)
    assert store.looked == 30
    addresses = store.addresses()
    assert addresses == sorted(set(addresses))
    assert addresses[0] >= 0


@pytest.mark.parametrize("end", ["kill", "power_cut"])
@pytest.mark.parametrize("place", ["consumequeue_ext/", "consumequeue/"])
def test_the_end_comes_between_units_and_extension(place: str, end: str) -> None:
    """A process or a machine that dies over either file: what matches is found in the next life."""

    class Ended(Exception):
        pass

    store = Filtered()
    store.fill(150)
    store.save()
    store.fill(100, 150)
    faults: list[str] = []

    def fail() -> None:
        faults.append(place)
        raise Ended

    store.rig.disk.at("write", path_contains=place, hit=1, action=fail)
    store.save()
    assert faults == [place]
    getattr(store.rig.disk, end)()
    store.rig.open()
    store.extend()
    count = len(store.addresses())
    assert store.read() == expected(count)
    store.fill(100, count)
    store.save()
    assert store.read() == expected(count + 100)
    given = [address for address in store.addresses() if address >= 0]
    assert given == sorted(set(given))
