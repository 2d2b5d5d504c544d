"""CRC, consume-queue units, index entries, checkpoint, bit sets."""

import zlib

import pytest

from cometmq.codec.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from cometmq.codec.consume_queue import (
    CQ_UNIT,
    CqExtUnit,
    CqUnit,
    decode_cq_ext_address,
    decode_cq_ext_unit,
    encode_cq_ext_address,
    encode_cq_ext_unit,
    encode_pre_blank_unit,
    is_cq_ext_address,
    units_struct,
)
from cometmq.codec.crc import body_crc, decode_crc_tail, encode_crc_tail, is_record_crc_right
from cometmq.codec.index import (
    INDEX_COUNT_DEFAULT,
    INDEX_ENTRY,
    INDEX_HEADER,
    SLOT_COUNT_DEFAULT,
    decode_index_header,
    entry_position,
    index_file_bytes,
    index_key,
    index_tag_key,
    slot_position,
)
from cometmq.errors import CodecError
from cometmq.model.offsets import PhysicalOffset


def test_body_crc_has_31_bits() -> None:
    """docs/internals/protocol.md#test-vectors, vector 4, and trap T23."""
    assert body_crc(b"hello") == 907060870
    assert body_crc(b"") == 0
    high = next(b"%d" % n for n in range(100) if zlib.crc32(b"%d" % n) >= 2**31)
    assert body_crc(high) == zlib.crc32(high) - 2**31
    assert body_crc(memoryview(b"hello")) == body_crc(bytearray(b"hello"))


def test_crc_tail_digits_are_backwards() -> None:
    """docs/internals/store.md#property-crc: 1234567890 is stored as 0987654321."""
    assert encode_crc_tail(1234567890) == b"__CRC32#\x010987654321\x02"
    assert encode_crc_tail(7) == b"__CRC32#\x017000000000\x02"
    assert decode_crc_tail(b"any" + encode_crc_tail(1234567890)) == 1234567890


@pytest.mark.parametrize(
    "record",
    [b"", b"short", b"x" * 40, b"__CRC32#\x01098765432x\x02", b"__CRC32#\x010987654321\x03"],
)
def test_records_without_a_tail(record: bytes) -> None:
    """None, which is not the same as wrong."""
    assert decode_crc_tail(record) is None
    assert is_record_crc_right(record) is None


def test_unit_layout_and_signs() -> None:
    """Offset, size, tag code, big-endian and signed."""
    raw = CQ_UNIT.pack(1000, 115, -5)
    assert raw.hex() == "00000000000003e800000073fffffffffffffffb"
    assert CQ_UNIT.size == 20
    assert CqUnit._make(CQ_UNIT.unpack(raw)).is_valid
    assert not CqUnit._make(CQ_UNIT.unpack(bytes(20))).is_valid
    assert not CqUnit(PhysicalOffset(-1), 5, 0).is_valid
    assert CQ_UNIT.unpack(encode_pre_blank_unit()) == (0, 0x7FFFFFFF, 0)


def test_extension_units_and_their_addresses() -> None:
    """An address is no possible tag code."""
    raw = encode_cq_ext_unit(2598919, 1700000000000, b"\x01\x02")
    assert len(raw) == 22
    assert decode_cq_ext_unit(b"z" + raw, 1) == (CqExtUnit(2598919, 1700000000000, b"\x01\x02"), 22)
    address = encode_cq_ext_address(48 * 1024 * 1024)
    assert is_cq_ext_address(address)
    assert decode_cq_ext_address(address) == 48 * 1024 * 1024
    assert not is_cq_ext_address(-(2**31))
    assert is_cq_ext_address(-(2**31) - 1)


@pytest.mark.parametrize(
    "raw",
    [b"", bytes(19), bytes(20), b"\x00\x16" + bytes(18), b"\x00\x10" + bytes(16) + b"\xff\xfc"],
)
def test_broken_extension_units_are_refused(raw: bytes) -> None:
    """Size, bitmap and buffer must agree."""
    with pytest.raises(CodecError, match="extension unit at position 0"):
        decode_cq_ext_unit(raw)


def test_index_layout() -> None:
    """Sizes and positions of docs/internals/store.md#index-file."""
    assert index_file_bytes(SLOT_COUNT_DEFAULT, INDEX_COUNT_DEFAULT) == 420_000_040
    assert slot_position(0) == 40
    assert entry_position(1, SLOT_COUNT_DEFAULT) == 40 + 4 * 5_000_000 + 20
    header = INDEX_HEADER.pack(1, 2, 3, 4, 5, 6)
    assert len(header) == 40
    assert decode_index_header(header + b"more") == (1, 2, 3, 4, 5, 6)
    entry = INDEX_ENTRY.pack(7, 8, 9, 10)
    assert len(entry) == 20
    assert index_key("t", "k") == "t#k"
    assert index_tag_key("t", "TagA") == "t#T#TagA"
    with pytest.raises(CodecError, match="index head"):
        decode_index_header(header[:39])


def test_checkpoint_layout() -> None:
    """Five numbers and zeros up to 4096 bytes."""
    checkpoint = Checkpoint(5000, 4000, 3000, 2, 1)
    raw = encode_checkpoint(checkpoint)
    assert (len(raw), raw[40:]) == (4096, bytes(4056))
    assert raw[:16].hex() == "00000000000013880000000000000fa0"
    assert decode_checkpoint(raw) == checkpoint
    assert checkpoint.min_timestamp_ms == 1000
    assert Checkpoint(2000, 9000).min_timestamp_ms == 0
    with pytest.raises(CodecError, match="needs 40 bytes"):
        decode_checkpoint(raw[:39])


@pytest.mark.parametrize("count", [0, 2, 300])
def test_many_units_are_laid_out_like_one(count: int) -> None:
    """For the usual counts and beyond them."""
    numbers = [7, 20, -1] * count
    raw = units_struct(count).pack(*numbers)
    assert raw == CQ_UNIT.pack(7, 20, -1) * count
