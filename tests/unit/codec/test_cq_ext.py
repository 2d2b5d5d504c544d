"""Extension files of a consume queue; what Java wrote is in tests/golden/store."""

import pytest

from cometmq.codec.consume_queue import encode_cq_ext_unit
from cometmq.codec.cq_ext import (
    CQ_EXT_BITMAP_BYTES_MAX,
    encode_cq_ext_end_blank,
    has_cq_ext_room,
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
