"""Body compression: flags of each client, limits, broken data."""

import zlib

import pytest

from cometmq.codec.compression import (
    LZ4,
    ZLIB,
    ZSTD,
    compress,
    compression_flag,
    decompress,
)
from cometmq.errors import CodecError, LocalProtocolError

BODY = b"0123456789" * 500
KINDS = [ZLIB, LZ4, ZSTD]


@pytest.mark.parametrize("kind", KINDS)
def test_body_survives(kind: str) -> None:
    """Smaller on the wire, the same at the other end."""
    packed, flag = compress(BODY, kind)
    assert len(packed) < len(BODY)
    assert decompress(packed, flag) == BODY
    assert decompress(*compress(b"", kind)) == b""


def test_flags_are_those_of_java() -> None:
    """As in the captures: 769, 257 and 513."""
    assert [compression_flag(kind) for kind in KINDS] == [769, 257, 513]
    with pytest.raises(LocalProtocolError, match="SNAPPY"):
        compression_flag("SNAPPY")


def test_type_zero_is_zlib() -> None:
    """Go and C++ set bit 0 only."""
    assert decompress(zlib.compress(BODY), 0x1) == BODY


def test_plain_bodies_pass() -> None:
    """Without bit 0 the other bits mean nothing."""
    assert decompress(BODY, 0x300) is BODY


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cut", [1, 3, 8])
def test_cut_bodies_are_refused(kind: str, cut: int) -> None:
    """Never a shorter body."""
    packed, flag = compress(BODY, kind)
    with pytest.raises(CodecError, match=kind):
        decompress(packed[:-cut], flag)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("body", [b"", b"x", b"\0" * 100, b"this was never compressed at all"])
def test_other_bytes_are_refused(kind: str, body: bytes) -> None:
    """Three libraries, one error."""
    with pytest.raises(CodecError, match=kind):
        decompress(body, compression_flag(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_bombs_are_refused(kind: str) -> None:
    """A small body may not fill the memory."""
    packed, flag = compress(b"\0" * 1_000_000, kind)
    with pytest.raises(CodecError, match="expands beyond 1000 bytes"):
        decompress(packed, flag, 1000)


def test_unknown_type_is_refused() -> None:
    """Types 4 to 7 do not exist."""
    with pytest.raises(CodecError, match="0x401"):
        decompress(b"x", 0x401)


def test_zstd_without_a_content_size() -> None:
    """Streaming writers leave the size out of the frame; a cut is still noticed."""
    import zstandard

    stream = zstandard.ZstdCompressor().compressobj()
    packed = stream.compress(BODY) + stream.flush()
    assert zstandard.frame_content_size(packed) == -1
    assert decompress(packed, 0x201) == BODY
    with pytest.raises(CodecError, match="ZSTD"):
        decompress(packed[:-2], 0x201)
