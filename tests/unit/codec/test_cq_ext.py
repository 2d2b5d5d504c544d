"""Extension files of a consume queue; what Java wrote is in tests/golden/store."""

import pytest

from cometmq.codec.consume_queue import CqExtUnit, encode_cq_ext_unit
from cometmq.codec.cq_ext import (
    CQ_EXT_BITMAP_BYTES_MAX,
    BitmapHint,
    encode_cq_ext_end_blank,
    has_cq_ext_room,
    uniform_count,
    units_that_may_match,
    walk_cq_ext,
)
from cometmq.errors import CodecError


def test_a_file_ends_at_its_blank_or_where_nothing_was_written() -> None:
    """Units of different sizes, then each kind of end."""
    units = encode_cq_ext_unit(7, 1000, b"\x01\x80") + encode_cq_ext_unit(-1, 1001)
    for end in (
        b"",
        b"\0",
        encode_cq_ext_end_blank(),
        encode_cq_ext_end_blank() + b"\7" * 9,
        bytes(40),
    ):
        walked = list(walk_cq_ext(units + end, 4096))
        assert [(one.file_position, one.unit_bytes) for one in walked] == [(4096, 22), (4118, 20)]
        assert walked[0].unit == (7, 1000, b"\x01\x80")
        assert walked[1].unit == (-1, 1001, b"")
    assert list(walk_cq_ext(b"")) == []


def test_damage_is_an_error_behind_what_is_sound() -> None:
    """A size that does not fit its bitmap, and a unit that is cut off."""
    sound = encode_cq_ext_unit(7, 1000)
    broken = b"\0\x19" + sound[2:] + bytes(10)
    for damaged in (sound + broken, sound + sound[:-1]):
        walk = walk_cq_ext(damaged)
        assert next(walk).unit.tags_code == 7
        with pytest.raises(CodecError, match="position 20"):
            next(walk)


def test_four_bytes_stay_free() -> None:
    """The rule of ConsumeQueueExt.put, at its edges."""
    assert has_cq_ext_room(4096 - 24, 20, 4096)
    assert not has_cq_ext_room(4096 - 23, 20, 4096)
    assert len(encode_cq_ext_unit(0, 0, bytes(CQ_EXT_BITMAP_BYTES_MAX))) == 32_767


def units(*entries: tuple[int, bytes]) -> bytes:
    return b"".join(encode_cq_ext_unit(7, store_ms, bitmap) for store_ms, bitmap in entries)


HINT = BitmapHint(positions=(0, 9), bitmap_bytes=2, born_ms=100)


def test_a_bitmap_says_no_only_for_messages_the_filter_saw() -> None:
    """Older units, bitmaps of another size and no unit at all say perhaps."""
    assert HINT.may_match(None)
    assert HINT.may_match(CqExtUnit(7, 100, b"\0\0"))
    assert HINT.may_match(CqExtUnit(7, 101, b"\0"))
    assert HINT.may_match(CqExtUnit(7, 101, b"\x01\x02"))
    assert not HINT.may_match(CqExtUnit(7, 101, b"\x01\x00"))


@pytest.mark.parametrize("match_every", [1, 2, 40])
@pytest.mark.parametrize("first_ms", [90, 101])
def test_many_units_give_what_each_gives(match_every: int, first_ms: int) -> None:
    """Few matches and many, with and without units older than the filter."""
    entries = [
        (first_ms + index, b"\x01\x02" if index % match_every == 0 else b"\x01\x00")
        for index in range(60)
    ]
    raw = units(*entries)
    expected = [
        index
        for index, (store_ms, bitmap) in enumerate(entries)
        if HINT.may_match(CqExtUnit(7, store_ms, bitmap))
    ]
    assert units_that_may_match(raw, 60, HINT) == expected


def test_units_of_several_sizes_are_not_taken_together() -> None:
    """The number of equal ones at the front is given, for the caller to go on from."""
    raw = units((101, b"\x01\x02"), (102, b"\x01\x02"), (103, b"\x01"), (104, b"\x01\x02"))
    assert uniform_count(raw, 22) == 2
    assert units_that_may_match(raw, 4, HINT) is None
    assert units_that_may_match(units((101, b"\x01\x02")) * 2, 3, HINT) is None
