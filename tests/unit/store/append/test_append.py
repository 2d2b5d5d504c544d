"""append: the same log, queues and index for many messages as for one after the other."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.store.stores import HOST, Rig

from cometmq.errors import MessageIllegal, StoreClosed
from cometmq.store.base.results import PutItem, PutResult


def item(number: int, queue_id: int = 0, topic: str = "T", **other: Any) -> PutItem:
    body = other.get("body", b"%d" % number)
    properties = other.get("properties", b"KEYS\x01k%d\x02" % number)
    keys = (f"U{number}", f"k{number}", None)
    return PutItem(
        topic, queue_id, body, properties, number, other.get("sys_flag", 0), 5, number % 3, keys,
        other.get("reconsume_times", 0), other.get("prepared_offset", 0),
    )  # fmt: skip


def put_one(rig: Rig, one: PutItem) -> PutResult:
    return rig.store.put(
        one.topic, one.queue_id, one.body, one.properties, flag=one.flag, sys_flag=one.sys_flag,
        born_ms=one.born_ms, born_host=HOST, reconsume_times=one.reconsume_times,
        prepared_offset=one.prepared_offset, tags_code=one.tags_code, store_ms=rig.now_ms,
        index_keys=one.index_keys,
    )  # fmt: skip


def append(rig: Rig, items: list[PutItem], born_host: bytes = HOST) -> list[PutResult]:
    return rig.store.append(items, born_host=born_host, store_ms=rig.now_ms)


def contents(rig: Rig, topics: tuple[str, ...] = ("T", "Other")) -> Any:
    store = rig.store
    found: dict[Any, Any] = {"wrote": store.max_physical_offset}
    for topic in topics:
        for queue_id in store.queues(topic):
            result: Any = store.get(topic, queue_id, 0, 10_000)
            found[topic, queue_id] = (result.count, b"".join(result.chunks))
        for number in range(3):
            found[topic, f"k{number}"] = store.prepare_query_index(
                topic, f"k{number}", 9
            )().physical_offsets
    return found


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["T", "Other"]), st.integers(0, 9_000)),
        max_size=40,
    )
)
def test_many_are_stored_as_one_by_one(shape: list[tuple[int, str, int]]) -> None:
    """Over windows and files too, with queues that are new."""
    items = [
        item(n, queue_id, topic, body=b"%d" % n * (1 + size // 4))
        for n, (queue_id, topic, size) in enumerate(shape)
    ]
    left, right = Rig(), Rig()
    assert append(left, items) == [put_one(right, one) for one in items]
    assert contents(left) == contents(right)


@pytest.mark.parametrize(
    "odd",
    [
        item(1, 7),
        item(1, topic="New"),
        item(1, properties=bytes(2_000)),
        item(1, sys_flag=4),
        item(1, reconsume_times=3),
        item(1, prepared_offset=77),
    ],
)
def test_what_is_not_simple_is_stored_in_its_turn(odd: PutItem) -> None:
    """Between simple ones, first and last; as one by one."""
    left, right = Rig(), Rig()
    items = [odd, item(1), odd, item(2), odd]
    assert append(left, items) == [put_one(right, one) for one in items]
    assert contents(left, ("T", "New")) == contents(right, ("T", "New"))


@pytest.mark.parametrize(
    "refused",
    [item(1, body=bytes(5 << 20)), item(1, properties=bytes(40_000)), item(1, topic="..")],
)
def test_what_is_refused_ends_the_run(refused: PutItem) -> None:
    """Those before it are stored, it and those behind it are not; alone it says why."""
    rig = Rig()
    put_one(rig, item(0))
    results = append(rig, [item(1), item(2), refused, item(3)])
    assert [result.queue_offset for result in results] == [1, 2]
    assert rig.store.max_queue_offset("T", 0) == 3
    with pytest.raises(MessageIllegal):
        append(rig, [refused, item(3)])
    assert rig.store.max_queue_offset("T", 0) == 3


def test_fault_in_the_middle_leaves_whole_messages() -> None:
    """A flag that fits no record: what came before has record, unit and offsets."""
    rig = Rig()
    put_one(rig, item(0))
    bad = item(2)
    bad.flag = 1 << 40
    with pytest.raises(struct.error):
        append(rig, [item(1), bad, item(3)])
    assert put_one(rig, item(4)).queue_offset == 2
    result: Any = rig.store.get("T", 0, 0, 10)
    assert result.count == 3
    assert rig.store.message_at(put_one(rig, item(5)).physical_offset) is not None


def test_closed_store_refuses_and_general_ones_take_all() -> None:
    """CRC tails and IPv6 peers make no difference to who calls."""
    rig = Rig()
    put_one(rig, item(0))
    assert len(append(rig, [item(1), item(2)], bytes(20))) == 2
    rig.store.close()
    with pytest.raises(StoreClosed):
        append(rig, [item(1)])
    tails = Rig(is_crc_appended=True)
    assert len(append(tails, [item(1), item(2)])) == 2


def test_many_become_visible_after_their_flush() -> None:
    """With synchronous flush, nobody is told before; then everyone, in order."""
    rig = Rig(is_sync_flush=True)
    put_one(rig, item(0))
    told: list[Any] = []
    rig.store.arrival_listener = lambda *what: told.append(what)
    rig.store.watch("T", 0)
    before = rig.store.max_queue_offset("T", 0)
    results = append(rig, [item(1), item(2)])
    durable: list[bool] = []
    rig.store.when_durable(rig.store.max_physical_offset, durable.append)
    assert len(results) == 2
    for _ in range(20):
        rig.tick(100)
    assert durable == [True]
    assert before <= 1
    assert [(topic, offset, code) for topic, _, offset, code in told][-2:] == [
        ("T", 2, 1),
        ("T", 3, 2),
    ]
    assert rig.store.max_queue_offset("T", 0) == 3


def test_watchers_are_told_when_the_records_are_there() -> None:
    """The listener can read what it is told of."""
    rig = Rig()
    put_one(rig, item(0))
    seen: list[int] = []

    def listener(topic: str, queue_id: int, following: int, code: int) -> None:
        result: Any = rig.store.get(topic, queue_id, following - 1, 1)
        seen.append(len(b"".join(result.chunks)))

    rig.store.arrival_listener = listener
    rig.store.watch("T", 0)
    append(rig, [item(1), item(2)])
    assert len(seen) == 2
    assert all(seen)


def test_watchers_are_told_in_the_order_of_the_messages() -> None:
    """Held pulls are answered in order too where the window or a log file ends within the run."""
    rig = Rig()
    told: list[int] = []
    for queue_id in (0, 1):
        put_one(rig, item(0, queue_id))
        rig.store.watch("T", queue_id)
    rig.store.arrival_listener = lambda _, queue_id, following, __: told.append(
        2 * following + queue_id
    )
    items = [item(number, number % 2, body=b"x" * 5_000) for number in range(30)]
    assert len(append(rig, items)) == len(items)
    assert told == list(range(4, 34))
