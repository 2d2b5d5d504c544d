"""Blocks of staged messages: counted, refused, and cut into slices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.base.state import Refusal
from cometmq.broker.delay.waiting_items import AT_ONCE, TIMED
from cometmq.broker.extensions.staging import items as staged_items
from cometmq.broker.extensions.staging.items import check_block, cut
from cometmq.codec.batch import decode_batch, encode_batch
from cometmq.errors import CodecError

ITEMS = st.lists(
    st.tuples(
        st.integers(-(2**31), 2**31 - 1),
        st.binary(min_size=1, max_size=60),
        st.binary(max_size=60),
    ),
    min_size=1,
    max_size=40,
)


@given(ITEMS)
def test_the_quick_count_is_the_slow_one(items: list[tuple[int, bytes, bytes]]) -> None:
    """Whatever bodies and properties hold, as long as none of the special names."""
    assert check_block(encode_batch(items)) == len(items)


@given(ITEMS, st.integers(0, 200), st.integers(0, 300))
def test_a_damaged_block_is_never_counted_otherwise(
    items: list[tuple[int, bytes, bytes]], place: int, value: int
) -> None:
    """One byte changed: refused, or decoded to as many messages as were counted."""
    data = bytearray(encode_batch(items))
    data[place % len(data)] = value % 256
    try:
        count = check_block(bytes(data))
    except (CodecError, Refusal):
        return
    assert count == len(decode_batch(bytes(data)))


@given(ITEMS, st.integers(0, 45), st.integers(1, 9), st.integers(1, 400))
def test_slices_are_the_rest_of_the_block(
    items: list[tuple[int, bytes, bytes]], first: int, rows_max: int, bytes_max: int
) -> None:
    """In order, none empty, none above both limits unless a message alone is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staged_items, "SLICE_ROWS", rows_max)
        patch.setattr(staged_items, "SLICE_BYTES", bytes_max)
        slices = cut(encode_batch(items), first, 0)
    found: list[tuple[int, bytes, bytes]] = []
    for one in slices:
        assert one.first == first + len(found)
        decoded = decode_batch(one.packed)
        assert len(decoded) == one.rows <= rows_max
        assert one.rows == 1 or len(one.packed) <= bytes_max
        found += decoded
    assert found == items[first:]


def test_special_properties_are_told_from_words() -> None:
    """A body may speak of transactions, and the message is named by its number."""
    plain = (0, b"TRAN_MSG\x01true\x02", b"A\x01b\x02")
    nothing = (0, b"x", b"DELAY\x010\x02TRAN_MSG\x01false\x02")
    assert check_block(encode_batch([plain, nothing])) == 2
    special = (0, b"x", b"TRAN_MSG\x01true\x02")
    with pytest.raises(Refusal, match="message 1 of the block is illegal: it is transactional"):
        check_block(encode_batch([plain, special]))
    assert check_block(encode_batch([plain, (0, b"", b"")])) == 2


def test_slices_hold_what_waits_alike() -> None:
    """Cut where it changes; what is due or was served waits for nothing."""
    strings = [
        b"A\x01b\x02",
        b"TIMER_DELIVER_MS\x0150\x02",
        b"TIMER_DELIVER_MS\x01500\x02",
        b"TIMER_DELAY_SEC\x011\x02",
        b"DELAY\x013\x02TIMER_DELAY_SEC\x011\x02",
        b"DELAY\x013\x02",
        b"DELAY\x010\x02",
        b"TIMER_DELIVER_MS\x01500\x02TIMER_OUT_MS\x010\x02",
    ]
    packed = encode_batch([(0, b"x", string) for string in strings])
    found = [(one.first, one.rows, one.wait) for one in cut(packed, 0, 100)]
    assert found == [(0, 2, AT_ONCE), (2, 2, TIMED), (4, 2, 3), (6, 2, AT_ONCE)]
    assert [(one.first, one.wait) for one in cut(packed, 3, 100)][:2] == [(3, TIMED), (4, 3)]
