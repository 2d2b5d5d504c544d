"""put_packed: the same log, queue and index as the general way, or nothing at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.store.stores import HOST, Rig

from cometmq.codec.batch import decode_batch, encode_batch
from cometmq.errors import CodecError, MessageIllegal, StoreClosed
from cometmq.store.append.packed_batch import pack_units
from cometmq.store.base.results import BatchItem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.store.base.results import IndexKeys, PutResult

messages = st.lists(
    st.tuples(
        st.integers(-(1 << 31), (1 << 31) - 1),
        st.binary(max_size=300),
        st.binary(max_size=90) | st.just(bytes(1_023)),
    ),
    min_size=1,
    max_size=30,
)


def look(properties: Sequence[bytes]) -> tuple[list[int], list[IndexKeys]]:
    """Any codes and keys will do, as long as they follow from the properties."""
    return [len(one) for one in properties], [(one.hex(), None, None) for one in properties]


def put_generally(rig: Rig, packed: bytes, **more: Any) -> PutResult:
    items = decode_batch(packed)
    codes, keys = look([properties for _, _, properties in items])
    whole = [
        BatchItem(flag, body, properties, code, key)
        for (flag, body, properties), code, key in zip(items, codes, keys, strict=True)
    ]
    more.setdefault("born_host", HOST)
    return rig.store.put_batch("T", 0, whole, born_ms=5, store_ms=rig.now_ms, **more)


def put_packed(rig: Rig, packed: bytes, **more: Any) -> PutResult:
    more.setdefault("born_host", HOST)
    return rig.store.put_packed("T", 0, packed, look, born_ms=5, store_ms=rig.now_ms, **more)


def contents(rig: Rig, keys: Sequence[str] = ()) -> Any:
    store = rig.store
    units = store.units("T", 0, 0, 10_000)
    log = [bytes(store.message_at(unit.physical_offset) or b"") for unit in units]
    found = [store.prepare_query_index("T", key, 99)().physical_offsets for key in keys]
    return store.max_physical_offset, units, log, found


@given(st.lists(messages, max_size=6))
def test_packed_batches_are_stored_as_any_others(batches: list[Any]) -> None:
    """Records, units and index entries are the same bytes, over windows and files too."""
    left, right = Rig(), Rig()
    for rig in (left, right):
        rig.put()
    keys: list[str] = []
    for batch in batches:
        packed = encode_batch(batch)
        keys += [properties.hex() for _, _, properties in batch[:3] if properties]
        found = put_packed(left, packed, sys_flag=1)
        assert found == put_generally(right, packed, sys_flag=1)
    assert contents(left, keys[:9]) == contents(right, keys[:9])
    left.tick(2_000)
    right.tick(2_000)
    left.reopen()
    right.reopen()
    assert contents(left, keys[:9]) == contents(right, keys[:9])


@given(messages, st.data())
def test_bytes_that_are_no_batch_change_nothing(batch: list[Any], data: st.DataObject) -> None:
    """Cut, lengthened or with a wrong byte anywhere: an error, or what the general way stores."""
    packed = bytearray(encode_batch(batch))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    wrong = bytes(packed[: data.draw(st.integers(1, len(packed)))])
    rig = Rig()
    rig.put()
    before = contents(rig)
    other = Rig()
    other.put()
    try:
        found = put_packed(rig, wrong)
    except (CodecError, MessageIllegal) as error:
        assert contents(rig) == before
        with pytest.raises(type(error)):
            put_generally(other, wrong)
        return
    assert put_generally(other, wrong) == found
    assert contents(other) == contents(rig)


def test_what_is_not_simple_is_stored_generally() -> None:
    """A queue that is not there yet, long properties, an IPv6 host."""
    left, right = Rig(), Rig()
    packed = encode_batch([(0, b"body", b"")])
    for data, more in (
        (packed, {}),
        (encode_batch([(0, b"body", bytes(1_024))]), {}),
        (packed, {"born_host": bytes(20)}),
    ):
        stored = put_packed(left, data, **more)
        assert stored == put_generally(right, data, **more)
    assert contents(left) == contents(right)


def test_what_cannot_be_stored_is_refused() -> None:
    """More than a body may have, and nothing at all."""
    rig = Rig()
    rig.put()
    before = contents(rig)
    with pytest.raises(MessageIllegal):
        put_packed(rig, encode_batch([(0, bytes(5 << 20), b"")]))
    with pytest.raises(CodecError):
        put_packed(rig, b"")
    assert contents(rig) == before


def test_a_look_that_fails_leaves_no_trace() -> None:
    """Neither records nor units are there when the batch's keys cannot be found."""
    rig = Rig()
    rig.put()
    before = contents(rig)

    def fails(properties: Sequence[bytes]) -> tuple[list[int], list[IndexKeys]]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        rig.store.put_packed(
            "T", 0, encode_batch([(0, b"b", b"")]), fails, born_host=HOST, store_ms=rig.now_ms
        )
    assert contents(rig) == before


def test_a_closed_store_refuses_packed_batches() -> None:
    """As every other put."""
    rig = Rig()
    rig.put()
    rig.store.close()
    with pytest.raises(StoreClosed):
        put_packed(rig, encode_batch([(0, b"body", b"")]))


def test_packed_batches_wait_for_their_flush() -> None:
    """With SYNC_FLUSH a batch is seen once it is flushed, and its watchers are told then."""
    rig = Rig(is_sync_flush=True)
    rig.put()
    told: list[tuple[str, int, int, int]] = []
    rig.store.arrival_listener = lambda *arrival: told.append(arrival)
    rig.store.watch("T", 0)
    assert put_packed(rig, encode_batch([(0, b"1", b"a"), (0, b"2", b"bc")])) is not None
    rig.tick()
    assert rig.store.max_queue_offset("T", 0) == 3
    assert sorted(told[1:]) == [("T", 0, 3, 1), ("T", 0, 3, 2)], "each tag may wake another pull"


@pytest.mark.parametrize("count", [1, 2, 255, 256, 1_000])
def test_units_in_a_row(count: int) -> None:
    """As many as one likes."""
    raw = pack_units(range(count), range(1, count + 1), range(-count, 0))
    last = raw[-20:]
    assert len(raw) == 20 * count
    assert (int.from_bytes(last[:8], "big"), int.from_bytes(last[8:12], "big")) == (
        count - 1,
        count,
    )
    assert int.from_bytes(last[12:], "big", signed=True) == -1
