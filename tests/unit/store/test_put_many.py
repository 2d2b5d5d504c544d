"""put_many: the same log, queues and index as one put after the other."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.store.stores import HOST, Rig

if TYPE_CHECKING:
    from cometmq.store.base.results import PutItem


def item(number: int, queue_id: int = 0, topic: str = "T", **other: Any) -> PutItem:
    body = other.get("body", b"%d" % number)
    properties = other.get("properties", b"KEYS\x01k%d\x02" % number)
    keys = (f"U{number}", f"k{number}", None)
    return topic, queue_id, body, properties, number, other.get("sys_flag", 0), 5, number % 3, keys


def put_one(rig: Rig, one: PutItem) -> tuple[int, int]:
    topic, queue_id, body, properties, flag, sys_flag, born_ms, code, keys = one
    result = rig.store.put(
        topic, queue_id, body, properties, flag=flag, sys_flag=sys_flag, born_ms=born_ms,
        born_host=HOST, tags_code=code, store_ms=rig.now_ms, index_keys=keys,
    )  # fmt: skip
    return result.physical_offset, result.queue_offset


def put_all(rig: Rig, items: list[PutItem]) -> list[tuple[int, int]]:
    """As a broker does: what is left out goes the single way."""
    placed: list[tuple[int, int]] = []
    while len(placed) < len(items):
        more = rig.store.put_many(items[len(placed) :], born_host=HOST, store_ms=rig.now_ms)
        placed += more or [put_one(rig, items[len(placed)])]
    return placed


def contents(rig: Rig, topics: tuple[str, ...] = ("T", "Other")) -> Any:
    store = rig.store
    found: dict[Any, Any] = {"wrote": store.max_physical_offset}
    for topic in topics:
        for queue_id in store.queues(topic):
            result: Any = store.get(topic, queue_id, 0, 10_000)
            found[topic, queue_id] = (result.count, b"".join(result.chunks))
        for number in range(3):
            found[topic, f"k{number}"] = store.query_index(topic, f"k{number}", 9).physical_offsets
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
    assert put_all(left, items) == [put_one(right, one) for one in items]
    assert contents(left) == contents(right)


@pytest.mark.parametrize(
    "odd",
    [
        item(1, 7),
        item(1, topic="New"),
        item(1, body=bytes(5 << 20)),
        item(1, properties=bytes(2_000)),
        item(1, properties=bytes(40_000)),
        item(1, sys_flag=4),
    ],
)
def test_what_is_not_simple_is_left_to_put(odd: PutItem) -> None:
    """Those before it are stored, it and those behind it are not."""
    rig = Rig()
    put_one(rig, item(0))
    placed = rig.store.put_many([item(1), item(2), odd, item(3)], born_host=HOST, store_ms=1)
    assert [queue_offset for _, queue_offset in placed] == [1, 2]
    assert rig.store.max_queue_offset("T", 0) == 3
    assert rig.store.queues("New") == []


def test_fault_in_the_middle_leaves_whole_messages() -> None:
    """A flag that fits no record: what came before has record, unit and offsets."""
    rig = Rig()
    put_one(rig, item(0))
    bad = list(item(2))
    bad[4] = 1 << 40
    with pytest.raises(struct.error):
        rig.store.put_many([item(1), tuple(bad), item(3)], born_host=HOST, store_ms=1)  # type: ignore[list-item]
    assert put_one(rig, item(4))[1] == 2
    result: Any = rig.store.get("T", 0, 0, 10)
    assert result.count == 3
    assert rig.store.message_at(put_one(rig, item(5))[0]) is not None


def test_closed_or_general_stores_take_none_of_many() -> None:
    """A closed store, CRC tails, an IPv6 peer: `put` knows what to do."""
    rig = Rig()
    put_one(rig, item(0))
    assert rig.store.put_many([item(1)], born_host=bytes(20), store_ms=1) == []
    rig.store.close()
    assert rig.store.put_many([item(1)], born_host=HOST, store_ms=1) == []
    tails = Rig(is_crc_appended=True)
    put_one(tails, item(0))
    assert tails.store.put_many([item(1)], born_host=HOST, store_ms=1) == []


def test_many_become_visible_after_their_flush() -> None:
    """With synchronous flush, nobody is told before; then everyone, in order."""
    rig = Rig(is_sync_flush=True)
    put_one(rig, item(0))
    told: list[Any] = []
    rig.store.arrival_listener = lambda *what: told.append(what)
    rig.store.watch("T", 0)
    before = rig.store.max_queue_offset("T", 0)
    placed = rig.store.put_many([item(1), item(2)], born_host=HOST, store_ms=rig.now_ms)
    durable: list[bool] = []
    rig.store.when_durable(rig.store.max_physical_offset, durable.append)
    assert len(placed) == 2
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
    rig.store.put_many([item(1), item(2)], born_host=HOST, store_ms=rig.now_ms)
    assert len(seen) == 2
    assert all(seen)
